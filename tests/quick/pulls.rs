//! Protects: N pulls of an image become one, whoever leaves; and what makes two pulls different keeps them apart.

use http::HeaderMap;

use crate::pulling_runtime::{Kind, Pull, PullingRuntime, pulled, string};
use crate::support::bytes_on_the_wire::{Reply, headers, request};
use crate::support::h2_client::{Call, Client};
use crate::support::in_process::InProcess;
use crate::support::wait::eventually;

const PULL: &str = "/runtime.v1.ImageService/PullImage";
const NGINX: &str = "docker.io/library/nginx:latest";

pub(super) async fn ask(client: &Client, pull: &Pull) -> Call {
    client.ask(PULL, &pull.message()).await
}

fn both() -> [(Kind, InProcess, PullingRuntime); 2] {
    [Kind::Containerd, Kind::Crio].map(|kind| {
        let crisp = InProcess::released(&[("pull.grace", "50ms")]);
        let runtime = PullingRuntime::start(&crisp.runtime_socket(), kind);
        (kind, crisp, runtime)
    })
}

/// A reply with everything that a runtime may add.
fn rich_reply() -> Reply {
    let mut reply = pulled("sha256:1");
    reply.head.extend(headers(&[("early", "one")]));
    reply.trailers = Some(headers(&[("grpc-status", "0"), ("late-bin", "/w"), ("late", "1"), ("late", "2")]));
    reply
}

#[tokio::test]
async fn fifty_pulls_of_an_image_are_one_and_all_are_answered_alike() {
    for reply in [rich_reply(), Reply::error("2", "RegistryUnavailable:%20away")] {
        for (kind, crisp, runtime) in both() {
            let clients = [crisp.client().await, crisp.client().await];
            let (mut calls, mut sent) = (Vec::new(), 0);
            for number in 0..50 {
                // The same image under all its names, for different pods.
                let name = ["nginx", "nginx:latest", "library/nginx", NGINX][number % 4];
                let pull = Pull::pod(name, &format!("uid-{number}"));
                sent += pull.framed().len();
                calls.push(ask(&clients[number % 2], &pull).await);
            }
            eventually("all wait", || crisp.metric("crisp_pull_waiters") == 50.0).await;
            for name in ["nginx", "nginx:latest", "library/nginx", NGINX] {
                runtime.end(name, &reply);
            }
            for call in calls {
                assert_eq!(call.reply().await.unwrap(), reply, "{kind:?}");
            }
            assert_eq!(runtime.pulls().len(), 1, "{kind:?}");
            assert_eq!(crisp.metric("crisp_pulls_deduplicated_total"), 49.0);
            // These were not counted once, because they are not forwarded.
            let bytes = crisp.metric("crisp_call_bytes_total{method=\"PullImage\",direction=\"request\"}");
            assert_eq!(bytes, sent as f64, "{kind:?}");
            assert_eq!(crisp.metric("crisp_pull_waiters"), 0.0);
        }
    }
}

/// Neither a success nor an error is remembered: since 1.35 a kubelet takes PullImage for its check of credentials.
#[tokio::test]
async fn who_comes_after_the_end_causes_a_pull_of_its_own() {
    for (_, crisp, runtime) in both() {
        let client = crisp.client().await;
        for (count, reply) in [pulled("one"), Reply::error("2", "no"), pulled("two")].iter().enumerate() {
            runtime.end("a", reply);
            assert_eq!(ask(&client, &Pull::pod("a", "u")).await.reply().await.unwrap(), *reply);
            assert_eq!(runtime.pulls().len(), count + 1);
        }
    }
}

/// The request goes to the runtime as the first one sent it, unknown fields and metadata included; only a deadline is
/// nobody's but the caller's own.
#[tokio::test]
async fn the_runtime_sees_the_first_request_as_it_came() {
    for (kind, crisp, runtime) in both() {
        let pull = Pull { extra: string(77, "from the future"), ..Pull::pod("a", "u").with_password("p") };
        let metadata = headers(&[
            ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
            ("blob-bin", "/w"),
            ("grpc-timeout", "59S"),
            ("containerd-lease", "stolen"),
            ("containerd-namespace", "other"),
        ]);
        runtime.end("a", &pulled("1"));
        let client = crisp.client().await;
        let head = request(PULL, &metadata);
        let mut expected = head.headers().clone();
        for name in ["grpc-timeout", "containerd-lease", "containerd-namespace"] {
            expected.remove(name);
        }
        let call = client.start(head, &[pull.framed()], None).await.unwrap();
        assert_eq!(call.reply().await.unwrap().code(), "0");
        let mut seen = runtime.pulls().remove(0);
        let lease = seen.metadata.remove("containerd-lease");
        assert_eq!(lease.is_some(), kind == Kind::Containerd);
        assert_ne!(lease.as_ref().map(|lease| lease.as_bytes()), Some(&b"stolen"[..]));
        assert_eq!(seen.metadata, expected);
        assert_eq!(seen.body, pull.framed());
    }
}

#[tokio::test]
async fn what_may_bring_something_else_is_pulled_apart() {
    let other = |change: fn(&mut Pull)| {
        let mut pull = Pull::pod("a", "u");
        change(&mut pull);
        pull
    };
    let different = [
        other(|_| ()),
        other(|pull| pull.password = Some("one".into())),
        other(|pull| pull.password = Some("two".into())),
        other(|pull| pull.handler = "kata".into()),
        other(|pull| pull.handler_annotation = Some("kata".into())),
        other(|pull| pull.image = "a:other".into()),
        other(|pull| pull.extra = string(78, "whatever it means")),
    ];
    let same = [
        other(|pull| pull.pod = Some(("default".into(), "another".into()))),
        other(|pull| pull.annotations = vec![("note".into(), "mine".into())]),
        other(|pull| pull.pod = Some(("elsewhere".into(), "u".into()))),
    ];
    for (kind, crisp, runtime) in both() {
        let client = crisp.client().await;
        let mut calls = Vec::new();
        for pull in different.iter().chain(&same) {
            calls.push(ask(&client, pull).await);
        }
        // The namespace matters to CRI-O, which has a signature policy for each; and it downloads an image again for
        // other credentials, so those wait for each other.
        let namespaces = usize::from(kind == Kind::Crio);
        eventually("all wait", || crisp.metric("crisp_pull_waiters") == 10.0).await;
        let flights = different.len() + namespaces;
        eventually("all have their flight", || crisp.metric("crisp_pulls_under_way") == flights as f64).await;
        let lines = if kind == Kind::Crio { 4 } else { flights };
        eventually("what may runs", || runtime.running().len() == lines).await;
        for image in ["a", "a:other"] {
            runtime.end(image, &pulled("1"));
        }
        for call in calls {
            assert_eq!(call.reply().await.unwrap().code(), "0");
        }
        assert_eq!(runtime.pulls().len(), flights, "{kind:?}");
    }
}

#[tokio::test]
async fn a_refusal_of_one_credential_reaches_nobody_else() {
    for (kind, crisp, runtime) in both() {
        let client = crisp.client().await;
        let wrong = ask(&client, &Pull::pod("a", "u").with_password("wrong")).await;
        eventually("the first pull is there", || runtime.pulls().len() == 1).await;
        let right = ask(&client, &Pull::pod("a", "v").with_password("right")).await;
        eventually("both wait", || crisp.metric("crisp_pull_waiters") == 2.0).await;
        let refusal = Reply::error("2", "401");
        runtime.end_with("a", "wrong", &refusal);
        assert_eq!(wrong.reply().await.unwrap(), refusal, "{kind:?}");
        eventually("the other still waits", || crisp.metric("crisp_pull_waiters") == 1.0).await;
        eventually("and runs", || runtime.running() == ["a"]).await;
        runtime.end_with("a", "right", &pulled("1"));
        assert_eq!(right.reply().await.unwrap(), pulled("1"), "{kind:?}");
        assert_eq!(runtime.pulls().len(), 2);
    }
}

#[tokio::test]
async fn whoever_leaves_leaves_alone() {
    for (_, crisp, runtime) in both() {
        let (leader, others) = (crisp.client().await, crisp.client().await);
        let mut calls = vec![ask(&leader, &Pull::pod("a", "leader")).await];
        for number in 0..49 {
            calls.push(ask(&others, &Pull::pod("a", &number.to_string())).await);
        }
        eventually("all wait", || crisp.metric("crisp_pull_waiters") == 50.0).await;
        let last = calls.pop().unwrap();
        calls.truncate(1 + 48);
        drop(calls.split_off(1));
        eventually("48 are gone", || crisp.metric("crisp_pull_waiters") == 2.0).await;
        drop(leader);
        eventually("the leader is gone", || crisp.metric("crisp_pull_waiters") == 1.0).await;
        runtime.end("a", &pulled("1"));
        assert_eq!(last.reply().await.unwrap(), pulled("1"));
        assert_eq!(runtime.pulls().len(), 1);
        assert_eq!(runtime.cancelled(), [""; 0]);
    }
}

#[tokio::test]
async fn a_pull_that_nobody_waits_for_is_cancelled_after_its_grace() {
    for (kind, crisp, runtime) in both() {
        let client = crisp.client().await;
        let call = ask(&client, &Pull::pod("a", "u")).await;
        eventually("it runs", || runtime.running() == ["a"]).await;
        drop(call);
        eventually("it is cancelled", || runtime.cancelled() == ["a"]).await;
        eventually("it is over", || {
            crisp.metric("crisp_pulls_total{class=\"kubelet\",outcome=\"abandoned\"}") == 1.0
        })
        .await;
        assert_eq!(crisp.metric("crisp_pulls_under_way"), 0.0);
        // The next one takes the lease over, and with it what was fetched.
        let leases = runtime.leases();
        assert_eq!(leases.len(), usize::from(kind == Kind::Containerd));
        runtime.end("a", &pulled("1"));
        assert_eq!(ask(&client, &Pull::pod("a", "u")).await.reply().await.unwrap().code(), "0");
        if kind == Kind::Containerd {
            let used: Vec<_> =
                runtime.pulls().iter().map(|pull| pull.metadata["containerd-lease"].clone()).collect();
            assert_eq!(used, [leases[0].as_str(), leases[0].as_str()]);
            eventually("the lease is given back", || runtime.leases().is_empty()).await;
        }
    }
}

#[tokio::test]
async fn a_retry_within_the_grace_finds_its_pull_again() {
    let crisp = InProcess::released(&[("pull.grace", "1h")]);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), Kind::Containerd);
    let client = crisp.client().await;
    let call = ask(&client, &Pull::pod("a", "u")).await;
    eventually("it runs", || runtime.running() == ["a"]).await;
    drop((call, client));
    eventually("nobody waits", || crisp.metric("crisp_pull_waiters") == 0.0).await;
    assert_eq!(runtime.running(), ["a"]);
    let client = crisp.client().await;
    let retry = ask(&client, &Pull::pod("a", "u")).await;
    eventually("it waits", || crisp.metric("crisp_pull_waiters") == 1.0).await;
    runtime.end("a", &pulled("1"));
    assert_eq!(retry.reply().await.unwrap(), pulled("1"));
    assert_eq!(runtime.pulls().len(), 1);
}

#[tokio::test]
async fn a_callers_deadline_ends_only_its_own_waiting() {
    let crisp = InProcess::released(&[]);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), Kind::Crio);
    let client = crisp.client().await;
    let patient = ask(&client, &Pull::bare("a")).await;
    eventually("it runs", || runtime.running() == ["a"]).await;
    let head = request(PULL, &headers(&[("grpc-timeout", "20m")]));
    let hasty = client.start(head, &[Pull::bare("a").framed()], None).await.unwrap();
    assert_eq!(hasty.reply().await.unwrap().code(), "4");
    runtime.end("a", &pulled("1"));
    assert_eq!(patient.reply().await.unwrap(), pulled("1"));
}

#[tokio::test]
async fn a_lost_runtime_is_told_to_all_who_wait() {
    let crisp = InProcess::released(&[]);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), Kind::Containerd);
    let client = crisp.client().await;
    let calls = [ask(&client, &Pull::pod("a", "u")).await, ask(&client, &Pull::pod("a", "v")).await];
    eventually("it runs", || runtime.running() == ["a"]).await;
    eventually("both wait", || crisp.metric("crisp_pull_waiters") == 2.0).await;
    drop(runtime);
    for call in calls {
        assert_eq!(call.reply().await.unwrap().code(), "14");
    }
    // Back again, the next pull finds it at once.
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), Kind::Containerd);
    runtime.end("a", &pulled("1"));
    assert_eq!(ask(&client, &Pull::pod("a", "u")).await.reply().await.unwrap(), pulled("1"));
}

#[tokio::test]
async fn a_pull_whose_lease_is_gone_is_made_without_one() {
    let crisp = InProcess::released(&[]);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), Kind::Containerd);
    let client = crisp.client().await;
    // What containerd says when a lease is deleted under a pull does not name it.
    let lost = Reply::error("2", "failed%20commit:%20no%20such%20file");
    let call = ask(&client, &Pull::pod("a", "u")).await;
    eventually("it runs", || runtime.running() == ["a"]).await;
    runtime.lose_leases();
    runtime.end("a", &lost);
    // Once, and no more than that.
    assert_eq!(call.reply().await.unwrap(), lost);
    let leased: Vec<_> =
        runtime.pulls().iter().map(|pull| pull.metadata.contains_key("containerd-lease")).collect();
    assert_eq!(leased, [true, false]);
    // A pull that fails under its lease has failed.
    runtime.end("b", &Reply::error("5", "no%20such%20image"));
    assert_eq!(ask(&client, &Pull::pod("b", "u")).await.reply().await.unwrap().code(), "5");
    assert_eq!(runtime.count("b"), 1);
}

/// A lease is good to have; a database that is slow must not keep pods from their images.
#[tokio::test]
async fn a_pull_does_not_wait_long_for_its_lease() {
    let crisp = InProcess::released(&[]);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), Kind::Containerd);
    runtime.hang(&["List", "Create"]);
    let client = crisp.client().await;
    let mut calls = Vec::new();
    let asked = std::time::Instant::now();
    for image in ["a", "b", "c"] {
        calls.push(ask(&client, &Pull::pod(image, "u")).await);
        runtime.end(image, &pulled("1"));
    }
    for call in calls {
        assert_eq!(call.reply().await.unwrap(), pulled("1"));
    }
    assert!(asked.elapsed() < std::time::Duration::from_secs(9), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_lease_that_comes_after_its_pull_was_given_up_is_not_forgotten() {
    let crisp = InProcess::released(&[("pull.grace", "10ms"), ("pull.keepPartial", "100ms")]);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), Kind::Containerd);
    runtime.hang(&["Create"]);
    let client = crisp.client().await;
    let call = ask(&client, &Pull::pod("a", "u")).await;
    eventually("the lease is made", || runtime.leases().len() == 1).await;
    drop(call);
    let abandoned = "crisp_pulls_total{class=\"kubelet\",outcome=\"abandoned\"}";
    eventually("the pull is given up", || crisp.metric(abandoned) == 1.0).await;
    runtime.hang(&[]);
    eventually("the lease is given back", || runtime.leases().is_empty()).await;
}

/// `crisp pulls` is asked above all when the runtime is slow.
#[tokio::test]
async fn who_asks_for_pulls_does_not_wait_for_a_slow_runtime() {
    let crisp = InProcess::released(&[]);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), Kind::Containerd);
    let client = crisp.client().await;
    let _calls = [ask(&client, &Pull::pod("a", "u")).await, ask(&client, &Pull::pod("b", "u")).await];
    eventually("both run", || runtime.running() == ["a", "b"]).await;
    runtime.hang(&["ListStatuses"]);
    let asked = std::time::Instant::now();
    let pulls = crisp.coordinator.as_ref().unwrap().pulls().await.pulls;
    assert!(asked.elapsed() < std::time::Duration::from_secs(5), "{:?}", asked.elapsed());
    assert_eq!(pulls.len(), 2);
}

/// Beyond a thousand nothing is shared, and so nothing outlives its caller.
#[tokio::test]
async fn a_pull_beyond_all_flights_goes_with_its_caller() {
    let crisp = InProcess::released(&[]);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), Kind::Containerd);
    let client = crisp.client().await;
    let mut calls = Vec::new();
    for number in 0..1000 {
        calls.push(ask(&client, &Pull::pod(&format!("image-{number}"), "u")).await);
    }
    eventually("there are as many flights as may be", || crisp.metric("crisp_pull_waiters") == 1000.0).await;
    let alone = ask(&client, &Pull::bare("alone")).await;
    eventually("it runs", || runtime.count("alone") == 1).await;
    drop(alone);
    eventually("it is cancelled", || runtime.cancelled() == ["alone"]).await;
}

#[tokio::test]
async fn what_names_no_image_goes_to_the_runtime_as_it_is() {
    let crisp = InProcess::released(&[]);
    let runtime = PullingRuntime::start(&crisp.runtime_socket(), Kind::Crio);
    runtime.end("", &Reply::error("3", "image%20is%20empty"));
    let client = crisp.client().await;
    for message in [Pull::bare("").message(), Vec::new()] {
        let head = request(PULL, &HeaderMap::new());
        let call =
            client.start(head, &[crate::support::bytes_on_the_wire::framed(&message)], None).await.unwrap();
        assert_eq!(call.reply().await.unwrap().message(), "image%20is%20empty");
    }
    assert_eq!(crisp.metric("crisp_pulls_total"), 0.0);
}
