//! The admin API of the pre-pull queue. README lists its routes.

mod body;
mod forms;
mod query;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use futures_util::stream::{self, StreamExt as _};

use self::body::{collect, read};
pub use self::forms::{Cancelled, Paused, PinItem, Pins, QueueStatus, Retried, Taken, TakenItem, Tried};
pub(super) use self::query::Query;
use crate::admin::client::Refused;
use crate::admin::status::Reporter;
use crate::prepull::item::{Id, Item, State as ItemState};
use crate::prepull::{Prepull, Refusal};

/// The largest request that is read, and the most items in it.
pub const MAX_REQUEST: usize = 8 << 20;
/// The most items in one request.
pub const MAX_ITEMS: usize = 10_000;

/// How many items are told at a time what was asked for many of them: the queue writes these down together.
const ABREAST: usize = 256;

/// Why the API does not do what it was asked.
#[derive(Debug)]
pub(super) struct Problem(StatusCode, Refused);

type Served = State<Arc<Reporter>>;

/// The routes.
pub(super) fn routes() -> Router<Arc<Reporter>> {
    Router::new()
        .route("/v1/prepull", get(list).post(add).delete(cancel_many))
        .route("/v1/prepull/pause", post(pause))
        .route("/v1/prepull/resume", post(resume))
        .route("/v1/prepull/retry", post(retry_many))
        .route("/v1/prepull/{id}", get(show).delete(cancel))
        .route("/v1/prepull/{id}/retry", post(retry))
        .route("/v1/pins", get(pins))
}

/// The answer to what is asked for under no known path, or in no known way.
pub(super) async fn unknown() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "there is no such path in the admin API; README lists those there are",
    )
}

/// The same for a method.
pub(super) async fn not_that_way() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not take that method; README lists those it takes",
    )
}

async fn add(State(reporter): Served, RawQuery(query): RawQuery, body: Body) -> Result<Response, Problem> {
    let body = collect(body).await?;
    let query = Query::parse(query.as_deref(), &["dryRun"])?;
    let queue = queue(&reporter)?;
    let specs = read(&body)?;
    if query.flag("dryRun")? {
        return Ok(Json(Tried { items: queue.dry_run(specs).await? }).into_response());
    }
    let names: Vec<String> = specs.iter().map(|spec| spec.image.clone()).collect();
    let added = queue.add(specs).await?;
    let ids: Vec<Id> = added.iter().map(|(id, _)| *id).collect();
    let images: Vec<Option<String>> = queue
        .look(move |queue| ids.iter().map(|id| queue.get(*id).map(|item| item.image.clone())).collect())
        .await?;
    let items = added.into_iter().zip(images.into_iter().zip(names)).map(|((id, result), (image, name))| {
        // It may have been cancelled a moment ago.
        TakenItem { id, image: image.unwrap_or(name), result }
    });
    Ok(Json(Taken { items: items.collect() }).into_response())
}

async fn list(State(reporter): Served, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let wanted = Query::parse(query.as_deref(), &["owner", "state", "image", "id"])?.wanted()?;
    let json = queue(&reporter)?.list(move |item| wanted.takes(item)).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json).into_response())
}

async fn show(State(reporter): Served, Path(id): Path<String>) -> Result<Json<Item>, Problem> {
    Ok(Json(queue(&reporter)?.get(query::id(&id)?).await?))
}

async fn cancel(State(reporter): Served, Path(id): Path<String>) -> Result<Json<Cancelled>, Problem> {
    queue(&reporter)?.remove(query::id(&id)?).await?;
    Ok(Json(Cancelled { cancelled: 1 }))
}

async fn cancel_many(State(reporter): Served, RawQuery(query): RawQuery) -> Result<Json<Cancelled>, Problem> {
    let query = Query::parse(query.as_deref(), &["owner", "state", "all"])?;
    if query.is_empty() || (query.flag("all")? && query.len() > 1) {
        let words = "say which items: owner=NAME, state=STATE, or all=true alone";
        return Err(Problem::new(StatusCode::BAD_REQUEST, words));
    }
    let (queue, wanted) = (queue(&reporter)?, query.wanted()?);
    let ids = ids(queue, move |item| wanted.takes(item)).await?;
    let cancelled = for_each(ids, |id| queue.remove(id)).await?;
    Ok(Json(Cancelled { cancelled }))
}

async fn retry(State(reporter): Served, Path(id): Path<String>) -> Result<Json<Retried>, Problem> {
    queue(&reporter)?.retry(query::id(&id)?).await?;
    Ok(Json(Retried { retried: 1 }))
}

async fn retry_many(State(reporter): Served, RawQuery(query): RawQuery) -> Result<Json<Retried>, Problem> {
    let wanted = Query::parse(query.as_deref(), &["owner"])?.wanted()?;
    let queue = queue(&reporter)?;
    let failed = move |item: &Item| item.status.state == ItemState::Failed && wanted.takes(item);
    let retried = for_each(ids(queue, failed).await?, |id| queue.retry(id)).await?;
    Ok(Json(Retried { retried }))
}

async fn pause(State(reporter): Served) -> Result<Json<Paused>, Problem> {
    queue(&reporter)?.pause(true).await?;
    Ok(Json(Paused { paused: true }))
}

async fn resume(State(reporter): Served) -> Result<Json<Paused>, Problem> {
    queue(&reporter)?.pause(false).await?;
    Ok(Json(Paused { paused: false }))
}

async fn pins(State(reporter): Served) -> Result<Json<Pins>, Problem> {
    Ok(Json(queue(&reporter)?.look(Pins::of).await?))
}

fn queue(reporter: &Reporter) -> Result<&Prepull, Problem> {
    reporter.prepull.as_ref().ok_or_else(|| Refusal::Closed("prepull.enabled is false".into()).into())
}

async fn ids(queue: &Prepull, wanted: impl Fn(&Item) -> bool + Send + 'static) -> Result<Vec<Id>, Refusal> {
    queue.look(move |queue| queue.items().filter(|item| wanted(item)).map(|item| item.id).collect()).await
}

/// Does something for many items, and counts them. Those that are gone meanwhile are nobody's failure.
async fn for_each<F>(ids: Vec<Id>, act: impl Fn(Id) -> F) -> Result<usize, Refusal>
where
    F: Future<Output = Result<(), Refusal>>,
{
    let mut done = 0;
    let mut results = stream::iter(ids).map(act).buffer_unordered(ABREAST);
    while let Some(result) = results.next().await {
        match result {
            Ok(()) => done += 1,
            Err(Refusal::Unknown(_)) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(done)
}

// === impl Problem ===

impl Problem {
    pub(super) fn new(status: StatusCode, error: &str) -> Self {
        Self(status, Refused { error: error.to_owned(), mistakes: Vec::new() })
    }

    fn mistake(mistake: String) -> Self {
        Self(StatusCode::BAD_REQUEST, Refused { error: mistake.clone(), mistakes: vec![mistake] })
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match &refusal {
            Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
            Refusal::Full(_) => StatusCode::TOO_MANY_REQUESTS,
            Refusal::Unknown(_) => StatusCode::NOT_FOUND,
            Refusal::Store(_) | Refusal::Closed(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        let error = refusal.to_string();
        let mistakes = if let Refusal::Invalid(mistakes) = refusal { mistakes } else { Vec::new() };
        Self(status, Refused { error, mistakes })
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(self.1)).into_response()
    }
}
