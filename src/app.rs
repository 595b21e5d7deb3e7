//! The one wiring page: builds every handle, starts every task, owns the order of shutdown.
//!
//! Two runtimes: the proxy has a thread of its own, everything else (admin, health, the embedded runtime) shares
//! the main one, so that background work never delays a call.

mod discovery;
mod proxy_thread;
mod signals;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::FutureExt;
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

pub use self::discovery::NoWay;
use self::discovery::find_runtime;
use self::proxy_thread::ProxyThread;
use self::signals::Signals;
use crate::admin::health::Health;
use crate::admin::http::{self, MetricsPort};
use crate::admin::status::Reporter;
use crate::config::{self, Config};
use crate::container::PodEvents;
use crate::container::links::{self, Links};
use crate::container::recorder::{self, Recorder};
use crate::container::shield::{self, PodsOfNode, Shield};
use crate::containerd::Containerd;
use crate::cri::RuntimeCall;
use crate::intercept::{self, Features};
use crate::kube::Kube;
use crate::metrics::Metrics;
use crate::prepull::spec::Reader;
use crate::prepull::{Parts, Prepull, Sight};
use crate::proxy::Proxy;
use crate::proxy::listener::{self, SocketFile};
use crate::proxy::router::Router;
use crate::proxy::upstream::{Client, Endpoints};
use crate::proxy::usage::Usage;
use crate::pull::Coordinator;
use crate::shutdown::Shutdown;
use crate::telemetry;

/// How long ended calls have to reach their callers after the second stage of shutdown.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// How long the queue has to write down what it was told and to give its store up.
const STORE_CLOSES: Duration = Duration::from_secs(5);

/// Serves until a signal, then shuts down in two stages.
pub fn serve(config: Config) -> anyhow::Result<()> {
    let _log = telemetry::init(config.log_format, &config.log_level);
    // One thread: whatever takes long there is made elsewhere, and each further one costs memory on every node.
    tokio::runtime::Builder::new_current_thread()
        .thread_name("crisp-background")
        .enable_all()
        .build()
        .context("cannot start the background runtime")?
        .block_on(run(config))
}

async fn run(config: Config) -> anyhow::Result<()> {
    // First of all, so that a signal from now on leaves no socket file behind.
    let mut signals = Signals::new()?;
    let metrics = Metrics::new();
    let shutdown = Shutdown::default();
    let kube = Kube::start(&config.kube, &Handle::current());

    // Sockets first: a kubelet that starts with us waits in the backlog instead of failing.
    let (listener, socket_file, own) = take_socket(&config.listen)?;
    let (listen, activated) = (format!("unix://{}", own.display()), socket_file.is_none());
    if listener::same_file(&config.admin_listen, &own) {
        return Err(NoWay::OneForBoth(config.admin_listen).into());
    }
    let (admin, admin_file) = listener::bind(&config.admin_listen)?;
    let admin = UnixListener::from_std(admin)?;
    let metrics_port = config.metrics_listen.map(MetricsPort::open);
    let metrics_address = metrics_port.as_ref().map(MetricsPort::address);

    let (endpoints, embedded) = find_runtime(&config, &[&own, &config.admin_listen]).await?;
    let pulls = coordinator(config.pull.clone(), &endpoints, &metrics, Handle::current())?;
    let sight = Sight::default();
    let pods = kube.clone().map(|kube| -> PodsOfNode {
        Arc::new(move || {
            let kube = kube.clone();
            async move { kube.pods_of_node().await }.boxed()
        })
    });
    let parts = shield::Parts {
        settings: config.hash_shield,
        state_dir: config.state_dir.clone(),
        runtime: runtime_call(&endpoints, &metrics),
        pods,
        metrics: metrics.clone(),
    };
    let shield = Shield::start(parts, &Handle::current());
    let events = kube.clone().map(|kube| PodEvents(Arc::new(move |event| kube.event(event))));
    let recorder = recorder(&config, &endpoints, &metrics, events.unwrap_or_default());
    let links = config
        .links
        .enabled
        .then(|| links(&config.links, kube.as_ref(), &endpoints, &metrics, shutdown.release_token()));
    let proxy_thread = ProxyThread::start(
        listener,
        Proxy {
            endpoints: endpoints.clone(),
            router: Router::new(Features::new(intercept::Parts {
                metrics: metrics.clone(),
                aci: config.image_aci_names.clone(),
                coordinator: pulls.clone(),
                sight: sight.clone(),
                call: runtime_call(&endpoints, &metrics),
                shield: Some(shield),
                recorder: recorder.clone(),
                links: links.clone(),
            })),
            metrics: metrics.clone(),
            usage: Arc::new(Usage::default()),
        },
        shutdown.clone(),
    )?;

    let prepull = config.prepull.enabled.then(|| prepull(&config, &endpoints, &metrics, &pulls, &sight));

    let health = Arc::new(Health::new(&endpoints, metrics.clone(), proxy_thread.handle.clone()));
    let reporter = Arc::new(Reporter {
        health: health.clone(),
        pulls,
        prepull: prepull.clone(),
        kube: kube.clone(),
        restarts: recorder.as_ref().map(|recorder| recorder.history().clone()),
        links,
        metrics: metrics.clone(),
        started: Instant::now(),
        listen: listen.clone(),
        activated,
        runtime_endpoint: endpoints.runtime.to_string(),
        image_endpoint: endpoints.image.to_string(),
    });
    tokio::spawn(first_look(health.clone(), endpoints.clone()));
    tokio::spawn(report("admin API", http::serve_admin(admin, reporter, shutdown.clone())));
    if let Some(port) = metrics_port {
        let server = http::serve_metrics(port, health, metrics, prepull.clone(), shutdown.clone());
        tokio::spawn(report("metrics", server));
    }

    tracing::info!(
        version = crate::admin::cli::VERSION,
        listen,
        activated,
        admin = %config.admin_listen.display(),
        metrics = metrics_address.map(tracing::field::display),
        runtime = %endpoints.runtime,
        image = %endpoints.image,
        kubernetes = kube.as_ref().and_then(Kube::server),
        node = kube.as_ref().map(Kube::node),
        "serving"
    );
    // Tells systemd, if it asked. Without it there is nobody to tell.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);

    tokio::select! {
        name = signals.next() => {
            tracing::info!(signal = name, drain_max = ?config.drain_max, "releasing the sockets, draining calls");
        }
        () = proxy_thread.done.cancelled() => anyhow::bail!("the proxy thread ended unexpectedly"),
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);

    // Stage one: whatever a successor may want goes at once. Files before listeners, so that the path never
    // names a socket that nobody accepts on.
    drop((socket_file, admin_file));
    shutdown.release();
    // Stage two: what is still under way after the drain ends with UNAVAILABLE.
    let drain = async {
        tokio::select! {
            () = proxy_thread.done.cancelled() => {}
            () = tokio::time::sleep(config.drain_max) => tracing::info!("drain time is over, ending what is left"),
            name = signals.next() => tracing::info!(signal = name, "second signal, ending at once"),
        }
        shutdown.end();
    };
    // Beside it, as neither needs the other.
    tokio::join!(close_stores(prepull.as_ref(), recorder.as_ref()), drain);
    if tokio::time::timeout(LAST_WORDS, proxy_thread.done.cancelled()).await.is_err() {
        tracing::debug!("some clients did not take their last replies");
    }
    if let Some(embedded) = embedded {
        embedded.shutdown().await;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Has all that was acknowledged written down, and gives the stores up for a successor.
async fn close_stores(prepull: Option<&Prepull>, recorder: Option<&Recorder>) {
    let queue = async {
        if let Some(prepull) = prepull
            && tokio::time::timeout(STORE_CLOSES, prepull.close()).await.is_err()
        {
            tracing::warn!("the queue does not give its store up in time");
        }
    };
    let history = async {
        if let Some(recorder) = recorder
            && tokio::time::timeout(STORE_CLOSES, recorder.close()).await.is_err()
        {
            tracing::warn!("the history of restarts does not give its store up in time");
        }
    };
    tokio::join!(queue, history);
}

/// The socket that systemd passed, or one bound here.
fn take_socket(
    path: &Path,
) -> anyhow::Result<(std::os::unix::net::UnixListener, Option<SocketFile>, PathBuf)> {
    if let Some(listener) = listener::activated().context("cannot take the socket that systemd passed")? {
        let address = listener.local_addr()?;
        let path = address.as_pathname().map_or_else(|| PathBuf::from("?"), Path::to_owned);
        return Ok((listener, None, path));
    }
    let (listener, file) = listener::bind(path)?;
    Ok((listener, Some(file), path.to_owned()))
}

/// The coordinator of pulls, with connections of its own to the image service.
pub fn coordinator(
    settings: config::Pulls,
    endpoints: &Endpoints,
    metrics: &Arc<Metrics>,
    background: Handle,
) -> anyhow::Result<Coordinator> {
    let call = runtime_call(endpoints, metrics);
    let containerd = Containerd::new(endpoints.image.path());
    Coordinator::new(settings, call, containerd, background, metrics.clone())
        .context("no randomness for keys")
}

/// Calls that crisp makes itself, on connections of their own: they live where the first call is made.
pub fn runtime_call(endpoints: &Endpoints, metrics: &Arc<Metrics>) -> RuntimeCall {
    let client = Arc::new(Client::new(endpoints, metrics));
    Arc::new(move |method, metadata, message| {
        let client = client.clone();
        async move { client.call(method, metadata, &message).await }.boxed()
    })
}

/// What pods may ask of Services. Without an API server, those that ask are refused.
pub fn links(
    settings: &config::Links,
    kube: Option<&Kube>,
    endpoints: &Endpoints,
    metrics: &Arc<Metrics>,
    ending: CancellationToken,
) -> Links {
    let api = kube.cloned().map(|kube| links::Api {
        services: Arc::new(kube.clone()),
        events: PodEvents(Arc::new(move |event| kube.event(event))),
    });
    let call = runtime_call(endpoints, metrics);
    Links::new(api, settings.max_held, call, Handle::current(), ending, metrics.clone())
}

/// The pre-pull queue, with a connection of its own to the runtime.
pub fn prepull(
    config: &Config,
    endpoints: &Endpoints,
    metrics: &Arc<Metrics>,
    coordinator: &Coordinator,
    sight: &Sight,
) -> Prepull {
    Prepull::start(Parts {
        settings: config.prepull.clone(),
        slots: config.pull.max_background,
        state_dir: config.state_dir.clone(),
        reader: Reader {
            aci: config.image_aci_names.clone(),
            node_labels: config.prepull.node_labels.clone(),
        },
        coordinator: coordinator.clone(),
        containerd: Containerd::new(endpoints.image.path()),
        call: runtime_call(endpoints, metrics),
        sight: sight.clone(),
        metrics: metrics.clone(),
    })
}

/// Records of containers and their restarts, with a connection of their own to the runtime. None if they are off, or
/// if there is no randomness for their key.
pub fn recorder(
    config: &Config,
    endpoints: &Endpoints,
    metrics: &Arc<Metrics>,
    events: PodEvents,
) -> Option<Recorder> {
    let started = config.record.enabled.then(|| {
        Recorder::start(recorder::Parts {
            settings: config.record.clone(),
            state_dir: config.state_dir.clone(),
            call: runtime_call(endpoints, metrics),
            events,
            metrics: metrics.clone(),
        })
    })?;
    started.inspect_err(|error| tracing::error!(%error, "containers get no records")).ok()
}

/// Says once, at the start, whether the runtime is there: a wrong endpoint shows before the first call. That it cannot be
/// reached has been told by then.
async fn first_look(health: Arc<Health>, endpoints: Endpoints) {
    let (runtime, image) = health.both().await;
    match runtime {
        Ok(runtime) => tracing::info!(name = runtime.name, version = runtime.version, "the runtime answers"),
        Err(error) if !endpoints.runtime.is_away() => {
            tracing::warn!(%error, "the runtime does not answer yet; serving all the same");
        }
        Err(_) => {}
    }
    if let Err(error) = image
        && !endpoints.image.is_away()
    {
        tracing::warn!(%error, "the image service does not answer yet; serving all the same");
    }
}

async fn report(what: &str, server: impl Future<Output = std::io::Result<()>>) {
    if let Err(error) = server.await {
        tracing::error!(%error, "the {what} server failed");
    }
}
