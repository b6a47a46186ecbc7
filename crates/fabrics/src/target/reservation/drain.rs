//! Ends what preempted hosts have begun on a namespace (Preempt and Abort; NVM Express Base Specification 2.0c,
//! section 8.19).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reactor::mailbox::{Mailbox, MailboxSender, mailbox};
use reactor::time;

use super::state::HostId;
use crate::target::queue::Order;
use crate::target::share::QueueShare;
use crate::target::subsystem::Subsystem;

/// Between two attempts to give a queue its order, while another drain has it.
const PAUSE: Duration = Duration::from_millis(1);

/// Returns when no command of these hosts on the namespace is left that began before: those that wait are aborted,
/// those that a device has have ended. What they send from now on meets the reservation as it is.
pub(in crate::target) async fn drain(subsystem: &Arc<Subsystem>, nsid: u32, hosts: &[HostId]) {
    if hosts.is_empty() {
        return;
    }
    let mut drains = Vec::new();
    for controller in subsystem.controllers() {
        if hosts.contains(&controller.host().id) {
            for (orders, share) in controller.queues_to_drain() {
                drains.extend(begin(&orders, share, nsid).await);
            }
        }
    }
    for mut drain in drains {
        // Nothing comes from a connection that has ended, and nothing of it is below.
        let _ = drain.ended.recv().await;
    }
}

struct Drain {
    ended: Mailbox<()>,
    /// Lets the next drain of the queue in when this one is dropped.
    _turn: Turn,
}

/// The right to have an order of this kind in a queue's mailbox.
struct Turn(Arc<QueueShare>);

impl Turn {
    fn take(share: &Arc<QueueShare>) -> Option<Self> {
        (!share.draining.swap(true, Ordering::AcqRel)).then(|| Self(share.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.draining.store(false, Ordering::Release);
    }
}

/// `None` if the queue is gone.
async fn begin(orders: &MailboxSender<Order>, share: Arc<QueueShare>, nsid: u32) -> Option<Drain> {
    while !orders.is_closed() {
        if let Some(turn) = Turn::take(&share) {
            let (sender, ended) = mailbox(1);
            if orders.try_send(Order::Drain(nsid, sender)).is_ok() {
                return Some(Drain { ended, _turn: turn });
            }
        }
        time::sleep(PAUSE).await;
    }
    None
}
