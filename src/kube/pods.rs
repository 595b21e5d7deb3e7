//! The pods of this node.

use std::collections::HashMap;

use serde::Deserialize;

use super::Kube;
use super::client::get;
use crate::container::census::PodImages;
use crate::error::Error;

#[derive(Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    annotations: HashMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    containers: Vec<Container>,
    #[serde(default)]
    init_containers: Vec<Container>,
    #[serde(default)]
    ephemeral_containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    #[serde(default)]
    image: String,
}

/// What a static pod's mirror carries: the uid that its kubelet made of the file.
const MIRROR_OF: &str = "kubernetes.io/config.mirror";

impl Kube {
    /// The pods of this node with their images.
    pub async fn pods_of_node(&self) -> Result<Vec<PodImages>, Error> {
        // "Any version" is answered from the API server's index by node, as for kubelets; else it would go through all
        // pods of the cluster.
        let node = self.node();
        let path = format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&resourceVersion=0");
        let what = format!("list the pods of node {node}");
        let list: Option<PodList> = self.ask(&what, get(&path)?).await?;
        let list = list.ok_or_else(|| self.failed(&what, "404"))?;
        Ok(list.items.into_iter().map(PodImages::from).collect())
    }
}

impl From<Pod> for PodImages {
    fn from(Pod { mut metadata, spec }: Pod) -> Self {
        let containers =
            spec.containers.into_iter().chain(spec.init_containers).chain(spec.ephemeral_containers);
        let mirror_of = metadata.annotations.remove(MIRROR_OF);
        Self {
            uid: metadata.uid,
            mirror_of,
            images: containers.map(|container| (container.name, container.image)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_read_whatever_else_it_has() {
        let text = r#"{"kind":"PodList","items":[{"metadata":{"namespace":"a","name":"b","uid":"u",
            "annotations":{"kubernetes.io/config.mirror":"m","kubernetes.io/config.hash":"m","x":"y"}},
            "spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A"}]}],
            "initContainers":[{"name":"d","image":"j"}],"ephemeralContainers":[{"name":"e","image":"k"}]}},
            {"metadata":{"name":"bare"},"spec":{}}]}"#;
        let list: PodList = serde_json::from_str(text).unwrap();
        let pods: Vec<_> = list.items.into_iter().map(PodImages::from).collect();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!((pods[0].uid.as_str(), pods[0].mirror_of.as_deref()), ("u", Some("m")));
        assert_eq!(pods[0].images, [pair("c", "i"), pair("d", "j"), pair("e", "k")]);
        assert_eq!((&pods[1].mirror_of, pods[1].images.len()), (&None, 0));
    }
}
