//! What tests do at the API server, as with kubectl.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Cluster, User};

impl Cluster {
    /// Makes an object in the collection at `path` (`/api/v1/…`).
    pub(crate) fn create(&self, path: &str, object: &Value) -> Value {
        self.must(Method::POST, path, "application/json", object)
    }

    /// Changes a pod as `kubectl patch` does.
    pub(crate) fn patch_pod(&self, namespace: &str, name: &str, patch: &Value) {
        let path = pod_path(namespace, name);
        self.must(Method::PATCH, &path, "application/strategic-merge-patch+json", patch);
    }

    pub(crate) fn delete(&self, path: &str) {
        self.must(Method::DELETE, path, "application/json", &json!({}));
    }

    /// An object or a list of them; nothing if it is not there or the API server does not answer.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        let (status, answer) = self.ask(Method::GET, path, "application/json", String::new())?;
        (status == StatusCode::OK).then_some(answer)
    }

    pub(crate) fn add_namespace(&self, name: &str) {
        self.create("/api/v1/namespaces", &json!({"metadata": {"name": name}}));
    }

    /// Makes a pod that is bound to a node already. `metadata` and `spec` have all else that is not plain.
    pub(crate) fn add_pod(&self, at: (&str, &str), node: &str, metadata: &Value, spec: &Value) -> Value {
        let (namespace, name) = at;
        let mut pod = json!({"metadata": metadata, "spec": spec});
        pod["metadata"]["name"] = json!(name);
        let plain = json!({"nodeName": node, "dnsPolicy": "Default", "terminationGracePeriodSeconds": 2});
        for (key, value) in plain.as_object().into_iter().flatten() {
            if pod["spec"][key].is_null() {
                pod["spec"][key] = value.clone();
            }
        }
        self.create(&format!("/api/v1/namespaces/{namespace}/pods"), &pod)
    }

    /// A pod with what the kubelet has said of it.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Value> {
        self.get(&pod_path(namespace, name))
    }

    /// Makes a Service of TCP ports (name, number) at an address of its own; without one at any.
    pub(crate) fn add_service(&self, at: (&str, &str), address: Option<&str>, ports: &[(&str, u16)]) {
        let (namespace, name) = at;
        let port = |(name, number): &(&str, u16)| json!({"name": name, "port": number});
        let mut spec = json!({"ports": ports.iter().map(port).collect::<Vec<_>>()});
        if let Some(address) = address {
            spec["clusterIP"] = json!(address);
        }
        let service = json!({"metadata": {"name": name}, "spec": spec});
        self.create(&format!("/api/v1/namespaces/{namespace}/services"), &service);
    }

    /// The events of a namespace that are about an object of this name.
    pub(crate) fn events(&self, namespace: &str, name: &str) -> Vec<Value> {
        let path =
            format!("/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name%3D{name}");
        let list = self.get(&path).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    fn must(&self, method: Method, path: &str, content: &str, body: &Value) -> Value {
        let answer = self.ask(method.clone(), path, content, body.to_string());
        match answer {
            Some((status, answer)) if status.is_success() => answer,
            other => panic!("{method} {path}: {other:?}\n{}", self.log_tail()),
        }
    }

    pub(super) fn ask(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: String,
    ) -> Option<(StatusCode, Value)> {
        let request = self.client.request(method, format!("https://127.0.0.1:{}{path}", self.port));
        let request = request.bearer_auth(User::Admin.token()).header("content-type", content).body(body);
        self.background.block_on(async {
            let answer = request.send().await.ok()?;
            let status = answer.status();
            let text = answer.text().await.ok()?;
            Some((status, serde_json::from_str(&text).unwrap_or(Value::String(text))))
        })
    }
}

/// Where the API has a pod.
fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}
