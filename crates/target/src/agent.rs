//! The node agent's way in: a unix socket, served by a thread of its own, so that no frame is parsed on a reactor.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use agentlink::{DISKS_INTERVAL, Decoder, Frame, FromTarget, ToTarget, encode_known};
use foundation::{Epoch, KeptCopies};
use reactor::mailbox::{MailboxSender, mailbox};
use reactor::sync::channel;
use reactor::{spawn, time};
use volume::{Geometry, Incarnation, NodeId, SnapshotId, SnapshotNote};

use crate::node::{CopyError, Node, from_chunk, to_config};
use crate::portal::{Export, Portals};

/// Messages that wait on either side; an agent that takes none for longer is cut off.
const QUEUE_MESSAGES: usize = 65_536;
/// How often it hears how far the copies are that come back.
const RESYNCS_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is looked whether there are other snapshots than the agent knows, and whether they hold more or less.
const SNAPSHOTS_INTERVAL: Duration = Duration::from_secs(1);

/// How often it is looked what volumes own of the disks: a step for each copy.
const USED_INTERVAL: Duration = Duration::from_secs(2);

/// How often it is looked whether the disks' health has changed.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// Before the agent hears that a copy of a clone could not be made, and asks again.
const CLONE_PAUSE: Duration = Duration::from_secs(1);

/// How often it is looked how far clones are flattened.
const FLATTENING_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked whether other copies are in doubt.
const DOUBT_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked whether checksums have shown anything more.
const DAMAGE_INTERVAL: Duration = Duration::from_secs(1);

/// Before another connection is taken when one could not be.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Why the socket does not listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for the node agent on {path}: {source}; is another target of this node running?")]
pub struct AgentError {
    path: PathBuf,
    source: std::io::Error,
}

enum FromThread {
    Connected(mpsc::SyncSender<FromTarget>),
    Message(ToTarget),
}

/// Listens for the node agent of `node`, whose target is reached at `address` and exports volumes by `portals`.
pub fn listen(
    node: &Rc<Node>,
    portals: &Rc<Portals>,
    path: &Path,
    address: SocketAddr,
) -> Result<(), AgentError> {
    let failed = |source| AgentError {
        path: path.to_owned(),
        source,
    };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    // Who speaks here says which copies there are, and who may connect.
    std::fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
    let (sender, mut inbox) = mailbox(QUEUE_MESSAGES);
    let thread = std::thread::Builder::new().name("agent-link".to_owned());
    thread
        .spawn(move || accept_agents(&listener, &sender))
        .map_err(failed)?;
    let (weak, portals) = (Rc::downgrade(node), portals.clone());
    drop(spawn(async move {
        let mut agent = None;
        while let Some(event) = inbox.recv().await {
            let Some(node) = weak.upgrade() else { return };
            match event {
                FromThread::Connected(out) => agent = Some(connected(&node, address, out)),
                FromThread::Message(ToTarget::Known(kinds)) => {
                    // Once for a connection.
                    if let Some(sender) = agent.take() {
                        tracing::info!(kinds, "the node agent says what it knows");
                        node.set_agent_kinds(kinds);
                        // Not sent to one that does not know this.
                        let _ = sender.try_send(FromTarget::WantSnapshots);
                        let _ = sender.try_send(FromTarget::SyncWrites(node.sync_writes().all()));
                        if kinds >= FromTarget::KINDS_OF_RELEASE {
                            let _ = sender.try_send(FromTarget::Release(foundation::RELEASE.to_owned()));
                        }
                        let node = Rc::downgrade(&node);
                        Teller { node, sender }.tell_all(kinds);
                    }
                }
                FromThread::Message(message) => handle(&node, &portals, message).await,
            }
        }
    }));
    Ok(())
}

type ToAgent = reactor::sync::Sender<FromTarget>;

/// Begins to tell an agent how things are: what every one knows that may have started this target. The rest follows when it
/// has said what it knows.
fn connected(node: &Rc<Node>, address: SocketAddr, out: mpsc::SyncSender<FromTarget>) -> ToAgent {
    let (sender, mut receiver) = channel(QUEUE_MESSAGES);
    // The queue is new and empty: the first message fits.
    let _ = sender.try_send(node.hello(address));
    drop(spawn(tell_disks(Rc::downgrade(node), sender.clone())));
    drop(spawn(tell_resyncs(Rc::downgrade(node), sender.clone())));
    let teller = Teller {
        node: Rc::downgrade(node),
        sender: sender.clone(),
    };
    teller.tell(SNAPSHOTS_INTERVAL, None, Node::snapshots, FromTarget::Snapshots);
    node.set_agent(sender.clone());
    node.forget_lists();
    node.want_passes();
    drop(spawn(async move {
        while let Some(message) = receiver.recv().await {
            // The writing thread is gone, or so far behind that the agent must connect again.
            if out.try_send(message).is_err() {
                return;
            }
        }
    }));
    sender
}

async fn tell_disks(node: Weak<Node>, sender: ToAgent) {
    loop {
        time::sleep(DISKS_INTERVAL).await;
        let Some(node) = node.upgrade() else { return };
        if sender.try_send(FromTarget::Disks(node.disks())).is_err() {
            return;
        }
    }
}

async fn tell_resyncs(node: Weak<Node>, sender: ToAgent) {
    let mut told = 0;
    loop {
        time::sleep(RESYNCS_INTERVAL).await;
        let Some(node) = node.upgrade() else { return };
        let resyncs = node.resyncs();
        let count = resyncs.len();
        let is_news = count > 0 || std::mem::replace(&mut told, count) > 0;
        if is_news && sender.try_send(FromTarget::Resyncs(resyncs)).is_err() {
            return;
        }
        told = count;
    }
}

/// Tells an agent of one thing after the other, each by a task of its own, whenever it has changed.
struct Teller {
    node: Weak<Node>,
    sender: ToAgent,
}

impl Teller {
    /// Looks each `interval`, at once first. With `known`, the agent takes it to be so until it hears something else; without, it knows
    /// nothing until it is told, also that there is nothing.
    fn tell<T: Clone + PartialEq + 'static>(
        &self,
        interval: Duration,
        known: Option<T>,
        look: impl Fn(&Node) -> T + 'static,
        message: impl Fn(T) -> FromTarget + 'static,
    ) {
        let (node, sender, mut told) = (self.node.clone(), self.sender.clone(), known);
        drop(spawn(async move {
            while let Some(node) = node.upgrade() {
                let now = look(&node);
                if told.as_ref() != Some(&now) {
                    if sender.try_send(message(now.clone())).is_err() {
                        return;
                    }
                    told = Some(now);
                }
                drop(node);
                time::sleep(interval).await;
            }
        }));
    }

    /// What an agent of any release knows that has said what it knows, and what those know that know so many kinds of messages.
    fn tell_all(&self, kinds: u32) {
        let nothing = Vec::new();
        self.tell(
            FLATTENING_INTERVAL,
            Some(nothing),
            Node::flattening,
            FromTarget::Flattening,
        );
        self.tell(SNAPSHOTS_INTERVAL, None, Node::held, FromTarget::Held);
        if kinds >= FromTarget::KINDS_OF_USE {
            self.tell(USED_INTERVAL, None, Node::used, FromTarget::Used);
        }
        if kinds >= FromTarget::KINDS_OF_KEPT {
            let message = |(lists, kept): (u32, KeptCopies)| FromTarget::Kept {
                lists,
                copies: kept.count,
                digest: kept.digest,
            };
            self.tell(SNAPSHOTS_INTERVAL, None, Node::kept_snapshots, message);
        }
        if kinds >= FromTarget::KINDS_OF_DOUBT {
            self.tell(DOUBT_INTERVAL, None, Node::doubtful, FromTarget::Doubtful);
        }
        if kinds >= FromTarget::KINDS_OF_DAMAGE {
            self.tell(DAMAGE_INTERVAL, None, Node::damage, FromTarget::Damage);
        }
        if kinds >= FromTarget::KINDS_OF_SNAPSHOT_LOSSES {
            let nothing = Vec::new();
            let message = FromTarget::SnapshotLosses;
            self.tell(DAMAGE_INTERVAL, Some(nothing), Node::snapshot_losses, message);
        }
        if kinds >= FromTarget::KINDS_OF_DIFFERING {
            let nothing = Vec::new();
            let message = FromTarget::Differing;
            self.tell(DAMAGE_INTERVAL, Some(nothing), Node::differing, message);
        }
        let nothing = Vec::new();
        self.tell(
            HEALTH_INTERVAL,
            Some(nothing),
            Node::disk_health,
            FromTarget::Health,
        );
    }
}

async fn handle(node: &Rc<Node>, portals: &Portals, message: ToTarget) {
    tracing::debug!(?message, "from the node agent");
    match message {
        ToTarget::Peers(peers) => {
            let parsed = peers.into_iter().filter_map(|(node, address)| {
                let address = address
                    .parse()
                    .map_err(|_| tracing::warn!(address, "a peer's address cannot be read"));
                Some((NodeId(node), address.ok()?))
            });
            node.set_peers(parsed.collect());
        }
        ToTarget::CreateCopy {
            chunk,
            geometry,
            disk,
        } => drop(spawn(create_copy(node.clone(), chunk, geometry, (disk, false)))),
        ToTarget::CreateCopyWithSums {
            chunk,
            geometry,
            disk,
        } => drop(spawn(create_copy(node.clone(), chunk, geometry, (disk, true)))),
        ToTarget::CloneCopy {
            chunk,
            geometry,
            disk,
            checksums,
            volume,
            snapshot,
        } => {
            let from = volume::ChunkId {
                volume: volume::VolumeNumber(volume),
                index: volume::ChunkIndex(chunk.index),
            };
            let from = (from, SnapshotId(snapshot));
            // It may have to be read from other nodes, which takes as long as it is large.
            drop(spawn(clone_copy(
                node.clone(),
                chunk,
                geometry,
                (disk, checksums),
                from,
            )));
        }
        ToTarget::Flatten(volumes) => node.flatten(&volumes),
        // It waits for what is with the disks: should one of them hang, the next messages must not.
        ToTarget::DeleteVolume { volume } => {
            node.sync_writes().set(volume::VolumeNumber(volume), false);
            let node = node.clone();
            drop(spawn(async move {
                node.delete_volume(volume::VolumeNumber(volume)).await;
            }));
        }
        ToTarget::DeleteCopy { chunk, epoch } => {
            let node = node.clone();
            drop(spawn(async move {
                if node.delete_copy(from_chunk(chunk), Epoch(epoch)).await {
                    node.tell(FromTarget::CopyDeleted { chunk });
                }
            }));
        }
        ToTarget::Doubted { right, wrong } => {
            let mut wrong: BTreeSet<volume::ChunkId> = wrong.into_iter().map(from_chunk).collect();
            for (chunk, disk) in right {
                if node.adopt_copy(from_chunk(chunk), disk) {
                    node.tell(FromTarget::CopyReady { chunk });
                } else {
                    // Another one is used: if that is the newer, this one is old whatever its place.
                    wrong.insert(from_chunk(chunk));
                }
            }
            let node = node.clone();
            drop(spawn(async move { node.delete_old_copies(&wrong).await }));
        }
        ToTarget::MoveCopy { chunk, disk } => drop(spawn(move_copy(node.clone(), chunk, disk))),
        ToTarget::DeleteSnapshots(snapshots) => {
            let named = |(volume, number)| (volume::VolumeNumber(volume), SnapshotId(number));
            node.delete_snapshots(snapshots.into_iter().map(named));
        }
        ToTarget::KeepSnapshots(complete) => {
            let named =
                |(volume, number, chunks)| ((volume::VolumeNumber(volume), SnapshotId(number)), chunks);
            node.keep_snapshots(complete.into_iter().map(named));
        }
        ToTarget::NoteSnapshots(notes) => {
            let note = |note: agentlink::SnapshotNote| {
                let key = (volume::VolumeNumber(note.volume), SnapshotId(note.number));
                let note = SnapshotNote {
                    name: note.name,
                    chunks: note.chunks,
                    created_unix_ms: note.created_unix_ms,
                };
                (key, note)
            };
            node.note_snapshots(notes.into_iter().map(note));
        }
        ToTarget::Configure { chunk, configuration } => {
            let config = to_config(&configuration);
            match config.validate() {
                Ok(()) => node.configure(from_chunk(chunk), config),
                Err(error) => {
                    tracing::error!(?chunk, epoch = ?Epoch(configuration.epoch), %error, "a wrong configuration")
                }
            }
        }
        ToTarget::SyncWrites { volume, is_on } => {
            let volume = volume::VolumeNumber(volume);
            if node.sync_writes().set(volume, is_on) {
                node.tell(FromTarget::SyncWrites(node.sync_writes().all()));
                portals.sync_writes_changed(volume);
            }
        }
        ToTarget::Describe(chunks) => node.tell(FromTarget::Described(node.describe(&chunks))),
        ToTarget::DataKeys(keys) => node.passes().take(&keys),
        // Heard where the connection is known.
        ToTarget::Known(_) => {}
        ToTarget::Exports(exports) => export(portals, exports),
        ToTarget::Routes { volume, chunks } => {
            let config = |(index, configuration): &(u32, agentlink::Configuration)| {
                (volume::ChunkIndex(*index), to_config(configuration))
            };
            let chunks: Vec<_> = chunks.iter().map(config).collect();
            portals.learn(volume::VolumeNumber(volume), &chunks);
        }
        ToTarget::Places { volume, chunks } => portals.lie_on(volume::VolumeNumber(volume), chunks),
        ToTarget::Reservations {
            volume,
            request,
            answer,
        } => portals.reserved(volume::VolumeNumber(volume), request, answer),
        ToTarget::ReservationsChanged { volume, .. } => {
            portals.reservations_changed(volume::VolumeNumber(volume));
        }
        ToTarget::Ended {
            node: ended,
            incarnation,
        } => {
            let name = crate::node::names::of_node(NodeId(ended));
            tracing::info!(
                peer = name,
                incarnation,
                "a life has ended for certain: its grants are void"
            );
            node.ended(NodeId(ended), Incarnation(incarnation));
        }
    }
}

/// It takes as long as there is to be copied.
async fn move_copy(node: Rc<Node>, chunk: agentlink::Chunk, disk: u128) {
    let moved = node.move_copy(from_chunk(chunk), disk).await;
    if let Err(error) = &moved {
        tracing::warn!(?chunk, disk = format!("{disk:032x}"), %error, "a copy does not move to another disk");
    }
    if let Err(CopyError::MayStay { .. } | CopyError::Stopped { .. }) = &moved {
        // It may be on either disk: the next life finds out, and is told again.
        return;
    }
    let why = moved.err().map(|error| error.to_string());
    node.tell(FromTarget::Moved { chunk, disk, why });
}

/// Of a task of its own: should the disk hang, the next messages must not.
async fn create_copy(node: Rc<Node>, chunk: agentlink::Chunk, geometry: Vec<u8>, place: (u128, bool)) {
    let made = match Geometry::decode(&geometry) {
        Ok(geometry) => match node.create_copy(from_chunk(chunk), geometry, place).await {
            // Who asked before us is told.
            Err(CopyError::BeingMade { .. }) => return,
            made => made.map_err(|error| error.to_string()),
        },
        Err(error) => Err(error.to_string()),
    };
    node.tell(match made {
        Ok(()) => FromTarget::CopyReady { chunk },
        Err(why) => FromTarget::CopyFailed { chunk, why },
    });
}

async fn clone_copy(
    node: Rc<Node>,
    chunk: agentlink::Chunk,
    geometry: Vec<u8>,
    place: (u128, bool),
    from: volume::SnapshotCopy,
) {
    let made = match Geometry::decode(&geometry) {
        Ok(geometry) => {
            let made = node.clone_copy(from_chunk(chunk), geometry, place, from).await;
            made.map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    };
    node.tell(match made {
        Ok(()) => FromTarget::CopyReady { chunk },
        Err(why) => {
            // The order comes again with the next heartbeat.
            time::sleep(CLONE_PAUSE).await;
            FromTarget::CopyFailed { chunk, why }
        }
    });
}

/// Exports these volumes and no others.
fn export(portals: &Portals, exports: Vec<agentlink::Export>) {
    let named: Vec<u32> = exports.iter().map(|export| export.volume).collect();
    for volume in portals.volumes() {
        if !named.contains(&volume.0) && portals.unexport(volume) {
            tracing::info!(volume = volume.0, "a volume is exported here no more");
        }
    }
    for described in exports {
        let elsewhere = described.elsewhere.iter().filter_map(|address| {
            let parsed = address.parse();
            parsed
                .map_err(|_| tracing::warn!(address, "another portal's address cannot be read"))
                .ok()
        });
        let geometry = match Geometry::decode(&described.geometry) {
            Ok(geometry) => geometry,
            Err(error) => {
                tracing::error!(volume = described.volume, %error, "a volume cannot be exported");
                continue;
            }
        };
        let export = Export {
            volume: volume::VolumeNumber(described.volume),
            uuid: described.uuid.to_be_bytes(),
            geometry,
            elsewhere: elsewhere.collect(),
            place: described.place.into(),
            nqn: described.nqn,
            hosts: described.hosts.into_iter().collect(),
        };
        if let Err(error) = portals.export(export) {
            tracing::error!(%error, "a volume cannot be exported");
        }
    }
}

/// One agent at a time: a newer one takes the place of the one before, whose connection is closed.
fn accept_agents(listener: &UnixListener, inbox: &MailboxSender<FromThread>) {
    let mut before: Option<UnixStream> = None;
    for stream in listener.incoming() {
        let opened = stream.and_then(|stream| {
            let (writer, closer) = (stream.try_clone()?, stream.try_clone()?);
            Ok((stream, writer, closer))
        });
        let (stream, writer, closer) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // Most likely no descriptor is free: they may be later.
                tracing::warn!(%error, "the node agent's connection cannot be taken");
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if let Some(before) = before.replace(closer) {
            // One that is closed already needs no closing.
            drop(before.shutdown(std::net::Shutdown::Both));
        }
        let (out, messages) = mpsc::sync_channel::<FromTarget>(QUEUE_MESSAGES);
        // How many kinds of frames this agent knows.
        let told = Arc::new(AtomicU32::new(FromTarget::KINDS_BEFORE));
        let known = told.clone();
        if !deliver(inbox, FromThread::Connected(out)) {
            return;
        }
        let writing = std::thread::Builder::new().name("agent-link-out".to_owned());
        if writing
            .spawn(move || write_messages(writer, &messages, &known))
            .is_err()
        {
            continue;
        }
        let inbox = inbox.clone();
        let reading = std::thread::Builder::new().name("agent-link-in".to_owned());
        drop(reading.spawn(move || read_messages(stream, &inbox, &told)));
    }
}

/// Hands something to the reactor; a full inbox pushes back on the agent through its socket. False if the reactor
/// has ended.
fn deliver(inbox: &MailboxSender<FromThread>, mut event: FromThread) -> bool {
    while let Err(back) = inbox.try_send(event) {
        if inbox.is_closed() {
            return false;
        }
        event = back;
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

fn write_messages(mut stream: UnixStream, messages: &mpsc::Receiver<FromTarget>, known: &AtomicU32) {
    let mut frame = Vec::new();
    while let Ok(message) = messages.recv() {
        frame.clear();
        if !encode_known(&message, known.load(Ordering::Acquire), &mut frame) {
            tracing::debug!(
                ?message,
                "the node agent is of an earlier release, which does not know this"
            );
            continue;
        }
        if stream.write_all(&frame).is_err() {
            return;
        }
    }
    drop(stream.shutdown(std::net::Shutdown::Both));
}

fn read_messages(mut stream: UnixStream, inbox: &MailboxSender<FromThread>, told: &AtomicU32) {
    let mut decoder = Decoder::default();
    let mut left_out = 0;
    let mut bytes = vec![0; 64 << 10];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(count) => decoder.push(&bytes[..count]),
        }
        loop {
            match decoder.take::<ToTarget>() {
                Ok(None) => break,
                Ok(Some(message)) => {
                    if let ToTarget::Known(kinds) = message {
                        told.store(kinds, Ordering::Release);
                    }
                    if !deliver(inbox, FromThread::Message(message)) {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "the node agent's frames cannot be read");
                    drop(stream.shutdown(std::net::Shutdown::Both));
                    return;
                }
            }
        }
        if decoder.left_out() > left_out {
            left_out = decoder.left_out();
            tracing::warn!(
                left_out,
                "the node agent is of a later release: frames that this one does not know are left out"
            );
        }
    }
}
