//! The hash by which a kubelet tells whether a container still is what its pod asks for: annotation
//! [`ANNOTATION`], written when the container is made and compared when the kubelet starts.
//!
//! Kubelets hash the same text in two ways: up to 1.30 the whole container of the pod, from 1.31 on only its name and
//! its image. That is why an upgrade across that line restarts every container, and what the shield
//! (`container::shield`) is for. The text is JSON, shown as Go shows a slice of bytes, under FNV-1a.

/// The annotation that holds the hash, in hexadecimal digits.
pub const ANNOTATION: &str = "io.kubernetes.container.hash";

/// What a kubelet from 1.31 on computes for a container of that name and image, both as the pod has them.
pub fn of_name_and_image(name: &str, image: &str) -> String {
    of_json(&format!("{{\"image\":{},\"name\":{}}}", go_string(image), go_string(name)))
}

/// The hash of an object that Go has written as JSON: what kubelets up to 1.30 compute, given the whole container.
pub fn of_json(json: &str) -> String {
    let mut hash = Fnv(0x811c_9dc5);
    hash.write(b"([]uint8)[");
    for (n, byte) in json.bytes().enumerate() {
        if n > 0 {
            hash.write(b" ");
        }
        hash.write(byte.to_string().as_bytes());
    }
    hash.write(b"]");
    format!("{:x}", hash.0)
}

/// Whether a caller is a kubelet from 1.31 on, or at least not an older one: its gRPC library is 1.65 or newer, and it
/// calls the socket `localhost`. `crictl` looks the same.
pub fn is_new_kubelet(user_agent: Option<&str>, authority: Option<&str>) -> bool {
    let version = user_agent.and_then(|agent| {
        let version = agent.split_whitespace().find_map(|part| part.strip_prefix("grpc-go/"))?;
        let mut parts = version.split(['.', '-']).map(|part| part.parse::<u32>().ok());
        Some((parts.next()??, parts.next()??))
    });
    version.is_some_and(|version| version >= (1, 65)) && authority == Some("localhost")
}

/// FNV-1a of 32 bits.
struct Fnv(u32);

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    }
}

/// A string as Go writes it in JSON: like everybody, but with what HTML could trip over escaped too.
fn go_string(text: &str) -> String {
    let mut json = serde_json::Value::from(text).to_string();
    for (from, to) in [
        ('<', "\\u003c"),
        ('>', "\\u003e"),
        ('&', "\\u0026"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
    ] {
        if json.contains(from) {
            json = json.replace(from, to);
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_known_vectors_of_both_ways() {
        assert_eq!(of_name_and_image("test_container", "foo/image:v1"), "8e45cbd0");
        // Go writes the fields in the order in which they are declared.
        let whole = concat!(
            r#"{"name":"test_container","image":"foo/image:v1","command":["/bin/testcmd"],"#,
            r#""args":["/bin/sh","-c","echo abc"],"ports":[{"containerPort":8001}],"#,
            r#""env":[{"name":"ENV_FOO","value":"bar"},{"name":"ENV_BAR","valueFrom":"#,
            r#"{"secretKeyRef":{"name":"foo","key":"bar","optional":true}}}],"#,
            r#""resources":{"limits":{"foo":"1G"},"requests":{"foo":"500M"}}}"#,
        );
        assert_eq!(of_json(whole), "311670a");
    }

    #[test]
    fn what_go_escapes_is_escaped() {
        assert_eq!(go_string("a<b>&\"\u{2028}\n\u{1}"), r#""a\u003cb\u003e\u0026\"\u2028\n\u0001""#);
    }

    #[test]
    fn kubelets_are_told_by_their_library_and_authority() {
        let new = |agent| is_new_kubelet(Some(agent), Some("localhost"));
        // 1.31, 1.36 and 1.37; 1.30 and 1.20.
        assert!(
            new("grpc-go/1.65.0")
                && new("grpc-go/1.79.3")
                && new("grpc-go/1.82.1")
                && new("grpc-go/2.0.0-dev")
        );
        assert!(!new("grpc-go/1.58.3") && !new("grpc-go/1.27.1"));
        assert!(!new("grpc-rust/1.82.1") && !new("grpc-go/") && !new("grpc-go/one.two") && !new(""));
        assert!(!is_new_kubelet(None, Some("localhost")));
        assert!(!is_new_kubelet(Some("grpc-go/1.79.3"), None));
        assert!(!is_new_kubelet(Some("grpc-go/1.79.3"), Some("example.org")));
    }

    proptest! {
        /// The same by another road: the text as Go shows it, built whole, and FNV-1a by 64-bit arithmetic.
        #[test]
        fn the_hash_is_that_of_the_text(name in "[ -~ä漢]{0,80}", image in "[ -~ä漢]{0,200}") {
            let both = BTreeMap::from([("image", &image), ("name", &name)]);
            let json = serde_json::to_string(&both).unwrap();
            let json = json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
            let shown: Vec<_> = json.bytes().map(|byte| byte.to_string()).collect();
            let text = format!("([]uint8)[{}]", shown.join(" "));
            let hash = text.bytes().fold(2_166_136_261_u64, |hash, byte| {
                ((hash ^ u64::from(byte)) * 16_777_619) % (1 << 32)
            });
            prop_assert_eq!(of_name_and_image(&name, &image), format!("{hash:x}"));
        }

        /// Another image or another name is another hash, but for the rare collision of 32 bits.
        #[test]
        fn what_differs_hashes_differently(a in "[a-z0-9./:-]{1,60}", b in "[a-z0-9./:-]{1,60}", name in "[a-z0-9-]{1,63}") {
            prop_assume!(a != b);
            prop_assert_ne!(of_name_and_image(&name, &a), of_name_and_image(&name, &b));
            prop_assert_ne!(of_name_and_image(&a, &name), of_name_and_image(&b, &name));
        }

        #[test]
        fn no_caller_breaks_it(agent in "\\PC{0,40}") {
            is_new_kubelet(Some(&agent), None);
        }
    }
}
