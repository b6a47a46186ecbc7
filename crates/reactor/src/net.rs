//! TCP connections.
//!
//! Received bytes come in chunks of a buffer ring that all connections share: take what you need and drop
//! the chunk. Bytes are sent in batches that are gathered where they lie.

pub mod local;

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::buffer::Buffer;
use crate::context::{self, Backend};
use crate::sim::network::{SimulatedListener, SimulatedReceiver, SimulatedSender};
use crate::sys::{self, ReceiveChunk, Ring, SendMessage};

/// How a socket is set up.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Kernel buffer in each direction, in bytes; `None` leaves it to the kernel.
    pub kernel_buffer_bytes: Option<usize>,
    /// Congestion control by the kernel's name; a name the kernel lacks is an error.
    pub congestion_control: Option<String>,
    /// Connections that may wait to be accepted.
    pub backlog: i32,
    /// Whether the two sides meet on a Unix socket where they are on one machine: see [`local`].
    pub local: bool,
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            kernel_buffer_bytes: Some(4 << 20),
            congestion_control: None,
            backlog: 1024,
            local: false,
        }
    }
}

impl TcpOptions {
    fn apply_buffers(&self, socket: &SockRef<'_>) -> io::Result<()> {
        if let Some(bytes) = self.kernel_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
            socket.set_recv_buffer_size(bytes)?;
        }
        Ok(())
    }

    fn apply(&self, socket: &SockRef<'_>) -> io::Result<()> {
        self.apply_buffers(socket)?;
        if let Some(name) = &self.congestion_control {
            socket.set_tcp_congestion(name.as_bytes())?;
        }
        Ok(())
    }
}

/// Accepts connections.
pub struct TcpListener {
    kind: ListenerKind,
    address: SocketAddr,
    options: TcpOptions,
    family: Family,
}

/// What carries the bytes of a real connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Tcp,
    Unix,
}

enum ListenerKind {
    Ring(Rc<Ring>, Rc<OwnedFd>),
    Simulated(SimulatedListener),
}

impl TcpListener {
    /// Listens on `address`; port 0 takes a free one. Fails if the address is taken.
    pub fn bind(address: SocketAddr, options: TcpOptions) -> io::Result<Self> {
        match context::with(|context| context.backend.clone()) {
            Backend::Ring(ring) => {
                let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
                socket.set_reuse_address(true)?;
                if address.is_ipv6() {
                    socket.set_only_v6(true)?;
                }
                options.apply(&SockRef::from(&socket))?;
                socket.bind(&address.into())?;
                socket.listen(options.backlog)?;
                let address = socket
                    .local_addr()?
                    .as_socket()
                    .ok_or(io::ErrorKind::Unsupported)?;
                let kind = ListenerKind::Ring(ring, Rc::new(socket.into()));
                Ok(Self {
                    kind,
                    address,
                    options,
                    family: Family::Tcp,
                })
            }
            Backend::Simulated(world) => {
                let listener = world.listen(address)?;
                let address = listener.address();
                Ok(Self {
                    kind: ListenerKind::Simulated(listener),
                    address,
                    options,
                    family: Family::Tcp,
                })
            }
        }
    }

    /// Listens beside this TCP listener on the Unix socket that [`local`] describes, if its options ask for it; `None`
    /// if not, and in a simulation.
    ///
    /// # Errors
    /// The system's, if the name is taken: another program of this machine has it.
    pub fn beside(&self) -> io::Result<Option<Self>> {
        let ListenerKind::Ring(ring, _) = &self.kind else {
            return Ok(None);
        };
        if !self.options.local {
            return Ok(None);
        }
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&local::name(self.address)?)?;
        socket.listen(self.options.backlog)?;
        Ok(Some(Self {
            kind: ListenerKind::Ring(ring.clone(), Rc::new(socket.into())),
            address: self.address,
            options: self.options.clone(),
            family: Family::Unix,
        }))
    }

    /// The address that connections reach.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next connection.
    pub async fn accept(&self) -> io::Result<TcpStream> {
        match &self.kind {
            ListenerKind::Ring(ring, fd) => {
                let socket: Socket = sys::accept(ring, fd).await?.into();
                if self.family == Family::Unix {
                    self.options.apply_buffers(&SockRef::from(&socket))?;
                    // Whoever it is, it is here.
                    let peer = SocketAddr::new(self.address.ip(), 0);
                    let fd = Rc::new(socket.into());
                    return Ok(TcpStream::of_ring(ring.clone(), fd, self.address, peer));
                }
                socket.set_tcp_nodelay(true)?;
                self.options.apply(&SockRef::from(&socket))?;
                let peer = socket
                    .peer_addr()?
                    .as_socket()
                    .ok_or(io::ErrorKind::Unsupported)?;
                let local = socket
                    .local_addr()?
                    .as_socket()
                    .ok_or(io::ErrorKind::Unsupported)?;
                Ok(TcpStream::of_ring(
                    ring.clone(),
                    Rc::new(socket.into()),
                    local,
                    peer,
                ))
            }
            ListenerKind::Simulated(listener) => {
                let (receiver, sender, peer) = listener.accept().await?;
                Ok(TcpStream {
                    receiver: TcpReceiver {
                        kind: ReceiverKind::Simulated(receiver),
                    },
                    sender: TcpSender {
                        kind: SenderKind::Simulated(sender),
                    },
                    local: self.address,
                    peer,
                })
            }
        }
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        if let ListenerKind::Ring(_, fd) = &self.kind {
            // The kernel may still hold the socket for an accept that is being cancelled: it refuses connections from
            // now on, and the address is free as soon as the last of them has ended.
            drop(SockRef::from(&**fd).shutdown(std::net::Shutdown::Both));
        }
    }
}

/// A connection.
pub struct TcpStream {
    receiver: TcpReceiver,
    sender: TcpSender,
    local: SocketAddr,
    peer: SocketAddr,
}

impl TcpStream {
    /// Connects to `address`. Without a limit of its own: wrap it in [`crate::time::timeout`].
    pub async fn connect(address: SocketAddr, options: &TcpOptions) -> io::Result<Self> {
        match context::with(|context| context.backend.clone()) {
            Backend::Ring(ring) => {
                if options.local
                    && let Some(socket) = local::connect(address)
                {
                    options.apply_buffers(&SockRef::from(&socket))?;
                    let here = SocketAddr::new(address.ip(), 0);
                    return Ok(Self::of_ring(ring, Rc::new(socket.into()), here, address));
                }
                let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
                socket.set_tcp_nodelay(true)?;
                options.apply(&SockRef::from(&socket))?;
                let fd: Rc<OwnedFd> = Rc::new(socket.into());
                sys::connect(&ring, &fd, address.into()).await?;
                let local = SockRef::from(&*fd)
                    .local_addr()?
                    .as_socket()
                    .ok_or(io::ErrorKind::Unsupported)?;
                Ok(Self::of_ring(ring, fd, local, address))
            }
            Backend::Simulated(world) => {
                let (receiver, sender, local) = world.connect(address).await?;
                Ok(Self {
                    receiver: TcpReceiver {
                        kind: ReceiverKind::Simulated(receiver),
                    },
                    sender: TcpSender {
                        kind: SenderKind::Simulated(sender),
                    },
                    local,
                    peer: address,
                })
            }
        }
    }

    fn of_ring(ring: Rc<Ring>, fd: Rc<OwnedFd>, local: SocketAddr, peer: SocketAddr) -> Self {
        let receive = RingReceiver {
            ring: ring.clone(),
            fd: fd.clone(),
            stream: None,
            ended: false,
        };
        Self {
            receiver: TcpReceiver {
                kind: ReceiverKind::Ring(receive),
            },
            sender: TcpSender {
                kind: SenderKind::Ring(ring, fd),
            },
            local,
            peer,
        }
    }

    /// Takes the connection from this reactor, for another one. Only before anything was received or sent; a simulated
    /// connection cannot leave its host and comes back as it was.
    pub fn detach(self) -> Result<DetachedStream, Self> {
        let Self {
            receiver,
            sender,
            local,
            peer,
        } = self;
        match (receiver.kind, sender.kind) {
            (ReceiverKind::Ring(receiver), SenderKind::Ring(ring, fd)) => {
                drop(receiver);
                match Rc::try_unwrap(fd) {
                    Ok(socket) => Ok(DetachedStream { socket, local, peer }),
                    Err(fd) => Err(Self::of_ring(ring, fd, local, peer)),
                }
            }
            (receiver, sender) => Err(Self {
                receiver: TcpReceiver { kind: receiver },
                sender: TcpSender { kind: sender },
                local,
                peer,
            }),
        }
    }

    /// The other side's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    /// This side's address.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Whether the two sides are processes of one machine that meet on a Unix socket, see [`local`].
    pub fn is_local(&self) -> bool {
        match &self.receiver.kind {
            ReceiverKind::Ring(receiver) => SockRef::from(&*receiver.fd)
                .domain()
                .is_ok_and(|domain| domain == Domain::UNIX),
            ReceiverKind::Simulated(_) => false,
        }
    }

    /// Separates the two directions, for two tasks.
    pub fn split(self) -> (TcpReceiver, TcpSender) {
        (self.receiver, self.sender)
    }
}

/// A connection between two reactors. Dropping it closes the connection.
pub struct DetachedStream {
    socket: OwnedFd,
    local: SocketAddr,
    peer: SocketAddr,
}

impl DetachedStream {
    /// Makes the connection one of this thread's reactor.
    ///
    /// # Panics
    /// Outside a reactor, and in a simulation, where no connection can come from.
    pub fn attach(self) -> TcpStream {
        match context::with(|context| context.backend.clone()) {
            Backend::Ring(ring) => TcpStream::of_ring(ring, Rc::new(self.socket), self.local, self.peer),
            Backend::Simulated(_) => panic!("a simulated host has no sockets of the system"),
        }
    }
}

/// The receiving direction. Dropping both directions closes the connection.
pub struct TcpReceiver {
    kind: ReceiverKind,
}

enum ReceiverKind {
    Ring(RingReceiver),
    Simulated(SimulatedReceiver),
}

struct RingReceiver {
    ring: Rc<Ring>,
    fd: Rc<OwnedFd>,
    stream: Option<sys::Stream>,
    ended: bool,
}

impl RingReceiver {
    async fn receive(&mut self) -> io::Result<Option<ReceivedBytes>> {
        while !self.ended {
            let stream = self
                .stream
                .get_or_insert_with(|| self.ring.receive_stream(&self.fd));
            let Some(received) = poll_fn(|cx| stream.poll_next(cx)).await else {
                self.stream = None;
                continue;
            };
            match sys::check(received.result) {
                Ok(0) => self.ended = true,
                Ok(_) => {
                    let chunk = self
                        .ring
                        .chunk(received)
                        .expect("received bytes lie in a buffer of the ring");
                    return Ok(Some(ReceivedBytes(ChunkKind::Ring(chunk))));
                }
                // All buffers are taken, or we stopped the stream because the queue was full: the
                // stream has ended and is armed again once others had their turn.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ECANCELED)) => {
                    crate::yield_now().await;
                }
                Err(error) => {
                    self.ended = true;
                    return Err(error);
                }
            }
        }
        Ok(None)
    }
}

impl TcpReceiver {
    /// The next bytes, at least one; `None` at the end of the stream. The chunk's length says
    /// nothing about the sender's batches. Safe to drop: no bytes are lost.
    pub async fn receive(&mut self) -> io::Result<Option<ReceivedBytes>> {
        match &mut self.kind {
            ReceiverKind::Ring(ring) => ring.receive().await,
            ReceiverKind::Simulated(receiver) => {
                let bytes = receiver.receive().await?;
                Ok(bytes.map(|bytes| ReceivedBytes(ChunkKind::Simulated(bytes))))
            }
        }
    }

    /// As [`TcpReceiver::receive`] for what has already arrived: `None` if that is nothing.
    pub fn try_receive(&mut self) -> Option<ReceivedBytes> {
        match &mut self.kind {
            ReceiverKind::Ring(RingReceiver {
                ring,
                stream: Some(stream),
                ..
            }) => {
                let received = ring.peek_stream(stream)?;
                ring.chunk(received)
                    .map(|chunk| ReceivedBytes(ChunkKind::Ring(chunk)))
            }
            ReceiverKind::Ring(_) => None,
            ReceiverKind::Simulated(receiver) => receiver
                .try_receive()
                .map(|bytes| ReceivedBytes(ChunkKind::Simulated(bytes))),
        }
    }
}

/// Bytes that arrived, in a buffer that goes back to the kernel when this is dropped.
pub struct ReceivedBytes(ChunkKind);

enum ChunkKind {
    Ring(ReceiveChunk),
    Simulated(Vec<u8>),
}

impl Deref for ReceivedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            ChunkKind::Ring(chunk) => chunk,
            ChunkKind::Simulated(bytes) => bytes,
        }
    }
}

/// Bytes to send in one go: headers that are copied in and buffers that are only referred to. Reuse it:
/// it keeps its memory.
#[derive(Default)]
pub struct SendBatch {
    message: Box<SendMessage>,
}

impl SendBatch {
    /// A batch without bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where header bytes are appended. Only append: earlier bytes may already be part of the batch.
    pub fn headers(&mut self) -> &mut Vec<u8> {
        self.message.headers_mut()
    }

    /// Appends a buffer after the headers written so far.
    pub fn push(&mut self, data: Buffer) {
        self.message.push(data);
    }

    /// Bytes in the batch.
    pub fn length(&self) -> usize {
        self.message.length()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.length() == 0
    }

    /// The bytes in order, piece by piece, for a sender that has to change them.
    pub fn pieces(&mut self) -> impl Iterator<Item = &[u8]> {
        self.message.pieces()
    }

    /// Drops the contents and keeps the memory.
    pub fn clear(&mut self) {
        self.message.clear();
    }
}

/// The sending direction. Dropping both directions closes the connection.
pub struct TcpSender {
    kind: SenderKind,
}

enum SenderKind {
    Ring(Rc<Ring>, Rc<OwnedFd>),
    Simulated(SimulatedSender),
}

impl TcpSender {
    /// Sends the whole batch and returns it emptied. After an error, or if the future is dropped, any
    /// part of it may have gone out: close the connection.
    pub async fn send(&mut self, batch: SendBatch) -> (io::Result<()>, SendBatch) {
        let (result, mut message) = match &mut self.kind {
            SenderKind::Ring(ring, fd) => sys::send(ring, fd, batch.message).await,
            SenderKind::Simulated(sender) => {
                let mut message = batch.message;
                let mut bytes = Vec::with_capacity(message.length());
                message.pieces().for_each(|piece| bytes.extend_from_slice(piece));
                (sender.send(bytes).await, message)
            }
        };
        message.clear();
        (result, SendBatch { message })
    }

    /// Ends both directions at once; the other side sees the end of the stream or a reset.
    pub fn shutdown(&mut self) {
        match &mut self.kind {
            // An error means that the connection has ended already.
            SenderKind::Ring(_, fd) => drop(SockRef::from(&**fd).shutdown(std::net::Shutdown::Both)),
            SenderKind::Simulated(sender) => sender.shutdown(),
        }
    }
}
