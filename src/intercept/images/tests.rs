use futures_util::FutureExt;
use k8s_cri::v1;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::prepull::Pin;

fn feature(sight: &Sight) -> Images {
    let nobody: RuntimeCall = Arc::new(|_, _, _| {
        async { Err(Error::new(Kind::Unavailable, Origin::Runtime, "nobody there")) }.boxed()
    });
    Images::new(sight.clone(), nobody, Metrics::new())
}

fn pin(name: &str) -> Pin {
    let (owner, until, item) = (String::new(), String::new(), String::new());
    Pin { name: name.to_owned(), image_id: None, owner, until, item }
}

/// Names from a small world, so that they meet.
fn any_image() -> impl Strategy<Value = v1::Image> {
    let tag = (0..3_u8, 0..3_u8).prop_map(|(repository, tag)| format!("r.io/{repository}:{tag}"));
    let digest = (0..3_u8, 0..3_u8).prop_map(|(repository, digest)| {
        format!("r.io/{repository}@sha256:{}", format!("{digest:x}").repeat(64))
    });
    ("[0-9a-f]{4}", vec(tag, 0..3), vec(digest, 0..3), any::<u64>(), any::<bool>()).prop_map(
        |(id, repo_tags, repo_digests, size, pinned)| v1::Image {
            id: format!("sha256:{id}"),
            repo_tags,
            repo_digests,
            size,
            username: "somebody".into(),
            pinned,
            ..v1::Image::default()
        },
    )
}

proptest! {
    #[test]
    fn a_list_changes_only_in_what_is_pinned_and_what_is_hidden(
        images in vec(any_image(), 0..12),
        pinned in vec((0..3_u8, 0..3_u8), 0..3),
        hidden in vec((0..3_u8, 0..3_u8), 0..4),
    ) {
        let sight = Sight::default();
        let name = |(repository, tag): &(u8, u8)| format!("r.io/{repository}:{tag}");
        let (pinned, hidden): (Vec<_>, Vec<_>) = (pinned.iter().map(name).collect(), hidden.iter().map(name).collect());
        sight.set_pins(pinned.iter().map(|name| pin(name)));
        let _guard = sight.hide(&hidden);
        // An unknown field behind each image and one in each.
        let mut message = Vec::new();
        for image in &images {
            let mut bytes = image.encode_to_vec();
            bytes.extend(b"\xba\x3e\x02ab");
            prost::encoding::bytes::encode(1, &bytes, &mut message);
            message.extend(b"\xc0\x3e\x07");
        }
        let message = Bytes::from(message);
        let mut listed = HashSet::new();
        let patched = feature(&sight).show_list(&message, &mut listed).unwrap().apply(&message).unwrap();

        let is_hidden = |image: &v1::Image| {
            let of_hidden = |digest: &String| {
                hidden.iter().any(|name| name.split(':').next() == digest.split('@').next())
            };
            !(image.repo_tags.is_empty() && image.repo_digests.is_empty())
                && image.repo_tags.iter().all(|tag| hidden.contains(tag))
                && image.repo_digests.iter().all(of_hidden)
        };
        let is_pinned = |image: &v1::Image| image.repo_tags.iter().any(|tag| pinned.contains(tag));
        let expected: Vec<_> = images
            .iter()
            .filter(|image| !is_hidden(image))
            .map(|image| v1::Image { pinned: image.pinned || is_pinned(image), ..image.clone() })
            .collect();
        let changed = expected != images;
        let got = v1::ListImagesResponse::decode(patched.clone()).unwrap();
        let kept = |needle: &[u8]| memchr::memmem::find_iter(&patched, needle).count();
        prop_assert_eq!(kept(b"\xba\x3e\x02ab"), expected.len());
        prop_assert_eq!(kept(b"\xc0\x3e\x07"), images.len());
        prop_assert_eq!(got.images, expected);
        prop_assert_eq!(changed, patched != message);
    }

    #[test]
    fn no_bytes_are_too_odd(message in vec(any::<u8>(), 0..60)) {
        let sight = Sight::default();
        sight.set_pins([pin("a")]);
        let (images, message) = (feature(&sight), Bytes::from(message));
        let patches = [images.show_list(&message, &mut HashSet::new()), images.show_status(&message)];
        for patch in patches.into_iter().flatten() {
            prop_assert_eq!(patch.apply(&message).ok(), Some(message.clone()));
        }
    }
}
