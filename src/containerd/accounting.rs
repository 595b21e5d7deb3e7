//! What a pull has brought, asked when it has ended.

use std::collections::HashSet;
use std::time::SystemTime;

use super::content::digest_of;
use super::progress::Documents;
use super::{Containerd, Error};

/// What a pull that succeeded has brought.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Bytes of config and layers, as they come from the registry.
    pub size: u64,
    /// Those of them that were not there before, whichever pull has fetched them.
    pub fetched: u64,
}

/// How many blobs of a lease are looked at. Images have fewer.
const MAX_BLOBS: usize = 4096;

// === impl Containerd ===

impl Containerd {
    /// The size of the image that was pulled under a lease, and how much of it has come since a point in time. To be
    /// asked before the lease is deleted. `None` if its manifest does not tell sizes.
    pub async fn fetched(&self, lease: &str, since: SystemTime) -> Result<Option<Accounting>, Error> {
        let held = self.held(lease).await?;
        let mut documents = Documents::default();
        documents.learn(self, &held).await?;
        let Some(manifest) = documents.current(&held) else { return Ok(None) };
        let infos = self.infos(manifest.blobs().map(|blob| blob.digest.clone()).collect()).await?;
        let mut accounting = Accounting::default();
        for blob in manifest.blobs() {
            accounting.size = accounting.size.saturating_add(blob.size);
            let created_at = infos.get(&blob.digest).and_then(|info| info.created_at);
            if created_at.is_some_and(|time| time >= since) {
                accounting.fetched = accounting.fetched.saturating_add(blob.size);
            }
        }
        Ok(Some(accounting))
    }

    /// How many bytes of content a lease keeps, as they come from the registry: what it holds, and what that refers to.
    pub async fn lease_size(&self, lease: &str) -> Result<u64, Error> {
        let mut next = self.held(lease).await?.content;
        let mut seen: HashSet<String> = next.iter().cloned().collect();
        let mut size = 0_u64;
        while !next.is_empty() {
            let infos = self.infos(next).await?;
            size = infos.values().map(|info| info.size).fold(size, u64::saturating_add);
            let referred = infos.into_values().flat_map(|info| info.refers);
            next = referred.filter(|digest| seen.len() < MAX_BLOBS && seen.insert(digest.clone())).collect();
        }
        Ok(size)
    }

    /// How many bytes an unfinished pull has left under its lease: blobs that came while the lease was there, and parts
    /// of others. The next pull under the same lease does not fetch them again.
    pub async fn kept(&self, lease: &str) -> Result<u64, Error> {
        let Some(found) = self.find_lease(lease).await? else {
            return Err(Error::NotFound { call: "Leases.List", what: format!("lease {lease:?}") });
        };
        let since = found.since();
        let ingests = self.ingests().await?;
        let held = self.held(lease).await?;
        let partial = held.ingests.iter().filter_map(|ingest| ingests.get(digest_of(ingest)).copied());
        let infos = self.infos(held.content.clone()).await?;
        let whole = infos.values().filter(|info| info.created_at >= since).map(|info| info.size);
        Ok(partial.chain(whole).fold(0, u64::saturating_add))
    }
}
