//! Items wait for disk space.

use crisp::prepull::item::{Reason, State};
use serde_json::json;

use super::{Lab, OPTIONS, SPACE, bytes_of, requests, sent, small};
use crate::registry::ImageBuilder;

const MIB: usize = 1 << 20;

impl Lab {
    pub(super) async fn an_item_waits_for_disk_space(&mut self) {
        self.restart_with(&["--prepull-disk-floor-bytes", "1TiB"]);
        let image = small(600);
        let name = self.open.push("floor:1", &image);
        let id = self.ask(&name, json!({})).await;
        let pressed = |item: &crisp::prepull::Item| item.status.reason == Reason::DiskPressure;
        let item = self.until_item(id, "waits for space", pressed).await;
        assert_eq!(item.status.state, State::Waiting, "{item:#?}");
        let words = &item.status.message;
        assert!(words.contains("must stay free") && words.contains("prepull.diskFloorBytes"), "{words}");
        assert!(item.status.until.is_some(), "it says when it is tried again");
        assert_eq!(requests(&self.open, "floor").len(), 0, "the registry was not even asked");
        let waiting = self.ask(&name, json!({ "owner": "another" })).await;
        self.until_item(waiting, "waits for space", pressed).await;
        self.cancel(waiting).await;
        let mut figure = String::from("below the floor: waits as DiskPressure, 0 requests");
        let again = self.item(id).await;
        assert_eq!(again.status.reason, Reason::DiskPressure, "{again:#?}");

        if self.containerd.is_some() {
            figure += &self.one_image_is_too_large().await;
        }
        self.restart_with(&["--prepull-disk-floor-bytes", "0B"]);
        self.retry(id).await;
        self.success_of(id).await;
        assert!(self.cri.image(&name).await.is_some());
        self.tell(&figure);
    }

    /// Only containerd tells how large an image is before it comes.
    async fn one_image_is_too_large(&mut self) -> String {
        self.restart_with(&["--prepull-disk-floor-bytes", "0B", "--prepull-disk-factor", "100"]);
        let layer = usize::try_from(SPACE).expect("a size") * MIB / 100 / 2;
        let image = (610..613).fold(ImageBuilder::default(), |image, seed| image.noise(layer, seed)).build();
        let (name, size) = (self.open.push("large:1", &image), bytes_of(&image));
        self.open.throttle(Some(MIB as u64));
        let id = self.ask(&name, json!({})).await;
        let pressed = |item: &crisp::prepull::Item| item.status.reason == Reason::DiskPressure;
        let item = self.until_item(id, "waits for space", pressed).await;
        let words = item.status.message;
        assert!(words.contains("to download, times 100"), "{words}");
        assert_eq!(self.crisp.pulls().await, [], "the pull was given up");
        let came = sent(&self.open, "large");
        assert!(came < size / 4, "{came} of {size} bytes came");
        assert_eq!(self.open.requests_to("/large/manifests/"), 1);
        self.is_nowhere(&name, &image).await;
        // One that is small enough goes on beside it.
        let other = self.open.push("small:1", &small(620));
        let other = self.ask(&other, json!({})).await;
        self.success_of(other).await;

        self.open.throttle(None);
        self.restart_with(&["--prepull-disk-floor-bytes", "0B"]);
        self.retry(id).await;
        self.success_of(id).await;
        let share = sent(&self.open, "large") as f64 / size as f64;
        assert!(share <= 1.01, "{share}");
        format!(
            "; one image too large: {:.3} of it came before it was given up; with more space it goes on, {share:.4} sent in all",
            came as f64 / size as f64
        )
    }

    /// Starts crisp with other settings of disk space.
    fn restart_with(&mut self, disk: &[&str]) {
        let options: Vec<&str> = OPTIONS.iter().take(OPTIONS.len() - 2).chain(disk).copied().collect();
        self.crisp.restart_with(&options);
    }
}
