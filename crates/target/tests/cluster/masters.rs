//! Masters played by a test, for as long as it goes on, and a client that follows them. They leave out who is silent, let in who is
//! asked for, hand a chunk over whose write node is back in another life, and name the new lives of members that have all ended.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use agentlink::{Configuration, FromTarget};
use bdev::Data;
use reactor::sim::Host;
use reactor::sync::channel;
use reactor::time;
use volume::Status;
use volume::message::codec::NativeOperation;

use crate::support::{Client, Cluster};

pub(super) const SLICE: Duration = Duration::from_millis(100);
/// A node that the masters have not heard of for so long is left out.
const SILENCE: Duration = Duration::from_millis(1200);
const MINIMUM: usize = 2;
/// An attempt without an answer is given up after this time, and its connection closed.
const ATTEMPT: Duration = Duration::from_millis(1500);

/// A node, and one of its lives.
pub(super) type Life = (usize, u64);

/// The configuration as the masters have committed it.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pub(super) epoch: u64,
    pub(super) write_node: usize,
    pub(super) members: Vec<Life>,
}

impl Map {
    /// The first one: all nodes, in the lives that they have.
    pub(super) fn first(cluster: &Cluster) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            epoch: 1,
            write_node: 0,
            members: (0..3).map(|node| (node, cluster.incarnation(node))).collect(),
        }))
    }

    pub(super) fn nodes(&self) -> Vec<usize> {
        self.members.iter().map(|(node, _)| *node).collect()
    }

    fn configuration(&self) -> Configuration {
        let members = self.members.iter();
        Configuration {
            epoch: self.epoch,
            write_node: 1 + self.write_node as u128,
            members: members.map(|&(node, life)| (1 + node as u128, life)).collect(),
        }
    }
}

type Proposals = Rc<RefCell<VecDeque<(u64, Configuration)>>>;

/// Takes what a node says to its agent.
async fn hear(node: Rc<target::node::Node>, proposals: Proposals) {
    let (sender, mut receiver) = channel(64);
    node.set_agent(sender);
    drop(node);
    while let Some(message) = receiver.recv().await {
        if let FromTarget::Propose {
            expected,
            configuration,
            ..
        } = message
        {
            proposals.borrow_mut().push_back((expected, configuration));
        }
    }
}

pub(super) struct Masters<'a> {
    cluster: &'a Cluster,
    map: Rc<RefCell<Map>>,
    proposals: Proposals,
    /// For how long each node has not been heard.
    silent: [Duration; 3],
    /// Nodes that the masters cannot hear for another reason than that they are not there.
    unheard: [bool; 3],
    /// The life of each node that is listened to.
    listened: [u64; 3],
    slices: u64,
}

impl<'a> Masters<'a> {
    pub(super) fn new(cluster: &'a Cluster, map: &Rc<RefCell<Map>>) -> Self {
        Self {
            cluster,
            map: map.clone(),
            proposals: Proposals::default(),
            silent: [Duration::ZERO; 3],
            unheard: [false; 3],
            listened: [0; 3],
            slices: 0,
        }
    }

    /// Whether heartbeats of a node are lost.
    pub(super) fn set_unheard(&mut self, node: usize, is_unheard: bool) {
        self.unheard[node] = is_unheard;
    }

    pub(super) fn pass(&mut self, duration: Duration) {
        for _ in 0..duration.as_millis() / SLICE.as_millis() {
            self.listen();
            self.cluster.simulation.run_for(SLICE);
            for node in 0..3 {
                self.silent[node] = match self.is_there(node) && !self.unheard[node] {
                    true => Duration::ZERO,
                    false => self.silent[node] + SLICE,
                };
            }
            let is_changed = self.decide();
            if is_changed || self.slices.is_multiple_of(5) {
                self.tell();
            }
            self.slices += 1;
        }
    }

    /// Whether all nodes are members, each in the life that it has.
    pub(super) fn has_all(&self) -> bool {
        let members = &self.map.borrow().members;
        let is_member = |node: usize| members.contains(&(node, self.cluster.incarnation(node)));
        (0..3).all(|node| self.is_there(node) && is_member(node))
    }

    fn is_there(&self, node: usize) -> bool {
        self.cluster.simulation.is_powered(self.cluster.hosts[node])
            && self.cluster.node_if_started(node).is_some()
    }

    /// The life of a node that the masters take for alive.
    fn life_of(&self, node: usize) -> Option<u64> {
        let is_heard = self.silent[node] < SILENCE && self.cluster.node_if_started(node).is_some();
        is_heard.then(|| self.cluster.incarnation(node))
    }

    /// Listens to what a node asks for in each of its lives.
    fn listen(&mut self) {
        for node in 0..3 {
            let life = self.cluster.incarnation(node);
            if self.listened[node] == life || !self.is_there(node) {
                continue;
            }
            self.listened[node] = life;
            let (heard, proposals) = (self.cluster.node(node), self.proposals.clone());
            let host = self.cluster.hosts[node];
            self.cluster
                .simulation
                .start(host, move || hear(heard, proposals));
        }
    }

    /// Tells whoever is heard, whether it is a member or not.
    fn tell(&self) {
        let configuration = self.map.borrow().configuration();
        for node in (0..3).filter(|&node| self.is_there(node) && self.life_of(node).is_some()) {
            self.cluster.tell_configuration(node, &configuration);
        }
    }

    /// Does what a write node asks for, and leaves out who is silent.
    fn decide(&mut self) -> bool {
        let mut map = self.map.borrow_mut();
        let before = map.epoch;
        for (expected, asked) in self.proposals.borrow_mut().drain(..) {
            let members = asked.members.iter();
            let members: Vec<Life> = members.map(|(node, life)| (*node as usize - 1, *life)).collect();
            let is_known = |life: &Life| map.members.contains(life) || self.life_of(life.0) == Some(life.1);
            let least = MINIMUM.min(map.members.len());
            if expected == map.epoch && members.len() >= least && members.iter().all(is_known) {
                map.epoch += 1;
                map.members = members;
                map.write_node = asked.write_node as usize - 1;
            }
        }
        if let Some((write_node, members)) = self.next(&map) {
            map.epoch += 1;
            map.write_node = write_node;
            map.members = members;
        }
        map.epoch > before
    }

    /// What takes the place of a configuration of which members are silent.
    fn next(&self, map: &Map) -> Option<(usize, Vec<Life>)> {
        let lives = |life: &&Life| self.life_of(life.0) == Some(life.1);
        let returned = |life: &&Life| self.life_of(life.0).is_some_and(|now| now > life.1);
        let living: Vec<Life> = map.members.iter().filter(lives).copied().collect();
        let is_led = living.iter().any(|(node, _)| *node == map.write_node);
        if map.members.iter().filter(returned).count() == map.members.len() {
            // A new life proves that the one before has ended.
            let members = map.nodes().into_iter();
            let members: Vec<Life> = members
                .map(|node| (node, self.cluster.incarnation(node)))
                .collect();
            return Some((members[map.epoch as usize % members.len()].0, members));
        }
        if living.len() == map.members.len() || living.is_empty() {
            return None;
        }
        if living.len() >= MINIMUM {
            let write_node = if is_led { map.write_node } else { living[0].0 };
            return Some((write_node, living));
        }
        // Nobody can be left out. Who has ended is replaced by its next life, under a write node that lives.
        let is_here = |life: &Life| lives(&life) || returned(&life);
        let is_handed = !is_led && map.members.iter().all(is_here);
        is_handed.then(|| (living[0].0, map.members.clone()))
    }
}

/// A client that goes where the masters say, and begins a new session where it does not know what has become of an attempt.
pub(super) struct Follower {
    number: u64,
    session: u64,
    hosts: Vec<Host>,
    clients: BTreeMap<usize, Client>,
}

impl Follower {
    pub(super) fn new(number: u64, hosts: Vec<Host>) -> Self {
        Self {
            number,
            session: 1,
            hosts,
            clients: BTreeMap::new(),
        }
    }

    /// A newer one than before once nobody knows whether an attempt was done.
    pub(super) fn session(&self) -> u64 {
        self.session
    }

    /// One attempt at a node under an epoch; none if it is not done, or nobody knows whether it is. With what came back, whether the blocks
    /// held what was expected, if anything was.
    pub(super) async fn attempt(
        &mut self,
        (node, epoch): (usize, u64),
        operation: NativeOperation,
        (lba, blocks): (u64, u32),
        data: Data,
    ) -> Option<(Data, bool)> {
        if !self.clients.contains_key(&node) {
            let connecting = Client::connect_as(self.number, self.hosts[node], node, self.session);
            let client = time::timeout(Duration::from_secs(1), connecting)
                .await
                .ok()?
                .ok()?;
            self.clients.insert(node, client);
        }
        let running = self.clients[&node].run(operation, epoch, lba, blocks, data);
        match time::timeout(ATTEMPT, running).await {
            Ok((status @ (Status::Done | Status::Differs), data)) => Some((data, status == Status::Done)),
            Ok((Status::Unknown | Status::StaleSession, _)) | Err(_) => {
                // It may still be done: only a newer session keeps it from being done later.
                self.session += 1;
                self.clients.clear();
                None
            }
            Ok(_) => None,
        }
    }
}
