//! crisp is killed while it pulls.

use super::{Lab, Who, bytes_of, pulled, until};
use crate::registry::{Image, ImageBuilder};

impl Lab {
    pub(super) async fn a_crash_of_crisp_costs_hardly_a_byte(&mut self) {
        let (one, other) = (image(700), image(710));
        let name = self.registry.push("crash:1", &one);
        let forgotten = self.registry.push("forgotten:1", &other);
        self.registry.throttle_in_all(Some(4 << 20));
        let pulls = [self.pull(&name, Who::Pod(0)), self.pull(&forgotten, Who::Pod(1))];
        let third = bytes_of(&one) / 3;
        let there = async || self.sent("crash") > third && self.sent("forgotten") > third;
        until("a third is there", there).await;
        self.crisp.kill();
        for pull in pulls {
            pull.await.expect("no panic").expect_err("crisp is gone");
        }
        self.crisp.restart();
        if let Some(containerd) = &self.containerd {
            assert_eq!(containerd.list_leases().await.expect("list").len(), 2, "what crisp has left behind");
        }
        pulled(self.pull(&name, Who::Pod(0))).await;
        // Not before: what is sent at full speed to connections that are about to end is lost.
        self.registry.throttle_in_all(None);
        assert_eq!(self.crisp.pulls().await, [], "no pull is stuck");
        let Some(containerd) = &self.containerd else { return };

        // The lease of the other pull was not taken, and goes after the time that was set.
        let gone = async || containerd.list_leases().await.expect("list").is_empty();
        until("no lease is left", gone).await;
        let (sent, size) = (self.sent("crash"), bytes_of(&one));
        let share = sent as f64 / size as f64;
        let requests = self.requests("crash");
        assert!(requests.iter().any(|seen| seen.range.is_some() && seen.status == 206), "{requests:#?}");
        assert!(share <= 1.02, "{sent} bytes sent for {size}");
        assert!(self.crisp.metric("crisp_pull_resumed_bytes_total") > third);
        self.tell(&format!("kill -9 of crisp in the middle of a pull: {share:.4} of the image sent in all"));
    }
}

fn image(seed: u64) -> Image {
    ImageBuilder::default().noise(5 << 20, seed).noise(3 << 20, seed + 1).noise(1000, seed + 2).build()
}
