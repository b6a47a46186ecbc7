//! What a node does for chunks that nobody uses: counted, not timed.

use std::collections::VecDeque;
use std::time::Duration;

use foundation::{Epoch, Instant};

use crate::configuration::{ChunkConfig, Membership};
use crate::geometry::Geometry;
use crate::identity::*;
use crate::message::{Message, WriteKind};
use crate::node::NodeCore;
use crate::output::{Operation, Output, Request, Status};
use crate::record::ChunkRecord;
use crate::settings::Settings;

const NODES: u128 = 3;

/// Three nodes that share all chunks, over a network and disks that take no time.
struct Cluster {
    now: Instant,
    cores: Vec<NodeCore>,
    messages: u64,
    done: u64,
}

impl Cluster {
    fn new(chunks: u32) -> Self {
        Self::with_settings(chunks, Settings::default())
    }

    fn with_settings(chunks: u32, settings: Settings) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        let geometry = Geometry {
            block_bytes: 4096,
            metadata_bytes: 0,
            stripe_unit_blocks: 16,
            chunk_blocks: 64,
            region_blocks: 16,
            copies: 3,
            minimum: 2,
            group_chunks: vec![chunks],
        };
        let core = |n| NodeCore::new(now, NodeId(n), Incarnation(1), settings);
        let mut cluster = Self {
            now,
            cores: (1..=NODES).map(core).collect(),
            messages: 0,
            done: 0,
        };
        for index in 0..chunks {
            for core in &mut cluster.cores {
                core.add_copy(
                    now,
                    ChunkRecord::new(ClusterId(1), chunk(index), geometry.clone()),
                    true,
                );
            }
            let members = (1..=NODES).map(|node| Membership {
                node: NodeId(node),
                incarnation: Incarnation(1),
            });
            let config = ChunkConfig {
                epoch: Epoch(1),
                write_node: NodeId(1 + u128::from(index) % NODES),
                members: members.collect(),
            };
            for core in &mut cluster.cores {
                core.handle_configuration(now, chunk(index), &config);
            }
            cluster.deliver();
        }
        cluster
    }

    /// Does what the cores want done until they want nothing more.
    fn deliver(&mut self) {
        loop {
            let mut work = VecDeque::new();
            for (at, core) in self.cores.iter_mut().enumerate() {
                while let Some(output) = core.poll_output() {
                    work.push_back((at, output.chunk, output.output));
                }
            }
            if work.is_empty() {
                return;
            }
            for (at, chunk, output) in work {
                self.carry_out(at, chunk.unwrap_or_default(), output);
            }
        }
    }

    fn carry_out(&mut self, at: usize, chunk: ChunkId, output: Output) {
        let now = self.now;
        match output {
            Output::Persist { token, .. } => self.cores[at].handle_persisted(now, chunk, token),
            Output::LocalWrite { io, .. }
            | Output::LocalRead { io, .. }
            | Output::LocalSnapshot { io, .. }
            | Output::LocalFlush { io } => {
                self.cores[at].handle_local(now, chunk, io, true, None);
            }
            // Whoever is left out here stays out.
            Output::Send {
                message: Message::Return { .. },
                ..
            } => {}
            Output::Send { to, message, .. } => {
                self.messages += 1;
                let from = NodeId(at as u128 + 1);
                self.cores[to.0 as usize - 1].handle_message(now, from, message, None);
            }
            Output::Complete { status, .. } => {
                assert_eq!(status, Status::Done);
                self.done += 1;
            }
            Output::Release { .. } => {}
            Output::Propose { .. } | Output::Failed | Output::Lost { .. } => panic!("{output:?}"),
        }
    }

    /// Lets time pass, from one timeout to the next.
    fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while let Some(next) = self.cores.iter().filter_map(NodeCore::next_timeout).min()
            && next <= end
        {
            self.now = self.now.max(next);
            for core in &mut self.cores {
                core.handle_timeout(self.now);
            }
            self.deliver();
        }
        self.now = end;
    }

    /// Chunks looked at and messages sent in a while.
    fn cost_of(&mut self, work: impl FnOnce(&mut Self)) -> (u64, u64) {
        let looked_at = |cluster: &Self| cluster.cores.iter().map(NodeCore::looked_at).sum::<u64>();
        let before = (looked_at(self), self.messages);
        work(self);
        (looked_at(self) - before.0, self.messages - before.1)
    }

    fn ask(&mut self, at: usize, index: u32, operation: Operation) {
        let request = Request {
            id: RequestId(1),
            operation,
            range: BlockRange { start: 0, count: 1 },
            epoch: Epoch(1),
            session: Session {
                host: HostId(1),
                number: 1,
            },
            writer_token: WriterToken(0),
            needs_room: false,
            trace: TraceId(0),
        };
        let now = self.now;
        self.cores[at].handle_request(now, chunk(index), request);
        self.deliver();
    }
}

fn chunk(index: u32) -> ChunkId {
    ChunkId {
        volume: VolumeNumber(1),
        index: ChunkIndex(index),
    }
}

#[test]
fn chunks_at_rest_are_not_looked_at() {
    let minute = Duration::from_secs(60);
    let idle = |chunks| {
        let mut cluster = Cluster::new(chunks);
        cluster.pass(minute);
        let cost = cluster.cost_of(|cluster| cluster.pass(minute));
        for index in 0..chunks {
            for core in &cluster.cores {
                assert!(
                    core.may_read(cluster.now, chunk(index)),
                    "chunk {index} is not served"
                );
            }
        }
        cost
    };
    let (looked_at, messages) = idle(3000);
    assert_eq!(looked_at, 0);
    // A beacon and a grant for each direction of a pair, whatever the number of chunks.
    let intervals = minute.as_millis() as u64 / Settings::default().beacon_interval.as_millis() as u64;
    assert!(
        (1..=(intervals + 1) * 12).contains(&messages),
        "{messages} messages in {intervals} intervals"
    );
    assert_eq!(idle(3), (looked_at, messages), "as with few chunks");
}

#[test]
fn chunks_at_rest_in_several_parts_are_not_looked_at_either() {
    let minute = Duration::from_secs(60);
    let idle = |list_chunks_max| {
        let settings = Settings {
            list_chunks_max,
            ..Settings::default()
        };
        let mut cluster = Cluster::with_settings(3000, settings);
        cluster.pass(minute);
        let cost = cluster.cost_of(|cluster| cluster.pass(minute));
        for index in 0..3000 {
            for core in &cluster.cores {
                assert!(core.may_read(cluster.now, chunk(index)), "chunk {index}");
            }
        }
        cost
    };
    let (looked_at, messages) = idle(3000);
    assert_eq!(looked_at, 0);
    let (looked_at, messages_of_parts) = idle(500);
    assert_eq!(looked_at, 0);
    // Six parts: six times as many beacons and answers, give or take one interval.
    let of_one_interval = 6 * 12;
    assert!(
        messages_of_parts.abs_diff(6 * messages) <= of_one_interval,
        "{messages_of_parts} messages with six parts, {messages} with one"
    );
}

#[test]
fn what_one_chunk_does_costs_nothing_for_the_others() {
    let cost = |chunks| {
        let mut cluster = Cluster::new(chunks);
        cluster.pass(Duration::from_secs(60));
        let cost = cluster.cost_of(|cluster| {
            let operation = Operation::Write {
                kind: WriteKind::Zeroes,
                data: None,
                force_unit_access: false,
                compares: false,
            };
            cluster.ask(0, 0, operation);
            cluster.pass(Duration::from_secs(60));
            cluster.ask(2, 0, Operation::Read);
        });
        assert_eq!(cluster.done, 2);
        cost
    };
    let (looked_at, messages) = cost(3000);
    assert!(looked_at < 200, "{looked_at} chunks looked at for one write");
    assert_eq!(cost(3), (looked_at, messages), "as with few chunks");
}

#[test]
fn a_new_configuration_is_asked_for_in_few_lists() {
    let mut cluster = Cluster::new(1000);
    cluster.pass(Duration::from_secs(60));
    // All chunks change at once: what is sent of them is a few lists, not one for each change.
    let members: Vec<Membership> = (1..=2)
        .map(|node| Membership {
            node: NodeId(node),
            incarnation: Incarnation(1),
        })
        .collect();
    let (looked_at, _) = cluster.cost_of(|cluster| {
        for index in 0..1000 {
            let config = ChunkConfig {
                epoch: Epoch(2),
                write_node: NodeId(1),
                members: members.clone(),
            };
            for core in &mut cluster.cores {
                core.handle_configuration(cluster.now, chunk(index), &config);
            }
            cluster.deliver();
        }
        cluster.pass(Duration::from_secs(10));
    });
    // Most of it are Seals sent again while node 3's grants run out.
    assert!(
        looked_at < 500_000,
        "{looked_at} chunks looked at for 1000 changes"
    );
    for index in 0..1000 {
        assert!(cluster.cores[0].may_read(cluster.now, chunk(index)));
        assert!(!cluster.cores[2].may_read(cluster.now, chunk(index)));
    }
}

#[test]
fn a_grant_that_is_refused_for_one_chunk_counts_for_the_others() {
    let mut cluster = Cluster::new(2);
    cluster.pass(Duration::from_secs(5));
    // Node 3 hears of a configuration of chunk 0 that leaves node 2 out, which nobody else hears of.
    let config = ChunkConfig {
        epoch: Epoch(2),
        write_node: NodeId(3),
        members: [1, 3]
            .map(|node| Membership {
                node: NodeId(node),
                incarnation: Incarnation(1),
            })
            .into(),
    };
    let now = cluster.now;
    cluster.cores[2].handle_configuration(now, chunk(0), &config);
    let seals = std::iter::from_fn(|| cluster.cores[2].poll_output());
    let seals = seals.filter(|o| {
        matches!(
            o.output,
            Output::Send {
                message: Message::Seal { .. },
                ..
            }
        )
    });
    assert_eq!(seals.count(), 1);
    cluster.now = now + Duration::from_secs(1);
    cluster.cores[1].handle_timeout(cluster.now);
    // Only node 3 hears node 2's beacon.
    let sent: Vec<_> = std::iter::from_fn(|| cluster.cores[1].poll_output()).collect();
    for output in sent {
        let Output::Send {
            to: NodeId(3),
            message,
            ..
        } = output.output
        else {
            continue;
        };
        cluster.cores[2].handle_message(cluster.now, NodeId(2), message, None);
    }
    while let Some(output) = cluster.cores[2].poll_output() {
        if let Output::Send {
            to: NodeId(2),
            message,
            ..
        } = output.output
        {
            cluster.cores[1].handle_message(cluster.now, NodeId(3), message, None);
        }
    }
    // Two seconds later what was granted before has ended, and what node 3 granted then has not.
    let later = now + Duration::from_secs(3);
    assert!(cluster.cores[1].may_read(later, chunk(1)));
    assert!(!cluster.cores[1].may_read(later, chunk(0)));
}

/// After a loss of power its disk did not come back, and the masters, who know lives and no disks, name this life as write node.
#[test]
fn a_write_node_without_a_copy_asks_for_another_one() {
    let (now, me) = (Instant::from_nanos(1_000_000_000), NodeId(1));
    let config = |epoch| ChunkConfig {
        epoch: Epoch(epoch),
        write_node: me,
        members: (1..=NODES)
            .map(|node| Membership {
                node: NodeId(node),
                incarnation: Incarnation(7),
            })
            .collect(),
    };
    let mut core = NodeCore::new(now, me, Incarnation(7), Settings::default());
    let wanted = |core: &mut NodeCore| {
        let outputs = std::iter::from_fn(|| core.poll_output());
        let proposed = outputs.filter_map(|output| match output.output {
            Output::Propose { expected, config, .. } => Some((expected, config)),
            _ => None,
        });
        proposed.collect::<Vec<_>>()
    };
    core.handle_configuration(now, chunk(0), &config(1));
    assert_eq!(wanted(&mut core), [], "its copy may not be made yet");
    core.handle_configuration(now, chunk(0), &config(5));
    let asked = wanted(&mut core);
    let [(expected, next)] = &asked[..] else {
        panic!("{asked:?}")
    };
    assert_eq!(
        (*expected, next.epoch, next.write_node),
        (Epoch(5), Epoch(6), NodeId(2))
    );
    assert_eq!((next.index_of(me), next.members.len()), (None, 2));
    // It has been heard before; and the masters may not have heard.
    core.handle_configuration(now, chunk(0), &config(5));
    assert_eq!(wanted(&mut core), []);
    let later = now + Settings::default().suspect_after * 4;
    assert!(core.next_timeout().is_some_and(|at| at <= later));
    core.handle_timeout(later);
    assert_eq!(wanted(&mut core), asked);
    // They have; or there is a copy after all.
    let mut other = core;
    other.handle_configuration(later, chunk(0), next);
    other.handle_timeout(later + Duration::from_secs(60));
    assert_eq!(wanted(&mut other), []);
    let mut earlier = config(5);
    earlier.members[0].incarnation = Incarnation(6);
    other.handle_configuration(later, chunk(1), &earlier);
    assert_eq!(wanted(&mut other), [], "that was another life");
}
