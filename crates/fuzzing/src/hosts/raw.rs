//! A hostile host: steps from the input's bytes, and a look at all that the target sends.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use foundation::checksum::crc32c;
use protocols::nvme::fabrics::{Connect, ConnectAnswer, ConnectData, PropertySet, PropertySize};
use protocols::nvme::registers::{CC_OFFSET, Configuration};
use protocols::nvme::{Command, Completion, NqnField, SglDescriptor, Status};
use protocols::tcp::pdu::{Data, InitializeRequest, Layout, PduType, ReadyToTransfer, flags};
use reactor::net::{SendBatch, TcpOptions, TcpSender, TcpStream};
use reactor::{spawn, time};

use super::{HOST, NQN, nqn};
use crate::input::Input;

const CONNECTIONS: usize = 3;
/// Steps of one input, at most.
const STEPS_MAX: usize = 60;
/// No PDU that a target sends is longer.
const PDU_BYTES_MAX: usize = 2 << 20;

/// What a hostile host got out of a target: that its commands were more than refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    pub(super) data_bytes: u64,
    pub(super) asked: u64,
    pub(super) terminations: u64,
}

/// See the module.
pub(super) struct Hostile {
    reached: Rc<Cell<Reached>>,
    address: SocketAddr,
    connections: [Option<Connection>; CONNECTIONS],
    /// Of the last association.
    cntlid: u16,
    next_cid: u16,
}

struct Connection {
    sender: TcpSender,
    layout: Layout,
    seen: Rc<RefCell<Seen>>,
}

/// What the target has sent on a connection, and what it may send.
struct Seen {
    reached: Rc<Cell<Reached>>,
    /// Bytes of a PDU that has not all arrived.
    partial: Vec<u8>,
    /// Commands without an answer by identifier: how often, and most data that one of them names.
    outstanding: HashMap<u16, (u32, u64)>,
    /// Broken PDUs were sent: nobody knows what the target makes of them.
    wild: bool,
    initialized: bool,
    terminated: bool,
    asked: Vec<ReadyToTransfer>,
    last: Option<Completion>,
}

impl Seen {
    fn new(reached: Rc<Cell<Reached>>) -> Self {
        Self {
            reached,
            partial: Vec::new(),
            outstanding: HashMap::new(),
            wild: false,
            initialized: false,
            terminated: false,
            asked: Vec::new(),
            last: None,
        }
    }

    fn count(&self, what: impl FnOnce(&mut Reached)) {
        let mut reached = self.reached.get();
        what(&mut reached);
        self.reached.set(reached);
    }

    fn take(&mut self, bytes: &[u8]) {
        assert!(!self.terminated, "something follows a termination");
        self.partial.extend_from_slice(bytes);
        loop {
            let Some(&[type_code, _, _, _, a, b, c, d]) = self.partial.first_chunk() else {
                return;
            };
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            assert!(
                (8..=PDU_BYTES_MAX).contains(&length),
                "a PDU of {length} bytes, type {type_code}"
            );
            if self.partial.len() < length {
                return;
            }
            let rest = self.partial.split_off(length);
            let pdu = std::mem::replace(&mut self.partial, rest);
            self.look_at(&pdu);
        }
    }

    fn look_at(&mut self, pdu: &[u8]) {
        let kind = PduType::from_code(pdu[0]).unwrap_or_else(|| panic!("PDU type {}", pdu[0]));
        let is_first = kind == PduType::InitializeResponse;
        let may_come = self.initialized != is_first || kind == PduType::ControllerTermination;
        assert!(may_come, "{kind:?} while initialized is {}", self.initialized);
        let header = kind.header_bytes();
        assert_eq!(usize::from(pdu[2]), header, "{kind:?}");
        if pdu[1] & flags::HEADER_DIGEST != 0 {
            let digest = u32::from_le_bytes(*pdu[header..].first_chunk().expect("its digest"));
            assert_eq!(crc32c(&pdu[..header]), digest);
        }
        match kind {
            PduType::InitializeResponse => self.initialized = true,
            PduType::Response => {
                let completion = Completion::from_bytes(*pdu[8..].first_chunk().expect("16 bytes"));
                self.answered(completion.cid());
                match completion.status().is_success() {
                    true => self.count(|reached| reached.succeeded += 1),
                    false => self.count(|reached| reached.failed += 1),
                }
                self.last = Some(completion);
            }
            PduType::ControllerData => {
                let data = Data::from_header(pdu.first_chunk().expect("24 bytes"));
                let end = u64::from(data.offset) + u64::from(data.length);
                assert!(data.length > 0 && data.length as usize <= pdu.len());
                assert!(self.most(data.cid) >= end || self.wild, "{data:?}");
                self.count(|reached| reached.data_bytes += u64::from(data.length));
                if data.success {
                    assert!(data.last);
                    self.answered(data.cid);
                }
            }
            PduType::ReadyToTransfer => {
                let asked = ReadyToTransfer::from_header(pdu.first_chunk().expect("24 bytes"));
                let end = u64::from(asked.offset) + u64::from(asked.length);
                assert!(asked.length > 0);
                assert!(self.most(asked.cid) >= end || self.wild, "{asked:?}");
                self.count(|reached| reached.asked += 1);
                self.asked.push(asked);
            }
            PduType::ControllerTermination => {
                assert!((24..=152).contains(&pdu.len()));
                self.terminated = true;
                self.count(|reached| reached.terminations += 1);
                assert!(self.partial.is_empty(), "something follows a termination");
            }
            kind => panic!("a target sends no {kind:?}"),
        }
    }

    /// The most data that a command of this identifier names.
    fn most(&self, cid: u16) -> u64 {
        self.outstanding.get(&cid).map_or(0, |&(_, most)| most)
    }

    fn answered(&mut self, cid: u16) {
        match self.outstanding.get_mut(&cid) {
            Some((count, _)) if *count > 0 => *count -= 1,
            _ => assert!(self.wild, "an answer to {cid}, which is not outstanding"),
        }
    }

    fn sent(&mut self, command: &Command) {
        let (count, most) = self.outstanding.entry(command.cid()).or_default();
        *count += 1;
        let named = u32::from_le_bytes(*command.as_bytes()[32..].first_chunk().expect("64 bytes"));
        // The keyed descriptors have 24 bits there, and Connect's answer may come with data of its own kind.
        *most = (*most).max(named.into());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Its reader has the other direction.
        self.sender.shutdown();
    }
}

impl Connection {
    async fn open(address: SocketAddr, reached: Rc<Cell<Reached>>) -> Option<Self> {
        let stream = TcpStream::connect(address, &TcpOptions::default()).await.ok()?;
        let (mut receiver, sender) = stream.split();
        let seen = Rc::new(RefCell::new(Seen::new(reached)));
        let place = seen.clone();
        drop(spawn(async move {
            while let Ok(Some(bytes)) = receiver.receive().await {
                place.borrow_mut().take(&bytes);
            }
        }));
        Some(Self {
            sender,
            layout: Layout::PLAIN,
            seen,
        })
    }

    /// Sends a PDU, which the input may change, and waits a little for an answer.
    async fn send(&mut self, input: &mut Input<'_>, mut bytes: Vec<u8>) {
        if input.u8() >= 0xf8 {
            self.seen.borrow_mut().wild = true;
            match input.u8() % 4 {
                0 => bytes.truncate(input.below(bytes.len() + 1)),
                kind => {
                    for _ in 0..kind {
                        let (at, value) = (input.below(bytes.len().min(160)), input.u8());
                        bytes[at] = value;
                    }
                }
            }
        }
        self.put(bytes).await;
    }

    async fn put(&mut self, bytes: Vec<u8>) {
        let mut batch = SendBatch::new();
        batch.headers().extend_from_slice(&bytes);
        // Who has stopped to read is none to wait for.
        let sending = self.sender.send(batch);
        let sent = time::timeout(Duration::from_millis(20), sending).await;
        if !matches!(sent, Ok((Ok(()), _))) {
            self.seen.borrow_mut().wild = true;
        }
        time::sleep(Duration::from_micros(150)).await;
    }

    async fn send_command(&mut self, input: &mut Input<'_>, command: Command, data: &[u8]) {
        let mut out = Vec::new();
        let length = data.len() as u32;
        self.layout
            .put_header(PduType::Command, 0, command.as_bytes(), length, &mut out);
        out.extend_from_slice(data);
        if self.layout.data_digest && !data.is_empty() {
            out.extend_from_slice(&crc32c(data).to_le_bytes());
        }
        self.seen.borrow_mut().sent(&command);
        self.send(input, out).await;
    }

    async fn initialize(&mut self, input: &mut Input<'_>, digests: u8) {
        let mut out = Vec::new();
        let request = InitializeRequest {
            format_version: 0,
            data_alignment: digests >> 4 & 7,
            header_digest: digests & 1 != 0,
            data_digest: digests & 2 != 0,
            max_r2t: u32::from(digests >> 2 & 3),
        };
        request.put(&mut out);
        self.layout = Layout {
            header_digest: request.header_digest,
            data_digest: request.data_digest,
            data_alignment: 0,
        };
        self.send(input, out).await;
    }
}

/// Opcodes that mean something somewhere, and some that do not.
const OPCODES: [u8; 28] = [
    0x01, 0x01, 0x02, 0x02, 0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x19, 0x06,
    0x0a, 0x10, 0x14, 0x18, 0x20, 0x38, 0x7c, 0x7f, 0x80, 0xc1, 0xff,
];

impl Hostile {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            reached: Rc::default(),
            address,
            connections: [None, None, None],
            cntlid: 0xffff,
            next_cid: 1,
        }
    }

    /// Does what the input says, then closes everything.
    pub(super) async fn act(mut self, input: &mut Input<'_>) -> Reached {
        for _ in 0..STEPS_MAX {
            if input.is_empty() {
                break;
            }
            self.step(input).await;
        }
        self.reached.get()
    }

    async fn step(&mut self, input: &mut Input<'_>) {
        let (kind, slot) = (input.u8() % 16, input.below(CONNECTIONS));
        match kind {
            0 => self.connections[slot] = Connection::open(self.address, self.reached.clone()).await,
            1 | 2 => return self.queue(input, slot, 0).await,
            3 | 4 => {
                let qid = 1 + input.u8() % 4;
                return self.queue(input, slot, qid.into()).await;
            }
            _ => {}
        }
        let cid = self.cid(input);
        let cntlid = self.cntlid;
        let Some(connection) = &mut self.connections[slot] else {
            return;
        };
        match kind {
            5 if !connection.seen.borrow().initialized || input.u8() >= 0xe0 => {
                let digests = input.u8();
                connection.initialize(input, digests).await;
            }
            6 => {
                let connect = Connect {
                    qid: input.choose(&[0, 1, 2, 0xffff]),
                    sqsize: input.choose(&[31, 1, 0, 0xffff]),
                    kato_ms: input.choose(&[0, 1, 5000, u32::MAX]),
                    ..Connect::default()
                };
                let data = connect_data(input.choose(&[cntlid, 0xffff, 0xfffe, 0]));
                let command = connect.to_command().with_cid(cid);
                connection.send_command(input, command, &data).await;
            }
            7..=11 => {
                let (command, data) = any_command(input);
                connection.send_command(input, command.with_cid(cid), &data).await;
            }
            12 | 13 => {
                let asked = connection.seen.borrow_mut().asked.pop();
                let Some(asked) = asked else { return };
                let length = asked.length.min(128 << 10);
                let data = Data {
                    cid: asked.cid,
                    tag: asked.tag,
                    offset: asked.offset,
                    length,
                    last: length == asked.length,
                    success: false,
                };
                let mut out = Vec::new();
                data.put(PduType::HostData, &connection.layout, &mut out);
                let payload = vec![input.u8(); length as usize];
                out.extend_from_slice(&payload);
                if connection.layout.data_digest {
                    out.extend_from_slice(&crc32c(&payload).to_le_bytes());
                }
                connection.send(input, out).await;
            }
            14 if input.u8() >= 0xc0 => {
                connection.seen.borrow_mut().wild = true;
                let count = 1 + input.below(200);
                let noise = input.bytes(count).to_vec();
                connection.put(noise).await;
            }
            15 if input.u8() & 1 == 0 => self.connections[slot] = None,
            15 => {
                let milliseconds = u64::from(input.u16() % 1500);
                time::sleep(Duration::from_millis(milliseconds)).await;
            }
            _ => {}
        }
    }

    /// Mostly a new one.
    fn cid(&mut self, input: &mut Input<'_>) -> u16 {
        match input.u8() {
            250.. => input.u16(),
            200..250 => self.next_cid.wrapping_sub(1),
            _ => {
                self.next_cid = self.next_cid.wrapping_add(1);
                self.next_cid
            }
        }
    }

    /// A right handshake on a new connection: of an enabled controller (0) or one of its I/O queues.
    async fn queue(&mut self, input: &mut Input<'_>, slot: usize, qid: u16) {
        self.connections[slot] = None;
        let Some(mut connection) = Connection::open(self.address, self.reached.clone()).await else {
            return;
        };
        let nothing = &mut Input::new(&[]);
        connection.initialize(nothing, input.u8()).await;
        let cntlid = if qid == 0 { 0xffff } else { self.cntlid };
        let connect = Connect {
            qid,
            sqsize: 15,
            ..Connect::default()
        };
        let command = connect.to_command().with_cid(1);
        let data = connect_data(cntlid);
        connection.send_command(nothing, command, &data).await;
        let answer = connection.seen.borrow().last;
        if let Some(answer) = answer.filter(|answer| answer.status() == Status::SUCCESS)
            && qid == 0
        {
            self.cntlid = ConnectAnswer::from_completion(&answer).cntlid;
            let configuration = Configuration::default().with_en(1).with_iosqes(6).with_iocqes(4);
            let enable = PropertySet {
                size: PropertySize::Four,
                offset: CC_OFFSET,
                value: configuration.bits().into(),
            };
            let command = enable.to_command().with_cid(2);
            connection.send_command(nothing, command, &[]).await;
        }
        self.connections[slot] = Some(connection);
    }
}

fn connect_data(cntlid: u16) -> [u8; 1024] {
    ConnectData {
        hostid: [9; 16],
        cntlid,
        subnqn: NqnField::from(&nqn(NQN)),
        hostnqn: NqnField::from(&nqn(HOST)),
    }
    .encode()
}

/// Any opcode with any fields; small numbers are likelier, and the data pointer is mostly right.
fn any_command(input: &mut Input<'_>) -> (Command, Vec<u8>) {
    let opcode = match input.u8() {
        240.. => input.u8(),
        which => OPCODES[usize::from(which) % OPCODES.len()],
    };
    let nsid = input.choose(&[1, 1, 1, 1, 1, 0, u32::MAX, 2]);
    let mut command = Command::new(opcode, nsid)
        .with_flags(input.choose(&[0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x41, 0x42, 0, 0xff]));
    if opcode == 0x7f {
        // The fabrics type is where others have their namespace.
        command.set_nsid(u32::from(input.choose(&[0u8, 1, 4, 5, 6, 8, 0xff])));
    }
    let dword = |input: &mut Input<'_>| match input.u8() {
        240.. => input.u32(),
        which @ 200..240 => 1 << (which - 200).min(31),
        which => u32::from(which) % 20,
    };
    let (low, high) = (dword(input), dword(input));
    command = command
        .with_cdw10(low)
        // Of a block's address mostly 0, or all are out of range.
        .with_cdw11(if high < 19 { 0 } else { high })
        .with_cdw12(dword(input))
        .with_cdw13(dword(input))
        .with_cdw14(dword(input))
        .with_cdw15(dword(input));
    let length: u32 = match input.u8() {
        250.. => input.u32(),
        which @ 220..250 => 512 * u32::from(which - 219),
        which @ 176..220 => {
            input.choose(&[0, 4, 8, 16, 24, 32, 64, 512, 1024, 4096]) * (1 + u32::from(which & 1))
        }
        _ => fitting(&command),
    };
    match input.u8() {
        240.. => {
            let descriptor = SglDescriptor::decode(&input.array());
            (command.with_sgl(descriptor), Vec::new())
        }
        which if which & 1 == 0 => (command.with_transport_data(length), Vec::new()),
        _ => {
            let length = length.min(8192) as usize;
            let mut data = vec![0; length];
            let count = length.min(input.below(64));
            let given = input.bytes(count);
            data[..given.len()].copy_from_slice(given);
            (command.with_in_capsule_data(0, length as u32), data)
        }
    }
}

/// As much data as the command's own fields say, if it is one of the NVM command set, or Identify.
fn fitting(command: &Command) -> u32 {
    match command.opcode() {
        0x01 | 0x02 | 0x05 => command.nlb().0 as u32 * 512,
        0x09 => u32::from(command.dsm_ranges()) * 16,
        0x19 => u32::from(command.copy_ranges()) * 32,
        0x06 => 4096,
        _ => 0,
    }
}
