//! A tour of crisp on a machine with nothing but Rust: `make demo`, or `make demo KEEP=1` to keep it running.
//!
//! Everything is real except the containers: a registry in this process, the crisp program as a child of it on its
//! embedded runtime, and a client that talks to crisp's socket as a kubelet would.

#[path = "../support/registry.rs"]
mod registry;

mod child;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures_util::future::try_join_all;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use k8s_cri::v1::*;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tonic::transport::{Channel, Endpoint};

use child::Crisp;
use registry::{ImageBuilder, Registry};

const PULLS: usize = 20;
/// Metrics worth a look after the tour; the rest is at /metrics.
const METRICS: [&str; 3] =
    ["crisp_calls_total", "crisp_call_bytes_total{method=\"PullImage\"", "crisp_upstream_up"];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // First of all, so that whenever it is interrupted there is nothing left behind.
    let mut signals = Signals::new()?;
    let dir = tempfile::Builder::new().prefix("crisp-demo-").tempdir()?;
    let begun = Instant::now();
    let registry = Registry::start().await;
    // Interrupted, it returns, so that crisp and the directory go as on every other way out.
    let (mut crisp, image) = tokio::select! {
        tour = tour(&registry, dir.path()) => tour?,
        () = signals.next() => bail!("interrupted"),
    };
    if std::env::var_os("KEEP").is_some_and(|value| !value.is_empty() && value != "0") {
        keep_running(&crisp, &image);
        signals.next().await;
    }

    step("SIGTERM");
    let asked = Instant::now();
    let code = crisp.terminate().await?;
    ensure!(code == Some(0), "crisp ended with {code:?}; its log:\n{}", crisp.log());
    say(&format!("crisp ended with exit code 0 after {}", seconds(asked)));
    println!("\nThe whole tour took {}.", seconds(begun));
    Ok(())
}

/// Starts crisp and shows what it does. Gives it back, with the name of the image that was pulled.
async fn tour(registry: &Registry, dir: &Path) -> anyhow::Result<(Crisp, String)> {
    step("a registry on loopback, with one image of three layers");
    let image = ImageBuilder::default().layer(&[("etc/motd", b"hello from crisp\n")]);
    let image = image.noise(1 << 20, 1).noise(1 << 19, 2).user("65532").build();
    let name = registry.push("demo/app:v1", &image);
    say(&format!("{name}, {}", mib(image.blobs.iter().map(|(_, data)| data.len() as u64).sum())));

    step("crisp serve --runtime-endpoint embedded");
    let mut crisp = Crisp::start(dir)?;
    crisp.wait_until_ready().await?;
    say(&format!("ready after {}, listening on {}", seconds(crisp.started), crisp.socket.display()));

    let channel = connect(&crisp.socket).await?;
    pull_at_once(registry, &channel, &name, &image.id).await?;
    show_images(&channel).await?;
    run_pod(&channel, &name).await?;

    step("crisp status");
    print!("{}", indent(&crisp.status()?));

    step("curl /metrics, in part");
    let metrics = crisp.get("/metrics").await?;
    let chosen = metrics.lines().filter(|line| METRICS.iter().any(|name| line.starts_with(name)));
    print!("{}", indent(&chosen.collect::<Vec<_>>().join("\n")));
    Ok((crisp, name))
}

async fn pull_at_once(registry: &Registry, channel: &Channel, name: &str, id: &str) -> anyhow::Result<()> {
    step(&format!("the same image pulled {PULLS} times at once"));
    let begun = Instant::now();
    let pull = |_| {
        let mut images = ImageServiceClient::new(channel.clone());
        let request = PullImageRequest { image: Some(spec(name)), ..Default::default() };
        async move { images.pull_image(request).await }
    };
    for answer in try_join_all((0..PULLS).map(pull)).await? {
        ensure!(answer.get_ref().image_ref == id, "a pull answered {:?}", answer.get_ref().image_ref);
    }
    say(&format!("{PULLS} answers, all {}, after {}", short(id), seconds(begun)));
    let (manifests, blobs) = (registry.requests_to("/manifests/"), registry.requests_to("/blobs/"));
    say(&format!(
        "the registry saw {manifests} requests for manifests and {blobs} for blobs, and sent {}",
        { mib(registry.bytes_sent()) }
    ));
    Ok(())
}

async fn show_images(channel: &Channel) -> anyhow::Result<()> {
    step("ListImages");
    let listed = ImageServiceClient::new(channel.clone()).list_images(ListImagesRequest::default()).await?;
    for image in listed.into_inner().images {
        let uid = image.uid.map_or_else(|| "root".to_owned(), |uid| uid.value.to_string());
        say(&format!("{}  {}  {}  user {uid}", short(&image.id), mib(image.size), image.repo_tags.join(" ")));
    }
    Ok(())
}

async fn run_pod(channel: &Channel, image: &str) -> anyhow::Result<()> {
    step("a pod with one container (records only: the embedded runtime starts no process)");
    let mut runtime = RuntimeServiceClient::new(channel.clone());
    let metadata = PodSandboxMetadata {
        name: "demo".into(),
        uid: "0a1b2c3d".into(),
        namespace: "default".into(),
        attempt: 0,
    };
    let sandbox_config = Some(PodSandboxConfig { metadata: Some(metadata), ..Default::default() });
    let request = RunPodSandboxRequest { config: sandbox_config.clone(), ..Default::default() };
    let pod_sandbox_id = runtime.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
    say(&format!("sandbox    {}", short(&pod_sandbox_id)));
    let config = Some(ContainerConfig {
        metadata: Some(ContainerMetadata { name: "app".into(), attempt: 0 }),
        image: Some(spec(image)),
        ..Default::default()
    });
    let request = CreateContainerRequest { pod_sandbox_id: pod_sandbox_id.clone(), config, sandbox_config };
    let container_id = runtime.create_container(request).await?.into_inner().container_id;
    show_state(&mut runtime, &container_id).await?;
    runtime.start_container(StartContainerRequest { container_id: container_id.clone() }).await?;
    show_state(&mut runtime, &container_id).await?;
    runtime.stop_container(StopContainerRequest { container_id: container_id.clone(), timeout: 1 }).await?;
    show_state(&mut runtime, &container_id).await?;
    Ok(())
}

async fn show_state(runtime: &mut RuntimeServiceClient<Channel>, id: &str) -> anyhow::Result<()> {
    let request = ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
    let status = runtime.container_status(request).await?.into_inner().status.context("no status")?;
    say(&format!("container  {}  {}", short(id), status.state().as_str_name()));
    Ok(())
}

fn keep_running(crisp: &Crisp, image: &str) {
    step("still running; end it with Ctrl-C");
    let socket = crisp.socket.display();
    say(&format!("export CONTAINER_RUNTIME_ENDPOINT=unix://{socket} IMAGE_SERVICE_ENDPOINT=unix://{socket}"));
    say("crictl version");
    say(&format!("crictl pull {image}"));
    say("crictl images; crictl pods; crictl ps -a");
    say(&format!("{} status --admin-listen unix://{}", crisp.program.display(), crisp.admin.display()));
    say(&format!("curl http://{}/metrics", crisp.metrics));
}

/// The signals that end the demo: Ctrl-C, SIGTERM, and the end of its terminal.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> anyhow::Result<Self> {
        let [interrupt, terminate, hangup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([interrupt?, terminate?, hangup?]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

async fn connect(socket: &Path) -> anyhow::Result<Channel> {
    Ok(Endpoint::from_shared(format!("unix://{}", socket.display()))?.connect().await?)
}

fn spec(name: &str) -> ImageSpec {
    ImageSpec { image: name.to_owned(), ..Default::default() }
}

fn step(text: &str) {
    println!("\n== {text}");
}

fn say(text: &str) {
    println!("   {text}");
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("   {line}\n")).collect()
}

fn short(id: &str) -> &str {
    let hex = id.strip_prefix("sha256:").unwrap_or(id);
    hex.get(..12).unwrap_or(hex)
}

fn mib(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20))
}

fn seconds(since: Instant) -> String {
    format!("{:.2} s", Duration::as_secs_f64(&since.elapsed()))
}
