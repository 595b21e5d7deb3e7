//! The variables of a Service, as the kubelet makes them, and what becomes of a container's environment.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Source;

/// What is needed of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Such as `ClusterIP`; empty is that too.
    pub kind: String,
    /// Its address in the cluster; empty or `None` without one.
    pub cluster_ip: String,
    /// Its ports, in order.
    pub ports: Vec<Port>,
}

/// A port of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Port {
    /// Empty without one.
    pub name: String,
    /// The number.
    pub port: u32,
    /// Empty is TCP.
    pub protocol: String,
}

/// A Service that has no variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unlinkable {
    /// It has no address in the cluster.
    #[error("is headless (clusterIP: None), so there are no variables for it; use its DNS name")]
    Headless,
    /// It is another name for something elsewhere.
    #[error("is of type ExternalName, so there are no variables for it; use its DNS name")]
    ExternalName,
    /// It has no address yet.
    #[error("has no cluster IP, so there are no variables for it")]
    NoAddress,
    /// There is nothing to connect to.
    #[error("has no ports, so there are no variables for it")]
    NoPorts,
}

/// Name and value of a variable of a container. Neither need be text.
pub type Variable = (Vec<u8>, Vec<u8>);

/// What becomes of a container's environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Variables that go: those of Services that nobody asked for, by name and value.
    pub remove: HashSet<Variable>,
    /// Variables that come.
    pub add: Vec<(String, String)>,
}

/// Services whose variables every container keeps.
const ALWAYS: [&str; 2] = ["kubernetes", "kubernetes-ro"];

/// The variables of a Service, exactly as the kubelet makes them.
pub fn variables(service: &Service) -> Result<Vec<(String, String)>, Unlinkable> {
    let address = service.cluster_ip.as_str();
    match address {
        "None" => return Err(Unlinkable::Headless),
        "" if service.kind == "ExternalName" => return Err(Unlinkable::ExternalName),
        "" => return Err(Unlinkable::NoAddress),
        _ => {}
    }
    let first = service.ports.first().ok_or(Unlinkable::NoPorts)?;
    let name = variable(&service.name);
    let mut all = vec![
        (format!("{name}_SERVICE_HOST"), address.to_owned()),
        (format!("{name}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in service.ports.iter().filter(|port| !port.name.is_empty()) {
        all.push((format!("{name}_SERVICE_PORT_{}", variable(&port.name)), port.port.to_string()));
    }
    all.push((format!("{name}_PORT"), first.url(address)));
    for port in &service.ports {
        let start = format!("{name}_PORT_{}_{}", port.port, port.protocol().to_uppercase());
        all.push((start.clone(), port.url(address)));
        all.push((format!("{start}_PROTO"), port.protocol().to_lowercase()));
        all.push((format!("{start}_PORT"), port.port.to_string()));
        all.push((format!("{start}_ADDR"), address.to_owned()));
    }
    Ok(all)
}

/// Decides on the environment of a container of a pod that uses links.
///
/// `env` is what it has, `services` are all of its namespace, `sources` is what it asks for. Variables of Services that
/// it does not ask for go. They are known by name and value, because the kubelet puts them in no order and marks them in
/// no way; whatever else has such a name was declared, and wins over what comes. The kubelet makes all variables of a
/// Service or none: without all their names, those that are there were declared. The error is a source with what is wrong
/// with it: `None` if there is no such Service.
pub fn change<'a, E: AsRef<[u8]>>(
    env: &[(E, E)],
    services: &[Service],
    sources: &'a [Source],
) -> Result<Change, (&'a Source, Option<Unlinkable>)> {
    let names: HashSet<&[u8]> = env.iter().map(|(name, _)| name.as_ref()).collect();
    let implicit: HashSet<(String, String)> = services
        .iter()
        .filter(|service| !ALWAYS.contains(&service.name.as_str()))
        .filter_map(|service| variables(service).ok())
        .filter(|all| all.iter().all(|(name, _)| names.contains(name.as_bytes())))
        .flatten()
        .collect();
    let implicit: HashSet<(&[u8], &[u8])> =
        implicit.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();

    let by_name: HashMap<_, _> = services.iter().map(|service| (service.name.as_str(), service)).collect();
    // The last source wins, as it does in Kubernetes.
    let mut wanted = BTreeMap::new();
    for source in sources {
        let service = by_name.get(source.service.as_str()).ok_or((source, None))?;
        for (name, value) in variables(service).map_err(|error| (source, Some(error)))? {
            wanted.insert(format!("{}{name}", source.prefix), value);
        }
    }

    let mut change = Change::default();
    for (name, value) in env {
        let (name, value) = (name.as_ref(), value.as_ref());
        let asked = std::str::from_utf8(name).ok().and_then(|name| wanted.get(name));
        let is_asked = asked.is_some_and(|asked| asked.as_bytes() == value);
        if implicit.contains(&(name, value)) && !is_asked {
            change.remove.insert((name.to_owned(), value.to_owned()));
        } else if let Ok(name) = std::str::from_utf8(name) {
            // Declared, or there already.
            wanted.remove(name);
        }
    }
    change.add = wanted.into_iter().collect();
    Ok(change)
}

/// A name as a part of a variable's name.
fn variable(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

// === impl Port ===

impl Port {
    fn protocol(&self) -> &str {
        if self.protocol.is_empty() { "TCP" } else { &self.protocol }
    }

    fn url(&self, address: &str) -> String {
        let (scheme, port) = (self.protocol().to_lowercase(), self.port);
        if address.contains(':') {
            format!("{scheme}://[{address}]:{port}")
        } else {
            format!("{scheme}://{address}:{port}")
        }
    }
}
