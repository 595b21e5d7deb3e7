//! The pods of this node that use links, as the runtime knows them: their sandboxes carry the pods' annotations, so that
//! nothing need be remembered, and a pod is gone from here when it is gone from the node.

use std::time::Duration;

use super::{Links, Pod};
use crate::container::service_links::{DEPENDENCIES, Dependencies, ENV_FROM, EnvFrom};
use crate::cri::{Method, Raw};
use crate::error::{Error, Kind, Origin};
use crate::wire::{Field, Value, entry, fields, last};

/// A pod with a sandbox that was made with links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The pod.
    pub pod: Pod,
    /// What it depends on.
    pub dependencies: Dependencies,
    /// What its containers get variables of.
    pub env_from: EnvFrom,
}

/// How long the runtime has: who asks waits no longer than 5 s.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where a PodSandbox has its parts.
const METADATA: u32 = 2;
const STATE: [u32; 1] = [3];
const ANNOTATIONS: [u32; 1] = [6];

impl Links {
    /// Asks the runtime for the pods that use links.
    pub async fn users(&self) -> Result<Vec<User>, Error> {
        let asked = (self.shared.call)(Method::LIST_POD_SANDBOX, http::HeaderMap::new(), bytes::Bytes::new());
        let reply = tokio::time::timeout(PATIENCE, asked).await.map_err(|_elapsed| {
            Error::new(Kind::Unavailable, Origin::Runtime, "the runtime does not list its pods within 2 s")
        })??;
        let mut users = read(&reply)?;
        users.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
        Ok(users)
    }
}

fn read(reply: &Raw) -> Result<Vec<User>, Error> {
    if reply.code() != tonic::Code::Ok {
        let words = reply.grpc_message().and_then(|words| words.to_str().ok()).unwrap_or("no reason");
        return Err(Error::new(Kind::Unavailable, Origin::Runtime, format!("ListPodSandbox: {words}")));
    }
    let message = reply.unary_message()?;
    let mut users = Vec::new();
    for item in fields(&message) {
        let item = item.map_err(|error| {
            Error::new(Kind::Internal, Origin::Runtime, format!("ListPodSandbox: {error}"))
        })?;
        if let Field { number: 1, value: Value::Len(sandbox), .. } = item {
            users.extend(user(sandbox));
        }
    }
    Ok(users)
}

/// The user that a sandbox is of, if it is ready and one. One that cannot be read is none.
fn user(sandbox: &[u8]) -> Option<User> {
    let state = last(sandbox, STATE).ok()?.and_then(|value| value.as_u64()).unwrap_or_default();
    let of = |key| entry(sandbox, ANNOTATIONS, key).ok().flatten();
    let (dependencies, env_from) = (of(DEPENDENCIES), of(ENV_FROM));
    if state != 0 || (dependencies.is_none() && env_from.is_none()) {
        return None;
    }
    let text = |field: u32| {
        let found = last(sandbox, [METADATA, field]).ok().flatten();
        found.and_then(|value| value.as_str()).unwrap_or_default().to_owned()
    };
    Some(User {
        pod: Pod { name: text(1), uid: text(2), namespace: text(3) },
        dependencies: dependencies.and_then(|value| Dependencies::parse(value).ok()).unwrap_or_default(),
        env_from: env_from.and_then(|value| EnvFrom::parse(value).ok()).unwrap_or_default(),
    })
}
