//! Services, and what becomes of them while somebody waits.

use ::kube::client::Body;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use http::Request;
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::io::StreamReader;

use super::Kube;
use super::client::{build, get, is_name};
use crate::container::links::{Change, Changes, Services};
use crate::container::service_links::{Port, Service};
use crate::error::{Error, Kind, Origin};

/// How long a watch goes on before the API server ends it and it is begun anew.
const WATCH_SECONDS: u32 = 30;

/// The longest line of a watch that is read. Only metadata is asked for, of which the API allows 256 KiB and some.
const MAX_LINE: usize = 2 << 20;

/// For a watch the names are enough.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=1,application/json";

#[derive(Deserialize)]
struct ServiceList {
    items: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    r#type: String,
    #[serde(default, rename = "clusterIP")]
    cluster_ip: String,
    #[serde(default)]
    ports: Vec<SpecPort>,
}

#[derive(Deserialize)]
struct SpecPort {
    #[serde(default)]
    name: String,
    port: u32,
    #[serde(default)]
    protocol: String,
}

/// A line of a watch. What it is about is read only when the kind of line is known.
#[derive(Deserialize)]
struct Line<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a serde_json::value::RawValue,
}

#[derive(Deserialize)]
struct Named {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
}

impl Services for Kube {
    fn get(&self, namespace: &str, name: &str) -> BoxFuture<'static, Result<Option<Service>, Error>> {
        let what = format!("read Service {namespace}/{name}");
        let path = path(namespace, Some(name));
        let kube = self.clone();
        async move {
            let object: Option<Object> = kube.ask(&what, get(&path?)?).await?;
            Ok(object.map(Service::from))
        }
        .boxed()
    }

    fn list(&self, namespace: &str) -> BoxFuture<'static, Result<Vec<Service>, Error>> {
        let what = format!("list the Services of namespace {namespace}");
        let path = path(namespace, None);
        let kube = self.clone();
        async move {
            let list: Option<ServiceList> = kube.ask(&what, get(&path?)?).await?;
            let list = list.ok_or_else(|| kube.failed(&what, "404"))?;
            Ok(list.items.into_iter().map(Service::from).collect())
        }
        .boxed()
    }

    fn watch(&self, namespace: &str) -> BoxFuture<'static, Result<Changes, Error>> {
        let what = format!("watch the Services of namespace {namespace}");
        let path = path(namespace, None);
        let kube = self.clone();
        async move {
            // From "any version": what exists comes first, out of the API server's memory.
            let path = format!("{}?watch=1&resourceVersion=0&timeoutSeconds={WATCH_SECONDS}", path?);
            let request = build(Request::get(path).header(http::header::ACCEPT, METADATA), Vec::new())?;
            let body = kube.open(&what, request).await?;
            Ok(changes(kube, what, body))
        }
        .boxed()
    }
}

fn changes(kube: Kube, what: String, body: Body) -> Changes {
    let bytes = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
    FramedRead::new(bytes, LinesCodec::new_with_max_length(MAX_LINE))
        .map(move |line| {
            let line = line.map_err(|error| kube.failed(&what, &error.to_string()))?;
            change(&line).map_err(|reason| kube.failed(&what, &reason))
        })
        .filter_map(|change| async move { change.transpose() })
        .boxed()
}

/// Reads a line of a watch.
fn change(line: &str) -> Result<Option<Change>, String> {
    let unreadable = |error: serde_json::Error| format!("an answer that cannot be read: {error}");
    let Line { r#type, object } = serde_json::from_str(line).map_err(unreadable)?;
    let name =
        || serde_json::from_str(object.get()).map(|Named { metadata }| metadata.name).map_err(unreadable);
    Ok(match r#type {
        "ADDED" | "MODIFIED" => Some(Change::Present(name()?)),
        "DELETED" => Some(Change::Gone(name()?)),
        "ERROR" => {
            let Status { message } = serde_json::from_str(object.get()).map_err(unreadable)?;
            return Err(message);
        }
        _ => None,
    })
}

fn path(namespace: &str, name: Option<&str>) -> Result<String, Error> {
    if !is_name(namespace) || name.is_some_and(|name| !is_name(name)) {
        let message = format!("{namespace:?} and {name:?} are no names of a namespace and a Service");
        return Err(Error::new(Kind::Invalid, Origin::Kubelet, message));
    }
    let mut path = format!("/api/v1/namespaces/{namespace}/services");
    if let Some(name) = name {
        path = format!("{path}/{name}");
    }
    Ok(path)
}

impl From<Object> for Service {
    fn from(Object { metadata, spec }: Object) -> Self {
        let port = |port: SpecPort| Port { name: port.name, port: port.port, protocol: port.protocol };
        Self {
            name: metadata.name,
            kind: spec.r#type,
            cluster_ip: spec.cluster_ip,
            ports: spec.ports.into_iter().map(port).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_read_line_by_line() {
        let line = |kind: &str, object: &str| change(&format!(r#"{{"type":"{kind}","object":{object}}}"#));
        let object = r#"{"kind":"PartialObjectMetadata","metadata":{"name":"a","labels":{"x":"y"}}}"#;
        assert_eq!(line("ADDED", object), Ok(Some(Change::Present("a".into()))));
        assert_eq!(line("MODIFIED", object), Ok(Some(Change::Present("a".into()))));
        assert_eq!(line("DELETED", object), Ok(Some(Change::Gone("a".into()))));
        assert_eq!(line("BOOKMARK", r#"{"metadata":{"resourceVersion":"7"}}"#), Ok(None));
        assert_eq!(line("ERROR", r#"{"code":410,"message":"too old"}"#), Err("too old".into()));
        for broken in ["", "{", "[]", r#"{"type":"ADDED"}"#, r#"{"type":"ADDED","object":7}"#] {
            assert!(change(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn a_service_is_read_whatever_else_it_has() {
        let text = r#"{"items":[{"metadata":{"name":"a"},"spec":{"type":"ClusterIP","clusterIP":"10.0.0.1","x":1,
            "ports":[{"name":"web","port":80,"targetPort":"http","protocol":"TCP"}]}},
            {"metadata":{"name":"b"},"spec":{"type":"ExternalName","externalName":"x.example"}}]}"#;
        let list: ServiceList = serde_json::from_str(text).unwrap();
        let services: Vec<_> = list.items.into_iter().map(Service::from).collect();
        assert_eq!((services[0].ports[0].port, services[0].cluster_ip.as_str()), (80, "10.0.0.1"));
        assert_eq!((services[1].kind.as_str(), services[1].ports.len()), ("ExternalName", 0));
    }

    #[test]
    fn only_names_become_paths() {
        assert_eq!(path("a", Some("b")).unwrap(), "/api/v1/namespaces/a/services/b");
        for wrong in ["", "a/b", "..", "A", "a?b", "a%2f"] {
            assert!(path(wrong, None).is_err() && path("a", Some(wrong)).is_err(), "{wrong}");
        }
    }
}
