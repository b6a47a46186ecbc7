//! The end of a node in good order.

use std::rc::Rc;
use std::time::Duration;

use reactor::{spawn, time};

use super::Node;

/// How long the disks may take. Whoever supervises a target waits for 5 s.
const SYNC_LIMIT: Duration = Duration::from_secs(3);

impl Node {
    /// Answers nobody from now on, and makes what was written before durable on every disk: if all nodes of a cluster end together,
    /// what they have acknowledged is there when they come back, flushed or not. Waits for a slow disk no longer than 3 s, and names
    /// it then.
    pub async fn end(self: &Rc<Self>) {
        self.is_ending.set(true);
        let syncs: Vec<_> = (0..self.disk_count())
            .map(|disk| {
                let node = self.clone();
                spawn(async move { node.sync_at_end(disk).await })
            })
            .collect();
        for sync in syncs {
            // It has said itself how it went.
            let _ = sync.await;
        }
    }

    async fn sync_at_end(&self, disk: usize) {
        let store = self.copies.store(disk).clone();
        let all = async {
            // First of all what was written; then a release before may read the records.
            store.sync().await.map_err(|error| error.to_string())?;
            let settled = self.copies.settle(disk).await;
            settled.map_err(|error| format!("records of chunk copies stay in its journal: {error}"))
        };
        let why = match time::timeout(SYNC_LIMIT, all).await {
            Ok(Ok(())) => return,
            Ok(Err(why)) => why,
            Err(_) => format!("it takes longer than {} s", SYNC_LIMIT.as_secs()),
        };
        tracing::warn!(
            path = %self.copies.disks[disk].path.display(),
            %why,
            "a disk does not make all writes durable before this target ends: those that nobody has flushed may be lost on it"
        );
    }
}
