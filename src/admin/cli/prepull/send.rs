//! Sends what is asked for, in as few requests as can be.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::admin::client;
use crate::admin::prepull::{MAX_REQUEST, Taken, Tried};
use crate::prepull::secret::Credential;
use crate::prepull::spec::Spec;

/// How much goes into one request.
pub(super) const BATCH_ITEMS: usize = 1000;
const BATCH_BYTES: usize = MAX_REQUEST / 2;

/// What an answer to many requests is put together from.
pub(super) trait Answer: DeserializeOwned + Default {
    fn append(&mut self, other: Self);
}

impl Answer for Taken {
    fn append(&mut self, mut other: Self) {
        self.items.append(&mut other.items);
    }
}

impl Answer for Tried {
    fn append(&mut self, mut other: Self) {
        self.items.append(&mut other.items);
    }
}

/// Sends specs in as few requests as can be. Each is taken whole or not at all.
pub(super) async fn send<A: Answer>(
    socket: &Path,
    path: &str,
    specs: &[Spec],
    patience: Duration,
) -> anyhow::Result<A> {
    let mut all = A::default();
    let mut sent = 0;
    while sent < specs.len() {
        let mut body = br#"{"items":["#.to_vec();
        let mut count = 0;
        for spec in specs.iter().skip(sent).take(BATCH_ITEMS) {
            let item = serde_json::to_vec(&with_secrets(spec)?)?;
            if count > 0 && body.len() + item.len() > BATCH_BYTES {
                break;
            }
            if count > 0 {
                body.push(b',');
            }
            body.extend(item);
            count += 1;
        }
        body.extend(b"]}");
        let answer = client::post(socket, path, body, patience).await;
        all.append(match answer {
            Err(error) if sent > 0 => {
                let words = format!("the first {sent} of {} images were taken, the others not", specs.len());
                return Err(error).context(words);
            }
            answer => answer?,
        });
        sent += count;
    }
    Ok(all)
}

/// The JSON form of a spec, with what it never shows otherwise.
pub(super) fn with_secrets(spec: &Spec) -> serde_json::Result<Value> {
    let mut json = serde_json::to_value(spec)?;
    if let Value::Object(fields) = &mut json
        && !spec.secrets.is_empty()
    {
        fields.insert("secrets".into(), spec.secrets.iter().map(of_credential).collect());
    }
    Ok(json)
}

fn of_credential(credential: &Credential) -> Value {
    let auth = credential.auth_config();
    let fields = [
        ("registry", credential.registry().to_owned()),
        ("username", auth.username),
        ("password", auth.password),
        ("auth", auth.auth),
        ("serverAddress", auth.server_address),
        ("identityToken", auth.identity_token),
        ("registryToken", auth.registry_token),
    ];
    let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
    Value::Object(given.map(|(key, value)| (key.to_owned(), json!(value))).collect::<Map<_, _>>())
}
