//! Whether crisp is alive and whether the runtime behind it answers.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tonic::Code;

use crate::cri::{Method, Raw, read, view};
use crate::error::{Error, Kind, Origin};
use crate::metrics::Metrics;
use crate::proxy::upstream::{Client, Endpoints};

/// How long the runtime and crisp's own proxy thread have to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks when asked; nothing is polled in between.
#[derive(Debug)]
pub struct Health {
    client: Client,
    metrics: Arc<Metrics>,
    /// Whether the runtime serves the images too.
    one_endpoint: bool,
    proxy: tokio::runtime::Handle,
}

/// What the runtime says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// For example `containerd`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The version of the CRI it speaks.
    pub api: String,
}

impl Health {
    /// `proxy` is the runtime of the proxy's thread.
    pub fn new(endpoints: &Endpoints, metrics: Arc<Metrics>, proxy: tokio::runtime::Handle) -> Self {
        let one_endpoint = endpoints.runtime.path() == endpoints.image.path();
        Self { client: Client::new(endpoints, &metrics), metrics, one_endpoint, proxy }
    }

    /// Whether the proxy's thread takes work.
    pub async fn alive(&self) -> bool {
        let turn = self.proxy.spawn(async {});
        matches!(tokio::time::timeout(PATIENCE, turn).await, Ok(Ok(())))
    }

    /// Whether everything behind crisp answers: the runtime, and the image service where it is another one.
    pub async fn ready(&self) -> Result<(), Error> {
        let (runtime, image) = self.both().await;
        runtime.map(drop).and(image)
    }

    /// What the runtime says of itself, and whether the image service answers where it is another one.
    pub async fn both(&self) -> (Result<RuntimeVersion, Error>, Result<(), Error>) {
        let image = async {
            if self.one_endpoint {
                return Ok(());
            }
            // What the kubelet asks an image service first.
            let image = in_time("image service", self.ask(Method::IMAGE_FS_INFO, b"")).await.map(drop);
            self.metrics.set_upstream_up("image", image.is_ok());
            image
        };
        tokio::join!(self.runtime(), image)
    }

    /// Asks the runtime for its version, on crisp's own connection.
    pub async fn runtime(&self) -> Result<RuntimeVersion, Error> {
        let answer = in_time("container runtime", self.version()).await;
        self.metrics.set_upstream_up("runtime", answer.is_ok());
        if self.one_endpoint {
            self.metrics.set_upstream_up("image", answer.is_ok());
        }
        answer
    }

    async fn version(&self) -> Result<RuntimeVersion, Error> {
        // VersionRequest { version: "0.1.0" }, what the kubelet sends.
        let raw = self.ask(Method::VERSION, b"\x0a\x050.1.0").await?;
        let version: view::VersionResponse = read(&raw.unary_message()?)?;
        Ok(RuntimeVersion {
            name: version.runtime_name,
            version: version.runtime_version,
            api: version.runtime_api_version,
        })
    }

    async fn ask(&self, method: Method, message: &[u8]) -> Result<Raw, Error> {
        let mut metadata = HeaderMap::new();
        metadata.insert("grpc-timeout", HeaderValue::from_static("1S"));
        let raw = self.client.call(method, metadata, message).await?;
        if raw.code() == Code::Ok {
            return Ok(raw);
        }
        let text = format!("the container runtime answers {} with {:?}", method.name(), raw.code());
        Err(Error::new(Kind::Unavailable, Origin::Runtime, text))
    }
}

async fn in_time<T>(whom: &str, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(|_| {
        let text = format!("the {whom} does not answer within 1 s");
        Err(Error::new(Kind::Unavailable, Origin::Runtime, text))
    })
}
