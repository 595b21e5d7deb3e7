//! Leases: what they keep is safe from containerd's garbage collector until they are deleted or expire.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use containerd_client::services::v1::{
    AddResourceRequest, CreateRequest, DeleteRequest, Lease as Message, ListRequest, ListResourcesRequest,
    Resource,
};
use prost_types::Timestamp;
use tonic::Code;

use super::{CALL_LIMIT, Containerd, Error};

/// The metadata of a PullImage that ties the pull to a lease.
pub const LEASE_HEADER: &str = "containerd-lease";

/// The label by which crisp knows its own leases. Its value is the time from which on fetched bytes count as the
/// lease's own: a renewed lease has that of its first ancestor.
pub const LEASE_LABEL: &str = "crisp.dev/lease";

/// The label by which crisp knows the leases that keep parked images. Its value is whoever they are kept for. Such a lease
/// has no [`LEASE_LABEL`]: it is not what a pull has left behind.
pub const PARKED_LABEL: &str = "crisp.dev/parked";

/// How long a lease lives. It ends what a crisp that died left behind; containerd looks at it only when its garbage
/// collector happens to run.
pub const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

const EXPIRE_LABEL: &str = "containerd.io/gc.expire";
/// containerd's limit for a label's key and value together.
const MAX_LABEL: usize = 4096;
const MAX_ID: usize = 256;
/// A deletion that waits for the garbage collector, which may have many files to remove.
const SYNC_LIMIT: Duration = Duration::from_secs(60);

/// A lease of crisp's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub id: String,
    /// When it was made.
    pub created_at: Option<SystemTime>,
    /// All its labels.
    pub labels: BTreeMap<String, String>,
}

/// What a lease keeps.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Digests of finished blobs.
    pub(super) content: Vec<String>,
    /// References of partial ones.
    pub(super) ingests: Vec<String>,
    /// Whether there are snapshots: unpacking has begun.
    pub(super) snapshots: bool,
}

// === impl Containerd ===

impl Containerd {
    /// Makes a lease that lives for [`LIFETIME`]. One that exists already is as good, but keeps its labels and its
    /// expiry: see [`Lease::expires_at`].
    ///
    /// The id travels as metadata, so it is limited to letters, digits, `.`, `_` and `-`.
    pub async fn create_lease(&self, id: &str, labels: &BTreeMap<String, String>) -> Result<(), Error> {
        check_labels(labels)?;
        let now = SystemTime::now();
        let own = [(LEASE_LABEL.to_owned(), Timestamp::from(now).to_string())];
        self.create(id, labels.clone().into_iter().chain(own), now).await
    }

    /// Deletes a lease; one that is not there is as good as deleted. With `sync`, what it kept alone is gone when this
    /// returns, else soon after.
    pub async fn delete_lease(&self, id: &str, sync: bool) -> Result<(), Error> {
        check_id(id)?;
        let mut leases = self.leases()?;
        let request = DeleteRequest { id: id.to_owned(), sync };
        let limit = if sync { SYNC_LIMIT } else { CALL_LIMIT };
        match self.call("Leases.Delete", limit, leases.delete(request)).await {
            Err(error) if error.is_not_found() => Ok(()),
            result => result,
        }
    }

    /// The leases of crisp's pulls, those of earlier instances included. Parked ones are not among them.
    pub async fn list_leases(&self) -> Result<Vec<Lease>, Error> {
        self.list(format!("labels.\"{LEASE_LABEL}\"")).await
    }

    /// Moves what a lease keeps to a new one, which lives for another [`LIFETIME`], and deletes the old one. The API
    /// has no update.
    ///
    /// A pull that still runs under the old lease would fail with its next blob: end it first, and go on under the
    /// new one. When this is dropped or fails in between, both leases are there and it can be called again.
    pub async fn renew_lease(&self, id: &str, new_id: &str) -> Result<(), Error> {
        if id == new_id {
            return Err(Error::Invalid(format!(
                "lease {id}: cannot be renewed under its own id; use another"
            )));
        }
        let Some(old) = self.find_lease(id).await? else {
            return Err(Error::NotFound { call: "Leases.List", what: format!("lease {id:?}") });
        };
        self.create(new_id, old.labels.into_iter(), SystemTime::now()).await?;
        for resource in self.resources(id).await? {
            self.add_resource(new_id, resource).await?;
        }
        self.delete_lease(id, false).await
    }

    /// Makes a lease that keeps all that another does, for `owner`: a parked one. The other stays.
    ///
    /// When this is dropped or fails in between it can be called again. A lease lives for [`LIFETIME`], so a parked one
    /// has to be renewed in time.
    pub async fn copy_lease(
        &self,
        from: &str,
        to: &str,
        owner: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        if from == to {
            return Err(Error::Invalid(format!("lease {from}: cannot be copied to its own id; use another")));
        }
        let resources = self.resources(from).await?;
        self.create_parked_lease(to, owner, labels).await?;
        for resource in resources {
            self.add_resource(to, resource).await?;
        }
        Ok(())
    }

    /// Makes a parked lease that keeps nothing yet. One that exists already is as good, but keeps its labels and its
    /// expiry.
    pub async fn create_parked_lease(
        &self,
        id: &str,
        owner: &str,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        check_labels(labels)?;
        let own = [(PARKED_LABEL.to_owned(), owner.to_owned())];
        self.create(id, labels.clone().into_iter().chain(own), SystemTime::now()).await
    }

    /// Puts a blob under a lease, and with it all that containerd knows it to refer to: of an image that was pulled, its
    /// target is enough to keep layers and snapshots.
    pub async fn lease_content(&self, id: &str, digest: &str) -> Result<(), Error> {
        check_id(id)?;
        let resource = Resource { id: digest.to_owned(), r#type: "content".to_owned() };
        self.add_resource(id, resource).await
    }

    /// All parked leases, those of earlier instances included.
    pub async fn parked_leases(&self) -> Result<Vec<Lease>, Error> {
        self.list(format!("labels.\"{PARKED_LABEL}\"")).await
    }

    /// A lease by its id, whoever made it. When a pull failed for whatever reason, this tells whether its lease was
    /// deleted under it, which containerd's words do not.
    pub async fn find_lease(&self, id: &str) -> Result<Option<Lease>, Error> {
        check_id(id)?;
        Ok(self.list(format!("id==\"{id}\"")).await?.into_iter().next())
    }

    /// What a lease keeps.
    pub(super) async fn held(&self, id: &str) -> Result<Held, Error> {
        Ok(Held::of(self.resources(id).await?))
    }

    async fn add_resource(&self, id: &str, resource: Resource) -> Result<(), Error> {
        let mut leases = self.leases()?;
        let request = AddResourceRequest { id: id.to_owned(), resource: Some(resource) };
        self.call("Leases.AddResource", CALL_LIMIT, leases.add_resource(request)).await
    }

    async fn create(
        &self,
        id: &str,
        labels: impl Iterator<Item = (String, String)>,
        now: SystemTime,
    ) -> Result<(), Error> {
        check_id(id)?;
        let mut labels: HashMap<_, _> = labels.collect();
        labels.insert(EXPIRE_LABEL.to_owned(), expiry(now));
        for (key, value) in &labels {
            check_label(key, value)?;
        }
        let mut leases = self.leases()?;
        let request = CreateRequest { id: id.to_owned(), labels };
        match self.call("Leases.Create", CALL_LIMIT, leases.create(request)).await {
            Ok(_) | Err(Error::Refused { code: Code::AlreadyExists, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn list(&self, filter: String) -> Result<Vec<Lease>, Error> {
        let mut leases = self.leases()?;
        let request = ListRequest { filters: vec![filter] };
        let reply = self.call("Leases.List", CALL_LIMIT, leases.list(request)).await?;
        Ok(reply.leases.into_iter().map(Lease::from).collect())
    }

    async fn resources(&self, id: &str) -> Result<Vec<Resource>, Error> {
        check_id(id)?;
        let mut leases = self.leases()?;
        let request = ListResourcesRequest { id: id.to_owned() };
        let reply = self.call("Leases.ListResources", CALL_LIMIT, leases.list_resources(request)).await?;
        Ok(reply.resources)
    }
}

// === impl Lease ===

impl Lease {
    /// When it expires; `None` if its label cannot be read, which containerd takes for never.
    pub fn expires_at(&self) -> Option<SystemTime> {
        time_of(self.labels.get(EXPIRE_LABEL)?)
    }

    /// Whom it keeps a parked image for; `None` if it is not a parked one.
    pub fn parked_for(&self) -> Option<&str> {
        self.labels.get(PARKED_LABEL).map(String::as_str)
    }

    /// The time from which on fetched bytes count as its own.
    pub(super) fn since(&self) -> Option<SystemTime> {
        self.labels.get(LEASE_LABEL).and_then(|text| time_of(text)).or(self.created_at)
    }
}

impl From<Message> for Lease {
    fn from(message: Message) -> Self {
        let created_at = message.created_at.and_then(|time| SystemTime::try_from(time).ok());
        Self { id: message.id, created_at, labels: message.labels.into_iter().collect() }
    }
}

// === impl Held ===

impl Held {
    fn of(resources: Vec<Resource>) -> Self {
        let mut held = Self::default();
        for resource in resources {
            match resource.r#type.as_str() {
                "content" => held.content.push(resource.id),
                "ingests" => held.ingests.push(resource.id),
                kind if kind.starts_with("snapshots/") => held.snapshots = true,
                // containerd 2 may add others, such as images.
                _ => {}
            }
        }
        held
    }
}

/// The expiry of a lease that is made now, in whole seconds as containerd itself writes it.
fn expiry(now: SystemTime) -> String {
    let mut time = Timestamp::from(now + LIFETIME);
    time.nanos = 0;
    time.to_string()
}

fn time_of(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>().ok()?.try_into().ok()
}

fn check_id(id: &str) -> Result<(), Error> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if id.is_empty() || id.len() > MAX_ID || !id.chars().all(fine) {
        let shown: String = id.chars().take(MAX_ID).collect();
        return Err(Error::Invalid(format!(
            "lease id {shown:?}: use 1 to {MAX_ID} letters, digits, '.', '_' and '-'"
        )));
    }
    Ok(())
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Error> {
    match [LEASE_LABEL, PARKED_LABEL, EXPIRE_LABEL].into_iter().find(|key| labels.contains_key(*key)) {
        Some(key) => Err(Error::Invalid(format!("lease label {key}: crisp sets it itself; leave it out"))),
        None => Ok(()),
    }
}

fn check_label(key: &str, value: &str) -> Result<(), Error> {
    let size = key.len() + value.len();
    if key.is_empty() || size > MAX_LABEL {
        let shown: String = key.chars().take(64).collect();
        return Err(Error::Invalid(format!(
            "lease label {shown:?}: key and value have {size} bytes; containerd takes a key and at most {MAX_LABEL} in all"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_day_ahead_in_the_form_that_containerd_reads() {
        let noon = SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_250);
        assert_eq!(expiry(noon), "2027-01-16T08:00:00Z");
        assert_eq!(time_of("2027-01-16T08:00:00Z"), time_of("2027-01-16T10:00:00+02:00"));
        assert_eq!(time_of("tomorrow"), None);
    }

    #[test]
    fn ids_fit_into_metadata() {
        for fine in ["a", "crisp-0123", "A.b_c-9", &"x".repeat(MAX_ID)] {
            assert!(check_id(fine).is_ok(), "{fine}");
        }
        for wrong in ["", "a b", "a\nb", "ä", "a\"", "../x", &"x".repeat(MAX_ID + 1)] {
            assert!(matches!(check_id(wrong), Err(Error::Invalid(_))), "{wrong}");
        }
    }

    #[test]
    fn labels_are_measured_as_containerd_does() {
        assert!(check_label("key", &"v".repeat(MAX_LABEL - 3)).is_ok());
        assert!(check_label("key", &"v".repeat(MAX_LABEL - 2)).is_err());
        assert!(check_label("", "v").is_err());
    }

    #[test]
    fn resources_are_told_apart() {
        let resource = |kind: &str, id: &str| Resource { id: id.into(), r#type: kind.into() };
        let held = Held::of(vec![
            resource("content", "sha256:a"),
            resource("ingests", "layer-sha256:b"),
            resource("images", "x"),
        ]);
        assert_eq!(
            (held.content, held.ingests, held.snapshots),
            (vec!["sha256:a".into()], vec!["layer-sha256:b".into()], false)
        );
        assert!(Held::of(vec![resource("snapshots/overlayfs", "sha256:c")]).snapshots);
    }

    #[test]
    fn a_lease_counts_from_its_first_ancestor() {
        let created_at = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(5));
        let mut lease = Lease { id: "a".into(), created_at, labels: BTreeMap::new() };
        assert_eq!(lease.since(), created_at);
        lease.labels.insert(LEASE_LABEL.into(), "1970-01-01T00:00:01.5Z".into());
        assert_eq!(lease.since(), Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1500)));
    }
}
