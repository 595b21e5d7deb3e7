//! The thread of the proxy.

use anyhow::Context;
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::proxy::usage;
use crate::proxy::{self, Proxy};
use crate::shutdown::Shutdown;

/// The thread on which the proxy runs alone.
#[derive(Debug)]
pub(super) struct ProxyThread {
    pub(super) handle: Handle,
    /// Cancelled when the proxy has nothing left to do.
    pub(super) done: CancellationToken,
}

impl ProxyThread {
    pub(super) fn start(
        listener: std::os::unix::net::UnixListener,
        proxy: Proxy,
        shutdown: Shutdown,
    ) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the proxy's runtime")?;
        let listener = {
            let _context = runtime.enter();
            UnixListener::from_std(listener).context("cannot use the listening socket")?
        };
        let handle = runtime.handle().clone();
        let done = CancellationToken::new();
        // Dropped with the thread's closure, so that a panic is noticed too.
        let guard = done.clone().drop_guard();
        std::thread::Builder::new()
            .name("crisp-proxy".into())
            .spawn(move || {
                let (usage, off) = (proxy.usage.clone(), proxy.router.beyond_images());
                runtime.spawn(async move { usage.report(usage::PATIENCE, &off).await });
                runtime.block_on(proxy::serve(listener, proxy, shutdown));
                drop(guard);
            })
            .context("cannot start the proxy's thread")?;
        Ok(Self { handle, done })
    }
}
