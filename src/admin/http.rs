//! The two HTTP servers: the admin API (unix socket) and health with metrics (TCP, read-only).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use tokio::net::{TcpListener, UnixListener};

use crate::admin::health::Health;
use crate::admin::limited::Limited;
use crate::admin::links::links;
use crate::admin::prepull::{not_that_way, routes, unknown};
use crate::admin::restarts;
use crate::admin::status::Reporter;
use crate::metrics::Metrics;
use crate::prepull::Prepull;
use crate::shutdown::Shutdown;

/// Content type of the metrics' text form.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long after a failure the metrics address is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// How long the queue has to give its figures to a scrape.
const MEASURE: Duration = Duration::from_secs(1);

/// The address of health and metrics. One that is taken must not take the node's runtime away: crisp serves on, and
/// tries again.
#[derive(Debug)]
pub struct MetricsPort {
    address: SocketAddr,
    listener: Option<TcpListener>,
}

/// Serves the admin API until the shutdown's first stage.
pub async fn serve_admin(
    listener: UnixListener,
    reporter: Arc<Reporter>,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    let status = |State(reporter): State<Arc<Reporter>>| async move { Json(reporter.status().await) };
    let pulls = |State(reporter): State<Arc<Reporter>>| async move { Json(reporter.pulls.pulls().await) };
    let router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/pulls", get(pulls))
        .route("/v1/links", get(links))
        .merge(routes())
        .merge(restarts::routes())
        .fallback(unknown)
        .method_not_allowed_fallback(not_that_way)
        .with_state(reporter);
    axum::serve(listener, router).with_graceful_shutdown(shutdown.release_token().cancelled_owned()).await
}

/// Serves health and metrics until the shutdown's first stage.
pub async fn serve_metrics(
    port: MetricsPort,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    prepull: Option<Prepull>,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(scrape))
        .with_state((health, metrics, prepull));
    let listener = tokio::select! {
        listener = port.listener() => listener,
        () = shutdown.released() => return Ok(()),
    };
    axum::serve(Limited::new(listener), router)
        .with_graceful_shutdown(shutdown.release_token().cancelled_owned())
        .await
}

// === impl MetricsPort ===

impl MetricsPort {
    /// Tries to listen.
    pub fn open(address: SocketAddr) -> Self {
        let bound = std::net::TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        });
        if let Err(error) = &bound {
            tracing::error!(%address, %error, "no metrics and health for now: cannot listen; trying on");
        }
        Self { address, listener: bound.ok() }
    }

    /// Where it listens, or is to.
    pub fn address(&self) -> SocketAddr {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok()).unwrap_or(self.address)
    }

    /// The listener, as soon as the port is free.
    async fn listener(self) -> TcpListener {
        if let Some(listener) = self.listener {
            return listener;
        }
        loop {
            tokio::time::sleep(RETRY).await;
            if let Ok(listener) = TcpListener::bind(self.address).await {
                tracing::info!(address = %self.address, "metrics and health are served now");
                return listener;
            }
        }
    }
}

type Served = State<(Arc<Health>, Arc<Metrics>, Option<Prepull>)>;

async fn livez(State((health, ..)): Served) -> Response {
    if health.alive().await {
        "alive\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the proxy thread does not take work\n").into_response()
    }
}

async fn readyz(State((health, ..)): Served) -> Response {
    match health.ready().await {
        Ok(()) => "ready\n".into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

async fn scrape(State((health, metrics, prepull)): Served) -> Response {
    // Asking keeps `crisp_upstream_up` true to the moment of the scrape.
    let _ = health.ready().await;
    if let Some(prepull) = prepull {
        // A queue whose store is still opening has no figures yet.
        let _ = tokio::time::timeout(MEASURE, prepull.measure(metrics.clone())).await;
    }
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
