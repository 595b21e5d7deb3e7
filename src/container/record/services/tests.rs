use super::*;

/// What the kubelet makes of a Service; the first port may have no name.
pub(in crate::container) fn of_service(
    name: &str,
    address: &str,
    ports: &[(&str, u16, &str)],
) -> Vec<(String, String)> {
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    let mut all = vec![
        (format!("{name}_SERVICE_HOST"), address.to_owned()),
        (format!("{name}_SERVICE_PORT"), ports[0].1.to_string()),
        (format!("{name}_PORT"), format!("{}://{host}:{}", ports[0].2.to_lowercase(), ports[0].1)),
    ];
    for (port_name, port, protocol) in ports {
        if !port_name.is_empty() {
            all.push((format!("{name}_SERVICE_PORT_{port_name}"), port.to_string()));
        }
        let group = format!("{name}_PORT_{port}_{protocol}");
        let lower = protocol.to_lowercase();
        all.push((group.clone(), format!("{lower}://{host}:{port}")));
        all.push((format!("{group}_PROTO"), lower));
        all.push((format!("{group}_PORT"), port.to_string()));
        all.push((format!("{group}_ADDR"), address.to_owned()));
    }
    all
}

fn left(env: &[(String, String)]) -> Vec<&str> {
    let env: Env<'_> = env.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let found = variables(&env);
    env.keys().copied().filter(|name| !found.contains(name)).collect()
}

#[test]
fn services_of_every_form_are_known() {
    let mut env = of_service("KUBERNETES", "10.96.0.1", &[("HTTPS", 443, "TCP")]);
    env.extend(of_service("REDIS_MASTER", "10.0.0.11", &[("", 6379, "TCP")]));
    env.extend(of_service(
        "DNS",
        "fd00::a",
        &[("DNS", 53, "UDP"), ("DNS_TCP", 53, "TCP"), ("METRICS", 9153, "TCP")],
    ));
    env.extend(of_service("REDIS", "10.0.0.12", &[("A", 1, "SCTP"), ("B", 65535, "TCP")]));
    // A Service that a pod asked for under a prefix of its own.
    env.extend(of_service("MY_REDIS", "10.0.0.12", &[("A", 1, "SCTP")]));
    // Dots and leading digits stay as they are.
    env.extend(of_service("1.X", "10.0.0.13", &[("", 80, "TCP")]));
    assert_eq!(left(&env), Vec::<&str>::new());
}

#[test]
fn what_the_pod_declares_itself_stays() {
    let mut env = of_service("REDIS", "10.0.0.11", &[("", 6379, "TCP")]);
    let declared = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    env.extend([
        // The usual clash: it wins over the kubelet's.
        declared("REDIS_PORT", "6379"),
        declared("REDIS_SERVICE_PORT_ADMIN", "9999"),
        declared("REDIS_PORT_80_TCP", "tcp://10.0.0.11:80"),
        declared("REDIS_URL", "redis://10.0.0.11:6379"),
        declared("_SERVICE_HOST", "10.0.0.11"),
        declared("OTHER_SERVICE_HOST", "db.example.com"),
        declared("OTHER_SERVICE_PORT", "5432"),
        declared("HOME", "/root"),
    ]);
    let mine = [
        "HOME",
        "OTHER_SERVICE_HOST",
        "OTHER_SERVICE_PORT",
        "REDIS_PORT",
        "REDIS_PORT_80_TCP",
        "REDIS_SERVICE_PORT_ADMIN",
        "REDIS_URL",
        "_SERVICE_HOST",
    ];
    assert_eq!(left(&env), mine);
}

#[test]
fn what_does_not_agree_is_no_service() {
    let good = of_service("REDIS", "10.0.0.11", &[("", 6379, "TCP")]);
    let spoilt = |name: &str, value: &str| {
        let mut env = good.clone();
        env.iter_mut().find(|(is, _)| is == name).unwrap().1 = value.to_owned();
        env
    };
    for (name, value) in [
        ("REDIS_SERVICE_HOST", "10.0.0.12"),
        ("REDIS_SERVICE_HOST", "redis"),
        ("REDIS_SERVICE_PORT", "6380"),
        ("REDIS_SERVICE_PORT", ""),
        ("REDIS_PORT_6379_TCP", "tcp://10.0.0.11:6380"),
        ("REDIS_PORT_6379_TCP_PROTO", "TCP"),
        ("REDIS_PORT_6379_TCP_PORT", "06379"),
        ("REDIS_PORT_6379_TCP_ADDR", "10.0.0.12"),
    ] {
        assert_eq!(left(&spoilt(name, value)).len(), good.len(), "{name}={value}");
    }
    for name in ["SERVICE_HOST", "SERVICE_PORT", "PORT_6379_TCP", "PORT_6379_TCP_ADDR"] {
        let env: Vec<_> = good.iter().filter(|(is, _)| *is != format!("REDIS_{name}")).cloned().collect();
        assert_eq!(left(&env).len(), env.len(), "without {name}");
    }
}
