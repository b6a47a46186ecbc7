//! What the masters commit, as a node hears of it.

use proto::client::Client;
use proto::v1;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::masters::RETRY_PAUSE;

/// Ends with the life it belongs to, also when that is cut off.
pub(crate) struct Watching(tokio::task::JoinHandle<()>);

impl Watching {
    /// What changes goes to `news`, from the beginning.
    pub(crate) fn begin(client: Client, node: Vec<u8>, news: mpsc::Sender<v1::WatchResponse>) -> Self {
        Self(tokio::spawn(watch(client, node, news)))
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Follows the masters' changes, and begins again when the stream ends.
async fn watch(client: Client, node: Vec<u8>, news: mpsc::Sender<v1::WatchResponse>) {
    let mut known = 0;
    loop {
        let scope = v1::watch_request::Scope::Node(node.clone());
        match client.watch(scope, known).await {
            Ok(mut stream) => {
                while let Ok(Some(response)) = stream.message().await {
                    if response.complete {
                        known = response.revision;
                    }
                    if news.send(response).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => tracing::warn!(%error, "the masters' changes cannot be followed"),
        }
        sleep(RETRY_PAUSE).await;
    }
}
