//! containerd's content store: finished blobs, and partial ones, which it calls ingests.

use std::collections::HashMap;
use std::time::SystemTime;

use containerd_client::services::v1::{
    Info as Message, InfoRequest, ListStatusesRequest, ReadContentRequest,
};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use tonic::{Code, Response};

use super::{CALL_LIMIT, Containerd, Error};

/// How many calls for single blobs are under way at a time.
const ABREAST: usize = 8;

/// A finished blob.
#[derive(Debug)]
pub(super) struct Info {
    pub(super) size: u64,
    pub(super) created_at: Option<SystemTime>,
    /// The blobs that it refers to, as manifests and indexes do once containerd has read them.
    pub(super) refers: Vec<String>,
}

// === impl Containerd ===

impl Containerd {
    /// How much of each blob under way is there, by the blob's digest.
    ///
    /// The API could filter them, but containerd does so only after it has opened each: nothing would be won.
    pub(super) async fn ingests(&self) -> Result<HashMap<String, u64>, Error> {
        let mut content = self.content()?;
        let request = ListStatusesRequest::default();
        let reply = self.call("Content.ListStatuses", CALL_LIMIT, content.list_statuses(request)).await?;
        let mut ingests = HashMap::new();
        for status in reply.statuses {
            let offset: &mut u64 = ingests.entry(digest_of(&status.r#ref).to_owned()).or_default();
            *offset = (*offset).max(u64::try_from(status.offset).unwrap_or(0));
        }
        Ok(ingests)
    }

    /// What the store knows of each digest that it has.
    pub(super) async fn infos(&self, digests: Vec<String>) -> Result<HashMap<String, Info>, Error> {
        let infos = digests.into_iter().map(|digest| async move {
            let info = self.info(&digest).await?;
            Ok(info.map(|info| (digest, info)))
        });
        let infos = stream::iter(infos).buffer_unordered(ABREAST);
        infos.try_filter_map(|found| async move { Ok(found) }).try_collect().await
    }

    async fn info(&self, digest: &str) -> Result<Option<Info>, Error> {
        let mut content = self.content()?;
        let request = InfoRequest { digest: digest.to_owned() };
        match self.call("Content.Info", CALL_LIMIT, content.info(request)).await {
            Ok(reply) => Ok(reply.info.map(Info::from)),
            // What containerd does not take for a digest, it does not have.
            Err(Error::Refused { code: Code::InvalidArgument, .. }) => Ok(None),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A blob of at most `limit` bytes; `None` if it is not there or larger.
    pub(super) async fn read(&self, digest: &str, limit: usize) -> Result<Option<Vec<u8>>, Error> {
        let mut content = self.content()?;
        // One byte more than allowed tells that there is more.
        let size = i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1);
        let request = ReadContentRequest { digest: digest.to_owned(), offset: 0, size };
        let read = async move {
            let mut chunks = content.read(request).await?.into_inner();
            let mut data = Vec::new();
            while let Some(chunk) = chunks.message().await? {
                data.extend_from_slice(&chunk.data);
                if data.len() > limit {
                    return Ok(Response::new(None));
                }
            }
            Ok(Response::new(Some(data)))
        };
        match self.call("Content.Read", CALL_LIMIT, read).await {
            Err(error) if error.is_not_found() => Ok(None),
            result => result,
        }
    }
}

// === impl Info ===

impl From<Message> for Info {
    fn from(message: Message) -> Self {
        Self {
            size: u64::try_from(message.size).unwrap_or(0),
            created_at: message.created_at.and_then(|time| SystemTime::try_from(time).ok()),
            refers: message
                .labels
                .into_iter()
                .filter(|(key, _)| key.starts_with("containerd.io/gc.ref.content"))
                .map(|(_, digest)| digest)
                .collect(),
        }
    }
}

/// The digest in an ingest's reference: `layer-<digest>`, or `layer-<name>@<digest>` for a layer that has a name.
pub(super) fn digest_of(reference: &str) -> &str {
    reference.rsplit(['-', '@']).next().unwrap_or(reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_end_with_the_digest() {
        assert_eq!(digest_of("layer-sha256:abc"), "sha256:abc");
        assert_eq!(digest_of("unknown-my-name@sha256:abc"), "sha256:abc");
        assert_eq!(digest_of("sha256:abc"), "sha256:abc");
        assert_eq!(digest_of(""), "");
    }
}
