//! From a `CreateContainerRequest` to a tree: what is recorded of a container, and under which name.
//!
//! A value that protobuf leaves out (false, zero, nothing) is left out here too, so that a field that is new to the CRI
//! makes no difference until somebody uses it. Lists whose order means nothing are sorted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;

use super::hasher::Hasher;
use super::node::{self, Fields, Node};
use super::other::Unknown;
use super::paths::host_path;
use super::{services, words};
use crate::cri::view;

const PORTS: &str = "io.kubernetes.container.ports";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
/// Annotations of the kubelet itself. What they say is in other fields, or differs by attempt.
const KUBELET_ANNOTATIONS: &str = "io.kubernetes.";
/// Annotations by which devices were asked for before the CRI had a field for them.
const CDI_ANNOTATIONS: &str = "cdi.k8s.io/";

/// Of whom a record is.
pub(super) struct Subject<'a> {
    pub(super) pod_uid: &'a str,
    pub(super) container: &'a str,
    pub(super) hasher: Hasher,
    pub(super) clear_args: bool,
}

/// Everything of a container but its image.
pub(super) fn fields(config: &view::ContainerConfig, unknown: &Unknown<'_>, subject: &Subject<'_>) -> Fields {
    let mut to = Fields::new();
    let Subject { hasher, clear_args, .. } = subject;
    let words = |field: &'static str, words: &[Bytes]| -> Vec<Node> {
        let hashed = |(n, word): (usize, &Bytes)| match clear_args {
            true => Node::Text(String::from_utf8_lossy(word).into_owned()),
            false => hasher.hash(field, &(n as u64).to_le_bytes(), word),
        };
        words.iter().enumerate().map(hashed).collect()
    };
    list(&mut to, "command", words("command", &config.command));
    list(&mut to, "args", words("args", &config.args));
    text(&mut to, "workingDir", &config.working_dir);
    map(&mut to, "env", env(&config.envs, hasher));
    map(
        &mut to,
        "mounts",
        by_path(&config.mounts, |mount| &mount.container_path, |from| mount(from, subject)),
    );
    map(&mut to, "devices", by_path(&config.devices, |device| &device.container_path, device));
    list(&mut to, "cdi", cdi(config));
    flag(&mut to, "stdin", config.stdin);
    flag(&mut to, "stdinOnce", config.stdin_once);
    flag(&mut to, "tty", config.tty);
    to.extend(words::signal(config.stop_signal).map(|node| ("stopSignal".to_owned(), node)));
    if let Some(linux) = &config.linux {
        linux.resources.iter().for_each(|from| map(&mut to, "resources", resources(from)));
        linux.security_context.iter().for_each(|from| map(&mut to, "security", security(from)));
    }
    to.extend(config.annotations.get(PORTS).map(|text| ("ports".to_owned(), ports(text, hasher))));
    if let Some(handler) = config.annotations.get(PRE_STOP) {
        // It may hold headers with which somebody is let in.
        to.insert("preStop".to_owned(), hasher.hash("preStop", b"", handler.as_bytes()));
    }
    to.extend(annotations(&config.annotations, hasher).map(|node| ("annotations".to_owned(), node)));
    let hashed = |(name, spans): (&&str, &Vec<&[u8]>)| {
        ((*name).to_owned(), hasher.hash_all("other", name.as_bytes(), spans.iter().copied()))
    };
    map(&mut to, "other", unknown.iter().map(hashed).collect());
    to
}

/// By name: the order is random. A name that occurs twice has its last value, as runtimes have it.
fn env(variables: &[view::KeyValue], hasher: &Hasher) -> Fields {
    let by_name: services::Env<'_> =
        variables.iter().map(|variable| (variable.key.as_str(), variable.value.as_ref())).collect();
    let services = services::variables(&by_name);
    let own = by_name.into_iter().filter(|(name, _)| !services.contains(name));
    own.map(|(name, value)| (name.to_owned(), hasher.hash("env", name.as_bytes(), value))).collect()
}

fn mount(from: &view::Mount, subject: &Subject<'_>) -> Node {
    let mut to = Fields::new();
    let host = host_path(&from.host_path, &from.container_path, subject.pod_uid, subject.container);
    text(&mut to, "host", &host);
    flag(&mut to, "readonly", from.readonly);
    flag(&mut to, "recursiveReadOnly", from.recursive_read_only);
    flag(&mut to, "selinuxRelabel", from.selinux_relabel);
    to.extend(words::propagation(from.propagation).map(|node| ("propagation".to_owned(), node)));
    list(&mut to, "uids", mappings(&from.uid_mappings));
    list(&mut to, "gids", mappings(&from.gid_mappings));
    from.image.iter().for_each(|image| text(&mut to, "image", super::user_image(image)));
    if !from.image_sub_path.is_empty() {
        // Environment variables may have been expanded in it.
        let (path, value) = (from.container_path.as_bytes(), from.image_sub_path.as_bytes());
        to.insert("imageSubPath".to_owned(), subject.hasher.hash("imageSubPath", path, value));
    }
    list(&mut to, "options", from.mount_options.iter().cloned().map(Node::Text).collect());
    Node::Map(to)
}

fn device(from: &view::Device) -> Node {
    let mut to = Fields::new();
    text(&mut to, "host", &from.host_path);
    text(&mut to, "permissions", &from.permissions);
    Node::Map(to)
}

/// By the path in the container; what comes to the same place again is `PATH#2`, `PATH#3`.
fn by_path<T>(all: &[T], path: impl Fn(&T) -> &String, node: impl Fn(&T) -> Node) -> Fields {
    let (mut to, mut seen) = (Fields::new(), BTreeMap::<&str, usize>::new());
    for one in all {
        let path = path(one);
        let times = seen.entry(path).or_default();
        *times += 1;
        let name = if *times == 1 { path.clone() } else { format!("{path}#{times}") };
        to.insert(name, node(one));
    }
    to
}

/// Without the ids on the host, which the kubelet picks.
fn mappings(from: &[view::IdMapping]) -> Vec<Node> {
    from.iter().map(|one| Node::Text(format!("{}+{}", one.container_id, one.length))).collect()
}

/// One hash of all that others have added, such as device plugins: what they mean, and whether they are secret, only those
/// know.
fn annotations(all: &HashMap<String, String>, hasher: &Hasher) -> Option<Node> {
    let of_others = |name: &str| !name.starts_with(KUBELET_ANNOTATIONS) && !name.starts_with(CDI_ANNOTATIONS);
    let sorted: BTreeMap<&String, &String> = all.iter().filter(|(name, _)| of_others(name)).collect();
    let parts = sorted.iter().flat_map(|(name, value)| [name.as_bytes(), value.as_bytes()]);
    (!sorted.is_empty()).then(|| hasher.hash_all("annotations", b"", parts))
}

/// However they were asked for. Kubelets have sent both forms at once.
fn cdi(config: &view::ContainerConfig) -> Vec<Node> {
    let annotated = config.annotations.iter().filter(|(name, _)| name.starts_with(CDI_ANNOTATIONS));
    let annotated = annotated.flat_map(|(_, devices)| devices.split(',')).map(str::trim);
    let fields = config.cdi_devices.iter().map(|device| device.name.as_str());
    set(annotated.chain(fields).filter(|name| !name.is_empty()))
}

/// Without the CPUs and memory nodes, which the kubelet's managers pick: what is left for all changes with every pod that
/// gets some of its own.
fn resources(from: &view::LinuxContainerResources) -> Fields {
    let mut to = Fields::new();
    number(&mut to, "cpuPeriod", from.cpu_period);
    number(&mut to, "cpuQuota", from.cpu_quota);
    number(&mut to, "cpuShares", from.cpu_shares);
    number(&mut to, "memoryLimit", from.memory_limit_in_bytes);
    number(&mut to, "memorySwapLimit", from.memory_swap_limit_in_bytes);
    number(&mut to, "oomScoreAdj", from.oom_score_adj);
    let size = |limit: &view::HugepageLimit| {
        let bytes =
            i64::try_from(limit.limit).map_or_else(|_| Node::Text(limit.limit.to_string()), Node::Number);
        (limit.page_size.clone(), bytes)
    };
    map(&mut to, "hugepages", from.hugepage_limits.iter().map(size).collect());
    map(&mut to, "unified", texts(&from.unified));
    to
}

fn security(from: &view::LinuxContainerSecurityContext) -> Fields {
    let mut to = Fields::new();
    if let Some(from) = &from.capabilities {
        let mut capabilities = Fields::new();
        list(&mut capabilities, "add", set(from.add_capabilities.iter().map(String::as_str)));
        list(&mut capabilities, "drop", set(from.drop_capabilities.iter().map(String::as_str)));
        list(&mut capabilities, "ambient", set(from.add_ambient_capabilities.iter().map(String::as_str)));
        map(&mut to, "capabilities", capabilities);
    }
    flag(&mut to, "privileged", from.privileged);
    from.namespace_options.iter().for_each(|from| map(&mut to, "namespaces", namespaces(from)));
    if let Some(from) = &from.selinux_options {
        let mut options = Fields::new();
        text(&mut options, "user", &from.user);
        text(&mut options, "role", &from.role);
        text(&mut options, "type", &from.r#type);
        text(&mut options, "level", &from.level);
        map(&mut to, "selinux", options);
    }
    // Zero is root here, not nothing.
    to.extend(from.run_as_user.iter().map(|user| ("runAsUser".to_owned(), Node::Number(user.value))));
    to.extend(from.run_as_group.iter().map(|group| ("runAsGroup".to_owned(), Node::Number(group.value))));
    text(&mut to, "runAsUsername", &from.run_as_username);
    flag(&mut to, "readonlyRootfs", from.readonly_rootfs);
    let groups: BTreeSet<i64> = from.supplemental_groups.iter().copied().collect();
    list(&mut to, "supplementalGroups", groups.into_iter().map(Node::Number).collect());
    to.extend(
        words::groups_policy(from.supplemental_groups_policy)
            .map(|node| ("supplementalGroupsPolicy".to_owned(), node)),
    );
    flag(&mut to, "noNewPrivs", from.no_new_privs);
    list(&mut to, "maskedPaths", set(from.masked_paths.iter().map(String::as_str)));
    list(&mut to, "readonlyPaths", set(from.readonly_paths.iter().map(String::as_str)));
    text(&mut to, "seccomp", &words::profile(from.seccomp.as_ref(), &from.seccomp_profile_path));
    text(&mut to, "apparmor", &words::profile(from.apparmor.as_ref(), &from.apparmor_profile));
    to
}

/// Without the container whose processes are shared: it has another id after each restart.
fn namespaces(from: &view::NamespaceOption) -> Fields {
    let mut to = Fields::new();
    for (name, mode) in [("network", from.network), ("pid", from.pid), ("ipc", from.ipc)] {
        to.extend(words::namespace(mode).map(|node| (name.to_owned(), node)));
    }
    if let Some(from) = &from.userns_options {
        let mut users = Fields::new();
        users.extend(words::namespace(from.mode).map(|node| ("mode".to_owned(), node)));
        list(&mut users, "uids", mappings(&from.uids));
        list(&mut users, "gids", mappings(&from.gids));
        map(&mut to, "users", users);
    }
    to
}

/// The kubelet's JSON as a part of the tree; what the tree cannot hold, as a hash.
fn ports(text: &str, hasher: &Hasher) -> Node {
    let wrapped = [b"{\"x\":", text.as_bytes(), b"}"].concat();
    let parsed = node::parse_map(&wrapped, super::MAX_ELEMENTS).ok().filter(|fields| fields.len() == 1);
    parsed
        .and_then(|mut fields| fields.remove("x"))
        .unwrap_or_else(|| hasher.hash("ports", b"", text.as_bytes()))
}

fn set<'a>(from: impl Iterator<Item = &'a str>) -> Vec<Node> {
    let sorted: BTreeSet<&str> = from.collect();
    sorted.into_iter().map(|text| Node::Text(text.to_owned())).collect()
}

fn texts(from: &HashMap<String, String>) -> Fields {
    from.iter().map(|(name, value)| (name.clone(), Node::Text(value.clone()))).collect()
}

fn text(to: &mut Fields, name: &str, value: &str) {
    if !value.is_empty() {
        to.insert(name.to_owned(), Node::Text(value.to_owned()));
    }
}

fn flag(to: &mut Fields, name: &str, value: bool) {
    if value {
        to.insert(name.to_owned(), Node::Flag(true));
    }
}

fn number(to: &mut Fields, name: &str, value: i64) {
    if value != 0 {
        to.insert(name.to_owned(), Node::Number(value));
    }
}

fn list(to: &mut Fields, name: &str, value: Vec<Node>) {
    if !value.is_empty() {
        to.insert(name.to_owned(), Node::List(value));
    }
}

fn map(to: &mut Fields, name: &str, value: Fields) {
    if !value.is_empty() {
        to.insert(name.to_owned(), Node::Map(value));
    }
}
