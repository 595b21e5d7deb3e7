//! Protects: crisp takes its sockets safely: private, never from under a living process, and over from a dead one or
//! from systemd.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crisp::admin::status::Status;

use crate::support::binary::{Place, crisp};
use crate::support::bytes_on_the_wire::Reply;
use crate::support::fake_runtime::FakeRuntime;
use crate::support::wait::soon;

const VERSION: &str = "/runtime.v1.RuntimeService/Version";

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn sockets_are_private_and_go_with_the_process() {
    let place = Place::new();
    let mut running = place.start("log", &[]).await;
    assert_eq!((mode(&place.socket()), mode(&place.admin())), (0o600, 0o600));
    running.signal(Signal::TERM);
    assert_eq!(running.exit().await.code(), Some(0));
    assert!(!place.socket().exists() && !place.admin().exists());
}

#[tokio::test]
async fn a_killed_process_leaves_sockets_that_the_next_one_replaces() {
    let place = Place::new();
    let _runtime = FakeRuntime::answering(&place.runtime(), Reply::of(&[b""]));
    let mut first = place.start("first", &[]).await;
    first.signal(Signal::KILL);
    first.exit().await;
    assert!(place.socket().exists() && place.admin().exists());
    let _second = place.start("second", &[]).await;
    assert_eq!(place.client().await.unary(VERSION, b"").await.unwrap().code(), "0");
}

#[tokio::test]
async fn a_living_process_keeps_its_sockets() {
    let place = Place::new();
    let _runtime = FakeRuntime::answering(&place.runtime(), Reply::of(&[b""]));
    let _first = place.start("first", &[]).await;
    let mut command = crisp();
    command.args(place.arguments());
    let mut second = place.spawn("second", command);
    assert_eq!(second.exit().await.code(), Some(1));
    let said = second.log();
    let path = place.socket().display().to_string();
    assert!(said.contains("another process listens on") && said.contains(&path), "{said}");

    let elsewhere = place.arguments().into_iter().map(|it| it.replace("crisp.sock", "other.sock"));
    let mut command = crisp();
    command.args(elsewhere);
    let mut third = place.spawn("third", command);
    assert_eq!(third.exit().await.code(), Some(1));
    let (said, path) = (third.log(), place.admin().display().to_string());
    assert!(said.contains("another process listens on") && said.contains(&path), "{said}");

    assert_eq!(place.client().await.unary(VERSION, b"").await.unwrap().code(), "0", "the first is unharmed");
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_not_touched() {
    let place = Place::new();
    std::fs::write(place.socket(), "precious").unwrap();
    let mut command = crisp();
    command.args(place.arguments());
    let mut running = place.spawn("log", command);
    assert_eq!(running.exit().await.code(), Some(1));
    assert!(running.log().contains("is not a socket"), "{}", running.log());
    assert_eq!(std::fs::read(place.socket()).unwrap(), b"precious");
}

/// A command that runs crisp with a listening socket as systemd passes it: descriptor 3.
fn activated(place: &Place, listener: &UnixListener) -> Command {
    let mut command = Command::new("sh");
    let script = "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_crisp")]).args(place.arguments());
    command.stdin(Stdio::from(OwnedFd::from(listener.try_clone().unwrap())));
    command
}

#[tokio::test]
async fn a_socket_from_systemd_is_served_and_outlives_the_process() {
    let place = Place::new();
    let _runtime = FakeRuntime::answering(&place.runtime(), Reply::of(&[b""]));
    let path = place.path("systemd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    for name in ["first", "second"] {
        // It waits in the backlog until somebody serves.
        let client = crate::support::h2_client::Client::connect(&path).await;
        let mut running = place.spawn_with_input(name, activated(&place, &listener));
        running.serving().await;
        assert_eq!(client.unary(VERSION, b"").await.unwrap().code(), "0");
        assert!(!place.socket().exists(), "--listen is not used then");
        let log = running.log();
        assert!(log.contains("systemd.sock") && log.contains("\"activated\":true"), "{log}");
        let status: Status = crisp::admin::client::get(&place.admin(), "/v1/status").await.unwrap();
        assert_eq!((status.listen, status.activated), (format!("unix://{}", path.display()), true));
        running.signal(Signal::TERM);
        assert_eq!(soon("the end", running.exit()).await.code(), Some(0));
        assert!(path.exists(), "it is not crisp's to remove");
    }
}

/// Broke: only the spelling of the paths was compared, so a runtime endpoint that led to crisp's own socket by a link
/// (`/var/run` is one) was taken, and the first call made crisp dial itself until it had no descriptor left.
#[tokio::test]
async fn a_proxy_of_itself_is_refused_by_whatever_name() {
    let place = Place::new();
    std::os::unix::fs::symlink(place.path(""), place.path("link")).unwrap();
    let round = format!("unix://{}", place.path("link/crisp.sock").display());
    for flag in ["--runtime-endpoint", "--image-endpoint"] {
        let mut arguments = place.arguments();
        match arguments.iter().position(|it| it == flag) {
            Some(at) => arguments[at + 1] = round.clone(),
            None => arguments.extend([flag.to_owned(), round.clone()]),
        }
        let mut command = crisp();
        command.args(arguments);
        let mut running = place.spawn("log", command);
        assert_eq!(running.exit().await.code(), Some(78), "{flag}");
        assert!(running.log().contains("crisp would call itself"), "{}", running.log());
        assert!(!place.socket().exists() && !place.admin().exists(), "nothing is left behind");
    }
}
