//! As much of a Kubernetes API server as a kubelet needs to run pods that are not static ones: the kubelet never evicts
//! those, and they have no `imagePullSecrets`.
//!
//! It keeps objects of any kind as they come, and tells watchers of them. Nothing is defaulted or checked.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

/// The node's name, which is also that of the kubelet.
pub(crate) const NODE: &str = "crisp-node";

/// Ends when dropped.
#[derive(Debug)]
pub(crate) struct Api {
    address: String,
    shared: Arc<Shared>,
    runtime: Option<tokio::runtime::Runtime>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<Inner>,
    /// The version of the last change.
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Inner {
    objects: BTreeMap<Key, Value>,
    /// Every change so far: its resource and what watchers are told of it. The place in the list is the version.
    changes: Vec<(String, Value)>,
}

/// Resource, namespace and name.
type Key = (String, String, String);

/// What a path names.
#[derive(Debug)]
struct Target {
    /// `v1`, or `GROUP/VERSION`.
    group: String,
    resource: String,
    namespace: String,
    name: Option<String>,
}

// === impl Api ===

impl Api {
    pub(crate) fn start() -> Self {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let shared = Arc::new(Shared { state: Mutex::default(), changed: watch::Sender::new(0) });
        let routes = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        runtime.spawn(async move { axum::serve(listener, routes).await.expect("it serves") });
        Self { address, shared, runtime: Some(runtime) }
    }

    /// What tells a kubelet how to get here.
    pub(crate) fn kubeconfig(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": format!("http://{}", self.address)}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "users": [{"name": "lab", "user": {}}],
        })
    }

    /// Binds a pod to the node. `spec` has all but the node's name.
    pub(crate) fn add_pod(&self, namespace: &str, name: &str, spec: &Value) {
        let mut spec = spec.clone();
        let more = json!({
            "nodeName": NODE, "restartPolicy": "Always", "dnsPolicy": "Default", "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 2, "securityContext": {},
        });
        merge(&mut spec, &more);
        let uid = format!("{namespace}-{name}-{}", self.shared.lock().changes.len());
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "spec": spec, "status": {"phase": "Pending"},
            "metadata": {"name": name, "namespace": namespace, "uid": uid,
                "creationTimestamp": "2026-01-01T00:00:00Z"},
        });
        self.shared.put(key("pods", namespace, name), pod);
    }

    /// Makes a secret of a Docker configuration, as `imagePullSecrets` names it.
    pub(crate) fn add_pull_secret(&self, namespace: &str, name: &str, config: &Value) {
        use base64::Engine as _;
        let data = base64::engine::general_purpose::STANDARD.encode(config.to_string());
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}")},
            "data": {".dockerconfigjson": data},
        });
        self.shared.put(key("secrets", namespace, name), secret);
    }

    /// A pod with what the kubelet has said of it.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        self.shared.lock().objects.get(&key("pods", namespace, name)).cloned()
    }

    /// The node, once the kubelet has registered it.
    pub(crate) fn node(&self) -> Option<Value> {
        self.shared.lock().objects.get(&key("nodes", "", NODE)).cloned()
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // Watches never end by themselves.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an object, new or changed, and gives it with its version.
    fn put(&self, key: Key, mut object: Value) -> Value {
        let mut state = self.lock();
        let version = state.changes.len() + 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let what = if state.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        state.changes.push((key.0.clone(), json!({"type": what, "object": object})));
        state.objects.insert(key, object.clone());
        self.changed.send_replace(version as u64);
        object
    }

    fn remove(&self, key: &Key) -> Option<Value> {
        let mut state = self.lock();
        let mut object = state.objects.remove(key)?;
        object["metadata"]["resourceVersion"] = json!((state.changes.len() + 1).to_string());
        state.changes.push((key.0.clone(), json!({"type": "DELETED", "object": object})));
        self.changed.send_replace(state.changes.len() as u64);
        Some(object)
    }

    fn get(&self, key: &Key) -> Option<Value> {
        self.lock().objects.get(key).cloned()
    }

    /// Everything there is of a resource.
    fn list(&self, resource: &str, group: &str) -> Value {
        let kind = match resource {
            "pods" => "PodList",
            "nodes" => "NodeList",
            "services" => "ServiceList",
            "runtimeclasses" => "RuntimeClassList",
            "csidrivers" => "CSIDriverList",
            _ => "List",
        };
        let state = self.lock();
        let items: Vec<_> =
            state.objects.iter().filter(|(key, _)| key.0 == resource).map(|(_, object)| object).collect();
        let metadata = json!({"resourceVersion": state.changes.len().to_string()});
        json!({"apiVersion": group, "kind": kind, "metadata": metadata, "items": items})
    }

    /// What has changed since a version, for as long as somebody reads it.
    fn watch(self: Arc<Self>, resource: String, since: usize) -> Body {
        let changed = self.changed.subscribe();
        Body::from_stream(stream::unfold((self, changed, since), move |(shared, mut changed, since)| {
            let resource = resource.clone();
            async move {
                loop {
                    let (lines, seen) = {
                        let state = shared.lock();
                        let new = state.changes.iter().skip(since).filter(|(of, _)| *of == resource);
                        let lines: String = new.map(|(_, change)| format!("{change}\n")).collect();
                        (lines, state.changes.len())
                    };
                    if !lines.is_empty() {
                        return Some((Ok::<_, Infallible>(lines), (shared, changed, seen)));
                    }
                    changed.changed().await.ok()?;
                }
            }
        }))
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    RawQuery(query): RawQuery,
    body: Bytes,
) -> Response {
    let query = query.unwrap_or_default();
    let argument = |name: &str| {
        let pair = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        pair.unwrap_or_default().to_owned()
    };
    let Some(target) = Target::of(uri.path()) else { return refusal(StatusCode::NOT_FOUND) };
    let sent: Value = serde_json::from_slice(&body).unwrap_or_default();
    let Target { group, resource, namespace, name } = target;
    let Some(name) = name else {
        return match method {
            Method::GET if argument("sendInitialEvents") == "true" => {
                // The kubelet lists instead.
                refusal(StatusCode::UNPROCESSABLE_ENTITY)
            }
            Method::GET if argument("watch") == "true" || argument("watch") == "1" => {
                shared.watch(resource, argument("resourceVersion").parse().unwrap_or(0)).into_response()
            }
            Method::GET => Json(shared.list(&resource, &group)).into_response(),
            // Nobody reads these.
            Method::POST if resource == "events" => (StatusCode::CREATED, Json(sent)).into_response(),
            Method::POST => {
                let name = sent["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let created = shared.put((resource, namespace, name), sent);
                (StatusCode::CREATED, Json(created)).into_response()
            }
            _ => refusal(StatusCode::METHOD_NOT_ALLOWED),
        };
    };
    let key = (resource, namespace, name);
    let done = match method {
        Method::GET => shared.get(&key),
        Method::PUT => Some(shared.put(key, sent)),
        Method::PATCH => shared.get(&key).map(|mut object| {
            merge(&mut object, &sent);
            shared.put(key, object)
        }),
        Method::DELETE => shared.remove(&key),
        _ => None,
    };
    done.map_or_else(|| refusal(StatusCode::NOT_FOUND), |object| Json(object).into_response())
}

// === impl Target ===

impl Target {
    /// `/api/v1/…` or `/apis/GROUP/VERSION/…`, then `namespaces/NAMESPACE/` where there is one, then
    /// `RESOURCE[/NAME[/SUBRESOURCE]]`. The kubelet changes the status of things in place.
    fn of(path: &str) -> Option<Self> {
        let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let group: Vec<_> =
            parts.drain(..if parts.first() == Some(&"api") { 2 } else { 3 }.min(parts.len())).collect();
        let namespace = match parts[..] {
            ["namespaces", namespace, _, ..] => {
                let namespace = namespace.to_owned();
                parts.drain(..2);
                namespace
            }
            _ => String::new(),
        };
        let name = parts.get(1).map(|&name| name.to_owned());
        Some(Self { group: group[1..].join("/"), resource: (*parts.first()?).to_owned(), namespace, name })
    }
}

fn key(resource: &str, namespace: &str, name: &str) -> Key {
    (resource.to_owned(), namespace.to_owned(), name.to_owned())
}

fn refusal(status: StatusCode) -> Response {
    let reason = if status == StatusCode::NOT_FOUND { "NotFound" } else { "Invalid" };
    let body = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason,
        "code": status.as_u16(), "message": "the lab has no such thing"});
    (status, Json(body)).into_response()
}

/// A strategic merge, as far as kubelets need it: conditions go by their type, other lists are replaced.
fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (field, value) in patch.iter().filter(|(field, _)| !field.starts_with('$')) {
                if value.is_null() {
                    into.remove(field);
                } else {
                    merge(into.entry(field).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(into), Value::Array(patch)) if patch.iter().all(|one| one["type"].is_string()) => {
            for one in patch {
                match into.iter_mut().find(|other| other["type"] == one["type"]) {
                    Some(other) => merge(other, one),
                    None => into.push(one.clone()),
                }
            }
        }
        (into, patch) => {
            *into = match patch {
                Value::Object(_) => {
                    let mut empty = Value::Object(Map::new());
                    merge(&mut empty, patch);
                    empty
                }
                _ => patch.clone(),
            }
        }
    }
}
