//! Where the runtime is.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, EMBEDDED, Runtime, WELL_KNOWN};
use crate::proxy::listener;
use crate::proxy::upstream::{Endpoint, Endpoints};
use crate::runtime::{self, Embedded};

/// Why crisp cannot serve with the sockets it was given.
#[derive(Debug, thiserror::Error)]
pub enum NoWay {
    /// No runtime was named and none was found.
    #[error(
        "no container runtime found: neither unix://{} (containerd) nor unix://{} (CRI-O) is a socket; \
         start the runtime first or name its socket with --runtime-endpoint unix://PATH",
        WELL_KNOWN[0], WELL_KNOWN[1]
    )]
    NoRuntime,
    /// The runtime's socket is one that crisp itself listens on.
    #[error("unix://{} is crisp's own socket, so crisp would call itself; name the runtime's with --runtime-endpoint", .0.display())]
    CallsItself(PathBuf),
    /// The kubelet's socket and the admin API's are the same.
    #[error("unix://{} is given both as --listen and as --admin-listen; they must differ", .0.display())]
    OneForBoth(PathBuf),
}

/// Finds the runtime as configured, or at a well-known place. `own` are the sockets that crisp listens on.
pub(super) async fn find_runtime(
    config: &Config,
    own: &[&Path],
) -> anyhow::Result<(Endpoints, Option<Embedded>)> {
    let mut embedded = None;
    let is_own = |path: &Path| own.iter().any(|own| listener::same_file(path, own));
    let runtime = match &config.runtime_endpoint {
        Some(Runtime::Unix(path)) => path.clone(),
        Some(Runtime::Embedded) => {
            let started = embedded.insert(runtime::start(&config.state_dir.join(EMBEDDED)).await?);
            started.endpoint().to_owned()
        }
        // crisp's own socket exists by now, and may well lie at a well-known place.
        None => choose(WELL_KNOWN.iter().map(Path::new).filter(|path| !is_own(path)))
            .ok_or(NoWay::NoRuntime)?
            .to_owned(),
    };
    let image = config.image_endpoint.as_ref().unwrap_or(&runtime).clone();
    // Paths alone do not tell: /var/run is mostly a link to /run, and systemd may have passed the socket.
    if let Some(path) = [&runtime, &image].into_iter().find(|path| is_own(path)) {
        return Err(NoWay::CallsItself(path.clone()).into());
    }
    let is_one = image == runtime;
    let runtime = Arc::new(Endpoint::unix(runtime));
    // What is told of an endpoint is told once.
    let image = if is_one { runtime.clone() } else { Arc::new(Endpoint::unix(image)) };
    Ok((Endpoints { runtime, image }, embedded))
}

/// The first socket that somebody listens on, or else the first: its runtime may be about to start.
fn choose<'a>(places: impl Iterator<Item = &'a Path> + Clone) -> Option<&'a Path> {
    let mut sockets = places.filter(|path| listener::is_socket(path));
    let first = sockets.clone().next();
    sockets.find(|path| listener::is_live(path).unwrap_or(false)).or(first)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Broke: whatever lay at the first well-known path was taken, also the socket of a runtime that was gone, beside one
    /// that ran.
    #[test]
    fn a_live_socket_comes_before_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b, file] = ["a", "b", "file"].map(|name| dir.path().join(name));
        std::fs::write(&file, "").unwrap();
        let chosen = || choose([&file, &a, &b].map(PathBuf::as_path).into_iter());
        assert_eq!(chosen(), None);
        drop(UnixListener::bind(&a).unwrap());
        assert_eq!(chosen(), Some(a.as_path()), "the only one, though nobody listens yet");
        let live = UnixListener::bind(&b).unwrap();
        assert_eq!(chosen(), Some(b.as_path()));
        drop(live);
        assert_eq!(chosen(), Some(a.as_path()));
    }

    #[test]
    fn the_error_names_where_it_was_looked_for() {
        let said = NoWay::NoRuntime.to_string();
        assert!(WELL_KNOWN.iter().all(|path| said.contains(path)) && said.contains("--runtime-endpoint"));
    }

    /// Broke: with the admin socket as its runtime crisp started, and asked itself.
    #[tokio::test]
    async fn crisps_own_sockets_are_no_runtime() {
        let dir = tempfile::tempdir().unwrap();
        let [admin, alias] = ["admin", "alias"].map(|name| dir.path().join(name));
        let _listening = UnixListener::bind(&admin).unwrap();
        std::os::unix::fs::symlink(&admin, &alias).unwrap();
        let endpoint = format!("unix://{}", alias.display());
        for key in ["runtimeEndpoint", "imageEndpoint"] {
            let other = [("runtimeEndpoint", "unix:///other"), (key, &endpoint)];
            let config = Config::load(None, other).unwrap();
            let error = find_runtime(&config, &[&admin]).await.unwrap_err();
            assert!(matches!(error.downcast_ref(), Some(NoWay::CallsItself(_))), "{error}");
        }
    }
}
