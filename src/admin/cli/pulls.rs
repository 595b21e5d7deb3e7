//! `crisp pulls`

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use indicatif::{HumanBytes, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::admin::cli::form::Form;
use crate::admin::cli::table::{self, seconds, shown};
use crate::admin::client::{self, ClientError};
use crate::pull::progress::{Pull, PullPhase, Pulls};

/// How often a watched list is asked for. crisp itself does not look more often.
const EVERY: Duration = Duration::from_secs(1);

const HEADER: [&str; 9] = ["IMAGE", "CLASS", "PHASE", "DONE", "LAYERS", "RATE", "LEFT", "WAITING", "FOR"];

/// Live bars, one for each pull.
#[derive(Debug)]
struct Bars {
    all: MultiProgress,
    shown: HashMap<u64, ProgressBar>,
}

/// Asks the crisp at this admin socket and writes its pulls: once, or until interrupted.
pub async fn run(socket: &Path, form: Form, watch: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let text = |pulls: &Pulls| match pulls.pulls.is_empty() {
        true => "No pull is under way.\n".to_owned(),
        false => table(&pulls.pulls),
    };
    if !watch {
        return form.write(out, &ask(socket).await?, text);
    }
    let mut bars = (form == Form::Text && std::io::stdout().is_terminal()).then(Bars::new);
    loop {
        let pulls = ask(socket).await?;
        match &mut bars {
            Some(bars) => bars.show(&pulls),
            None => form.write_next(out, &pulls, text)?,
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// The pulls under way, as the crisp at this admin socket tells them.
pub(super) async fn ask(socket: &Path) -> Result<Pulls, ClientError> {
    client::get(socket, "/v1/pulls").await
}

fn table(pulls: &[Pull]) -> String {
    table::of(HEADER, pulls.iter().map(row))
}

fn row(pull: &Pull) -> [String; HEADER.len()] {
    let unknown = || "-".to_owned();
    [
        shown(&pull.image),
        pull.class.to_string(),
        phase(pull),
        done(pull),
        pull.layers_total.map_or_else(unknown, |total| format!("{}/{total}", pull.layers_done)),
        pull.rate.map_or_else(unknown, |rate| format!("{}/s", HumanBytes(rate))),
        pull.eta_seconds.map_or_else(unknown, |left| seconds(left as f64)),
        waiting(pull),
        seconds(pull.seconds),
    ]
}

fn phase(pull: &Pull) -> String {
    match pull.preemptions {
        0 => pull.phase.name().to_owned(),
        times => format!("{} (gave way {times}x)", pull.phase.name()),
    }
}

fn done(pull: &Pull) -> String {
    match pull.bytes_total {
        Some(total) => format!("{} of {}", HumanBytes(pull.bytes_done), HumanBytes(total)),
        None => "-".to_owned(),
    }
}

/// How many wait, and the pod of the first.
fn waiting(pull: &Pull) -> String {
    match &pull.pod {
        Some(pod) if pod != "/" => format!("{} ({})", pull.waiters, shown(pod)),
        _ => pull.waiters.to_string(),
    }
}

// === impl Bars ===

impl Bars {
    fn new() -> Self {
        Self { all: MultiProgress::with_draw_target(ProgressDrawTarget::stdout()), shown: HashMap::new() }
    }

    fn show(&mut self, pulls: &Pulls) {
        let here = |id: &u64| pulls.pulls.iter().any(|pull| pull.id == *id);
        let gone: Vec<_> = self.shown.extract_if(|id, _| !here(id)).collect();
        for (_, bar) in gone {
            bar.finish_and_clear();
            self.all.remove(&bar);
        }
        for pull in &pulls.pulls {
            let bar = self.shown.entry(pull.id).or_insert_with(|| self.all.add(ProgressBar::no_length()));
            draw(bar, pull);
        }
    }
}

/// Shows on a bar how far a pull is.
pub(super) fn draw(bar: &ProgressBar, pull: &Pull) {
    bar.set_style(style(pull));
    bar.set_prefix(shown(&pull.image));
    if let Some(total) = pull.bytes_total {
        bar.set_length(total);
    }
    bar.set_position(pull.bytes_done);
    let rate = pull.rate.map_or_else(String::new, |rate| format!(", {}/s", HumanBytes(rate)));
    let left = pull.eta_seconds.map_or_else(String::new, |left| format!(", {} left", seconds(left as f64)));
    bar.set_message(format!("{} {}{rate}{left}", pull.class, phase(pull)));
    bar.tick();
}

/// A bar where there is a length, else words alone. A template that cannot be read would be a mistake in this file, and
/// the default serves as well.
fn style(pull: &Pull) -> ProgressStyle {
    let sized = pull.bytes_total.is_some() && pull.phase != PullPhase::Resolving;
    let template = if sized { "{prefix} [{bar:30}] {bytes}/{total_bytes} {msg}" } else { "{prefix} {msg}" };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull::Class;

    fn pull() -> Pull {
        Pull {
            id: 1,
            image: "docker.io/library/nginx:1.27".into(),
            class: Class::Kubelet,
            phase: PullPhase::Downloading,
            pod: Some("default/web-1".into()),
            waiters: 3,
            preemptions: 0,
            seconds: 12.4,
            bytes_done: 15 << 20,
            bytes_total: Some(60 << 20),
            layers_done: 2,
            layers_total: Some(5),
            rate: Some(5 << 20),
            eta_seconds: Some(9),
        }
    }

    #[test]
    fn the_table_says_what_is_known_and_no_more() {
        let queued = Pull {
            image: "x".into(),
            class: Class::Background,
            phase: PullPhase::Queued,
            pod: None,
            waiters: 1,
            preemptions: 2,
            bytes_total: None,
            layers_total: None,
            rate: None,
            eta_seconds: None,
            ..pull()
        };
        let text = table(&[pull(), queued]);
        let lines: Vec<_> = text.lines().collect();
        let words = |line: &str| {
            line.split("  ").map(str::trim).filter(|w| !w.is_empty()).map(String::from).collect()
        };
        let (header, first, second): (Vec<_>, Vec<_>, Vec<_>) =
            (words(lines[0]), words(lines[1]), words(lines[2]));
        assert_eq!(header, HEADER);
        let image = "docker.io/library/nginx:1.27";
        let expected = [
            image,
            "kubelet",
            "downloading",
            "15.00 MiB of 60.00 MiB",
            "2/5",
            "5.00 MiB/s",
            "9 seconds",
            "3 (default/web-1)",
            "12 seconds",
        ];
        assert_eq!(first, expected);
        assert_eq!(
            second,
            ["x", "background", "queued (gave way 2x)", "-", "-", "-", "-", "1", "12 seconds"]
        );
    }

    #[test]
    fn a_hostile_name_stays_on_its_line() {
        let long = Pull { image: "a".repeat(1 << 20), pod: Some("b".repeat(1 << 20)), ..pull() };
        let orders = Pull { image: "\x1b[2J\nx".into(), pod: Some("\r/\u{9b}1m".into()), ..pull() };
        let text = table(&[long, orders]);
        assert_eq!(text.lines().count(), 3);
        assert!(text.len() < 10_000);
        assert!(text.contains("?[2J?x") && text.contains("(?/?1m)"), "{text}");
    }

    #[test]
    fn the_bars_templates_can_be_read() {
        for total in [None, Some(1)] {
            style(&Pull { bytes_total: total, ..pull() });
        }
        let mut bars = Bars::new();
        bars.show(&Pulls { pulls: vec![pull()] });
        bars.show(&Pulls { pulls: Vec::new() });
        assert!(bars.shown.is_empty());
    }
}
