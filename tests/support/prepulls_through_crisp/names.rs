//! Under which names images are found: digests, names that come from elsewhere, tags that move.

use crisp::prepull::item::{How, Reason};
use serde_json::json;
use tonic::Code;

use super::{Lab, by_digest, requests, small, until};

impl Lab {
    pub(super) async fn digests_are_names_too(&mut self) {
        let mut streams = false;
        for (seed, repository) in [(100, "digest"), (110, "both")] {
            let image = small(seed);
            let tagged = self.open.push(&format!("{repository}:1"), &image);
            let name = match repository {
                "digest" => by_digest(&tagged, &image),
                _ => format!("{tagged}@{}", image.digest()),
            };
            let id = self.ask(&name, json!({ "pin": "withOwner", "owner": "team-a" })).await;
            let item = self.success_of(id).await;
            assert_eq!(item.image, name, "it keeps the name by which it was asked for");
            assert_eq!(item.status.kept.expect("a pin").how, How::Pinned);

            let found = self.cri.image(&name).await.expect("it is found under that very name");
            assert!(found.pinned && found.id.ends_with(image.id.trim_start_matches("sha256:")), "{found:?}");
            let mut lists = vec![self.cri.list().await];
            match self.cri.stream().await {
                Ok(list) => {
                    streams = true;
                    lists.push(list);
                }
                Err(status) => assert_eq!(status.code(), Code::Unimplemented, "{status}"),
            }
            for list in lists {
                let pinned = list.iter().find(|listed| listed.id == found.id).map(|listed| listed.pinned);
                assert_eq!(pinned, Some(true), "{list:?}");
            }
            let direct = self.direct.image(&name).await.expect("the runtime has it");
            assert!(!direct.pinned, "only crisp pins it");

            for asked in [&name, &found.id] {
                let refusal = self.cri.try_remove_image(asked).await.expect_err("it is pinned");
                assert_eq!(refusal.code(), Code::FailedPrecondition, "{refusal}");
                for word in ["pinned", "team-a", &format!("crisp queue cancel {id}")] {
                    assert!(refusal.message().contains(word), "{word}: {refusal}");
                }
            }
            assert!(self.direct.image(&name).await.is_some(), "it is still there");
            self.cancel(id).await;
            assert!(!self.cri.image(&name).await.expect("it stays").pinned, "the pin went with its item");
            // CRI-O itself removes nothing by a name with both.
            self.cri.remove_image(if self.containerd.is_some() { &name } else { &found.id }).await;
            until("it is removed", async || self.cri.image(&name).await.is_none()).await;
        }
        let lists = if streams { "ListImages, StreamImages" } else { "ListImages (no StreamImages here)" };
        self.tell(&format!(
            "name@digest and name:tag@digest: found, pinned in ImageStatus and {lists}, RemoveImage refused until \
             cancelled"
        ));
    }

    pub(super) async fn overridden_images_are_found_under_their_own_names(&mut self) {
        let image = small(120);
        let elsewhere = self.open.push("overridden:1", &image);
        let name = format!("{}/overridden:1", self.empty.host());
        let rule = json!({ "component": "Registry", "operator": "replace", "value": self.open.host() });
        let overriders = json!([{ "overriders": { "imageOverriders": [rule] } }]);
        let id = self.ask(&name, json!({ "overriders": overriders })).await;
        let item = self.success_of(id).await;
        assert_eq!((&item.image, &item.source), (&name, &elsewhere));
        let is_found = async |lab: &Self| {
            let found = lab.cri.image(&name).await.expect("it is found under its own name");
            assert!(found.id.ends_with(image.id.trim_start_matches("sha256:")), "{found:?}");
            let directly = lab.direct.image(&name).await;
            assert_eq!(
                directly.is_some(),
                lab.containerd.is_some(),
                "the runtime's own socket: {directly:?}"
            );
            found.id
        };
        is_found(self).await;
        self.crisp.stop();
        self.crisp.restart();
        let image_id = is_found(self).await;
        assert_eq!(self.empty.requests().len(), 0, "nobody has asked the registry of that name");

        // Somebody asks again: it is there.
        let again = self.ask(&name, json!({ "overriders": overriders, "owner": "another" })).await;
        let before = self.open.requests().len();
        assert_eq!(self.success_of(again).await.status.reason, Reason::Present);
        assert_eq!(self.open.requests().len(), before, "nobody was asked");

        self.cri.remove_image(&image_id).await;
        for name in [&name, &elsewhere] {
            until("both names are gone", async || self.cri.image(name).await.is_none()).await;
            assert_eq!(self.direct.image(name).await, None);
        }
        let where_ = if self.containerd.is_some() { "on both sockets" } else { "through crisp" };
        self.tell(&format!(
            "pulled from another registry: found under its own name {where_}, 0 requests there"
        ));
    }

    pub(super) async fn always_asks_and_if_not_present_does_not(&mut self) {
        let (old, new) = (small(130), small(132));
        let name = self.open.push("moving:1", &old);
        let always = json!({ "policy": "Always" });
        let id = self.ask(&name, always.clone()).await;
        self.success_of(id).await;
        self.open.push("moving:1", &new);

        let before = self.open.requests().len();
        let other = self.ask(&name, json!({ "owner": "another" })).await;
        assert_eq!(self.success_of(other).await.status.reason, Reason::Present);
        assert_eq!(self.open.requests().len(), before, "the registry was not asked");
        let id_of = async |lab: &Self| lab.cri.image(&name).await.expect("an image").id;
        assert!(id_of(self).await.ends_with(old.id.trim_start_matches("sha256:")));

        assert_eq!(self.ask(&name, always).await, id, "the same owner has one item for an image");
        assert_eq!(self.success_of(id).await.status.reason, Reason::Pulled);
        assert!(id_of(self).await.ends_with(new.id.trim_start_matches("sha256:")), "the new one");
        let asked = requests(&self.open, "moving").iter().filter(|seen| seen.path.ends_with("/1")).count();
        self.tell(&format!(
            "a moved tag: Always has the new image ({asked} questions for 2 pulls), IfNotPresent 0 requests"
        ));
    }
}
