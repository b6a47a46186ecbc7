//! What each copy keeps durable about itself, beside the chunk's bytes. The whole record is
//! written when a copy is created and now and then; in between its changes are appended as
//! [`RecordDelta`]s, in the order of their [`crate::PersistToken`]s. Layout:
//! `docs/formats/chunk-record.md`.

use std::collections::{BTreeMap, BTreeSet};

use foundation::Epoch;

use crate::configuration::ChunkConfig;
use crate::format::{BLOCK_HEAD_BYTES, FormatError, Reader, Writer, open_block, seal_block};
use crate::geometry::Geometry;
use crate::identity::{ChunkId, ChunkIndex, ClusterId, HostId, Session, VolumeNumber, WriterToken};

const MAGIC: u64 = u64::from_le_bytes(*b"RHVCHNK\0");
const VERSION: u16 = 1;
const DELTA_MAGIC: u64 = u64::from_le_bytes(*b"RHVDELT\0");

/// The most hosts whose sessions one copy remembers at a time; of more, those that wrote last
/// (`docs/decisions/0047-sessions-are-forgotten.md`). A newer write lease forgets all of them.
pub const SESSIONS_MAX: usize = 1024;

/// The durable state of one copy of one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// The cluster; every other one is refused.
    pub cluster: ClusterId,
    /// The chunk.
    pub chunk: ChunkId,
    /// The volume's geometry.
    pub geometry: Geometry,
    /// Everything of an older epoch is refused.
    pub sealed: Epoch,
    /// The configuration of that epoch, for `meta rebuild`; after a restart it says nothing
    /// about what is in sync.
    pub config: Option<ChunkConfig>,
    /// The newest session of each host that has written under the newest write lease.
    pub sessions: BTreeMap<HostId, u64>,
    /// The newest write lease seen.
    pub writer_token: WriterToken,
    /// Regions written since a flush on every copy.
    pub intent: BTreeSet<u32>,
    /// The epoch in which each region was last written; absent is "never".
    pub written_in: BTreeMap<u32, Epoch>,
    /// The epoch of the last flush completed here as an in-sync copy.
    pub flushed_in: Epoch,
}

/// One change of a [`ChunkRecord`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RecordDelta {
    /// A new epoch is sealed.
    Sealed(ChunkConfig),
    /// A region is about to be written in an epoch.
    Mark {
        /// The region.
        region: u32,
        /// The epoch of the write.
        epoch: Epoch,
    },
    /// Regions whose writes have been flushed on every copy.
    Clear {
        /// The regions.
        regions: Vec<u32>,
    },
    /// A host's newer session.
    Session(Session),
    /// A newer write lease; the sessions of those before are forgotten.
    Writer(WriterToken),
    /// A flush was completed in this epoch.
    Flushed(Epoch),
    /// The session of a host that has not written for longer than all the others: it makes room for another's.
    Forget(HostId),
}

impl ChunkRecord {
    /// The record of a copy that has just been created and takes part in nothing yet.
    pub fn new(cluster: ClusterId, chunk: ChunkId, geometry: Geometry) -> Self {
        Self {
            cluster,
            chunk,
            geometry,
            sealed: Epoch(0),
            config: None,
            sessions: BTreeMap::new(),
            writer_token: WriterToken(0),
            intent: BTreeSet::new(),
            written_in: BTreeMap::new(),
            flushed_in: Epoch(0),
        }
    }

    /// The copy is the first of a clone's chunk, and shows something in these blocks, as every other first copy does: their regions
    /// count as written in the first epoch, so that whoever gets a copy later is sent them.
    pub fn note_shown(&mut self, first_block: u32, blocks: u32) {
        let region = self.geometry.region_blocks;
        let end = u64::from(first_block) + u64::from(blocks);
        let regions = first_block / region..=((end.saturating_sub(1)) / u64::from(region)) as u32;
        if blocks > 0 {
            self.written_in.extend(regions.map(|region| (region, Epoch(1))));
        }
    }

    /// Makes one change.
    pub fn apply(&mut self, delta: &RecordDelta) {
        match delta {
            RecordDelta::Sealed(config) => {
                self.sealed = self.sealed.max(config.epoch);
                self.config = Some(config.clone());
            }
            RecordDelta::Mark { region, epoch } => {
                self.intent.insert(*region);
                self.written_in.insert(*region, *epoch);
            }
            RecordDelta::Clear { regions } => {
                for region in regions {
                    self.intent.remove(region);
                }
            }
            RecordDelta::Session(session) => {
                let number = self.sessions.entry(session.host).or_default();
                *number = session.number.max(*number);
            }
            RecordDelta::Writer(token) if *token > self.writer_token => {
                self.writer_token = *token;
                // They wrote under older tokens, which is enough to refuse what is left of them. Claims stay: a portal sends
                // what goes under an older one with the newest token, too.
                self.sessions.retain(|host, _| host.is_through_portals());
            }
            RecordDelta::Writer(_) => {}
            RecordDelta::Flushed(epoch) => self.flushed_in = self.flushed_in.max(*epoch),
            RecordDelta::Forget(host) => drop(self.sessions.remove(host)),
        }
    }

    /// Bytes that [`ChunkRecord::encode`] never makes more of for a copy of this geometry.
    pub fn encoded_bytes_max(geometry: &Geometry) -> usize {
        let mut fields = Writer::default();
        geometry.encode_fields(&mut fields);
        let config = 8 + 16 + 4 + 24 * crate::configuration::COPIES_MAX;
        let sessions = 4 + 16 * SESSIONS_MAX;
        let regions = geometry.regions() as usize;
        let (intent, written_in) = (4 + 4 * regions, 4 + 12 * regions);
        let head = BLOCK_HEAD_BYTES + 16 + 4 + 4 + 3 * 8;
        head + fields.bytes.len() + 1 + config + sessions + intent + written_in
    }

    /// The bytes of the whole record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u128(self.cluster.0);
        out.u32(self.chunk.volume.0);
        out.u32(self.chunk.index.0);
        out.u64(self.sealed.0);
        out.u64(self.writer_token.0);
        out.u64(self.flushed_in.0);
        self.geometry.encode_fields(&mut out);
        out.u8(self.config.is_some().into());
        if let Some(config) = &self.config {
            config.encode(&mut out);
        }
        out.count(self.sessions.len());
        for (host, number) in &self.sessions {
            out.u64(host.0);
            out.u64(*number);
        }
        out.count(self.intent.len());
        for region in &self.intent {
            out.u32(*region);
        }
        out.count(self.written_in.len());
        for (region, epoch) in &self.written_in {
            out.u32(*region);
            out.u64(epoch.0);
        }
        seal_block(MAGIC, VERSION, &out.bytes)
    }

    /// Reads a record; bytes after it are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (_, body) = open_block("chunk record", MAGIC, VERSION, bytes)?;
        let mut reader = Reader::new("chunk record", body);
        let cluster = ClusterId(reader.u128()?);
        let chunk = ChunkId {
            volume: VolumeNumber(reader.u32()?),
            index: ChunkIndex(reader.u32()?),
        };
        let sealed = Epoch(reader.u64()?);
        let writer_token = WriterToken(reader.u64()?);
        let flushed_in = Epoch(reader.u64()?);
        let geometry = Geometry::decode_fields(&mut reader)?;
        let config = match reader.u8()? {
            0 => None,
            _ => Some(ChunkConfig::decode(&mut reader)?),
        };
        let mut record = Self::new(cluster, chunk, geometry);
        record.sealed = sealed;
        record.writer_token = writer_token;
        record.flushed_in = flushed_in;
        record.config = config;
        for _ in 0..reader.count(16)? {
            let host = HostId(reader.u64()?);
            record.sessions.insert(host, reader.u64()?);
        }
        for _ in 0..reader.count(4)? {
            let region = record.region(reader.u32()?)?;
            record.intent.insert(region);
        }
        for _ in 0..reader.count(12)? {
            let region = record.region(reader.u32()?)?;
            record.written_in.insert(region, Epoch(reader.u64()?));
        }
        reader.finish()?;
        Ok(record)
    }

    fn region(&self, region: u32) -> Result<u32, FormatError> {
        if region < self.geometry.regions() {
            return Ok(region);
        }
        Err(FormatError::Invalid {
            what: "chunk record",
            field: "region",
            value: region.into(),
        })
    }
}

impl RecordDelta {
    /// The bytes of one change, for a journal.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        match self {
            Self::Sealed(config) => {
                out.u8(1);
                config.encode(&mut out);
            }
            Self::Mark { region, epoch } => {
                out.u8(2);
                out.u32(*region);
                out.u64(epoch.0);
            }
            Self::Clear { regions } => {
                out.u8(3);
                out.count(regions.len());
                for region in regions {
                    out.u32(*region);
                }
            }
            Self::Session(session) => {
                out.u8(4);
                out.u64(session.host.0);
                out.u64(session.number);
            }
            Self::Writer(token) => {
                out.u8(5);
                out.u64(token.0);
            }
            Self::Flushed(epoch) => {
                out.u8(6);
                out.u64(epoch.0);
            }
            Self::Forget(host) => {
                out.u8(7);
                out.u64(host.0);
            }
        }
        seal_block(DELTA_MAGIC, VERSION, &out.bytes)
    }

    /// Reads one change; bytes after it are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let (_, body) = open_block("chunk record change", DELTA_MAGIC, VERSION, bytes)?;
        let mut reader = Reader::new("chunk record change", body);
        let delta = match reader.u8()? {
            1 => Self::Sealed(ChunkConfig::decode(&mut reader)?),
            2 => Self::Mark {
                region: reader.u32()?,
                epoch: Epoch(reader.u64()?),
            },
            3 => {
                let count = reader.count(4)?;
                let mut regions = Vec::with_capacity(count);
                for _ in 0..count {
                    regions.push(reader.u32()?);
                }
                Self::Clear { regions }
            }
            4 => Self::Session(Session {
                host: HostId(reader.u64()?),
                number: reader.u64()?,
            }),
            5 => Self::Writer(WriterToken(reader.u64()?)),
            6 => Self::Flushed(Epoch(reader.u64()?)),
            7 => Self::Forget(HostId(reader.u64()?)),
            kind => {
                return Err(FormatError::Invalid {
                    what: "chunk record change",
                    field: "kind",
                    value: kind.into(),
                });
            }
        };
        reader.finish()?;
        Ok(delta)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::configuration::Membership;
    use crate::identity::{Incarnation, NodeId};

    const TABLE: &str = include_str!("../../../docs/formats/chunk-record.md");

    fn geometry() -> Geometry {
        Geometry {
            block_bytes: 4096,
            metadata_bytes: 8,
            stripe_unit_blocks: 4,
            chunk_blocks: 256,
            region_blocks: 2,
            copies: 3,
            minimum: 2,
            group_chunks: vec![2],
        }
    }

    fn delta() -> impl Strategy<Value = RecordDelta> {
        let config = |epoch| ChunkConfig {
            epoch: Epoch(epoch),
            write_node: NodeId(3),
            members: vec![Membership {
                node: NodeId(3),
                incarnation: Incarnation(epoch),
            }],
        };
        prop_oneof![
            (1u64..99).prop_map(move |epoch| RecordDelta::Sealed(config(epoch))),
            (0u32..128, any::<u64>()).prop_map(|(region, epoch)| RecordDelta::Mark {
                region,
                epoch: Epoch(epoch)
            }),
            vec(0u32..128, 0..5).prop_map(|regions| RecordDelta::Clear { regions }),
            (0u64..9, any::<u64>()).prop_map(|(host, number)| RecordDelta::Session(Session {
                host: HostId(host),
                number
            })),
            any::<u64>().prop_map(|token| RecordDelta::Writer(WriterToken(token))),
            any::<u64>().prop_map(|epoch| RecordDelta::Flushed(Epoch(epoch))),
            (0u64..9).prop_map(|host| RecordDelta::Forget(HostId(host))),
        ]
    }

    proptest! {
        #[test]
        fn a_record_survives_its_disk(deltas in vec(delta(), 0..40), cut in 0usize..500) {
            let chunk = ChunkId { volume: VolumeNumber(5), index: ChunkIndex(6) };
            let mut record = ChunkRecord::new(ClusterId(1 << 90), chunk, geometry());
            for delta in &deltas {
                let bytes = delta.encode();
                prop_assert_eq!(&RecordDelta::decode(&bytes).unwrap(), delta);
                prop_assert!(RecordDelta::decode(&bytes[..bytes.len() - 1]).is_err());
                record.apply(delta);
            }
            let mut bytes = record.encode();
            prop_assert_eq!(ChunkRecord::decode(&bytes), Ok(record));
            let at = cut % bytes.len();
            prop_assert!(ChunkRecord::decode(&bytes[..at]).is_err());
            bytes[at] ^= 4;
            // Bytes 20 to 23 are reserved and not covered.
            prop_assert!(ChunkRecord::decode(&bytes).is_err() || (20..24).contains(&at));
        }

        #[test]
        fn noise_is_no_record(bytes in vec(any::<u8>(), 0..300)) {
            prop_assert!(ChunkRecord::decode(&bytes).is_err());
            let _ = ChunkRecord::decode(&seal_block(MAGIC, VERSION, &bytes));
            let _ = RecordDelta::decode(&seal_block(DELTA_MAGIC, VERSION, &bytes));
        }
    }

    #[test]
    fn the_longest_record_is_as_long_as_foretold() {
        let chunk = ChunkId {
            volume: VolumeNumber(1),
            index: ChunkIndex(1),
        };
        let mut record = ChunkRecord::new(ClusterId(1), chunk, geometry());
        let members = (0..crate::configuration::COPIES_MAX as u128).map(|node| Membership {
            node: NodeId(node),
            incarnation: Incarnation(1),
        });
        record.apply(&RecordDelta::Sealed(ChunkConfig {
            epoch: Epoch(1),
            write_node: NodeId(0),
            members: members.collect(),
        }));
        for host in 0..SESSIONS_MAX as u64 {
            let (host, number) = (HostId(host), 1);
            record.apply(&RecordDelta::Session(Session { host, number }));
        }
        for region in 0..geometry().regions() {
            let epoch = Epoch(1);
            record.apply(&RecordDelta::Mark { region, epoch });
        }
        assert_eq!(record.encode().len(), ChunkRecord::encoded_bytes_max(&geometry()));
    }

    #[test]
    fn the_fixed_fields_lie_where_the_table_says() {
        let chunk = ChunkId {
            volume: VolumeNumber(0x51),
            index: ChunkIndex(0x52),
        };
        let mut record = ChunkRecord::new(ClusterId(0x50), chunk, geometry());
        record.sealed = Epoch(0x53);
        record.writer_token = WriterToken(0x54);
        record.flushed_in = Epoch(0x55);
        let bytes = record.encode();
        for (offset, value, field) in [
            (24, 0x50, "cluster"),
            (40, 0x51, "volume"),
            (44, 0x52, "chunk index"),
            (48, 0x53, "sealed epoch"),
            (56, 0x54, "writer token"),
            (64, 0x55, "epoch of the last completed flush"),
        ] {
            assert_eq!(bytes[offset], value, "{field}");
            let row = TABLE
                .lines()
                .find(|row| row.starts_with(&format!("| {offset} |")));
            assert!(row.is_some_and(|row| row.contains(field)), "{field}");
        }
        assert_eq!(&bytes[..8], b"RHVCHNK\0");
    }
}
