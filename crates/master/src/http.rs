//! The dashboard and the metrics over HTTP, for whoever can connect. Nothing listens unless `--http` names an address, and nothing is
//! put together unless somebody asks: then it is what a Status call costs.
//!
//! One request a connection, which ends after a while whatever the client does.

#[cfg(test)]
mod example;
mod metrics;
mod page;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use proto::v1;
use proto::v1::cluster_server::Cluster;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tonic::{Request, Status};

use self::metrics::Known;
use crate::access::Policy;
use crate::service::Face;
use crate::view::{MasterRow, StatusView};

/// Connections at once; further ones are closed as they come.
const CONNECTIONS_MAX: usize = 32;
/// A client that has not sent its request's head by then is not waited for.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may last, the time for the answer in it: an etcd that does not answer is waited for, too.
const CONNECTION_LIMIT: Duration = Duration::from_secs(30);
/// How long a scrape waits for the store: Prometheus gives up after 10 s unless told otherwise, and is to hear of what is known.
const SCRAPE_LIMIT: Duration = Duration::from_secs(5);
/// A request's head at most; the least that hyper takes.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Pause after the system gave no connection, which it does when files are short.
const PAUSE: Duration = Duration::from_millis(100);
/// The page needs nothing but its own styles: should anything ever stand in it that is not escaped, a browser does not run it.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";

/// What is shown.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) face: Face,
    pub(crate) policy: Arc<Policy>,
    /// By which clients and nodes reach this master.
    pub(crate) advertised: String,
}

impl Site {
    /// The reign that this master leads in, and who leads.
    async fn reign(&self) -> Result<(Option<u64>, Option<String>), Status> {
        let look = |master: &mut crate::engine::Master| {
            let leader = master.leader().cloned();
            let reign = leader.as_ref().map(|leader| leader.reign);
            let ours = reign.filter(|_| master.lead().is_ok());
            (ours, leader.map(|leader| leader.address))
        };
        self.face.engine.look(look).await
    }

    /// The cluster, if this master leads; of all masters one at most shows it.
    async fn status(&self) -> Result<Option<StatusView>, Status> {
        let (before, _) = self.reign().await?;
        if before.is_none() {
            return Ok(None);
        }
        let answer = self.face.get_status(Request::new(v1::GetStatusRequest {})).await;
        // While nobody leads any master answers the call.
        if self.reign().await?.0 != before {
            return Ok(None);
        }
        Ok(Some(StatusView::of(answer?.get_ref())))
    }

    /// What the page of a master shows that does not lead.
    async fn elsewhere(&self) -> Result<page::Elsewhere, Status> {
        let (_, leader) = self.reign().await?;
        // A store that does not answer keeps nobody from being told who leads.
        let masters = self.face.masters().await.unwrap_or_default();
        Ok(page::Elsewhere {
            own: self.advertised.clone(),
            leader,
            masters: masters.iter().map(MasterRow::of).collect(),
        })
    }
}

/// Serves for ever.
pub(crate) async fn serve(listener: TcpListener, site: Site) {
    let router = Router::new()
        .route("/", get(dashboard))
        .route("/metrics", get(scrape))
        .route("/status.json", get(json))
        .fallback(nothing)
        .with_state(Arc::new(site));
    let turns = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection for the dashboard could not be accepted; raise the limit of open files");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Ok(turn) = turns.clone().try_acquire_owned() else {
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .max_buf_size(HEAD_BYTES_MAX)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            // Late, or an error: the client has gone, or it is no HTTP.
            drop(tokio::time::timeout(CONNECTION_LIMIT, connection).await);
            drop(turn);
        });
    }
}

fn answer(status: StatusCode, kind: &'static str, body: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
    ];
    (status, headers, body).into_response()
}

fn plain(status: StatusCode, text: String) -> Response {
    answer(status, "text/plain; charset=utf-8", text)
}

fn unavailable(status: &Status) -> Response {
    plain(
        StatusCode::SERVICE_UNAVAILABLE,
        format!("The cluster cannot be shown at present: {}\n", status.message()),
    )
}

async fn dashboard(State(site): State<Arc<Site>>) -> Response {
    let shown = match site.status().await {
        Ok(Some(view)) => Ok(page::cluster(&view)),
        Ok(None) => site
            .elsewhere()
            .await
            .map(|elsewhere| page::elsewhere(&elsewhere)),
        Err(status) => Err(status),
    };
    let (status, text) = match shown {
        Ok(text) => (StatusCode::OK, text),
        // A page, for it asks again by itself.
        Err(status) => (StatusCode::SERVICE_UNAVAILABLE, page::failure(status.message())),
    };
    answer(status, "text/html; charset=utf-8", text)
}

async fn scrape(State(site): State<Arc<Site>>) -> Response {
    // Both together take less than Prometheus waits.
    let reign = tokio::time::timeout(SCRAPE_LIMIT / 2, site.reign()).await;
    let status = tokio::time::timeout(SCRAPE_LIMIT, site.status()).await;
    let known = match &status {
        Ok(Ok(Some(view))) => Known::Cluster(view),
        Ok(Ok(None)) => Known::Elsewhere,
        Ok(Err(_)) | Err(_) => Known::Unanswered {
            leads: reign.ok().and_then(Result::ok).map(|(ours, _)| ours.is_some()),
        },
    };
    answer(
        StatusCode::OK,
        metrics::KIND,
        metrics::text(&site.policy.calls, known),
    )
}

async fn json(State(site): State<Arc<Site>>) -> Response {
    match site.status().await {
        Ok(Some(view)) => match serde_json::to_string(&view) {
            Ok(text) => answer(StatusCode::OK, "application/json", text),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        Ok(None) => plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "This master does not lead; ask the one that does.\n".to_owned(),
        ),
        Err(status) => unavailable(&status),
    }
}

async fn nothing() -> Response {
    let text =
        "The dashboard is at /, the metrics at /metrics, and what the dashboard shows at /status.json.\n";
    plain(StatusCode::NOT_FOUND, text.to_owned())
}
