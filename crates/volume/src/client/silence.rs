//! Nodes that do not answer: a host that hangs or whose cable is cut says nothing, and its connections stay open until their
//! keep-alive ends, seconds later.
//!
//! A node is silent when it has attempts of ours and has answered none of them for [`super::ClientOptions::silence`]. One
//! that is merely slow answers something, and is left alone. Of a silent node,
//! - reads are taken back, buffer and all, and asked of another copy, as if the connection had been lost;
//! - writes wait until a newer map names another write node of their chunk. Then they count as lost: a new session, and
//!   again. Until then they may still be done, and nobody else would do them;
//! - further reads go elsewhere; one in a while finds out whether it answers again.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bdev::Data;
use foundation::Instant;
use reactor::time;

use super::channel::{Core, Waiting};
use super::peers::{Answer, AnswerSink, PeerStatus};
use crate::identity::NodeId;

/// How often the masters are asked for a newer map while a write waits for a silent node, and how often a read tries one.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// What was seen of a node that has attempts of ours.
struct Seen {
    answers: u64,
    /// It has answered nothing since.
    since: Instant,
    /// When it is tried again, if it is silent.
    try_at: Option<Instant>,
}

/// What was seen of all of them, and when.
#[derive(Default)]
pub(super) struct Silences {
    nodes: BTreeMap<NodeId, Seen>,
    looked: Instant,
    asked: Instant,
}

impl Silences {
    /// Looks at a node with attempts: whether it is silent, and whether it is to be tried again.
    fn look(&mut self, node: NodeId, answers: u64, now: Instant, limit: Duration) -> (bool, bool) {
        let seen = self.nodes.entry(node).or_insert(Seen {
            answers,
            since: now,
            try_at: None,
        });
        if seen.answers != answers {
            *seen = Seen {
                answers,
                since: now,
                try_at: None,
            };
        }
        if now.since(seen.since) < limit {
            return (false, false);
        }
        let is_due = seen.try_at.is_some_and(|at| at <= now);
        if is_due || seen.try_at.is_none() {
            seen.try_at = Some(now + ASK_AGAIN);
        }
        (true, is_due)
    }
}

impl Core {
    /// Takes care of nodes that are silent. To be called every `period` while there are attempts.
    pub(super) fn look_for_silence(self: &Rc<Self>, period: Duration) {
        let now = time::now();
        let nodes: Vec<NodeId> = {
            let attempts = self.attempts.borrow();
            let mut nodes: Vec<_> = attempts.iter().map(|(_, attempt)| attempt.route.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            nodes
        };
        let mut silences = self.silences.borrow_mut();
        let late = now.since(std::mem::replace(&mut silences.looked, now)) > period * 2;
        // Late, we did not run, or had nothing to wait for: answers may lie unread. A silent node is remembered while nothing
        // waits for it, so that it is tried in turn.
        silences
            .nodes
            .retain(|node, seen| seen.try_at.is_some() || (!late && nodes.contains(node)));
        let mut known: Vec<NodeId> = silences.nodes.keys().copied().chain(nodes).collect();
        known.sort_unstable();
        known.dedup();
        let mut silent = Vec::new();
        for node in known {
            let answers = self.chunks().answers(node);
            let (is_silent, try_now) = silences.look(node, answers, now, self.options.silence);
            if try_now {
                self.chunks().try_silent(node);
            } else if is_silent {
                silent.push(node);
            }
        }
        drop(silences);
        for node in silent {
            self.leave_silent(node, now);
        }
    }

    fn leave_silent(self: &Rc<Self>, node: NodeId, now: Instant) {
        let (mut reads, mut moved, mut must_ask) = (Vec::new(), Vec::new(), false);
        for (index, attempt) in &*self.attempts.borrow() {
            if attempt.route.node != node {
                continue;
            }
            let tag = attempt.tag(index);
            let waited_enough = now.since(attempt.sent) >= self.options.silence;
            let may = match &attempt.waiting {
                Waiting::First(_) => true,
                Waiting::Retry(_, may) => *may,
            };
            let elsewhere = || {
                let chunks = self.chunks();
                chunks.read_route_avoiding(attempt.chunk, &[node]).is_some()
            };
            if attempt.is_read {
                if waited_enough && may && elsewhere() {
                    reads.push(tag);
                }
                continue;
            }
            let route = self.write_route(attempt.chunk);
            if route.is_some_and(|route| route.epoch > attempt.route.epoch && route.node != node) {
                moved.push(tag);
            } else {
                must_ask = true;
            }
        }
        {
            let mut chunks = self.chunks();
            // A trial that nobody has made yet goes on.
            if !reads.is_empty() || !chunks.is_on_trial(node) {
                chunks.silent(node);
            }
        }
        let sink: Rc<dyn AnswerSink> = self.clone();
        let status = PeerStatus::Lost;
        for tag in reads {
            if let Some(data) = self.peers.take_back(node, &sink, tag) {
                self.answer(tag, Answer { status, data });
            }
        }
        for tag in moved {
            let data = Data::None;
            self.answer(tag, Answer { status, data });
        }
        let mut silences = self.silences.borrow_mut();
        if must_ask && now.since(silences.asked) >= ASK_AGAIN {
            silences.asked = now;
            drop(silences);
            self.refresh();
        }
    }
}
