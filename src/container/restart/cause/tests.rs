use super::*;
use crate::container::restart::Shown;

fn difference() -> Difference {
    let text = |text: &str| Shown::Text(text.to_owned());
    Difference { path: "resources.memoryLimit".to_owned(), old: text("1"), new: text("2") }
}

fn previous() -> Previous {
    Previous {
        sandbox: "s1".to_owned(),
        hash: Some("aa".to_owned()),
        image: Some("nginx:1".to_owned()),
        image_ids: Vec::new(),
        exit: Some(Exit { code: 3, reason: "Error".to_owned() }),
        stopped: false,
    }
}

fn created() -> Created {
    Created {
        sandbox: "s1".to_owned(),
        hash: Some("aa".to_owned()),
        image: Some("nginx:1".to_owned()),
        image_id: "sha256:11".to_owned(),
        attempt: 1,
        differences: Some(Vec::new()),
    }
}

#[test]
fn each_cause_has_its_rule() {
    let cause = |previous: &Previous, created: &Created| classify(Some(previous), created).unwrap();
    let exit =
        |code, reason: &str| Previous { exit: Some(Exit { code, reason: reason.to_owned() }), ..previous() };
    let crashed = |exit_code| Cause::Crashed { exit_code, reason: "Error".to_owned() };
    assert_eq!(cause(&previous(), &created()), crashed(3));
    assert_eq!(cause(&exit(0, "Completed"), &created()), Cause::Completed);
    assert_eq!(cause(&exit(137, "OOMKilled"), &created()), Cause::OomKilled);
    assert_eq!(cause(&Previous { exit: None, ..previous() }, &created()), Cause::Unknown);

    let stopped = Previous { stopped: true, ..exit(137, "Error") };
    assert_eq!(cause(&stopped, &created()), Cause::Stopped);
    assert_eq!(cause(&Previous { exit: None, ..stopped.clone() }, &created()), Cause::Stopped);
    let resized = Created { differences: Some(vec![difference()]), ..created() };
    assert_eq!(cause(&stopped, &resized), Cause::SpecChanged);
    // A probe failed after a Secret was edited: kubelets do not end a container for that.
    for path in ["env.PASSWORD", "spec", "resourcesOfSomeKind", "other.resources"] {
        let edited = Difference { path: path.to_owned(), old: Shown::Hidden, new: Shown::Hidden };
        let edited = Created { differences: Some(vec![edited]), ..created() };
        assert_eq!(cause(&stopped, &edited), Cause::Stopped, "{path}");
    }
    // Resized in place and crashed later: the crash is the cause.
    assert_eq!(cause(&previous(), &resized), crashed(3));
    assert_eq!(cause(&Previous { stopped: true, ..exit(137, "OOMKilled") }, &created()), Cause::OomKilled);

    let image = Created { image: Some("nginx:2".to_owned()), differences: None, ..created() };
    assert_eq!(cause(&previous(), &image), Cause::SpecChanged);
    let hash = Created { hash: Some("bb".to_owned()), ..created() };
    assert_eq!(cause(&previous(), &hash), Cause::HashOnly);
    assert_eq!(cause(&previous(), &Created { differences: None, ..hash.clone() }), Cause::SpecChanged);
    assert_eq!(
        cause(&previous(), &Created { differences: resized.differences.clone(), ..hash.clone() }),
        Cause::SpecChanged
    );
    // Without a record the image decides.
    let no_record = Created { differences: None, ..hash.clone() };
    for (ids, expected) in [
        (&[][..], Cause::SpecChanged),
        (&["", "sha256:22"], Cause::SpecChanged),
        (&["nginx@sha256:99", "sha256:11"], Cause::HashOnly),
        (&["11"], Cause::HashOnly),
    ] {
        let image_ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        let old = Previous { image: None, image_ids, ..previous() };
        assert_eq!(cause(&old, &no_record), expected, "{ids:?}");
        // Nobody says which image it is.
        let nameless = Created { image_id: String::new(), ..no_record.clone() };
        assert_eq!(cause(&old, &nameless), Cause::SpecChanged, "{ids:?}");
        // A record knows better.
        let different = Created { differences: resized.differences.clone(), ..hash.clone() };
        assert_eq!(cause(&old, &different), Cause::SpecChanged, "{ids:?}");
    }
    // What is not known does not count as changed.
    assert_eq!(cause(&Previous { hash: None, ..previous() }, &hash), crashed(3));
    assert_eq!(
        cause(&Previous { image: None, ..previous() }, &Created { hash: None, ..image.clone() }),
        crashed(3)
    );

    let sandbox = Created { sandbox: "s2".to_owned(), ..image };
    assert_eq!(cause(&exit(137, "OOMKilled"), &sandbox), Cause::SandboxRecreated);

    assert_eq!(classify(None, &Created { attempt: 0, ..created() }), None);
    assert_eq!(classify(None, &created()), Some(Cause::Unknown));
}

#[test]
fn causes_are_told_in_words() {
    let crashed = |exit_code, reason: &str| Cause::Crashed { exit_code, reason: reason.to_owned() };
    for (cause, label, words) in [
        (Cause::SpecChanged, "spec-changed", "its spec changed"),
        (Cause::HashOnly, "hash-only", "the spec is the same"),
        (Cause::SandboxRecreated, "sandbox-recreated", "sandbox was made again"),
        (Cause::OomKilled, "oom-killed", "out of memory"),
        (Cause::Stopped, "stopped", "the kubelet stopped it"),
        (crashed(3, "Error"), "crashed", "it ended with exit code 3 (Error)"),
        (crashed(3, ""), "crashed", "it ended with exit code 3"),
        (crashed(139, "Error"), "crashed", "it ended with exit code 139 (SIGSEGV)"),
        (crashed(128, "StartError"), "crashed", "it ended with exit code 128 (StartError)"),
        (crashed(137, "ContainerStatusUnknown"), "crashed", "137 (SIGKILL, ContainerStatusUnknown)"),
        (crashed(i32::MIN, ""), "crashed", "-2147483648"),
        (Cause::Completed, "completed", "exit code 0"),
        (Cause::Unknown, "unknown", "nothing is known"),
    ] {
        assert_eq!(cause.as_str(), label);
        assert!(cause.to_string().contains(words), "{cause}");
        let json = serde_json::to_string(&cause).unwrap();
        assert_eq!(serde_json::from_str::<Cause>(&json).unwrap(), cause, "{json}");
    }
    let json = serde_json::to_string(&crashed(3, "Error")).unwrap();
    assert_eq!(json, r#"{"kind":"crashed","exitCode":3,"reason":"Error"}"#);
}

#[test]
fn a_sentence_lists_what_changed() {
    let one = [difference()];
    assert_eq!(sentence(&Cause::SpecChanged, &one), "its spec changed: resources.memoryLimit: 1 → 2");
    assert!(sentence(&Cause::SpecChanged, &[]).contains("no record to compare with"));
    assert_eq!(
        sentence(&Cause::Completed, &one),
        "it ended by itself with exit code 0; since then changed: resources.memoryLimit: 1 → 2"
    );
    let many = sentence(&Cause::SpecChanged, &vec![difference(); 50]);
    assert!(many.ends_with("; and 45 more"), "{many}");
}

#[test]
fn a_hostile_reason_stays_on_its_line() {
    let exit = Exit { code: 1, reason: format!("\u{1b}[2J\n{}", "x".repeat(10_000)) };
    let cause = classify(Some(&Previous { exit: Some(exit), ..previous() }), &created()).unwrap();
    let words = cause.to_string();
    assert!(words.len() < 300 && !words.chars().any(char::is_control), "{words}");
}
