//! Coming to a certificate: by a token, or by the one that ends.

use identity::{Credentials, Issued, JoinToken, Joining, unverified_connector};
use openssl::error::ErrorStack;
use openssl::ssl::SslConnector;
use tokio::time::{Duration, timeout};
use tonic::Request;
use tonic::transport::Channel;

use crate::client::{Client, ClientError, LEADER};
use crate::connect::{check_address, open_stranger, unreachable};
use crate::secure::Stranger;
use crate::v1;
use crate::v1::joining_client::JoiningClient;

/// Longer than a master takes to answer.
const CALL_LIMIT: Duration = Duration::from_secs(15);
/// How often one goes on to the master that is said to lead.
const TURNS_MAX: usize = 4;

/// Joins the cluster that a token is for: makes a key here, asks one of the masters at `addresses` (`host:port`, several
/// separated by commas) for its certificate, and gives both with the roots to trust. Nothing of the token is sent before the
/// master has proved by the token's hash that it is one of that cluster. `name` is who one is already, or empty.
///
/// # Errors
/// See [`ClientError`].
pub async fn join(addresses: &str, token: &JoinToken, name: &str) -> Result<Issued, ClientError> {
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
    let mut last = None;
    for address in addresses {
        match join_at(address, token, &joining, &request).await {
            Ok(issued) => return Ok(issued),
            // Another one may answer. The key is the same: no second use is taken.
            Err(error) if error.is_passing() => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.expect("there is an address, if only an empty one, which is none"))
}

/// At one master, and from there on to the one that leads.
async fn join_at(
    address: String,
    token: &JoinToken,
    joining: &Joining,
    request: &v1::JoinRequest,
) -> Result<Issued, ClientError> {
    let mut address = address;
    for turn in 0.. {
        let roots = ask_roots(&address).await?;
        let untrusted = |why: String| ClientError::Untrusted {
            address: address.clone(),
            why,
        };
        let (connector, root) = token
            .connector(&roots)
            .map_err(|error| untrusted(error.to_string()))?;
        let mut client = JoiningClient::new(open(&address, connector, true).await?);
        let answer = limited(&address, client.join(Request::new(request.clone()))).await;
        let status = match answer? {
            Ok(answer) => {
                let v1::JoinResponse { certificates, roots } = answer.into_inner();
                let issued = joining.finish(&certificates, &roots, &[root]);
                return issued.map_err(|error| untrusted(error.to_string()));
            }
            Err(status) => status,
        };
        let leader = status.metadata().get(LEADER);
        let leader = leader.and_then(|leader| leader.to_str().ok()).unwrap_or_default();
        if turn >= TURNS_MAX || leader.is_empty() {
            return Err(failure(&address, status));
        }
        address = leader.to_owned();
        check_address(&address)?;
    }
    unreachable!("the turns are counted")
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
