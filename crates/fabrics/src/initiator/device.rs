//! A remote namespace as a block device: each channel connects by itself, and again after a loss.
//!
//! Requests that are in flight when the connection is lost end with "unavailable": whether they took effect is
//! unknown, and what to do about it is for the layer above. Requests that come while there is no
//! connection wait for one, up to a limit.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bdev::{BlockDevice, Channel, Geometry, IoError, OpenError, Request};
use foundation::Instant;
use reactor::{spawn, time};

use super::controller::{ConnectError, ConnectOptions, Controller};
use super::namespace::NamespaceChannel;

/// Shortest and longest pause between attempts to connect.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How a remote device behaves without a connection.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// Where and as whom to connect.
    pub connect: ConnectOptions,
    /// The namespace's number.
    pub nsid: u32,
    /// How long a request waits for a connection before it fails with "unavailable".
    pub wait_limit: Duration,
}

/// See the module.
pub struct RemoteDevice {
    options: RemoteOptions,
    geometry: Geometry,
}

impl RemoteDevice {
    /// Connects once to learn the namespace's shape.
    pub async fn connect(options: RemoteOptions) -> Result<Self, ConnectError> {
        let controller = Controller::connect(options.connect.clone()).await?;
        let geometry = controller.open_namespace(options.nsid).await?.geometry();
        Ok(Self { options, geometry })
    }
}

impl BlockDevice for RemoteDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn open_channel(&self) -> Result<Rc<dyn Channel>, OpenError> {
        let channel = Rc::new(RemoteChannel {
            geometry: self.geometry,
            options: self.options.clone(),
            state: RefCell::new(State {
                connection: None,
                connecting: false,
                waiting: VecDeque::new(),
            }),
        });
        RemoteChannel::connect(&channel);
        Ok(Rc::new(Handle(channel)))
    }
}

struct State {
    connection: Option<(Rc<Controller>, NamespaceChannel)>,
    connecting: bool,
    waiting: VecDeque<(Instant, Request)>,
}

struct RemoteChannel {
    geometry: Geometry,
    options: RemoteOptions,
    state: RefCell<State>,
}

/// What the user holds: connecting stops with it.
struct Handle(Rc<RemoteChannel>);

impl RemoteChannel {
    fn connect(channel: &Rc<Self>) {
        if std::mem::replace(&mut channel.state.borrow_mut().connecting, true) {
            return;
        }
        drop(spawn(Self::keep_connecting(Rc::downgrade(channel))));
    }

    async fn keep_connecting(weak: Weak<Self>) {
        let mut pause = BACKOFF.0;
        loop {
            let Some(options) = weak.upgrade().map(|channel| channel.options.clone()) else {
                return;
            };
            let attempt = async {
                let controller = Controller::connect(options.connect).await?;
                let namespace = controller.open_namespace(options.nsid).await?;
                Ok::<_, ConnectError>((controller, namespace))
            };
            let outcome = attempt.await;
            let Some(channel) = weak.upgrade() else { return };
            match outcome {
                Ok(connection) => {
                    Self::connected(&channel, connection);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, retry_ms = pause.as_millis() as u64, "no connection");
                    channel.fail_late_requests();
                }
            }
            drop(channel);
            time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    fn connected(channel: &Rc<Self>, connection: (Rc<Controller>, NamespaceChannel)) {
        let namespace = connection.1.clone();
        drop(spawn(Self::give_up_when_ended(
            Rc::downgrade(channel),
            Rc::downgrade(&connection.0),
        )));
        let waiting = {
            let mut state = channel.state.borrow_mut();
            state.connecting = false;
            state.connection = Some(connection);
            std::mem::take(&mut state.waiting)
        };
        for (_, request) in waiting {
            namespace.submit(request);
        }
    }

    /// The association may end while the I/O queue's connection seems alive (its packets just stay away): then
    /// the requests in flight must end, though nobody submits another that would notice.
    async fn give_up_when_ended(weak: Weak<Self>, controller: Weak<Controller>) {
        let Some(ended) = controller.upgrade().map(|controller| controller.ended()) else {
            return;
        };
        ended.await;
        let Some(channel) = weak.upgrade() else { return };
        let lost = {
            let mut state = channel.state.borrow_mut();
            state
                .connection
                .take_if(|(current, _)| std::ptr::eq(Rc::as_ptr(current), controller.as_ptr()))
        };
        // Dropped without a borrow: its requests complete now, and may submit others.
        if let Some((_, namespace)) = lost {
            namespace.queue().close();
        }
    }

    fn fail_late_requests(&self) {
        let now = time::now();
        loop {
            let late = {
                let mut state = self.state.borrow_mut();
                match state.waiting.front() {
                    Some((deadline, _)) if *deadline <= now => state.waiting.pop_front(),
                    _ => None,
                }
            };
            match late {
                Some((_, request)) => request.complete(Err(IoError::Unavailable)),
                None => return,
            }
        }
    }
}

impl Channel for Handle {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn submit(&self, request: Request) {
        let channel = &self.0;
        let mut lost = None;
        let namespace = {
            let mut state = channel.state.borrow_mut();
            match &state.connection {
                Some((controller, namespace)) if !namespace.queue().is_ended() && !controller.is_ended() => {
                    Some(namespace.clone())
                }
                _ => {
                    lost = state.connection.take();
                    None
                }
            }
        };
        // Requests that were in flight complete when it is dropped, and may submit others: no borrow is held here.
        drop(lost);
        match namespace {
            Some(namespace) => namespace.submit(request),
            None => {
                let deadline = time::now() + channel.options.wait_limit;
                channel.state.borrow_mut().waiting.push_back((deadline, request));
                RemoteChannel::connect(channel);
                let weak = Rc::downgrade(channel);
                let limit = channel.options.wait_limit;
                drop(spawn(async move {
                    time::sleep(limit).await;
                    if let Some(channel) = weak.upgrade() {
                        channel.fail_late_requests();
                    }
                }));
            }
        }
    }
}
