//! Coming to a certificate: by a token, or by the one that ends.

use std::fmt;

use identity::{Credentials, Issued, JoinToken, Joining, unverified_connector};
use openssl::error::ErrorStack;
use openssl::ssl::SslConnector;
use openssl::x509::X509;
use tokio::time::{Duration, Instant, sleep, timeout};
use tonic::Request;
use tonic::transport::Channel;

use crate::client::{Client, ClientError, LEADER};
use crate::connect::{HEAD_START, check_address, first_of, open_stranger, unreachable};
use crate::secure::Stranger;
use crate::v1;
use crate::v1::joining_client::JoiningClient;

/// Longer than a master takes to answer.
const CALL_LIMIT: Duration = Duration::from_secs(15);
/// How long a master is looked for that can let somebody join, once one of the cluster has answered: longer than it takes
/// until another one leads.
const FAILOVER_LIMIT: Duration = Duration::from_secs(10);
/// What the master that leads has before the others are asked, too, whether it still does.
const LEADER_HEAD_START: Duration = Duration::from_secs(1);
/// Pause before the masters are asked again who leads.
const PAUSE: Duration = Duration::from_millis(200);

/// Somebody who comes to a certificate by a token, with a key that was made for it here. However often it asks, it is one who
/// joins: the masters know the key, and take one use of the token for it.
pub struct Joiner {
    addresses: Vec<String>,
    token: JoinToken,
    joining: Joining,
    request: v1::JoinRequest,
}

/// Without the secret.
impl fmt::Debug for Joiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joiner")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl Joiner {
    /// Makes the key. The masters are at `addresses` (`host:port`, several separated by commas); `name` is who one is already,
    /// or empty.
    ///
    /// # Errors
    /// Addresses that are none, or that no key can be made.
    pub fn new(addresses: &str, token: &JoinToken, name: &str) -> Result<Self, ClientError> {
        let joining = Joining::new().map_err(own)?;
        let request = v1::JoinRequest {
            id: token.id().0.to_vec(),
            secret: token.secret().to_vec(),
            request: joining.request().map_err(own)?,
            name: name.to_owned(),
        };
        let addresses: Vec<String> = addresses.split(',').map(|one| one.trim().to_owned()).collect();
        for address in &addresses {
            check_address(address)?;
        }
        Ok(Self {
            addresses,
            token: token.clone(),
            joining,
            request,
        })
    }

    /// Asks the masters for a certificate, and gives it with the key and the roots to trust. Nothing of the token is sent before
    /// a master has proved by the token's hash that it is one of that cluster. A master that follows names the one that leads;
    /// once one has answered they are asked for 10 s, since the one that led may just have died. May be called again.
    ///
    /// # Errors
    /// See [`ClientError`]. That no master answers is said at once.
    pub async fn join(&self) -> Result<Issued, ClientError> {
        let began = Instant::now();
        let mut leader = None::<String>;
        let mut has_met = false;
        loop {
            let error = match self.attempt(leader.take(), &mut has_met).await {
                Ok(Outcome::Joined(issued)) => return Ok(*issued),
                Ok(Outcome::Follows(address)) if check_address(&address).is_ok() => {
                    leader = Some(address);
                    ClientError::Unreachable {
                        addresses: self.addresses.join(","),
                        why: "they name a master that leads and does not answer".to_owned(),
                    }
                }
                Ok(Outcome::Follows(address)) => return Err(ClientError::Address { address }),
                Err(error) => error,
            };
            let is_passing = error.is_passing() && !matches!(error, ClientError::Untrusted { .. });
            if !has_met || !is_passing || began.elapsed() > FAILOVER_LIMIT {
                return Err(error);
            }
            sleep(PAUSE).await;
        }
    }

    /// At the first master that answers.
    async fn attempt(&self, leader: Option<String>, has_met: &mut bool) -> Result<Outcome, ClientError> {
        let head_start = match &leader {
            Some(_) => LEADER_HEAD_START,
            None => HEAD_START,
        };
        let order: Vec<String> = leader.iter().chain(&self.addresses).cloned().collect();
        let meeting = |address| meet(address, self.token.clone());
        let (address, (channel, root)) = first_of(order, head_start, meeting).await?;
        *has_met = true;
        let mut client = JoiningClient::new(channel);
        let answer = limited(&address, client.join(Request::new(self.request.clone()))).await?;
        match answer {
            Ok(answer) => {
                let v1::JoinResponse { certificates, roots } = answer.into_inner();
                let issued = self.joining.finish(&certificates, &roots, &[root]);
                let issued = issued.map_err(|error| ClientError::Untrusted {
                    address,
                    why: error.to_string(),
                })?;
                Ok(Outcome::Joined(Box::new(issued)))
            }
            Err(status) => {
                let named = status.metadata().get(LEADER);
                let named = named.and_then(|leader| leader.to_str().ok()).unwrap_or_default();
                match named.is_empty() || named == address {
                    true => Err(failure(&address, status)),
                    false => Ok(Outcome::Follows(named.to_owned())),
                }
            }
        }
    }
}

/// What a master has made of who joins.
enum Outcome {
    Joined(Box<Issued>),
    /// It does not lead; this one does.
    Follows(String),
}

/// A connection to a master that has proved to be one of the token's cluster, and the root by which it did.
async fn meet(address: String, token: JoinToken) -> Result<(Channel, X509), ClientError> {
    let roots = ask_roots(&address).await?;
    let (connector, root) = token.connector(&roots).map_err(|error| ClientError::Untrusted {
        address: address.clone(),
        why: error.to_string(),
    })?;
    Ok((open(&address, connector, true).await?, root))
}

/// As [`Joiner::join`], once.
///
/// # Errors
/// See [`ClientError`].
pub async fn join(addresses: &str, token: &JoinToken, name: &str) -> Result<Issued, ClientError> {
    Joiner::new(addresses, token, name)?.join().await
}

/// What whoever answers there says are the cluster's roots; nothing of it is to be believed.
async fn ask_roots(address: &str) -> Result<Vec<u8>, ClientError> {
    let connector = unverified_connector().map_err(own)?;
    let mut client = JoiningClient::new(open(address, connector, false).await?);
    let answer = limited(address, client.get_roots(Request::new(v1::GetRootsRequest {}))).await?;
    let answer = answer.map_err(|status| failure(address, status))?;
    Ok(answer.into_inner().roots)
}

async fn open(address: &str, connector: SslConnector, verifies: bool) -> Result<Channel, ClientError> {
    open_stranger(Stranger {
        address: address.to_owned(),
        connector,
        verifies,
    })
    .await
}

async fn limited<T>(address: &str, call: impl Future<Output = T>) -> Result<T, ClientError> {
    let silent = |_| ClientError::Unreachable {
        addresses: address.to_owned(),
        why: format!("it has not answered within {} s", CALL_LIMIT.as_secs()),
    };
    timeout(CALL_LIMIT, call).await.map_err(silent)
}

fn failure(address: &str, status: tonic::Status) -> ClientError {
    match std::error::Error::source(&status) {
        Some(cause) => unreachable(address, cause),
        None => status.into(),
    }
}

fn own(error: ErrorStack) -> ClientError {
    let why = format!("no key can be made: OpenSSL: {error}");
    ClientError::Credentials { why }
}

/// Another certificate for the node that `own` are the credentials of, with a new key, from the masters that `client` is
/// connected to as that node. With it come the roots to trust: of those that the masters have now, those that are among our
/// own, or for which one of these vouches.
///
/// # Errors
/// See [`ClientError`].
pub async fn renew(client: &Client, own_now: &Credentials) -> Result<Issued, ClientError> {
    let joining = Joining::new().map_err(own)?;
    let request = joining.request().map_err(own)?;
    let answer = client.renew_certificate(v1::RenewRequest { request }).await?;
    let issued = joining.finish(&answer.certificates, &answer.roots, own_now.authorities());
    issued.map_err(|error| ClientError::Untrusted {
        address: client.address(),
        why: error.to_string(),
    })
}
