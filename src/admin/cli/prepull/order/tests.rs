//! What a command line asks for.

use proptest::prelude::*;

use super::*;
use crate::admin::cli::prepull::command;
use crate::admin::cli::prepull::send::with_secrets;
use crate::prepull::check::Check;

fn asked(arguments: &[&str]) -> anyhow::Result<Vec<Spec>> {
    let matches = command().try_get_matches_from([&["prepull"], arguments].concat())?;
    specs(&matches)
}

fn file(content: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    file
}

#[test]
fn an_image_alone_has_the_defaults_of_the_api() {
    assert_eq!(asked(&["nginx"]).unwrap(), [Spec::of("nginx")]);
    assert_eq!(asked(&["nginx", "--wait"]).unwrap()[0].class, Class::Normal, "somebody waits");
    assert_eq!(asked(&["nginx", "--wait", "--class", "background"]).unwrap()[0].class, Class::Background);
}

#[test]
fn every_flag_has_its_field() {
    let line = "a b --class urgent --priority -5 --timeout 2m --retries 0 --deadline 2h --not-before 1h --pin 24h --ttl 3h \
                --policy always --owner me --visibility shared --check cpu,mem --namespace web";
    let specs = asked(&line.split_whitespace().collect::<Vec<_>>()).unwrap();
    assert_eq!(specs.iter().map(|spec| spec.image.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let spec = &specs[1];
    assert_eq!((spec.class, spec.priority, spec.timeout_seconds, spec.retries), (Class::Urgent, -5, 120, 0));
    let hour = spec.deadline.unwrap().since(spec.not_before.unwrap());
    assert!(hour.abs_diff(Duration::from_secs(3600)) < Duration::from_secs(60), "{hour:?}");
    assert_eq!((spec.pin, spec.ttl_seconds), (Pin::Seconds(86_400), Some(10_800)));
    assert_eq!((spec.policy, spec.owner.as_str()), (Policy::Always, "me"));
    assert_eq!((spec.visibility, spec.sandbox.namespace.as_str()), (Some(Visibility::Shared), "web"));
    assert_eq!(spec.checks, [Check::Cpu, Check::Memory]);
    assert_eq!(asked(&["a", "--check", "none"]).unwrap()[0].checks, []);
    assert_eq!(asked(&["a", "--pin", "owner"]).unwrap()[0].pin, Pin::WithOwner);
    let time = asked(&["a", "--deadline", "2027-01-15T08:00:00Z"]).unwrap()[0].deadline;
    assert_eq!(time, Some(Time(1_800_000_000_000)));
}

#[test]
fn images_come_from_files_too_and_each_once() {
    let list = file(
        "# first\n nginx \n\nredis:7 # cache\nnginx\n{\"dockerImage\":{\"registry\":\"gcr.io\",\"name\":\"a\"}}\n",
    );
    let specs = asked(&["nginx", "--file", list.path().to_str().unwrap()]).unwrap();
    let images: Vec<_> = specs.iter().map(|spec| (spec.image.as_str(), spec.image_spec.is_some())).collect();
    assert_eq!(images, [("nginx", false), ("redis:7", false), ("", true)]);
}

#[test]
fn all_mistakes_are_told_at_once_with_their_places() {
    let list = file("nginx\nNot An Image\n\n-bad\n");
    let path = list.path().to_str().unwrap();
    let error = asked(&["UPPER", "--file", path, "--file", "/no/such/list"]).unwrap_err();
    let said = error.downcast_ref::<Usage>().unwrap().to_string();
    for part in ["IMAGE \"UPPER\": ", "line 2: ", "line 4: ", "--file /no/such/list: No such file"] {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
    let empty = file("# nothing\n");
    let said = asked(&["--file", empty.path().to_str().unwrap()]).unwrap_err().to_string();
    assert!(said.contains("names no image"), "{said}");
    for wrong in [
        &["a", "--wait", "--ttl", "1s"][..],
        &["a", "--check", "none,disk"],
        &["a", "--secret-file", "/no/such/file"],
        &["a", "--timeout", "0s"],
        &["a", "--deadline", "soon"],
        &["a", "--pin", "for ever"],
        &["a", "--class", "kubelet"],
        &[],
    ] {
        assert!(asked(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_secret_goes_to_crisp_and_nowhere_else() {
    let config = file(
        r#"{"auths":{"gcr.io":{"username":"u","password":"hunter2"},"b.io":{"identitytoken":"t0ken"}}}"#,
    );
    let specs = asked(&["gcr.io/a", "--secret-file", config.path().to_str().unwrap()]).unwrap();
    let sent = with_secrets(&specs[0]).unwrap();
    let read: Spec = serde_json::from_value(sent).unwrap();
    assert_eq!(read, specs[0], "what crisp reads is what was meant, secrets included");
    assert_eq!(read.secrets.len(), 2);
    assert!(!format!("{specs:?}").contains("hunter2") && !format!("{specs:?}").contains("t0ken"));

    let broken = file(r#"{"auths":{"gcr.io":{"auth":"hunter2!"}}}"#);
    let said = asked(&["a", "--secret-file", broken.path().to_str().unwrap()]).unwrap_err().to_string();
    assert!(said.contains("auths[\"gcr.io\"].auth") && !said.contains("hunter2"), "{said}");
}

proptest! {
    #[test]
    fn any_list_is_read_or_refused(text in "[ -~\n]{0,80}") {
        let list = file(&text);
        let path = list.path().to_str().unwrap();
        match asked(&["--file", path]) {
            Ok(specs) => prop_assert!(!specs.is_empty()),
            Err(error) => prop_assert!(error.to_string().contains(path)),
        }
    }

    #[test]
    fn any_flag_is_read_or_refused(text in "[ -~]{0,20}") {
        let _ = (pin(&text), time(&text), whole_seconds(&text));
    }
}
