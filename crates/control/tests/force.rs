//! Serving a copy by force: what is shown, what is refused, what is committed, and how the chunk goes on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use control::configuration::Proposal;
use control::rebuild::SealedConfiguration;
use control::{
    Chunk, ChunkId, Controller, CopyFound, CopyState, CreateVolume, Disk, DiskId, ForcedCopy, Heartbeat,
    Incarnation, MemoryStore, NodeId, Registration, SessionId, Settings, ShownCopy, Unserved, Uuid,
    VolumeNumber, Worth, WriterToken,
};
use foundation::{ByteCount, Epoch, Instant};

const MIB: u64 = 1 << 20;

struct Cluster {
    control: Controller<MemoryStore>,
    lives: BTreeMap<u64, Incarnation>,
    living: BTreeSet<u64>,
    /// The copies of the only chunk, by node; as they say of themselves.
    copies: BTreeMap<u64, CopyState>,
    /// As they were shown last.
    shown: Vec<ShownCopy>,
    now: Instant,
}

fn node(number: u64) -> NodeId {
    NodeId(Uuid(u128::from(number)))
}

fn disks(number: u64) -> Vec<Disk> {
    vec![Disk {
        id: DiskId(Uuid(100 + u128::from(number))),
        capacity: ByteCount(1 << 40),
        used: ByteCount(0),
        held: None,
    }]
}

impl Cluster {
    /// So many nodes and a volume of one chunk with a copy on each.
    fn new(copies: u8, minimum: u8) -> Self {
        let now = Instant::from_nanos(1);
        let mut cluster = Self {
            control: Controller::open(MemoryStore::new(), Settings::default(), 3, now).unwrap(),
            lives: BTreeMap::new(),
            living: BTreeSet::new(),
            copies: BTreeMap::new(),
            shown: Vec::new(),
            now,
        };
        for number in 1..=u64::from(copies) {
            cluster.start(number);
        }
        let create = CreateVolume {
            minimum: Some(minimum),
            copies,
            ..CreateVolume::new("data", ByteCount(64 * MIB))
        };
        cluster.control.create_volume(&create, cluster.now).unwrap();
        cluster.wait(2);
        let chunk = cluster.chunk();
        assert_eq!(chunk.member_count(), usize::from(copies));
        for number in 1..=u64::from(copies) {
            cluster.seal(number, &chunk);
        }
        cluster
    }

    /// A new life of a node, before which every other one has ended.
    fn start(&mut self, number: u64) {
        let registration = Registration {
            cluster: None,
            node: node(number),
            peer_address: format!("192.0.2.{number}:4420"),
            rack: None,
            incarnation: None,
            ended_through: self.lives.get(&number).copied().unwrap_or_default(),
            disks: disks(number),
        };
        let registered = self.control.register(&registration, self.now).unwrap();
        self.lives.insert(number, registered.incarnation);
        self.living.insert(number);
    }

    /// The copy of a node has sealed this configuration.
    fn seal(&mut self, number: u64, chunk: &Chunk) {
        let state = CopyState {
            disk: DiskId(Uuid(100 + u128::from(number))),
            sealed: chunk.epoch,
            configuration: Some(SealedConfiguration {
                epoch: chunk.epoch,
                write_node: chunk.write_node,
                members: chunk.members().collect(),
            }),
            flushed: chunk.epoch,
            told: None,
            token: WriterToken(0),
        };
        self.copies.insert(number, state);
    }

    fn id() -> ChunkId {
        ChunkId {
            volume: VolumeNumber(1),
            index: 0,
        }
    }

    fn chunk(&self) -> Chunk {
        self.control.chunk(Self::id()).unwrap()
    }

    /// Heartbeats of those who live, with the answers to what was asked, for so many seconds.
    fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds * 4 {
            self.now = self.now + Duration::from_millis(250);
            for number in self.living.clone() {
                let incarnation = self.lives[&number];
                let heartbeat = Heartbeat {
                    incarnation,
                    ended_through: Incarnation(incarnation.0 - 1),
                    disks: disks(number),
                    prepared: vec![VolumeNumber(1)],
                    snapshots: BTreeSet::default(),
                    ..crate::silent(self.control.cluster(), node(number))
                };
                let has_no_news = self.control.has_no_news(&heartbeat);
                let answer = self.control.heartbeat(&heartbeat, self.now).unwrap();
                assert!(answer.describe.is_empty() || !has_no_news, "it is never asked");
                let described = answer
                    .describe
                    .iter()
                    .map(|id| (*id, self.copies.get(&number).cloned()));
                let described = described.collect();
                self.control.note_copies(node(number), incarnation, described);
            }
            self.control.tick(self.now).unwrap();
        }
    }

    /// What is known once every node that is heard has said how its copies are.
    fn unserved(&mut self, only: &[u32]) -> Result<Vec<Unserved>, String> {
        self.control
            .unserved("data", only, true, self.now)
            .map_err(|error| error.to_string())?;
        self.wait(1);
        let found = self
            .control
            .unserved("data", only, false, self.now)
            .map_err(|error| error.to_string())?;
        if let [found] = &found[..] {
            self.shown = found.copies.iter().map(CopyFound::shown).collect();
        }
        Ok(found)
    }

    fn force(&mut self, number: u64, epoch: Epoch) -> Result<Chunk, String> {
        let forced = ForcedCopy {
            index: 0,
            node: node(number),
            epoch,
            shown: self.shown.clone(),
        };
        let done = self.control.force_serve("data", &[forced], self.now);
        let done = done.map_err(|error| error.to_string())?;
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].1, self.chunk());
        Ok(done[0].1.clone())
    }

    fn propose(&mut self, members: &[u64]) -> Result<Chunk, String> {
        let chunk = self.chunk();
        let write_node = chunk.write_node;
        let proposal = Proposal {
            node: write_node,
            incarnation: chunk.members().find(|member| member.0 == write_node).unwrap().1,
            expected: chunk.epoch,
            write_node,
            members: members
                .iter()
                .map(|number| (node(*number), self.lives[number]))
                .collect(),
        };
        let proposed = self.control.propose(Self::id(), &proposal, self.now);
        proposed.map_err(|error| error.to_string())
    }
}

fn worths(unserved: &Unserved) -> Vec<Option<Worth>> {
    unserved.copies.iter().map(|found| found.worth).collect()
}

/// The first node is left out, then the second dies for good and the first comes back.
fn last_copy_lost() -> (Cluster, Epoch) {
    let mut cluster = Cluster::new(2, 1);
    let left_in = cluster.chunk().epoch;
    cluster.living.remove(&1);
    cluster.wait(20);
    let chunk = cluster.chunk();
    assert!(chunk.epoch > left_in && chunk.has_member(node(2), cluster.lives[&2]));
    assert_eq!(chunk.member_count(), 1);
    cluster.seal(2, &chunk);
    cluster.living.remove(&2);
    cluster.start(1);
    cluster.wait(20);
    assert_eq!(cluster.chunk(), chunk, "nothing serves it");
    (cluster, left_in)
}

#[test]
fn a_copy_that_was_left_out_is_served_alone_in_an_epoch_above_all() {
    let (mut cluster, left_in) = last_copy_lost();
    let found = cluster.unserved(&[]).unwrap();
    let [found] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (found.in_sync, found.living, found.proposed),
        (1, 0, Some(node(1)))
    );
    assert_eq!(worths(found), [Some(Worth::LeftOut(left_in)), None]);
    assert!(
        found.copies[1].silent.unwrap() >= Duration::from_secs(19),
        "{found:?}"
    );
    let before = cluster.chunk();

    let said = cluster.force(2, before.epoch).unwrap_err();
    assert!(said.contains("has been silent for 2"), "{said}");
    let said = cluster.force(3, before.epoch).unwrap_err();
    assert!(said.contains("has no copy of it; 2 nodes have one"), "{said}");
    let said = cluster.force(1, left_in).unwrap_err();
    assert!(said.contains(&format!("is at epoch {}", before.epoch)), "{said}");
    assert_eq!(cluster.chunk(), before, "what is refused changes nothing");

    // Its own disk knows a later epoch than the store, which was restored perhaps.
    cluster.copies.get_mut(&1).unwrap().sealed = Epoch(before.epoch.0 + 70);
    cluster.unserved(&[0]).unwrap();
    let forced = cluster.force(1, before.epoch).unwrap();
    assert_eq!(forced.epoch, Epoch(before.epoch.0 + 70 + Epoch::JUMP));
    assert_eq!(forced.write_node, node(1));
    assert_eq!(
        forced.members().collect::<Vec<_>>(),
        [(node(1), cluster.lives[&1])]
    );
    assert!(forced.has_copy_on(node(2)) && !forced.recovery);
    let said = cluster.unserved(&[0]).unwrap_err();
    assert!(
        said.contains("1 of its 1 copies in sync live and its minimum is 1"),
        "{said}"
    );
    assert_eq!(cluster.unserved(&[]), Ok(Vec::new()));
    // The other one comes back and is let in; it does not take over.
    cluster.start(2);
    cluster.wait(2);
    assert_eq!(cluster.chunk(), forced);
    let whole = cluster.propose(&[1, 2]).unwrap();
    assert_eq!((whole.epoch, whole.member_count()), (forced.epoch.next(), 2));
}

#[test]
fn below_the_minimum_a_forced_copy_goes_on_and_becomes_more_again() {
    let mut cluster = Cluster::new(3, 2);
    cluster.living.remove(&3);
    cluster.wait(20);
    cluster.seal(1, &cluster.chunk());
    cluster.seal(2, &cluster.chunk());
    cluster.living.remove(&2);
    cluster.wait(20);
    let before = cluster.chunk();
    assert_eq!(before.member_count(), 2, "writes wait");
    let found = cluster.unserved(&[0]).unwrap();
    assert_eq!((found[0].in_sync, found[0].living), (2, 1));
    assert_eq!(worths(&found[0]), [Some(Worth::InSync), None, None]);
    let forced = cluster.force(1, before.epoch).unwrap();
    assert_eq!(forced.member_count(), 1);
    let status = cluster.control.status(cluster.now).unwrap();
    assert_eq!(
        (
            status.volumes[0].waiting_chunks,
            status.volumes[0].degraded_chunks
        ),
        (0, 1)
    );

    // It ends and begins again, and no other is there to be waited for.
    cluster.start(1);
    cluster.wait(2);
    let again = cluster.chunk();
    assert_eq!(
        again.members().collect::<Vec<_>>(),
        [(node(1), cluster.lives[&1])]
    );
    assert!(again.recovery && again.epoch == forced.epoch.next());
    // Others are let in one at a time.
    cluster.start(2);
    cluster.wait(2);
    assert_eq!(cluster.propose(&[1, 2]).unwrap().member_count(), 2);
    // With as many as the minimum none is left out any more.
    let said = cluster.propose(&[1]).unwrap_err();
    assert!(
        said.contains("leaves 1 in-sync copies") && said.contains("minimum is 2"),
        "{said}"
    );
}

#[test]
fn what_comes_back_by_itself_is_not_forced() {
    let mut cluster = Cluster::new(2, 2);
    // At the minimum its write node lets a new life of the other one in.
    let chunk = cluster.chunk();
    let other = if chunk.write_node == node(1) { 2 } else { 1 };
    cluster.start(other);
    cluster.wait(1);
    assert_eq!(cluster.chunk(), chunk);
    let said = cluster.unserved(&[0]).unwrap_err();
    assert!(
        said.contains("all 2 nodes that have a copy in sync are back"),
        "{said}"
    );
    // Unless its copy is lost.
    let lost = cluster.copies.remove(&other).unwrap();
    let found = cluster.unserved(&[0]).unwrap();
    let of_other = found[0]
        .copies
        .iter()
        .find(|found| found.copy.node == node(other))
        .unwrap();
    assert_eq!((&of_other.state, of_other.worth), (&Some(None), None));
    let said = cluster.force(other, chunk.epoch).unwrap_err();
    assert!(said.contains("lives and has no such copy"), "{said}");
    // One that was being filled is served only if it is named, and one in which nothing ever was never.
    let mut empty = lost.clone();
    (empty.configuration, empty.sealed) = (None, Epoch(0));
    cluster.copies.insert(other, empty);
    cluster.living.remove(&(3 - other));
    cluster.wait(20);
    assert_eq!(cluster.unserved(&[0]).unwrap()[0].proposed, None);
    let said = cluster.force(other, chunk.epoch).unwrap_err();
    assert!(said.contains("never took part in anything"), "{said}");
    // In sync in a life that has ended: it is the best there is.
    cluster.copies.insert(other, lost);
    let found = cluster.unserved(&[0]).unwrap();
    assert_eq!(found[0].proposed, Some(node(other)));
    assert!(worths(&found[0]).contains(&Some(Worth::InSyncBefore)));
    assert_eq!(cluster.force(other, chunk.epoch).unwrap().write_node, node(other));
}

#[test]
fn a_copy_that_was_being_filled_is_served_only_by_name() {
    let (mut cluster, _) = last_copy_lost();
    let before = cluster.chunk();
    // It was let in under the last configuration, which does not name it.
    cluster.seal(1, &before);
    let found = cluster.unserved(&[0]).unwrap();
    assert_eq!(found[0].proposed, None);
    assert_eq!(worths(&found[0])[0], Some(Worth::Filling(before.epoch)));
    cluster.force(1, before.epoch).unwrap();
}

#[test]
fn nothing_is_forced_under_a_native_writer_or_before_nodes_have_spoken() {
    let (mut cluster, _) = last_copy_lost();
    let epoch = cluster.chunk().epoch;
    let said = cluster.force(1, epoch).unwrap_err();
    assert!(said.contains("has not said yet how its copy is"), "{said}");
    cluster.unserved(&[0]).unwrap();
    let (number, session) = (VolumeNumber(1), SessionId(Uuid(9)));
    let lease = cluster
        .control
        .acquire_writer(number, session, "host a", None, cluster.now)
        .unwrap();
    let said = cluster.force(1, epoch).unwrap_err();
    assert!(said.contains("leased by \"host a\""), "{said}");
    cluster
        .control
        .release_writer(number, session, lease.token)
        .unwrap();
    // What an earlier life said does not count for the next one.
    cluster.start(1);
    let said = cluster.force(1, epoch).unwrap_err();
    assert!(said.contains("has not said yet how its copy is"), "{said}");
    cluster.unserved(&[0]).unwrap();
    cluster.force(1, epoch).unwrap();
}

#[test]
fn what_was_decided_on_has_to_be_what_there_is() {
    let mut cluster = Cluster::new(3, 1);
    let left_in = cluster.chunk().epoch;
    cluster.living.remove(&3);
    cluster.wait(20);
    let before = cluster.chunk();
    assert_eq!(before.member_count(), 2);
    for number in [1, 2] {
        cluster.seal(number, &before);
        cluster.living.remove(&number);
    }
    cluster.start(3);
    cluster.wait(20);
    let found = cluster.unserved(&[0]).unwrap();
    assert_eq!(found[0].proposed, Some(node(3)));
    // A better copy comes back while the operator thinks; the other one of its set does not.
    cluster.start(2);
    cluster.wait(2);
    assert_eq!(cluster.chunk(), before);
    let said = cluster.force(3, before.epoch).unwrap_err();
    assert!(said.contains("was shown as not known, its node silent"), "{said}");
    // A node that is heard and has not spoken may have the best of all.
    cluster.control.unserved("data", &[0], true, cluster.now).unwrap();
    let found = cluster
        .control
        .unserved("data", &[0], false, cluster.now)
        .unwrap();
    assert!(found[0].is_awaited() && found[0].proposed.is_none());
    let found = cluster.unserved(&[0]).unwrap();
    assert_eq!(found[0].proposed, Some(node(2)));
    assert_eq!(worths(&found[0])[1], Some(Worth::InSyncBefore));
    // The one that was chosen is worth less meanwhile.
    cluster.seal(3, &before);
    cluster.control.unserved("data", &[0], true, cluster.now).unwrap();
    cluster.wait(1);
    let said = cluster.force(3, before.epoch).unwrap_err();
    let shown = format!("was shown as in sync until epoch {left_in}, and it is being filled in epoch");
    assert!(said.contains(&shown), "{said}");
    assert_eq!(cluster.chunk(), before, "what is refused changes nothing");
    let shown = std::mem::take(&mut cluster.shown);
    let said = cluster.force(3, before.epoch).unwrap_err();
    assert!(said.contains("0 were, and 3 are"), "{said}");
    // No more than one call can commit together, and none twice.
    let one = ForcedCopy {
        index: 0,
        node: node(2),
        epoch: before.epoch,
        shown,
    };
    cluster.unserved(&[0]).unwrap();
    let one = ForcedCopy {
        shown: cluster.shown.clone(),
        ..one
    };
    let said = cluster
        .control
        .force_serve("data", &[one.clone(), one.clone()], cluster.now)
        .unwrap_err()
        .to_string();
    assert!(said.contains("named twice"), "{said}");
    assert_eq!(cluster.chunk(), before, "nor what is refused in part");
    cluster.force(2, before.epoch).unwrap();
}

#[test]
fn a_copy_whose_disk_failed_does_not_live() {
    let mut cluster = Cluster::new(2, 1);
    cluster.living.remove(&1);
    cluster.wait(20);
    let chunk = cluster.chunk();
    assert_eq!(chunk.member_count(), 1);
    cluster.seal(2, &chunk);
    cluster.start(1);
    cluster.wait(2);
    let said = cluster.unserved(&[0]).unwrap_err();
    assert!(said.contains("1 of its 1 copies in sync live"), "{said}");
    // Its process lives, and says that the copy is gone.
    cluster.copies.remove(&2);
    let found = cluster.unserved(&[0]).unwrap();
    assert_eq!((found[0].living, found[0].proposed), (0, Some(node(1))));
    assert_eq!(cluster.force(1, chunk.epoch).unwrap().write_node, node(1));
}
