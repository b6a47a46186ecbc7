//! The host's end of an authentication.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::group::{Entropy, ExchangeError, Group, KeyPair};
use super::hash::{CryptoError, HashFunction, same};
use super::message::{self, Challenge, Kind, Negotiate, Reason, Reply, Success1};
use super::response::Exchange;
use super::{Keys, Names, Policy};

/// Why an authentication failed, at a host.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HostError {
    /// The controller says so.
    #[error("the controller refuses: {0}")]
    Refused(Reason),
    /// The controller's message is not taken.
    #[error("the controller's answer is refused: {0}")]
    Wrong(Reason),
    /// The controller was asked to prove that it knows its secret, and did not.
    #[error("the controller did not prove that it knows its secret")]
    NoProof,
    /// See [`CryptoError`].
    #[error(transparent)]
    Crypto(#[from] CryptoError),
}

impl From<Reason> for HostError {
    fn from(reason: Reason) -> Self {
        Self::Wrong(reason)
    }
}

impl From<ExchangeError> for HostError {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::BadValue { .. } => Self::Wrong(Reason::IncorrectPayload),
            ExchangeError::Crypto(error) => Self::Crypto(error),
        }
    }
}

impl HostError {
    /// What is told to the controller; `None` if it knows.
    fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused(_) => None,
            Self::Wrong(reason) => Some(*reason),
            Self::NoProof | Self::Crypto(_) => Some(Reason::Failed),
        }
    }
}

/// What a host does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this, then fetch the next message.
    Reply(Vec<u8>),
    /// Send this if it is something; then the queue may be used.
    Passed(Option<Vec<u8>>),
}

/// One authentication of one queue. Made anew for each.
#[derive(Debug)]
pub struct Host {
    names: Names,
    keys: Arc<Keys>,
    policy: Policy,
    transaction: u16,
    state: State,
}

enum State {
    /// The challenge is to be fetched.
    Challenge,
    /// Success1 is to be fetched, with this answer to our challenge if we made one.
    Success1(HashFunction, Option<Zeroizing<Vec<u8>>>),
    Ended,
}

impl std::fmt::Debug for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            State::Challenge => "Challenge",
            State::Success1(..) => "Success1",
            State::Ended => "Ended",
        })
    }
}

impl Host {
    /// An authentication under a transaction identifier that no other of this association has. The controller has to
    /// prove who it is if there is a secret for it.
    pub fn new(names: Names, keys: Arc<Keys>, policy: Policy, transaction: u16) -> Self {
        Self {
            names,
            keys,
            policy,
            transaction,
            state: State::Challenge,
        }
    }

    /// The first message. When it is sent, the challenge is to be fetched.
    pub fn negotiate(&self) -> Vec<u8> {
        let hashes: Vec<u8> = self.policy.hashes.iter().map(|hash| hash.id()).collect();
        let groups: Vec<u8> = self.policy.groups.iter().map(|group| group.id()).collect();
        Negotiate::encode(self.transaction, &hashes, &groups)
    }

    /// Whether the message that is fetched next may take milliseconds of arithmetic.
    pub fn is_laborious(&self) -> bool {
        matches!(self.state, State::Challenge) && self.policy.groups.iter().any(|group| *group != Group::Null)
    }

    /// Takes what was fetched with Authentication Receive. `sequence` becomes that of our challenge; it is not 0 and not
    /// one that was used before.
    ///
    /// # Errors
    /// [`HostError`]: the authentication has failed; see [`Host::complaint`].
    pub fn take(&mut self, fetched: &[u8], sequence: u32, entropy: Entropy<'_>) -> Result<Step, HostError> {
        let state = std::mem::replace(&mut self.state, State::Ended);
        let (kind, transaction) = message::kind(fetched)?;
        if kind == Kind::Failure1 {
            return Err(HostError::Refused(message::failure_reason(fetched)?));
        }
        if transaction != self.transaction {
            return Err(Reason::IncorrectPayload.into());
        }
        match (state, kind) {
            (State::Challenge, Kind::Challenge) => {
                self.reply(&Challenge::decode(fetched)?, sequence, entropy)
            }
            (State::Success1(hash, wanted), Kind::Success1) => {
                let success = Success1::decode(fetched, hash)?;
                match (wanted, success.response) {
                    (None, _) => Ok(Step::Passed(None)),
                    (Some(wanted), Some(response)) if same(&wanted, response) => {
                        Ok(Step::Passed(Some(message::success2(self.transaction))))
                    }
                    _ => Err(HostError::NoProof),
                }
            }
            _ => Err(Reason::IncorrectMessage.into()),
        }
    }

    fn reply(
        &mut self,
        asked: &Challenge<'_>,
        sequence: u32,
        entropy: Entropy<'_>,
    ) -> Result<Step, HostError> {
        let hash = HashFunction::from_id(asked.header.hash).filter(|hash| self.policy.hashes.contains(hash));
        let hash = hash.ok_or(Reason::HashNotUsable)?;
        let group = Group::from_id(asked.header.group).filter(|group| self.policy.groups.contains(group));
        let group = group.ok_or(Reason::GroupNotUsable)?;
        if asked.challenge.len() != hash.bytes() || asked.value.len() != group.bytes() {
            return Err(Reason::IncorrectPayload.into());
        }
        let pair = match group {
            Group::Null => None,
            group => Some(KeyPair::generate(group, entropy)?),
        };
        let shared = match &pair {
            None => None,
            Some(pair) => Some(pair.shared(asked.value)?),
        };
        let shared = shared.as_ref().map(|shared| &shared[..]);
        let exchange = Exchange {
            hash,
            sequence: asked.header.sequence,
            transaction: self.transaction,
            challenge: asked.challenge,
            shared,
        };
        let response = exchange.of_host(&self.keys.host, &self.names)?;
        let value = pair.as_ref().map_or(&[][..], KeyPair::public);
        let (challenge, wanted) = match &self.keys.controller {
            None => (None, None),
            Some(secret) => {
                let mut challenge = vec![0; hash.bytes()];
                entropy(&mut challenge)?;
                let exchange = Exchange {
                    sequence,
                    challenge: &challenge,
                    ..exchange
                };
                let wanted = exchange.of_controller(secret, &self.names)?;
                (Some(challenge), Some(wanted))
            }
        };
        let sequence = if challenge.is_some() { sequence } else { 0 };
        self.state = State::Success1(hash, wanted);
        Ok(Step::Reply(Reply::encode(
            self.transaction,
            sequence,
            &response,
            challenge.as_deref(),
            value,
        )))
    }

    /// What to send after an error; `None` if the controller knows.
    pub fn complaint(&self, error: &HostError) -> Option<Vec<u8>> {
        let reason = error.reason()?;
        Some(message::failure(Kind::Failure2, self.transaction, reason))
    }
}
