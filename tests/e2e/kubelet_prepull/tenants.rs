//! An image that was pulled ahead with one tenant's credentials is of no use to another.

use std::time::Duration;

use axum::http::Method;
use k8s_cri::v1::ListImagesRequest;
use serde_json::{Value, json};

use super::{ANY_DISK, KUBELET, LIMIT, Lab, runnable};
use crate::lab::client::Cri;
use crate::lab::cluster::Cluster;
use crate::lab::kubelet::{Kubelet, idle_container};
use crate::lab::wait;
use crate::registry::{Auth, Image};
use crate::report;

/// What a container waits for that cannot have its image.
const REFUSED: [&str; 3] = ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"];

#[test]
fn a_private_image_is_of_use_to_its_owner_only() {
    let Some(mut lab) = Lab::start("tenants of private images", &ANY_DISK) else { return };
    lab.registry.require(Auth::Basic("owner", "secret"));
    let image = runnable(5_000_000);
    let name = lab.registry.push("private/app:1", &image);
    let secret = json!({"registry": lab.registry.host(), "username": "owner", "password": "secret"});
    let ids = lab.prepull(&[json!({"image": name, "secrets": [secret]})]);
    let pins = lab.pins();
    assert!(pins.len() == 1 && pins[0]["id"] == ids[0] && pins[0]["how"] == "parked", "{pins:?}");

    // Without crisp, and then with it.
    lab.crisp.stop();
    let cluster = Cluster::shared();
    for namespace in ["owner", "other"] {
        cluster.add_namespace(namespace);
    }
    let endpoint = lab.node.endpoint();
    lab.kubelet = Some(Kubelet::start_as_told(&lab.groups, KUBELET, &endpoint, Some(&cluster), &json!({})));
    lab.others_are_refused(&cluster, &name, &image);
    lab.kubelet = None;
    lab.crisp.restart();
    lab.start_kubelet(Some(&cluster), &json!({}));
    lab.others_are_refused(&cluster, &name, &image);
    lab.nobody_sees(&image);

    let before = lab.registry.requests().len();
    let auths = json!({lab.registry.host(): {"username": "owner", "password": "secret"}});
    add_pull_secret(&cluster, "owner", "registry", &json!({"auths": auths}));
    let spec = json!({"containers": [idle_container(&name)], "imagePullSecrets": [{"name": "registry"}]});
    lab.add_pod(&cluster, "owner", "app", &spec);
    wait::until("the owner's pod runs", LIMIT, || running(&cluster.pod("owner", "app")?).then_some(()));
    let requests: Vec<_> = lab.registry.requests().split_off(before);
    // A registry answers 401 first to who shows nothing; others go on asking in vain.
    let granted: Vec<_> = requests.iter().filter(|seen| seen.status != 401).collect();
    assert!(granted.len() == 1 && granted[0].method == Method::HEAD, "{requests:#?}");
    assert_eq!(granted[0].path, "/v2/private/app/manifests/1");
    assert!(requests.iter().all(|seen| !seen.path.contains("/blobs/")), "{requests:#?}");

    // From now on the image is there, and the kubelet itself knows who may use it.
    assert!(lab.has(&name));
    lab.others_are_refused(&cluster, &name, &image);
    report::add_note(
        "a private image, pulled ahead: pods of others do not start from it by tag, digest or ID, with crisp or \
         without; the owner's pod starts after one HEAD",
    );
}

// === impl Lab ===

impl Lab {
    /// Pods that name the image in every way that a kubelet takes, and have no credentials.
    fn others_are_refused(&self, cluster: &Cluster, name: &str, image: &Image) {
        let repository = name.strip_suffix(":1").expect("a tag");
        let forms = [
            name.to_owned(),
            format!("{repository}@{}", image.digest()),
            format!("{name}@{}", image.digest()),
            // By the image's ID: to the kubelet that is a name with a tag, to containerd it is the ID.
            image.id.clone(),
        ];
        let mut pods = Vec::new();
        for (number, form) in forms.iter().enumerate() {
            for policy in ["IfNotPresent", "Never"] {
                let mut container = idle_container(form);
                container["imagePullPolicy"] = json!(policy);
                let pod =
                    format!("form-{number}-{}-{}", policy.to_lowercase(), self.registry.requests().len());
                self.add_pod(cluster, "other", &pod, &json!({"containers": [container]}));
                pods.push((pod, form, policy));
            }
        }
        for (pod, form, policy) in pods {
            let mut last = Value::Null;
            let refused = wait::try_until(Duration::from_secs(60), || {
                last = cluster.pod("other", &pod)?;
                assert!(!running(&last), "{form}, {policy}: {last:#}");
                let reason = &last["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
                REFUSED.iter().any(|refused| reason == refused).then_some(())
            });
            assert!(refused.is_some(), "{form}, {policy}: {last:#}");
        }
    }

    /// By crisp's word and by containerd's own.
    fn nobody_sees(&self, image: &Image) {
        for socket in [&self.node.socket, &self.crisp.socket] {
            let (list, by_id) = self.background.block_on(async {
                let mut cri = Cri::new(socket);
                let list = cri.images.list_images(ListImagesRequest::default()).await;
                (list.expect("ListImages").into_inner().images, cri.image(&image.id).await)
            });
            assert!(list.iter().all(|other| other.id != image.id), "{list:#?}");
            assert_eq!(by_id, None);
        }
    }
}

/// Makes a secret of a Docker configuration, as `imagePullSecrets` names it.
fn add_pull_secret(cluster: &Cluster, namespace: &str, name: &str, config: &Value) {
    let secret = json!({
        "type": "kubernetes.io/dockerconfigjson", "metadata": {"name": name},
        "stringData": {".dockerconfigjson": config.to_string()},
    });
    cluster.create(&format!("/api/v1/namespaces/{namespace}/secrets"), &secret);
}

/// Whether the pod's container has ever started.
fn running(pod: &Value) -> bool {
    let container = &pod["status"]["containerStatuses"][0];
    container["started"] == true || container["state"]["running"].is_object()
}
