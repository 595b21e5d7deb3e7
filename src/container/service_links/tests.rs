use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn service(name: &str, ip: &str, ports: &[(&str, u32, &str)]) -> Service {
    let port = |&(name, port, protocol): &(&str, u32, &str)| Port {
        name: name.into(),
        port,
        protocol: protocol.into(),
    };
    Service {
        name: name.into(),
        kind: String::new(),
        cluster_ip: ip.into(),
        ports: ports.iter().map(port).collect(),
    }
}

fn redis() -> Service {
    service("redis-master", "10.0.0.11", &[("", 6379, "TCP")])
}

/// The environment after a change, one `NAME=value` a line.
fn after(env: &[(&str, &str)], services: &[Service], sources: &[Source]) -> Vec<String> {
    let Change { remove, add } = change(env, services, sources).unwrap();
    let kept = env
        .iter()
        .filter(|(name, value)| !remove.contains(&(name.as_bytes().to_owned(), value.as_bytes().to_owned())));
    let mut lines: Vec<_> = kept.map(|(name, value)| format!("{name}={value}")).collect();
    lines.extend(add.into_iter().map(|(name, value)| format!("{name}={value}")));
    lines.sort();
    lines
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    lines
}

/// The examples of the proposal that this comes from, verbatim.
#[test]
fn the_proposals_examples_come_out_as_written() {
    let plain = EnvFrom::parse(br#"{"example-container": [{"service": {"name": "redis-master"}}]}"#).unwrap();
    assert_eq!(
        after(&[], &[redis()], plain.of("example-container")),
        sorted(
            "REDIS_MASTER_SERVICE_HOST=10.0.0.11
             REDIS_MASTER_SERVICE_PORT=6379
             REDIS_MASTER_PORT=tcp://10.0.0.11:6379
             REDIS_MASTER_PORT_6379_TCP=tcp://10.0.0.11:6379
             REDIS_MASTER_PORT_6379_TCP_PROTO=tcp
             REDIS_MASTER_PORT_6379_TCP_PORT=6379
             REDIS_MASTER_PORT_6379_TCP_ADDR=10.0.0.11"
        )
    );
    let prefixed = EnvFrom::parse(
        br#"{"example-container": [{"prefix": "PREFIX_", "service": {"name": "redis-master"}}]}"#,
    );
    assert_eq!(
        after(&[], &[redis()], prefixed.unwrap().of("example-container")),
        sorted(
            "PREFIX_REDIS_MASTER_SERVICE_HOST=10.0.0.11
             PREFIX_REDIS_MASTER_SERVICE_PORT=6379
             PREFIX_REDIS_MASTER_PORT=tcp://10.0.0.11:6379
             PREFIX_REDIS_MASTER_PORT_6379_TCP=tcp://10.0.0.11:6379
             PREFIX_REDIS_MASTER_PORT_6379_TCP_PROTO=tcp
             PREFIX_REDIS_MASTER_PORT_6379_TCP_PORT=6379
             PREFIX_REDIS_MASTER_PORT_6379_TCP_ADDR=10.0.0.11"
        )
    );
    assert_eq!(plain.of("another-container"), []);
}

#[test]
fn variables_are_those_of_the_kubelet() {
    let dns = service("kube-dns", "fd00::a", &[("dns", 53, "UDP"), ("dns-tcp", 53, ""), ("", 9, "SCTP")]);
    let lines: Vec<_> =
        variables(&dns).unwrap().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        lines,
        [
            "KUBE_DNS_SERVICE_HOST=fd00::a",
            "KUBE_DNS_SERVICE_PORT=53",
            "KUBE_DNS_SERVICE_PORT_DNS=53",
            "KUBE_DNS_SERVICE_PORT_DNS_TCP=53",
            "KUBE_DNS_PORT=udp://[fd00::a]:53",
            "KUBE_DNS_PORT_53_UDP=udp://[fd00::a]:53",
            "KUBE_DNS_PORT_53_UDP_PROTO=udp",
            "KUBE_DNS_PORT_53_UDP_PORT=53",
            "KUBE_DNS_PORT_53_UDP_ADDR=fd00::a",
            "KUBE_DNS_PORT_53_TCP=tcp://[fd00::a]:53",
            "KUBE_DNS_PORT_53_TCP_PROTO=tcp",
            "KUBE_DNS_PORT_53_TCP_PORT=53",
            "KUBE_DNS_PORT_53_TCP_ADDR=fd00::a",
            "KUBE_DNS_PORT_9_SCTP=sctp://[fd00::a]:9",
            "KUBE_DNS_PORT_9_SCTP_PROTO=sctp",
            "KUBE_DNS_PORT_9_SCTP_PORT=9",
            "KUBE_DNS_PORT_9_SCTP_ADDR=fd00::a",
        ]
    );
}

#[test]
fn services_without_an_address_have_none() {
    let of = |kind: &str, ip: &str, ports: &[(&str, u32, &str)]| {
        variables(&Service { kind: kind.into(), ..service("a", ip, ports) }).unwrap_err()
    };
    let port = [("", 1, "")];
    assert_eq!(of("ClusterIP", "None", &port), Unlinkable::Headless);
    assert_eq!(of("ExternalName", "", &[]), Unlinkable::ExternalName);
    assert_eq!(of("", "", &port), Unlinkable::NoAddress);
    assert_eq!(of("", "10.0.0.1", &[]), Unlinkable::NoPorts);
    let sources = [Source { prefix: String::new(), service: "a".into() }];
    let none: [(&str, &str); 0] = [];
    let headless = service("a", "None", &port);
    assert_eq!(change(&none, &[headless], &sources), Err((&sources[0], Some(Unlinkable::Headless))));
    assert_eq!(change(&none, &[redis()], &sources), Err((&sources[0], None)));
}

#[test]
fn what_is_declared_wins_and_what_nobody_asked_for_goes() {
    let other = service("other", "10.0.0.12", &[("web", 80, "TCP")]);
    let master = service("kubernetes", "10.0.0.1", &[("https", 443, "TCP")]);
    let services = [redis(), other, master];
    let asked = [Source { prefix: String::new(), service: "redis-master".into() }];
    let env = [
        ("REDIS_MASTER_SERVICE_HOST", "cache.example"), // declared: has another value
        ("REDIS_MASTER_SERVICE_PORT", "6379"),          // there already
        ("OTHER_SERVICE_HOST", "10.0.0.12"),            // implicit
        ("OTHER_SERVICE_PORT_WEB", "80"),               // implicit
        ("OTHER_SERVICE_PORT", "81"),                   // declared
        ("OTHER_PORT", "tcp://10.0.0.12:80"),           // implicit, as the rest of OTHER
        ("OTHER_PORT_80_TCP", "tcp://10.0.0.12:80"),
        ("OTHER_PORT_80_TCP_PROTO", "tcp"),
        ("OTHER_PORT_80_TCP_PORT", "80"),
        ("OTHER_PORT_80_TCP_ADDR", "10.0.0.12"),
        ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
        ("PATH", "/bin"),
    ];
    let lines = after(&env, &services, &asked);
    for stays in [
        "REDIS_MASTER_SERVICE_HOST=cache.example",
        "OTHER_SERVICE_PORT=81",
        "KUBERNETES_SERVICE_HOST=10.0.0.1",
        "PATH=/bin",
        "REDIS_MASTER_PORT=tcp://10.0.0.11:6379",
    ] {
        assert!(lines.contains(&stays.to_owned()), "{stays} in {lines:?}");
    }
    assert_eq!(lines.iter().filter(|line| line.starts_with("OTHER_")).count(), 1);
    assert_eq!(lines.iter().filter(|line| line.starts_with("REDIS_")).count(), 7);

    // A container that asks for nothing, of a pod that uses links.
    let lines = after(&env, &services, &[]);
    assert_eq!(lines.iter().filter(|line| line.contains("SERVICE_HOST")).count(), 2, "{lines:?}");

    // The last source wins.
    let twice = [("A_", "redis-master"), ("A_", "redis-master")]
        .map(|(prefix, service)| Source { prefix: prefix.into(), service: service.into() });
    assert_eq!(after(&[], &services, &twice).len(), 7);
}

/// With `enableServiceLinks: false` the kubelet makes none of them, so what is there was declared.
#[test]
fn some_variables_of_a_service_were_declared_all_of_them_were_not() {
    let all = variables(&redis()).unwrap();
    let all: Vec<_> = all.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert!(after(&all, &[redis()], &[]).is_empty());
    for left_out in 0..all.len() {
        let mut env = all.clone();
        env.remove(left_out);
        assert_eq!(after(&env, &[redis()], &[]).len(), env.len());
    }
    assert_eq!(after(&all[..1], &[redis()], &[]), ["REDIS_MASTER_SERVICE_HOST=10.0.0.11"]);
}

#[test]
fn values_need_not_be_text() {
    let env: [(&[u8], &[u8]); 2] = [(b"REDIS_MASTER_SERVICE_HOST", b"\xff\xfe"), (b"\xff", b"10.0.0.11")];
    let asked = [Source { prefix: String::new(), service: "redis-master".into() }];
    let Change { remove, add } = change(&env, &[redis()], &asked).unwrap();
    assert!(remove.is_empty());
    assert!(!add.iter().any(|(name, _)| name == "REDIS_MASTER_SERVICE_HOST"));
}

#[test]
fn dependencies_are_names_of_services() {
    let names = |text: &str| Dependencies::parse(text.as_bytes()).map(|found| found.0);
    assert_eq!(names(r#"["b", "a-1", "b"]"#).unwrap(), ["a-1", "b"]);
    assert_eq!(names("[]").unwrap(), [""; 0]);
    for (text, words) in [
        ("", "annotation crisp.dev/service-dependencies: EOF"),
        ("redis", "expected value"),
        (r#"{"a": 1}"#, "expected a sequence"),
        (r#"["a", 7]"#, "[1]: invalid type: integer `7`, expected a string"),
        (r#"["a", "B"]"#, "[1]: \"B\" is not the name of a Service"),
        (r#"["a."]"#, "[0]: \"a.\" is not"),
        (r#"["../pods"]"#, "[0]: \"../pods\" is not"),
        (r#"["a"] x"#, "trailing characters"),
        ("\"\u{1b}[2J\"", "control character"),
    ] {
        let error = names(text).unwrap_err().to_string();
        assert!(error.contains(words), "{words} in {error}");
    }
    assert!(
        names(&format!("[{}\"a\"]", "\"a\",".repeat(100))).unwrap_err().to_string().contains("names 101")
    );
    let huge = format!("[{}]", " ".repeat(MAX_BYTES));
    assert!(names(&huge).unwrap_err().to_string().contains("at most 65536 (64 KiB)"));
    assert!(Dependencies::parse(b"[\"\xff\"]").is_err());
    assert!(names(&"[".repeat(60_000)).unwrap_err().to_string().len() < 500);
}

#[test]
fn an_error_names_the_container_and_the_field() {
    for (text, words) in [
        ("[]", "annotation crisp.dev/env-from: invalid type: sequence, expected an object with a list"),
        (r#"{"web": {}}"#, "web: invalid type: map, expected a sequence"),
        (r#"{"web": [{}]}"#, "web[0]: missing field `service`"),
        (r#"{"web": [{"service": {}}]}"#, "web[0].service: missing field `name`"),
        (r#"{"web": [{"service": {"name": ""}}]}"#, "web[0].service.name: \"\" is not the name of a Service"),
        (r#"{"web": [{"service": {"name": "a", "x": 1}}]}"#, "unknown field `x`"),
        (r#"{"web": [{"secretRef": {"name": "a"}}]}"#, "unknown field `secretRef`"),
        (r#"{"web": [{"prefix": "1", "service": {"name": "a"}}]}"#, "web[0].prefix: \"1\" cannot begin"),
        (r#"{"web": [{"prefix": "A=", "service": {"name": "a"}}]}"#, "web[0].prefix: \"A=\" cannot begin"),
        (r#"{"Web": []}"#, "Web: is not the name of a container"),
        (r#"{"web": [], "web": []}"#, "has \"web\" twice"),
    ] {
        let error = EnvFrom::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(words), "{words} in {error}");
    }
    let fine = EnvFrom::parse(br#"{"web": [{"prefix": null, "service": {"name": "a"}}], "x": []}"#).unwrap();
    assert!(fine.is_used() && fine.iter().count() == 2);
    assert!(!EnvFrom::parse(br#"{"x": []}"#).unwrap().is_used());
}

fn services() -> impl Strategy<Value = Vec<Service>> {
    let port = ("[a-z]{0,3}", 1..65_536u32, prop_oneof![Just(""), Just("TCP"), Just("UDP")]);
    let one = ("[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", 1..250u8, proptest::collection::vec(port, 1..4));
    proptest::collection::vec(one, 1..12).prop_map(|all| {
        let by_name: BTreeMap<_, _> = all
            .into_iter()
            .map(|(name, last, ports)| {
                let ports: Vec<_> =
                    ports.iter().map(|(name, port, protocol)| (name.as_str(), *port, *protocol)).collect();
                (name.clone(), service(&name, &format!("10.0.0.{last}"), &ports))
            })
            .collect();
        by_name.into_values().collect()
    })
}

proptest! {
    #[test]
    fn no_text_breaks_the_readers(text in ".{0,200}", bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for value in [text.as_bytes(), &bytes] {
            let _ = Dependencies::parse(value);
            let _ = EnvFrom::parse(value);
        }
    }

    /// Whatever Services there are: only what was asked for and what was declared stays.
    #[test]
    fn only_what_was_asked_for_stays(services in services(), pick in any::<prop::sample::Index>()) {
        let asked = pick.get(&services).clone();
        let implicit: Vec<_> = services.iter().flat_map(|one| variables(one).unwrap()).collect();
        let mut env: Vec<_> = implicit.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        env.push(("DECLARED", "x"));
        let sources = [Source { prefix: String::new(), service: asked.name.clone() }];
        let mut expected: BTreeMap<_, _> = variables(&asked).unwrap().into_iter().collect();
        expected.insert("DECLARED".into(), "x".into());
        let keeps = ["kubernetes", "kubernetes-ro"];
        prop_assume!(services.iter().all(|one| !keeps.contains(&one.name.as_str())));
        let mut lines: Vec<_> = expected.iter().map(|(name, value)| format!("{name}={value}")).collect();
        lines.sort();
        let mut left = after(&env, &services, &sources);
        left.dedup();
        prop_assert_eq!(left, lines);
    }
}
