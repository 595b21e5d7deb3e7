//! containerd's own API, beside CRI: leases that keep what a cancelled pull has fetched, what the content store knows
//! of a pull under way, and the records by which images are known.
//!
//! A pull is tied to a lease by metadata [`LEASE_HEADER`] on its PullImage. containerd then notes under that lease
//! whatever the pull touches, and neither makes nor deletes a lease itself:
//!
//! - after a cancel, finished and partial layers stay, and the next pull under the same lease goes on where that one
//!   stopped ([`Containerd::kept`] tells how much that is);
//! - the lease says which blobs belong to the pull, which makes true progress possible ([`Tracker`]).
//!
//! A lease can also *park* an image: what it holds stays, though no record names it ([`Containerd::copy_lease`]).
//!
//! Every call has a time limit of its own, and every future may be dropped at any point: what was begun then is either
//! repeated safely or expires. No credential ever comes here.
//!
//! # Limits
//!
//! containerd skips a layer whose unpacked form is there already, from an image that packed it differently. Such a
//! layer is never fetched, so that pull seems to be downloading until it has ended.

mod accounting;
mod content;
mod error;
mod images;
mod lease;
mod manifest;
mod progress;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use containerd_client::services::v1::content_client::ContentClient;
use containerd_client::services::v1::images_client::ImagesClient;
use containerd_client::services::v1::leases_client::LeasesClient;
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

pub use accounting::Accounting;
pub use error::Error;
pub use images::{ImageRecord, Target, cri_name};
pub use lease::{LEASE_HEADER, LEASE_LABEL, LIFETIME, Lease, PARKED_LABEL};
pub use progress::{LayerProgress, Phase, Progress, Tracker};

/// A client of containerd's API. It connects with the first call, anew after the connection was lost, and clones share
/// one connection, which lives on the runtime that made the first call.
#[derive(Debug, Clone)]
pub struct Containerd {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    socket: PathBuf,
    /// Made by the first call, because making it needs a runtime.
    channel: OnceLock<Channel>,
}

/// The namespace of all that CRI does.
const NAMESPACE: &str = "k8s.io";
/// As large as containerd's own limit; tonic's default of 4 MiB is too small for a long list.
const MAX_MESSAGE: usize = 16 << 20;
/// How long a call may take. Each is a few milliseconds of work, or one write to a slow disk.
const CALL_LIMIT: Duration = Duration::from_secs(10);

type InNamespace = InterceptedService<Channel, fn(Request<()>) -> Result<Request<()>, Status>>;

// === impl Containerd ===

impl Containerd {
    /// A client of the containerd behind a socket, with no connection yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { inner: Arc::new(Inner { socket: socket.into(), channel: OnceLock::new() }) }
    }

    /// Whether the socket speaks containerd's lease API. CRI-O and the runtime built in do not; a runtime that
    /// cannot be reached is an error, because the answer is not known.
    pub async fn supported(&self) -> Result<bool, Error> {
        match self.find_lease("crisp.dev-probe").await {
            Ok(_) => Ok(true),
            Err(Error::Refused { code: Code::Unimplemented, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.inner.socket
    }

    fn leases(&self) -> Result<LeasesClient<InNamespace>, Error> {
        let client = LeasesClient::with_interceptor(self.channel()?, in_namespace as fn(_) -> _);
        Ok(client.max_decoding_message_size(MAX_MESSAGE))
    }

    fn content(&self) -> Result<ContentClient<InNamespace>, Error> {
        let client = ContentClient::with_interceptor(self.channel()?, in_namespace as fn(_) -> _);
        Ok(client.max_decoding_message_size(MAX_MESSAGE))
    }

    fn images_client(&self) -> Result<ImagesClient<InNamespace>, Error> {
        let client = ImagesClient::with_interceptor(self.channel()?, in_namespace as fn(_) -> _);
        Ok(client.max_decoding_message_size(MAX_MESSAGE))
    }

    fn channel(&self) -> Result<Channel, Error> {
        if let Some(channel) = self.inner.channel.get() {
            return Ok(channel.clone());
        }
        let uri = format!("unix://{}", self.inner.socket.display());
        let endpoint = Endpoint::from_shared(uri).map_err(|error| Error::Unavailable {
            socket: self.inner.socket.clone(),
            reason: error.to_string(),
        })?;
        Ok(self.inner.channel.get_or_init(|| endpoint.connect_lazy()).clone())
    }

    /// Makes a call within a limit.
    async fn call<T>(
        &self,
        name: &'static str,
        limit: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        let socket = || self.inner.socket.clone();
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(Error::of_status(name, socket(), &status)),
            Err(_) => Err(Error::Slow { socket: socket(), call: name, limit }),
        }
    }
}

fn in_namespace(mut request: Request<()>) -> Result<Request<()>, Status> {
    request.metadata_mut().insert("containerd-namespace", MetadataValue::from_static(NAMESPACE));
    Ok(request)
}
