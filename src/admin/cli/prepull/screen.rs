//! What is shown of items while they are waited for: bars on a terminal, lines elsewhere.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::admin::cli::pulls;
use crate::admin::cli::table::{seconds, shown, words};
use crate::prepull::item::{Id, Reason, State};
use crate::prepull::time::Time;
use crate::prepull::view::Summary;
use crate::pull::progress::Pulls;

/// How many items have a line of their own on a terminal at once.
const MOST_BARS: usize = 15;

/// How much is shown of the runtime's words while an item is waited for.
const WORDS: usize = 300;

/// Where progress is shown.
pub(super) struct Screen<'a> {
    place: Place<'a>,
    /// What was said of each item last.
    said: HashMap<Id, (State, Reason)>,
    paused: bool,
}

enum Place<'a> {
    Terminal { all: MultiProgress, bars: HashMap<Id, ProgressBar>, sum: ProgressBar },
    Lines(&'a mut dyn Write),
    Nowhere,
}

// === impl Screen ===

impl<'a> Screen<'a> {
    /// On the terminal.
    pub(super) fn bars() -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        let sum = all.add(ProgressBar::no_length());
        sum.set_style(plain());
        Self::on(Place::Terminal { all, bars: HashMap::new(), sum })
    }

    /// A line for everything that changes.
    pub(super) fn lines(out: &'a mut dyn Write) -> Self {
        Self::on(Place::Lines(out))
    }

    /// Nothing at all.
    pub(super) fn silent() -> Self {
        Self::on(Place::Nowhere)
    }

    fn on(place: Place<'a>) -> Self {
        Self { place, said: HashMap::new(), paused: false }
    }

    /// Whether bytes are of any use.
    pub(super) fn wants_bytes(&self) -> bool {
        matches!(self.place, Place::Terminal { .. })
    }

    /// Says something once.
    pub(super) fn note(&mut self, text: &str) -> std::io::Result<()> {
        match &mut self.place {
            Place::Terminal { all, .. } => all.println(text),
            Place::Lines(out) => writeln!(out, "{text}").and_then(|()| out.flush()),
            Place::Nowhere => Ok(()),
        }
    }

    /// Shows items as they are now.
    pub(super) fn show(
        &mut self,
        items: &BTreeMap<Id, Summary>,
        paused: bool,
        pulls: Option<&Pulls>,
    ) -> std::io::Result<()> {
        if paused != self.paused {
            self.paused = paused;
            self.note(if paused {
                "the queue is paused; `crisp queue resume` lets it go on"
            } else {
                "the queue goes on"
            })?;
        }
        let now = Time::now();
        let lines = matches!(self.place, Place::Lines(_));
        for item in items.values() {
            let is = (item.state, item.reason);
            if self.said.insert(item.id, is) != Some(is) && (lines || finished(item)) {
                self.note(&format!("{}: {}", shown(&item.image), standing(item, now)))?;
            }
        }
        self.draw(items, pulls, now);
        Ok(())
    }

    fn draw(&mut self, items: &BTreeMap<Id, Summary>, pulls: Option<&Pulls>, now: Time) {
        let Place::Terminal { all, bars, sum } = &mut self.place else { return };
        let mut open: Vec<&Summary> = items.values().filter(|item| !finished(item)).collect();
        let count = open.len();
        // Those that move first; within them as they were asked for.
        open.sort_by_key(|item| (item.state != State::Pulling, item.id));
        open.truncate(MOST_BARS);
        let gone: Vec<_> = bars.extract_if(|id, _| !open.iter().any(|item| item.id == *id)).collect();
        for (_, bar) in gone {
            bar.finish_and_clear();
            all.remove(&bar);
        }
        for item in &open {
            let bar = bars.entry(item.id).or_insert_with(|| all.insert_before(sum, ProgressBar::no_length()));
            let pull = pulls.and_then(|pulls| pulls.pulls.iter().find(|pull| pull.image == item.source));
            match pull.filter(|_| item.state == State::Pulling) {
                Some(pull) => pulls::draw(bar, pull),
                None => {
                    bar.set_style(plain());
                    bar.set_prefix(shown(&item.image));
                    bar.set_message(standing(item, now));
                    bar.tick();
                }
            }
        }
        let more = count - open.len();
        let more = if more > 0 { format!(" ({more} more are not shown)") } else { String::new() };
        let of = items.len();
        sum.set_prefix(format!("{} of {of} finished{more}", of - count));
        sum.tick();
    }

    /// Takes everything that moves from the terminal.
    pub(super) fn clear(&mut self) {
        if let Place::Terminal { bars, sum, .. } = &mut self.place {
            bars.drain().for_each(|(_, bar)| bar.finish_and_clear());
            sum.finish_and_clear();
        }
    }
}

/// Where an item stands, in words.
pub(super) fn standing(item: &Summary, now: Time) -> String {
    let reason = match (item.state, item.reason) {
        (State::Pulling, Reason::Pulling) => String::new(),
        (_, reason) => format!(" ({})", reason.name()),
    };
    let until = item.until.filter(|_| item.state == State::Waiting).filter(|until| *until > now);
    let again = until.map_or_else(String::new, |until| {
        format!(", again in {}", seconds(until.since(now).as_secs_f64().ceil()))
    });
    let message = match item.message.is_empty() {
        true => String::new(),
        false => format!(": {}", words(&item.message, WORDS)),
    };
    format!("{}{reason}{again}{message}", item.state.name())
}

/// Whether an item has come to its end.
pub(super) fn finished(item: &Summary) -> bool {
    matches!(item.state, State::Succeeded | State::Failed)
}

/// Words on one line: a line that the terminal breaks in two cannot be taken back.
fn plain() -> ProgressStyle {
    ProgressStyle::with_template("{prefix} {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepull::item::Item;
    use crate::prepull::spec::Spec;

    fn item(state: State, reason: Reason, message: &str) -> Summary {
        let mut item = Item::new(7, "nginx:1".into(), "nginx:1".into(), Spec::of("nginx:1"), Time(0));
        item.status.turn(state, reason, message, Time(0));
        item.status.until = Some(Time(12_000));
        Summary::of(&item)
    }

    #[test]
    fn an_item_says_where_it_stands_and_why() {
        for (state, reason, message, words) in [
            (
                State::Waiting,
                Reason::Backoff,
                "no\nroute",
                "waiting (Backoff), again in 12 seconds: no route",
            ),
            (State::Pulling, Reason::Pulling, "", "pulling"),
            (State::Pulling, Reason::InLine, "", "pulling (InLine)"),
            (State::Succeeded, Reason::Present, "", "succeeded (Present)"),
            (State::Failed, Reason::NotFound, "\x1b[2J", "failed (NotFound): ?[2J"),
        ] {
            assert_eq!(standing(&item(state, reason, message), Time(0)), words);
        }
    }

    #[test]
    fn lines_are_written_for_changes_only() {
        let mut out = Vec::new();
        let mut screen = Screen::lines(&mut out);
        let mut show = |state, reason, paused| {
            screen.show(&BTreeMap::from([(7, item(state, reason, ""))]), paused, None).unwrap();
        };
        show(State::Pulling, Reason::Pulling, false);
        show(State::Pulling, Reason::Pulling, true);
        show(State::Pulling, Reason::Pulling, true);
        show(State::Succeeded, Reason::Pulled, true);
        let paused = "the queue is paused; `crisp queue resume` lets it go on";
        let expected = format!("nginx:1: pulling\n{paused}\nnginx:1: succeeded (Pulled)\n");
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn many_items_leave_room_on_the_terminal() {
        let mut screen = Screen::bars();
        let mut items: BTreeMap<Id, Summary> =
            (1..100).map(|id| (id, Summary { id, ..item(State::Waiting, Reason::Queued, "") })).collect();
        screen.show(&items, false, None).unwrap();
        items.insert(99, Summary { id: 99, ..item(State::Pulling, Reason::Pulling, "") });
        screen.show(&items, false, None).unwrap();
        let Place::Terminal { bars, .. } = &screen.place else { unreachable!() };
        assert_eq!(bars.len(), MOST_BARS);
        assert!(bars.contains_key(&99), "what moves is shown first");
        screen.clear();
    }
}
