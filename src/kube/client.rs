//! Requests to the API server: made on the background runtime, with a time limit, bounded in size, and with errors that
//! say what to do.
//!
//! kube-rs reads the configuration, signs on and encrypts. Its own ways of asking are not used: they log whole answers
//! (pods hold secrets in their env) and each failure as an error, and read answers of any size.

use std::time::{Duration, Instant};

use ::kube::Client;
use ::kube::client::{AuthError, Body, ClientBuilder, ConfigExt};
use ::kube::config::Config;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio_util::task::AbortOnDropHandle;
use tower::{BoxError, ServiceExt};

use super::Kube;
use crate::error::{Error, Kind, Origin};

/// A client and its age.
pub(super) struct Made {
    client: Client,
    at: Instant,
}

/// How long a request may take, its answer included.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How long a client is used. Then files are read anew, since kubelets rotate their certificates.
const FRESH: Duration = Duration::from_secs(300);

/// The largest answer that is read: thousands of pods.
const MAX_ANSWER: usize = 64 << 20;

/// Larger ones are parsed where nobody else waits.
const LARGE_ANSWER: usize = 1 << 20;

/// How much of an error is read.
const MAX_ERROR: usize = 16 << 10;

impl Kube {
    /// Asks for something. `what` says in errors what was asked, as in "read Service a/b". `None`: there is no such thing.
    pub(super) async fn ask<T: DeserializeOwned + Send + 'static>(
        &self,
        what: &str,
        request: Request<Vec<u8>>,
    ) -> Result<Option<T>, Error> {
        let (kube, said) = (self.clone(), what.to_owned());
        self.in_background(what, async move {
            let response = kube.send(&said, request).await?;
            match response.status() {
                StatusCode::NOT_FOUND => Ok(None),
                status if status.is_success() => {
                    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
                    let body = body.map_err(|error| kube.away(&said, &*error))?.to_bytes();
                    let large = body.len() > LARGE_ANSWER;
                    let parse = move || serde_json::from_slice(&body);
                    let answer = match large {
                        true => tokio::task::spawn_blocking(parse).await,
                        false => Ok(parse()),
                    };
                    let answer = answer.map_err(|_ended| kube.failed(&said, "crisp is shutting down"))?;
                    answer.map(Some).map_err(|error| kube.away(&said, &error))
                }
                _ => Err(kube.refused(&said, response).await),
            }
        })
        .await
    }

    /// Asks for something that goes on. The head of the answer has come when this ends.
    pub(super) async fn open(&self, what: &str, request: Request<Vec<u8>>) -> Result<Body, Error> {
        let (kube, said) = (self.clone(), what.to_owned());
        self.in_background(what, async move {
            let response = kube.send(&said, request).await?;
            if response.status().is_success() {
                return Ok(response.into_body());
            }
            Err(kube.refused(&said, response).await)
        })
        .await
    }

    /// Runs it where connections live, for no longer than it may take. Ends with its caller.
    async fn in_background<T: Send + 'static>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let limited = tokio::time::timeout(PATIENCE, request);
        let task = AbortOnDropHandle::new(self.shared.background.spawn(limited));
        match task.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_elapsed)) => {
                Err(self.failed(what, &format!("no answer within {} s", PATIENCE.as_secs())))
            }
            Err(_ended) => Err(self.failed(what, "crisp is shutting down")),
        }
    }

    async fn send(&self, what: &str, request: Request<Vec<u8>>) -> Result<Response<Body>, Error> {
        let client = self.client(what).await?;
        let response = client.send(request.map(Body::from)).await;
        response.map_err(|error| match error {
            // What is wrapped says it all.
            ::kube::Error::Service(error) => self.away(what, &*error),
            error => self.away(what, &error),
        })
    }

    /// The client in use, or a new one.
    async fn client(&self, what: &str) -> Result<Client, Error> {
        if let Some(client) = self.fresh_client() {
            return Ok(client);
        }
        // One at a time: a program that hangs must not hang once for each pod.
        let Ok(turn) = self.shared.making.clone().acquire_owned().await else {
            return Err(self.failed(what, "crisp is shutting down"));
        };
        if let Some(client) = self.fresh_client() {
            return Ok(client);
        }
        // Reads files, and may run a program that gets credentials.
        let kube = self.clone();
        let making = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let config = kube.read().map_err(|mistake| mistake.to_string())?;
            connect(&config).map_err(|error| format!("{}: {}", kube.shared.source.place(), words(&error)))
        });
        let client = match making.await {
            Ok(made) => made.map_err(|reason| self.failed(what, &reason))?,
            Err(_ended) => return Err(self.failed(what, "crisp is shutting down")),
        };
        if let Ok(mut slot) = self.shared.client.lock() {
            *slot = Some(Made { client: client.clone(), at: Instant::now() });
        }
        Ok(client)
    }

    fn fresh_client(&self) -> Option<Client> {
        let slot = self.shared.client.lock().ok()?;
        slot.as_ref().filter(|made| made.at.elapsed() < FRESH).map(|made| made.client.clone())
    }

    fn forget_client(&self) {
        if let Ok(mut slot) = self.shared.client.lock() {
            *slot = None;
        }
    }

    /// The API server said no.
    async fn refused(&self, what: &str, response: Response<Body>) -> Error {
        #[derive(Deserialize)]
        struct Status {
            message: String,
        }
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ERROR).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let said = serde_json::from_slice::<Status>(&body).map(|status| status.message).ok();
        let said = said.map(|said| format!(": {}", shown(&said))).unwrap_or_default();
        let advice = match status {
            StatusCode::UNAUTHORIZED => {
                // They may have been renewed since they were read.
                self.forget_client();
                format!("; look at the credentials of {}", self.shared.source.place())
            }
            StatusCode::FORBIDDEN => "; grant it with the ClusterRole of deploy/node/rbac.yaml".to_owned(),
            _ => String::new(),
        };
        self.failed(what, &format!("{}{said}{advice}", status.as_u16()))
    }

    /// No answer, or one that cannot be read.
    fn away(&self, what: &str, error: &(dyn std::error::Error + 'static)) -> Error {
        self.failed(what, &words(error))
    }

    /// What the caller is told: the kubelet tries again.
    pub(super) fn failed(&self, what: &str, reason: &str) -> Error {
        let server = self.server().map(|server| format!(" {server}")).unwrap_or_default();
        let reason = shown(reason);
        Error::new(
            Kind::Unavailable,
            Origin::KubeApi,
            format!("cannot {what} at the Kubernetes API server{server}: {reason}"),
        )
    }
}

/// An error and its causes. The outermost mostly says "client error (Connect)" and no more.
fn words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = String::new();
    let mut cause = Some(error);
    while let Some(error) = cause {
        // It would show what a program printed, and that may be credentials.
        if let Some(error) = error.downcast_ref() {
            return without_secrets(error);
        }
        let next = match error.downcast_ref() {
            // What is in it comes next.
            Some(::kube::Error::Auth(_)) => "no credentials".to_owned(),
            _ => error.to_string(),
        };
        if !words.contains(&next) {
            words = if words.is_empty() { next } else { format!("{words}: {next}") };
        }
        cause = error.source();
    }
    words
}

fn without_secrets(error: &AuthError) -> String {
    match error {
        AuthError::AuthExecRun { out, .. } => {
            let said = String::from_utf8_lossy(&out.stderr);
            format!("the program that gets credentials failed with {}: {}", out.status, said.trim())
        }
        AuthError::AuthExecParse(_) => {
            "the program that gets credentials printed something that is not an ExecCredential".to_owned()
        }
        AuthError::ReadTokenFile(error, _) => format!("tokenFile cannot be read: {error}"),
        error => error.to_string(),
    }
}

/// One line, not too long.
fn shown(text: &str) -> String {
    text.chars().take(500).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// One TLS provider for every client.
pub(super) fn install_tls() {
    // An error means that it was installed before.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Makes a client. Must run in the context of the background runtime, which carries its connections.
fn connect(config: &Config) -> Result<Client, ::kube::Error> {
    install_tls();
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(PATIENCE / 2));
    connector.set_keepalive(Some(Duration::from_secs(30)));
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(connector);
    // The layer that signs on wants errors of any kind.
    let http = http.map_err(BoxError::from);
    let builder =
        ClientBuilder::new(http, config.default_namespace.clone()).with_layer(&config.extra_headers_layer()?);
    let base = config.base_uri_layer();
    Ok(match config.auth_layer()? {
        Some(auth) => builder.with_layer(&auth).with_layer(&base).build(),
        None => builder.with_layer(&base).build(),
    })
}

/// A request without a body.
pub(super) fn get(path: &str) -> Result<Request<Vec<u8>>, Error> {
    build(Request::get(path), Vec::new())
}

/// A request that makes an object.
pub(super) fn post(path: &str, body: &serde_json::Value) -> Result<Request<Vec<u8>>, Error> {
    let body = Bytes::from(body.to_string()).to_vec();
    build(Request::post(path).header(http::header::CONTENT_TYPE, "application/json"), body)
}

pub(super) fn build(builder: http::request::Builder, body: Vec<u8>) -> Result<Request<Vec<u8>>, Error> {
    let agent = concat!("crisp/", env!("CARGO_PKG_VERSION"));
    builder.header(http::header::USER_AGENT, agent).body(body).map_err(|error| {
        Error::new(Kind::Internal, Origin::Crisp, format!("cannot ask the Kubernetes API server: {error}"))
    })
}

/// Whether this may be a part of a path: what is no name in Kubernetes is asked for nowhere.
pub(super) fn is_name(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && !text.starts_with('.')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.'))
}
