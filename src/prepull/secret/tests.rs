use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use proptest::prelude::*;
use serde_json::json;

use super::*;

const SECRET: &str = "hunter2-7391";

fn file(value: &serde_json::Value) -> Result<Vec<Credential>, CredentialError> {
    parse(value.to_string().as_bytes())
}

fn error(value: &serde_json::Value) -> String {
    file(value).unwrap_err().to_string()
}

#[test]
fn every_way_to_write_a_credential_is_read() {
    let read = file(&json!({"auths": {
        "a.io": {"auth": STANDARD.encode("u:p:w"), "email": "x@y"},
        "b.io": {"auth": STANDARD_NO_PAD.encode("u:p")},
        "c.io": {"username": "u", "password": "p"},
        "d.io": {"auth": STANDARD.encode("wins:p"), "username": "loses", "password": "q"},
        // As Docker writes it for Azure.
        "e.io": {"auth": STANDARD.encode("00000000:"), "identitytoken": "t"},
        "f.io": {"registrytoken": "r"},
        "g.io": {"auth": format!("{}\n", STANDARD.encode("u:p\0\0"))},
        "h.io": {},
        "i.io": {"auth": "", "username": null},
    }, "HttpHeaders": {"x": "y"}}))
    .unwrap();
    let auth = |change: &dyn Fn(&mut AuthConfig)| {
        let mut auth = AuthConfig::default();
        change(&mut auth);
        auth
    };
    let password = |user: &str, password: &str| {
        auth(&|auth| (auth.username, auth.password) = (user.into(), password.into()))
    };
    let expected = [
        ("a.io", password("u", "p:w")),
        ("b.io", password("u", "p")),
        ("c.io", password("u", "p")),
        ("d.io", password("wins", "p")),
        ("e.io", auth(&|auth| auth.identity_token = "t".into())),
        ("f.io", auth(&|auth| auth.registry_token = "r".into())),
        ("g.io", password("u", "p")),
    ];
    assert_eq!(read.len(), expected.len());
    for (credential, (registry, auth)) in read.iter().zip(expected) {
        assert_eq!((credential.registry(), credential.auth_config()), (registry, auth));
    }
}

#[test]
fn the_older_file_is_read_and_several_files_follow_each_other() {
    let older = file(&json!({"https://index.docker.io/v1/": {"auth": STANDARD.encode("u:p"), "email": "e"}}));
    let mut all = older.unwrap();
    all.extend(file(&json!({"auths": {"docker.io": {"username": "v", "password": "q"}}})).unwrap());
    let image = crate::image::Reference::parse("nginx").unwrap();
    let users: Vec<_> = matching(&all, &image).iter().map(|found| found.auth_config().username).collect();
    assert_eq!(users, ["u", "v"]);
}

#[test]
fn mistakes_have_their_path() {
    let at = |auths: serde_json::Value| error(&json!({"auths": auths}));
    assert_eq!(at(json!({"a.io": {"auth": "%%"}})), r#"auths["a.io"].auth: must be base64 of user:password"#);
    assert_eq!(
        at(json!({"a.io": {"auth": STANDARD.encode("nocolon")}})),
        at(json!({"a.io": {"auth": "%%"}}))
    );
    assert_eq!(at(json!({"a.io": {"password": 7}})), r#"auths["a.io"].password: must be a text"#);
    assert!(at(json!({"a.io": {"password": "p"}})).starts_with(r#"auths["a.io"].username: is empty"#));
    assert!(at(json!({"": {"username": "u"}})).starts_with(r#"auths[""].registry: must be HOST"#));
    assert!(at(json!({"a.io": "x"})).starts_with(r#"auths["a.io"]: must be an object"#));
    assert!(at(json!({})).starts_with("auths: has no credentials"));
    assert!(at(json!([])).starts_with("auths: must be an object"));
    assert!(error(&json!({"auths": {"a.io": {}}, "credsStore": "desktop"})).contains("credential helper"));
    assert!(error(&json!({"credHelpers": {"gcr.io": "gcloud"}})).contains("credential helper"));
    for text in ["", "[]", "{", "null", "user:password"] {
        assert!(
            parse(text.as_bytes()).unwrap_err().to_string().starts_with("file: must be Docker's"),
            "{text}"
        );
    }
    assert!(error(&json!({})).starts_with("auths: has no credentials"));
    let long = json!({"auths": {"a.io": {"username": "u".repeat(docker::MAX_BYTES)}}});
    assert!(error(&long).starts_with("file: has more than 256 KiB"));
    let token = json!({"auths": {"a.io": {"registrytoken": "t".repeat(MAX_SECRET + 1)}}});
    assert_eq!(error(&token), r#"auths["a.io"].registryToken: has more than 64 KiB"#);
}

#[test]
fn nothing_shows_a_secret() {
    let credential: Credential = serde_json::from_value(json!({
        "registry": "gcr.io", "username": SECRET, "password": SECRET, "auth": SECRET, "serverAddress": "s",
        "identityToken": SECRET, "registryToken": SECRET,
    }))
    .unwrap();
    let shown = format!("{credential:?} {credential:#?}");
    assert!(shown.contains("gcr.io") && !shown.contains(SECRET), "{shown}");
    assert_eq!(credential.auth_config().password, SECRET);
}

/// serde quotes what it does not understand.
#[test]
fn no_error_quotes_what_was_given() {
    let wrong = [
        json!(73_917_391),
        json!(SECRET),
        json!(true),
        json!(7391.7391),
        json!([SECRET]),
        json!({"x": SECRET}),
    ];
    for wrong in wrong {
        for value in [
            wrong.clone(),
            json!({"registry": "a.io", "username": "u", "password": wrong}),
            json!({"registry": "a.io", "auth": wrong, "identityToken": wrong}),
        ] {
            let read = serde_json::from_value::<Credential>(value.clone());
            assert!(!format!("{read:?}").contains("7391"), "{value}: {read:?}");
        }
        for value in [
            wrong.clone(),
            json!({"auths": wrong}),
            json!({"auths": {"a.io": wrong}}),
            json!({"auths": {"a.io": {"auth": wrong}}}),
            json!({"auths": {"a.io": {"password": wrong}}}),
            json!({"auths": {format!("https://u:{SECRET}@a.io"): {"username": "u"}}}),
        ] {
            let read = file(&value);
            assert!(!format!("{read:?}").contains("7391"), "{value}: {read:?}");
        }
    }
}

#[test]
fn the_json_form_is_strict() {
    let read =
        |value: serde_json::Value| serde_json::from_value::<Credential>(value).map_err(|e| e.to_string());
    assert!(read(json!({"registry": "a.io", "username": "u", "password": null})).is_ok());
    assert!(
        read(json!({"registry": "a.io", "passwrd": "u"})).unwrap_err().contains("unknown field `passwrd`")
    );
    assert!(read(json!({"username": "u"})).unwrap_err().starts_with("registry: must be HOST"));
    assert!(read(json!({"registry": "a.io"})).unwrap_err().starts_with("username: is empty; give"));
    assert!(read(json!(["a.io", "u", "p"])).is_err());
}

proptest! {
    #[test]
    fn any_file_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn a_password_comes_through_whatever_it_is(user in "[^:\0]{1,20}", password in "[^\0]{0,20}") {
        let auth = STANDARD.encode(format!("{user}:{password}"));
        let read = file(&json!({"auths": {"a.io": {"auth": auth}}})).unwrap();
        let auth = read[0].auth_config();
        prop_assert_eq!((auth.username, auth.password), (user, password));
    }
}
