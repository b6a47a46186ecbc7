//! The controller's end of an authentication.

use std::sync::Arc;

use zeroize::Zeroizing;

use super::group::{Entropy, ExchangeError, Group, KeyPair};
use super::hash::{CryptoError, HashFunction, same};
use super::message::{self, Challenge, Kind, Negotiate, Reason, Reply, Success1};
use super::response::Exchange;
use super::{Keys, Names, Policy};

/// One authentication of one queue. Made anew for each.
#[derive(Debug)]
pub struct Controller {
    names: Names,
    /// The host knows one of them.
    keys: Vec<Arc<Keys>>,
    policy: Policy,
    /// T_ID, as the host chose it.
    transaction: u16,
    state: State,
}

/// What is due.
enum State {
    /// The host sends AUTH_Negotiate.
    Negotiate,
    /// The host fetches the challenge.
    Challenge(HashFunction, Group),
    /// The host sends its reply.
    Reply(Asked),
    /// The host fetches Success1, with the answer to its own challenge if it sent one.
    Success1(HashFunction, Option<Zeroizing<Vec<u8>>>),
    /// The host says that it believes us, or not.
    Success2,
    /// Nothing: each side has proved what was asked.
    Passed,
    /// The host fetches AUTH_Failure1.
    Failure1(Reason),
    /// Nothing: the host knows that it failed, or we know that it does not believe us.
    Failed(Reason),
}

/// A challenge that waits for its answer.
struct Asked {
    hash: HashFunction,
    challenge: Vec<u8>,
    sequence: u32,
    pair: Option<KeyPair>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            State::Negotiate => "Negotiate",
            State::Challenge(..) => "Challenge",
            State::Reply(_) => "Reply",
            State::Success1(..) => "Success1",
            State::Success2 => "Success2",
            State::Passed => "Passed",
            State::Failure1(_) => "Failure1",
            State::Failed(_) => "Failed",
        })
    }
}

/// Why a message is not taken: something that the host is told, or something of our own.
enum Refusal {
    Reason(Reason),
    Crypto(CryptoError),
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::Reason(reason)
    }
}

impl From<CryptoError> for Refusal {
    fn from(error: CryptoError) -> Self {
        Self::Crypto(error)
    }
}

impl From<ExchangeError> for Refusal {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::BadValue { .. } => Self::Reason(Reason::IncorrectPayload),
            ExchangeError::Crypto(error) => Self::Crypto(error),
        }
    }
}

impl Controller {
    /// An authentication that has not begun.
    pub fn new(names: Names, keys: Arc<Keys>, policy: Policy) -> Self {
        Self::with_any(names, vec![keys], policy)
    }

    /// One of a host that knows one of several keys: while one takes another's place. Each costs a hash.
    pub fn with_any(names: Names, keys: Vec<Arc<Keys>>, policy: Policy) -> Self {
        Self {
            names,
            keys,
            policy,
            transaction: 0,
            state: State::Negotiate,
        }
    }

    /// Whether all that was to be proved is.
    pub fn has_passed(&self) -> bool {
        matches!(self.state, State::Passed)
    }

    /// Why it failed, once the host knows it: the connection is to end now.
    pub fn failure(&self) -> Option<Reason> {
        match self.state {
            State::Failed(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether the next message, sent or fetched, may take milliseconds of arithmetic.
    pub fn is_laborious(&self) -> bool {
        match &self.state {
            State::Challenge(_, group) => *group != Group::Null,
            State::Reply(asked) => asked.pair.is_some(),
            _ => false,
        }
    }

    /// Takes what the host sends with Authentication Send. What is wrong with it the host learns when it fetches the
    /// next message.
    ///
    /// # Errors
    /// [`CryptoError`]; the authentication has failed then.
    pub fn take(&mut self, sent: &[u8]) -> Result<(), CryptoError> {
        // Whatever goes wrong below: nothing that came before it counts any more.
        let state = std::mem::replace(&mut self.state, State::Failure1(Reason::Failed));
        match self.next(state, sent) {
            Ok(next) => self.state = next,
            Err(Refusal::Reason(reason)) => self.state = State::Failure1(reason),
            Err(Refusal::Crypto(error)) => return Err(error),
        }
        Ok(())
    }

    fn next(&mut self, state: State, sent: &[u8]) -> Result<State, Refusal> {
        let (kind, transaction) = message::kind(sent)?;
        if matches!(state, State::Negotiate) {
            // Failures before it are told under this number, too.
            self.transaction = transaction;
        } else if transaction != self.transaction {
            return Err(Reason::IncorrectPayload.into());
        }
        match (state, kind) {
            (State::Negotiate, Kind::Negotiate) => self.choose(&Negotiate::decode(sent)?),
            (State::Reply(asked), Kind::Reply) => self.check(&asked, sent),
            (State::Success2, Kind::Success2) if message::is_success2(sent) => Ok(State::Passed),
            (State::Success2, Kind::Success2) => Err(Reason::IncorrectPayload.into()),
            (_, Kind::Failure2) => Ok(State::Failed(message::failure_reason(sent)?)),
            _ => Err(Reason::IncorrectMessage.into()),
        }
    }

    fn choose(&self, negotiate: &Negotiate) -> Result<State, Refusal> {
        if negotiate.secure_channel != 0 {
            return Err(Reason::SecureChannelMismatch.into());
        }
        let (hashes, groups) = negotiate.lists.as_ref().ok_or(Reason::ProtocolNotUsable)?;
        let mut own = self.policy.hashes.iter();
        let hash = own.find(|hash| hashes.contains(&hash.id()));
        let mut own = self.policy.groups.iter();
        let group = own.find(|group| groups.contains(&group.id()));
        Ok(State::Challenge(
            *hash.ok_or(Reason::HashNotUsable)?,
            *group.ok_or(Reason::GroupNotUsable)?,
        ))
    }

    fn check(&self, asked: &Asked, sent: &[u8]) -> Result<State, Refusal> {
        let hash = asked.hash;
        let reply = Reply::decode(sent, hash)?;
        if reply.challenge.is_some() && reply.sequence == 0 {
            return Err(Reason::IncorrectPayload.into());
        }
        let shared = match &asked.pair {
            Some(pair) => Some(pair.shared(reply.value)?),
            None if reply.value.is_empty() => None,
            None => return Err(Reason::IncorrectPayload.into()),
        };
        let shared = shared.as_ref().map(|shared| &shared[..]);
        let exchange = Exchange {
            hash,
            sequence: asked.sequence,
            transaction: self.transaction,
            challenge: &asked.challenge,
            shared,
        };
        let mut known = None;
        for keys in &self.keys {
            let wanted = exchange.of_host(&keys.host, &self.names)?;
            if same(&wanted, reply.response) {
                known = Some(keys);
            }
        }
        let known = known.ok_or(Reason::Failed)?;
        let response = match (reply.challenge, &known.controller) {
            (None, _) => None,
            // The host wants a proof that we cannot give.
            (Some(_), None) => return Err(Reason::Failed.into()),
            (Some(challenge), Some(secret)) => {
                let exchange = Exchange {
                    sequence: reply.sequence,
                    challenge,
                    ..exchange
                };
                Some(exchange.of_controller(secret, &self.names)?)
            }
        };
        Ok(State::Success1(hash, response))
    }

    /// What the host gets with Authentication Receive. `sequence` becomes that of a challenge; it is not 0 and not one
    /// that was used before.
    ///
    /// # Errors
    /// [`CryptoError`]; the authentication has failed then.
    pub fn give(&mut self, sequence: u32, entropy: Entropy<'_>) -> Result<Vec<u8>, CryptoError> {
        let state = std::mem::replace(&mut self.state, State::Failed(Reason::Failed));
        let reason = match state {
            State::Challenge(hash, group) => return self.ask(hash, group, sequence, entropy),
            State::Success1(hash, response) => {
                let message = Success1::encode(
                    self.transaction,
                    hash,
                    response.as_ref().map(|response| &response[..]),
                );
                self.state = if response.is_some() {
                    State::Success2
                } else {
                    State::Passed
                };
                return Ok(message);
            }
            State::Failure1(reason) | State::Failed(reason) => reason,
            State::Negotiate | State::Reply(_) | State::Success2 | State::Passed => Reason::IncorrectMessage,
        };
        self.state = State::Failed(reason);
        Ok(message::failure(Kind::Failure1, self.transaction, reason))
    }

    fn ask(
        &mut self,
        hash: HashFunction,
        group: Group,
        sequence: u32,
        entropy: Entropy<'_>,
    ) -> Result<Vec<u8>, CryptoError> {
        let mut challenge = vec![0; hash.bytes()];
        entropy(&mut challenge)?;
        let pair = match group {
            Group::Null => None,
            group => Some(KeyPair::generate(group, entropy)?),
        };
        let value = pair.as_ref().map_or(&[][..], KeyPair::public);
        let ids = (hash.id(), group.id());
        let message = Challenge::encode(self.transaction, ids, sequence, &challenge, value);
        self.state = State::Reply(Asked {
            hash,
            challenge,
            sequence,
            pair,
        });
        Ok(message)
    }
}
