//! A volume from creation to deletion.

use foundation::ByteCount;

use crate::identity::{NodeId, Uuid, VolumeNumber};
use crate::model::Geometry;
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
}

impl Volume {
    /// The volume's size in bytes.
    pub fn size(&self) -> ByteCount {
        self.geometry.size()
    }

    /// All but the hosts.
    pub(super) fn write_version_1(&self, out: &mut Writer) {
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
    }
}

impl Record for Volume {
    const KIND: u8 = 3;
    const VERSION: u8 = 2;

    fn write(&self, out: &mut Writer) {
        self.write_version_1(out);
        out.count(self.hosts.len());
        for host in &self.hosts {
            out.text(host);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
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
            // Version 1 ends here.
            hosts: match reader.is_empty() {
                true => Vec::new(),
                false => reader.list(4, Reader::text)?,
            },
        })
    }
}
