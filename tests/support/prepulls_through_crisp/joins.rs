//! Pre-pulls beside pods' pulls: one pull for both, pods first, nothing fetched twice.

use axum::http::Method;
use crisp::prepull::item::Reason;
use crisp::pull::Class;
use serde_json::json;

use super::{Lab, bytes_of, pull, pulled, requests, sent, small, until};
use crate::registry::ImageBuilder;

const MIB: usize = 1 << 20;

impl Lab {
    pub(super) async fn a_pod_joins_a_pre_pull(&mut self) {
        let image = small(500);
        let name = self.open.push("joined:1", &image);
        let mut hold = self.open.hold("/joined/blobs/");
        // CRI-O's answer may depend on the namespace, so only pods of that one can join.
        let id = self.ask(&name, json!({ "sandbox": { "namespace": "default" } })).await;
        hold.reached(1).await;
        let pod = pull(&self.cri, &name, None);
        until("both wait", async || self.crisp.metric("crisp_pull_waiters") == 2).await;
        let [one] = self.crisp.pulls().await.try_into().expect("one pull");
        assert_eq!((one.class, one.waiters), (Class::Kubelet, 2), "{one:?}");
        drop(hold);
        self.open.behave();
        pulled(pod).await;
        assert_eq!(self.success_of(id).await.status.reason, Reason::Pulled);
        let seen = requests(&self.open, "joined");
        let of_manifest =
            |seen: &&crate::registry::Seen| seen.method == Method::GET && seen.path.contains("/manifests/");
        assert_eq!(seen.iter().filter(of_manifest).count(), 1, "{seen:#?}");
        for (digest, data) in &image.blobs {
            let of_blob: Vec<_> = seen.iter().filter(|seen| seen.path.ends_with(digest)).collect();
            assert_eq!((of_blob.len(), of_blob[0].sent), (1, data.len() as u64), "{of_blob:#?}");
        }
        self.tell(
            "a pod asks for what is being pre-pulled: one pull of its class, one manifest, each blob once",
        );
    }

    pub(super) async fn a_pre_pull_gives_way_and_goes_on(&mut self) {
        // containerd 2 fetches three layers at a time, of all its pulls together. With four each, one image was
        // nearly there before the other had begun, and had nothing left to give way with.
        let layers = |size, seed: u64| {
            (seed..seed + 2).fold(ImageBuilder::default(), |image, seed| image.noise(size, seed)).build()
        };
        let images = [layers(3 * MIB, 510), layers(3 * MIB, 520), layers(MIB, 530)];
        let names: Vec<_> = images
            .iter()
            .enumerate()
            .map(|(at, image)| self.open.push(&format!("line-{at}:1"), image))
            .collect();
        self.open.throttle_in_all(Some(5 * MIB as u64));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let ids = self.ask_for(&names, json!({})).await;
        // Two are pulled at a time, so the third waits; then a pod wants just that one.
        until("the others are under way", async || {
            sent(&self.open, "line-0") > MIB as u64 / 2 && sent(&self.open, "line-1") > MIB as u64 / 2
        })
        .await;
        assert_eq!(self.item(ids[2]).await.status.reason, Reason::Queued);
        let before = self.crisp.metric("crisp_pull_preemptions_total");
        let pod = pull(&self.cri, names[2], None);
        let waits = self.until_item(ids[0], "gives way", |item| item.status.reason == Reason::InLine).await;
        assert!(waits.status.message.contains("more urgent"), "{waits:#?}");
        pulled(pod).await;
        for id in &ids[..2] {
            let item = self.item(*id).await;
            assert!(!item.is_finished(), "the pod was first: {item:#?}");
        }
        for id in &ids[..2] {
            assert_eq!(self.success_of(*id).await.status.reason, Reason::Pulled);
        }
        self.open.throttle_in_all(None);
        self.success_of(ids[2]).await;
        let preempted = self.crisp.metric("crisp_pull_preemptions_total") - before;
        assert!(preempted >= 2, "{preempted}");
        let shares: Vec<f64> = images
            .iter()
            .enumerate()
            .map(|(at, image)| sent(&self.open, &format!("line-{at}")) as f64 / bytes_of(image) as f64)
            .collect();
        assert!(shares.iter().all(|share| *share <= 1.01), "{shares:?}");
        self.tell(&format!(
            "a pod's pull overtakes 2 pre-pulls: they gave way {preempted} times and went on, {shares:.4?} of each \
             image sent"
        ));
    }
}
