//! How the nodes' disks are: what their engines report, which are slow beside their peers, and which are out of service, whose
//! copies are rebuilt elsewhere. Only the drain of the last, and that one is to be put back in service, is in the store; all else is
//! heard again within seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use foundation::{ByteCount, Instant};

use crate::controller::Controller;
use crate::error::ControlError;
use crate::identity::{DiskId, NodeId, Uuid};
use crate::keys;
use crate::model::{Disk, Node, Number};
use crate::record::Record;
use crate::slowness::{Peers, Slowness};
use crate::store::{MetadataStore, Transaction};

/// What was reported longer ago says nothing of now.
const FRESH: Duration = Duration::from_secs(60);
/// For how long it counts what all disks took at some moment.
const PEERS_FRESH: Duration = Duration::from_secs(1);
/// With more missed since, the last sample that was answered says nothing of now. A few are: a sample of a disk that takes seconds is
/// under way most of the time, its node's or a neighbour's, which stands in that one's way.
const MISSED_MAX: u64 = 3;
/// Disks and samples that one node may report, as many as it may register and see.
const REPORTS_MAX: usize = 1024;

/// How a disk stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskState {
    /// Nothing is wrong with it.
    #[default]
    Ok,
    /// It takes much longer than its peers.
    Slow,
    /// Its requests stand or fail, or have done so lately.
    Failing,
    /// Its node does not use it.
    OutOfService,
    /// Copies are promised to it, and its node does not name it among its disks. No node says that itself.
    Missing,
}

/// How a disk is, as the engine of its node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskReport {
    /// The disk.
    pub id: DiskId,
    /// How it stands.
    pub state: DiskState,
    /// Why, for people.
    pub why: String,
    /// Where it is.
    pub path: String,
    /// It has no room for more.
    pub is_full: bool,
    /// Requests that have failed through it.
    pub failures: u64,
    /// How often each stage of a reset began: queue, device, driver, process.
    pub resets: [u64; 4],
    /// After how many of them it answered again before the next.
    pub cured: [u64; 4],
    /// From the beginning of those of the process that cured until the next one served it, summed.
    pub process_cured: Duration,
    /// The stage that is under way, from 1; 0 while none is.
    pub resetting: u8,
    /// Of the wishes to put it back in service the one that its node has tried last, 0 for none; none from an engine of a release that
    /// does not say so.
    pub tried: Option<u64>,
}

/// What a node's sample reads of a disk, its own or a neighbour's, have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSample {
    /// Whose disk it is.
    pub node: NodeId,
    /// The disk.
    pub disk: DiskId,
    /// Of the time at the disk: a moving average, and what 99 of 100 of the last samples stayed below.
    pub at_disk: [Duration; 2],
    /// The same from question to answer.
    pub answer: [Duration; 2],
    /// How many were answered.
    pub samples: u64,
    /// How many failed or were not answered in time, late ones among them; and since the last one that was answered.
    pub missed: [u64; 2],
}

/// What follows from a node's report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DisksNoted {
    /// Disks that it has to put back in service, each with the number of that wish.
    pub restore: Vec<(DiskId, u64)>,
    /// Disks from which copies are moved away from now on, and why.
    pub drained: Vec<(DiskId, String)>,
    /// Disks that count as slow from now on, or do not any more.
    pub speed: Vec<(DiskId, bool)>,
}

/// What is known of one disk now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskHealth {
    /// What its node said last, and whether it is slow; none when that was not heard lately.
    pub report: Option<DiskReport>,
    /// What sample reads have shown, by who made them; its own node first.
    pub sights: Vec<(NodeId, DiskSample)>,
    /// Its copies are moved away.
    pub is_drained: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Health {
    heard: BTreeMap<NodeId, Told>,
    slowness: BTreeMap<(NodeId, DiskId), Slowness>,
    /// How many samples of each had been answered when it was looked at last.
    answered: BTreeMap<(NodeId, DiskId), u64>,
    /// How long the disks take that were heard of, as of this time.
    peers: Option<(Instant, Peers<(NodeId, DiskId)>)>,
    /// Disks that their nodes are to put back in service, as the store says. It counts only while the disk is not drained: a master of an
    /// earlier release, which leaves such a record, may have drained it since.
    /// Each with its number, by which a node says that it has tried.
    restoring: BTreeMap<(NodeId, DiskId), u64>,
    /// Those of which the node was told, if its engine does not say what it has tried; and whether the node has begun another life since.
    told_to_restore: BTreeMap<(NodeId, DiskId), bool>,
}

#[derive(Debug)]
struct Told {
    at: Instant,
    disks: Vec<DiskReport>,
    samples: Vec<DiskSample>,
}

impl Told {
    /// How long each disk of the node takes that says this. Only what its target has answered counts: what is missed may be for a target
    /// that ends or stands, a way that is cut, or a machine that is busy, and a disk that answers nothing at all is reset by its node.
    fn latencies(&self, node: NodeId) -> impl Iterator<Item = ((NodeId, DiskId), Duration)> {
        self.own(node)
            .map(move |sample| ((node, sample.disk), sample.at_disk[0]))
    }

    fn own(&self, node: NodeId) -> impl Iterator<Item = &DiskSample> {
        self.samples
            .iter()
            .filter(move |sample| sample.node == node && sample.samples > 0 && sample.missed[1] <= MISSED_MAX)
    }
}

impl Health {
    /// The disks that a node is to put back in service.
    pub(super) fn restoring_of(&self, node: NodeId) -> Vec<DiskId> {
        let (first, last) = (DiskId::default(), DiskId(Uuid(u128::MAX)));
        let of_node = self.restoring.range((node, first)..=(node, last));
        of_node.map(|((_, disk), _)| *disk).collect()
    }

    /// How long each disk takes, as its own node's samples say.
    fn latencies(&self, now: Instant) -> impl Iterator<Item = ((NodeId, DiskId), Duration)> {
        let fresh = self
            .heard
            .iter()
            .filter(move |(_, told)| now.since(told.at) < FRESH);
        fresh.flat_map(|(node, told)| told.latencies(*node))
    }

    fn note_slowness(&mut self, of: NodeId, now: Instant) -> Vec<(DiskId, bool)> {
        let Some(told) = self.heard.get(&of) else {
            return Vec::new();
        };
        // Where nothing was answered since, what was said before says nothing of now.
        let answered = &mut self.answered;
        let is_news = |sample: &&DiskSample| {
            let before = answered.insert((of, sample.disk), sample.samples);
            sample.missed[1] == 0 || before != Some(sample.samples)
        };
        let own = told.own(of).filter(is_news);
        let own: Vec<_> = own.map(|sample| ((of, sample.disk), sample.at_disk[0])).collect();
        let mut changed = Vec::new();
        for (place, latency) in own {
            let mut slowness = self.slowness.remove(&place).unwrap_or_default();
            // All disks of the cluster are looked at only for one that may be slow, and not for each of those anew: where all are
            // of a sort that takes so long, every report is about such.
            let median = || {
                let known = self.peers.take().filter(|(at, _)| now.since(*at) < PEERS_FRESH);
                let (at, peers) = known.unwrap_or_else(|| (now, Peers::new(self.latencies(now))));
                let median = peers.median_without(&place);
                self.peers = Some((at, peers));
                median
            };
            if slowness.note(now, latency, median) {
                changed.push((place.1, slowness.is_slow()));
            }
            self.slowness.insert(place, slowness);
        }
        changed
    }
}

impl<S: MetadataStore> Controller<S> {
    /// A node says how its disks are, and what its sample reads have shown. From a disk that is out of service on, copies are
    /// moved away.
    pub fn note_disks(
        &mut self,
        node: NodeId,
        disks: Vec<DiskReport>,
        samples: Vec<DiskSample>,
        now: Instant,
    ) -> Result<DisksNoted, ControlError> {
        let mut noted = DisksNoted::default();
        if !self.heard.contains_key(&node) || disks.len().max(samples.len()) > REPORTS_MAX {
            return Ok(noted);
        }
        for report in &disks {
            let place = (node, report.id);
            let wish = self.health.restoring.get(&place).copied();
            let has_begun = self.health.told_to_restore.get(&place) == Some(&true);
            let has_tried = report.tried.map_or(has_begun, |tried| wish == Some(tried));
            let is_tried = report.state != DiskState::OutOfService || has_tried;
            if wish.is_some() && is_tried {
                self.end_disk_restore(node, report.id)?;
            }
            if report.tried.is_some() {
                // Its engine may have been of a release before when it was told.
                self.health.told_to_restore.remove(&place);
            }
            if report.state != DiskState::OutOfService {
                continue;
            }
            if let Some(wish) = wish.filter(|_| !is_tried && !self.care.is_drained_itself(node, report.id)) {
                // An engine that says what it has tried may wait for the disk over many lives of its target.
                if report.tried.is_none() {
                    self.health.told_to_restore.insert(place, false);
                }
                noted.restore.push((report.id, wish));
            } else if !self.is_restoring()
                && !self.care.is_drained(node, Some(report.id))
                && self.has_disk(node, report.id)?
            {
                self.set_drain(node, Some(report.id), true)?;
                noted.drained.push((report.id, report.why.clone()));
            }
        }
        let told = Told {
            at: now,
            disks,
            samples,
        };
        self.health.heard.insert(node, told);
        noted.speed = self.health.note_slowness(node, now);
        Ok(noted)
    }

    /// Whether its node said last that it does not use this disk.
    pub(super) fn is_out_of_service(&self, node: NodeId, disk: DiskId) -> bool {
        let told = self.health.heard.get(&node);
        let is_out = |report: &DiskReport| report.id == disk && report.state == DiskState::OutOfService;
        told.is_some_and(|told| told.disks.iter().any(is_out))
    }

    pub(super) fn has_disk(&self, node: NodeId, disk: DiskId) -> Result<bool, ControlError> {
        let stored = self.read::<Node>(&keys::node(node))?;
        Ok(stored.is_some_and(|stored| stored.record.has_disk(disk)))
    }

    /// Disks that a node has come back without while copies are promised to them. None between two lives of its target, when it
    /// names no disk at all.
    pub(super) fn missing_disks(&self, node: NodeId, record: &Node) -> Result<Vec<Disk>, ControlError> {
        let mut missing = Vec::new();
        if record.disks.is_empty() {
            return Ok(missing);
        }
        let (first, end) = keys::allocations_of(node);
        self.read_range::<Number>(first, &end, |key, promised| {
            let disk = keys::parse_allocation(key).map(|place| place.1);
            if let Some(id) = disk.filter(|disk| promised.record.0 > 0 && !record.has_disk(*disk)) {
                // There is nothing of it.
                let none = ByteCount(0);
                missing.push(Disk {
                    id,
                    capacity: none,
                    used: none,
                    held: None,
                });
            }
        })?;
        Ok(missing)
    }

    /// What is known of such a disk.
    pub(super) fn missing_disk(&self, node: NodeId, disk: DiskId) -> DiskHealth {
        let report = DiskReport {
            id: disk,
            state: DiskState::Missing,
            why: "its node runs without it, and copies are promised to it".to_owned(),
            ..DiskReport::default()
        };
        DiskHealth {
            report: Some(report),
            sights: Vec::new(),
            is_drained: self.care.is_drained(node, Some(disk)),
        }
    }

    /// Has a node put a disk back in service, and ends its drain. What has gone from it does not come back by itself. Whoever leads tells
    /// the node so until it says that the disk is in service, or that it has tried: a disk that is no better is out of service again then.
    pub fn restore_disk(&mut self, node: NodeId, disk: DiskId) -> Result<(), ControlError> {
        self.check_place(node, Some(disk))?;
        // First: a master that took over between the two would drain again what is out of service and not to be put back.
        let key = keys::disk_restore(node, disk);
        let mut transaction = Transaction::new();
        // A node that has tried for an earlier wish has not tried for this one. 0 is no wish, and 1 one of masters that gave them no numbers.
        let wish = self.random.next_u64().max(2);
        transaction.put(key.clone(), Number(wish).encode(&key));
        self.commit(&transaction)?;
        self.health.restoring.insert((node, disk), wish);
        self.health.told_to_restore.remove(&(node, disk));
        self.undrain(node, Some(disk))?;
        Ok(())
    }

    /// A node begins another life: what it was told to put back in service it has tried to, as far as it is known, if its engine is still one
    /// that does not say what it has tried. Which engine it is its next report shows: a new one has not tried what the one before may have waited
    /// for.
    pub(super) fn note_life_of_restores(&mut self, node: NodeId) {
        let told = self.health.told_to_restore.iter_mut();
        told.filter(|(place, _)| place.0 == node)
            .for_each(|(_, has_begun)| *has_begun = true);
    }

    fn end_disk_restore(&mut self, node: NodeId, disk: DiskId) -> Result<(), ControlError> {
        // While masters find out what nodes have, they change nothing; the node says it again.
        if !self.is_restoring() {
            let mut transaction = Transaction::new();
            transaction.delete(keys::disk_restore(node, disk));
            self.commit(&transaction)?;
            self.health.restoring.remove(&(node, disk));
            self.health.told_to_restore.remove(&(node, disk));
        }
        Ok(())
    }

    /// Reads which disks are to be put back in service.
    pub(super) fn note_disk_restores(&mut self) -> Result<(), ControlError> {
        let mut restoring = BTreeMap::new();
        let (first, end) = (keys::DISK_RESTORES.to_vec(), keys::end_of(keys::DISK_RESTORES));
        self.read_range::<Number>(first, &end, |key, wish| {
            // Those of masters that drew no numbers are all 1: the second would pass for tried where the first was.
            let number = match wish.record.0 {
                0 | 1 => wish.revision.max(2),
                drawn => drawn,
            };
            restoring.extend(keys::parse_disk_restore(key).map(|place| (place, number)));
        })?;
        self.health.restoring = restoring;
        Ok(())
    }

    /// The disks that count as slow.
    pub fn slow_disks(&self) -> Vec<(NodeId, DiskId)> {
        let slow = self
            .health
            .slowness
            .iter()
            .filter(|(_, slowness)| slowness.is_slow());
        slow.map(|(place, _)| *place).collect()
    }

    /// Disks of which too little room is left, as their nodes said lately.
    pub(super) fn full_disks(&self, now: Instant) -> BTreeSet<(NodeId, DiskId)> {
        let heard = self.health.heard.iter();
        let fresh = heard.filter(|(_, told)| now.since(told.at) < FRESH);
        let full = fresh.flat_map(|(&node, told)| {
            let full = told.disks.iter().filter(|report| report.is_full);
            full.map(move |report| (node, report.id))
        });
        full.collect()
    }

    /// What is known of a disk.
    pub(super) fn disk_health(&self, node: NodeId, disk: DiskId, now: Instant) -> DiskHealth {
        let fresh = |told: &&Told| now.since(told.at) < FRESH;
        let told = self.health.heard.get(&node).filter(fresh);
        let mut report = told
            .and_then(|told| told.disks.iter().find(|report| report.id == disk))
            .cloned();
        let slowness = self.health.slowness.get(&(node, disk));
        if let Some(report) = &mut report
            && report.state == DiskState::Ok
            && slowness.is_some_and(Slowness::is_slow)
        {
            report.state = DiskState::Slow;
            report.why = "its sample reads take much longer than those of its peers".to_owned();
        }
        let mut sights: Vec<(NodeId, DiskSample)> = Vec::new();
        for (&from, told) in self.health.heard.iter().filter(|(_, told)| fresh(told)) {
            let of_disk = |sample: &&DiskSample| sample.node == node && sample.disk == disk;
            sights.extend(told.samples.iter().filter(of_disk).map(|sample| (from, *sample)));
        }
        sights.sort_by_key(|(from, _)| (*from != node, *from));
        DiskHealth {
            report,
            sights,
            is_drained: self.care.is_drained(node, Some(disk)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Incarnation, MemoryStore, Registration, Settings};

    /// Masters that drew no numbers wrote 1 each time.
    #[test]
    fn a_wish_without_a_number_is_not_the_one_before() {
        let (store, now) = (MemoryStore::new(), Instant::from_nanos(1));
        let (node, disk) = (NodeId(Uuid(1)), DiskId(Uuid(2)));
        let place = Disk {
            id: disk,
            capacity: ByteCount::TIB,
            used: ByteCount(0),
            held: None,
        };
        let lead = |seed| {
            let mut master = Controller::open(&store, Settings::default(), seed, now).unwrap();
            let registration = Registration {
                cluster: None,
                node,
                peer_address: "192.0.2.1:4420".to_owned(),
                rack: None,
                incarnation: Some(Incarnation(1)),
                ended_through: Incarnation(0),
                disks: vec![place],
            };
            master.register(&registration, now).unwrap();
            master
        };
        let wish = || {
            let key = keys::disk_restore(node, disk);
            let mut transaction = Transaction::new();
            transaction.put(key.clone(), Number(1).encode(&key));
            store.commit(&transaction).unwrap();
        };
        let out = |tried| {
            vec![DiskReport {
                id: disk,
                state: DiskState::OutOfService,
                tried: Some(tried),
                ..DiskReport::default()
            }]
        };
        drop(lead(1));
        wish();
        let told = lead(2).note_disks(node, out(0), Vec::new(), now).unwrap().restore;
        let [(_, first)] = told[..] else {
            panic!("{told:?}")
        };
        // The next master says the same.
        let mut master = lead(3);
        assert_eq!(
            master.note_disks(node, out(0), Vec::new(), now).unwrap().restore,
            told
        );
        let noted = master.note_disks(node, out(first), Vec::new(), now).unwrap();
        assert_eq!((noted.restore.len(), noted.drained.len()), (0, 1));
        wish();
        master = lead(4);
        master.undrain(node, Some(disk)).unwrap();
        let noted = master.note_disks(node, out(first), Vec::new(), now).unwrap();
        assert_eq!((noted.restore.len(), noted.drained.len()), (1, 0));
    }
}
