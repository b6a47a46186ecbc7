//! Authentication of a queue, after its Connect (NVM Express Base Specification 2.0c, section 8.13).

use std::sync::atomic::{AtomicU16, Ordering};

use bdev::Data;
use protocols::auth::{
    AuthenticationCommand, CryptoError, Host, HostError, MESSAGE_BYTES_MAX, Names, Step, system_entropy,
};
use protocols::nvme::fabrics::ConnectAnswer;

use super::controller::{ConnectError, ConnectOptions};
use super::queue::Queue;
use crate::authentication::{elsewhere, next_sequence};

/// ATR of Connect's answer: the host must authenticate (section 6.3).
const AUTHENTICATION_REQUIRED: u16 = 1 << 1;
/// ASCR of Connect's answer: a secure channel must follow (section 6.3).
const SECURE_CHANNEL_REQUIRED: u16 = 1 << 2;

/// Why host and target did not come to know each other.
#[derive(Debug, thiserror::Error)]
pub enum AuthenticationError {
    /// The target wants a proof and there is nothing to prove it with.
    #[error("the target requires authentication; name this host's key (dhchap_key)")]
    NoKey,
    /// The target is to prove who it is, and does not authenticate.
    #[error(
        "the target asks for no authentication, and so does not prove who it is; give this host a key there, or leave \
         the controller's key (dhchap_ctrlr_key) out"
    )]
    NotAsked,
    /// The target wants TLS to follow.
    #[error("the target requires a secure channel after authentication, which is not supported")]
    SecureChannel,
    /// It went wrong.
    #[error("{0}; check that both ends have the same keys, and see the target's log")]
    Failed(#[from] HostError),
    /// There is no thread to do the arithmetic.
    #[error("this system starts no thread to authenticate with; see its limits")]
    NoThread,
}

impl From<CryptoError> for AuthenticationError {
    fn from(error: CryptoError) -> Self {
        Self::Failed(error.into())
    }
}

/// Authenticates a queue, where the target or our keys ask for it.
pub(super) async fn authenticate(
    options: &ConnectOptions,
    queue: &Queue,
    answer: ConnectAnswer,
) -> Result<(), ConnectError> {
    let failed = |why: AuthenticationError| ConnectError::Authentication {
        address: options.address,
        subsystem: options.subsystem.as_str().to_owned(),
        why,
    };
    if answer.authreq & SECURE_CHANNEL_REQUIRED != 0 {
        return Err(failed(AuthenticationError::SecureChannel));
    }
    let is_required = answer.authreq & AUTHENTICATION_REQUIRED != 0;
    let credentials = match &options.credentials {
        None if is_required => return Err(failed(AuthenticationError::NoKey)),
        None => return Ok(()),
        Some(credentials) => credentials,
    };
    if !is_required {
        return match credentials.keys.controller {
            None => Ok(()),
            Some(_) => Err(failed(AuthenticationError::NotAsked)),
        };
    }
    let names = Names {
        host: options.host.as_str().to_owned(),
        subsystem: options.subsystem.as_str().to_owned(),
    };
    let policy = options.authentication_policy.clone();
    let mut host = Host::new(names, credentials.keys.clone(), policy, next_transaction());
    send(options, queue, &host.negotiate()).await?;
    loop {
        let fetched = fetch(options, queue).await?;
        let step;
        (host, step) = take(host, fetched).await.map_err(failed)?;
        match step {
            Ok(Step::Reply(reply)) => send(options, queue, &reply).await?,
            Ok(Step::Passed(None)) => return Ok(()),
            Ok(Step::Passed(Some(last))) => return send(options, queue, &last).await,
            Err(error) => {
                if let Some(complaint) = host.complaint(&error) {
                    // The target ends the queue with or without it.
                    let _ = send(options, queue, &complaint).await;
                }
                return Err(failed(error.into()));
            }
        }
    }
}

/// An identifier that the authentications of the last while did not have.
fn next_transaction() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

type Taken = (Host, Result<Step, HostError>);

async fn take(mut host: Host, fetched: Vec<u8>) -> Result<Taken, AuthenticationError> {
    let sequence = next_sequence()?;
    let is_laborious = host.is_laborious();
    let take = move || {
        let step = host.take(&fetched, sequence, &mut system_entropy);
        (host, step)
    };
    if is_laborious {
        elsewhere(take).await.ok_or(AuthenticationError::NoThread)
    } else {
        Ok(take())
    }
}

async fn send(options: &ConnectOptions, queue: &Queue, message: &[u8]) -> Result<(), ConnectError> {
    let length = u32::try_from(message.len()).expect("messages are at most 4096 bytes");
    let command = AuthenticationCommand::send(length);
    let data = Data::From(options.buffer_of(message).await?);
    let sent = options.run(queue, "Authentication Send", command, data).await;
    sent.map(|_| ())
}

async fn fetch(options: &ConnectOptions, queue: &Queue) -> Result<Vec<u8>, ConnectError> {
    let command = AuthenticationCommand::receive(MESSAGE_BYTES_MAX as u32);
    let room = Data::Into(options.room(MESSAGE_BYTES_MAX).await?);
    let result = options
        .run_counted(queue, "Authentication Receive", command, room)
        .await?;
    let received = result.received_bytes;
    Ok(result.data.into_read()[..received].to_vec())
}
