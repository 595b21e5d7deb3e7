//! Any request, and any one change of it.

use k8s_cri::v1::{ContainerConfig, CreateContainerRequest, Device, Int64Value, Mount};
use proptest::prelude::*;
use proptest::sample::Index;

use super::requests::{request, variable};
use super::*;

/// Begins every value that may be secret.
pub(in crate::container) const MARK: &str = "5ecret";

fn secret() -> impl Strategy<Value = String> {
    "[ -~é\n]{0,12}".prop_map(|rest| format!("{MARK}{rest}"))
}

prop_compose! {
    /// A request in which everything secret contains [`MARK`].
    pub(in crate::container) fn any_request()(
        command in prop::collection::vec(secret(), 0..3),
        args in prop::collection::vec(secret(), 0..6),
        env in prop::collection::btree_map("[A-Z_.é]{1,6}", secret(), 0..8),
        mounts in prop::collection::btree_map("/[a-z.\"]{1,6}", ("/[a-z]{0,6}", any::<bool>()), 0..5),
        devices in prop::collection::btree_map("/dev/[a-z]{1,3}", "[mrw]{0,3}", 0..3),
        memory in 0..4_i64,
        user in prop::option::of(0..3_i64),
        (tty, privileged, bare) in any::<(bool, bool, bool)>(),
        working_dir in "(/[~a-z]{0,4})?",
        image in "[a-z]{1,8}",
    ) -> CreateContainerRequest {
        let mut request = request();
        let config = request.config.as_mut().unwrap();
        config.image.as_mut().unwrap().user_specified_image = image;
        config.command = command;
        config.args = args;
        config.envs = env.iter().map(|(name, value)| variable(name, value)).collect();
        let mount = |(path, (host, readonly)): (String, (String, bool))| Mount {
            container_path: path,
            host_path: host,
            readonly,
            ..Default::default()
        };
        config.mounts = mounts.into_iter().map(mount).collect();
        let device = |(container_path, permissions)| Device { container_path, permissions, ..Default::default() };
        config.devices = devices.into_iter().map(device).collect();
        config.working_dir = working_dir;
        config.tty = tty;
        let linux = config.linux.as_mut().unwrap();
        linux.resources.as_mut().unwrap().memory_limit_in_bytes = memory;
        let security = linux.security_context.as_mut().unwrap();
        security.privileged = privileged;
        security.run_as_user = user.map(|value| Int64Value { value });
        if bare {
            config.linux = None;
            config.annotations.clear();
            config.cdi_devices.clear();
        }
        request
    }
}

/// Changes one thing and says where; `None` if there is no such thing to change.
pub(in crate::container) fn change(
    request: &mut CreateContainerRequest,
    kind: u8,
    at: Index,
) -> Option<String> {
    fn pick<T>(all: &mut [T], at: Index) -> Option<(usize, &mut T)> {
        if all.is_empty() {
            return None;
        }
        let n = at.index(all.len());
        all.get_mut(n).map(|one| (n, one))
    }
    let quoted = |section: &str, path: &str| match path {
        path if path.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => format!("{section}.{path}"),
        path => format!("{section}[\"{path}\"]"),
    };
    let annotate = |config: &mut ContainerConfig, name: &str, value: &str| {
        config.annotations.insert(format!("io.kubernetes.container.{name}"), value.to_owned());
    };
    let config = request.config.as_mut()?;
    let path = match kind {
        0 => {
            config.image.as_mut()?.user_specified_image.push('x');
            "image".to_owned()
        }
        1 => {
            let (n, word) = pick(&mut config.command, at)?;
            word.push('x');
            format!("command[{n}]")
        }
        2 => {
            config.args.push(MARK.to_owned());
            format!("args[{}]", config.args.len() - 1)
        }
        3 => {
            config.args.pop()?;
            format!("args[{}]", config.args.len())
        }
        4 => {
            let (_, variable) = pick(&mut config.envs, at)?;
            variable.value.push('x');
            quoted("env", &variable.key)
        }
        5 => {
            let (n, _) = pick(&mut config.envs, at)?;
            quoted("env", &config.envs.remove(n).key)
        }
        6 => {
            config.envs.insert(0, variable("A_NEW_ONE", MARK));
            "env.A_NEW_ONE".to_owned()
        }
        7 => {
            let (_, mount) = pick(&mut config.mounts, at)?;
            mount.readonly ^= true;
            quoted("mounts", &mount.container_path) + ".readonly"
        }
        8 => {
            let (n, _) = pick(&mut config.mounts, at)?;
            quoted("mounts", &config.mounts.remove(n).container_path)
        }
        9 => {
            let (_, device) = pick(&mut config.devices, at)?;
            device.permissions.push('x');
            quoted("devices", &device.container_path) + ".permissions"
        }
        10 => {
            config.working_dir.push_str("/x");
            "workingDir".to_owned()
        }
        11 => {
            config.tty ^= true;
            "tty".to_owned()
        }
        12 => {
            config.linux.as_mut()?.resources.as_mut()?.memory_limit_in_bytes += 1;
            "resources.memoryLimit".to_owned()
        }
        13 => {
            config.linux.as_mut()?.security_context.as_mut()?.privileged ^= true;
            "security.privileged".to_owned()
        }
        14 => {
            let user = &mut config.linux.as_mut()?.security_context.as_mut()?.run_as_user;
            *user = if user.is_some() { None } else { Some(Int64Value { value: 0 }) };
            "security.runAsUser".to_owned()
        }
        15 => {
            let security = config.linux.as_mut()?.security_context.as_mut()?;
            security.capabilities.as_mut()?.add_capabilities.push("SYS_TIME".to_owned());
            "security.capabilities.add".to_owned()
        }
        16 => {
            annotate(config, "preStopHandler", MARK);
            "preStop".to_owned()
        }
        17 => {
            annotate(config, "ports", "[]");
            "ports".to_owned()
        }
        _ => {
            config.windows = Some(k8s_cri::v1::WindowsContainerConfig::default());
            "other.container".to_owned()
        }
    };
    Some(path)
}

/// How many kinds of change there are.
pub(in crate::container) const CHANGES: u8 = 19;

proptest! {
    #[test]
    fn nothing_secret_is_written_and_what_is_written_is_read(request in any_request(), max in prop::option::of(0..6000_usize)) {
        let record = of(&bytes(&request));
        let json = record.json();
        let shown = format!("{record:?}{json}");
        prop_assert!(!shown.contains(MARK), "{}", shown);
        prop_assert_eq!(&Record::parse(json.as_bytes()).unwrap(), &record);
        let (text, body) = label(&record, max);
        prop_assert!(LABEL.len() + text.len() <= 4096 && !text.contains(MARK));
        match (Label::parse(&text).unwrap(), body) {
            (Label::Inline(read), None) => prop_assert_eq!(read, record),
            (Label::Digest(reference), Some(body)) => prop_assert_eq!(reference.open(body.as_bytes()).unwrap(), record),
            _ => prop_assert!(false),
        }
        // Not even with readable words, unless they are just those.
        let mut wordless = request;
        let config = wordless.config.as_mut().unwrap();
        config.command.clear();
        config.args.clear();
        let clear = Record::of(&bytes(&wordless), &Key::known(7), true).unwrap();
        prop_assert!(!clear.json().contains(MARK));
    }

    #[test]
    fn order_and_attempt_make_no_record_of_their_own(request in any_request(), turn in any::<Index>(), attempt: u32) {
        let mut other = request.clone();
        let config = other.config.as_mut().unwrap();
        let (envs, mounts) = (config.envs.len(), config.mounts.len());
        if envs > 0 {
            config.envs.rotate_left(turn.index(envs));
        }
        if mounts > 0 {
            config.mounts.rotate_left(turn.index(mounts));
        }
        config.metadata.as_mut().unwrap().attempt = attempt;
        config.log_path = format!("{attempt}.log");
        prop_assert_eq!(json(&bytes(&other)), json(&bytes(&request)));
    }
}
