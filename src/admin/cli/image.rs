//! `crisp image inspect`: how crisp understands an image's name or spec. Needs no running crisp.

use std::fmt;
use std::io::Write;

use serde::Serialize;

use crate::admin::cli::form::Form;
use crate::image::decide::UNDER_PREFIX;
use crate::image::reference::DEFAULT_TAG;
use crate::image::{AciImage, AciNames, Format, ImageSpec, Reference, Said, decide};

/// An image as crisp understands it. The JSON form is for scripts: fields may be added, not changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Understood {
    /// `docker` or `aci`.
    pub format: &'static str,
    /// Where a Docker image comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// The repository in the registry, or the name of an ACI image.
    pub repository: String,
    /// The tag, the default one included; none beside a digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// The digest of a Docker image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The id of an ACI image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The whole name, as the kubelet and the runtime compare it; none if no pod can write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalised: Option<String>,
    /// The name as Docker shows it to people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub familiar: Option<String>,
    /// What a pod writes as `image`; none if no pod can write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What a pod writes for an ACI image that needs no annotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_image: Option<String>,
    /// The spec for the annotation `crisp.dev/image-specs`.
    pub spec: ImageSpec,
}

/// Understands a name or the JSON of a spec and writes what comes of it.
pub fn inspect(text: &str, names: &AciNames, form: Form, out: &mut impl Write) -> anyhow::Result<()> {
    form.write(out, &Understood::of(text, names)?, Understood::to_string)
}

// === impl Understood ===

impl Understood {
    /// Reads a name, or a spec if it begins with a brace.
    pub fn of(text: &str, names: &AciNames) -> anyhow::Result<Self> {
        if text.trim_start().starts_with('{') {
            let spec = ImageSpec::from_json(text)?;
            if let ImageSpec::Docker(image) = &spec
                && names.image(image.reference()).is_some()
            {
                anyhow::bail!("dockerImage.registry: {UNDER_PREFIX}");
            }
            return Ok(Self::of_spec(spec));
        }
        let requested = decide(Reference::parse(text)?, &Said::default(), names)?;
        Ok(Self::of_spec(match requested.format {
            Format::Docker => ImageSpec::of_image(text)?,
            Format::Aci(image) => ImageSpec::Aci(image),
        }))
    }

    fn of_spec(spec: ImageSpec) -> Self {
        match &spec {
            ImageSpec::Docker(image) => {
                let reference = image.reference().clone().with_default_tag();
                Self {
                    format: "docker",
                    registry: Some(reference.registry().to_owned()),
                    repository: reference.path().to_owned(),
                    tag: reference.tag().map(str::to_owned),
                    digest: reference.digest().map(str::to_owned),
                    id: None,
                    normalised: Some(reference.to_string()),
                    familiar: Some(reference.familiar()),
                    image: Some(image.image()),
                    reserved_image: None,
                    spec,
                }
            }
            ImageSpec::Aci(image) => {
                let normalised = image.references().next();
                let writable = |name: fn(&AciImage) -> String| normalised.as_ref().map(|_| name(image));
                Self {
                    format: "aci",
                    registry: None,
                    repository: image.name().to_owned(),
                    tag: Some(image.tag().unwrap_or(DEFAULT_TAG).to_owned()),
                    digest: None,
                    id: image.id().map(str::to_owned),
                    familiar: normalised.as_ref().map(Reference::familiar),
                    image: writable(AciImage::image),
                    reserved_image: writable(AciImage::reserved_image),
                    normalised: normalised.map(|name| name.to_string()),
                    spec,
                }
            }
        }
    }
}

impl fmt::Display for Understood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unwritable = "none: a pod's image cannot have a `~`";
        let or = |value: &Option<String>, none: &str| value.clone().unwrap_or_else(|| none.to_owned());
        let spec = serde_json::to_string(&self.spec).map_err(|_| fmt::Error)?;
        let aci = self.format == "aci";
        writeln!(f, "format      {}", if aci { "ACI" } else { "Docker" })?;
        if let Some(registry) = &self.registry {
            writeln!(f, "registry    {registry}")?;
        }
        writeln!(f, "{}  {}", if aci { "name      " } else { "repository" }, self.repository)?;
        writeln!(f, "tag         {}", or(&self.tag, "none"))?;
        if aci {
            writeln!(f, "id          {}", or(&self.id, "none"))?;
        } else {
            writeln!(f, "digest      {}", or(&self.digest, "none"))?;
        }
        writeln!(f, "normalised  {}", or(&self.normalised, unwritable))?;
        writeln!(f, "familiar    {}", or(&self.familiar, unwritable))?;
        writeln!(f, "in a pod    {}", or(&self.image, unwritable))?;
        if aci {
            writeln!(f, "            {} (no annotation needed)", or(&self.reserved_image, unwritable))?;
        }
        writeln!(f, "spec        {spec}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> String {
        Understood::of(text, &AciNames::default()).unwrap().to_string()
    }

    #[test]
    fn a_docker_name_is_explained() {
        assert_eq!(
            text("nginx"),
            "\
format      Docker
registry    docker.io
repository  library/nginx
tag         latest
digest      none
normalised  docker.io/library/nginx:latest
familiar    nginx:latest
in a pod    docker.io/library/nginx
spec        {\"dockerImage\":{\"registry\":\"docker.io\",\"name\":\"library/nginx\"}}
"
        );
    }

    #[test]
    fn an_aci_spec_and_its_reserved_name_are_the_same_image() {
        let expected = "\
format      ACI
name        coreos.com/etcd
tag         v2.2.0
id          none
normalised  coreos.com/etcd:v2.2.0
familiar    coreos.com/etcd:v2.2.0
in a pod    coreos.com/etcd:v2.2.0
            aci.crisp.invalid/coreos.com/etcd:v2.2.0 (no annotation needed)
spec        {\"aci\":{\"name\":\"coreos.com/etcd\",\"tag\":\"v2.2.0\"}}
";
        assert_eq!(text(r#" {"aci": {"name": "coreos.com/etcd", "tag": "v2.2.0"}}"#), expected);
        assert_eq!(text("aci.crisp.invalid/coreos.com/etcd:v2.2.0"), expected);
        let names = AciNames::parse("coreos.com").unwrap();
        let understood = Understood::of("coreos.com/etcd:v2.2.0", &names).unwrap();
        assert_eq!(understood.to_string(), expected);
    }

    #[test]
    fn a_name_that_no_pod_can_write_has_no_image() {
        let understood = Understood::of(r#"{"aci": {"name": "a~b"}}"#, &AciNames::default()).unwrap();
        assert_eq!((&understood.image, &understood.normalised), (&None, &None));
        assert!(understood.to_string().contains("in a pod    none: a pod's image cannot have a `~`"));
    }

    #[test]
    fn what_cannot_be_understood_is_an_error() {
        for wrong in ["", "UPPER", "{}", r#"{"aci":{}}"#, "aci.crisp.invalid/a__b", "a_b.io/c"] {
            assert!(Understood::of(wrong, &AciNames::default()).is_err(), "{wrong}");
        }
        let names = AciNames::parse("coreos.com").unwrap();
        let docker = r#"{"dockerImage":{"registry":"coreos.com","name":"etcd"}}"#;
        let error = Understood::of(docker, &names).unwrap_err().to_string();
        assert!(error.starts_with("dockerImage.registry: lies under a prefix"), "{error}");
    }
}
