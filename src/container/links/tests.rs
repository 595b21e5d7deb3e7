use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::stream;

use super::*;

type Get = fn(&str) -> Asked<Option<Service>>;
type Watched = fn(usize) -> Asked<Changes>;
type Asked<T> = BoxFuture<'static, Result<T, Error>>;

/// An API server of functions: what it does when it is asked, and how often it was.
struct Scripted {
    get: Get,
    watch: Watched,
    gets: AtomicUsize,
    watches: AtomicUsize,
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl Services for Scripted {
    fn get(&self, _namespace: &str, name: &str) -> BoxFuture<'static, Result<Option<Service>, Error>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        (self.get)(name)
    }

    fn list(&self, _namespace: &str) -> BoxFuture<'static, Result<Vec<Service>, Error>> {
        async { Ok(Vec::new()) }.boxed()
    }

    fn watch(&self, _namespace: &str) -> BoxFuture<'static, Result<Changes, Error>> {
        (self.watch)(self.watches.fetch_add(1, Ordering::Relaxed))
    }
}

fn links(get: Get, watch: Watched) -> (Links, Arc<Scripted>) {
    let services =
        Arc::new(Scripted { get, watch, gets: AtomicUsize::default(), watches: AtomicUsize::default() });
    let api = Api { services: services.clone(), events: PodEvents::default() };
    let call: RuntimeCall = Arc::new(|_, _, _| std::future::pending().boxed());
    let links = Links::new(Some(api), 10, call, Handle::current(), CancellationToken::new(), Metrics::new());
    (links, services)
}

fn names(count: usize) -> Dependencies {
    let names: Vec<_> = (0..count).map(|number| format!("\"s{number}\"")).collect();
    Dependencies::parse(format!("[{}]", names.join(",")).as_bytes()).unwrap()
}

/// How it ends for a pod whose caller gives it `seconds`, and after how many.
async fn outcome(links: &Links, wanted: Dependencies, seconds: u64) -> (Result<(), Error>, f64) {
    let started = tokio::time::Instant::now();
    let deadline = started.into_std() + Duration::from_secs(seconds);
    let result = links.all_exist(Pod::default(), wanted, Some(deadline)).await;
    (result, started.elapsed().as_secs_f64())
}

fn away() -> Error {
    Error::new(Kind::Unavailable, Origin::KubeApi, "the test says no")
}

fn nothing_yet() -> BoxFuture<'static, Result<Changes, Error>> {
    async { Ok(stream::pending().boxed()) }.boxed()
}

/// The first look sees nothing of them, later ones hang.
fn absent_then_silent(name: &str) -> BoxFuture<'static, Result<Option<Service>, Error>> {
    use std::cell::Cell;
    thread_local!(static ASKED: Cell<bool> = const { Cell::new(false) });
    let again = ASKED.replace(true) && name == "s0";
    async move { if again { std::future::pending().await } else { Ok(None) } }.boxed()
}

#[tokio::test(start_paused = true)]
async fn a_look_ends_with_the_first_error_and_in_time() {
    let (links, api) = links(
        |name| match name {
            "s12" => async { Err(away()) }.boxed(),
            _ => std::future::pending().boxed(),
        },
        |_| nothing_yet(),
    );
    let (result, took) = outcome(&links, names(100), 240).await;
    let error = result.unwrap_err();
    assert!(error.message().ends_with("the test says no"), "{error}");
    assert!(took < 0.1 && api.gets.load(Ordering::Relaxed) < 100, "{took}");

    let (links, _) = self::links(|_| std::future::pending().boxed(), |_| nothing_yet());
    for (deadline, limit) in [(240, 10.0), (11, 9.0), (5, 3.0), (1, 0.0)] {
        let (result, took) = outcome(&links, names(100), deadline).await;
        let error = result.unwrap_err();
        assert!(error.message().contains("did not answer for 100 Services within"), "{error}");
        assert_eq!(error.code(), tonic::Code::Unavailable);
        assert!((took - limit).abs() < 0.2, "{took} s of {deadline} s");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_look_is_short_and_the_watch_has_the_last_word() {
    let present = |_| {
        async { Ok(stream::iter([Ok(Change::Present("s1".into()))]).chain(stream::pending()).boxed()) }
            .boxed()
    };
    let (links, _) = links(absent_then_silent, present);
    let (result, took) = outcome(&links, names(2), 60).await;
    let error = result.unwrap_err();
    assert!(error.message().contains("depends on Service /s0, which does not exist"), "{error}");
    assert!((took - 50.0).abs() < 0.5, "{took}");
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_nobody_is_said_to_be_missing() {
    let (links, _) = links(absent_then_silent, |_| async { Err(away()) }.boxed());
    let (result, took) = outcome(&links, names(1), 60).await;
    let error = result.unwrap_err();
    assert!(error.message().contains("cannot be read now"), "{error}");
    assert!((took - 50.0).abs() < 0.5, "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_cut_again_and_again_leaves_no_long_gaps() {
    // Each tells one thing and is cut after two seconds.
    let cut = |_| {
        let end = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            Err(away())
        };
        async { Ok(stream::iter([Ok(Change::Present("x".into()))]).chain(stream::once(end)).boxed()) }.boxed()
    };
    let (links, api) = links(|_| async { Ok(None) }.boxed(), cut);
    outcome(&links, names(1), 115).await.0.unwrap_err();
    let watches = api.watches.load(Ordering::Relaxed);
    assert!((43..=47).contains(&watches), "{watches} in 100 s");

    // Those that come to nothing are tried ever more rarely.
    let (links, api) = self::links(|_| async { Ok(None) }.boxed(), |_| async { Err(away()) }.boxed());
    outcome(&links, names(1), 115).await.0.unwrap_err();
    let watches = api.watches.load(Ordering::Relaxed);
    assert!((20..=27).contains(&watches), "{watches} in 100 s");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_died_is_begun_again_after_a_pause() {
    let watch: Watched = |number| match number {
        0..3 => panic!("a mistake of crisp's own"),
        _ => async { Ok(stream::iter([Ok(Change::Present("s0".into()))]).chain(stream::pending()).boxed()) }
            .boxed(),
    };
    let (links, api) = links(|_| async { Ok(None) }.boxed(), watch);
    let (result, took) = outcome(&links, names(1), 240).await;
    result.unwrap();
    assert!((took - 15.0).abs() < 0.5, "{took}");
    assert_eq!(api.watches.load(Ordering::Relaxed), 4);
}
