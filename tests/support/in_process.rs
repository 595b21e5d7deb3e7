//! crisp's proxy inside the test's process, on a thread of its own as in the program.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crisp::app;
use crisp::config::Config;
use crisp::container::recorder::Recorder;
use crisp::container::shield::Shield;
use crisp::container::{PodEvent, PodEvents};
use crisp::cri::plan::{OnReply, Step};
use crisp::cri::{Policy, RuntimeCall};
use crisp::intercept::{self, Features};
use crisp::kube::Kube;
use crisp::metrics::Metrics;
use crisp::prepull::Sight;
use crisp::proxy::router::Router;
use crisp::proxy::upstream::{Endpoint, Endpoints};
use crisp::proxy::usage::Usage;
use crisp::proxy::{self, Proxy};
use crisp::pull::Coordinator;
use crisp::shutdown::Shutdown;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use super::feature::{everywhere, feature};
use super::h2_client::Client;

/// A running proxy. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct InProcess {
    dir: tempfile::TempDir,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) shutdown: Shutdown,
    handle: tokio::runtime::Handle,
    /// Where crisp does what is not on the path of a call.
    background: Option<tokio::runtime::Runtime>,
    /// There if it coordinates pulls.
    pub(crate) coordinator: Option<Coordinator>,
    /// What callers are told of images.
    pub(crate) sight: Sight,
    /// There if it records containers.
    pub(crate) recorder: Option<Recorder>,
    /// The Events that were told.
    pub(crate) events: Arc<Mutex<Vec<PodEvent>>>,
    /// Where it keeps what must survive a restart.
    pub(crate) state: Option<tempfile::TempDir>,
}

impl InProcess {
    /// The proxy with a feature that looks at everything and changes nothing.
    pub(crate) fn start() -> Self {
        let looks = feature("looks", Policy::Open, |_, forward| {
            let action = OnReply::Observe(Box::new(|_| Ok(())));
            forward.reply.push(Step { feature: "looks", policy: Policy::Open, action });
            Ok(None)
        });
        Self::with(|_, _| everywhere(vec![looks]))
    }

    /// The proxy as released, with these settings.
    pub(crate) fn released(settings: &[(&str, &str)]) -> Self {
        Self::released_with(settings, |_, _, _, _| None)
    }

    /// The proxy as released, with a hash shield made from its state directory and a connection to the runtime.
    pub(crate) fn released_with(
        settings: &[(&str, &str)],
        shield: impl FnOnce(&Path, RuntimeCall, &Arc<Metrics>, &tokio::runtime::Handle) -> Option<Shield>,
    ) -> Self {
        let mut config = Config::load(None, settings.iter().copied()).unwrap();
        let state = tempfile::tempdir().unwrap();
        config.state_dir = state.path().to_owned();
        let events: Arc<Mutex<Vec<PodEvent>>> = Arc::default();
        let background =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let handle = background.handle().clone();
        let kube = Kube::start(&config.kube, &handle);
        let (mut made, sight, mut recorder) = (None, Sight::default(), None);
        let mut crisp = Self::with(|metrics, endpoints| {
            let pulls = app::coordinator(config.pull.clone(), endpoints, metrics, handle.clone()).unwrap();
            let coordinator = made.insert(pulls);
            let _context = background.enter();
            let told = events.clone();
            let tell = PodEvents(Arc::new(move |event| told.lock().unwrap().push(event)));
            recorder = app::recorder(&config, endpoints, metrics, tell);
            let never = CancellationToken::new();
            let links = app::links(&config.links, kube.as_ref(), endpoints, metrics, never);
            Features::new(intercept::Parts {
                metrics: metrics.clone(),
                aci: config.image_aci_names.clone(),
                coordinator: coordinator.clone(),
                sight: sight.clone(),
                call: app::runtime_call(endpoints, metrics),
                shield: shield(&config.state_dir, app::runtime_call(endpoints, metrics), metrics, &handle),
                recorder: recorder.clone(),
                links: Some(links),
            })
        });
        crisp.sight = sight;
        crisp.coordinator = made;
        crisp.recorder = recorder;
        crisp.events = events;
        crisp.state = Some(state);
        crisp.background = Some(background);
        crisp
    }

    /// The proxy with other features.
    pub(crate) fn with(features: impl FnOnce(&Arc<Metrics>, &Endpoints) -> Features) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = Arc::new(Endpoint::unix(dir.path().join("runtime.sock")));
        let endpoints = Endpoints { runtime: endpoint.clone(), image: endpoint };
        let metrics = Metrics::new();
        let shutdown = Shutdown::default();
        let proxy = Proxy {
            router: Router::new(features(&metrics, &endpoints)),
            endpoints,
            metrics: metrics.clone(),
            usage: Arc::new(Usage::default()),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let listener = {
            let _context = runtime.enter();
            UnixListener::bind(dir.path().join("crisp.sock")).unwrap()
        };
        let serving = shutdown.clone();
        std::thread::spawn(move || runtime.block_on(proxy::serve(listener, proxy, serving)));
        Self {
            dir,
            metrics,
            shutdown,
            handle,
            background: None,
            coordinator: None,
            sight: Sight::default(),
            recorder: None,
            events: Arc::default(),
            state: None,
        }
    }

    /// Where crisp listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("crisp.sock")
    }

    /// Where crisp expects the runtime.
    pub(crate) fn runtime_socket(&self) -> PathBuf {
        self.dir.path().join("runtime.sock")
    }

    /// A new connection to crisp.
    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.socket()).await
    }

    /// Tasks alive on the proxy's thread.
    pub(crate) fn tasks(&self) -> usize {
        self.handle.metrics().num_alive_tasks()
    }

    /// The sum of all samples whose name and labels begin so.
    pub(crate) fn metric(&self, prefix: &str) -> f64 {
        sum(&self.metrics.encode().unwrap(), prefix)
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.shutdown.end();
        if let Some(background) = self.background.take() {
            background.shutdown_background();
        }
    }
}

/// The sum of all samples in a scrape whose name and labels begin so.
pub(crate) fn sum(scrape: &str, prefix: &str) -> f64 {
    scrape
        .lines()
        .filter(|line| line.starts_with(prefix))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}
