use k8s_cri::v1::CreateContainerRequest;
use proptest::prelude::*;

use super::*;

pub(in crate::container) mod properties;
pub(in crate::container) mod requests;

use requests::{SECRET, bytes, request, variable, with};

fn of(message: &Bytes) -> Record {
    Record::of(message, &Key::known(7), false).unwrap()
}

fn json(message: &Bytes) -> String {
    of(message).json()
}

/// Labels of running containers are in this form: it must not change without a new version.
#[test]
fn the_canonical_form_is_what_it_always_was() {
    let expected = concat!(
        r#"{"args":["~5PZ14fVXeUtya5Gqnt3PtQ","~DKMExUXiPWV2Mc_VHglu6Q"],"#,
        r#""cdi":["vendor.com/gpu=0","vendor.com/gpu=1"],"#,
        r#""command":["~e6anxkFHB48FmYJktj0wmw"],"#,
        r#""devices":{"/dev/fuse":{"host":"/dev/fuse","permissions":"mrw"}},"#,
        r#""env":{"A":"~RiP_Qzn9nqnvJz7T-tXPXA","B":"~hRhtfX5ZpMPaU2OdVMBd8Q"},"#,
        r#""image":"registry.example.com/team/web:1.0","key":"ls68-Hlx","#,
        r#""mounts":{"/data":{"host":"/mnt/data","propagation":"bidirectional"},"#,
        r#""/dev/termination-log":{"host":"pod:termination-log"},"/etc/hosts":{"host":"pod:etc-hosts"},"#,
        r#""/etc/tls":{"host":"pod:volumes/kubernetes.io~secret/tls","readonly":true},"#,
        r#""/var/run/secrets/kubernetes.io/serviceaccount":{"host":"pod:token"}},"#,
        r#""ports":[{"containerPort":80,"name":"http","protocol":"TCP"}],"#,
        r#""preStop":"~zq_7CvdHKp72EsR4twDQiw","#,
        r#""resources":{"cpuPeriod":100000,"cpuQuota":50000,"cpuShares":512,"#,
        r#""hugepages":{"2MB":2097152},"memoryLimit":268435456,"oomScoreAdj":-997,"#,
        r#""unified":{"memory.oom.group":"1"}},"#,
        r#""security":{"capabilities":{"add":["CHOWN","NET_ADMIN"],"drop":["ALL"]},"#,
        r#""maskedPaths":["/proc/acpi","/proc/kcore"],"namespaces":{"pid":"container"},"noNewPrivs":true,"#,
        r#""readonlyPaths":["/proc/bus"],"readonlyRootfs":true,"runAsGroup":1000,"runAsUser":0,"#,
        r#""seccomp":"runtime/default","selinux":{"level":"s0:c1,c2"},"supplementalGroups":[1000,2000]},"#,
        r#""tty":true,"v":1,"workingDir":"/srv"}"#,
    );
    assert_eq!(json(&bytes(&request())), expected);
}

/// As the help of `record.maxBody` says.
#[test]
fn the_largest_file_is_the_largest_that_can_be_asked_for() {
    assert_eq!(MAX_BODY, 4 << 20);
}

#[test]
fn the_smallest_record() {
    let text = r#"{"image":"","key":"ls68-Hlx","v":1}"#;
    assert_eq!(json(&Bytes::new()), text);
    assert_eq!(Label::parse(text).unwrap(), Label::Inline(of(&Bytes::new())));
}

#[test]
fn what_varies_by_attempt_makes_no_record_of_its_own() {
    let mut other = request();
    other.pod_sandbox_id = "77aa".to_owned();
    let config = other.config.as_mut().unwrap();
    config.metadata.as_mut().unwrap().attempt = 7;
    config.log_path = "web/7.log".to_owned();
    config.envs.reverse();
    config.annotations.insert("io.kubernetes.container.restartCount".to_owned(), "7".to_owned());
    config.annotations.insert("io.kubernetes.container.hash".to_owned(), "0".to_owned());
    config.labels.insert(LABEL.to_owned(), "{}".to_owned());
    config.image.as_mut().unwrap().image = "sha256:0".to_owned();
    let resources = config.linux.as_mut().unwrap().resources.as_mut().unwrap();
    resources.cpuset_cpus = "0,2".to_owned();
    resources.cpuset_mems = "1".to_owned();
    config.mounts.reverse();
    config.mounts[0].host_path = config.mounts[0].host_path.replace("0a1b2c3d", "ffffffff");
    config.mounts[2].host_path = config.mounts[2].host_path.replace("x7abc", "yyyyy");
    let services = super::services::tests::of_service("REDIS", "10.0.0.11", &[("", 6379, "TCP")]);
    config.envs.extend(services.iter().map(|(name, value)| variable(name, value)));
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.namespace_options.as_mut().unwrap().target_id = "decade".to_owned();
    security.supplemental_groups.reverse();
    security.masked_paths.reverse();
    assert_eq!(json(&bytes(&other)), json(&bytes(&request())));
}

#[test]
fn hashes_differ_between_pods_containers_fields_places_and_keys() {
    let mut one = request();
    let config = one.config.as_mut().unwrap();
    config.command = vec![SECRET.to_owned(), SECRET.to_owned()];
    config.args = config.command.clone();
    config.envs = vec![variable("A", SECRET), variable("B", SECRET), variable("0", SECRET)];
    let hashes = |request: &CreateContainerRequest, key: &Key| {
        let record = Record::of(&bytes(request), key, false).unwrap();
        let mut all = Vec::new();
        for name in ["command", "args", "env"] {
            match &record.fields[name] {
                Node::List(nodes) => all.extend(nodes.iter().cloned()),
                Node::Map(nodes) => all.extend(nodes.values().cloned()),
                _ => unreachable!(),
            }
        }
        all
    };
    let mut all = hashes(&one, &Key::known(7));
    all.extend(hashes(&one, &Key::known(8)));
    one.config.as_mut().unwrap().metadata.as_mut().unwrap().name = "sidecar".to_owned();
    all.extend(hashes(&one, &Key::known(7)));
    one.sandbox_config.as_mut().unwrap().metadata.as_mut().unwrap().uid = "other".to_owned();
    all.extend(hashes(&one, &Key::known(7)));
    assert_eq!(all.len(), 28);
    for (n, hash) in all.iter().enumerate() {
        assert!(matches!(hash, Node::Hash(_)) && !all[..n].contains(hash), "{n}");
    }
}

#[test]
fn annotations_of_others_are_one_hash() {
    let with = |all: &[(&str, &str)]| {
        let mut request = request();
        let annotations = &mut request.config.as_mut().unwrap().annotations;
        annotations.extend(all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        of(&bytes(&request))
    };
    assert!(!with(&[]).fields.contains_key("annotations"));
    let one = with(&[("example.com/nic", SECRET), ("example.com/port", "1")]);
    assert!(matches!(one.fields["annotations"], Node::Hash(_)) && !one.json().contains(SECRET));
    assert_eq!(with(&[("example.com/port", "1"), ("example.com/nic", SECRET)]), one);
    for other in [
        &[("example.com/nic", SECRET)][..],
        &[("example.com/nic", SECRET), ("example.com/port", "2")],
        &[("example.com/nic", "1"), ("example.com/port", SECRET)],
    ] {
        assert_ne!(with(other).fields["annotations"], one.fields["annotations"]);
    }
}

#[test]
fn clear_words_only_when_asked_for() {
    let record = Record::of(&bytes(&request()), &Key::known(7), true).unwrap();
    let text = record.json();
    assert!(text.contains(r#""args":["--listen=:80","--password=hunter2-is-the-password"],"cdi""#), "{text}");
    assert!(record.clear_args() && !of(&bytes(&request())).clear_args());
    assert_eq!(Record::parse(text.as_bytes()).unwrap(), record);
    assert!(text.contains(r#""clear":true,"command":["/bin/web"]"#), "{text}");
    // The environment never is.
    assert_eq!(text.matches(SECRET).count(), 1);
    let mut odd = request();
    odd.config.as_mut().unwrap().args =
        vec!["~".to_owned(), "~~x".to_owned(), format!("~{}", "A".repeat(22))];
    let record = Record::of(&bytes(&odd), &Key::known(7), true).unwrap();
    assert!(
        record.json().starts_with(r#"{"args":["~~","~~~x","~~AAAAAAAAAAAAAAAAAAAAAA"],"#),
        "{}",
        record.json()
    );
    assert_eq!(Record::parse(record.json().as_bytes()).unwrap(), record);
}

#[test]
fn fields_of_a_later_cri_are_noticed() {
    let message = bytes(&request());
    let before = json(&message);
    assert!(!before.contains("other"));
    // Field 100 of each, then a second entry of it, in both orders.
    let (one, two) = (b"\xa2\x06\x01x", b"\xa2\x06\x01y");
    for (path, section) in [
        (&[][..], "request"),
        (&[2], "container"),
        (&[2, 7], "mounts"),
        (&[2, 15], "linux"),
        (&[2, 15, 1], "resources"),
        (&[2, 15, 2], "security"),
        (&[2, 15, 2, 3], "namespaces"),
        (&[2, 15, 2, 3, 5, 2], "idMappings"),
    ] {
        let with_one = with(&message, path, one);
        let record = of(&with_one);
        let Node::Map(other) = &record.fields["other"] else { panic!("{section}") };
        assert_eq!(other.keys().collect::<Vec<_>>(), [section]);
        assert_ne!(json(&with(&message, path, two)), record.json(), "{section}");
        let both = json(&with(&with_one, path, two));
        // A mount, unlike the others, is a new one each time.
        assert_eq!(json(&with(&with(&message, path, two), path, one)), both, "{section}");
    }
    // Windows is such a field; what is about the pod or the pull is not.
    assert!(json(&with(&message, &[2], b"\x82\x01\x01\x08")).contains(r#""other":{"container":"~"#));
    assert_eq!(json(&with(&message, &[3], one)), before);
    assert_eq!(json(&with(&message, &[2, 2], one)), before);
}

#[test]
fn newer_fields_than_the_generated_types_have() {
    let message = bytes(&request());
    // stop_signal 23, and a mount with image_sub_path 10 and mount_options 11.
    let text = json(&with(&message, &[2], b"\x90\x01\x17"));
    assert!(text.contains(r#""stopSignal":"SIGTERM""#), "{text}");
    for (number, name) in [
        (1, r#""SIGABRT""#),
        (34, r#""SIGXFSZ""#),
        (35, r#""SIGRTMIN""#),
        (50, r#""SIGRTMIN+15""#),
        (51, r#""SIGRTMAX-14""#),
        (64, r#""SIGRTMAX-1""#),
        (65, r#""SIGRTMAX""#),
        (66, "66"),
    ] {
        let text = json(&with(&message, &[2], &[0x90, 1, number]));
        assert!(text.contains(&format!(r#""stopSignal":{name}"#)), "{number}: {text}");
    }
    let text = json(&with(&message, &[2, 7], b"\x0a\x02/v\x4a\x03\x0a\x01i\x52\x03sub\x5a\x06noexec"));
    assert!(
        text.contains(r#""/v":{"image":"i","imageSubPath":"~"#) && text.contains(r#""options":["noexec"]"#),
        "{text}"
    );
    // A value that is not UTF-8.
    let text = json(&with(&message, &[2, 6], b"\x0a\x01X\x12\x02\xff\xfe"));
    assert!(text.contains(r#""X":"~"#), "{text}");
}

#[test]
fn old_and_new_ways_to_say_the_same_are_the_same() {
    let of_profiles = |old: &str, new: Option<(i32, &str)>| {
        let mut request = request();
        let config = request.config.as_mut().unwrap();
        let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        let profile = new.map(|(profile_type, localhost_ref)| k8s_cri::v1::SecurityProfile {
            profile_type,
            localhost_ref: localhost_ref.to_owned(),
        });
        #[expect(deprecated, reason = "what this is about")]
        {
            security.apparmor_profile = old.to_owned();
            security.seccomp_profile_path = old.to_owned();
        }
        security.apparmor = profile.clone();
        security.seccomp = profile;
        json(&bytes(&request))
    };
    for (old, new) in
        [("runtime/default", (0, "")), ("unconfined", (1, "")), ("localhost/profile", (2, "profile"))]
    {
        assert_eq!(of_profiles(old, None), of_profiles(old, Some(new)));
        assert_eq!(of_profiles("", Some(new)), of_profiles(old, Some(new)));
    }
}

#[test]
fn two_mounts_on_one_place_are_both_kept() {
    let mut request = request();
    let mounts = &mut request.config.as_mut().unwrap().mounts;
    let again = mounts[1].clone();
    mounts.push(k8s_cri::v1::Mount { host_path: "/other".to_owned(), ..again });
    let text = json(&bytes(&request));
    assert!(text.contains(r#""/data#2":{"host":"/other","propagation":"bidirectional"}"#), "{text}");
}

#[test]
fn ports_that_are_no_json_are_hashed() {
    let mut request = request();
    for ports in ["[1.5]", "null", "[", "1}", "\"~x\"", "{\"a\":1},\"y\":{}", &"[".repeat(1000)] {
        let annotations = &mut request.config.as_mut().unwrap().annotations;
        annotations.insert("io.kubernetes.container.ports".to_owned(), ports.to_owned());
        let record = of(&bytes(&request));
        assert!(matches!(record.fields["ports"], Node::Hash(_)), "{ports}");
        assert_eq!(Record::parse(record.json().as_bytes()).unwrap(), record);
    }
}

#[test]
fn requests_without_end_are_not_recorded() {
    let key = Key::known(7);
    let mut large = request();
    large.config.as_mut().unwrap().envs = vec![variable("A", &"x".repeat(MAX_MESSAGE))];
    let error = Record::of(&bytes(&large), &key, false).unwrap_err().to_string();
    assert!(error.contains("bytes, more than"), "{error}");
    // Two million empty strings are four megabytes.
    for path in [&[2][..], &[2, 15, 2], &[2, 7], &[2, 2]] {
        let mut message = b"\x1a\x00".repeat(MAX_ELEMENTS + 1);
        for number in path.iter().rev() {
            let mut length = Vec::new();
            prost::encoding::encode_varint(message.len() as u64, &mut length);
            message = [&[number << 3 | 2], length.as_slice(), &message].concat();
        }
        let error = Record::of(&message.into(), &key, false).unwrap_err().to_string();
        assert!(error.contains("more than 32768 values"), "{error}");
    }
    let mut groups = request();
    let linux = groups.config.as_mut().unwrap().linux.as_mut().unwrap();
    linux.security_context.as_mut().unwrap().supplemental_groups = (0..40_000).collect();
    assert!(Record::of(&bytes(&groups), &key, false).is_err());
    for broken in [&b"\x12\x05x"[..], b"\xff", b"\x12\x02\x32\x05", b"\x12\x04\x2a\x02\xff\xfe"] {
        assert!(Record::of(&Bytes::from_static(broken), &key, false).is_err());
    }
}

#[test]
fn requests_of_many_values_are_not_quick() {
    let envs = |count: usize| {
        let mut request = request();
        request.config.as_mut().unwrap().envs = (0..count).map(|_| variable("A", "")).collect();
        bytes(&request)
    };
    assert!(Record::is_quick(&bytes(&request())) && Record::is_quick(&Bytes::new()));
    assert!(Record::is_quick(&envs(QUICK_ELEMENTS / 2)));
    let many = envs(QUICK_ELEMENTS + 1);
    assert!(many.len() < QUICK_BYTES && !Record::is_quick(&many));
    let mut large = request();
    large.config.as_mut().unwrap().envs = vec![variable("A", &"x".repeat(QUICK_BYTES))];
    assert!(!Record::is_quick(&bytes(&large)));
    let mut groups = request();
    let linux = groups.config.as_mut().unwrap().linux.as_mut().unwrap();
    linux.security_context.as_mut().unwrap().supplemental_groups = (0..2000).collect();
    assert!(!Record::is_quick(&bytes(&groups)));
    // What cannot be read has no record, and that is found out soon.
    assert!(Record::is_quick(&Bytes::from_static(b"\xff")));
}

#[test]
fn a_record_that_fits_is_inline_and_any_other_a_digest() {
    let record = of(&bytes(&request()));
    let json = record.json();
    assert_eq!(label(&record, Some(json.len())), (json.clone(), None));
    for max_inline in [None, Some(0), Some(json.len() - 1)] {
        let (text, body) = label(&record, max_inline);
        assert_eq!(body.as_ref(), Some(&json));
        let Label::Digest(reference) = Label::parse(&text).unwrap() else { panic!("{text}") };
        assert_eq!(reference.image.as_deref(), Some("registry.example.com/team/web:1.0"));
        assert_eq!(reference.version, VERSION);
        assert_eq!((reference.key.as_str(), reference.size), (record.key(), json.len() as u64));
        assert_eq!(reference.open(json.as_bytes()).unwrap(), record);
        assert!(reference.open(json.replace("/srv", "/svr").as_bytes()).is_err());
        assert!(reference.open(b"").is_err());
    }
    // Never too long for a label, whatever is asked for, not even for its image.
    let mut long = request();
    long.config.as_mut().unwrap().working_dir = "/".repeat(4000);
    let (text, body) = label(&of(&bytes(&long)), Some(usize::MAX));
    assert!(text.len() < 300 && body.is_some());
    long.config.as_mut().unwrap().image.as_mut().unwrap().user_specified_image = "i".repeat(5000);
    let (text, body) = label(&of(&bytes(&long)), Some(usize::MAX));
    assert!(text.len() < 300 && body.is_some());
    assert_eq!(Label::parse(&text).unwrap().image(), None);
}

#[test]
fn labels_of_others_are_refused() {
    let deep = format!(r#"{{"v":1,"key":"k","image":"i","x":{}}}"#, "[".repeat(2000));
    let long = format!(r#"{{"v":1,"key":"k","image":"{}"}}"#, "i".repeat(5000));
    for (text, reason) in [
        ("", "expected an object with a version"),
        ("null", "expected an object with a version"),
        (r#"{"name":"web","image":"nginx"}"#, "expected an object with a version"),
        (r#"{"v":"1"}"#, "expected an object with a version"),
        (r#"{"v":-1}"#, "expected an object with a version"),
        (r#"{"v":0,"key":"k","image":"i"}"#, "v: is 0"),
        (r#"{"v":1,"image":"i"}"#, "key: expected a text"),
        (r#"{"v":1,"key":7,"image":"i"}"#, "key: expected a text"),
        (r#"{"v":1,"key":"k"}"#, "image: expected a text"),
        (r#"{"v":1,"key":"k","image":"~AAAAAAAAAAAAAAAAAAAAAA"}"#, "image: expected a text"),
        (r#"{"v":1,"key":"k","image":"i","x":null}"#, "invalid type: null"),
        (r#"{"v":1,"key":"k","image":"i","x":1.5}"#, "invalid type: floating point"),
        (r#"{"v":1,"key":"k","image":"i","x":18446744073709551615}"#, "too large"),
        (r#"{"v":1,"key":"k","image":"i","x":"~short"}"#, "begins as a hash"),
        (r#"{"v":1,"key":"k","image":"i","x":1,"x":1}"#, "a name twice"),
        (r#"{"v":1,"key":"k","image":"i"} x"#, "expected an object"),
        (r#"{"v":1,"key":"k","digest":"sha256:../../etc/passwd","size":1}"#, "digest: expected sha256:"),
        (r#"{"v":1,"key":"k","digest":1,"size":1}"#, "digest: expected a text"),
        (
            &format!(r#"{{"v":1,"key":"k","digest":"sha256:{}","size":-1}}"#, "0".repeat(64)),
            "size: expected a number",
        ),
        (&deep, ""),
        (&long, "more than crisp writes"),
    ] {
        let error = Label::parse(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text:.100}: {error}");
        assert!(error.len() < 200, "{error}");
    }
    // Bodies come from the disk, and anybody may have been there.
    let many = format!(r#"{{"v":1,"key":"k","image":"i","x":[{}0]}}"#, "0,".repeat(1 << 19));
    let error = Record::parse(many.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("too many values"), "{error}");
    assert_eq!(Record::parse(&vec![b' '; MAX_BODY + 1]), Err(ParseError::TooLong(MAX_BODY + 1)));
}

#[test]
fn a_newer_crisp_is_told_as_such() {
    for text in [r#"{"v":2,"anything":[null,1.5]}"#, r#"{"v":18446744073709551615}"#] {
        assert!(matches!(Label::parse(text), Err(ParseError::Newer(_))), "{text}");
        assert!(matches!(Record::parse(text.as_bytes()), Err(ParseError::Newer(_))));
    }
    // Of the same version, what it does not know is kept.
    let text = r#"{"a":{"later":[true,-1]},"image":"i","key":"k","v":1}"#;
    assert_eq!(Record::parse(text.as_bytes()).unwrap().json(), text);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = Label::parse(&text);
    }

    #[test]
    fn a_damaged_label_is_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>(), digest: bool) {
        let (text, _) = label(&of(&bytes(&request())), (!digest).then_some(usize::MAX));
        let mut damaged = text.into_bytes();
        let at = at.index(damaged.len());
        damaged[at] = byte;
        if let Ok(text) = String::from_utf8(damaged)
            && let Ok(Label::Inline(record)) = Label::parse(&text)
        {
            prop_assert_eq!(Record::parse(record.json().as_bytes()).unwrap(), record);
        }
    }

    #[test]
    fn any_message_is_recorded_or_refused(message in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Record::of(&message.into(), &Key::known(7), false);
    }

    #[test]
    fn a_damaged_request_is_recorded_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut message = bytes(&request()).to_vec();
        let at = at.index(message.len());
        message[at] = byte;
        if let Ok(record) = Record::of(&message.into(), &Key::known(7), true) {
            prop_assert_eq!(Record::parse(record.json().as_bytes()).unwrap(), record);
        }
    }
}
