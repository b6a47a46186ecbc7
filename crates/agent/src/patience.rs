//! How the engine waits: for masters that cannot be reached, and from one thing that it does all the time to the next.

use std::time::Duration;

use proto::client::{Client, ClientError, Masters};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use crate::supervise::AgentError;

/// Pause between attempts to reach the masters.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Connects to a master, for as long as it takes; addresses that are none and credentials that cannot be used are an answer.
pub(crate) async fn connect(masters: &Masters) -> Result<Client, AgentError> {
    let mut warned = false;
    loop {
        match Client::connect(masters).await {
            Ok(client) => return Ok(client),
            Err(error @ ClientError::Address { .. }) => return Err(AgentError::Masters(error)),
            Err(error @ ClientError::Credentials { .. }) => return Err(AgentError::Credentials(error)),
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(%error, "waiting for a master");
                }
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Repeats a call until a master answers; a refusal is an answer.
pub(crate) async fn patiently<T, F: Future<Output = Result<T, ClientError>>>(
    mut call: impl FnMut() -> F,
) -> Result<T, ClientError> {
    loop {
        match call().await {
            Err(error) if error.is_passing() => {
                tracing::warn!(%error, "a call to the masters is repeated");
                sleep(RETRY_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

/// Ticks of this period, none of which is made up for.
pub(crate) fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
