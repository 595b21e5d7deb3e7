use std::path::Path;

use super::*;

fn load(file: &str, flags: &[(&str, &str)]) -> Result<Config, Mistakes> {
    Config::load(Some(file), flags.iter().copied())
}

#[test]
fn defaults_are_valid_and_flags_win_over_the_file() {
    let config = load("drain: {max: 3m}\nstateDir: /a\n", &[("stateDir", "/b")]).unwrap();
    assert_eq!(config.listen, Path::new("/run/crisp/crisp.sock"));
    assert_eq!(config.drain_max, Duration::from_secs(180));
    assert_eq!(config.state_dir, Path::new("/b"));
    assert_eq!(load("", &[]).unwrap(), Config::load(None, []).unwrap());
}

#[test]
fn all_mistakes_are_told_at_once_with_their_paths() {
    let text = "listen: tcp://x\ndrain: {max: soon, min: 1s}\nlog: [a]\nfoo: 1\n";
    let Mistakes(mistakes) = load(text, &[("metricsListen", "9464")]).unwrap_err();
    let has =
        |start: &str| assert!(mistakes.iter().any(|m| m.starts_with(start)), "{start} in {mistakes:#?}");
    has("listen: expected unix://");
    has("drain.max: expected a whole number");
    has("drain.min: unknown key");
    has("log: expected keys below it");
    has("foo: unknown key");
    has("--metrics-listen: expected ADDR:PORT");
    has("known keys are listen, runtimeEndpoint,");
    assert_eq!(mistakes.len(), 7, "{mistakes:#?}");
}

/// Broke: what had no value was not looked at, so that a misspelled key without one was taken, and so was a setting that
/// was there twice in two spellings.
#[test]
fn what_is_no_key_is_a_mistake_whatever_it_holds() {
    for (text, mistake) in [
        ("metricListen:", "metricListen: unknown key"),
        ("drainn: {}", "drainn: unknown key"),
        ("drain: {maxx: }", "drain.maxx: unknown key"),
        ("listen: {}", "listen: expected unix://PATH"),
        ("listen: {a: b}", "listen: expected unix://PATH"),
        ("listen: [unix:///a]", "listen: expected unix://PATH"),
        ("image: {aciPrefixes: {a: b}}", "image.aciPrefixes: expected HOST[/PATH],..."),
        ("image: {aciPrefixes: [[a]]}", "image.aciPrefixes: expected HOST[/PATH],..."),
        ("prepull: {nodeLabels: {a: [b]}}", "prepull.nodeLabels: expected KEY=VALUE,..."),
        ("drain: 3s", "drain: expected keys below it, not a value"),
        ("drain.max: 3s\ndrain: {max: 5s}", "drain.max: write `drain:` and, indented below it, `max:`"),
        ("5: 3s", "5: unknown key"),
        ("log: {true: 3s}", "log.true: unknown key"),
        ("[a]: 3s", "?: unknown key"),
        ("'': 3s", "'': unknown key"),
    ] {
        let Mistakes(mistakes) = load(text, &[]).unwrap_err();
        assert!(mistakes[0].starts_with(mistake), "{text}: {mistakes:?}");
    }
    assert_eq!(load("listen:\ndrain:\nlog: {}\n", &[]).unwrap(), load("", &[]).unwrap());
}

/// What is a list may be one of YAML's, and switches may have been through a tool that knows them as booleans.
#[test]
fn yamls_own_lists_and_switches_are_taken() {
    for (yaml, text) in [
        ("image: {aciPrefixes: [a.example, b.example/c]}", "image: {aciPrefixes: 'a.example,b.example/c'}"),
        ("prepull: {nodeLabels: {a: b, zone: 5}}", "prepull: {nodeLabels: 'a=b,zone=5'}"),
        ("prepull: {nodeLabels: [a=b]}", "prepull: {nodeLabels: a=b}"),
        ("image: {aciPrefixes: []}", ""),
        ("hashShield: {mode: false}", "hashShield: {mode: 'off'}"),
        ("hashShield: {mode: true}", "hashShield: {mode: 'on'}"),
    ] {
        assert_eq!(load(yaml, &[]).unwrap(), load(text, &[]).unwrap(), "{yaml}");
    }
}

/// Broke: crisp started and could then reach no runtime.
#[test]
fn a_path_too_long_for_a_socket_is_a_mistake() {
    let path = |length: usize| format!("unix:///{}", "x".repeat(length - 1));
    assert!(load("", &[("runtimeEndpoint", &path(107))]).is_ok());
    let Mistakes(mistakes) = load("", &[("runtimeEndpoint", &path(108))]).unwrap_err();
    assert!(mistakes[0].contains("at most 107 bytes"), "{mistakes:?}");
    let embedded = format!("runtimeEndpoint: embedded\nstateDir: /{}", "x".repeat(83));
    assert!(load(&embedded, &[]).is_ok());
    let Mistakes(mistakes) = load(&(embedded + "x"), &[]).unwrap_err();
    assert!(mistakes[0].starts_with("stateDir: is too long"), "{mistakes:?}");
    let Mistakes(mistakes) = load("listen: \"unix:///a\\0b\"", &[]).unwrap_err();
    assert!(mistakes[0].starts_with("listen: expected unix:///absolute"), "{mistakes:?}");
}

#[test]
fn a_proxy_of_itself_is_refused() {
    let Mistakes(mistakes) = load("listen: unix:///a\nruntimeEndpoint: unix:///a\n", &[]).unwrap_err();
    assert!(mistakes[0].contains("call itself"), "{mistakes:?}");
}

/// Broke: `wran` was taken for a module's name, and crisp ran without a single log line.
#[test]
fn a_misspelled_level_is_a_mistake() {
    for text in ["wran", "", "crisp=debug,inf", "info,,", "crisp=loud"] {
        let Mistakes(mistakes) = load("", &[("log.level", text)]).unwrap_err();
        assert!(mistakes[0].starts_with("--log-level: "), "{text}: {mistakes:?}");
    }
    for text in ["warn", "INFO", "off", "crisp=debug,info", "info,h2=trace"] {
        assert_eq!(load("", &[("log.level", text)]).unwrap().log_level, text);
    }
}

/// Broke: the mistake was reported under an empty key, as `: unknown key`.
#[test]
fn a_file_without_keys_is_a_mistake_of_the_file() {
    for text in ["hello", "- listen", "5"] {
        let Mistakes(mistakes) = load(text, &[]).unwrap_err();
        assert_eq!(mistakes, ["file: expected keys and values, one `key: value` a line"], "{text}");
    }
}

#[test]
fn a_key_given_twice_is_a_mistake() {
    let Mistakes(mistakes) = load("stateDir: /a\nstateDir: /b\n", &[]).unwrap_err();
    assert!(mistakes[0].starts_with("not valid YAML"), "{mistakes:?}");
}

#[test]
fn flags_are_spelled_like_keys() {
    let flags: Vec<_> = fields().map(Field::flag).collect();
    for flag in
        ["listen", "runtime-endpoint", "image-endpoint", "state-dir", "admin-listen", "metrics-listen"]
    {
        assert!(flags.iter().any(|f| f == flag), "{flag} in {flags:?}");
    }
}

#[test]
fn sizes_percentages_and_labels_are_read() {
    let set = |key: &str, text: &str| load("", &[(key, text)]).map(|config| config.prepull);
    for (text, bytes) in
        [("0B", 0), ("512KiB", 512 << 10), ("500MiB", 500 << 20), ("10GiB", 10 << 30), ("2TiB", 2 << 40)]
    {
        assert_eq!(set("prepull.maxPinnedBytes", text).unwrap().max_pinned_bytes, bytes, "{text}");
    }
    for text in ["", "10", "10GB", "GiB", "-1GiB", "1.5GiB", "99999999TiB", "10 GiB"] {
        let Mistakes(mistakes) = set("prepull.maxPinnedBytes", text).unwrap_err();
        assert!(mistakes[0].starts_with("--prepull-max-pinned-bytes: expected a whole number"), "{text}");
    }
    assert_eq!(set("prepull.maxCpu", "0%").unwrap().max_cpu, 0);
    assert_eq!(set("prepull.maxCpu", "100%").unwrap().max_cpu, 100);
    for text in ["", "80", "101%", "-1%", "%", "8.5%", "300%"] {
        let Mistakes(mistakes) = set("prepull.maxCpu", text).unwrap_err();
        assert!(mistakes[0].starts_with("--prepull-max-cpu: expected a whole percentage"), "{text}");
    }
    let labels =
        set("prepull.nodeLabels", "region=north, node-role.kubernetes.io/edge=").unwrap().node_labels;
    let labels: Vec<_> = labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(labels, [("node-role.kubernetes.io/edge", ""), ("region", "north")]);
    assert!(set("prepull.nodeLabels", "").unwrap().node_labels.is_empty());
    for text in ["region", "=north", "a=b,,c=d", "a b=c", "a=b,a=c"] {
        let Mistakes(mistakes) = set("prepull.nodeLabels", text).unwrap_err();
        assert!(mistakes[0].starts_with("--prepull-node-labels: "), "{text}: {mistakes:?}");
    }
}

#[test]
fn no_record_is_kept_that_would_not_be_read() {
    let set = |text: &str| load("", &[("record.maxBody", text)]).map(|config| config.record.max_body);
    assert_eq!((set("4MiB").unwrap(), set("0B").unwrap()), (4 << 20, 0));
    for text in ["4194305B", "64MiB", "1TiB"] {
        let Mistakes(mistakes) = set(text).unwrap_err();
        assert!(mistakes[0].starts_with("--record-max-body: expected at most 4MiB"), "{mistakes:?}");
    }
}

#[test]
fn a_pre_pull_may_not_make_pins_give_way() {
    let Mistakes(mistakes) = load("prepull: {diskFloorPercent: 19%}", &[]).unwrap_err();
    assert!(
        mistakes[0].starts_with("prepull.diskFloorPercent: must not be less than prepull.pinFloor (20%)")
    );
    assert!(load("prepull: {diskFloorPercent: 10%, pinFloor: 10%}", &[]).is_ok());
}

/// The README's table of settings is this table.
#[test]
fn the_readme_documents_every_field() {
    let readme = include_str!("../../README.md");
    for Field { key, default, form, help, .. } in fields() {
        let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
        let flag = flag_of(key);
        let row = format!("| `{key}` | `{flag}` | {form} | {default} | {help} |");
        assert!(readme.contains(&row), "README.md lacks the row\n{row}");
    }
}
