//! A node with two disks, one of which comes and goes: an old copy on it does not pass for the one that was made on the other meanwhile,
//! whichever of the disks is opened first, and is deleted.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use agentlink::{Chunk, Configuration};
use foundation::ByteCount;
use reactor::sim::{Host, Simulation};
use reactor::time;
use target::node::{DiskConfig, Identity, Node, from_chunk, inventory, to_config};
use volume::{ChunkId, ClusterId, Incarnation, NodeId, Settings};

use crate::support::{DISK, VOLUME, geometry};

const CLUSTER: ClusterId = ClusterId(0xc1);

fn chunk() -> ChunkId {
    from_chunk(Chunk {
        volume: VOLUME,
        index: 0,
    })
}

fn disk(which: u128) -> DiskConfig {
    DiskConfig {
        path: PathBuf::from(format!("/disk{which}")),
        size: Some(ByteCount(32 << 20)),
        new_uuid: DISK + which,
        force: false,
    }
}

struct Machine {
    simulation: Simulation,
    host: Host,
    life: u64,
}

impl Machine {
    /// A life of the node with these disks, in which a copy is made on one of them unless it is there, and told a configuration of this
    /// epoch. Ends without power. Bytes that are free on each disk.
    fn live(&mut self, disks: &[u128], wanted: Option<(u128, u64)>) -> Vec<u64> {
        self.life += 1;
        let identity = Identity {
            cluster: CLUSTER,
            node: NodeId(1),
            incarnation: Incarnation(self.life),
        };
        let disks: Vec<DiskConfig> = disks.iter().map(|&which| disk(which)).collect();
        let slot = Rc::new(RefCell::new(None));
        let place = slot.clone();
        self.simulation.start(self.host, move || async move {
            let node = Node::start(identity, &disks, Settings::default()).await.unwrap();
            *place.borrow_mut() = Some(node.clone());
            if let Some((which, epoch)) = wanted {
                node.create_copy(chunk(), geometry(), DISK + which, true)
                    .await
                    .unwrap();
                // A copy that has nothing is a member in the first epoch only.
                for epoch in [1, epoch] {
                    let configuration = Configuration {
                        epoch,
                        write_node: 1,
                        members: vec![(1, identity.incarnation.0)],
                    };
                    node.configure(chunk(), to_config(&configuration));
                    time::sleep(Duration::from_secs(1)).await;
                }
            }
            std::future::pending::<()>().await;
        });
        self.simulation.run_for(Duration::from_secs(4));
        let node: Rc<Node> = slot.borrow_mut().take().expect("it has started");
        let free = node.disks().iter().map(|disk| disk.free_bytes).collect();
        drop(node);
        self.simulation.power_off(self.host);
        self.simulation.run_for(Duration::from_secs(1));
        free
    }

    /// The epochs of the copies on these disks, by disk, as the node would take them.
    fn found(&self, disks: &[u128]) -> Vec<(u128, u64)> {
        let disks: Vec<DiskConfig> = disks.iter().map(|&which| disk(which)).collect();
        let found = Rc::new(RefCell::new(Vec::new()));
        let put = found.clone();
        self.simulation.start(self.host, move || async move {
            let read = inventory(CLUSTER, &disks).await.unwrap();
            let copies = read.copies.iter();
            *put.borrow_mut() = copies
                .map(|copy| (copy.disk - DISK, copy.record.sealed.0))
                .collect();
        });
        self.simulation.run_for(Duration::from_secs(1));
        self.simulation.power_off(self.host);
        self.simulation.run_for(Duration::from_secs(1));
        found.take()
    }
}

#[test]
fn an_old_copy_on_a_disk_that_comes_back_gives_way_to_the_one_made_on_another() {
    for order in [[1, 2], [2, 1]] {
        let simulation = Simulation::new(7);
        let host = simulation.add_host("node");
        let mut machine = Machine {
            simulation,
            host,
            life: 0,
        };
        let empty = machine.live(&[1], None)[0];
        assert!(machine.live(&[1], Some((1, 5)))[0] < empty);
        // Without that disk the copy is made anew, and takes part in something later.
        machine.live(&[2], Some((2, 8)));
        assert_eq!(machine.found(&[1]), [(1, 5)]);
        assert_eq!(machine.found(&order), [(2, 8)], "{order:?}");
        // Looking deletes nothing.
        assert_eq!(machine.found(&[1]), [(1, 5)]);
        machine.live(&order, Some((2, 9)));
        assert_eq!(machine.found(&[1]), [], "{order:?}");
        assert_eq!(machine.found(&order), [(2, 9)], "{order:?}");
        assert_eq!(machine.live(&[1], None)[0], empty, "its room is free again");
    }
}
