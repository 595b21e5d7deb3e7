//! crictl prints the same directly and through crisp.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::lab::crisp::Crisp;
use crate::lab::images::BUSYBOX;
use crate::lab::node::Kind;
use crate::lab::parts::peer_dir;
use crate::lab::scratch::Scratch;
use crate::lab::{critest, parts, process};

#[test]
fn crictl_prints_the_same() {
    let kind = Kind::Containerd("containerd-2.4.2");
    if let Some(reason) = kind.missing(&[]) {
        return parts::skip("crictl", &reason);
    }
    let node = kind.start();
    let crisp = Crisp::start(&node.endpoint());
    let (direct, through) = (node.endpoint(), crisp.endpoint());
    let image = node.registry().image(BUSYBOX);

    let scratch = Scratch::new();
    let pod = json!({
        "metadata": {"name": "crictl", "namespace": "default", "uid": "crictl-uid", "attempt": 1},
        "log_directory": scratch.path(),
        "linux": {},
    });
    let container = json!({
        "metadata": {"name": "main"},
        "image": {"image": image},
        "command": ["sh", "-c", "echo hello; sleep 1000"],
        "log_path": "main.log",
        "linux": {},
    });
    let pod = scratch.write("pod.json", &pod.to_string()).display().to_string();
    let container = scratch.write("container.json", &container.to_string()).display().to_string();
    let id = crictl(&through, &["run", "--with-pull", &container, &pod]);
    let id = id.trim();

    for command in [
        &["version"][..],
        &["info"],
        &["pods", "-o", "json"],
        &["ps", "-a", "-o", "json"],
        &["images", "-o", "json"],
        &["inspecti", &image],
        &["inspect", id],
        &["exec", "-s", id, "sh", "-c", "echo out; hostname"],
        &["exec", id, "cat", "/etc/passwd"],
        &["logs", id],
    ] {
        let (direct, through) = (crictl(&direct, command), crictl(&through, command));
        assert_eq!(without_records(&direct), without_records(&through), "crictl {command:?}");
        // In `info` a verbose status repeats what the runtime keeps, and crisp leaves it alone.
        if command[0] != "inspect" {
            assert!(!through.contains("io.kubernetes.container.spec"), "crictl {command:?}: {through}");
        }
    }
    crictl(&through, &["rm", "-f", id]);
    crictl(&through, &["rmp", "-f", "-a"]);
    crictl(&through, &["rmi", &image]);
    assert_eq!(crictl(&direct, &["ps", "-a", "-q"]), "");
}

/// The same without the records of containers, which only the runtime's own socket shows.
fn without_records(printed: &str) -> String {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.remove("io.kubernetes.container.spec");
                members.values_mut().for_each(strip);
            }
            Value::Array(elements) => elements.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let Ok(mut value) = serde_json::from_str(printed) else { return printed.to_owned() };
    strip(&mut value);
    value.to_string()
}

fn crictl(endpoint: &str, args: &[&str]) -> String {
    let mut command = Command::new(Path::new(&peer_dir(critest::PEER)).join("crictl"));
    // crictl's own limit of 2 s is too short for a loaded machine.
    command.arg(format!("--timeout={}s", Duration::from_secs(60).as_secs()));
    command.args(["--runtime-endpoint", endpoint, "--image-endpoint", endpoint]).args(args);
    process::run(&mut command)
}
