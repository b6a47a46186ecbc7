//! Which cluster a call is for: one that names another cluster's is refused before anything is done.
//!
//! Without an authority nothing else tells masters apart that came to the same address one after the other: volumes have
//! the same numbers, and nodes that are asked may be the same machines (`docs/decisions/0114`).

use std::sync::{Arc, OnceLock};

use proto::client::{CLUSTER, LEADER};
use tonic::Status;
use tonic::codegen::http::HeaderMap;

use crate::engine::Engine;

/// The cluster of this master's store, read when a call asks for it first. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Whose {
    engine: Engine,
    own: Arc<OnceLock<String>>,
}

impl Whose {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine,
            own: Arc::default(),
        }
    }

    /// Refuses a call for another cluster. One that names none is for whoever answers.
    pub(crate) async fn check(&self, headers: &HeaderMap) -> Result<(), Status> {
        let Some(asked) = headers.get(CLUSTER) else {
            return Ok(());
        };
        let own = match self.own.get() {
            Some(own) => own,
            None => {
                let read = self.engine.read(|control, _| Ok(control.cluster()));
                let read = read.await.map_err(not_now)?;
                self.own.get_or_init(|| read.to_string())
            }
        };
        match asked.as_bytes() == own.as_bytes() {
            true => Ok(()),
            false => Err(refusal(&String::from_utf8_lossy(asked.as_bytes()), own)),
        }
    }
}

/// Nothing was done: another master may be asked the same.
fn not_now(mut status: Status) -> Status {
    status
        .metadata_mut()
        .insert(LEADER, tonic::metadata::MetadataValue::from_static(""));
    status
}

fn refusal(asked: &str, own: &str) -> Status {
    let mut status = Status::failed_precondition(format!(
        "this is a master of cluster {own}, and the call is for cluster {asked}; name the masters of {asked}"
    ));
    // A UUID's text is a header's value.
    if let Ok(own) = own.parse() {
        status.metadata_mut().insert(CLUSTER, own);
    }
    status
}
