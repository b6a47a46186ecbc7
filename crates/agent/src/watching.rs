//! What the masters commit, as a node hears of it.

use proto::client::Client;
use proto::v1;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::patience::RETRY_PAUSE;

/// Messages that were received and not taken in yet.
const QUEUE: usize = 64;

/// The masters' changes, in order. Ends with the life it belongs to.
pub(crate) struct Watching<F> {
    /// Begins to follow, from the beginning.
    begin: F,
    follower: Follower,
    news: mpsc::Receiver<v1::WatchResponse>,
    /// The last hold that was heard of; 0 before the first.
    hold: u64,
}

/// Ends when it is dropped, also where its stream is cut off.
struct Follower(JoinHandle<()>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// All changes that a node has to hear of, from the beginning.
pub(crate) fn of_node(
    client: Client,
    node: Vec<u8>,
) -> Watching<impl Fn(mpsc::Sender<v1::WatchResponse>) -> JoinHandle<()>> {
    Watching::new(move |news| tokio::spawn(watch(client.clone(), node.clone(), news)))
}

impl<F: Fn(mpsc::Sender<v1::WatchResponse>) -> JoinHandle<()>> Watching<F> {
    fn new(begin: F) -> Self {
        let (sender, news) = mpsc::channel(QUEUE);
        let follower = Follower(begin(sender));
        Self {
            begin,
            follower,
            news,
            hold: 0,
        }
    }

    /// What comes next; never an end. May be given up and called again.
    pub(crate) async fn next(&mut self) -> v1::WatchResponse {
        match self.news.recv().await {
            Some(news) => news,
            // A follower ends with its receiver, which is here.
            None => std::future::pending().await,
        }
    }

    /// A heartbeat was answered with this hold. If it is a new one, what was not taken in yet is dropped and the masters' changes are
    /// followed anew: an engine that stood still may have some of masters before these, whose store is not theirs. It must not reach
    /// the target after the target was asked how its copies are (`docs/decisions/0107`).
    pub(crate) fn heard_of(&mut self, hold: u64) {
        if hold != 0 && hold != self.hold {
            let (sender, news) = mpsc::channel(QUEUE);
            self.follower = Follower((self.begin)(sender));
            self.news = news;
            self.hold = hold;
        }
    }
}

/// Follows the masters' changes, and begins again when the stream ends.
async fn watch(client: Client, node: Vec<u8>, news: mpsc::Sender<v1::WatchResponse>) {
    let mut known = 0;
    loop {
        let scope = v1::watch_request::Scope::Node(node.clone());
        match client.watch(scope, known).await {
            Ok(mut stream) => {
                let end = loop {
                    let response = match stream.message().await {
                        Ok(Some(response)) => response,
                        Ok(None) => break None,
                        Err(status) => break Some(status),
                    };
                    if response.complete {
                        known = response.revision;
                    }
                    if news.send(response).await.is_err() {
                        return;
                    }
                };
                if let Some(status) = end {
                    let (code, message) = (status.code(), status.message());
                    tracing::info!(?code, message, known, "the masters' changes are followed anew");
                }
            }
            Err(error) => tracing::warn!(%error, "the masters' changes cannot be followed"),
        }
        sleep(RETRY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::sync::Notify;

    use super::*;

    /// Each follower says its own number, three times, and stays.
    #[tokio::test(flavor = "current_thread")]
    async fn what_masters_before_a_hold_said_is_not_heard_after_it() {
        let (begun, said) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let (count, all_said) = (Arc::clone(&begun), Arc::clone(&said));
        let mut watching = Watching::new(move |news| {
            let revision = count.fetch_add(1, Ordering::Relaxed) + 1;
            let all_said = Arc::clone(&all_said);
            tokio::spawn(async move {
                for _ in 0..3 {
                    let response = v1::WatchResponse {
                        revision,
                        ..v1::WatchResponse::default()
                    };
                    if news.send(response).await.is_err() {
                        return;
                    }
                }
                all_said.notify_one();
                std::future::pending::<()>().await;
            })
        });
        said.notified().await;
        assert_eq!(watching.next().await.revision, 1);
        // No hold, and one that is known already, change nothing.
        watching.heard_of(0);
        assert_eq!(watching.next().await.revision, 1);
        watching.heard_of(7);
        let again = tokio::time::timeout(std::time::Duration::from_secs(10), said.notified()).await;
        assert!(again.is_ok(), "the changes are not followed anew");
        assert_eq!(watching.next().await.revision, 2);
        watching.heard_of(7);
        assert_eq!(watching.next().await.revision, 2);
        watching.heard_of(0);
        assert_eq!(watching.next().await.revision, 2);
        watching.heard_of(8);
        assert_eq!(watching.next().await.revision, 3);
        assert_eq!(begun.load(Ordering::Relaxed), 3);
    }
}
