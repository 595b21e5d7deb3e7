//! CRI clients over a unix socket.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::{
    Container, ContainerStatusRequest, Image, ImageSpec, ImageStatusRequest, ListContainersResponse,
    ListImagesRequest, ListImagesResponse, ListPodSandboxRequest, PullImageRequest, RemoveImageRequest,
    RemovePodSandboxRequest, StopPodSandboxRequest, VersionRequest, VersionResponse,
};
use prost::Message as _;
use tokio::net::UnixStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};

/// Both services of one endpoint, each on a connection of its own as the kubelet has them.
#[derive(Clone, Debug)]
pub(crate) struct Cri {
    pub(crate) runtime: RuntimeServiceClient<Channel>,
    pub(crate) images: ImageServiceClient<Channel>,
    /// For calls that the clients do not know.
    channel: Channel,
    dials: Arc<AtomicUsize>,
}

/// Messages as they are.
#[derive(Clone, Copy, Debug, Default)]
struct Plain;

impl Cri {
    /// Clients that connect with their first call.
    pub(crate) fn new(socket: &Path) -> Self {
        const LIMIT: usize = 16 << 20;
        let dials = Arc::new(AtomicUsize::new(0));
        let channel = || channel(socket, &dials);
        Self {
            runtime: RuntimeServiceClient::new(channel()).max_decoding_message_size(LIMIT),
            images: ImageServiceClient::new(channel()).max_decoding_message_size(LIMIT),
            channel: channel(),
            dials,
        }
    }

    /// Pulls an image, under a lease of containerd's if there is one, and gives its ID.
    pub(crate) async fn pull(&self, image: &str, lease: Option<&str>) -> Result<String, Status> {
        let mut request =
            Request::new(PullImageRequest { image: spec(image), ..PullImageRequest::default() });
        if let Some(lease) = lease {
            request.metadata_mut().insert("containerd-lease", lease.parse().expect("metadata"));
        }
        Ok(self.images.clone().pull_image(request).await?.into_inner().image_ref)
    }

    /// What the runtime has under this name or ID.
    pub(crate) async fn image(&self, name: &str) -> Option<Image> {
        let request = ImageStatusRequest { image: spec(name), verbose: false };
        self.images.clone().image_status(request).await.expect("ImageStatus").into_inner().image
    }

    pub(crate) async fn remove_image(&self, name: &str) {
        self.try_remove_image(name).await.expect("RemoveImage");
    }

    pub(crate) async fn try_remove_image(&self, name: &str) -> Result<(), Status> {
        let request = RemoveImageRequest { image: spec(name) };
        self.images.clone().remove_image(request).await.map(drop)
    }

    /// All images.
    pub(crate) async fn list(&self) -> Vec<Image> {
        let reply = self.images.clone().list_images(ListImagesRequest::default()).await;
        reply.expect("ListImages").into_inner().images
    }

    /// All images, as newer kubelets ask for them.
    pub(crate) async fn stream(&self) -> Result<Vec<Image>, Status> {
        let replies = self.streamed("/runtime.v1.ImageService/StreamImages").await?;
        // Each has the form of a list.
        Ok(replies
            .into_iter()
            .flat_map(|reply| ListImagesResponse::decode(reply).expect("a list").images)
            .collect())
    }

    /// All containers, as newer kubelets ask for them.
    pub(crate) async fn stream_containers(&self) -> Result<Vec<Container>, Status> {
        let replies = self.streamed("/runtime.v1.RuntimeService/StreamContainers").await?;
        let list = |reply: Bytes| ListContainersResponse::decode(reply).expect("a list").containers;
        Ok(replies.into_iter().flat_map(list).collect())
    }

    async fn streamed(&self, path: &'static str) -> Result<Vec<Bytes>, Status> {
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.expect("a connection");
        let (path, request) = (PathAndQuery::from_static(path), Request::new(Bytes::new()));
        let mut replies = client.server_streaming(request, path, Plain).await?.into_inner();
        let mut all = Vec::new();
        while let Some(reply) = replies.message().await? {
            all.push(reply);
        }
        Ok(all)
    }

    /// How often one of the two has connected so far.
    pub(crate) fn dials(&self) -> usize {
        self.dials.load(Ordering::Relaxed)
    }
}

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

fn spec(image: &str) -> Option<ImageSpec> {
    Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() })
}

fn channel(socket: &Path, dials: &Arc<AtomicUsize>) -> Channel {
    let (socket, dials): (PathBuf, _) = (socket.to_owned(), Arc::clone(dials));
    let connect = move |_: Uri| {
        dials.fetch_add(1, Ordering::Relaxed);
        let socket = socket.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    };
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(connect))
}

/// The runtime's version, from code that is not asynchronous; nothing when it does not answer.
pub(crate) fn version(socket: &Path) -> Option<VersionResponse> {
    blocking(socket, Duration::from_secs(2), |mut cri| async move {
        Some(cri.runtime.version(VersionRequest::default()).await.ok()?.into_inner())
    })
}

/// The process of a running container, as the runtime tells it.
pub(crate) fn container_pid(socket: &Path, container_id: &str) -> Option<u32> {
    let request = ContainerStatusRequest { container_id: container_id.to_owned(), verbose: true };
    let info = blocking(socket, Duration::from_secs(10), |mut cri| async move {
        cri.runtime.container_status(request).await.ok()?.into_inner().info.remove("info")
    })?;
    let info: serde_json::Value = serde_json::from_str(&info).ok()?;
    info["pid"].as_u64()?.try_into().ok()
}

/// Stops and removes all pods, as far as the runtime still does so.
pub(crate) fn remove_pods(socket: &Path) {
    blocking(socket, Duration::from_secs(30), |cri| async move {
        let pods = cri.clone().runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await.ok()?;
        let removals = pods.into_inner().items.into_iter().map(|pod| {
            let mut runtime = cri.runtime.clone();
            async move {
                let _ =
                    runtime.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() }).await;
                let _ = runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id: pod.id }).await;
            }
        });
        futures_util::future::join_all(removals).await;
        Some(())
    });
}

/// Runs calls on a thread and a runtime of their own: the caller may itself be inside of one.
fn blocking<T, F>(socket: &Path, limit: Duration, calls: impl FnOnce(Cri) -> F + Send) -> Option<T>
where
    T: Send,
    F: Future<Output = Option<T>>,
{
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            tokio::time::timeout(limit, async { calls(Cri::new(socket)).await }).await.ok().flatten()
        })
    };
    std::thread::scope(|scope| scope.spawn(run).join().expect("the calls do not panic"))
}
