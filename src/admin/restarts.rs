//! The admin API of restarts: `GET /v1/restarts`, with `namespace`, `pod` and `container` to choose.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Json;
use axum::routing::get;

use crate::admin::prepull::{Problem, Query};
use crate::admin::status::Reporter;
use crate::container::history::{Restarts, Wanted};

/// How long the history has to answer; its store may still be opening.
const PATIENCE: Duration = Duration::from_secs(4);

/// The route.
pub(super) fn routes() -> Router<Arc<Reporter>> {
    Router::new().route("/v1/restarts", get(restarts))
}

async fn restarts(
    State(reporter): State<Arc<Reporter>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Restarts>, Problem> {
    let query = Query::parse(query.as_deref(), &["namespace", "pod", "container"])?;
    let value = |key| query.last(key).map(str::to_owned);
    let wanted = Wanted { namespace: value("namespace"), pod: value("pod"), container: value("container") };
    let away = |words| Problem::new(StatusCode::SERVICE_UNAVAILABLE, words);
    let Some(history) = &reporter.restarts else {
        return Err(away("restarts are not looked at: record.enabled is false"));
    };
    match tokio::time::timeout(PATIENCE, history.list(wanted)).await {
        Ok(Some(restarts)) => Ok(Json(restarts)),
        Ok(None) => Err(away("crisp is shutting down")),
        Err(_) => Err(away("the history is still being opened; try again in a moment")),
    }
}
