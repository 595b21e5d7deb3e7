//! What pre-pulls are good for, with a real kubelet: pods find images that came from elsewhere, garbage collection
//! leaves pinned ones alone, a full disk costs no pod, and nobody starts from another tenant's images.

mod full_disk;
mod tenants;

use std::time::Duration;

use crisp::admin::client as admin;
use serde_json::{Value, json};

use crate::lab::cgroup::CgroupRoot;
use crate::lab::client::Cri;
use crate::lab::cluster::{self, Cluster};
use crate::lab::containerd::Containerd;
use crate::lab::crisp::Crisp;
use crate::lab::kubelet::Kubelet;
use crate::lab::node::Kind;
use crate::lab::parts::{self, peer_dir};
use crate::lab::wait;
use crate::registry::{Image, ImageBuilder, Registry};
use crate::report;

const RUNTIME: &str = "containerd-2.4.2";
const KUBELET: &str = "kubelet-1.36.3";

const LIMIT: Duration = Duration::from_secs(120);

/// A disk that happens to be full says nothing about crisp, except where that is what is tried.
const ANY_DISK: [&str; 6] =
    ["--prepull-pin-floor", "0%", "--prepull-disk-floor-percent", "0%", "--prepull-disk-floor-bytes", "0B"];

/// A node with crisp, and a registry of its own. The order of the fields is that in which they go.
struct Lab {
    kubelet: Option<Kubelet>,
    crisp: Crisp,
    node: Containerd,
    groups: CgroupRoot,
    registry: Registry,
    background: tokio::runtime::Runtime,
}

#[test]
fn an_image_from_another_registry_is_used_under_its_own_name() {
    let Some(mut lab) = Lab::start("an overridden image in a pod", &ANY_DISK) else { return };
    let elsewhere = lab.another_registry();
    elsewhere.push("mirror/app:1", &runnable(1_000_000));
    let name = format!("{}/app:1", lab.registry.host());
    let rules = [
        json!({"component": "Registry", "operator": "replace", "value": elsewhere.host()}),
        json!({"component": "Repository", "operator": "replace", "value": "mirror/app"}),
    ];
    let item = json!({"image": name, "overriders": [{"overriders": {"imageOverriders": rules}}]});
    lab.prepull(&[item]);
    lab.start_kubelet(None, &json!({}));
    let kubelet = lab.kubelet.as_mut().expect("a kubelet");
    kubelet.add_idle_pod("app", &name);
    assert_eq!(kubelet.wait_running("app", LIMIT).restarts, 0);
    assert!(lab.registry.requests().is_empty(), "{:#?}", lab.registry.requests());
    assert_eq!(lab.crisp.metric("crisp_pulls_total"), 1, "{}", lab.crisp.metrics());
}

/// The kubelet collects images every ten seconds while there is less space than its eviction threshold wants. It cannot
/// evict a static pod.
#[test]
fn garbage_collection_spares_what_is_pinned() {
    let pressed = json!({
        "evictionHard": {"nodefs.available": "99%"}, "imageMinimumGCAge": "1s",
        "imageGCHighThresholdPercent": 2, "imageGCLowThresholdPercent": 1,
    });
    collects_garbage(&pressed, "Attempting to delete unused images", 2, LIMIT);
}

/// The same by the thresholds of image garbage collection alone, which the kubelet looks at every five minutes.
#[test]
#[ignore = "part of make e2e-all"]
fn garbage_collection_by_its_own_thresholds_spares_what_is_pinned() {
    let low = json!({
        "imageMinimumGCAge": "1s", "imageGCHighThresholdPercent": 2, "imageGCLowThresholdPercent": 1,
    });
    let words = "Disk usage on image filesystem is over the high threshold";
    collects_garbage(&low, words, 1, Duration::from_secs(700));
}

/// `words` is what the kubelet logs with every collection, of which a pinned image outlives `rounds` that an image
/// without a pin does not.
fn collects_garbage(config: &Value, words: &str, rounds: usize, limit: Duration) {
    let Some(mut lab) = Lab::start("garbage collection of images", &ANY_DISK) else { return };
    let names = ["used:1", "plain:1", "pinned:1", "timed:1"];
    let images = names.map(|_| runnable(1_000_000));
    let [used, plain, pinned, timed] = [0, 1, 2, 3].map(|n| lab.registry.push(names[n], &images[n]));
    let ids = lab.prepull(&[
        json!({"image": plain}),
        json!({"image": pinned, "pin": "withOwner"}),
        json!({"image": timed, "pin": {"seconds": 40}}),
    ]);
    lab.start_kubelet(None, config);
    let kubelet = lab.kubelet.as_mut().expect("a kubelet");
    kubelet.add_idle_pod("pod", &used);
    let before = kubelet.wait_running("pod", limit);

    wait::until("an image without a pin goes", limit, || (!lab.has(&plain)).then_some(()));
    let so_far = lab.collections(words);
    wait::until("more garbage is collected", limit, || {
        (lab.collections(words) >= so_far + rounds).then_some(())
    });
    assert!(lab.has(&pinned), "a pinned image went");
    assert!(lab.pins().iter().any(|pin| pin["id"] == ids[1] && pin["how"] == "pinned"), "{:?}", lab.pins());

    lab.cancel(ids[1]);
    wait::until("it goes when nobody wants it", limit, || (!lab.has(&pinned)).then_some(()));
    wait::until("one that was pinned for a time goes", limit, || (!lab.has(&timed)).then_some(()));
    assert_eq!(lab.pins(), Vec::<Value>::new());
    assert_eq!(lab.kubelet.as_ref().expect("a kubelet").running("pod"), Some(before), "the pod was touched");
    let log = lab.kubelet.as_ref().expect("a kubelet").log();
    for image in &images[1..] {
        let removed = log.lines().filter(|line| line.contains("Removing image to free bytes"));
        assert_eq!(removed.filter(|line| line.contains(&image.id)).count(), 1, "{}", image.id);
    }
    report::add_note(&format!(
        "image garbage collection ({words}): after {so_far} rounds an image without a pin is gone, after {} a pinned \
         one is there, after {} also that one is gone, its pin cancelled",
        so_far + rounds,
        lab.collections(words)
    ));
}

// === impl Lab ===

impl Lab {
    /// Everything but the kubelet, unless this machine lacks a part.
    fn start(test: &str, options: &[&str]) -> Option<Self> {
        Self::start_with(test, options, Containerd::start)
    }

    fn start_with(
        test: &str,
        options: &[&str],
        start: impl FnOnce(&std::path::Path) -> Containerd,
    ) -> Option<Self> {
        if let Some(reason) =
            Kind::Containerd(RUNTIME).missing(&[KUBELET, cluster::PEERS[0], cluster::PEERS[1]])
        {
            parts::skip(test, &reason);
            return None;
        }
        let background = tokio::runtime::Runtime::new().expect("a runtime");
        let registry = background.block_on(Registry::start());
        let groups = CgroupRoot::new();
        let node = start(&peer_dir(RUNTIME).join("containerd"));
        node.trust(&registry.host());
        let crisp = Crisp::start_with(&node.endpoint(), options);
        Some(Self { kubelet: None, crisp, node, groups, registry, background })
    }

    /// Starts a kubelet that speaks with crisp.
    fn start_kubelet(&mut self, cluster: Option<&Cluster>, more: &Value) {
        let endpoint = self.crisp.endpoint();
        self.kubelet = Some(Kubelet::start_as_told(&self.groups, KUBELET, &endpoint, cluster, more));
    }

    /// Gives the kubelet a pod through the API server.
    fn add_pod(&self, cluster: &Cluster, namespace: &str, name: &str, spec: &Value) {
        let node = self.kubelet.as_ref().expect("a kubelet").node();
        cluster.add_pod((namespace, name), node, &json!({}), spec);
    }

    fn another_registry(&self) -> Registry {
        let registry = self.background.block_on(Registry::start());
        self.node.trust(&registry.host());
        registry
    }

    /// Has images pulled ahead of time, waits until they are there, and gives the items' numbers.
    fn prepull(&self, items: &[Value]) -> Vec<u64> {
        let body = json!({"items": items}).to_string();
        let taken: Value = self
            .background
            .block_on(admin::post(&self.crisp.admin, "/v1/prepull", body, LIMIT))
            .expect("crisp takes the items");
        let taken = taken["items"].as_array().expect("a list");
        let ids: Vec<_> = taken.iter().map(|item| item["id"].as_u64().expect("a number")).collect();
        for id in &ids {
            wait::until("an image is pulled ahead", LIMIT, || {
                let status = self.ask(&format!("/v1/prepull/{id}"))["status"].clone();
                assert!(status["state"] != "failed", "{status:#}\n{}", self.crisp.log_tail());
                (status["state"] == "succeeded").then_some(())
            });
        }
        ids
    }

    fn cancel(&self, id: u64) {
        let path = format!("/v1/prepull/{id}");
        let done: Result<Value, _> = self.background.block_on(admin::delete(&self.crisp.admin, &path));
        done.expect("crisp cancels the item");
    }

    /// What is kept for owners, pinned or parked.
    fn pins(&self) -> Vec<Value> {
        self.ask("/v1/pins")["items"].as_array().expect("a list").clone()
    }

    fn ask(&self, path: &str) -> Value {
        self.background.block_on(admin::get(&self.crisp.admin, path)).expect("crisp answers")
    }

    /// Whether the runtime has an image by this name.
    fn has(&self, name: &str) -> bool {
        self.background.block_on(async { Cri::new(&self.node.socket).image(name).await }).is_some()
    }

    /// How often the kubelet has logged something.
    fn collections(&self, words: &str) -> usize {
        self.kubelet.as_ref().expect("a kubelet").log().matches(words).count()
    }
}

/// An image that runs, with a layer of so many random bytes.
fn runnable(bytes: usize) -> Image {
    let busybox = std::fs::read(parts::find("busybox").expect("busybox")).expect("read busybox");
    ImageBuilder::default().program("bin/busybox", &busybox).random(bytes).build()
}
