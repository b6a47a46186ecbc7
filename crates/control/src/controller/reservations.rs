//! What the hosts of exported volumes have reserved: one record a volume, which portals replace by compare-and-swap.
//!
//! Its token is one of those that writers get, so that a native writer and the hosts keep each other out: whoever took the newest
//! has the volume. Nodes refuse what goes under an older one.

use foundation::Instant;

use crate::controller::{ATTEMPTS_MAX, Controller, Stored, contended};
use crate::error::ControlError;
use crate::identity::{NodeId, VolumeNumber, WriterToken};
use crate::keys;
use crate::model::{FEATURE_RESERVATIONS, Reservations, Volume, VolumeState, WriterLease};
use crate::planted::Bug;
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// Who has the newest token of a volume that hosts have reserved, for people.
const HOLDER: &str = "hosts, by reservation";

/// The reservations of a volume, and whether they count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationsView {
    /// What is agreed on.
    pub reservations: Reservations,
    /// Portals' commands go under this token: that of the reservations, or a native writer's newer one.
    pub token: WriterToken,
    /// A native writer has taken a newer token: hosts may only read.
    pub taken: bool,
    /// Chunks of the volume. Who knows of more has an answer of before they were there, and who knows of fewer cannot put a token in force.
    pub chunks: u32,
}

impl ReservationsView {
    /// Whether the token is in force on every copy.
    pub fn in_force(&self) -> bool {
        self.taken || self.reservations.enforced >= self.reservations.token
    }
}

struct Found {
    volume: Stored<Volume>,
    reservations: Reservations,
    revision: u64,
    lease: Option<Stored<WriterLease>>,
}

impl Found {
    fn newest(&self) -> WriterToken {
        self.lease
            .as_ref()
            .map_or(WriterToken(0), |lease| lease.record.token)
    }

    fn view(&self) -> ReservationsView {
        let newest = self.newest();
        ReservationsView {
            reservations: self.reservations.clone(),
            token: newest.max(self.reservations.token),
            taken: newest > self.reservations.token,
            chunks: self.volume.record.geometry.chunk_count(),
        }
    }
}

impl<S: MetadataStore> Controller<S> {
    /// The volume first: reservations that were read are of a moment when it had its chunks.
    fn find_reservations(&self, number: VolumeNumber) -> Result<Found, ControlError> {
        let volume = match self.read::<Volume>(&keys::volume(number))? {
            None => return Err(ControlError::NoSuchVolume { number }),
            Some(stored) if stored.record.state == VolumeState::Deleting => {
                let name = stored.record.name;
                return Err(ControlError::VolumeDeleting { name });
            }
            Some(stored) => stored,
        };
        let stored = self.read::<Reservations>(&keys::reservations(number))?;
        let (reservations, revision) =
            stored.map_or_else(Default::default, |stored| (stored.record, stored.revision));
        let lease = self.read::<WriterLease>(&keys::writer(number))?;
        Ok(Found {
            volume,
            reservations,
            revision,
            lease,
        })
    }

    /// What the hosts of a volume have reserved.
    ///
    /// # Errors
    /// If there is no such volume.
    pub fn reservations(&self, number: VolumeNumber) -> Result<ReservationsView, ControlError> {
        Ok(self.find_reservations(number)?.view())
    }

    /// The version of what the hosts of a volume have reserved; 0 for nothing ever.
    pub(super) fn reservations_version(&self, number: VolumeNumber) -> Result<u64, ControlError> {
        let stored = self.read::<Reservations>(&keys::reservations(number))?;
        Ok(stored.map_or(0, |stored| stored.record.version))
    }

    /// Puts `next` in the place of the reservations of version `expected`, for a portal on `node`; with a newer token if they take
    /// rights from a host. Returns them as they are then, or none if the version was another one.
    ///
    /// # Errors
    /// If there is no such volume, if the node does not export it, if `next` contradicts itself, while a native writer has the
    /// volume, or, before one is held, while a node does not know reservations.
    pub fn replace_reservations(
        &mut self,
        number: VolumeNumber,
        node: Option<NodeId>,
        expected: u64,
        next: &Reservations,
        restricts: bool,
        now: Instant,
    ) -> Result<Option<ReservationsView>, ControlError> {
        if let Some(problem) = next.problem() {
            return Err(ControlError::Argument {
                field: "reservations",
                problem: format!("cannot be as {problem}"),
                remedy: "this is a fault of the portal; use the same release on all nodes",
            });
        }
        for _ in 0..ATTEMPTS_MAX {
            let found = self.find_reservations(number)?;
            let volume = &found.volume.record;
            if let Some(node) = node.filter(|node| !volume.portals.contains(node)) {
                let volume = volume.name.clone();
                return Err(ControlError::NotPortal { volume, node });
            }
            if found.reservations.version != expected && !self.planted.is(Bug::ReplacesUncompared) {
                return Ok(None);
            }
            // Whatever went before: a node that does not know it may have come since, or the first one was an administrator's.
            if found.revision == 0 || found.reservations.kind == 0 && next.kind != 0 {
                self.check_nodes_know(&volume.name, now)?;
            }
            if found.view().taken {
                return Err(ControlError::WrittenNatively {
                    volume: volume.name.clone(),
                    token: found.newest(),
                });
            }
            let token = if restricts {
                self.next_token(&found)?
            } else {
                found.reservations.token
            };
            let stored = Reservations {
                version: found.reservations.version + 1,
                token,
                enforced: found.reservations.enforced,
                ..next.clone()
            };
            if self.put_reservations(number, &found, &stored)? {
                return self.reservations(number).map(Some);
            }
        }
        Err(contended())
    }

    /// A node that does not know reservations takes what a host sends that is kept out.
    fn check_nodes_know(&self, volume: &str, now: Instant) -> Result<(), ControlError> {
        let knows = |id: &NodeId| self.heard.get(id).is_some_and(|heard| heard.reserves);
        let nodes = self.nodes(now)?;
        let mut without = nodes.iter().filter(|(id, view)| view.is_alive && !knows(id));
        match without.next() {
            None => Ok(()),
            Some((&node, _)) => Err(ControlError::NodeBeforeReservations {
                volume: volume.to_owned(),
                node,
                others: without.count(),
            }),
        }
    }

    /// A portal, the node that is named, knows of so many chunks and has seen to it that this token is in force on every copy of them.
    /// Repeating it changes nothing.
    ///
    /// # Errors
    /// If there is no such volume, if it has more chunks, or if the node does not export it.
    pub fn enforced_reservations(
        &mut self,
        number: VolumeNumber,
        node: NodeId,
        token: WriterToken,
        chunks: u32,
    ) -> Result<ReservationsView, ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let found = self.find_reservations(number)?;
            let volume = &found.volume.record;
            if !volume.portals.contains(&node) {
                let volume = volume.name.clone();
                return Err(ControlError::NotPortal { volume, node });
            }
            if chunks < volume.geometry.chunk_count() && !self.planted.is(Bug::NotesFewerChunks) {
                return Err(ControlError::NotEveryChunk {
                    volume: volume.name.clone(),
                    chunks: volume.geometry.chunk_count(),
                    told: chunks,
                });
            }
            let enforced = found
                .reservations
                .enforced
                .max(token.min(found.reservations.token));
            if enforced == found.reservations.enforced {
                return Ok(found.view());
            }
            let stored = Reservations {
                enforced,
                ..found.reservations.clone()
            };
            if self.put_reservations(number, &found, &stored)? {
                return self.reservations(number);
            }
        }
        Err(contended())
    }

    /// Makes every host's registration void and lets all hosts write again that may connect, also where a native writer had the volume
    /// and holds it no more.
    ///
    /// # Errors
    /// If there is no such volume, or while a native writer holds it.
    pub fn clear_reservations(&mut self, name: &str, now: Instant) -> Result<ReservationsView, ControlError> {
        for _ in 0..ATTEMPTS_MAX {
            let number = self.volume_named(name)?.number;
            if let Some(writer) = self.writer(number, now)? {
                return Err(ControlError::WriterHeld {
                    volume: number,
                    holder: writer.holder,
                    remaining: writer.remaining,
                    token: writer.token,
                });
            }
            let found = self.find_reservations(number)?;
            let stored = Reservations {
                version: found.reservations.version + 1,
                // Under the newest token hosts come past every writer before.
                token: self.next_token(&found)?,
                enforced: found.reservations.enforced,
                generation: found.reservations.generation.wrapping_add(1),
                ..Reservations::default()
            };
            if self.put_reservations(number, &found, &stored)? {
                return self.reservations(number);
            }
        }
        Err(contended())
    }

    /// Above every token that was given; portals' commands have 32 bits for it.
    fn next_token(&self, found: &Found) -> Result<WriterToken, ControlError> {
        let next = found.newest().max(found.reservations.token).0 + 1;
        match u32::try_from(next) {
            Ok(next) => Ok(WriterToken(next.into())),
            Err(_) => Err(ControlError::Argument {
                field: "volume",
                problem: format!("has used up the tokens of reservations: {next} would be the next"),
                remedy: "copy its data to a new volume",
            }),
        }
    }

    fn put_reservations(
        &mut self,
        number: VolumeNumber,
        found: &Found,
        stored: &Reservations,
    ) -> Result<bool, ControlError> {
        let (key, writer) = (keys::reservations(number), keys::writer(number));
        let mut transaction = Transaction::new();
        if found.revision == 0 {
            self.set_feature(&mut transaction, FEATURE_RESERVATIONS, true)?;
        }
        transaction.compare(keys::volume(number), found.volume.revision);
        transaction
            .compare(key.clone(), found.revision)
            .put(key.clone(), stored.encode(&key));
        transaction.compare(
            writer.clone(),
            found.lease.as_ref().map_or(0, |lease| lease.revision),
        );
        if stored.token > found.newest() {
            let lease = WriterLease {
                token: stored.token,
                session: None,
                holder: HOLDER.to_owned(),
                term: self.settings.writer_term,
            };
            transaction.put(writer.clone(), lease.encode(&writer));
        }
        self.commit(&transaction)
    }

    /// Refuses what a native writer wants of a volume that hosts have reserved. Returns the revision of what they have, for who gives
    /// the writer a token by that.
    pub(super) fn check_unreserved(&self, number: VolumeNumber) -> Result<u64, ControlError> {
        let found = self.find_reservations(number)?;
        if found.reservations.kind == 0 || found.view().taken {
            return Ok(found.revision);
        }
        Err(ControlError::Reserved {
            volume: found.volume.record.name,
            registrants: found.reservations.registrants.len(),
        })
    }
}
