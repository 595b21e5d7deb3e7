use std::collections::HashSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn image(id: &str, tags: &[&str], digests: &[&str]) -> view::Image {
    let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    view::Image { id: id.into(), repo_tags: all(tags), repo_digests: all(digests), pinned: false }
}

fn pin(name: &str) -> Pin {
    let text = |text: &str| text.to_owned();
    Pin { name: text(name), image_id: None, owner: text("ops"), until: text("noon"), item: text("7") }
}

fn shown(sight: &Sight, image: &view::Image) -> Shown {
    sight.show([image])[0]
}

fn remembers_nothing(sight: &Sight) -> bool {
    let Hiding { brought, pulls, claims, .. } = &sight.state().hiding;
    brought.is_empty() && pulls.is_empty() && claims.is_empty()
}

#[test]
fn names_are_compared_as_runtimes_list_them() {
    let digest = format!("sha256:{HEX}");
    for (name, key) in [
        ("nginx".to_owned(), "docker.io/library/nginx:latest".to_owned()),
        ("quay.io/a/b:1".into(), "quay.io/a/b:1".into()),
        (format!("quay.io/a/b:1@{digest}"), format!("quay.io/a/b@{digest}")),
        (format!("b@{digest}"), format!("docker.io/library/b@{digest}")),
        ("Not A Name".into(), "Not A Name".into()),
    ] {
        assert_eq!(Name::of(&name).key, key);
    }
}

#[test]
fn the_table_says_when_there_is_nothing_to_do() {
    let sight = Sight::default();
    assert!(sight.is_empty());
    sight.set_pins([pin("a")]);
    assert!(!sight.is_empty() && sight.changes_images());
    sight.set_pins([]);
    assert!(sight.is_empty());
    sight.map_name("a", "b");
    assert!(!sight.is_empty() && !sight.changes_images());
    sight.unmap("docker.io/library/a");
    assert!(sight.is_empty());
    let guard = sight.watch(["a"]);
    assert!(sight.is_empty(), "nothing is hidden yet");
    guard.hide_new(["x"]);
    assert!(sight.changes_images());
    drop(guard);
    let guard = sight.hide(["a"]);
    assert!(!sight.is_empty());
    drop(guard);
    assert!(sight.is_empty());
}

#[test]
fn a_pin_is_found_by_tag_digest_and_id() {
    let sight = Sight::default();
    let digest = format!("docker.io/library/d@sha256:{HEX}");
    let by_id = Pin { image_id: Some("sha256:0011".into()), ..pin("c") };
    sight.set_pins([pin("nginx"), pin(&format!("d:tag@sha256:{HEX}")), by_id]);
    assert_eq!(shown(&sight, &image("1", &["docker.io/library/nginx:latest"], &[])), Shown::Pinned);
    assert_eq!(shown(&sight, &image("2", &[], &[&digest])), Shown::Pinned);
    assert_eq!(shown(&sight, &image("sha256:0011", &["x.io/c:2"], &[])), Shown::Pinned);
    assert_eq!(shown(&sight, &image("0011", &[], &[])), Shown::Pinned, "as CRI-O has IDs");
    assert_eq!(shown(&sight, &image("3", &["docker.io/library/nginx:1"], &[])), Shown::AsItIs);
    assert_eq!(shown(&sight, &image("4", &["docker.io/library/d:tag"], &[])), Shown::AsItIs);
}

#[test]
fn what_is_to_be_removed_is_found_by_all_names_of_a_pinned_image() {
    let sight = Sight::default();
    sight.set_pins([pin("nginx")]);
    let (tag, second) = ("docker.io/library/nginx:latest", "quay.io/other:1");
    let digest = format!("docker.io/library/nginx@sha256:{HEX}");
    let id = format!("sha256:{HEX}");
    let names = ["nginx", "docker.io/nginx", tag, "nginx:latest"];
    let only_seen = [second, &digest, &format!("nginx:1@sha256:{HEX}"), &id, HEX, &HEX[..8], &id[..20]];
    for name in names {
        assert_eq!(sight.pins_of(name).len(), 1, "{name}");
    }
    for name in only_seen {
        assert!(sight.pins_of(name).is_empty(), "{name} is not known yet");
    }
    shown(&sight, &image(&id, &[tag, second], &[&digest]));
    for name in names.into_iter().chain(only_seen) {
        assert_eq!(sight.pins_of(name).len(), 1, "{name}");
    }
    for name in ["nginx:1", "quay.io/other", &HEX[..7], &HEX[1..], "", "sha256:", "ffffffff"] {
        assert!(sight.pins_of(name).is_empty(), "{name}");
    }
    // Two owners of one image, by two of its names.
    sight.set_pins([pin("nginx"), pin(second), Pin { image_id: Some(id.clone()), ..pin("third") }]);
    assert_eq!(sight.pins_of(second).len(), 3);
    sight.set_pins([pin("third")]);
    assert!(sight.pins_of(&id).is_empty(), "the pin has ended, whatever was seen");
    sight.set_pins([pin("nginx")]);
    sight.forget_others(&HashSet::from([id.clone()]));
    assert_eq!(sight.pins_of(&id).len(), 1);
    sight.forget_others(&HashSet::new());
    assert!(sight.pins_of(&id).is_empty(), "it was not in the last list");
}

#[test]
fn hidden_is_what_has_only_hidden_names() {
    let sight = Sight::default();
    let exact = format!("r.io/exact@sha256:{HEX}");
    let guard = sight.hide(["r.io/a:1", &exact]);
    let digest = |repository: &str| format!("r.io/{repository}@sha256:0123");
    let hidden = [
        image("1", &["r.io/a:1"], &[]),
        image("1", &["r.io/a:1"], &[&digest("a")]),
        image("1", &[], &[&digest("a")]),
        image("1", &[], &[&exact]),
        image("1", &["r.io/a:1"], &[&digest("a"), &exact]),
    ];
    let visible = [
        image("1", &[], &[]),
        image("1", &["r.io/a:2"], &[&digest("a")]),
        image("1", &["r.io/a:1", "r.io/b:1"], &[]),
        image("1", &["r.io/a:1"], &[&digest("b")]),
        image("1", &[], &[&digest("exact")]),
    ];
    for image in &hidden {
        assert_eq!(shown(&sight, image), Shown::Hidden, "{image:?}");
    }
    for image in &visible {
        assert_eq!(shown(&sight, image), Shown::AsItIs, "{image:?}");
    }
    let other = sight.hide(["r.io/b:1"]);
    assert_eq!(shown(&sight, &visible[2]), Shown::Hidden, "each name by one of two guards");
    drop(guard);
    for image in hidden.iter().chain(&visible) {
        assert_eq!(shown(&sight, image), Shown::AsItIs, "{image:?}");
    }
    drop(other);
}

#[test]
fn what_was_there_before_stays_visible_and_what_has_no_name_may_be_new() {
    let sight = Sight::default();
    let guard = sight.watch(["r.io/a:1"]);
    guard.hide_new(["sha256:old", "nameless"]);
    assert_eq!(shown(&sight, &image("old", &[], &["r.io/a@sha256:0"])), Shown::AsItIs);
    assert_eq!(shown(&sight, &image("sha256:nameless", &[], &[])), Shown::AsItIs);
    assert_eq!(shown(&sight, &image("new", &[], &[])), Shown::Hidden);
    assert_eq!(shown(&sight, &image("new", &["r.io/a:1"], &[])), Shown::Hidden);
    assert_eq!(shown(&sight, &image("new", &["r.io/a:2"], &[])), Shown::AsItIs);
    sight.brought("r.io/z", Some("sha256:new"));
    assert_eq!(shown(&sight, &image("new", &[], &[])), Shown::AsItIs);
}

#[test]
fn what_others_bring_is_visible_and_stays() {
    let sight = Sight::default();
    sight.brought("r.io/a:1", Some("before"));
    let tagged = image("sha256:x", &["r.io/a:1"], &["r.io/a@sha256:1"]);
    let guard = sight.hide(["r.io/a:1"]);
    assert_eq!(shown(&sight, &tagged), Shown::Hidden);
    assert!(!guard.was_brought(Some("before")) && !guard.was_brought(None), "that was before");

    sight.brought("r.io/mirror:1", Some("sha256:x"));
    assert_eq!(shown(&sight, &tagged), Shown::AsItIs, "by its ID");
    assert!(guard.was_brought(Some("x")) && guard.was_brought(Some("sha256:x")));
    assert!(!guard.was_brought(None) && !guard.was_brought(Some("y")));

    let later = sight.hide(["r.io/a:1"]);
    assert_eq!(shown(&sight, &tagged), Shown::Hidden, "by the guard that was taken since");
    assert!(!later.was_brought(Some("x")));
    sight.brought("r.io/a:1", None);
    assert!(guard.was_brought(None) && later.was_brought(None));
    assert_eq!(shown(&sight, &tagged), Shown::AsItIs, "by its name");

    let third = sight.hide(["r.io/a:1"]);
    drop((guard, later));
    sight.brought(
        "other",
        Some("r.io/a:1@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    );
    let digest = format!("r.io/a@sha256:{HEX}");
    assert_eq!(shown(&sight, &image("x", &[], &[&digest])), Shown::AsItIs, "by what CRI-O calls an image");
    drop(third);
    assert!(remembers_nothing(&sight));
}

#[test]
fn what_is_remembered_is_bounded() {
    let sight = Sight::default();
    let guard = sight.watch(["r.io/a:1"]);
    for n in 0..MAX_BROUGHT {
        sight.brought("r.io/z", Some(&format!("id{n}")));
    }
    assert!(guard.was_brought(Some(&format!("id{}", MAX_BROUGHT - 1))));
    assert!(guard.was_brought(Some("id1")));
    assert!(!guard.was_brought(Some("id0")), "the oldest went");
}

/// How a future stands after it had every chance to move on by itself.
async fn ready<F: Future>(future: F) -> Option<F::Output> {
    tokio::time::timeout(Duration::from_secs(3600), future).await.ok()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_removed_while_others_pull_and_nobody_pulls_while_it_is_removed() {
    let sight = Sight::default();
    let guard = sight.hide(["r.io/a:1"]);
    let elsewhere = sight.pulling("r.io/b:1").await;
    let pulling = sight.pulling("r.io/a:2").await;
    assert!(ready(guard.claim(None)).await.is_none(), "somebody pulls from the repository");
    let (claim, ()) = tokio::join!(guard.claim(None), async { drop(pulling) });
    let claim = claim.unwrap();
    assert!(ready(sight.pulling("r.io/a:1")).await.is_none(), "it is being removed");
    drop(ready(sight.pulling("r.io/c:1")).await.unwrap());
    let (pulling, ()) = tokio::join!(sight.pulling("r.io/a:1"), async { drop(claim) });
    let (claim, ()) = tokio::join!(guard.claim(Some("sha256:x")), async {
        sight.brought("r.io/a:1", Some("sha256:x"));
        drop(pulling);
    });
    assert!(claim.is_none(), "it was brought");
    drop(sight.pulling("no name at all!").await);
    drop((elsewhere, guard));
    assert!(remembers_nothing(&sight));
}

proptest! {
    /// The rule in the words of its definition, against the table with one guard.
    #[test]
    fn an_image_is_hidden_exactly_if_all_its_names_are(
        hidden in proptest::collection::hash_set(0..4_u8, 0..4),
        tags in proptest::collection::vec(0..4_u8, 0..3),
        digests in proptest::collection::vec(0..4_u8, 0..3),
        brought in proptest::option::of(0..4_u8),
    ) {
        let sight = Sight::default();
        let tag = |n: &u8| format!("r.io/{n}:1");
        let _guard = sight.hide(hidden.iter().map(tag));
        if let Some(n) = &brought {
            sight.brought(&tag(n), None);
        }
        let digest = |n: &u8| format!("r.io/{n}@sha256:{HEX}");
        let image = view::Image {
            id: "x".into(),
            repo_tags: tags.iter().map(tag).collect(),
            repo_digests: digests.iter().map(digest).collect(),
            pinned: false,
        };
        let expected = (!tags.is_empty() || !digests.is_empty())
            && tags.iter().chain(&digests).all(|n| hidden.contains(n))
            && brought.is_none_or(|n| !tags.contains(&n));
        prop_assert_eq!(shown(&sight, &image) == Shown::Hidden, expected);
    }
}
