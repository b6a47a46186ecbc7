//! A connection to one member.
//!
//! The crate's own connector leaves TCP's Nagle algorithm on (RFC 1122, section 4.2.3.4): a request is two small
//! segments, and the second one waited for the acknowledgement of the first, which a member delays by 40 ms. So every
//! call took 42 ms. This one turns it off.

use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions, Error};
use hyper_openssl::SslStream;
use hyper_util::rt::TokioIo;
use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{SslConnector, SslMethod};
use openssl::x509::X509;
use openssl::x509::store::X509StoreBuilder;
use proto::secure::Secured;
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Context, Poll, Service, StdError};
use tonic::transport::Endpoint;

use super::EtcdConfig;
use super::link::{MEMBER_LIMIT, text};
use super::refusal::{self, Refusal};

/// After so long without a word a member is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// etcd writes as soon as a connection is made; a proxy before it may not.
const FIRST_BYTES_LIMIT: Duration = Duration::from_millis(250);
/// HTTP/2, as ALPN has it (RFC 7540, section 3.3).
const HTTP2: &[u8] = b"\x02h2";

/// Why there is no connection.
pub(super) struct NotConnected {
    /// For people.
    pub(super) why: String,
    /// Every member would say the same, until somebody changes a file of ours or etcd's users.
    pub(super) is_final: bool,
}

impl From<String> for NotConnected {
    fn from(why: String) -> Self {
        let is_final = false;
        Self { why, is_final }
    }
}

/// Connects to a member; what stands in the way is an answer. Files are read as they are now.
pub(super) async fn connect(config: &EtcdConfig, index: usize) -> Result<Client, NotConnected> {
    let member = &config.endpoints[index];
    let failed = |error: &(dyn std::error::Error + 'static)| match refusal(error) {
        Some(refusal) => refusal.to_string(),
        None => format!("{member}: {}", innermost(error)),
    };
    let scheme = if config.tls { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{member}")).map_err(|error| failed(&error))?;
    let endpoint = endpoint
        .connect_timeout(MEMBER_LIMIT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let channel = if config.tls {
        let connector = Connector {
            index,
            tls: tls(config)?,
            config: config.clone(),
        };
        endpoint.connect_with_connector(connector).await
    } else {
        endpoint.connect().await
    };
    let channel = Channel::Tonic(channel.map_err(|error| failed(&error))?);
    let options = ConnectOptions::new().with_auto_token_refresh(true);
    let Some((name, file)) = &config.user else {
        let client = Client::from_channel(channel, Some(options)).await;
        return client.map_err(|error| text(&error).into());
    };
    let password = String::from_utf8_lossy(&read(file)?).trim_end().to_owned();
    let as_user = options.clone().with_user(name, password);
    match Client::from_channel(channel.clone(), Some(as_user)).await {
        // Its users are switched on later, perhaps: then a call is refused, and the next connection says who we are.
        Err(error) if refusal::takes_everybody(&error) => {
            tracing::debug!("etcd has no users and takes everybody, also \"{name}\"");
            let client = Client::from_channel(channel, Some(options)).await;
            client.map_err(|error| text(&error).into())
        }
        connected => connected.map_err(|error: Error| NotConnected {
            why: Refusal::of_call(&error, config).to_string(),
            is_final: refusal::is_of_user(&error),
        }),
    }
}

/// What we have said ourselves of a connection that came to nothing.
fn refusal<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Refusal> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(refusal) = error.downcast_ref::<Refusal>() {
            return Some(refusal);
        }
        cause = error.source();
    }
    None
}

/// The innermost cause.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

/// With the files as they are now.
fn tls(config: &EtcdConfig) -> Result<SslConnector, String> {
    let failed = |error: ErrorStack| format!("OpenSSL refuses the files of [etcd]: {error}");
    let mut builder = SslConnector::builder(SslMethod::tls_client()).map_err(failed)?;
    builder.set_alpn_protos(HTTP2).map_err(failed)?;
    if let Some(path) = &config.authority {
        // In the place of the system's, which the builder has brought.
        builder.set_cert_store(X509StoreBuilder::new().map_err(failed)?.build());
        for authority in X509::stack_from_pem(&read(path)?).map_err(failed)? {
            builder.cert_store_mut().add_cert(authority).map_err(failed)?;
        }
    }
    if let Some((certificate, key)) = &config.certificate {
        let mut chain = X509::stack_from_pem(&read(certificate)?)
            .map_err(failed)?
            .into_iter();
        let own = chain.next();
        let own = own.ok_or_else(|| format!("{} has no certificate in it", certificate.display()))?;
        builder.set_certificate(&own).map_err(failed)?;
        for between in chain {
            builder.add_extra_chain_cert(between).map_err(failed)?;
        }
        let key = PKey::private_key_from_pem(&read(key)?).map_err(failed)?;
        builder.set_private_key(&key).map_err(failed)?;
    }
    Ok(builder.build())
}

/// Makes connections to one member over TLS.
#[derive(Clone)]
struct Connector {
    /// Which member.
    index: usize,
    tls: SslConnector,
    config: EtcdConfig,
}

impl Service<Uri> for Connector {
    type Response = Secured;
    type Error = StdError;
    type Future = BoxFuture<Self::Response, StdError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { index, tls, config } = self.clone();
        Box::pin(async move {
            let member = &config.endpoints[index];
            let host = member.rsplit_once(':').map_or(member.as_str(), |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let ssl = tls.configure()?.into_ssl(host)?;
            let stream = TcpStream::connect(member).await?;
            stream.set_nodelay(true)?;
            let mut stream = SslStream::new(ssl, TokioIo::new(stream))?;
            if let Err(error) = Pin::new(&mut stream).connect().await {
                let verdict = stream.ssl().verify_result();
                return Err(
                    Refusal::of_handshake(&identity::reasons(&error), verdict, member, &config).into(),
                );
            }
            // What it makes of our certificate comes after that, and might be lost with what we write meanwhile.
            let heard = Secured::after_first_bytes(stream, Some(FIRST_BYTES_LIMIT)).await;
            heard.map_err(|error| Refusal::of_answer(&error.to_string(), member, &config).into())
        })
    }
}
