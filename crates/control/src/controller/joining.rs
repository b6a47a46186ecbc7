//! Join tokens: records with a hash of each secret, and each use taken by a comparison, so that there are never more than a
//! token is for, whoever asks which master at the same time (`docs/decisions/0086`).
//!
//! Tokens end by the calendar, since people give them to each other: `now_unix_s` is the master's wall clock.

use std::time::Duration;

use crate::controller::volumes::shown;
use crate::controller::{ATTEMPTS_MAX, Controller, Stored, contended};
use crate::error::ControlError;
use crate::identity::{JoinTokenId, NodeId, Uuid};
use crate::keys;
use crate::model::{JoinRole, JoinToken};
use crate::record::Record;
use crate::store::{MetadataStore, Transaction};

/// The most uses of one token: each leaves the hash of a key in its record.
pub const JOIN_USES_MAX: u32 = 1000;
/// The most tokens that are there at a time and have not expired.
const TOKENS_MAX: usize = 1024;
/// The longest that a token serves.
const LIFE_MAX: Duration = Duration::from_secs(366 * 86_400);
/// The longest that a certificate holds that is had by one.
const CERTIFICATE_MAX: Duration = Duration::from_secs(3660 * 86_400);
/// How long an expired token is still shown.
const KEPT: Duration = Duration::from_secs(7 * 86_400);
/// Longest common name of a certificate (X.520, ub-common-name).
const NAME_BYTES_MAX: usize = 64;

/// What token is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateJoinToken {
    /// Drawn at random.
    pub id: JoinTokenId,
    /// SHA-256 of its secret.
    pub secret_sha256: [u8; 32],
    /// What its bearer becomes.
    pub role: JoinRole,
    /// The name that its bearer gets; of a node its UUID. Empty if that follows from the bearer's key.
    pub name: String,
    /// How often it serves.
    pub uses: u32,
    /// How long it serves.
    pub life: Duration,
    /// How long the certificates hold that are had by it.
    pub certificate_term: Duration,
    /// Who makes it.
    pub creator: String,
}

impl CreateJoinToken {
    fn check(&self) -> Result<(), ControlError> {
        let refuse = |field, problem, remedy| {
            Err(ControlError::Argument {
                field,
                problem,
                remedy,
            })
        };
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
        if self.name.len() > NAME_BYTES_MAX || !self.name.chars().all(fits) {
            let problem = format!(
                "has {} bytes, or characters that do not belong there",
                self.name.len()
            );
            return refuse(
                "name",
                problem,
                "use 1 to 64 letters, digits, '.', '_', '-' and '@'",
            );
        }
        if self.role == JoinRole::Node && !self.name.is_empty() {
            if self.name.parse::<Uuid>().is_err() {
                let problem = format!("is \"{}\", which is no node's", self.name);
                return refuse(
                    "name",
                    problem,
                    "give the UUID that \"redhare status\" shows, or none for a new node",
                );
            }
            if self.uses != 1 {
                let problem = format!("is {} for the name of one node", self.uses);
                return refuse("uses", problem, "use 1, or give no name");
            }
        }
        if !(1..=JOIN_USES_MAX).contains(&self.uses) {
            return refuse("uses", format!("is {}", self.uses), "use 1 to 1000");
        }
        let second = Duration::from_secs(1);
        if !(second..=LIFE_MAX).contains(&self.life) {
            let problem = format!("is {} s", self.life.as_secs());
            return refuse("expires", problem, "use 1 s to 366 days");
        }
        if !(second..=CERTIFICATE_MAX).contains(&self.certificate_term) {
            let problem = format!("is {} s", self.certificate_term.as_secs());
            return refuse("certificate_lasts", problem, "use 1 s to 3660 days");
        }
        Ok(())
    }
}

impl<S: MetadataStore> Controller<S> {
    /// Makes a token. Those that expired more than a week ago are forgotten.
    ///
    /// # Errors
    /// What cannot be meant, and [`ControlError::JoinTokensMax`].
    pub fn create_join_token(
        &mut self,
        create: &CreateJoinToken,
        now_unix_s: u64,
    ) -> Result<JoinToken, ControlError> {
        create.check()?;
        let token = JoinToken {
            id: create.id,
            secret_sha256: create.secret_sha256,
            role: create.role,
            name: create.name.clone(),
            uses: create.uses,
            created_unix_s: now_unix_s,
            expires_unix_s: now_unix_s.saturating_add(create.life.as_secs()),
            certificate_term: create.certificate_term,
            creator: create.creator.clone(),
            joined: Vec::new(),
        };
        let tokens = self.join_tokens()?;
        let is_over = |token: &&JoinToken| token.expires_unix_s.saturating_add(KEPT.as_secs()) < now_unix_s;
        for over in tokens.iter().filter(is_over) {
            self.revoke_join_token(over.id)?;
        }
        let count = tokens
            .iter()
            .filter(|token| token.expires_unix_s > now_unix_s)
            .count();
        if count >= TOKENS_MAX {
            return Err(ControlError::JoinTokensMax { count });
        }
        let key = keys::join_token(token.id);
        let mut transaction = Transaction::new();
        // An id that is drawn twice is as unlikely as a guessed secret.
        transaction
            .compare(key.clone(), 0)
            .put(key.clone(), token.encode(&key));
        match self.commit(&transaction)? {
            true => Ok(token),
            false => Err(contended()),
        }
    }

    /// Every token, in the order in which they were made.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn join_tokens(&self) -> Result<Vec<JoinToken>, ControlError> {
        let mut tokens = Vec::new();
        let end = keys::end_of(keys::JOIN_TOKENS);
        self.read_range::<JoinToken>(keys::JOIN_TOKENS.to_vec(), &end, |_, stored| {
            tokens.push(stored.record);
        })?;
        tokens.sort_by_key(|token| (token.created_unix_s, token.id));
        Ok(tokens)
    }

    /// Forgets a token: nobody joins by it any more. Who has joined stays.
    ///
    /// # Errors
    /// [`ControlError::NoSuchJoinToken`].
    pub fn revoke_join_token(&mut self, id: JoinTokenId) -> Result<(), ControlError> {
        let key = keys::join_token(id);
        for _ in 0..ATTEMPTS_MAX {
            let Some(stored) = self.read::<JoinToken>(&key)? else {
                return Err(ControlError::NoSuchJoinToken { id });
            };
            let mut transaction = Transaction::new();
            transaction
                .compare(key.clone(), stored.revision)
                .delete(key.clone());
            if self.commit(&transaction)? {
                return Ok(());
            }
        }
        Err(contended())
    }

    /// Takes a use of a token for the holder of a key, who may repeat it: one use for each key. `asked` is the name that
    /// the holder has already, empty if none.
    ///
    /// # Errors
    /// The token is not known with this secret, has expired, is used up, or is for another name; or it is that of a node
    /// that was removed.
    pub fn join(
        &mut self,
        id: JoinTokenId,
        secret_sha256: &[u8; 32],
        key_sha256: &[u8; 32],
        asked: &str,
        now_unix_s: u64,
    ) -> Result<JoinToken, ControlError> {
        let key = keys::join_token(id);
        for _ in 0..ATTEMPTS_MAX {
            let stored = self.read::<JoinToken>(&key)?;
            let known = stored.filter(|stored| stored.record.secret_sha256 == *secret_sha256);
            let Some(Stored { mut record, revision }) = known else {
                return Err(ControlError::JoinTokenUnknown { id });
            };
            if record.expires_unix_s <= now_unix_s {
                let ago = Duration::from_secs(now_unix_s - record.expires_unix_s);
                return Err(ControlError::JoinTokenExpired { id, ago });
            }
            if !asked.is_empty() && asked != record.name {
                let asked = shown(asked);
                return Err(ControlError::JoinTokenName { id, asked });
            }
            if let (JoinRole::Node, Ok(node)) = (record.role, record.name.parse()) {
                self.check_not_removed(NodeId(node))?;
            }
            // Its answer was lost.
            if record.joined.contains(key_sha256) {
                return Ok(record);
            }
            if record.uses_left() == 0 {
                let uses = record.uses;
                return Err(ControlError::JoinTokenUsedUp { id, uses });
            }
            record.joined.push(*key_sha256);
            let mut transaction = Transaction::new();
            transaction
                .compare(key.clone(), revision)
                .put(key.clone(), record.encode(&key));
            if self.commit(&transaction)? {
                return Ok(record);
            }
        }
        Err(contended())
    }
}
