//! The node's certificate, renewed by the masters before it ends.
//!
//! The node shows the one that it has, makes a new key, and gets a certificate for that, with the roots of now. It does so when a
//! third of the certificate's life is left, and when the authority is being rotated: then the masters have other roots or
//! another issuer. What runs takes the new files with its next connection. SIGHUP has it look at once.

use std::convert::Infallible;
use std::path::Path;
use std::time::{Duration, Instant};

use identity::{AuthorityError, Credentials, CredentialsError, Files, Identity, JoiningError, unix_now};
use proto::client::{Client, ClientError};
use proto::{joining, v1};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

use crate::Config;

/// How often the masters are asked for their roots, and a certificate is looked at that holds for long.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// The same failure is said again after so long.
const MENTION: Duration = Duration::from_secs(86_400);

/// What ends within so many days and cannot be renewed is spoken of.
const WARNING_DAYS: i64 = 30;

/// Why a certificate was not renewed.
#[derive(Debug, Error)]
enum RenewalError {
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error(transparent)]
    Masters(#[from] ClientError),
    #[error("what the masters say of their roots cannot be read: {0}")]
    Roots(#[from] JoiningError),
    #[error(
        "it ends soon, and the masters have no issuer to renew it with; start them with --issuer (\"redhare ca issuer\"), or renew it with \"redhare ca renew\""
    )]
    NoIssuer,
    #[error(transparent)]
    Write(#[from] AuthorityError),
}

/// Renews the node's certificate each time that it is due, for ever.
pub(crate) async fn keep_valid(config: &Config) -> Infallible {
    let files = config.masters.credentials.as_ref();
    let place = files.and_then(|files| Some((files, files.certificate.parent()?)));
    let Some((files, directory)) = place.filter(|_| config.renews_credentials) else {
        return std::future::pending().await;
    };
    let mut told: Option<(String, Instant)> = None;
    // A system that gives none has it look by time alone.
    let mut hangups = signal(SignalKind::hangup()).ok();
    loop {
        let hangup = async {
            match &mut hangups {
                Some(hangups) => hangups.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep(pause(files)) => {}
            Some(()) = hangup => tracing::info!("the certificate is looked at, as SIGHUP asks"),
        }
        match look(config, files, directory).await {
            Ok(None) => {}
            Ok(Some(identity)) => {
                told = None;
                tracing::info!(
                    days = identity.days_left(),
                    "the masters have renewed this node's certificate"
                );
            }
            Err(error) => {
                let text = error.to_string();
                let is_new = told
                    .as_ref()
                    .is_none_or(|(said, when)| *said != text || when.elapsed() >= MENTION);
                if is_new {
                    tracing::warn!(
                        "the certificate {} is not renewed: {text}",
                        files.certificate.display()
                    );
                    told = Some((text, Instant::now()));
                }
            }
        }
    }
}

/// Until the certificate is looked at again: the sooner, the less of it is left.
fn pause(files: &Files) -> Duration {
    let left = match Credentials::load(files) {
        Ok(own) => u64::try_from(own.identity().not_after - unix_now()).unwrap_or(0),
        // It has ended, or cannot be read: it is somebody's to put another one there.
        Err(_) => 600,
    };
    Duration::from_secs(left / 10).clamp(Duration::from_secs(1), LOOK_EVERY)
}

/// Renews what is due; none if nothing is.
async fn look(config: &Config, files: &Files, directory: &Path) -> Result<Option<Identity>, RenewalError> {
    let own = Credentials::load(files)?;
    let client = Client::connect(&config.masters).await?;
    let answer = client.roots(v1::GetRootsRequest {}).await?;
    if !own.is_due() && !own.is_superseded(&answer.roots, &answer.issuer)? {
        return Ok(None);
    }
    if answer.issuer.is_empty() {
        // Then people renew it, who need not hear of it so early.
        return match own.identity().days_left() < WARNING_DAYS {
            true => Err(RenewalError::NoIssuer),
            false => Ok(None),
        };
    }
    let issued = joining::renew(&client, &own).await?;
    issued.write(directory)?;
    Ok(Some(issued.identity))
}
