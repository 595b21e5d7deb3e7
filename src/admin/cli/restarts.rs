//! `crisp restarts`

use std::io::Write;
use std::path::Path;

use clap::{Arg, ArgMatches, Command};

use crate::admin::cli::form::{Form, output};
use crate::admin::cli::table::{self, shown, words};
use crate::admin::cli::{Usage, asking};
use crate::admin::client;
use crate::container::history::{Restart, Restarts};

const HEADER: [&str; 5] = ["WHEN", "POD", "CONTAINER", "ATTEMPT", "WHY"];

/// How many letters of a line are shown.
const LINE: usize = 300;

/// The command.
pub(super) fn command() -> Command {
    asking("restarts")
        .about("Show which containers were made again, and why")
        .arg(output("list"))
        .arg(
            Arg::new("of")
                .value_name("POD[/CONTAINER]")
                .help("Only those of this pod, or of one container of it"),
        )
        .arg(
            Arg::new("namespace")
                .short('n')
                .long("namespace")
                .value_name("NAMESPACE")
                .help("Only those of pods in this namespace"),
        )
}

/// Asks the crisp at this admin socket and writes the restarts.
pub async fn run(
    socket: &Path,
    matches: &ArgMatches,
    form: Form,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    let restarts: Restarts = client::get(socket, &path(text("of"), text("namespace"))?).await?;
    form.write(out, &restarts, |restarts| listed(restarts, text("of").or(text("namespace"))))
}

/// What is asked for.
fn path(of: Option<&str>, namespace: Option<&str>) -> Result<String, Usage> {
    let mut wanted = vec![("namespace", namespace)];
    match of.map(|of| of.split_once('/').unwrap_or((of, ""))) {
        None => {}
        Some((pod, container)) if !pod.is_empty() && !container.contains('/') => {
            wanted.push(("pod", Some(pod)));
            wanted.push(("container", (!container.is_empty()).then_some(container)));
        }
        Some(_) => {
            let words = "expected POD or POD/CONTAINER; give the pod's namespace with --namespace";
            return Err(Usage(words.into()));
        }
    }
    let pairs =
        wanted.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", client::escaped(value?))));
    let query: Vec<_> = pairs.collect();
    Ok(if query.is_empty() { "/v1/restarts".into() } else { format!("/v1/restarts?{}", query.join("&")) })
}

fn listed(restarts: &Restarts, of: Option<&str>) -> String {
    let mut text = match (restarts.restarts.is_empty(), of) {
        (false, _) => table::of(HEADER, restarts.restarts.iter().flat_map(rows)),
        (true, None) => "No container was made again.\n".into(),
        (true, Some(of)) if of.contains('/') => format!(
            "No container {} (POD/CONTAINER) was made again. The namespace of a pod is given with --namespace.\n",
            shown(of)
        ),
        (true, Some(of)) => format!("No container of {} was made again.\n", shown(of)),
    };
    if let Some(problem) = &restarts.only_in_memory {
        text += &format!("These are in memory only: {}\n", words(problem, LINE));
    }
    text
}

/// One line for the restart, and one for each difference.
fn rows(restart: &Restart) -> Vec<[String; HEADER.len()]> {
    let mut rows = vec![[
        restart.time.to_string(),
        shown(&format!("{}/{}", restart.namespace, restart.pod)),
        shown(&restart.container),
        restart.attempt.to_string(),
        words(&restart.words, LINE),
    ]];
    let below = |text: String| [String::new(), String::new(), String::new(), String::new(), text];
    // What else has changed is not why a container ended.
    if !restart.differences.is_empty() && restart.cause != "spec-changed" {
        rows.push(below("since then changed:".into()));
    }
    rows.extend(restart.differences.iter().map(|difference| below(format!("  {}", words(difference, LINE)))));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;

    #[test]
    fn the_question_names_what_is_wanted() {
        assert_eq!(path(None, None).unwrap(), "/v1/restarts");
        assert_eq!(path(Some("web"), None).unwrap(), "/v1/restarts?pod=web");
        assert_eq!(path(Some("web/"), None).unwrap(), "/v1/restarts?pod=web");
        let all = path(Some("web/app"), Some("a&b")).unwrap();
        assert_eq!(all, "/v1/restarts?namespace=a%26b&pod=web&container=app");
        for wrong in ["", "/app", "a/b/c"] {
            assert!(path(Some(wrong), None).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_difference_has_a_line_of_its_own() {
        let restart = Restart {
            time: Time(1_800_000_000_000),
            namespace: "shop".into(),
            pod: "web-0\x1b[2J".into(),
            container: "app".into(),
            attempt: 3,
            cause: "spec-changed".into(),
            words: "its spec\nchanged".into(),
            differences: vec!["image: busybox:1.35 → busybox:1.36".into(), "env.PASSWORD: changed".into()],
            ..Restart::default()
        };
        let text = listed(&Restarts { restarts: vec![restart], only_in_memory: None }, None);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[1].starts_with("2027-01-15T08:00:00Z  shop/web-0?[2J  app"), "{text}");
        assert!(lines[1].ends_with("3        its spec changed"), "{text}");
        assert!(lines[2].trim() == "image: busybox:1.35 → busybox:1.36", "{text}");
        assert!(lines[3].trim() == "env.PASSWORD: changed", "{text}");
        assert!(!text.contains('\x1b'));
        let none = Restarts { restarts: vec![], only_in_memory: Some("full".into()) };
        assert_eq!(
            listed(&none, Some("web")),
            "No container of web was made again.\nThese are in memory only: full\n"
        );
    }
}
