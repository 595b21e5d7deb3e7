//! Tests of the arithmetic.

use std::time::Duration;

use proptest::collection::{hash_map, vec};
use proptest::prelude::*;

use super::*;
use crate::containerd::manifest::Blob;

fn blob(digest: &str, size: u64) -> Blob {
    Blob { digest: digest.into(), size }
}

fn image(layers: &[(&str, u64)]) -> Manifest {
    let layers = layers.iter().map(|(digest, size)| blob(digest, *size)).collect();
    Manifest { config: blob("config", 10), layers }
}

fn held(content: &[&str], ingests: &[&str], snapshots: bool) -> Held {
    let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
    Held { content: owned(content), ingests: owned(ingests), snapshots }
}

fn ingests(list: &[(&str, u64)]) -> HashMap<String, u64> {
    list.iter().map(|(digest, offset)| ((*digest).to_owned(), *offset)).collect()
}

fn done(progress: &Progress) -> Vec<u64> {
    progress.layers.iter().map(|layer| layer.done).collect()
}

#[test]
fn a_pull_goes_through_its_phases() {
    let image = image(&[("a", 100), ("b", 50), ("c", 7)]);
    let mut blobs = Blobs::default();
    let start = measure(&image, &blobs);
    assert_eq!((start.phase, start.bytes_done, start.bytes_total), (Phase::Downloading, 0, Some(157)));

    blobs.note(&image, &ingests(&[("a", 30), ("b", 20), ("other", 5)]), &["config".to_owned()]);
    let middle = measure(&image, &blobs);
    assert_eq!((middle.phase, done(&middle), middle.layers_done), (Phase::Downloading, vec![30, 20, 0], 0));

    blobs.note(&image, &ingests(&[("b", 40)]), &["a".to_owned(), "c".to_owned()]);
    let late = measure(&image, &blobs);
    assert_eq!((late.phase, done(&late), late.layers_done), (Phase::Downloading, vec![100, 40, 7], 2));

    blobs.note(&image, &ingests(&[]), &["b".to_owned()]);
    let end = measure(&image, &blobs);
    assert_eq!((end.phase, end.bytes_done, end.layers_done), (Phase::Unpacking, 157, 3));
}

#[test]
fn the_config_counts_for_the_phase_only() {
    let image = image(&[("a", 100)]);
    let mut blobs = Blobs::default();
    blobs.note(&image, &ingests(&[]), &["a".to_owned()]);
    let progress = measure(&image, &blobs);
    assert_eq!((progress.phase, progress.bytes_done), (Phase::Downloading, 100));
}

#[test]
fn an_image_without_layers_has_nothing_to_download() {
    let image = image(&[]);
    let mut blobs = Blobs::default();
    assert_eq!(measure(&image, &blobs).phase, Phase::Downloading);
    blobs.note(&image, &ingests(&[]), &["config".to_owned()]);
    let progress = measure(&image, &blobs);
    assert_eq!((progress.phase, progress.bytes_total, progress.layers_done), (Phase::Unpacking, Some(0), 0));
}

#[test]
fn an_ingest_that_is_being_committed_counts_as_before() {
    let image = image(&[("a", 100)]);
    let mut blobs = Blobs::default();
    blobs.note(&image, &ingests(&[("a", 100)]), &[]);
    blobs.note(&image, &ingests(&[]), &[]);
    assert_eq!(measure(&image, &blobs).bytes_done, 100);
    // But one that containerd starts anew, because the registry cannot resume, is told as it is.
    blobs.note(&image, &ingests(&[("a", 3)]), &[]);
    assert_eq!(measure(&image, &blobs).bytes_done, 3);
}

#[test]
fn without_a_manifest_only_the_phase_is_told() {
    for (held, phase) in [
        (held(&[], &[], false), Phase::Resolving),
        (held(&["index"], &["manifest-sha256:a"], false), Phase::Resolving),
        (held(&["schema1"], &["layer-sha256:a"], false), Phase::Downloading),
        (held(&["schema1"], &["layer-sha256:a"], true), Phase::Downloading),
        (held(&["schema1"], &[], true), Phase::Unpacking),
    ] {
        let progress = Progress::without_manifest(&held);
        assert_eq!((progress.phase, progress.bytes_total, progress.bytes_done), (phase, None, 0), "{held:?}");
        assert!(progress.layers.is_empty());
    }
}

#[test]
fn the_manifest_that_came_last_counts() {
    let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    let mut documents = Documents::default();
    documents.add("index".into(), None, at(9));
    documents.add("old".into(), Some(image(&[("a", 1)])), at(1));
    documents.add("new".into(), Some(image(&[("b", 1)])), at(2));
    let current = |content: &[&str]| {
        let manifest = documents.current(&held(content, &[], false));
        manifest.map(|manifest| manifest.layers[0].digest.clone())
    };
    assert_eq!(current(&["index"]), None);
    assert_eq!(current(&["index", "old"]).as_deref(), Some("a"));
    assert_eq!(current(&["new", "index", "old", "a", "b"]).as_deref(), Some("b"));
    for known in ["index", "old", "a", "b", "config"] {
        assert!(documents.knows(known), "{known}");
    }
    assert!(!documents.knows("c"));
}

/// Digests of a few blobs, so that manifests, ingests and whole blobs meet.
fn digest() -> impl Strategy<Value = String> {
    (0..12_u8).prop_map(|n| format!("sha256:{n}"))
}

fn any_image() -> impl Strategy<Value = Manifest> {
    let size = prop_oneof![0..1000_u64, any::<u64>()];
    hash_map(digest(), size, 0..8).prop_map(|layers| Manifest {
        config: blob("sha256:config", 10),
        layers: layers.into_iter().map(|(digest, size)| Blob { digest, size }).collect(),
    })
}

proptest! {
    /// Whatever containerd answers: no layer is more than whole, the sums are those of the layers, and the phase is
    /// Unpacking exactly when everything is there.
    #[test]
    fn progress_is_consistent(
        image in any_image(),
        polls in vec((hash_map(digest(), any::<u64>(), 0..6), vec(digest(), 0..4)), 0..6),
        config in any::<bool>(),
    ) {
        let mut blobs = Blobs::default();
        for (ingests, whole) in &polls {
            blobs.note(&image, ingests, whole);
        }
        if config {
            blobs.note(&image, &HashMap::new(), &["sha256:config".to_owned()]);
        }
        let progress = measure(&image, &blobs);
        prop_assert_eq!(progress.layers.len(), image.layers.len());
        let sum = |of: fn(&LayerProgress) -> u64| progress.layers.iter().map(of).fold(0, u64::saturating_add);
        prop_assert!(progress.layers.iter().all(|layer| layer.done <= layer.size));
        prop_assert_eq!(progress.bytes_done, sum(|layer| layer.done));
        prop_assert_eq!(progress.bytes_total, Some(sum(|layer| layer.size)));
        let seen_whole = |layer: &LayerProgress| polls.iter().any(|(_, whole)| whole.contains(&layer.digest));
        prop_assert_eq!(progress.layers_done, progress.layers.iter().filter(|l| seen_whole(l)).count());
        let complete = config && progress.layers_done == progress.layers.len();
        prop_assert_eq!(progress.phase == Phase::Unpacking, complete);
        prop_assert!(progress.phase != Phase::Resolving);
    }

    /// As long as no ingest shrinks, progress never does, in whatever order blobs come, vanish and appear.
    #[test]
    fn progress_never_goes_back_by_itself(
        image in any_image(),
        polls in vec((hash_map(digest(), 0..500_u64, 0..6), vec(digest(), 0..3)), 1..8),
    ) {
        let mut blobs = Blobs::default();
        let mut offsets = HashMap::<String, u64>::new();
        let (mut bytes, mut layers, mut phase) = (0, 0, Phase::Resolving);
        for (grown, whole) in &polls {
            // Only some of the ingests are seen with each poll, but each is at least where it was.
            for (digest, more) in grown {
                *offsets.entry(digest.clone()).or_default() += more;
            }
            let seen = grown.keys().map(|digest| (digest.clone(), offsets[digest])).collect();
            blobs.note(&image, &seen, whole);
            let now = measure(&image, &blobs);
            prop_assert!(now.bytes_done >= bytes && now.layers_done >= layers && now.phase >= phase);
            (bytes, layers, phase) = (now.bytes_done, now.layers_done, now.phase);
        }
    }

    /// No manifest makes the parser panic.
    #[test]
    fn any_bytes_are_read_or_not(data in vec(any::<u8>(), 0..200)) {
        let _ = Manifest::parse(&data);
    }
}
