//! Waiting until items are finished.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::signal::unix::Signal;

use super::screen::{Screen, finished};
use crate::admin::cli::form::Form;
use crate::admin::cli::table::{self, shown, words};
use crate::admin::cli::{exit, pulls};
use crate::admin::client::{self, ClientError, escaped};
use crate::admin::prepull::Taken;
use crate::prepull::item::{Id, State};
use crate::prepull::queue::Added;
use crate::prepull::view::{Listed, Summary};

/// How often the queue is asked.
const EVERY: Duration = Duration::from_millis(500);

/// How long a crisp that does not answer is asked on: it may be restarting.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many items are asked for by number. Beyond that a request would grow too long.
const MOST_IDS: usize = 500;

/// How much is shown of why an image could not be pulled, and how many numbers are named.
const WORDS: usize = 1000;
const MOST_NAMED: usize = 10;

const GONE: &str =
    "it is not in the queue any more: somebody has cancelled it, or it ended and was forgotten";

/// Items that somebody waits for.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    socket: &'a Path,
    owner: String,
    /// With the image of each.
    items: BTreeMap<Id, String>,
    /// What is known of each. Finished items are forgotten by a queue that has many of them, but not here.
    seen: BTreeMap<Id, Summary>,
    interrupt: Signal,
}

/// How it ended.
enum End {
    Finished,
    /// With those that are not finished.
    Interrupted(BTreeSet<Id>),
}

/// What `--wait` answers in a form for scripts.
#[derive(Debug, Serialize)]
struct Finished {
    /// As `crisp queue list` has them.
    items: Vec<Summary>,
}

/// The word for what became of a wish.
pub(super) fn result(added: Added) -> &'static str {
    match added {
        Added::New => "new",
        Added::Updated => "updated",
        Added::Restarted => "restarted",
        Added::Unchanged => "unchanged",
    }
}

// === impl Waiting ===

impl<'a> Waiting<'a> {
    pub(super) fn new(socket: &'a Path, owner: String, taken: &Taken, interrupt: Signal) -> Self {
        let items = taken.items.iter().map(|item| (item.id, item.image.clone())).collect();
        Self { socket, owner, items, seen: BTreeMap::new(), interrupt }
    }

    /// Waits, tells how it ended, and gives the exit code.
    pub(super) async fn run(mut self, mut screen: Screen<'_>, form: Form) -> anyhow::Result<u8> {
        let end = self.until_the_end(&mut screen).await;
        screen.clear();
        if let End::Interrupted(open) = end? {
            eprintln!("{}", self.farewell(&open));
            return Ok(exit::INTERRUPTED);
        }
        let failures = self.failures();
        match form {
            Form::Text => {
                let succeeded = self.items.len() - failures.len();
                screen.note(&format!("{succeeded} succeeded, {} failed", failures.len()))?;
            }
            Form::Json | Form::Yaml => {
                let finished = Finished { items: self.seen.into_values().collect() };
                form.write(&mut std::io::stdout(), &finished, |_| String::new())?;
            }
        }
        if failures.is_empty() {
            return Ok(exit::OK);
        }
        eprint!("{}", table::of(["IMAGE", "REASON", "WORDS"], failures));
        Ok(exit::FAILURE)
    }

    async fn until_the_end(&mut self, screen: &mut Screen<'_>) -> anyhow::Result<End> {
        let mut open: BTreeSet<Id> = self.items.keys().copied().collect();
        let mut answered = Instant::now();
        let mut silent = false;
        loop {
            let look = async {
                let listed = list(self.socket, &self.owner, &open).await?;
                let bytes =
                    screen.wants_bytes() && listed.items.iter().any(|item| item.state == State::Pulling);
                // Without it there is a line less, not an error.
                let pulls = if bytes { pulls::ask(self.socket).await.ok() } else { None };
                Ok((listed, pulls))
            };
            let looked: Result<_, ClientError> = tokio::select! {
                looked = look => looked,
                _ = self.interrupt.recv() => return Ok(End::Interrupted(open)),
            };
            match looked {
                Ok((listed, pulls)) => {
                    (answered, silent) = (Instant::now(), false);
                    let there = listed.items.iter().map(|item| item.id).collect();
                    for gone in open.difference(&there) {
                        self.seen.remove(gone);
                    }
                    open = listed.items.iter().filter(|item| !finished(item)).map(|item| item.id).collect();
                    self.seen.extend(listed.items.into_iter().map(|item| (item.id, item)));
                    screen.show(&self.seen, listed.paused, pulls.as_ref())?;
                    if open.is_empty() {
                        return Ok(End::Finished);
                    }
                }
                Err(error) if lasts(&error) || answered.elapsed() >= PATIENCE => return Err(error.into()),
                Err(_) if silent => {}
                Err(_) => {
                    silent = true;
                    screen.note("crisp does not answer; asking on for 60 s, as it may be restarting")?;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                _ = self.interrupt.recv() => return Ok(End::Interrupted(open)),
            }
        }
    }

    /// Image, reason and words of all that did not come.
    fn failures(&self) -> Vec<[String; 3]> {
        let failed = self.items.iter().filter_map(|(id, image)| match self.seen.get(id) {
            Some(item) if item.state == State::Succeeded => None,
            Some(item) => Some([shown(image), item.reason.name().to_owned(), words(&item.message, WORDS)]),
            None => Some([shown(image), "Gone".to_owned(), GONE.to_owned()]),
        });
        failed.collect()
    }

    fn farewell(&self, open: &BTreeSet<Id>) -> String {
        let numbers: Vec<String> = open.iter().take(MOST_NAMED).map(Id::to_string).collect();
        let which =
            if open.len() > MOST_NAMED { format!("--owner {}", self.owner) } else { numbers.join(" ") };
        let (items, them) = match open.len() {
            1 => ("the item stays", "it"),
            _ => ("the items stay", "them"),
        };
        format!(
            "crisp: interrupted; {items} queued. `crisp queue list --owner {}` shows {them}, \
             `crisp queue cancel {which}` cancels {them}",
            self.owner
        )
    }
}

/// The items as they are now, and none besides.
async fn list(socket: &Path, owner: &str, items: &BTreeSet<Id>) -> Result<Listed, ClientError> {
    let query = if items.len() <= MOST_IDS {
        items.iter().map(|id| format!("id={id}")).collect::<Vec<_>>().join("&")
    } else {
        format!("owner={}", escaped(owner))
    };
    let mut listed: Listed = client::get(socket, &format!("/v1/prepull?{query}")).await?;
    listed.items.retain(|item| items.contains(&item.id));
    Ok(listed)
}

/// Whether asking again would get the same answer.
fn lasts(error: &ClientError) -> bool {
    matches!(error, ClientError::Refused { status, .. } if status.is_client_error())
}
