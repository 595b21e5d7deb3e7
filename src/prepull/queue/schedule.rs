//! Who starts now.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Action, Queue, Run, Step, rules};
use crate::prepull::item::{Id, Reason, State};
use crate::pull::Class;

impl Queue {
    /// Starts what may be started.
    pub(super) fn schedule(&mut self, step: &mut Step) {
        let fresh = self.index.take_fresh();
        if self.paused {
            return;
        }
        for id in fresh {
            let joins = self.items.get(&id).is_some_and(|item| self.runs_beside(&item.source) > 0);
            if joins {
                self.start(id, step);
            }
        }
        for class in Class::ALL.into_iter().rev() {
            while self.busy(class) < self.limits.slots {
                let Some(id) = self.index.pick(class) else { break };
                self.start(id, step);
                let Some(source) = self.items.get(&id).map(|item| item.source.clone()) else { continue };
                for other in self.index.same_source(&source) {
                    if self.runs_beside(&source) == 0 {
                        break;
                    }
                    self.start(other, step);
                }
            }
        }
    }

    /// How many pull this already, or nothing if so many do that one more would be too many.
    fn runs_beside(&self, source: &str) -> usize {
        let count = self.runs.values().filter(|run| run.source == source).count();
        if count < rules::TOGETHER { count } else { 0 }
    }

    /// How many slots this class and those above it use.
    pub(super) fn busy(&self, class: Class) -> usize {
        let above = self.runs.values().filter(|run| run.class >= class);
        above.map(|run| &run.source).collect::<BTreeSet<_>>().len()
    }

    fn start(&mut self, id: Id, step: &mut Step) {
        let Some(item) = self.items.get_mut(&id).filter(|_| !self.runs.contains_key(&id)) else { return };
        self.last_token += 1;
        let run = Run {
            token: self.last_token,
            source: item.source.clone(),
            class: item.spec.class,
            flying: None,
            used: Duration::ZERO,
        };
        item.status.turn(State::Pulling, Reason::InLine, "", self.now);
        step.actions.push(Action::Start(id, run.token));
        self.runs.insert(id, run);
        self.reindex(id);
    }
}
