//! Credentials of pre-pulls: how they are given ([`docker`]), which of them apply to an image ([`matching`]), what the
//! runtime gets of them, and how the store keeps them ([`Sealer`]).
//!
//! Nothing here shows a secret: a [`Credential`] has no text form but its registry, cannot be serialised, and errors name
//! the field and never its value. What it holds is overwritten when it is dropped. That is not true of the buffers it was
//! read from, which belong to whoever reads.

pub mod docker;
pub mod keyring;
pub mod seal;

use std::fmt;

use k8s_cri::v1::AuthConfig;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

pub use docker::parse;
pub use keyring::matching;
pub use seal::{OpenError, SealError, Sealer};

/// Longest registry pattern, and user name, that is read.
const MAX_NAME: usize = 1024;
/// Longest password or token that is read. Tokens of cloud registries have some KiB.
const MAX_SECRET: usize = 64 << 10;

/// What to show to one registry. Every field but `registry` may be empty, not all of them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    registry: String,
    username: Secret,
    password: Secret,
    auth: Secret,
    server_address: String,
    identity_token: Secret,
    registry_token: Secret,
}

/// What is wrong with a credential, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct CredentialError {
    /// Path of the field, for example `auths["gcr.io"].auth`.
    pub field: String,
    /// What is wrong with it and what is expected, without its text.
    pub reason: &'static str,
}

/// A text that is never shown and that is overwritten when it is dropped.
#[derive(Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
struct Secret(String);

/// The JSON form, which is also what is sealed. It is written only there: nothing else can serialise a credential.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Written {
    registry: String,
    #[serde(skip_serializing_if = "Secret::is_empty")]
    username: Secret,
    #[serde(skip_serializing_if = "Secret::is_empty")]
    password: Secret,
    #[serde(skip_serializing_if = "Secret::is_empty")]
    auth: Secret,
    #[serde(skip_serializing_if = "String::is_empty")]
    server_address: String,
    #[serde(skip_serializing_if = "Secret::is_empty")]
    identity_token: Secret,
    #[serde(skip_serializing_if = "Secret::is_empty")]
    registry_token: Secret,
}

// === impl Credential ===

impl Credential {
    /// A user name and a password for a registry: `HOST[:PORT][/PATH]`, a scheme before it is ignored.
    pub fn password(registry: &str, username: &str, password: &str) -> Result<Self, CredentialError> {
        Self::new(Written {
            registry: registry.to_owned(),
            username: Secret(username.to_owned()),
            password: Secret(password.to_owned()),
            ..Written::default()
        })
    }

    fn new(written: Written) -> Result<Self, CredentialError> {
        let Written { registry, username, password, auth, server_address, identity_token, registry_token } =
            written;
        let wrong = |field: &str, reason| Err(CredentialError { field: field.to_owned(), reason });
        if keyring::Pattern::of(&registry).is_none() {
            return wrong("registry", "must be HOST[:PORT][/PATH], for example gcr.io or *.example.com/team");
        }
        for (field, length) in [
            ("registry", registry.len()),
            ("serverAddress", server_address.len()),
            ("username", username.0.len()),
        ] {
            if length > MAX_NAME {
                return wrong(field, "has more than 1024 bytes");
            }
        }
        let tokens = [
            ("password", &password),
            ("auth", &auth),
            ("identityToken", &identity_token),
            ("registryToken", &registry_token),
        ];
        for (field, secret) in tokens {
            if secret.0.len() > MAX_SECRET {
                return wrong(field, "has more than 64 KiB");
            }
        }
        if username.is_empty() && tokens.iter().all(|(_, secret)| secret.is_empty()) {
            let reason = "is empty; give username and password, auth, identityToken or registryToken";
            return wrong("username", reason);
        }
        if username.is_empty() && !password.is_empty() {
            return wrong("username", "is empty, but there is a password");
        }
        Ok(Self { registry, username, password, auth, server_address, identity_token, registry_token })
    }

    /// For which images it is, as it was given: `HOST[:PORT][/PATH]`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// What the runtime gets with a pull. As the kubelet does, only what is there is filled in; most runtimes look at
    /// the user name first, so that an identity token beside one is not used. `server_address` stays empty unless it was
    /// given: containerd then shows the credential to every mirror of the registry, as it does for a kubelet.
    pub fn auth_config(&self) -> AuthConfig {
        AuthConfig {
            username: self.username.0.clone(),
            password: self.password.0.clone(),
            auth: self.auth.0.clone(),
            server_address: self.server_address.clone(),
            identity_token: self.identity_token.0.clone(),
            registry_token: self.registry_token.0.clone(),
        }
    }

    fn written(&self) -> Written {
        Written {
            registry: self.registry.clone(),
            username: self.username.clone(),
            password: self.password.clone(),
            auth: self.auth.clone(),
            server_address: self.server_address.clone(),
            identity_token: self.identity_token.clone(),
            registry_token: self.registry_token.clone(),
        }
    }
}

/// The registry and which fields are there.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("registry", &self.registry)
            .field("username", &self.username)
            .field("password", &self.password)
            .field("auth", &self.auth)
            .field("server_address", &self.server_address)
            .field("identity_token", &self.identity_token)
            .field("registry_token", &self.registry_token)
            .finish()
    }
}

/// Everything but an object is refused without being quoted, which serde would do.
macro_rules! refuse_scalars {
    ($reason:literal) => {
        fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<Self::Value, E> {
            Err(E::custom($reason))
        }
        fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Self::Value, E> {
            Err(E::custom($reason))
        }
        fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Self::Value, E> {
            Err(E::custom($reason))
        }
        fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Self::Value, E> {
            Err(E::custom($reason))
        }
        fn visit_bytes<E: serde::de::Error>(self, _: &[u8]) -> Result<Self::Value, E> {
            Err(E::custom($reason))
        }
    };
}

impl<'de> Deserialize<'de> for Credential {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OnlyObjects;

        impl<'de> Visitor<'de> for OnlyObjects {
            type Value = Credential;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with registry, username, password")
            }

            refuse_scalars!("expected an object with registry, username, password");

            fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Self::Value, E> {
                Err(E::custom("expected an object with registry, username, password"))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let written = Written::deserialize(MapAccessDeserializer::new(map))?;
                Credential::new(written).map_err(A::Error::custom)
            }
        }

        // Asked for a map, serde_json would quote what it found instead.
        deserializer.deserialize_any(OnlyObjects)
    }
}

// === impl Secret ===

impl Secret {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "\"\"" } else { "…" })
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OnlyText;

        impl Visitor<'_> for OnlyText {
            type Value = Secret;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            refuse_scalars!("expected a text");

            // `null` is an absent field, as it is to Kubernetes.
            fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
                Ok(Secret::default())
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Secret(text.to_owned()))
            }

            fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Self::Value, E> {
                Ok(Secret(text))
            }
        }

        // Asked for a text, serde_json would quote what it found instead.
        deserializer.deserialize_any(OnlyText)
    }
}

#[cfg(test)]
mod tests;
