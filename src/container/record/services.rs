//! The variables that the kubelet makes of Services. They come and go with Services that have nothing to do with the
//! container, so records leave them out.
//!
//! Nothing marks them but their form. A Service `redis` with port 6379 is
//!
//! ```text
//! REDIS_SERVICE_HOST=10.0.0.11         REDIS_PORT_6379_TCP=tcp://10.0.0.11:6379
//! REDIS_SERVICE_PORT=6379              REDIS_PORT_6379_TCP_PROTO=tcp
//! REDIS_SERVICE_PORT_DB=6379           REDIS_PORT_6379_TCP_PORT=6379
//! REDIS_PORT=tcp://10.0.0.11:6379      REDIS_PORT_6379_TCP_ADDR=10.0.0.11
//! ```
//!
//! and all of that must agree. A variable that the pod declares itself wins over the kubelet's, and then does not agree: it
//! stays, and only `…_SERVICE_HOST` and `…_SERVICE_PORT` have to be the kubelet's for the others to go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;

const HOST: &str = "_SERVICE_HOST";
const PORT: &str = "_SERVICE_PORT";

/// The environment by name.
pub(super) type Env<'a> = BTreeMap<&'a str, &'a [u8]>;

/// The names in `env` that are the kubelet's for a Service.
pub(super) fn variables<'a>(env: &Env<'a>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    for (name, value) in env {
        if let Some(service) = name.strip_suffix(HOST).filter(|service| !service.is_empty())
            && let Some(address) = text(value).filter(|address| address.parse::<IpAddr>().is_ok())
        {
            collect(env, service, address, &mut found);
        }
    }
    found
}

fn collect<'a>(env: &Env<'a>, service: &str, address: &str, found: &mut BTreeSet<&'a str>) {
    let value = |name: &str| env.get_key_value(name).and_then(|(name, value)| Some((*name, text(value)?)));
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    // What each group of four that agrees is linked as, by its port.
    let mut ports = BTreeMap::<&str, Vec<String>>::new();
    let mut names = Vec::new();
    let prefix = format!("{service}_PORT_");
    for (name, _) in with_prefix(env, &prefix) {
        let Some((port, protocol)) = name.strip_prefix(&prefix).and_then(port_and_protocol) else { continue };
        let lower = protocol.to_ascii_lowercase();
        let url = format!("{lower}://{host}:{port}");
        let group = [
            (name.to_owned(), url.as_str()),
            (format!("{name}_PROTO"), &lower),
            (format!("{name}_PORT"), port),
            (format!("{name}_ADDR"), address),
        ];
        let agreeing: Vec<&str> = group
            .iter()
            .filter_map(|(name, expected)| value(name).filter(|(_, is)| is == expected))
            .map(|(name, _)| name)
            .collect();
        if agreeing.len() == group.len() {
            names.extend(agreeing);
            ports.entry(port).or_default().push(url);
        }
    }
    let Some((port_name, first)) = value(&format!("{service}{PORT}")) else { return };
    let Some(links) = ports.get(first) else { return };
    found.extend(names);
    found.insert(port_name);
    found.extend(env.get_key_value(format!("{service}{HOST}").as_str()).map(|(name, _)| *name));
    if let Some((name, link)) = value(&format!("{service}_PORT"))
        && links.iter().any(|url| url == link)
    {
        found.insert(name);
    }
    let prefix = format!("{service}{PORT}_");
    for (name, value) in with_prefix(env, &prefix) {
        if text(value).is_some_and(|value| ports.contains_key(value)) {
            found.insert(name);
        }
    }
}

fn with_prefix<'a>(env: &Env<'a>, prefix: &str) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    let from = env.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
    from.take_while(move |(name, _)| name.starts_with(prefix)).map(|(name, value)| (*name, *value))
}

/// `6379_TCP`, and nothing after it.
fn port_and_protocol(text: &str) -> Option<(&str, &str)> {
    let (port, protocol) = text.split_once('_')?;
    let canonical = port.parse::<u16>().is_ok_and(|number| number > 0) && !port.starts_with(['0', '+']);
    (canonical && matches!(protocol, "TCP" | "UDP" | "SCTP")).then_some((port, protocol))
}

fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok()
}

#[cfg(test)]
pub(super) mod tests;
