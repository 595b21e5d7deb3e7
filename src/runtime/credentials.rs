//! Credentials of a pull: what the CRI's `AuthConfig` offers and what a registry's challenge asks for.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use k8s_cri::v1::AuthConfig;

/// What the caller of PullImage gave.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    /// Nothing: anonymous, with an anonymous token if the registry wants one.
    None,
    /// User name and password.
    Password(String, String),
    /// An OAuth2 refresh token, to be exchanged for an access token.
    Identity(String),
    /// A bearer token for the registry itself.
    Registry(String),
}

/// The `auth` field is not base64 of `user:password`.
#[derive(Debug, thiserror::Error)]
#[error("invalid auth: not base64 of user:password")]
pub(super) struct InvalidAuth;

/// What a registry wants before it answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User name and password with every request.
    Basic,
    /// A token from the server at `realm`.
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

// === impl Credentials ===

impl Credentials {
    /// Reads the fields in containerd's order: name and password, identity token, `auth`, registry token.
    pub(super) fn of(auth: Option<&AuthConfig>) -> Result<Self, InvalidAuth> {
        let Some(auth) = auth else { return Ok(Self::None) };
        if !auth.username.is_empty() {
            return Ok(Self::Password(auth.username.clone(), auth.password.clone()));
        }
        if !auth.identity_token.is_empty() {
            return Ok(Self::Identity(auth.identity_token.clone()));
        }
        if !auth.auth.is_empty() {
            let decoded = STANDARD.decode(&auth.auth).map_err(|_| InvalidAuth)?;
            let decoded = String::from_utf8(decoded).map_err(|_| InvalidAuth)?;
            let (user, password) = decoded.split_once(':').ok_or(InvalidAuth)?;
            // Docker pads the password with zero bytes.
            return Ok(Self::Password(user.to_owned(), password.trim_matches('\0').to_owned()));
        }
        if !auth.registry_token.is_empty() {
            return Ok(Self::Registry(auth.registry_token.clone()));
        }
        Ok(Self::None)
    }

    /// The header for HTTP basic authentication, if there is a name and password to send.
    pub(super) fn basic(&self) -> Option<HeaderValue> {
        let Self::Password(user, password) = self else { return None };
        sensitive(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Password(..) => "Password(…)",
            Self::Identity(_) => "Identity(…)",
            Self::Registry(_) => "Registry(…)",
        })
    }
}

// === impl Challenge ===

impl Challenge {
    /// Reads `www-authenticate`; a bearer challenge is preferred to a basic one.
    pub(super) fn parse(header: &str) -> Option<Self> {
        let challenges = http_auth::parse_challenges(header).ok()?;
        let bearer = challenges.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case("bearer"));
        if let Some(bearer) = bearer {
            let param = |name: &str| {
                let mut params = bearer.params.iter();
                params.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_unescaped())
            };
            return Some(Self::Bearer {
                realm: param("realm")?,
                service: param("service"),
                scope: param("scope"),
            });
        }
        challenges
            .iter()
            .any(|challenge| challenge.scheme.eq_ignore_ascii_case("basic"))
            .then_some(Self::Basic)
    }
}

/// A bearer header; `None` if the token cannot be in a header.
pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    sensitive(&format!("Bearer {token}"))
}

/// A header value that is never logged and that HTTP/2 does not put into its compression table.
fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_give_credentials_is_read() {
        let password = Credentials::Password("u".into(), "p:w".into());
        let auth = |change: &dyn Fn(&mut AuthConfig)| {
            let mut auth = AuthConfig::default();
            change(&mut auth);
            Credentials::of(Some(&auth))
        };
        assert_eq!(Credentials::of(None).unwrap(), Credentials::None);
        assert_eq!(auth(&|_| ()).unwrap(), Credentials::None);
        assert_eq!(auth(&|a| (a.username, a.password) = ("u".into(), "p:w".into())).unwrap(), password);
        assert_eq!(auth(&|a| a.auth = STANDARD.encode("u:p:w\0\0")).unwrap(), password);
        assert_eq!(auth(&|a| a.identity_token = "i".into()).unwrap(), Credentials::Identity("i".into()));
        assert_eq!(auth(&|a| a.registry_token = "r".into()).unwrap(), Credentials::Registry("r".into()));
        assert!(auth(&|a| a.auth = "%%%".into()).is_err());
        assert_eq!(format!("{password:?}"), "Password(…)");
    }

    #[test]
    fn challenges_are_read() {
        let bearer = r#"Bearer realm="https://auth.io/token",service="reg",scope="repository:x:pull""#;
        assert_eq!(
            Challenge::parse(bearer),
            Some(Challenge::Bearer {
                realm: "https://auth.io/token".into(),
                service: Some("reg".into()),
                scope: Some("repository:x:pull".into())
            })
        );
        assert_eq!(Challenge::parse(r#"Basic realm="x""#), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("Bearer"), None);
        assert_eq!(Challenge::parse("Negotiate"), None);
    }

    #[test]
    fn a_token_that_is_no_header_is_refused() {
        assert!(bearer("a\r\nx-evil: 1").is_none());
    }
}
