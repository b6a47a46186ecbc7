//! A volume from creation to deletion.

use foundation::ByteCount;

use crate::identity::{NodeId, SnapshotNumber, Uuid, VolumeNumber};
use crate::model::Geometry;
use crate::racks::Spread;
use crate::record::{Reader, Record, Writer};

/// Where a volume is in its life. It only goes forward; deletion may begin in any state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeState {
    /// Its chunks are being placed.
    Creating,
    /// All chunks are placed; nodes create the copies they lack, which read zeros.
    Preparing,
    /// In use. A copy that a node lacks is lost, not new.
    Ready,
    /// Nodes remove their copies.
    Deleting,
}

/// What a clone began as. Its copies share with those of that snapshot what has not been written since, so the snapshot stays as
/// long as this is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The volume of the snapshot.
    pub volume: VolumeNumber,
    /// The snapshot.
    pub snapshot: SnapshotNumber,
    /// The nodes give each copy data of its own; when all have, the volume has no origin any more.
    pub flattening: bool,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Volume {
    /// Its number, never used again.
    pub number: VolumeNumber,
    /// Its name among those that exist.
    pub name: String,
    /// Identifies it to hosts.
    pub uuid: Uuid,
    /// How its blocks lie in chunks.
    pub geometry: Geometry,
    /// Where it is in its life.
    pub state: VolumeState,
    /// Nodes that export it to ordinary hosts.
    pub portals: Vec<NodeId>,
    /// The node that orders all writes while it lives and is in sync.
    pub write_pin: Option<NodeId>,
    /// The names of the hosts to which they export it; none for all.
    pub hosts: Vec<String>,
    /// Chunks of the stripe groups that are being appended: they get places and copies, and nobody uses them before they
    /// belong to the geometry. Empty when the volume is not growing.
    pub growth: Vec<u32>,
    /// Its copies keep checksums of their blocks. Records of before there were any say no.
    pub checksums: bool,
    /// The snapshot that it is a clone of, until it is flattened. Records of before there were clones have none.
    pub origin: Option<Origin>,
    /// What no two copies of a chunk are to have in common, if somebody has said it: without that it is what [`Racks::spread`]
    /// says. Records of before there were racks have nothing.
    ///
    /// [`Racks::spread`]: crate::racks::Racks::spread
    pub spread: Option<Spread>,
    /// Every write is durable on every copy in sync before it is acknowledged. Records of before there was this say no.
    pub sync_writes: bool,
}

impl Volume {
    /// The volume's size in bytes.
    pub fn size(&self) -> ByteCount {
        self.geometry.size()
    }

    /// The geometry that it has once it has grown; without growth the present one.
    pub fn grown(&self) -> Geometry {
        let mut geometry = self.geometry.clone();
        geometry.group_chunks.extend_from_slice(&self.growth);
        geometry
    }

    /// The first chunk whose copies the nodes have to make, if there are such chunks: a copy that a node lacks of an earlier
    /// one is lost, not new.
    pub fn prepares_from(&self) -> Option<u32> {
        match self.state {
            VolumeState::Preparing => Some(0),
            VolumeState::Ready if !self.growth.is_empty() => Some(self.geometry.chunk_count()),
            _ => None,
        }
    }

    /// In use, and its copies are given data of their own.
    pub fn is_flattening(&self) -> bool {
        let is_asked = self.origin.is_some_and(|origin| origin.flattening);
        is_asked && self.state == VolumeState::Ready
    }

    /// In use, and nothing is being added.
    pub fn is_settled(&self) -> bool {
        self.state == VolumeState::Ready && self.growth.is_empty()
    }
}

impl Record for Volume {
    const KIND: u8 = 3;
    const VERSION: u8 = 7;

    fn version(&self) -> u8 {
        // What an earlier release can read is written so that it can.
        if self.sync_writes {
            return 7;
        }
        if self.spread.is_some() {
            return 6;
        }
        if self.origin.is_some() {
            return 5;
        }
        match (self.checksums, self.hosts.is_empty(), self.growth.is_empty()) {
            (true, ..) => 4,
            (false, false, _) => 3,
            (false, true, false) => 2,
            (false, true, true) => 1,
        }
    }

    fn write(&self, out: &mut Writer) {
        out.u32(self.number.0);
        out.text(&self.name);
        out.uuid(self.uuid);
        self.geometry.write(out);
        out.u8(match self.state {
            VolumeState::Creating => 1,
            VolumeState::Preparing => 2,
            VolumeState::Ready => 3,
            VolumeState::Deleting => 4,
        });
        out.count(self.portals.len());
        for portal in &self.portals {
            out.uuid(portal.0);
        }
        out.uuid(self.write_pin.map_or_else(Uuid::default, |node| node.0));
        if self.version() >= 2 {
            out.count(self.growth.len());
            for &chunks in &self.growth {
                out.u32(chunks);
            }
        }
        if self.version() >= 3 {
            out.count(self.hosts.len());
            for host in &self.hosts {
                out.text(host);
            }
        }
        if self.version() >= 4 {
            out.u8(self.checksums.into());
        }
        // A number of 0 names no volume: version 6 without an origin.
        let none = Origin {
            volume: VolumeNumber(0),
            snapshot: SnapshotNumber(0),
            flattening: false,
        };
        if self.version() >= 5 {
            let origin = self.origin.unwrap_or(none);
            out.u32(origin.volume.0);
            out.u64(origin.snapshot.0);
            out.u8(origin.flattening.into());
        }
        if self.version() >= 6 {
            out.u8(match self.spread {
                // In version 7 only.
                None => 0,
                Some(Spread::Node) => 1,
                Some(Spread::Rack) => 2,
            });
        }
        if self.version() >= 7 {
            out.u8(self.sync_writes.into());
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let volume = Self {
            number: VolumeNumber(reader.u32()?),
            name: reader.text()?,
            uuid: reader.uuid()?,
            geometry: Geometry::read(reader)?,
            state: match reader.u8()? {
                1 => VolumeState::Creating,
                2 => VolumeState::Preparing,
                3 => VolumeState::Ready,
                4 => VolumeState::Deleting,
                _ => return None,
            },
            portals: reader.list(16, |reader| reader.uuid().map(NodeId))?,
            write_pin: match reader.uuid()? {
                none if none == Uuid::default() => None,
                node => Some(NodeId(node)),
            },
            growth: if reader.is_empty() {
                Vec::new()
            } else {
                reader.list(4, Reader::u32)?
            },
            hosts: if reader.is_empty() {
                Vec::new()
            } else {
                reader.list(4, Reader::text)?
            },
            checksums: match reader.is_empty() {
                true => false,
                false => flag(reader)?,
            },
            origin: match reader.is_empty() {
                true => None,
                false => Some(Origin {
                    volume: VolumeNumber(reader.u32()?),
                    snapshot: SnapshotNumber(reader.u64()?),
                    flattening: flag(reader)?,
                })
                .filter(|origin| origin.volume != VolumeNumber(0)),
            },
            spread: match reader.is_empty() {
                true => None,
                false => match reader.u8()? {
                    0 if !reader.is_empty() => None,
                    1 => Some(Spread::Node),
                    2 => Some(Spread::Rack),
                    _ => return None,
                },
            },
            sync_writes: match reader.is_empty() {
                true => false,
                false => flag(reader)?,
            },
        };
        let grown = volume.grown();
        (volume.growth.is_empty() || grown.validate().is_ok()).then_some(volume)
    }
}

fn flag(reader: &mut Reader<'_>) -> Option<bool> {
    match reader.u8()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}
