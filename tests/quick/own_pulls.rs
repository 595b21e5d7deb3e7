//! Protects: crisp's own pulls share flights with kubelets without doing them any harm, and keep what they need.

use std::collections::BTreeMap;

use crisp::image::Reference;
use crisp::pull::{Class, Coordinator, OwnPull, OwnRequest, OwnStage, Request};
use k8s_cri::v1::AuthConfig;
use tonic::Code;

use crate::pulling_runtime::{Kind, Pull, PullingRuntime, pulled};
use crate::pulls::ask;
use crate::support::bytes_on_the_wire::Reply;
use crate::support::in_process::InProcess;
use crate::support::wait::{eventually, soon};

const A: &str = "docker.io/library/a:latest";
const B: &str = "docker.io/library/b:latest";

fn start(kind: Kind, settings: &[(&str, &str)]) -> (InProcess, PullingRuntime, Coordinator) {
    let crisp = InProcess::released(settings);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), kind);
    let coordinator = crisp.coordinator.clone().unwrap();
    (crisp, runtime, coordinator)
}

fn request(image: &str, password: Option<&str>) -> Request {
    let reference = Reference::parse(image).unwrap();
    let credential = password.map(|password| AuthConfig {
        username: "somebody".into(),
        password: password.into(),
        ..AuthConfig::default()
    });
    Request::own(OwnRequest {
        reference: &reference,
        class: Class::Background,
        credential: credential.as_ref(),
        namespace: Some("default".into()),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    })
}

async fn own(coordinator: &Coordinator, image: &str) -> OwnPull {
    coordinator.own(request(image, None)).await
}

async fn reaches(pull: &OwnPull, stage: OwnStage) {
    let mut stages = pull.stage();
    soon("the stage", stages.wait_for(|seen| *seen == stage)).await.unwrap();
}

#[tokio::test]
async fn a_kubelet_joins_an_own_pull_and_lifts_it() {
    for kind in [Kind::Containerd, Kind::Crio] {
        let (crisp, runtime, coordinator) = start(kind, &[("pull.maxBackground", "1")]);
        assert_eq!(coordinator.supports_leases().await, kind == Kind::Containerd);
        let mut running = own(&coordinator, B).await;
        reaches(&running, OwnStage::Running).await;
        let mut queued = own(&coordinator, A).await;
        eventually("one waits", || crisp.metric("crisp_pulls_under_way{stage=\"queued\"}") == 1.0).await;
        assert_eq!(*queued.stage().borrow(), OwnStage::Queued);

        let client = crisp.client().await;
        let kubelet = ask(&client, &Pull::pod("a", "u")).await;
        reaches(&queued, OwnStage::Running).await;
        eventually("both run", || runtime.running() == [A, B]).await;
        runtime.end(A, &pulled("1"));
        assert_eq!(kubelet.reply().await.unwrap(), pulled("1"));
        let landed = soon("the end", queued.landed()).await;
        assert_eq!((landed.reply.code(), landed.others), (Code::Ok, true), "{kind:?}");
        assert_eq!(landed.lease.is_some(), kind == Kind::Containerd);
        assert_eq!(runtime.count(A), 1);
        assert_eq!(crisp.metric("crisp_pulls_total{class=\"kubelet\",outcome=\"succeeded\"}"), 1.0);

        runtime.end(B, &pulled("2"));
        assert!(!soon("the end", running.landed()).await.others, "nobody else waited for this one");
        assert!(queued.stage().has_changed().is_err(), "no stage comes after the end");
    }
}

#[tokio::test]
async fn an_own_pull_joins_a_kubelets() {
    for kind in [Kind::Containerd, Kind::Crio] {
        for (password, reply) in [(None, pulled("1")), (Some("p"), Reply::error("2", "RegistryUnavailable"))]
        {
            let (crisp, runtime, coordinator) = start(kind, &[]);
            let client = crisp.client().await;
            let mut pull = Pull::pod(A, "u");
            pull.password = password.map(str::to_owned);
            let kubelet = ask(&client, &pull).await;
            eventually("it runs", || runtime.running() == [A]).await;
            let mut joined = coordinator.own(request(A, password)).await;
            let mut twin = coordinator.own(request(A, password)).await;
            assert_eq!(*joined.stage().borrow(), OwnStage::Running);
            runtime.end(A, &reply);
            let answer = kubelet.reply().await.unwrap();
            assert_eq!(answer, reply);
            for own in [&mut joined, &mut twin] {
                let landed = soon("the end", own.landed()).await;
                assert!(landed.others);
                assert_eq!((landed.reply.code() as i32).to_string(), answer.code());
                let leased = kind == Kind::Containerd && landed.reply.code() == Code::Ok;
                assert_eq!(landed.lease.is_some(), leased, "{kind:?}");
            }
            assert_eq!(runtime.pulls().len(), 1, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn two_own_pulls_of_an_image_are_one_unless_their_credentials_differ() {
    let (_crisp, runtime, coordinator) = start(Kind::Containerd, &[("pull.maxBackground", "4")]);
    let mut pulls = Vec::new();
    for password in [None, Some("one"), Some("one"), Some("two"), None] {
        pulls.push(coordinator.own(request(A, password)).await);
    }
    eventually("each credential has a pull", || runtime.running().len() == 3).await;
    // Whoever gives up a wait loses nothing by it.
    for pull in &mut pulls {
        assert!(tokio::time::timeout(std::time::Duration::ZERO, pull.landed()).await.is_err());
    }
    runtime.end(A, &pulled("1"));
    for pull in &mut pulls {
        let landed = soon("the end", pull.landed()).await;
        assert!(landed.lease.is_some() && !landed.others);
        let again = soon("the end", pull.landed()).await;
        assert_eq!((again.reply.code(), again.lease.is_some()), (Code::Ok, false), "the lease is given once");
    }
    assert_eq!(runtime.pulls().len(), 3);
}

#[tokio::test]
async fn a_cancelled_pull_ends_at_once_and_keeps_what_it_has() {
    for kind in [Kind::Containerd, Kind::Crio] {
        let (crisp, runtime, coordinator) = start(kind, &[("pull.grace", "1h")]);
        let (first, second) = (own(&coordinator, A).await, own(&coordinator, A).await);
        eventually("it runs", || runtime.running() == [A]).await;
        first.cancel();
        assert_eq!(crisp.metric("crisp_pull_waiters"), 1.0);
        assert_eq!(runtime.running(), [A], "somebody else waits");
        second.cancel();
        eventually("it is cancelled", || runtime.cancelled() == [A]).await;
        eventually("it is over", || {
            crisp.metric("crisp_pulls_total{class=\"background\",outcome=\"abandoned\"}") == 1.0
        })
        .await;
        runtime.end(A, &pulled("1"));
        let mut next = own(&coordinator, A).await;
        let landed = soon("the end", next.landed()).await;
        let used: Vec<_> =
            runtime.pulls().iter().map(|pull| pull.metadata.get("containerd-lease").cloned()).collect();
        assert_eq!(used.len(), 2);
        assert_eq!(used[0], used[1], "the next one resumes");
        let id = landed.lease.as_ref().map(|lease| lease.id().to_owned());
        assert_eq!(id.as_deref(), used[0].as_ref().map(|lease| lease.to_str().unwrap()));

        // One that waits for its turn goes without ever having run.
        runtime.end(B, &pulled("2"));
        let busy = [own(&coordinator, "c").await, own(&coordinator, "d").await];
        eventually("the slots are taken", || runtime.running().len() == 2).await;
        let waiting = own(&coordinator, B).await;
        assert_eq!(*waiting.stage().borrow(), OwnStage::Queued);
        waiting.cancel();
        eventually("it is gone", || crisp.metric("crisp_pulls_under_way") == 2.0).await;
        assert_eq!((runtime.count(B), busy.len()), (0, 2));
    }
}

#[tokio::test]
async fn a_kubelet_loses_nothing_by_a_cancel() {
    let (crisp, runtime, coordinator) = start(Kind::Containerd, &[("pull.grace", "1h")]);
    let client = crisp.client().await;
    let own_pull = own(&coordinator, A).await;
    let kubelet = ask(&client, &Pull::pod(A, "u")).await;
    eventually("both wait", || crisp.metric("crisp_pull_waiters") == 2.0).await;
    own_pull.cancel();
    eventually("one waits", || crisp.metric("crisp_pull_waiters") == 1.0).await;
    // A kubelet that restarts finds its pull again, whatever becomes of one of crisp's own meanwhile.
    let own_pull = own(&coordinator, A).await;
    drop(kubelet);
    eventually("the kubelet is gone", || crisp.metric("crisp_pull_waiters") == 1.0).await;
    own_pull.cancel();
    eventually("nobody waits", || crisp.metric("crisp_pull_waiters") == 0.0).await;
    let kubelet = ask(&client, &Pull::pod(A, "u")).await;
    eventually("it is back", || crisp.metric("crisp_pull_waiters") == 1.0).await;
    runtime.end(A, &pulled("1"));
    assert_eq!(kubelet.reply().await.unwrap(), pulled("1"));
    assert_eq!(runtime.pulls().len(), 1);
}

#[tokio::test]
async fn dropping_an_own_pull_is_leaving_as_anybody_does() {
    let (crisp, runtime, coordinator) = start(Kind::Containerd, &[("pull.grace", "1h")]);
    drop(own(&coordinator, A).await);
    eventually("nobody waits", || crisp.metric("crisp_pull_waiters") == 0.0).await;
    let mut back = own(&coordinator, A).await;
    runtime.end(A, &pulled("1"));
    assert_eq!(soon("the end", back.landed()).await.reply.code(), Code::Ok);
    assert_eq!(runtime.pulls().len(), 1);
    assert_eq!(crisp.metric("crisp_pulls_total{class=\"background\",outcome=\"succeeded\"}"), 1.0);
}

#[tokio::test]
async fn a_lease_stays_as_long_as_somebody_guards_it() {
    let (_crisp, runtime, coordinator) = start(Kind::Containerd, &[]);
    let (mut one, mut two) = (own(&coordinator, A).await, own(&coordinator, A).await);
    let left = own(&coordinator, A).await;
    runtime.end(A, &pulled("1"));
    let first = soon("the end", one.landed()).await.lease.unwrap();
    let second = soon("the end", two.landed()).await.lease.unwrap();
    assert_eq!(first.id(), second.id());
    let id = first.id().to_owned();
    drop((one, two, left, first.clone(), first));
    // Another pull comes and goes, and its lease with it.
    let mut other = own(&coordinator, B).await;
    runtime.end(B, &pulled("2"));
    drop(soon("the end", other.landed()).await);
    eventually("only the guarded one is left", || runtime.leases() == [id.as_str()]).await;
    // A new pull of the same image does not take it.
    drop(soon("the end", own(&coordinator, A).await.landed()).await);
    eventually("only the guarded one is left", || runtime.leases() == [id.as_str()]).await;
    drop(second);
    eventually("it is given back", || runtime.leases().is_empty()).await;
    // Nor does one stay that nobody has asked for.
    let ended = own(&coordinator, A).await;
    eventually("it has ended", || ended.stage().has_changed().is_err()).await;
    drop(ended);
    eventually("it is given back", || runtime.leases().is_empty()).await;
}

#[tokio::test]
async fn a_pull_that_gives_way_is_queued_and_runs_again() {
    let (crisp, runtime, coordinator) = start(Kind::Containerd, &[]);
    let mut big = own(&coordinator, A).await;
    reaches(&big, OwnStage::Running).await;
    eventually("it runs", || runtime.running() == [A]).await;
    let client = crisp.client().await;
    for times in 1..=2 {
        let urgent = format!("urgent-{times}");
        let kubelet = ask(&client, &Pull::pod(&urgent, "u")).await;
        reaches(&big, OwnStage::Queued).await;
        eventually("the kubelet's pull has the line", || runtime.running() == [urgent.as_str()]).await;
        assert!(big.progress().await.is_some(), "what is there is still known");
        runtime.end(&urgent, &pulled(&urgent));
        assert_eq!(kubelet.reply().await.unwrap().code(), "0");
        reaches(&big, OwnStage::Running).await;
        eventually("it runs again", || runtime.running() == [A]).await;
    }
    runtime.end(A, &pulled("1"));
    assert_eq!(soon("the end", big.landed()).await.reply.code(), Code::Ok);
    assert_eq!(crisp.metric("crisp_pull_preemptions_total"), 2.0);
}

#[tokio::test]
async fn progress_is_fresh_and_looked_at_once_at_a_time() {
    let (_crisp, runtime, coordinator) = start(Kind::Containerd, &[]);
    let (mut pull, twin) = (own(&coordinator, A).await, own(&coordinator, A).await);
    eventually("it runs", || runtime.running() == [A]).await;
    for _ in 0..10 {
        let (one, two) = soon("two looks", async { tokio::join!(pull.progress(), twin.progress()) }).await;
        let one = one.unwrap();
        assert_eq!((one.phase, one.bytes_total), (crisp::containerd::Phase::Downloading, None));
        assert_eq!(two.unwrap(), one);
    }
    // Who does not wait for a slow runtime does not spoil it for the next.
    runtime.hang(&["ListStatuses"]);
    let impatient = tokio::time::timeout(std::time::Duration::from_millis(10), pull.progress());
    assert!(impatient.await.is_err());
    runtime.hang(&[]);
    assert!(soon("a look", twin.progress()).await.is_some());
    runtime.lose_leases();
    assert_eq!(soon("a look", pull.progress()).await, None, "what was seen earlier does not count");
    runtime.end(A, &pulled("1"));
    soon("the end", pull.landed()).await;
    assert_eq!(soon("a look", pull.progress()).await, None);

    let (_crisp, runtime, coordinator) = start(Kind::Crio, &[]);
    let pull = own(&coordinator, A).await;
    eventually("it runs", || runtime.running() == [A]).await;
    assert_eq!(soon("a look", pull.progress()).await, None);
}

#[tokio::test]
async fn beyond_all_flights_an_own_pull_is_refused() {
    let (crisp, runtime, coordinator) = start(Kind::Containerd, &[]);
    let client = crisp.client().await;
    let mut calls = Vec::new();
    for number in 0..1000 {
        calls.push(ask(&client, &Pull::pod(&format!("image-{number}"), "u")).await);
    }
    eventually("there are as many flights as may be", || crisp.metric("crisp_pull_waiters") == 1000.0).await;
    let mut alone = own(&coordinator, A).await;
    for _ in 0..2 {
        let landed = soon("the end", alone.landed()).await;
        assert_eq!(landed.reply.code(), Code::ResourceExhausted);
        assert!(landed.lease.is_none() && !landed.others);
    }
    assert_eq!(soon("a look", alone.progress()).await, None);
    alone.cancel();
    // One that is under way can be joined still.
    let mut joined = own(&coordinator, "image-7").await;
    runtime.end("image-7", &pulled("7"));
    assert_eq!(soon("the end", joined.landed()).await.reply.code(), Code::Ok);
    assert_eq!(runtime.count(A), 0);
}
