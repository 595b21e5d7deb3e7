use bytes::Bytes;
use k8s_cri::v1::CreateContainerRequest;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::container::keys::Key;
use crate::container::record::tests::properties::{CHANGES, MARK, any_request, change};
use crate::container::record::tests::requests::{SECRET, bytes, request, variable};

fn of(message: &Bytes) -> Record {
    Record::of(message, &Key::known(7), false).unwrap()
}

/// What a change of the typical request looks like.
fn shown(change: impl FnOnce(&mut k8s_cri::v1::ContainerConfig)) -> Vec<String> {
    let mut changed = request();
    change(changed.config.as_mut().unwrap());
    let found = differences(&of(&bytes(&request())), &of(&bytes(&changed)));
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn differences_are_told_as_people_read_them() {
    assert_eq!(shown(|_| {}), Vec::<String>::new());
    let found = shown(|config| {
        config.image.as_mut().unwrap().user_specified_image = "registry.example.com/team/web:1.1".to_owned();
        config.args[1] = "--password=changed".to_owned();
        config.args.push("--new".to_owned());
        config.command.clear();
        config.envs = vec![variable("A", "2"), variable("C", "x")];
        config.mounts[0].readonly = false;
        config.mounts[1].container_path = "/data2".to_owned();
        config.devices[0].permissions = "r".to_owned();
        config.tty = false;
        config.annotations.insert("io.kubernetes.container.preStopHandler".to_owned(), "{}".to_owned());
        let linux = config.linux.as_mut().unwrap();
        linux.resources.as_mut().unwrap().memory_limit_in_bytes = 1 << 29;
        linux.resources.as_mut().unwrap().unified.clear();
        let security = linux.security_context.as_mut().unwrap();
        security.run_as_user = None;
        security.capabilities.as_mut().unwrap().add_capabilities.remove(0);
    });
    assert_eq!(
        found,
        [
            "image: registry.example.com/team/web:1.0 → registry.example.com/team/web:1.1",
            "args[1]: changed",
            "args[2]: added",
            "command[0]: removed",
            "devices[\"/dev/fuse\"].permissions: mrw → r",
            "env.A: changed",
            "env.B: removed",
            "env.C: added",
            "mounts[\"/data\"]: {host: /mnt/data, propagation: bidirectional} → none",
            "mounts[\"/data2\"]: none → {host: /mnt/data, propagation: bidirectional}",
            "mounts[\"/etc/tls\"].readonly: true → none",
            "preStop: changed",
            "resources.memoryLimit: 268435456 → 536870912",
            "resources.unified: {memory.oom.group: 1} → none",
            "security.capabilities.add: [CHOWN, NET_ADMIN] → [CHOWN]",
            "security.runAsUser: 0 → none",
            "tty: true → none",
        ]
    );
}

#[test]
fn a_section_that_is_new_is_told_part_by_part() {
    let found = shown(|config| {
        config.linux = None;
        config.envs.clear();
        config.devices.clear();
    });
    for part in ["env.A: removed", "resources.cpuQuota: 50000 → none", "security.noNewPrivs: true → none"]
    {
        assert!(found.iter().any(|line| line == part), "{part}: {found:#?}");
    }
}

#[test]
fn long_values_are_cut_where_they_differ() {
    let long = |end: &str| format!("/{}{end}", "x".repeat(500));
    let mut old = request();
    old.config.as_mut().unwrap().working_dir = long("old");
    let mut new = request();
    new.config.as_mut().unwrap().working_dir = long("new");
    let found = differences(&of(&bytes(&old)), &of(&bytes(&new)));
    let x = "x".repeat(20);
    assert_eq!(found[0].to_string(), format!("workingDir: …{x}old → …{x}new"));
    new.config.as_mut().unwrap().working_dir = "\u{1b}[2J\n\u{202e}".repeat(100);
    let line = differences(&of(&bytes(&old)), &of(&bytes(&new)))[0].to_string();
    assert!(line.chars().count() < 400 && !line.chars().any(|c| c.is_control() || c == '\u{202e}'), "{line}");
}

#[test]
fn no_more_than_people_read() {
    let mut many = request();
    many.config.as_mut().unwrap().envs = (0..1000).map(|n| variable(&format!("V{n}"), "x")).collect();
    let found = differences(&of(&bytes(&request())), &of(&bytes(&many)));
    assert_eq!(found.len(), MAX_DIFFERENCES);
    let text = serde_json::to_string(&found).unwrap();
    assert!(text.len() < 64 << 10);
    assert_eq!(serde_json::from_str::<Vec<Difference>>(&text).unwrap(), found);
}

#[test]
fn what_cannot_be_compared_is_not_guessed() {
    let message = bytes(&request());
    let others_key = Record::of(&message, &Key::known(8), false).unwrap();
    let clear = Record::of(&message, &Key::known(7), true).unwrap();
    for other in [others_key, clear] {
        assert_eq!(differences(&of(&message), &other), []);
        assert_eq!(differences(&other, &of(&message)), []);
    }
    // In the old one's form, all can.
    let mut changed = request();
    changed.config.as_mut().unwrap().args[0] = "--listen=:8080".to_owned();
    let old = Record::of(&message, &Key::known(7), true).unwrap();
    let new = Record::of(&bytes(&changed), &Key::known(7), old.clear_args()).unwrap();
    assert_eq!(differences(&old, &new)[0].to_string(), "args[0]: --listen=:80 → --listen=:8080");
}

/// A field that came later, with a default that records write: an older record says nothing of it and means the default.
#[test]
fn a_new_field_with_its_default_makes_no_difference() {
    const SINCE: &[Since] = &[
        Since { version: 2, path: &["security", "procMount"], default: || Node::Text("default".to_owned()) },
        Since { version: 2, path: &["restartRules"], default: || Node::List(vec![Node::Flag(true)]) },
        Since { version: 1, path: &["v0had", "none"], default: || Node::Number(1) },
    ];
    let parse =
        |rest: &str| Record::parse(format!(r#"{{"v":1,"key":"k","image":"i"{rest}}}"#).as_bytes()).unwrap();
    // A record of version 2, as a later crisp would make it.
    let later = |rest: &str| Record::of_version(2, &parse(rest));
    let old = parse(r#","security":{"privileged":true}"#);
    let same = r#","security":{"privileged":true,"procMount":"default"},"restartRules":[true]"#;
    assert_eq!(compare(&old, &later(same), SINCE), []);
    let changed = same.replace("default", "unmasked");
    let found: Vec<_> = compare(&old, &later(&changed), SINCE).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["security.procMount: default → unmasked"]);
    // Two of one version are compared as they are; a section that is not there yet comes into being.
    assert_eq!(compare(&later(""), &later(same), SINCE).len(), 3);
    assert_eq!(
        compare(&parse(""), &later(r#","security":{"procMount":"default"},"restartRules":[true]"#), SINCE),
        []
    );
    // From before version 1, and with something odd where a section should be.
    let made_up = |rest: &str| Record::of_version(0, &parse(rest));
    assert_eq!(compare(&made_up(""), &parse(r#","v0had":{"none":1}"#), SINCE), []);
    let found: Vec<_> =
        compare(&made_up(r#","v0had":7"#), &parse(""), SINCE).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["v0had: 7 → none"]);
}

fn lines(old: &CreateContainerRequest, new: &CreateContainerRequest) -> Vec<Difference> {
    differences(&of(&bytes(old)), &of(&bytes(new)))
}

proptest! {
    #[test]
    fn one_change_is_one_difference(mut request in any_request(), kind in 0..CHANGES, at in any::<Index>()) {
        let before = request.clone();
        prop_assert_eq!(lines(&before, &before), []);
        let Some(path) = change(&mut request, kind, at) else { return Ok(()) };
        for (old, new) in [(&before, &request), (&request, &before)] {
            let found = lines(old, new);
            prop_assert_eq!(found.len(), 1, "{:?}", found);
            prop_assert_eq!(&found[0].path, &path);
            let shown = format!("{found:?}{}", found[0]);
            prop_assert!(!shown.contains(MARK));
        }
    }

    #[test]
    fn any_two_records_can_be_compared(
        a in any_request(),
        b in any_request(),
    ) {
        let found = lines(&a, &b);
        let shown = format!("{found:?}{}", found.iter().map(ToString::to_string).collect::<String>());
        prop_assert!(!shown.contains(MARK) && !shown.contains(SECRET));
        prop_assert_eq!(found.is_empty(), lines(&b, &a).is_empty());
    }
}
