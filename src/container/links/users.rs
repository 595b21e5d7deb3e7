//! The pods of this node that use links, as the runtime knows them: their sandboxes carry the pods' annotations, so that
//! nothing need be remembered, and a pod is gone from here when it is gone from the node.

use std::time::Duration;

use k8s_cri::v1::{
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, PodSandboxMetadata, PodSandboxState,
};

use super::{Links, Pod};
use crate::container::service_links::{DEPENDENCIES, Dependencies, ENV_FROM, EnvFrom};
use crate::cri::{Method, ask};
use crate::error::{Error, Kind, Origin};

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

impl Links {
    /// Asks the runtime for the pods that use links.
    pub async fn users(&self) -> Result<Vec<User>, Error> {
        let request = ListPodSandboxRequest::default();
        let asked = ask::ask::<ListPodSandboxResponse>(&self.shared.call, Method::LIST_POD_SANDBOX, &request);
        let reply = tokio::time::timeout(PATIENCE, asked).await.map_err(|_elapsed| {
            Error::new(Kind::Unavailable, Origin::Runtime, "the runtime does not list its pods within 2 s")
        })??;
        let mut users: Vec<_> = reply.items.into_iter().filter_map(user).collect();
        users.sort_by(|a, b| (&a.pod.namespace, &a.pod.name).cmp(&(&b.pod.namespace, &b.pod.name)));
        Ok(users)
    }
}

/// The user that a sandbox is of, if it is ready and one. An annotation that cannot be read asks for nothing.
fn user(sandbox: PodSandbox) -> Option<User> {
    let of = |key| sandbox.annotations.get(key).map(String::as_bytes);
    let (dependencies, env_from) = (of(DEPENDENCIES), of(ENV_FROM));
    if sandbox.state() != PodSandboxState::SandboxReady || (dependencies.is_none() && env_from.is_none()) {
        return None;
    }
    let dependencies = dependencies.and_then(|value| Dependencies::parse(value).ok()).unwrap_or_default();
    let env_from = env_from.and_then(|value| EnvFrom::parse(value).ok()).unwrap_or_default();
    let PodSandboxMetadata { name, uid, namespace, .. } = sandbox.metadata.unwrap_or_default();
    Some(User { pod: Pod { namespace, name, uid }, dependencies, env_from })
}
