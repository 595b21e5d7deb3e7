//! Which containers carry a foreign hash, and what a kubelet from 1.31 on would have written instead. Pure.

use std::collections::HashMap;

use k8s_cri::v1::{Container, ContainerState};
use serde::Deserialize;

use crate::container::hash;
use crate::container::record::LABEL;

/// The label by which the kubelet says whose a container is.
pub const POD_UID: &str = "io.kubernetes.pod.uid";

/// The label that holds the container's name in its pod.
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// The label that holds the pod's namespace.
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
/// The label that holds the pod's name.
pub const POD_NAME: &str = "io.kubernetes.pod.name";

/// What is needed of a pod that is bound to this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodImages {
    /// The pod's UID.
    pub uid: String,
    /// If it is the mirror of a static pod, the UID of that one, which its containers carry.
    pub mirror_of: Option<String>,
    /// Container names and their images, as the pod has them; init and ephemeral containers too.
    pub images: Vec<(String, String)>,
}

/// Images by pod and container.
#[derive(Debug, Default)]
pub struct Pods(HashMap<String, HashMap<String, String>>);

/// What is to be done with one container's hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on as it is, and always will.
    AsItIs,
    /// It is answered with this one, for the container was made from this image.
    Answer(String),
    /// It is answered with `hash`, if `image` is the image with the ID that the container runs.
    IfSame {
        /// The image, as the pod names it now.
        image: String,
        /// The ID of the container's image.
        id: String,
        /// What a new kubelet computes.
        hash: String,
    },
    /// Nothing says what it was made from: it goes on as it is, and is looked at again another time.
    Unknown,
}

/// The beginning of a record, as far as it matters here.
#[derive(Deserialize)]
struct MadeFrom {
    image: Option<String>,
}

/// Whether a container may need an answer at all: it is a kubelet's and lives. Of others the hash is never compared.
pub fn matters(container: &Container) -> bool {
    let lives = [ContainerState::ContainerCreated, ContainerState::ContainerRunning]
        .iter()
        .any(|state| container.state == i32::from(*state));
    lives
        && container.annotations.contains_key(hash::ANNOTATION)
        && container.labels.contains_key(POD_UID)
        && container.labels.contains_key(CONTAINER_NAME)
}

/// Leaves of a container what is needed to judge and to name it.
pub fn trim(container: &mut Container) {
    const LABELS: [&str; 5] = [POD_UID, POD_NAMESPACE, POD_NAME, CONTAINER_NAME, LABEL];
    container.labels.retain(|key, _| LABELS.contains(&key.as_str()));
    container.labels.shrink_to_fit();
    container.annotations.retain(|key, _| key == hash::ANNOTATION);
    container.annotations.shrink_to_fit();
}

/// Judges one container that [`matters`]. Without pods only recorded ones can be judged.
pub fn judge(container: &Container, pods: &Pods) -> Verdict {
    let label = |key| container.labels.get(key).map_or("", String::as_str);
    let name = label(CONTAINER_NAME);
    let carried = container.annotations.get(hash::ANNOTATION);
    let is_carried = |hash: &String| carried == Some(hash);
    if let Some(image) = made_from(container) {
        let hash = hash::of_name_and_image(name, &image);
        return if is_carried(&hash) { Verdict::AsItIs } else { Verdict::Answer(hash) };
    }
    let Some(image) = pods.0.get(label(POD_UID)).and_then(|images| images.get(name)) else {
        return Verdict::Unknown;
    };
    let hash = hash::of_name_and_image(name, image);
    if is_carried(&hash) {
        return Verdict::AsItIs;
    }
    // Runtimes from before CRI 1.30 have the ID in the other field.
    let id = if container.image_id.is_empty() { &container.image_ref } else { &container.image_id };
    Verdict::IfSame { image: image.clone(), id: id.clone(), hash }
}

/// The user's image: from the record, else from the runtime. containerd from 2.0 on lists what kubelets from 1.28 on have
/// said of it.
fn made_from(container: &Container) -> Option<String> {
    let told = || Some(container.image.as_ref()?.user_specified_image.clone());
    recorded_image(container).or_else(|| told().filter(|image| !image.is_empty()))
}

fn recorded_image(container: &Container) -> Option<String> {
    let record = container.labels.get(LABEL)?;
    // Who did not say the user's name of the image left only its ID, which is in no pod.
    let is_name = |image: &String| !image.is_empty() && !image.starts_with("sha256:");
    serde_json::from_str::<MadeFrom>(record).ok()?.image.filter(is_name)
}

// === impl Pods ===

impl FromIterator<PodImages> for Pods {
    fn from_iter<I: IntoIterator<Item = PodImages>>(pods: I) -> Self {
        let (mut by_uid, mut mirrors) = (HashMap::new(), HashMap::<_, Option<_>>::new());
        for PodImages { uid, mirror_of, images } in pods {
            let images: HashMap<_, _> = images.into_iter().collect();
            if let Some(of) = mirror_of {
                // It is an annotation, which anybody can write: of two that claim the same pod neither is believed.
                let claim = mirrors.entry(of);
                claim.and_modify(|images| *images = None).or_insert_with(|| Some(images.clone()));
            }
            by_uid.insert(uid, images);
        }
        for (uid, images) in mirrors {
            // Nor is one that claims a pod which the API server has itself.
            if let Some(images) = images {
                by_uid.entry(uid).or_insert(images);
            }
        }
        Self(by_uid)
    }
}

#[cfg(test)]
mod tests {
    use k8s_cri::v1::ImageSpec;

    use super::*;

    fn container(hash: &str, record: Option<&str>) -> Container {
        let mut labels = HashMap::from([
            (POD_UID.to_owned(), "uid".to_owned()),
            (CONTAINER_NAME.to_owned(), "main".to_owned()),
        ]);
        labels.extend(record.map(|text| (LABEL.to_owned(), text.to_owned())));
        Container {
            id: "c1".into(),
            state: ContainerState::ContainerRunning.into(),
            image_ref: "sha256:1".into(),
            annotations: [(hash::ANNOTATION.to_owned(), hash.to_owned())].into(),
            labels,
            ..Default::default()
        }
    }

    fn pods(image: &str) -> Pods {
        let images = vec![("main".to_owned(), image.to_owned()), ("other".to_owned(), "x".to_owned())];
        [PodImages { uid: "mirror".into(), mirror_of: Some("uid".into()), images }].into_iter().collect()
    }

    /// A tenant's annotation must not decide about another's containers.
    #[test]
    fn nobody_speaks_for_another_pod() {
        let pod = |uid: &str, of: Option<&str>, image: &str| PodImages {
            uid: uid.into(),
            mirror_of: of.map(str::to_owned),
            images: vec![("main".into(), image.into())],
        };
        let judged = |pods: Vec<PodImages>| judge(&container("deadbeef", None), &pods.into_iter().collect());
        let is_of =
            |verdict, wanted: &str| matches!(verdict, Verdict::IfSame { image, .. } if image == wanted);
        let (own, evil) = (pod("uid", None, "own:1"), pod("evil", Some("uid"), "evil:1"));
        assert!(is_of(judged(vec![own.clone(), evil.clone()]), "own:1"));
        assert!(is_of(judged(vec![evil.clone(), own]), "own:1"));
        assert!(is_of(judged(vec![evil.clone()]), "evil:1"));
        assert_eq!(judged(vec![evil, pod("mirror", Some("uid"), "own:1")]), Verdict::Unknown);
    }

    #[test]
    fn a_container_of_a_new_kubelet_stays_as_it_is() {
        let hash = hash::of_name_and_image("main", "busybox:1.35");
        assert_eq!(judge(&container(&hash, None), &pods("busybox:1.35")), Verdict::AsItIs);
        assert_eq!(
            judge(&container(&hash, Some(r#"{"image":"busybox:1.35"}"#)), &Pods::default()),
            Verdict::AsItIs
        );
    }

    #[test]
    fn a_foreign_hash_is_judged_by_the_pod_if_the_image_is_the_same() {
        let expected = hash::of_name_and_image("main", "busybox:1.35");
        let verdict = judge(&container("deadbeef", None), &pods("busybox:1.35"));
        let same = Verdict::IfSame { image: "busybox:1.35".into(), id: "sha256:1".into(), hash: expected };
        assert_eq!(verdict, same);
        let mut newer = container("deadbeef", None);
        newer.image_id = "sha256:2".into();
        assert!(matches!(judge(&newer, &pods("x")), Verdict::IfSame { id, .. } if id == "sha256:2"));
    }

    #[test]
    fn a_record_says_more_than_the_pod() {
        let verdict =
            judge(&container("deadbeef", Some(r#"{"v":9,"image":"old:1","new":{}}"#)), &pods("new:2"));
        assert_eq!(verdict, Verdict::Answer(hash::of_name_and_image("main", "old:1")));
    }

    #[test]
    fn the_runtime_says_more_than_the_pod_and_less_than_a_record() {
        let spec = ImageSpec {
            image: "sha256:1".into(),
            user_specified_image: "old:1".into(),
            ..ImageSpec::default()
        };
        let mut told = container("deadbeef", None);
        told.image = Some(spec.clone());
        assert_eq!(judge(&told, &pods("new:2")), Verdict::Answer(hash::of_name_and_image("main", "old:1")));
        let mut recorded = container("deadbeef", Some(r#"{"image":"older:1"}"#));
        recorded.image = Some(spec);
        assert_eq!(
            judge(&recorded, &pods("new:2")),
            Verdict::Answer(hash::of_name_and_image("main", "older:1"))
        );
    }

    #[test]
    fn what_nobody_knows_stays_unknown() {
        assert_eq!(judge(&container("deadbeef", None), &Pods::default()), Verdict::Unknown);
        for hostile in ["", "{", "[]", "{\"image\":7}", "{\"image\":\"\"}", "{\"image\":\"sha256:1\"}"] {
            assert_eq!(judge(&container("deadbeef", Some(hostile)), &Pods::default()), Verdict::Unknown);
        }
    }

    #[test]
    fn only_living_containers_of_a_kubelet_matter() {
        assert!(matters(&container("1", None)));
        let mut dead = container("1", None);
        dead.state = ContainerState::ContainerExited.into();
        let (mut no_uid, mut no_hash) = (container("1", None), container("1", None));
        no_uid.labels.remove(POD_UID);
        no_hash.annotations.clear();
        assert!(![dead, no_uid, no_hash].iter().any(matters));
    }
}
