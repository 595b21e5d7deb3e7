//! The two stages of an orderly end.
//!
//! *Release*: the listener, the admin socket and whatever another process may want are let go at once. *End*:
//! calls still under way after `drain.max` are ended with UNAVAILABLE. In between, connections drain.

use tokio_util::sync::CancellationToken;

/// Both stages, as something to wait for and to trigger. Clones share the stages.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    release: CancellationToken,
    end: CancellationToken,
}

impl Shutdown {
    /// Begins the first stage.
    pub fn release(&self) {
        self.release.cancel();
    }

    /// Begins the second stage; implies the first.
    pub fn end(&self) {
        self.release.cancel();
        self.end.cancel();
    }

    /// Waits for the first stage.
    pub async fn released(&self) {
        self.release.cancelled().await;
    }

    /// Waits for the second stage.
    pub async fn ended(&self) {
        self.end.cancelled().await;
    }

    /// The first stage as a token, for servers that take one.
    pub fn release_token(&self) -> CancellationToken {
        self.release.clone()
    }
}
