//! Credentials: tried in order, and shown to nobody but the registry.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use crisp::prepull::item::{How, Reason, State};
use serde_json::json;

use super::{Lab, PASSWORD, USER, requests, secret, small};

/// Somebody with a password that is none.
const STRANGER: &str = "stranger-in-the-night";
const WRONG: &str = "guess-of-a-password";

impl Lab {
    pub(super) async fn the_second_secret_is_tried(&mut self) {
        let image = small(200);
        let name = self.private.push("second:1", &image);
        let secrets = [secret(&self.private, STRANGER, WRONG), secret(&self.private, USER, PASSWORD)];
        // CRI-O cannot keep it private.
        let more = match self.containerd {
            Some(_) => json!({ "secrets": secrets }),
            None => json!({ "secrets": secrets, "visibility": "shared" }),
        };
        let id = self.ask(&name, more).await;
        let item = self.success_of(id).await;
        assert_eq!(item.status.failed_attempts, 0, "both belong to one attempt: {item:#?}");
        assert_eq!(self.users("second"), [STRANGER, USER], "in their order");
        match self.containerd {
            Some(_) => {
                assert_eq!(item.status.kept.expect("it is parked").how, How::Parked);
                self.is_nowhere(&name, &image).await;
            }
            None => assert!(self.cri.image(&name).await.is_some()),
        }
        self.tell("two secrets for a registry, the second is right: pulled, the first was tried before it");
    }

    pub(super) async fn wrong_secrets_fail_with_the_registrys_words(&mut self) {
        let name = self.private.push("wrong:1", &small(210));
        let secrets = [secret(&self.private, STRANGER, WRONG), secret(&self.private, USER, WRONG)];
        let more = json!({ "secrets": secrets, "retries": 1, "visibility": "shared" });
        let id = self.ask(&name, more).await;
        let item = self.end_of(id).await;
        let status = &item.status;
        assert_eq!((status.state, status.reason), (State::Failed, Reason::Unauthorized), "{item:#?}");
        assert_eq!(status.failed_attempts, 2, "{item:#?}");
        let words = status.message.to_lowercase();
        assert!(words.contains("the runtime said"), "{item:#?}");
        let refused = ["401 unauthorized", ": unauthorized"].iter().any(|refused| words.contains(refused));
        assert!(refused, "{item:#?}");
        assert!(words.contains("check the credentials"), "what to do: {item:#?}");
        assert!(status.history.iter().any(|step| step.reason == Reason::Backoff), "{item:#?}");
        assert_eq!(self.users("wrong"), [STRANGER, USER, STRANGER, USER], "both, in each attempt");
        self.tell("two wrong secrets: Unauthorized with the runtime's words after 2 attempts");
    }

    /// Who showed a password, each once until somebody else did.
    fn users(&self, repository: &str) -> Vec<String> {
        let mut users: Vec<_> =
            requests(&self.private, repository).into_iter().filter_map(|seen| seen.user).collect();
        users.dedup();
        users
    }

    /// After everything else, while items with secrets are still there.
    pub(super) async fn no_secret_was_written(&mut self) {
        let mut texts = self.crisp.written();
        assert!(texts[0].1.windows(5).any(|word| word == b"DEBUG"), "the log is that of level debug");
        assert!(texts.len() > 1, "there is a state folder");
        let files = texts.len() - 1;
        texts.push(("/metrics".into(), self.crisp.metrics().into()));
        let listed: serde_json::Value =
            serde_json::from_str(&self.crisp.ask_admin("/v1/prepull").await).expect("a list");
        let items = listed["items"].as_array().expect("items").clone();
        let paths = items.iter().map(|item| format!("/v1/prepull/{}", item["id"]));
        for path in paths.chain(["/v1/status", "/v1/pulls", "/v1/pins", "/v1/prepull"].map(str::to_owned)) {
            let answer = self.crisp.ask_admin(&path).await;
            texts.push((path.into(), answer.into()));
        }
        let mut hidden = Vec::new();
        for (user, password) in [(USER, PASSWORD), (STRANGER, WRONG)] {
            hidden.push(password.to_owned());
            hidden.extend(encodings(password));
            hidden.push(STANDARD.encode(format!("{user}:{password}")));
        }
        let mut bytes = 0;
        for (place, text) in &texts {
            bytes += text.len();
            for secret in &hidden {
                let found = memchr::memmem::find(text, secret.as_bytes()).is_some();
                assert!(!found, "{secret} is in {}", place.display());
            }
        }
        self.tell(&format!(
            "no secret, plain, hex or base64, in {bytes} bytes of log (debug), {files} files of state, metrics and {} \
             answers",
            texts.len() - files - 2
        ));
    }
}

/// What a text looks like inside of base64, wherever it begins there, and in hexadecimal.
fn encodings(text: &str) -> Vec<String> {
    let mut found = vec![text.bytes().map(|byte| format!("{byte:02x}")).collect()];
    for before in 0..3 {
        let data = [vec![b'x'; before], text.as_bytes().to_vec()].concat();
        // The letters at both ends depend on what is beside the text.
        let whole = data.len() / 3 * 4;
        let from = if before == 0 { 0 } else { 4 };
        for encoded in [STANDARD.encode(&data), URL_SAFE.encode(&data)] {
            found.push(encoded[from..whole].to_owned());
        }
    }
    found
}
