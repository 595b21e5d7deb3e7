//! One pull for all who ask for the same, and what keeps pulls apart.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use crisp::pull::Class;

use super::{Lab, PASSWORD, Pull, USER, Who, pull, pulled};
use crate::lab::client::Cri;
use crate::registry::{Auth, Image, ImageBuilder};

/// How many pods want the same image.
const MANY: usize = 50;

impl Lab {
    pub(super) async fn fifty_pulls_are_one(&mut self) {
        // What one pull without crisp asks of the registry, on an image of the same shape.
        let direct = Cri::new(self.node.socket());
        let name = self.registry.push("direct:1", &image(100));
        pulled(pull(&direct, &name, Who::Pod(0), None)).await;
        let image = image(200);
        let name = self.registry.push("fifty:1", &image);

        let mut hold = self.registry.hold("/fifty/manifests/");
        let before = self.counts();
        let pulls: Vec<Pull> = (0..MANY).map(|number| self.pull(&name, Who::Pod(number))).collect();
        hold.reached(1).await;
        self.until_waiting(MANY as u64).await;
        drop(hold);
        self.registry.behave();
        let mut replies = Vec::new();
        for pull in pulls {
            replies.push(pulled(pull).await);
        }
        replies.dedup();
        assert_eq!(replies.len(), 1, "all are answered alike: {replies:?}");
        assert_eq!(self.asked(&name), 1, "the runtime was asked once");
        assert_eq!(self.counts(), (before.0 + 1, before.1 + MANY as u64 - 1));
        self.came_once("fifty", &image);
        let (of_manifests, of_one) = (self.manifest_requests("fifty"), self.manifest_requests("direct"));
        let counts = |requests: &BTreeMap<_, usize>| requests.values().copied().collect::<Vec<_>>();
        assert_eq!(counts(&of_manifests), counts(&of_one), "as for one pull: {of_manifests:?}\n{of_one:?}");
        if self.containerd.is_some() {
            let by_tag = ("HEAD".to_owned(), "1".to_owned());
            let by_digest = ("GET".to_owned(), image.digest());
            assert_eq!(of_manifests, BTreeMap::from([(by_tag, 1), (by_digest, 1)]));
        }
        let requests = of_manifests.keys().map(|(method, reference)| {
            format!("{method} by {}", if reference.contains(':') { "digest" } else { "tag" })
        });
        let requests = requests.collect::<Vec<_>>().join(", ");
        self.tell(&format!(
            "{MANY} pulls of an image at once: one at the runtime; at the registry {requests} and each blob once"
        ));
    }

    /// The requests for manifests of a repository, by method and reference.
    fn manifest_requests(&self, repository: &str) -> BTreeMap<(String, String), usize> {
        let mut counts = BTreeMap::new();
        for seen in self.requests(repository) {
            if let Some((_, reference)) = seen.path.split_once("/manifests/") {
                *counts.entry((seen.method.to_string(), reference.to_owned())).or_default() += 1;
            }
        }
        counts
    }

    pub(super) async fn a_wrong_password_is_refused_beside_the_right_one(&mut self) {
        let image = image(300);
        let name = self.registry.push("private:1", &image);
        self.registry.require(Auth::Basic(USER, PASSWORD));
        let mut hold = self.registry.hold("/private/manifests/");
        let wrong = format!("not-{PASSWORD}");
        let passwords = |number: usize| if number.is_multiple_of(2) { PASSWORD } else { &wrong };
        let ask = |number| (number, pull(&self.cri, &name, Who::Pod(number), Some(passwords(number))));
        let pulls: Vec<_> = (0..MANY).map(ask).collect();
        hold.reached(1).await;
        self.until_waiting(MANY as u64).await;
        drop(hold);
        self.registry.behave();
        let mut replies = Vec::new();
        for (number, pull) in pulls {
            if number % 2 == 0 {
                replies.push(pulled(pull).await);
                continue;
            }
            let refusal = pull.await.expect("no panic").expect_err("the registry refuses");
            let words = ["401", "unauthorized", "authentication required"];
            let message = refusal.message().to_lowercase();
            assert!(words.iter().any(|word| message.contains(word)), "the registry's refusal: {refusal:?}");
        }
        replies.dedup();
        assert_eq!(replies.len(), 1, "all with the right password are answered alike: {replies:?}");
        assert_eq!(self.asked(&name), 2, "once for each password");
        self.came_once("private", &image);
        self.registry.require(Auth::Open);
    }

    pub(super) async fn the_last_of_all_who_waited_gets_the_image(&mut self) {
        let image = image(400);
        let name = self.registry.push("leaving:1", &image);
        let mut hold = self.registry.hold("/leaving/blobs/");
        let before = self.counts();
        let leaders = Cri::new(&self.crisp.socket);
        let leader = pull(&leaders, &name, Who::Pod(0), None);
        hold.reached(1).await;
        let mut pulls: Vec<Pull> = (1..=MANY).map(|number| self.pull(&name, Who::Pod(number))).collect();
        self.until_waiting(MANY as u64 + 1).await;
        let last = pulls.pop().expect("a pull");
        for pull in pulls {
            pull.abort();
        }
        self.until_waiting(2).await;
        // With the last client of a connection the connection goes, too.
        drop(leaders);
        leader.abort();
        self.until_waiting(1).await;
        drop(hold);
        self.registry.behave();
        pulled(last).await;
        assert_eq!(self.asked(&name), 1, "the runtime was asked once");
        assert_eq!(self.counts(), (before.0 + 1, before.1 + MANY as u64));
        self.came_once("leaving", &image);
    }

    pub(super) async fn a_pod_joins_a_background_pull(&mut self) {
        let image = image(500);
        let name = self.registry.push("joined:1", &image);
        let mut hold = self.registry.hold("/joined/blobs/");
        let before = self.counts();
        let background = self.pull(&name, Who::Kruise);
        hold.reached(1).await;
        let class = async || self.crisp.pulls().await.first().map(|pull| pull.class);
        assert_eq!(class().await, Some(Class::Background));
        let pod = self.pull(&name, Who::Pod(0));
        self.until_waiting(2).await;
        // CRI-O may answer otherwise for another namespace, and the daemon names none: there the pod's pull comes
        // after the other one.
        let same = self.containerd.is_some();
        assert_eq!(class().await, Some(if same { Class::Kubelet } else { Class::Background }));
        drop(hold);
        self.registry.behave();
        assert_eq!(pulled(background).await, pulled(pod).await);
        let (flights, joined) = if same { (1, 1) } else { (2, 0) };
        assert_eq!(self.asked(&name) as u64, flights);
        assert_eq!(self.counts(), (before.0 + flights, before.1 + joined));
        // It reads the config again for that, and no layer.
        let mut image = image;
        image.blobs.retain(|(digest, _)| same || *digest != image.id);
        self.came_once("joined", &image);
    }

    /// After everything else: passwords are nowhere where somebody may read them.
    pub(super) async fn no_secret_was_written(&mut self) {
        let mut texts = self.crisp.written();
        assert!(texts[0].1.windows(5).any(|word| word == b"DEBUG"), "the log is that of level debug");
        texts.push(("/metrics".into(), self.crisp.metrics().into()));
        for path in ["/v1/status", "/v1/pulls"] {
            texts.push((path.into(), self.crisp.ask_admin(path).await.into()));
        }
        let encoded = [PASSWORD.to_owned(), format!("not-{PASSWORD}")]
            .map(|password| STANDARD.encode(format!("{USER}:{password}")));
        let secrets = [PASSWORD, "uthorization", &encoded[0], &encoded[1]];
        for (place, text) in texts {
            for secret in secrets {
                let found = text.windows(secret.len()).any(|part| part == secret.as_bytes());
                assert!(!found, "{secret} is in {}", place.display());
            }
        }
    }
}

/// An image of three layers.
fn image(seed: u64) -> Image {
    ImageBuilder::default().noise(300_000, seed).noise(200_000, seed + 1).noise(1000, seed + 2).build()
}
