//! A client for OCI registries, as much of it as a pull needs.
//!
//! It is written on reqwest because oci-client reads manifests, tokens and errors of any size into memory, panics on
//! a token that is no header value, and cannot be built on a machine without CA certificates, even for loopback.
//! Everything a registry sends is bounded here or checked by who receives it.

mod error;

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use serde::Deserialize;

use super::credentials::{Challenge, Credentials, bearer};
use super::digest::Sha256;
use super::manifest::{self, MAX_MANIFEST};
use super::name::{ImageName, is_loopback};

pub(super) use error::RegistryError;
use error::{message, transport};

/// Largest token answer or error body that is read.
const MAX_ANSWER: u64 = 64 << 10;
/// A registry that sends nothing for this long is given up.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_REDIRECTS: usize = 10;
/// How we name ourselves to registries and token servers.
const USER_AGENT: &str = concat!("crisp/", env!("CARGO_PKG_VERSION"));

/// The HTTP clients, shared by all pulls.
#[derive(Debug)]
pub(super) struct Registry {
    /// For loopback registries: plain HTTP, no TLS roots, no proxy, and no redirect to anywhere else.
    plain: Client,
    /// For all others: HTTPS only. Made at first use, because it needs the machine's CA certificates.
    tls: OnceLock<Client>,
}

/// One pull's talk with one repository: credentials and the token got with them stay in it.
#[derive(Debug)]
pub(super) struct Repository<'a> {
    registry: &'a Registry,
    name: &'a ImageName,
    credentials: &'a Credentials,
    /// The header that the registry took last. Held for moments only.
    authorization: Mutex<Option<HeaderValue>>,
}

/// A manifest or index as it came.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) digest: Sha256,
    pub(super) data: Bytes,
    pub(super) content_type: Option<String>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

// === impl Registry ===

impl Registry {
    /// The clients; installs the TLS provider, unless somebody did before.
    pub(super) fn new() -> Result<Self, reqwest::Error> {
        // An error says that one is installed already, which is what we want.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let only_loopback = Policy::custom(|attempt| {
            let loopback = attempt.url().host_str().is_some_and(is_loopback);
            match (loopback, attempt.previous().len() > MAX_REDIRECTS) {
                (true, false) => attempt.follow(),
                (true, true) => attempt.error("too many redirects"),
                (false, _) => attempt.error("redirect from a loopback registry to another host"),
            }
        });
        let plain = builder().no_proxy().redirect(only_loopback).tls_certs_only([]).build()?;
        Ok(Self { plain, tls: OnceLock::new() })
    }

    /// Begins a talk about the repository of `name`.
    pub(super) fn repository<'a>(
        &'a self,
        name: &'a ImageName,
        credentials: &'a Credentials,
    ) -> Repository<'a> {
        let authorization = match credentials {
            Credentials::Registry(token) => bearer(token),
            _ => None,
        };
        Repository { registry: self, name, credentials, authorization: Mutex::new(authorization) }
    }

    /// The client for `url`. Plain HTTP to anything but loopback fails in the client, redirects included.
    fn client(&self, url: &Url) -> Result<&Client, reqwest::Error> {
        if url.scheme() == "http" && url.host_str().is_some_and(is_loopback) {
            return Ok(&self.plain);
        }
        if self.tls.get().is_none() {
            let client = builder().https_only(true).redirect(Policy::limited(MAX_REDIRECTS)).build()?;
            // Another pull may have been quicker; its client is as good.
            let _ = self.tls.set(client);
        }
        Ok(self.tls.get().unwrap_or(&self.plain))
    }
}

fn builder() -> reqwest::ClientBuilder {
    Client::builder().user_agent(USER_AGENT).read_timeout(READ_TIMEOUT).connect_timeout(CONNECT_TIMEOUT)
}

// === impl Repository ===

impl Repository<'_> {
    /// Fetches a manifest or index by tag or digest and checks its digest.
    pub(super) async fn manifest(&self, version: &str) -> Result<Fetched, RegistryError> {
        let path = format!("manifests/{version}");
        let what = self.what(&path);
        let response = self.get(&path, manifest::ACCEPT).await?;
        let header = |name: &str| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
        let content_type = header(CONTENT_TYPE.as_str());
        let content_type = content_type.and_then(|value| Some(value.split(';').next()?.trim().to_owned()));
        let promised = header("docker-content-digest");
        let data = read(response, MAX_MANIFEST, &what).await?;
        let digest = Sha256::of(&data);
        let asked = version.contains(':').then(|| version.to_owned());
        for promised in asked.into_iter().chain(promised.filter(|value| value.starts_with("sha256:"))) {
            if promised != digest.to_string() {
                return Err(RegistryError::Digest { what, found: digest, promised });
            }
        }
        Ok(Fetched { digest, data, content_type })
    }

    /// Asks for a blob; the caller takes its bytes and checks them.
    pub(super) async fn blob(&self, digest: &Sha256) -> Result<Response, RegistryError> {
        self.get(&format!("blobs/{digest}"), "*/*").await
    }

    /// Takes the next bytes of a blob.
    pub(super) async fn chunk(&self, blob: &mut Response) -> Result<Option<Bytes>, RegistryError> {
        blob.chunk().await.map_err(|error| transport(&self.what("blob"), error))
    }

    async fn get(&self, path: &str, accept: &str) -> Result<Response, RegistryError> {
        let what = self.what(path);
        let scheme = if is_loopback(self.name.host()) { "http" } else { "https" };
        let url = format!("{scheme}://{}/v2/{}/{path}", self.name.api_host(), self.name.path());
        let url = parse_url(&url, &what)?;
        let client = self.registry.client(&url).map_err(|error| transport(&what, error))?;
        let send = async |authorization: Option<HeaderValue>| {
            let mut request = client.get(url.clone()).header(ACCEPT, accept);
            if let Some(value) = authorization {
                request = request.header(AUTHORIZATION, value);
            }
            request.send().await.map_err(|error| transport(&what, error))
        };
        let mut response = send(self.authorization()).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let headers = response.headers().get_all(WWW_AUTHENTICATE).iter();
            let challenge = headers.filter_map(|value| Challenge::parse(value.to_str().ok()?)).next();
            if let Some(value) = self.answer(challenge, &what).await? {
                *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(value.clone());
                response = send(Some(value)).await?;
            }
        }
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::NOT_FOUND => Err(RegistryError::NotFound { what }),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(RegistryError::Denied { message: message(response, &what).await, what })
            }
            status => Err(RegistryError::Status { status, message: message(response, &what).await, what }),
        }
    }

    /// The header that answers a challenge; `None` if we have nothing to answer with.
    async fn answer(
        &self,
        challenge: Option<Challenge>,
        what: &str,
    ) -> Result<Option<HeaderValue>, RegistryError> {
        match (challenge, self.credentials) {
            // The registry saw the token that we were given and does not want it.
            (_, Credentials::Registry(_)) | (None, _) => Ok(None),
            (Some(Challenge::Basic), credentials) => Ok(credentials.basic()),
            (Some(Challenge::Bearer { realm, service, scope }), _) => {
                let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.name.path()));
                self.token(&realm, service.as_deref(), &scope, what).await.map(Some)
            }
        }
    }

    /// Gets a token from the server that the registry named.
    async fn token(
        &self,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        what: &str,
    ) -> Result<HeaderValue, RegistryError> {
        let realm = parse_url(realm, what)?;
        if realm.scheme() == "http" && !is_loopback(self.name.host()) {
            // Else a registry elsewhere could have the credentials sent to a service of this machine.
            let reason = "the registry names a token server without TLS".to_owned();
            return Err(RegistryError::Authentication { what: what.to_owned(), reason });
        }
        let client = self.registry.client(&realm).map_err(|error| transport(what, error))?;
        let mut fields = vec![("scope", scope)];
        fields.extend(service.map(|service| ("service", service)));
        let request = match self.credentials {
            Credentials::Identity(token) => {
                fields.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", "crisp"),
                    ("refresh_token", token),
                ]);
                client.post(realm).form(&fields)
            }
            credentials => {
                let request = client.get(realm).query(&fields);
                match credentials.basic() {
                    Some(value) => request.header(AUTHORIZATION, value),
                    None => request,
                }
            }
        };
        let response = request.send().await.map_err(|error| transport(what, error))?;
        if response.status() != StatusCode::OK {
            let message = format!("token server: {}", message(response, what).await);
            return Err(RegistryError::Denied { what: what.to_owned(), message });
        }
        let failed =
            |reason: &str| RegistryError::Authentication { what: what.to_owned(), reason: reason.to_owned() };
        let answer = read(response, MAX_ANSWER, what).await?;
        // The error is not shown: it could quote the token.
        let answer: TokenAnswer =
            serde_json::from_slice(&answer).map_err(|_| failed("the token server's answer is malformed"))?;
        let token =
            answer.token.or(answer.access_token).ok_or_else(|| failed("the token server sent no token"))?;
        bearer(&token).ok_or_else(|| failed("the token server sent a token that cannot be sent on"))
    }

    fn authorization(&self) -> Option<HeaderValue> {
        self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn what(&self, path: &str) -> String {
        format!("{}/{}/{path}", self.name.host(), self.name.path())
    }
}

/// Reads a body of at most `max` bytes, whatever its content-length says.
async fn read(mut response: Response, max: u64, what: &str) -> Result<Bytes, RegistryError> {
    let mut data = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| transport(what, error))? {
        if (data.len() + chunk.len()) as u64 > max {
            return Err(RegistryError::TooLarge { what: what.to_owned(), max });
        }
        data.extend_from_slice(&chunk);
    }
    Ok(data.freeze())
}

fn parse_url(url: &str, what: &str) -> Result<Url, RegistryError> {
    Url::parse(url)
        .map_err(|error| RegistryError::Transport { what: what.to_owned(), reason: error.to_string() })
}
