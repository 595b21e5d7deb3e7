//! Docker's files of credentials: `config.json`, which is also what Secrets of type `kubernetes.io/dockerconfigjson` hold,
//! and the older `.dockercfg`, which is only what is inside `auths`.
//!
//! ```json
//! {"auths": {"gcr.io": {"auth": "base64 of user:password"}, "reg.io": {"username": "u", "password": "p"}}}
//! ```
//!
//! Entries without a credential, which Docker writes for what a credential helper keeps, are passed over. A file with
//! nothing else is a mistake: everything pulled with it would silently be anonymous.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value};

use super::{Credential, CredentialError, Secret, Written};
use crate::prepull::shown;

/// Longest file that is read.
pub const MAX_BYTES: usize = 256 << 10;

/// Base64 with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

const NOT_AN_AUTH: &str = "must be base64 of user:password";

/// Reads the credentials of a file, in the order of their registries' names. Several files are read one by one: their
/// credentials follow each other, also for the same registry.
///
/// Errors have the path of the field and never its text: `auths["gcr.io"].auth: must be base64 of user:password`.
pub fn parse(file: &[u8]) -> Result<Vec<Credential>, CredentialError> {
    if file.len() > MAX_BYTES {
        return wrong("file", "has more than 256 KiB, so it is not a file of credentials");
    }
    // The reasons of a JSON reader have places, not contents; a value is looked at piece by piece below.
    let Ok(Value::Object(file)) = serde_json::from_slice(file) else {
        return wrong("file", "must be Docker's config.json: a JSON object with `auths`");
    };
    let (path, auths) = match file.get("auths") {
        Some(Value::Object(auths)) => ("auths", auths),
        // `docker logout` leaves this.
        Some(Value::Null) => return none(&file),
        Some(_) => return wrong("auths", "must be an object with a member for every registry"),
        None if file.values().all(Value::is_object) && !is_config(&file) => ("", &file),
        None => return none(&file),
    };
    let mut credentials = Vec::new();
    for (registry, entry) in auths {
        // What is before an `@` may be a password.
        let place = registry.rsplit('@').next().unwrap_or_default();
        let path = format!("{path}[{:?}]", shown(place));
        credentials.extend(of_entry(&path, registry, entry)?);
    }
    if credentials.is_empty() { none(&file) } else { Ok(credentials) }
}

fn of_entry(path: &str, registry: &str, entry: &Value) -> Result<Option<Credential>, CredentialError> {
    let at = |field: &str| format!("{path}.{field}");
    let Value::Object(entry) = entry else {
        return wrong(path, "must be an object with `auth`, or with `username` and `password`");
    };
    let text = |field: &str| match entry.get(field) {
        None | Some(Value::Null) => Ok(Secret::default()),
        Some(Value::String(text)) => Ok(Secret(text.clone())),
        Some(_) => wrong(at(field), "must be a text"),
    };
    let mut written = Written {
        registry: registry.to_owned(),
        username: text("username")?,
        password: text("password")?,
        identity_token: text("identitytoken")?,
        registry_token: text("registrytoken")?,
        ..Written::default()
    };
    let auth = text("auth")?;
    if !written.identity_token.is_empty() {
        // As Docker does: beside a token, the name and the empty password in `auth` only say that there is one. Runtimes
        // would take them for the credential.
        (written.username, written.password) = Default::default();
    } else if !auth.is_empty() {
        // `auth` wins over name and password, as it does for the kubelet.
        (written.username, written.password) =
            decode(&auth).ok_or_else(|| CredentialError { field: at("auth"), reason: NOT_AN_AUTH })?;
    }
    let given = [&written.username, &written.password, &written.identity_token, &written.registry_token];
    if given.iter().all(|secret| secret.is_empty()) {
        return Ok(None);
    }
    Credential::new(written)
        .map(Some)
        .map_err(|error| CredentialError { field: at(&error.field), reason: error.reason })
}

fn decode(auth: &Secret) -> Option<(Secret, Secret)> {
    // As Go's decoder does, which kubelets use.
    let letters = Secret(auth.0.chars().filter(|letter| !letter.is_ascii_whitespace()).collect());
    let text = Secret(String::from_utf8(BASE64.decode(&letters.0).ok()?).ok()?);
    let (user, password) = text.0.split_once(':')?;
    // Docker pads the password with zero bytes.
    Some((Secret(user.to_owned()), Secret(password.trim_matches('\0').to_owned())))
}

/// Whether an object without `auths` is a `config.json` all the same.
fn is_config(file: &Map<String, Value>) -> bool {
    file.is_empty() || ["credHelpers", "credsStore", "HttpHeaders"].iter().any(|key| file.contains_key(*key))
}

fn none(file: &Map<String, Value>) -> Result<Vec<Credential>, CredentialError> {
    if file.contains_key("credsStore") || file.contains_key("credHelpers") {
        return wrong(
            "auths",
            "has no credentials: a credential helper keeps them, which crisp does not run; log in without one \
             (take credsStore and credHelpers out of the file first) or write `auth` by hand",
        );
    }
    wrong(
        "auths",
        "has no credentials, so every pull would be anonymous; leave the file out if that is meant",
    )
}

fn wrong<T>(field: impl Into<String>, reason: &'static str) -> Result<T, CredentialError> {
    Err(CredentialError { field: field.into(), reason })
}
