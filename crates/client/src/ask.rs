//! One command to one node, and its answer.

use std::cell::RefCell;
use std::rc::Rc;

use bdev::Data;
use reactor::sync::{OneshotSender, oneshot};
use volume::NodeId;
use volume::client::{Answer, AnswerSink, PeerStatus, Peers, Place, Reply};
use volume::message::codec::NativeCommand;

use crate::links::NodeLinks;

/// Sends a command that any association may carry, and waits for its answer; within a bounded time, since a silent node counts
/// as lost.
pub(crate) async fn ask(
    links: &NodeLinks,
    node: NodeId,
    command: NativeCommand,
    place: Place,
    data: Data,
) -> (PeerStatus, Data) {
    let (sender, receiver) = oneshot();
    let sink = Rc::new(Waiting(RefCell::new(Some(sender))));
    links.submit(node, 0, command, place, data, Reply::new(sink, 0));
    receiver.await.unwrap_or((PeerStatus::Lost, Data::None))
}

struct Waiting(RefCell<Option<OneshotSender<(PeerStatus, Data)>>>);

impl AnswerSink for Waiting {
    fn answer(&self, _: u64, answer: Answer) {
        if let Some(sender) = self.0.borrow_mut().take() {
            sender.send((answer.status, answer.data));
        }
    }

    fn waits(&self, _: u64) -> bool {
        true
    }
}
