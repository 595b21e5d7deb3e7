//! What the admin API tells of pulls under way.

use std::time::Duration;

use crisp::pull::progress::PullPhase;

use super::{Lab, Who, pulled};
use crate::registry::ImageBuilder;

/// Slow enough that a rate can be seen, which is measured once a second.
const SPEED: u64 = 2 << 20;

impl Lab {
    pub(super) async fn progress_is_told(&mut self) {
        let image =
            ImageBuilder::default().noise(4 << 20, 600).noise(3 << 20, 601).noise(2 << 20, 602).build();
        let name = self.registry.push("progress:1", &image);
        self.registry.throttle_in_all(Some(SPEED));
        let pull = self.pull(&name, Who::Pod(0));
        let mut looks = Vec::new();
        while !pull.is_finished() {
            looks.extend(self.crisp.pulls().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        pulled(pull).await;
        self.registry.throttle_in_all(None);
        assert_eq!(self.crisp.pulls().await, [], "nothing is under way any more");

        let told = |phase| looks.iter().filter(move |pull| pull.phase == phase);
        assert!(looks.iter().all(|pull| pull.image == name && pull.waiters == 1), "{looks:#?}");
        assert!(looks.iter().all(|pull| pull.pod.as_deref() == Some("default/pod-0")), "{looks:#?}");
        if self.containerd.is_none() {
            let known =
                looks.iter().any(|pull| pull.phase != PullPhase::Pulling || pull.bytes_total.is_some());
            return assert!(!known && !looks.is_empty(), "CRI-O does not tell more: {looks:#?}");
        }
        let total: u64 = image.blobs.iter().filter(|(digest, _)| *digest != image.id).map(size).sum();
        assert!(told(PullPhase::Downloading).count() > 5, "{looks:#?}");
        assert!(told(PullPhase::Downloading).all(|pull| pull.bytes_total == Some(total)), "{looks:#?}");
        assert!(told(PullPhase::Downloading).all(|pull| pull.layers_total == Some(3)), "{looks:#?}");
        assert!(looks.is_sorted_by_key(|pull| pull.bytes_done), "it only goes up: {looks:#?}");
        let mut steps: Vec<_> = looks.iter().map(|pull| pull.bytes_done).collect();
        steps.dedup();
        assert!(steps.len() >= 3, "it is seen to go up: {steps:?}");
        let last = told(PullPhase::Downloading).rfind(|pull| pull.rate.is_some()).expect("a rate");
        let rate = last.rate.expect("a rate");
        let near = SPEED * 2 / 3..SPEED * 4 / 3;
        assert!(near.contains(&rate), "{rate} bytes per second of {SPEED}: {looks:#?}");
        assert_eq!(last.eta_seconds, Some((total - last.bytes_done) / rate));
        self.tell(&format!("progress: {rate} bytes per second are told on a line of {SPEED}"));
    }
}

fn size((_, data): &(String, bytes::Bytes)) -> u64 {
    data.len() as u64
}
