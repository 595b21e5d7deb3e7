//! Image records: containerd's table of names, each with the digest of what it stands for.
//!
//! A PullImage of CRI leaves three records with the same target: the name that was asked for, `<repository>@<digest>`,
//! and the image's ID, `sha256:<digest of its config>`. CRI's RemoveImage deletes all records of an ID, whoever made
//! them; [`Containerd::delete_image`] deletes just one. CRI itself answers from a cache that follows the records by
//! events: after a change here, ask its ImageStatus until it says so.

use std::collections::BTreeMap;
use std::time::SystemTime;

use containerd_client::services::v1::{
    CreateImageRequest, DeleteImageRequest, GetImageRequest, Image as Message, ListImagesRequest,
    UpdateImageRequest,
};
use containerd_client::types::Descriptor;
use prost_types::FieldMask;
use tonic::Code;

use super::manifest::{MAX_MANIFEST, Manifest, children};
use super::{CALL_LIMIT, Containerd, Error};
use crate::image::Reference;

/// The label, and its value, of records that CRI need not look at any more.
const MANAGED: (&str, &str) = ("io.cri-containerd.image", "managed");

/// How many manifests of an index are looked at to find the one that is there. Indexes have a dozen.
const MAX_PLATFORMS: usize = 64;

/// A name and what it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRecord {
    /// The name: normalised, or an image's ID.
    pub name: String,
    /// What it stands for: an index or a manifest.
    pub target: Target,
    /// All its labels.
    pub labels: BTreeMap<String, String>,
    /// When it was made. Not sent.
    pub created_at: Option<SystemTime>,
    /// When it was last changed. Not sent.
    pub updated_at: Option<SystemTime>,
}

/// What a name stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its digest, which is the image's digest at its registry.
    pub digest: String,
    /// Its media type.
    pub media_type: String,
    /// Its size, which is not that of the image.
    pub size: u64,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

// === impl Containerd ===

impl Containerd {
    /// The record of a name, which has to be as containerd has it: see [`cri_name`].
    pub async fn image(&self, name: &str) -> Result<Option<ImageRecord>, Error> {
        let mut images = self.images_client()?;
        let request = GetImageRequest { name: name.to_owned() };
        match self.call("Images.Get", CALL_LIMIT, images.get(request)).await {
            Ok(reply) => Ok(reply.image.map(ImageRecord::from)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All records.
    pub async fn images(&self) -> Result<Vec<ImageRecord>, Error> {
        let mut images = self.images_client()?;
        let request = ListImagesRequest::default();
        let reply = self.call("Images.List", CALL_LIMIT, images.list(request)).await?;
        Ok(reply.images.into_iter().map(ImageRecord::from).collect())
    }

    /// Deletes a record and no other of the same image; one that is not there is as good as deleted. What nothing
    /// else keeps goes soon after.
    pub async fn delete_image(&self, name: &str) -> Result<(), Error> {
        let mut images = self.images_client()?;
        let request = DeleteImageRequest { name: name.to_owned(), sync: false, target: None };
        match self.call("Images.Delete", CALL_LIMIT, images.delete(request)).await {
            Err(error) if error.is_not_found() => Ok(()),
            result => result,
        }
    }

    /// Makes a record. One that exists gets the target and these labels, and keeps its others.
    pub async fn create_or_update_image(&self, record: &ImageRecord) -> Result<(), Error> {
        match self.create_image(record).await {
            Err(Error::Refused { code: Code::AlreadyExists, .. }) => {}
            result => return result,
        }
        match self.update_image(record).await {
            // Somebody has deleted it in between.
            Err(error) if error.is_not_found() => self.create_image(record).await,
            result => result,
        }
    }

    /// Makes an image known under one more name, as if CRI had pulled it by that name too. `from` is any name that the
    /// image has, or its ID, `to` an image name; neither needs to be normalised.
    ///
    /// The image must not go away meanwhile. CRI's RemoveImage by either name removes both.
    pub async fn alias(&self, from: &str, to: &str) -> Result<(), Error> {
        let to = parse(to)?;
        let from = if is_id(from) { from.to_owned() } else { cri_name(&parse(from)?) };
        let Some(record) = self.image(&from).await? else {
            return Err(Error::NotFound { call: "Images.Get", what: format!("image {from:?}") });
        };
        let target = record.target;
        if to.digest().is_some_and(|digest| digest != target.digest) {
            return Err(Error::Invalid(format!(
                "image name {to}: has another digest than {from}, which is {}; leave the digest out",
                target.digest
            )));
        }
        // CRI finds no image whose names are there before its ID is.
        let id = self.image_id(&target).await?;
        match self.create_image(&managed(id, target.clone())).await {
            Ok(()) | Err(Error::Refused { code: Code::AlreadyExists, .. }) => {}
            Err(error) => return Err(error),
        }
        for name in names(&to, &target) {
            self.create_or_update_image(&managed(name, target.clone())).await?;
        }
        Ok(())
    }

    /// The names of the records that a PullImage of this reference leaves, to be asked after it: its name, then the one
    /// by digest, then the image's ID, which is PullImage's reply. Empty if the reference's own record is not there.
    pub async fn records_of_pull(&self, reference: &Reference, image_id: &str) -> Result<Vec<String>, Error> {
        let name = cri_name(reference);
        let Some(record) = self.image(&name).await? else { return Ok(Vec::new()) };
        let id = image_id.to_owned();
        Ok(names(reference, &record.target).into_iter().chain([id]).collect())
    }

    /// The ID of an image: the digest of its config.
    async fn image_id(&self, target: &Target) -> Result<String, Error> {
        let data = self.read(&target.digest, MAX_MANIFEST).await?.unwrap_or_default();
        if let Some(manifest) = Manifest::parse(&data) {
            return Ok(manifest.config.digest);
        }
        // Of an index containerd has only the manifest that suits this machine, unless it was imported as a whole; then
        // CRI has told its ID already.
        let mut found = None;
        for digest in children(&data).into_iter().take(MAX_PLATFORMS) {
            let data = self.read(&digest, MAX_MANIFEST).await?.unwrap_or_default();
            let Some(manifest) = Manifest::parse(&data) else { continue };
            if self.image(&manifest.config.digest).await?.is_some() {
                return Ok(manifest.config.digest);
            }
            found.get_or_insert(manifest.config.digest);
        }
        let what = || format!("manifest of {} that tells the image's ID", target.digest);
        found.ok_or_else(|| Error::NotFound { call: "Content.Read", what: what() })
    }

    async fn create_image(&self, record: &ImageRecord) -> Result<(), Error> {
        let mut images = self.images_client()?;
        let request = CreateImageRequest { image: Some(record.into()), source_date_epoch: None };
        self.call("Images.Create", CALL_LIMIT, images.create(request)).await.map(drop)
    }

    async fn update_image(&self, record: &ImageRecord) -> Result<(), Error> {
        let mut images = self.images_client()?;
        let labels = record.labels.keys().map(|key| format!("labels.{key}"));
        let paths = std::iter::once("target".to_owned()).chain(labels).collect();
        let request = UpdateImageRequest {
            image: Some(record.into()),
            update_mask: Some(FieldMask { paths }),
            source_date_epoch: None,
        };
        self.call("Images.Update", CALL_LIMIT, images.update(request)).await.map(drop)
    }
}

/// The name under which CRI keeps an image: of one that has both a tag and a digest, only the digest counts.
pub fn cri_name(reference: &Reference) -> String {
    match reference.digest() {
        Some(digest) => format!("{}@{digest}", reference.name()),
        None => reference.clone().with_default_tag().to_string(),
    }
}

/// The names that CRI gives to an image that it pulls by this one, its ID apart.
fn names(reference: &Reference, target: &Target) -> Vec<String> {
    let mut names = vec![cri_name(reference), format!("{}@{}", reference.name(), target.digest)];
    names.dedup();
    names
}

/// Whether CRI takes this for an image's ID. Docker's grammar would take it for a name with a tag.
fn is_id(name: &str) -> bool {
    let hex = name.strip_prefix("sha256:").unwrap_or_default();
    hex.len() == 64 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn parse(name: &str) -> Result<Reference, Error> {
    if is_id(name) {
        return Err(Error::Invalid(format!("image name {name}: is an image's ID; give the image a name")));
    }
    Reference::parse(name).map_err(|error| Error::Invalid(format!("image name: {error}")))
}

fn managed(name: String, target: Target) -> ImageRecord {
    let (key, value) = MANAGED;
    let labels = BTreeMap::from([(key.to_owned(), value.to_owned())]);
    ImageRecord { name, target, labels, created_at: None, updated_at: None }
}

// === impl ImageRecord ===

impl From<Message> for ImageRecord {
    fn from(message: Message) -> Self {
        let time = |time: Option<prost_types::Timestamp>| time.and_then(|time| time.try_into().ok());
        let target = message.target.unwrap_or_default();
        Self {
            name: message.name,
            target: Target {
                digest: target.digest,
                media_type: target.media_type,
                size: u64::try_from(target.size).unwrap_or(0),
                annotations: target.annotations.into_iter().collect(),
            },
            labels: message.labels.into_iter().collect(),
            created_at: time(message.created_at),
            updated_at: time(message.updated_at),
        }
    }
}

impl From<&ImageRecord> for Message {
    fn from(record: &ImageRecord) -> Self {
        let Target { digest, media_type, size, annotations } = record.target.clone();
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        let annotations = annotations.into_iter().collect();
        Self {
            name: record.name.clone(),
            labels: record.labels.clone().into_iter().collect(),
            target: Some(Descriptor { media_type, digest, size, annotations }),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn records_are_named_as_cri_names_them() {
        let target = Target {
            digest: DIGEST.into(),
            media_type: "application/vnd.oci.image.index.v1+json".into(),
            size: 1,
            annotations: BTreeMap::new(),
        };
        let by_digest = format!("docker.io/library/a@{DIGEST}");
        for (name, expected) in [
            ("a".to_owned(), vec!["docker.io/library/a:latest", &by_digest]),
            ("a:1".to_owned(), vec!["docker.io/library/a:1", &by_digest]),
            (format!("a@{DIGEST}"), vec![&by_digest]),
            (format!("a:1@{DIGEST}"), vec![&by_digest]),
        ] {
            assert_eq!(names(&Reference::parse(&name).unwrap(), &target), expected, "{name}");
        }
    }

    #[test]
    fn an_id_is_no_name() {
        assert!(is_id(DIGEST) && parse(DIGEST).is_err());
        for name in
            ["sha256", "sha256:1", &DIGEST.to_uppercase(), &format!("a@{DIGEST}"), &format!("{DIGEST}0")]
        {
            assert!(!is_id(name), "{name}");
        }
    }

    #[test]
    fn a_record_is_the_same_there_and_back() {
        let target = Target {
            digest: DIGEST.into(),
            media_type: "x/y".into(),
            size: 7,
            annotations: BTreeMap::from([("a".into(), "b".into())]),
        };
        let record = managed("a:1".into(), target);
        assert_eq!(ImageRecord::from(Message::from(&record)), record);
        assert_eq!(record.labels, BTreeMap::from([(MANAGED.0.to_owned(), MANAGED.1.to_owned())]));
        let strange =
            Message { target: Some(Descriptor { size: -1, ..Descriptor::default() }), ..Message::default() };
        assert_eq!(ImageRecord::from(strange).target.size, 0);
    }
}
