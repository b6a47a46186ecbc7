//! Proved here: PackFS on a cluster's volume takes no bytes for damage while a copy that may have the right ones is away, though the
//! client passes over that copy; and reads what any copy has.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bdev::{Data, IoError};
use client::Copies;
use foundation::Epoch;
use packfs::format::SUPERBLOCK_ADDRESSES;
use packfs::lease::memory::LocalLeases;
use packfs::{
    FormatOptions, FsckError, FsckOptions, InodeNumber, Medium, OpenError, Reader, ReaderOptions, Superblock,
    Target, Writer, WriterOptions, format, fsck,
};
use reactor::sim::Simulation;
use volume::client::{
    ClientOptions, MapSource, PeerStatus, Peers, Place, Reply, Sessions, VolumeDevice, VolumeMap,
};
use volume::message::codec::{NativeCommand, NativeOperation};
use volume::{
    ChunkConfig, ChunkIndex, ChunkMap, Geometry, Incarnation, Membership, NodeId, Status, VolumeNumber,
};

const BLOCK: usize = 4096;
const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

/// What the masters say, for ever.
struct Map(Arc<VolumeMap>);

impl MapSource for Map {
    fn version(&self) -> u64 {
        1
    }

    fn current(&self) -> Arc<VolumeMap> {
        self.0.clone()
    }

    fn refresh(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(ready(()))
    }
}

/// Three copies of one volume of 128 MiB.
#[derive(Default)]
struct Nodes {
    blocks: RefCell<BTreeMap<(NodeId, u64), Vec<u8>>>,
    away: RefCell<BTreeSet<NodeId>>,
}

impl Nodes {
    fn open(self: &Rc<Self>) -> Medium {
        let geometry = Geometry {
            block_bytes: BLOCK as u32,
            metadata_bytes: 0,
            stripe_unit_blocks: 64,
            chunk_blocks: 1 << 15,
            region_blocks: 64,
            copies: 3,
            minimum: 2,
            group_chunks: vec![1],
        };
        let mut chunks = ChunkMap::new(1);
        let members = NODES.map(|node| Membership {
            node,
            incarnation: Incarnation(1),
        });
        let config = ChunkConfig {
            epoch: Epoch(1),
            write_node: NODES[0],
            members: members.to_vec(),
        };
        chunks.update(ChunkIndex(0), config).unwrap();
        let map = Map(Arc::new(VolumeMap { geometry, chunks }));
        let device = VolumeDevice::new(
            VolumeNumber(1),
            Arc::new(map),
            Sessions::starting_at(1),
            Arc::new(|| unreachable!("the test opens with peers")),
            ClientOptions::default(),
        );
        let channel = Rc::new(device.open_with(Rc::new(Links(self.clone()))));
        Medium::new(channel.clone()).with_copies(Rc::new(Copies::new(channel)))
    }

    /// A block that has these bytes.
    fn block_with(&self, bytes: &[u8]) -> u64 {
        let blocks = self.blocks.borrow();
        let has = |block: &[u8]| block.windows(bytes.len()).any(|part| part == bytes);
        blocks.iter().find(|(_, block)| has(block)).unwrap().0.1
    }

    /// Turns all bits of a block of a node's copy round.
    fn spoil(&self, node: NodeId, lba: u64) {
        let mut blocks = self.blocks.borrow_mut();
        let block = blocks.get_mut(&(node, lba)).unwrap();
        block.iter_mut().for_each(|byte| *byte = !*byte);
    }

    fn is_away(&self, node: NodeId, is_away: bool) {
        match is_away {
            true => self.away.borrow_mut().insert(node),
            false => self.away.borrow_mut().remove(&node),
        };
    }

    fn serve(&self, node: NodeId, command: &NativeCommand, data: &mut Data) {
        let first = command.fields.first_lba.0;
        let mut blocks = self.blocks.borrow_mut();
        match (command.operation, data) {
            (NativeOperation::Read, Data::Into(buffer)) => {
                for (lba, target) in (first..).zip(buffer.chunks_mut(BLOCK)) {
                    match blocks.get(&(node, lba)) {
                        Some(block) => target.copy_from_slice(block),
                        None => target.fill(0),
                    }
                }
            }
            (NativeOperation::Write { .. }, Data::From(buffer)) => {
                for (lba, block) in (first..).zip(buffer.chunks(BLOCK)) {
                    for node in NODES {
                        blocks.insert((node, lba), block.to_vec());
                    }
                }
            }
            // What is given back is not looked at again here.
            _ => {}
        }
    }
}

struct Links(Rc<Nodes>);

impl Peers for Links {
    fn submit(&self, node: NodeId, _: u64, command: NativeCommand, _: Place, mut data: Data, reply: Reply) {
        if self.0.away.borrow().contains(&node) {
            return reply.answer(PeerStatus::Unreachable, data);
        }
        self.0.serve(node, &command, &mut data);
        reply.answer(PeerStatus::Answered(Status::Done), data);
    }
}

async fn read(medium: &Medium, name: &str) -> Result<Vec<u8>, String> {
    let leases = Rc::new(LocalLeases::new());
    let reader = Reader::open(medium.clone(), leases, &ReaderOptions::default())
        .await
        .map_err(|error| error.to_string())?;
    let found = reader.read_many(&[Target::Path(name.as_bytes())]).await;
    let content = found.into_iter().next().unwrap();
    content
        .map(|content| content.to_vec())
        .map_err(|error| error.to_string())
}

async fn writer(medium: &Medium) -> Result<Writer, OpenError> {
    let options = WriterOptions::default();
    Writer::open(medium.clone(), Rc::new(LocalLeases::new()), &options).await
}

async fn add(writer: &mut Writer, name: &str, bytes: &[u8]) {
    let attributes = FormatOptions::default().root;
    let made = writer.create_file(InodeNumber::ROOT, name.as_bytes(), &attributes, bytes);
    made.await.unwrap();
    writer.commit().await.unwrap();
}

#[test]
fn bytes_are_no_damage_while_a_copy_that_may_have_them_is_away() {
    Simulation::new(1).run(async {
        let nodes = Rc::new(Nodes::default());
        let medium = nodes.open();
        let leases = Rc::new(LocalLeases::new());
        format(medium.clone(), leases, "a formatter", &FormatOptions::default())
            .await
            .unwrap();
        let mut first = writer(&medium).await.unwrap();
        add(&mut first, "old", &[3; 5000]).await;
        add(&mut first, "new", &[7; 5000]).await;
        first.close().await.unwrap();

        // Content: wrong on two copies.
        let content = nodes.block_with(&[7; 1000]);
        nodes.spoil(NODES[0], content);
        nodes.spoil(NODES[1], content);
        nodes.is_away(NODES[0], true);
        assert_eq!(read(&medium, "new").await.unwrap(), [7; 5000], "the third has it");
        nodes.is_away(NODES[0], false);
        nodes.is_away(NODES[2], true);
        let told = read(&medium, "new").await.unwrap_err();
        assert!(told.contains("cannot serve"), "{told}");
        nodes.is_away(NODES[2], false);
        assert_eq!(read(&medium, "new").await.unwrap(), [7; 5000]);

        // The newest superblock: the same.
        let generation = |&address: &u64| {
            let blocks = nodes.blocks.borrow();
            let block = &blocks[&(NODES[0], address / BLOCK as u64)];
            Superblock::decode(block, address).unwrap().generation
        };
        let newest = SUPERBLOCK_ADDRESSES.into_iter().max_by_key(generation).unwrap() / BLOCK as u64;
        nodes.spoil(NODES[0], newest);
        nodes.spoil(NODES[1], newest);
        nodes.is_away(NODES[2], true);
        let before = nodes.blocks.borrow().clone();
        let refused = writer(&medium).await.err();
        assert!(
            matches!(
                refused,
                Some(OpenError::SuperblockAway { address, source: IoError::Unavailable })
                    if address == newest * BLOCK as u64
            ),
            "it gives up nothing: {refused:?}"
        );
        let options = FsckOptions {
            repair: true,
            ..FsckOptions::default()
        };
        let repaired = fsck(&medium, Rc::new(LocalLeases::new()), &options, &mut |_| {}).await;
        assert!(
            matches!(repaired, Err(FsckError::Away(IoError::Unavailable))),
            "{repaired:?}"
        );
        assert!(*nodes.blocks.borrow() == before, "nothing was written");
        nodes.is_away(NODES[2], false);
        let mut second = writer(&medium).await.unwrap();
        add(&mut second, "newer", &[8; 5000]).await;
        second.close().await.unwrap();
        for (name, byte) in [("old", 3), ("new", 7), ("newer", 8)] {
            assert_eq!(read(&medium, name).await.unwrap(), [byte; 5000], "{name}");
        }

        // What every copy has wrong is damage.
        nodes.spoil(NODES[2], content);
        let told = read(&medium, "new").await.unwrap_err();
        assert!(told.contains("damaged in every copy"), "{told}");
    });
}
