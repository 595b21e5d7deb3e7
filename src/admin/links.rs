//! What the admin API says of pods that ask for Services.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::{Deserialize, Serialize};

use crate::admin::status::Reporter;
use crate::container::links::{Links, User, WaitingPod};

/// The pods of this node that use links or wait for them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinksReport {
    /// Those that wait first, the longest wait first.
    pub pods: Vec<LinkedPod>,
    /// Why pods may be missing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// One pod.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its uid.
    pub uid: String,
    /// `waiting`, `refused` (the kubelet comes again) or `started`.
    pub state: String,
    /// Services that it waits for.
    pub missing: Vec<String>,
    /// Seconds since it began to wait, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<u64>,
    /// Services that it depends on, as far as its sandbox was made with them.
    pub dependencies: Vec<String>,
    /// Services whose variables its containers get.
    pub env_from: Vec<LinkedEnv>,
}

/// Variables of a Service in a container.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkedEnv {
    /// The container.
    pub container: String,
    /// The Service.
    pub service: String,
    /// What the variables begin with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prefix: String,
}

/// `GET /v1/links`.
pub(super) async fn links(State(reporter): State<Arc<Reporter>>) -> Json<LinksReport> {
    Json(match &reporter.links {
        Some(links) => LinksReport::of(links).await,
        None => LinksReport {
            pods: Vec::new(),
            problem: Some("service links are off on this node (links.enabled: false)".into()),
        },
    })
}

// === impl LinksReport ===

impl LinksReport {
    async fn of(links: &Links) -> Self {
        let mut pods: Vec<_> = links.waiting().into_iter().map(LinkedPod::from).collect();
        let (users, problem) = match links.users().await {
            Ok(users) => (users, None),
            Err(error) => (Vec::new(), Some(error.message().to_owned())),
        };
        pods.extend(users.into_iter().map(LinkedPod::from));
        Self { pods, problem }
    }
}

// === impl LinkedPod ===

impl From<WaitingPod> for LinkedPod {
    fn from(WaitingPod { pod, missing, since, held }: WaitingPod) -> Self {
        Self {
            namespace: pod.namespace,
            pod: pod.name,
            uid: pod.uid,
            state: if held { "waiting" } else { "refused" }.into(),
            missing,
            waited_seconds: Some(since.as_secs()),
            ..Self::default()
        }
    }
}

impl From<User> for LinkedPod {
    fn from(User { pod, dependencies, env_from }: User) -> Self {
        let env = env_from.iter().flat_map(|(container, sources)| {
            sources.iter().map(|source| LinkedEnv {
                container: container.to_owned(),
                service: source.service.clone(),
                prefix: source.prefix.clone(),
            })
        });
        Self {
            namespace: pod.namespace,
            pod: pod.name,
            uid: pod.uid,
            state: "started".into(),
            dependencies: dependencies.names().to_vec(),
            env_from: env.collect(),
            ..Self::default()
        }
    }
}
