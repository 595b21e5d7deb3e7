//! Paths on the host, without what differs between two containers of the same spec.

/// Where the token of the pod's service account is mounted.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// What a path inside the kubelet's directory of the pod begins with. No real path does: those begin with `/`.
const POD: &str = "pod:";

/// A host path as records hold it.
///
/// The pod's own directory becomes `pod:`. In there, the file for the termination message has a random name, and so has the
/// volume that the API server adds for the service account's token.
pub(super) fn host_path(host: &str, container_path: &str, pod_uid: &str, container: &str) -> String {
    let Some(below) = below_pod(host, pod_uid) else { return host.to_owned() };
    if container_path == TOKEN && below.starts_with("volumes/") {
        return format!("{POD}token");
    }
    let random = below.strip_prefix("containers/").and_then(|rest| rest.strip_prefix(container));
    if random.and_then(|rest| rest.strip_prefix('/')).is_some_and(is_random) {
        return format!("{POD}termination-log");
    }
    format!("{POD}{below}")
}

/// What comes after `/pods/UID/`.
fn below_pod<'a>(host: &'a str, pod_uid: &str) -> Option<&'a str> {
    if pod_uid.is_empty() {
        return None;
    }
    let mut rest = host;
    while let Some((_, after)) = rest.split_once("/pods/") {
        if let Some(below) = after.strip_prefix(pod_uid).and_then(|below| below.strip_prefix('/')) {
            return Some(below);
        }
        rest = after;
    }
    None
}

/// Eight hexadecimal digits, as the kubelet names the files for termination messages.
fn is_random(name: &str) -> bool {
    name.len() == 8 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_own_directory_is_the_same_for_every_pod() {
        let uid = "0b1f6a52-6d53-4d0e-9a35-000000000001";
        let root = format!("/var/lib/kubelet/pods/{uid}");
        for (host, inside, expected) in [
            ("/data", "/data", "/data"),
            ("volumes/kubernetes.io~secret/tls", "/tls", "pod:volumes/kubernetes.io~secret/tls"),
            ("etc-hosts", "/etc/hosts", "pod:etc-hosts"),
            ("containers/web/0a1b2c3d", "/dev/termination-log", "pod:termination-log"),
            ("containers/web/0a1b2c3d", "/elsewhere", "pod:termination-log"),
            ("containers/web/0A1B2C3D", "/x", "pod:containers/web/0A1B2C3D"),
            ("containers/website/0a1b2c3d", "/x", "pod:containers/website/0a1b2c3d"),
            ("volumes/kubernetes.io~projected/kube-api-access-x7abc", TOKEN, "pod:token"),
            ("volumes/kubernetes.io~projected/kube-api-access-x7abc", "/x", {
                "pod:volumes/kubernetes.io~projected/kube-api-access-x7abc"
            }),
        ] {
            let host = if host.starts_with('/') { host.to_owned() } else { format!("{root}/{host}") };
            assert_eq!(host_path(&host, inside, uid, "web"), expected);
        }
        // Another kubelet's root directory, a path with two such folders, other pods' directories, no pod at all.
        assert_eq!(host_path(&format!("/k/pods/x/pods/{uid}/v"), "/v", uid, "web"), "pod:v");
        assert_eq!(
            host_path("/var/lib/kubelet/pods/other/v", "/v", uid, "web"),
            "/var/lib/kubelet/pods/other/v"
        );
        assert_eq!(host_path("/var/lib/kubelet/pods//v", "/v", "", "web"), "/var/lib/kubelet/pods//v");
        assert_eq!(host_path("/pods/", "/v", uid, ""), "/pods/");
    }
}
