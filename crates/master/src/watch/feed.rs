//! What the masters commit, read once for everybody who watches.
//!
//! With a thousand nodes a configuration that changes concerns three of them and is news to all: read for each of them, a
//! node's loss would be thousands of records a thousand times. One task reads what has changed and hands it to all watches,
//! each of which takes what is its own. A watch that has missed something reads for itself.

use std::sync::Arc;
use std::time::Duration;

use control::{Changes, Scope};
use tokio::sync::broadcast;
use tonic::Status;

use super::scan::Scans;
use crate::engine::Engine;

/// Parts that wait for a slow watch; one that falls behind reads for itself.
const QUEUE: usize = 64;
/// What is committed within this time is read at once.
const PAUSE: Duration = Duration::from_millis(2);

/// Everything that was committed after one revision and up to another.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Who knows what was committed up to here knows all after this part.
    pub(super) from: u64,
    pub(super) changes: Changes,
}

impl Part {
    /// What was committed up to here is not known.
    fn unknown(revision: u64) -> Self {
        Self {
            from: revision,
            changes: Changes {
                revision,
                ..Changes::default()
            },
        }
    }
}

/// A part, or why there will be no more of them.
pub(super) type Item = Result<Arc<Part>, Status>;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    parts: broadcast::Sender<Item>,
    pub(super) scans: Scans,
}

impl Feed {
    /// Starts the tasks that read, which end with the engine. To be called within a tokio runtime.
    pub(crate) fn start(engine: &Engine) -> Self {
        let (parts, _) = broadcast::channel(QUEUE);
        tokio::spawn(follow(engine.clone(), parts.clone()));
        Self {
            parts,
            scans: Scans::start(engine.clone()),
        }
    }

    /// All parts from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Item> {
        self.parts.subscribe()
    }
}

/// Reads what is new, for as long as the engine lives.
async fn follow(engine: Engine, parts: broadcast::Sender<Item>) {
    let mut news = engine.news();
    // The reign in which this master leads, and what has been handed out of it.
    let mut known: Option<(u64, u64)> = None;
    loop {
        let now = *news.borrow_and_update();
        let from = known
            .filter(|(reign, _)| Some(*reign) == now.reign)
            .map(|(_, revision)| revision);
        if known.is_some() && from.is_none() {
            // Nobody watches yet, or everybody begins again.
            drop(parts.send(Err(Status::unavailable(
                "this master does not lead any more; watch at another one",
            ))));
        }
        known = match (now.reign, from) {
            (None, _) => None,
            (Some(reign), None) => {
                // Whoever began before knows less than that, perhaps: it reads for itself.
                drop(parts.send(Ok(Arc::new(Part::unknown(now.revision)))));
                Some((reign, now.revision))
            }
            (Some(reign), Some(from)) if from == now.revision => Some((reign, from)),
            (Some(reign), Some(from)) => match read(&engine, from, now.revision).await {
                Ok(part) => {
                    let revision = part.changes.revision;
                    drop(parts.send(Ok(Arc::new(part))));
                    Some((reign, revision))
                }
                Err(status) => {
                    drop(parts.send(Err(status)));
                    None
                }
            },
        };
        tokio::time::sleep(PAUSE).await;
        if news.changed().await.is_err() {
            let ending = Status::unavailable("this master is ending; watch at another one");
            drop(parts.send(Err(ending)));
            return;
        }
    }
}

/// What was committed after `from`, if it is known.
async fn read(engine: &Engine, from: u64, now: u64) -> Result<Part, Status> {
    let changes = engine
        .call(move |control, _| control.changes(Scope::All, from))
        .await?;
    Ok(match changes {
        Some(changes) => Part { from, changes },
        None => Part::unknown(now),
    })
}
