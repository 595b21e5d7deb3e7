//! A real Kubernetes API server on etcd, both on loopback ports. Nobody schedules or controls anything: who makes a pod
//! names its node, and replicas, endpoints and service accounts do not exist.
//!
//! Kubelets and crisp come with the rights of their own that they have in real clusters; tests may do everything.

mod objects;

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Method, StatusCode};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};

use super::network::free_ports;
use super::parts::peer_dir;
use super::process::Process;
use super::scratch::Scratch;
use super::wait;

/// What has to be built for it.
pub(crate) const PEERS: [&str; 2] = [ETCD, API_SERVER];

const ETCD: &str = "etcd-3.6.7";
const API_SERVER: &str = "kube-apiserver-1.36.3";

/// The addresses of Services. Nobody routes to them.
const SERVICES: &str = "10.0.0.0/16";

/// How many nodes a cluster may have in its life. Their tokens are there from the start.
const MAX_NODES: usize = 100;

/// An API server takes 5 to 10 s on a free machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Gone when dropped: first the API server, then its store.
#[derive(Debug)]
pub(crate) struct Cluster {
    api: Option<Process>,
    _etcd: Process,
    port: u16,
    etcd_address: String,
    /// Nodes named so far.
    nodes: AtomicUsize,
    client: reqwest::Client,
    background: tokio::runtime::Runtime,
    scratch: Scratch,
}

/// Who speaks with the API server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum User<'a> {
    /// May do everything.
    Admin,
    /// The kubelet of a node.
    Node(&'a str),
    /// crisp, on any node, where it does not use what the kubelet has.
    Crisp,
}

/// The cluster that tests share for as long as one of them holds it.
static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());

// === impl Cluster ===

impl Cluster {
    /// For tests that leave the API server alone. Each has namespaces and nodes of its own in it.
    pub(crate) fn shared() -> Arc<Self> {
        // A test that panicked here has left nothing behind that could be wrong.
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let cluster = Arc::new(Self::start());
            *shared = Arc::downgrade(&cluster);
            cluster
        })
    }

    pub(crate) fn start() -> Self {
        // Another client of this program may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let scratch = Scratch::new();
        let [port, for_clients, for_peers] = free_ports();
        let etcd_address = format!("http://127.0.0.1:{for_clients}");
        let etcd = start_etcd(&scratch, &etcd_address, &format!("http://127.0.0.1:{for_peers}"));
        write_keys(&scratch);
        scratch.write("tokens.csv", &tokens());
        let background = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let mut cluster = Self {
            api: None,
            _etcd: etcd,
            port,
            etcd_address,
            nodes: AtomicUsize::new(0),
            client: reqwest::Client::new(),
            background: background.expect("a runtime"),
            scratch,
        };
        cluster.spawn();
        // The API server makes its certificate when it first starts.
        let roots = wait::until("the API server's certificate", LIMIT, || {
            let pem = fs::read(cluster.scratch.join("pki/apiserver.crt")).ok()?;
            reqwest::Certificate::from_pem_bundle(&pem).ok().filter(|roots| !roots.is_empty())
        });
        let client = reqwest::Client::builder().tls_certs_only(roots).timeout(Duration::from_secs(20));
        cluster.client = client.build().expect("a client");
        cluster.wait_ready();
        cluster.allow_crisp();
        cluster
    }

    /// Ends the API server as a crash would. What it stored stays.
    pub(crate) fn stop_api(&mut self) {
        self.api.as_mut().expect("a process").kill();
    }

    /// Starts the API server again, at the same place, and waits until it answers.
    pub(crate) fn restart_api(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    /// A name for a node that no other node of this cluster has.
    pub(crate) fn new_node_name(&self) -> String {
        let number = self.nodes.fetch_add(1, Ordering::Relaxed);
        assert!(number < MAX_NODES, "no more tokens");
        node_name(number)
    }

    /// What tells a program how to get here, and who it is.
    pub(crate) fn kubeconfig(&self, user: User<'_>) -> Value {
        let roots = fs::read(self.scratch.join("pki/apiserver.crt")).expect("the API server's certificate");
        let server = format!("https://127.0.0.1:{}", self.port);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {
                "server": server, "certificate-authority-data": STANDARD.encode(roots)}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "users": [{"name": "lab", "user": {"token": user.token()}}],
        })
    }

    /// The same as a file, which goes with the cluster.
    pub(crate) fn kubeconfig_file(&self, user: User<'_>) -> String {
        let file = format!("{}.kubeconfig", user.token());
        let file = self.scratch.write(&file, &self.kubeconfig(user).to_string());
        file.to_str().expect("a plain path").to_owned()
    }

    fn spawn(&mut self) {
        let file = |name: &str| self.scratch.join(name).display().to_string();
        let port = self.port.to_string();
        let (certificates, tokens) = (file("pki"), file("tokens.csv"));
        let (private, public) = (file("private.pem"), file("public.pem"));
        let options = [
            ("etcd-servers", self.etcd_address.as_str()),
            ("bind-address", "127.0.0.1"),
            ("secure-port", &port),
            ("cert-dir", &certificates),
            ("token-auth-file", &tokens),
            ("authorization-mode", "Node,RBAC"),
            ("service-account-issuer", "https://lab.invalid"),
            ("service-account-key-file", &public),
            ("service-account-signing-key-file", &private),
            ("service-cluster-ip-range", SERVICES),
            // Pods need no service account, as nobody makes one.
            ("disable-admission-plugins", "ServiceAccount"),
            // An address for others to reach it at, which nobody does: the machine may have none but loopback.
            ("advertise-address", "192.0.2.1"),
            ("endpoint-reconciler-type", "none"),
        ];
        let mut command = Command::new(peer_dir(API_SERVER).join("kube-apiserver"));
        command.args(options.map(|(name, value)| format!("--{name}={value}")));
        self.api = Some(Process::start(API_SERVER, command, &self.scratch.join("apiserver.log")));
    }

    /// Also waits for what the API server itself makes at its first start, among it the Service `kubernetes` and
    /// namespaces.
    fn wait_ready(&mut self) {
        let ready = wait::try_until(LIMIT, || {
            if self.api.as_mut().expect("a process").ended().is_some() {
                return Some(false);
            }
            let (status, _) = self.ask(Method::GET, "/readyz", "application/json", String::new())?;
            for path in ["default/services/kubernetes", "kube-system"] {
                self.get(&format!("/api/v1/namespaces/{path}"))?;
            }
            (status == StatusCode::OK).then_some(true)
        });
        assert!(ready == Some(true), "{API_SERVER} does not start\n{}", self.log_tail());
    }

    /// Gives crisp the rights that it comes with, and no others.
    fn allow_crisp(&self) {
        for text in include_str!("../../../deploy/node/rbac.yaml").split("\n---\n") {
            let object: Value = serde_norway::from_str(text).expect("YAML");
            let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
            let path = match object["metadata"]["namespace"].as_str() {
                Some(namespace) => format!("/api/v1/namespaces/{namespace}/{kind}s"),
                None => format!("/apis/rbac.authorization.k8s.io/v1/{kind}s"),
            };
            self.create(&path, &object);
        }
    }

    fn log_tail(&self) -> String {
        self.api.as_ref().map(Process::log_tail).unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // In order it would wait for its watchers to leave.
        if let Some(api) = &mut self.api {
            api.kill();
        }
    }
}

// === impl User ===

impl User<'_> {
    fn token(self) -> String {
        match self {
            Self::Admin => "of-admin".to_owned(),
            Self::Node(name) => format!("of-{name}"),
            Self::Crisp => "of-crisp".to_owned(),
        }
    }
}

/// Token, user, ID of the user, group.
fn tokens() -> String {
    let fixed = [
        (User::Admin.token(), "admin".to_owned(), "system:masters"),
        (User::Crisp.token(), "system:serviceaccount:kube-system:crisp".to_owned(), "system:serviceaccounts"),
    ];
    let nodes = (0..MAX_NODES)
        .map(node_name)
        .map(|name| (User::Node(&name).token(), format!("system:node:{name}"), "system:nodes"));
    fixed
        .into_iter()
        .chain(nodes)
        .map(|(token, user, group)| format!("{token},{user},{user},{group}\n"))
        .collect()
}

fn node_name(number: usize) -> String {
    format!("node-{number}")
}

fn start_etcd(scratch: &Scratch, for_clients: &str, for_peers: &str) -> Process {
    let data = scratch.join("etcd").display().to_string();
    let initial = format!("default={for_peers}");
    let options = [
        ("data-dir", data.as_str()),
        ("listen-client-urls", for_clients),
        ("advertise-client-urls", for_clients),
        ("listen-peer-urls", for_peers),
        ("initial-advertise-peer-urls", for_peers),
        ("initial-cluster", &initial),
        ("unsafe-no-fsync", "true"),
        ("log-level", "warn"),
    ];
    let mut command = Command::new(peer_dir(ETCD).join("etcd"));
    command.args(options.map(|(name, value)| format!("--{name}={value}")));
    Process::start(ETCD, command, &scratch.join("etcd.log"))
}

/// The keys of tokens that nobody asks for: the API server does not start without.
fn write_keys(scratch: &Scratch) {
    /// What comes before the point of a public key on P-256: that it is one.
    const ON_P256: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
    let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_ASN1_SIGNING);
    let private = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
    let pair = EcdsaKeyPair::from_pkcs8(algorithm, private.as_ref(), &random).expect("the key");
    let public = [ON_P256, pair.public_key().as_ref()].concat();
    for (name, kind, key) in
        [("private.pem", "PRIVATE", private.as_ref()), ("public.pem", "PUBLIC", public.as_slice())]
    {
        let key = STANDARD.encode(key);
        scratch.write(name, &format!("-----BEGIN {kind} KEY-----\n{key}\n-----END {kind} KEY-----\n"));
    }
}
