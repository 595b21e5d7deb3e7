//! As much of a Kubernetes API server as crisp asks for, with the faults that a test wants. What real ones answer is
//! tested with a real one (`e2e/`).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::broadcast;

/// Ends when dropped.
#[derive(Debug)]
pub(crate) struct ApiServer {
    address: String,
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<Inner>,
    changes: broadcast::Sender<Change>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By namespace and name.
    services: BTreeMap<(String, String), Value>,
    pods: Vec<Value>,
    events: Vec<Value>,
    asked: Vec<String>,
    fault: Option<Fault>,
    watches: usize,
}

/// What the API server does instead of answering.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// It refuses everything with this status.
    Status(u16),
    /// It never answers.
    Silent,
    /// It answers with something else.
    Nonsense,
}

/// What watches are told.
#[derive(Debug, Clone)]
enum Change {
    Of {
        namespace: String,
        event: Value,
    },
    /// The connection ends.
    Cut,
}

// === impl ApiServer ===

impl ApiServer {
    pub(crate) fn start() -> Self {
        Self::at("127.0.0.1:0")
    }

    pub(crate) fn at(address: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared { state: Mutex::default(), changes: broadcast::channel(1024).0 });
        let routes = Router::new().fallback(answer).with_state(shared.clone());
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, routes).await.unwrap();
        });
        Self { address, shared, runtime: Some(runtime) }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Writes a kubeconfig for it.
    pub(crate) fn kubeconfig(&self, path: &Path) {
        std::fs::write(path, kubeconfig(&format!("http://{}", self.address), &json!({"token": "t0ken"})))
            .unwrap();
    }

    pub(crate) fn add_service(&self, namespace: &str, name: &str, spec: Value) {
        let service = json!({"apiVersion": "v1", "kind": "Service", "spec": spec,
            "metadata": {"namespace": namespace, "name": name, "resourceVersion": "1"}});
        self.lock().services.insert((namespace.into(), name.into()), service.clone());
        self.tell(namespace, "ADDED", service);
    }

    pub(crate) fn add_pod(&self, pod: Value) {
        self.lock().pods.push(pod);
    }

    /// What was told so far.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.lock().events.clone()
    }

    /// Every request so far, as `METHOD PATH?QUERY`.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.lock().asked.clone()
    }

    pub(crate) fn set_fault(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    /// Watches under way.
    pub(crate) fn watches(&self) -> usize {
        self.lock().watches
    }

    /// Ends every watch.
    pub(crate) fn cut_watches(&self) {
        let _ = self.shared.changes.send(Change::Cut);
    }

    fn tell(&self, namespace: &str, kind: &str, object: Value) {
        let event = json!({"type": kind, "object": object});
        let _ = self.shared.changes.send(Change::Of { namespace: namespace.into(), event });
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.shared.lock()
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A kubeconfig for a server and a user.
pub(crate) fn kubeconfig(server: &str, user: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "users": [{"name": "test", "user": user}],
    })
    .to_string()
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
    let fault = {
        let mut inner = shared.lock();
        inner.asked.push(format!("{} {}", parts.method, parts.uri));
        inner.fault
    };
    match fault {
        Some(Fault::Silent) => std::future::pending().await,
        Some(Fault::Status(code)) => return status(code),
        Some(Fault::Nonsense) => return "<html>".into_response(),
        None => {}
    }
    if parts.headers.get("authorization").is_none_or(|token| token != "Bearer t0ken") {
        return status(401);
    }
    let path: Vec<_> = parts.uri.path().trim_matches('/').split('/').collect();
    let query = parts.uri.query().unwrap_or_default();
    match (parts.method, &path[..]) {
        (Method::GET, ["api", "v1", "pods"]) => {
            Json(json!({"kind": "PodList", "items": shared.lock().pods})).into_response()
        }
        (Method::POST, ["api", "v1", "namespaces", _, "events"]) => {
            let event: Value = serde_json::from_slice(&body).unwrap();
            shared.lock().events.push(event.clone());
            (StatusCode::CREATED, Json(event)).into_response()
        }
        (Method::GET, ["api", "v1", "namespaces", namespace, "services"]) if query.contains("watch=") => {
            watch(&shared, namespace)
        }
        (Method::GET, ["api", "v1", "namespaces", namespace, "services"]) => {
            let items = shared.lock().in_namespace(namespace);
            Json(json!({"kind": "ServiceList", "metadata": {"resourceVersion": "1"}, "items": items}))
                .into_response()
        }
        (Method::GET, ["api", "v1", "namespaces", namespace, "services", name]) => {
            let key = ((*namespace).to_owned(), (*name).to_owned());
            match shared.lock().services.get(&key) {
                Some(service) => Json(service.clone()).into_response(),
                None => status(404),
            }
        }
        _ => status(404),
    }
}

impl Inner {
    fn in_namespace(&self, namespace: &str) -> Vec<Value> {
        self.services.iter().filter(|((of, _), _)| of == namespace).map(|(_, it)| it.clone()).collect()
    }
}

/// All that there is, then every change.
fn watch(shared: &Arc<Shared>, namespace: &str) -> Response {
    struct Counted(Arc<Shared>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.lock().watches -= 1;
        }
    }
    let (present, changes) = {
        let mut inner = shared.lock();
        inner.watches += 1;
        (inner.in_namespace(namespace), shared.changes.subscribe())
    };
    let counted = Counted(shared.clone());
    let line = |event: &Value| Ok::<_, Infallible>(Bytes::from(format!("{event}\n")));
    let first = present.into_iter().map(move |object| line(&json!({"type": "ADDED", "object": object})));
    let namespace = namespace.to_owned();
    let rest =
        stream::unfold((changes, namespace, counted), move |(mut changes, namespace, counted)| async move {
            loop {
                match changes.recv().await {
                    Ok(Change::Of { namespace: of, event }) if of == namespace => {
                        return Some((line(&event), (changes, namespace, counted)));
                    }
                    Ok(Change::Of { .. }) => {}
                    Ok(Change::Cut) | Err(_) => return None,
                }
            }
        });
    Body::from_stream(stream::iter(first).chain(rest)).into_response()
}

fn status(code: u16) -> Response {
    let body = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "message": "the test says no"});
    (StatusCode::from_u16(code).unwrap(), Json(body)).into_response()
}
