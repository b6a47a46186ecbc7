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
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Context, Poll, Service, StdError};
use tonic::transport::Endpoint;

use super::EtcdConfig;
use super::link::{MEMBER_LIMIT, text};

/// After so long without a word a member is asked whether it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// HTTP/2, as ALPN has it (RFC 7540, section 3.3).
const HTTP2: &[u8] = b"\x02h2";

/// Connects to a member; what stands in the way is an answer.
pub(super) async fn connect(config: &EtcdConfig, index: usize) -> Result<Client, String> {
    let member = &config.endpoints[index];
    let failed = |error: &(dyn std::error::Error + 'static)| format!("{member}: {}", innermost(error));
    let scheme = if config.tls { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{member}")).map_err(|error| failed(&error))?;
    let endpoint = endpoint
        .connect_timeout(MEMBER_LIMIT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE);
    let channel = if config.tls {
        let connector = Connector {
            member: member.clone(),
            tls: tls(config)?,
        };
        endpoint.connect_with_connector(connector).await
    } else {
        endpoint.connect().await
    };
    let channel = channel.map_err(|error| failed(&error))?;
    let mut options = ConnectOptions::new().with_auto_token_refresh(true);
    if let Some((name, file)) = &config.user {
        let password = String::from_utf8_lossy(&read(file)?).trim_end().to_owned();
        options = options.with_user(name, password);
    }
    let client = Client::from_channel(Channel::Tonic(channel), Some(options)).await;
    client.map_err(|error: Error| text(&error))
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
    /// Host and port.
    member: String,
    tls: SslConnector,
}

impl Service<Uri> for Connector {
    type Response = SslStream<TokioIo<TcpStream>>;
    type Error = StdError;
    type Future = BoxFuture<Self::Response, StdError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { member, tls } = self.clone();
        Box::pin(async move {
            let host = member.rsplit_once(':').map_or(member.as_str(), |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let ssl = tls.configure()?.into_ssl(host)?;
            let stream = TcpStream::connect(&member).await?;
            stream.set_nodelay(true)?;
            let mut stream = SslStream::new(ssl, TokioIo::new(stream))?;
            Pin::new(&mut stream).connect().await?;
            Ok(stream)
        })
    }
}
