//! Protects: what crisp asks of the Kubernetes API server, and that no kubeconfig stops crisp.

use std::path::PathBuf;

use crisp::admin::client;
use crisp::config::Config;
use crisp::container::PodEvent;
use crisp::error::Origin;
use crisp::kube::Kube;
use serde_json::json;
use tokio::runtime::Handle;

use crate::api_server::{ApiServer, Fault, kubeconfig};
use crate::support::binary::{Place, free_address};
use crate::support::fake_runtime::FakeRuntime;
use crate::support::wait::eventually;

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn kubeconfig(&self) -> PathBuf {
        self.0.path().join("kubeconfig")
    }

    fn start(&self) -> Kube {
        let file = self.kubeconfig();
        let config =
            Config::load(None, [("kubeconfig", file.to_str().unwrap()), ("nodeName", "node-1")]).unwrap();
        Kube::start(&config.kube, &Handle::current()).unwrap()
    }
}

fn connected(api: &ApiServer) -> (Files, Kube) {
    let files = Files::new();
    api.kubeconfig(&files.kubeconfig());
    let kube = files.start();
    (files, kube)
}

#[tokio::test]
async fn pods_are_asked_for_by_node_and_events_are_told() {
    let api = ApiServer::start();
    api.add_pod(json!({"metadata": {"namespace": "a", "name": "b", "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "nginx:1.27"}]}}));
    let (_files, kube) = connected(&api);
    let pods = kube.pods_of_node().await.unwrap();
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0].images, [("c".to_owned(), "nginx:1.27".to_owned())]);
    assert_eq!(api.asked(), ["GET /api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1&resourceVersion=0"]);

    for _ in 0..2 {
        kube.event(PodEvent {
            namespace: "a".into(),
            pod: "b".into(),
            uid: "u".into(),
            reason: "Told",
            message: "ä".repeat(1000),
            warning: true,
        });
    }
    eventually("both are told", || api.events().len() == 2).await;
    let events = api.events();
    let event = &events[0];
    assert_eq!(
        event["involvedObject"],
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": "a",
        "name": "b", "uid": "u"})
    );
    assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!("Told")));
    assert_eq!(event["source"], json!({"component": "crisp", "host": "node-1"}));
    let message = event["message"].as_str().unwrap();
    assert!(message.len() <= 1024 && message.ends_with("ä..."), "{message}");
    assert_ne!(event["metadata"]["name"], events[1]["metadata"]["name"]);
}

#[tokio::test]
async fn an_error_says_what_was_asked_and_what_to_do() {
    let api = ApiServer::start();
    let (files, kube) = connected(&api);
    for (fault, words) in [
        (Fault::Status(403), "403: the test says no; grant it with the ClusterRole of deploy/node/rbac.yaml"),
        (Fault::Status(401), "look at the credentials of kubeconfig "),
        (Fault::Status(500), "500: the test says no"),
        (Fault::Nonsense, "expected value"),
    ] {
        api.set_fault(Some(fault));
        let error = kube.pods_of_node().await.unwrap_err();
        let start = format!(
            "cannot list the pods of node node-1 at the Kubernetes API server http://{}: ",
            api.address()
        );
        assert!(error.message().starts_with(&start), "{error}");
        assert!(error.message().contains(words), "{error}");
        assert_eq!((error.code(), error.origin()), (tonic::Code::Unavailable, Origin::KubeApi));
    }
    api.set_fault(None);
    assert_eq!(kube.pods_of_node().await.unwrap(), []);

    // Credentials that were renewed are read after they were refused.
    std::fs::write(
        files.kubeconfig(),
        kubeconfig(&format!("http://{}", api.address()), &json!({"token": "old"})),
    )
    .unwrap();
    let late = files.start();
    assert!(late.pods_of_node().await.unwrap_err().message().contains("401"));
    api.kubeconfig(&files.kubeconfig());
    assert_eq!(late.pods_of_node().await.unwrap(), []);
}

#[tokio::test]
async fn nobody_waits_for_an_api_server_that_does_not_answer() {
    let api = ApiServer::start();
    let (_files, kube) = connected(&api);
    api.set_fault(Some(Fault::Silent));
    let asking = tokio::spawn({
        let kube = kube.clone();
        async move { kube.pods_of_node().await }
    });
    eventually("it was asked", || !api.asked().is_empty()).await;
    tokio::time::pause();
    let error = asking.await.unwrap().unwrap_err();
    assert!(error.message().ends_with("no answer within 10 s"), "{error}");
}

/// A kubeconfig may name a program that gets credentials. It is run when they are needed, not at the start.
#[tokio::test]
async fn a_program_may_get_the_credentials() {
    let api = ApiServer::start();
    let files = Files::new();
    let said = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {"token": "t0ken"}});
    let ran = files.0.path().join("ran");
    let user = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh",
        "interactiveMode": "Never", "args": ["-c", format!("touch {}; echo '{said}'", ran.display())]}});
    std::fs::write(files.kubeconfig(), kubeconfig(&format!("http://{}", api.address()), &user)).unwrap();
    let kube = files.start();
    assert!(!ran.exists());
    assert_eq!(kube.pods_of_node().await.unwrap(), []);
    assert!(ran.exists());
}

/// Both TLS clients of crisp in one process: two providers would make the first one panic.
#[tokio::test]
async fn clients_of_registries_and_of_the_api_server_live_side_by_side() {
    let files = Files::new();
    let user = json!({"token": "t"});
    let text = kubeconfig(&format!("https://{}", free_address()), &user)
        .replace("\"server\"", "\"insecure-skip-tls-verify\":true,\"server\"");
    std::fs::write(files.kubeconfig(), text).unwrap();
    let kube = files.start();
    assert!(kube.pods_of_node().await.unwrap_err().message().contains("refused"));
    let _ = reqwest::Client::builder().build().unwrap();
}

#[tokio::test]
async fn a_broken_kubeconfig_is_told_and_read_again() {
    let server = "https://127.0.0.1:6443";
    let token = json!({"token": "t"});
    let broken_key = json!({"client-certificate-data": "aGFsbG8=", "client-key-data": "aGFsbG8="});
    let missing = json!({"client-certificate": "/does/not/exist", "client-key": "/does/not/exist"});
    for (text, words) in [
        ("{".to_owned(), "YAML"),
        ("apiVersion: v1\nkind: Config\n".to_owned(), "context"),
        (kubeconfig("/nowhere", &token), "server is not an address"),
        (
            kubeconfig(server, &token).replace("\"current-context\":\"test\"", "\"current-context\":\"x\""),
            "current-context",
        ),
        (kubeconfig(server, &broken_key), "PEM"),
        (kubeconfig(server, &missing), "client-certificate"),
        (
            kubeconfig(server, &token).replace("\"server\"", "\"proxy-url\":\"http://p:1\",\"server\""),
            "proxy-url",
        ),
    ] {
        let files = Files::new();
        std::fs::write(files.kubeconfig(), &text).unwrap();
        let kube = files.start();
        let mistake = kube.problem().await.unwrap();
        assert!(mistake.starts_with(&format!("kubeconfig {}: ", files.kubeconfig().display())), "{mistake}");
        assert!(mistake.contains(words), "{words} in {mistake}");
        let error = kube.pods_of_node().await.unwrap_err();
        assert!(error.message().ends_with(&mistake), "{error}");
    }

    let (files, api) = (Files::new(), ApiServer::start());
    let kube = files.start();
    assert!(kube.problem().await.unwrap().contains("No such file"));
    assert_eq!(kube.server(), None);
    let error = kube.pods_of_node().await.unwrap_err();
    assert!(
        error.message().starts_with("cannot list the pods of node node-1 at the Kubernetes API server: ")
    );
    api.kubeconfig(&files.kubeconfig());
    assert_eq!(kube.pods_of_node().await.unwrap(), []);
    assert_eq!((kube.problem().await, kube.server()), (None, Some(format!("http://{}", api.address()))));
}

#[tokio::test]
async fn neither_an_absent_kubeconfig_nor_an_absent_api_server_ends_the_program() {
    let place = Place::new();
    let _runtime =
        FakeRuntime::answering(&place.runtime(), crate::support::bytes_on_the_wire::Reply::of(&[b""]));
    let file = place.path("kubeconfig");
    let flags = ["--kubeconfig", file.to_str().unwrap(), "--node-name", "node-1"];
    let crisp = place.start("crisp.log", &flags).await;
    let status = async || client::get::<serde_json::Value>(&place.admin(), "/v1/status").await.unwrap();
    let problem = status().await["kubernetes"]["problem"].to_string();
    assert!(problem.contains("No such file"), "{problem}");
    assert_eq!(crisp.log().matches("the Kubernetes API server cannot be asked: kubeconfig").count(), 1);

    std::fs::write(&file, kubeconfig(&format!("http://{}", free_address()), &json!({}))).unwrap();
    let status = status().await;
    assert_eq!(
        (&status["kubernetes"]["node"], &status["kubernetes"]["problem"]),
        (&json!("node-1"), &json!(null))
    );
    drop(crisp);
}
