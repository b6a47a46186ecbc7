//! Connections to masters: one, or the first of several that answers.
//!
//! Several are tried in their order, each with a head start before the next, as RFC 8305 (section 5) does with the addresses
//! of a host: a machine that is gone says nothing, and is waited for no longer than that while another one is there.
//! An attempt counts once the master has answered something. The kernel alone accepts connections, also for a process
//! that is stopped.

use std::future::Future;
use std::time::Duration;

use identity::{CredentialsError, Failure, Files};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::Request;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::client::ClientError;
use crate::secure::{Connector, Stranger};

pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// With the handshake, in which the master itself has to do something: the kernel alone accepts a plain connection.
const SECURE_CONNECT_LIMIT: Duration = Duration::from_secs(8);
/// What each master has before the next one is tried, too: the "Connection Attempt Delay" that RFC 8305 (section 8)
/// recommends.
pub(crate) const HEAD_START: Duration = Duration::from_millis(250);
/// Asked of a master that speaks plainly, for any answer: it has no such method, and says so without looking at
/// anything else. It is the method that gRPC has for this.
const GREETING: &str = "/grpc.health.v1.Health/Check";

/// Whether something is an address of a master.
///
/// # Errors
/// [`ClientError::Address`].
pub(crate) fn check_address(address: &str) -> Result<(), ClientError> {
    endpoint(address, false).map(drop)
}

/// Connects to a master that answers.
pub(crate) async fn open(address: &str, credentials: Option<&Files>) -> Result<Channel, ClientError> {
    let endpoint = endpoint(address, credentials.is_some())?;
    let Some(files) = credentials else {
        let greeted = async {
            let channel = endpoint.connect().await;
            let channel = channel.map_err(|error| unreachable(address, &error))?;
            greet(address, &channel).await?;
            Ok(channel)
        };
        let silent = |_| ClientError::Unreachable {
            addresses: address.to_owned(),
            why: "it does not answer".to_owned(),
        };
        return timeout(CONNECT_LIMIT, greeted).await.map_err(silent)?;
    };
    // This one counts as made when the master has written something.
    let connector = Connector {
        address: address.to_owned(),
        files: files.clone(),
    };
    let connected = endpoint.connect_with_connector(connector).await;
    connected.map_err(|error| unreachable(address, &error))
}

/// Connects to a master as somebody without a certificate.
pub(crate) async fn open_stranger(stranger: Stranger) -> Result<Channel, ClientError> {
    let address = stranger.address.clone();
    let connected = endpoint(&address, true)?.connect_with_connector(stranger).await;
    connected.map_err(|error| unreachable(&address, &error))
}

/// Waits for an answer of whatever sort.
async fn greet(address: &str, channel: &Channel) -> Result<(), ClientError> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| unreachable(address, &error))?;
    let path = PathAndQuery::from_static(GREETING);
    let answer = grpc.unary(Request::new(()), path, ProstCodec::<(), ()>::default());
    match answer.await {
        Err(status) => match std::error::Error::source(&status) {
            Some(cause) => Err(unreachable(address, cause)),
            None => Ok(()),
        },
        Ok(_) => Ok(()),
    }
}

/// What a person can act on of an error on the way to a master.
pub(crate) fn unreachable(address: &str, error: &(dyn std::error::Error + 'static)) -> ClientError {
    let address = address.to_owned();
    let mut cause = error;
    loop {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            let why = failure.to_string();
            return ClientError::Untrusted { address, why };
        }
        if let Some(error) = cause.downcast_ref::<CredentialsError>() {
            let why = error.to_string();
            return ClientError::Credentials { why };
        }
        match cause.source() {
            Some(source) => cause = source,
            None => break,
        }
    }
    ClientError::Unreachable {
        addresses: address,
        why: cause.to_string(),
    }
}

fn endpoint(address: &str, is_secure: bool) -> Result<Endpoint, ClientError> {
    let bad = || ClientError::Address {
        address: address.to_owned(),
    };
    let has_port = address
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if !has_port {
        return Err(bad());
    }
    let (scheme, limit) = match is_secure {
        true => ("https", SECURE_CONNECT_LIMIT),
        false => ("http", CONNECT_LIMIT),
    };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|_| bad())?;
    Ok(endpoint
        .connect_timeout(limit)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(3))
        .keep_alive_timeout(Duration::from_secs(3)))
}

/// The first of these masters that answers, in this order, each with a head start before the next; one that fails gives
/// way at once. Of one that answers and cannot be used is said more than of those that do not answer; our own
/// credentials would be the same at every one.
pub(crate) async fn first_of<T: Send + 'static, F>(
    order: Vec<String>,
    head_start: Duration,
    connect: impl Fn(String) -> F,
) -> Result<(String, T), ClientError>
where
    F: Future<Output = Result<T, ClientError>> + Send + 'static,
{
    let addresses = order.join(",");
    let (mut last, mut told) = (String::new(), None);
    let mut waiting = order.into_iter().peekable();
    // Those that lost are broken off when this goes.
    let mut attempts = JoinSet::new();
    loop {
        if let Some(address) = waiting.next() {
            let attempt = connect(address.clone());
            attempts.spawn(async move { (address, attempt.await) });
        }
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok((address, Ok(connected)))) => return Ok((address, connected)),
                Some(Ok((_, Err(ClientError::Unreachable { why, .. })))) => last = why,
                Some(Ok((_, Err(error @ ClientError::Untrusted { .. })))) => told = Some(error),
                Some(Ok((_, Err(error)))) => return Err(error),
                // A runtime that ends breaks off its tasks.
                Some(Err(error)) => last = error.to_string(),
                None => return Err(told.unwrap_or(ClientError::Unreachable { addresses, why: last })),
            },
            () = sleep(head_start), if waiting.peek().is_some() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::client::Client;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(20);

    fn run<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(future)
    }

    async fn pretend(address: String) -> Result<&'static str, ClientError> {
        let addresses = address.clone();
        match address.as_str() {
            "silent" => {
                sleep(LONG).await;
                panic!("it was waited for");
            }
            "slow" => {
                sleep(SHORT * 10).await;
                Ok("slow")
            }
            "refuses" => Err(ClientError::Unreachable {
                addresses,
                why: "refused".to_owned(),
            }),
            "foreign" => Err(ClientError::Untrusted {
                address,
                why: "of another cluster".to_owned(),
            }),
            "ours" => Err(ClientError::Credentials {
                why: "no key".to_owned(),
            }),
            _ => Ok("answered"),
        }
    }

    fn first(order: &[&str], head_start: Duration) -> Result<String, ClientError> {
        let order = order.iter().map(|&address| address.to_owned()).collect();
        run(first_of(order, head_start, pretend)).map(|(address, _)| address)
    }

    #[test]
    fn the_silent_are_not_waited_for() {
        let began = Instant::now();
        assert_eq!(first(&["silent", "silent", "here"], SHORT).unwrap(), "here");
        assert!(began.elapsed() >= SHORT * 2, "they had their head start");
        // Who refuses gives way at once.
        assert_eq!(first(&["refuses", "foreign", "here"], LONG).unwrap(), "here");
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
        // Who is only slow may still be the first.
        assert_eq!(first(&["slow", "silent"], SHORT).unwrap(), "slow");
    }

    #[test]
    fn whoever_answers_in_time_is_the_only_one_asked() {
        let asked = AtomicUsize::new(0);
        let order = ["here", "there"].map(str::to_owned).to_vec();
        let found = run(first_of(order, LONG, |address| {
            asked.fetch_add(1, Ordering::Relaxed);
            pretend(address)
        }));
        assert_eq!(found.unwrap().0, "here");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_can_be_acted_on_is_said() {
        let said = |order: &[&str]| first(order, SHORT).unwrap_err().to_string();
        let nobody = said(&["refuses", "refuses"]);
        assert!(
            nobody.starts_with("no master answers at refuses,refuses (refused)"),
            "{nobody}"
        );
        assert!(said(&["foreign", "refuses"]).contains("of another cluster"));
        assert_eq!(said(&["silent", "ours", "here"]), "no key");
    }

    /// The kernel accepts connections for it, and nobody ever reads them.
    fn stopped() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        (listener, address)
    }

    #[test]
    fn a_master_that_is_stopped_does_not_answer_and_the_next_one_does() {
        run(async {
            let (_kept, silent) = stopped();
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let living = listener.local_addr().unwrap().to_string();
            let incoming = tonic::transport::server::TcpIncoming::from(listener);
            let server = tonic::transport::Server::builder().add_routes(tonic::service::Routes::default());
            tokio::spawn(server.serve_with_incoming(incoming));
            let began = Instant::now();
            let client = Client::connect(&format!("{silent},{living}")).await.unwrap();
            assert_eq!(client.address(), living);
            assert!(began.elapsed() < CONNECT_LIMIT, "{:?}", began.elapsed());
            let alone = Client::connect(&silent).await.unwrap_err().to_string();
            assert!(alone.contains("(it does not answer)"), "{alone}");
        });
    }
}
