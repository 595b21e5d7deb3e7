//! Protects: a kubelet's pull comes first, and what gives way to it loses nothing.

use crisp::pull::Class;

use crate::pulling_runtime::{Kind, Pull, PullingRuntime, pulled};
use crate::pulls::ask;
use crate::support::in_process::InProcess;
use crate::support::wait::eventually;

fn start(kind: Kind, settings: &[(&str, &str)]) -> (InProcess, PullingRuntime) {
    let crisp = InProcess::released(settings);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), kind);
    (crisp, runtime)
}

#[tokio::test]
async fn background_pulls_share_their_slots_and_start_by_class() {
    for kind in [Kind::Containerd, Kind::Crio] {
        let (crisp, runtime) = start(kind, &[("pull.maxBackground", "1")]);
        let client = crisp.client().await;
        let mut calls = vec![ask(&client, &Pull::bare("first")).await];
        eventually("the first runs", || runtime.running() == ["first"]).await;
        calls.push(ask(&client, &Pull::kruise("ahead")).await);
        eventually("one waits", || crisp.metric("crisp_pulls_under_way{stage=\"queued\"}") == 1.0).await;
        calls.push(ask(&client, &Pull::bare("by-hand")).await);
        eventually("two wait", || crisp.metric("crisp_pulls_under_way{stage=\"queued\"}") == 2.0).await;
        for image in ["first", "by-hand", "ahead"] {
            eventually("only one runs", || runtime.running() == [image]).await;
            runtime.end(image, &pulled(image));
        }
        for call in calls {
            assert_eq!(call.reply().await.unwrap().code(), "0");
        }
    }
}

#[tokio::test]
async fn pulls_by_hand_can_be_made_background_pulls() {
    let (crisp, runtime) = start(Kind::Crio, &[("pull.bareIsBackground", "true")]);
    let client = crisp.client().await;
    let call = ask(&client, &Pull::bare("a")).await;
    eventually("it runs", || runtime.running() == ["a"]).await;
    runtime.end("a", &pulled("1"));
    assert_eq!(call.reply().await.unwrap().code(), "0");
    assert_eq!(crisp.metric("crisp_pulls_total{class=\"background\",outcome=\"succeeded\"}"), 1.0);
}

/// The whole rule: it gives way, keeps its lease, waits, resumes, and after five times runs on.
#[tokio::test]
async fn a_background_pull_gives_way_to_kubelets_and_resumes_under_its_lease() {
    let (crisp, runtime) = start(Kind::Containerd, &[]);
    let client = crisp.client().await;
    let background = ask(&client, &Pull::kruise("big")).await;
    eventually("it runs", || runtime.running() == ["big"]).await;
    for times in 1..=6 {
        let image = format!("urgent-{times}");
        let urgent = ask(&client, &Pull::pod(&image, "u")).await;
        if times <= 5 {
            eventually("the kubelet's pull has the line", || runtime.running() == [image.as_str()]).await;
            assert_eq!(crisp.metric("crisp_pull_preemptions_total"), f64::from(times));
        } else {
            eventually("both run", || runtime.running() == ["big", image.as_str()]).await;
        }
        // A short one does not disturb anybody, nor is anybody started beside it.
        runtime.end(&image, &pulled(&image));
        assert_eq!(urgent.reply().await.unwrap().code(), "0");
        eventually("it runs again", || runtime.running() == ["big"]).await;
    }
    runtime.end("big", &pulled("big"));
    assert_eq!(background.reply().await.unwrap(), pulled("big"));
    assert_eq!(runtime.count("big"), 6);
    let pulls = runtime.pulls();
    let mut leases: Vec<_> = pulls.iter().filter(|pull| pull.image == "big").collect();
    leases.dedup_by_key(|pull| pull.metadata["containerd-lease"].clone());
    assert_eq!(leases.len(), 1, "always under the same lease");
    eventually("no lease is left", || runtime.leases().is_empty()).await;
}

#[tokio::test]
async fn what_could_not_resume_does_not_give_way() {
    let (crisp, runtime) = start(Kind::Containerd, &[]);
    let client = crisp.client().await;
    let _background = ask(&client, &Pull::kruise("big")).await;
    eventually("it runs", || runtime.running() == ["big"]).await;
    let _first = ask(&client, &Pull::pod("first", "u")).await;
    eventually("it gives way", || runtime.cancelled() == ["big"]).await;
    runtime.end("first", &pulled("1"));
    eventually("it runs again", || runtime.running() == ["big"]).await;
    runtime.lose_leases();
    let before = runtime.looks_in_vain();
    let _second = ask(&client, &Pull::pod("second", "u")).await;
    eventually("it was looked at", || runtime.looks_in_vain() >= before + 3).await;
    assert_eq!(runtime.running(), ["big", "second"]);
    assert_eq!(crisp.metric("crisp_pull_preemptions_total"), 1.0);
}

#[tokio::test]
async fn a_short_kubelet_pull_disturbs_nobody() {
    let (crisp, runtime) = start(Kind::Containerd, &[]);
    let client = crisp.client().await;
    let background = ask(&client, &Pull::kruise("big")).await;
    eventually("it runs", || runtime.running() == ["big"]).await;
    runtime.end("always", &pulled("there"));
    for _ in 0..20 {
        assert_eq!(ask(&client, &Pull::pod("always", "u")).await.reply().await.unwrap().code(), "0");
    }
    runtime.end("big", &pulled("big"));
    assert_eq!(background.reply().await.unwrap().code(), "0");
    assert_eq!((runtime.count("big"), runtime.count("always")), (1, 20));
    assert_eq!(crisp.metric("crisp_pull_preemptions_total"), 0.0);
}

#[tokio::test]
async fn without_leases_nothing_gives_way_but_nothing_new_starts_either() {
    let (crisp, runtime) = start(Kind::Crio, &[]);
    let client = crisp.client().await;
    let one = ask(&client, &Pull::kruise("one")).await;
    eventually("it runs", || runtime.running() == ["one"]).await;
    let pod = ask(&client, &Pull::pod("pod", "u")).await;
    eventually("the kubelet's starts beside it", || runtime.running() == ["one", "pod"]).await;
    let two = ask(&client, &Pull::kruise("two")).await;
    eventually("the second waits", || crisp.metric("crisp_pull_waiters") == 3.0).await;
    // By its own word the kubelet's pull has been running for longer than it takes to make others give way.
    let coordinator = crisp.coordinator.as_ref().unwrap();
    while !coordinator
        .pulls()
        .await
        .pulls
        .iter()
        .any(|pull| pull.class == Class::Kubelet && pull.seconds > 0.7)
    {
        assert_eq!(runtime.running(), ["one", "pod"]);
    }
    assert_eq!(runtime.running(), ["one", "pod"]);
    runtime.end("pod", &pulled("pod"));
    assert_eq!(pod.reply().await.unwrap().code(), "0");
    eventually("the second starts", || runtime.running() == ["one", "two"]).await;
    for (image, call) in [("one", one), ("two", two)] {
        runtime.end(image, &pulled(image));
        assert_eq!(call.reply().await.unwrap().code(), "0");
    }
}

#[tokio::test]
async fn a_kubelet_joins_a_background_pull_and_lifts_it() {
    for kind in [Kind::Containerd, Kind::Crio] {
        let (crisp, runtime) = start(kind, &[("pull.maxBackground", "1")]);
        let client = crisp.client().await;
        let running = ask(&client, &Pull::kruise("running")).await;
        eventually("it runs", || runtime.running() == ["running"]).await;
        let queued = ask(&client, &Pull::kruise("queued")).await;
        eventually("one waits", || crisp.metric("crisp_pulls_under_way{stage=\"queued\"}") == 1.0).await;
        let joins_queued = ask(&client, &Pull::pod("queued", "u")).await;
        eventually("the queued one starts at once", || runtime.running() == ["queued", "running"]).await;
        let joins_running = ask(&client, &Pull::pod("running", "v")).await;
        eventually("all wait", || crisp.metric("crisp_pull_waiters") == 4.0).await;
        for (image, calls) in [("queued", [queued, joins_queued]), ("running", [running, joins_running])] {
            runtime.end(image, &pulled(image));
            for call in calls {
                assert_eq!(call.reply().await.unwrap(), pulled(image));
            }
            assert_eq!(runtime.count(image), 1, "{kind:?}");
        }
        assert_eq!(crisp.metric("crisp_pulls_total{class=\"kubelet\",outcome=\"succeeded\"}"), 2.0);
    }
}

#[tokio::test]
async fn other_credentials_wait_only_where_the_runtime_would_download_again() {
    for (kind, at_once) in [(Kind::Containerd, 2), (Kind::Crio, 1)] {
        let (crisp, runtime) = start(kind, &[]);
        let client = crisp.client().await;
        let one = ask(&client, &Pull::kruise("a")).await;
        eventually("the first runs", || runtime.running() == ["a"]).await;
        let two = ask(&client, &Pull::pod("a", "u").with_password("p")).await;
        eventually("both wait", || crisp.metric("crisp_pull_waiters") == 2.0).await;
        eventually("they run as they may", || runtime.running().len() == at_once).await;
        runtime.end("a", &pulled("1"));
        for call in [one, two] {
            assert_eq!(call.reply().await.unwrap().code(), "0");
        }
        assert_eq!(runtime.count("a"), 2, "each credential is checked by the registry itself");
    }
}
