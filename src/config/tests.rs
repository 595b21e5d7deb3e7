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
    has("drain.min: unknown key; known are listen,");
    has("log: expected a single value");
    has("foo: unknown key");
    has("--metrics-listen: expected ADDR:PORT");
    assert_eq!(mistakes.len(), 6, "{mistakes:#?}");
}

/// Broke: crisp started and could then reach no runtime.
#[test]
fn a_path_too_long_for_a_socket_is_a_mistake() {
    let path = |length: usize| format!("unix:///{}", "x".repeat(length - 1));
    assert!(load("", &[("runtimeEndpoint", &path(107))]).is_ok());
    let Mistakes(mistakes) = load("", &[("runtimeEndpoint", &path(108))]).unwrap_err();
    assert!(mistakes[0].contains("at most 107 bytes"), "{mistakes:?}");
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
    let flags: Vec<_> = FIELDS.iter().map(Field::flag).collect();
    for flag in
        ["listen", "runtime-endpoint", "image-endpoint", "state-dir", "admin-listen", "metrics-listen"]
    {
        assert!(flags.iter().any(|f| f == flag), "{flag} in {flags:?}");
    }
}

/// The README's table of settings is this table.
#[test]
fn the_readme_documents_every_field() {
    let readme = include_str!("../../README.md");
    for Field { key, default, form, help, .. } in FIELDS {
        let default = if default.is_empty() { "none".to_owned() } else { format!("`{default}`") };
        let flag = flag_of(key);
        let row = format!("| `{key}` | `{flag}` | {form} | {default} | {help} |");
        assert!(readme.contains(&row), "README.md lacks the row\n{row}");
    }
}
