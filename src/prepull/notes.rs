//! What attempts and dry runs tell the queue.

use tokio::sync::{mpsc, oneshot};

use crate::prepull::handle::Command;
use crate::prepull::item::{Id, Trace};
use crate::prepull::queue::{Answer, Event};

/// Tells the queue how an attempt goes.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) id: Id,
    pub(super) token: u64,
}

impl Turns {
    /// Notes on disk that a private image may be seen from now on. Nothing may be pulled before this is true.
    pub(super) async fn expose(&self, trace: Trace) -> bool {
        let (answer, answered) = oneshot::channel();
        let note = Command::Do(Event::Exposes(self.id, self.token, trace), answer);
        self.commands.send(note).await.is_ok() && matches!(answered.await, Ok(Ok(Answer::Done)))
    }

    /// Nothing can be seen any more.
    pub(super) async fn cleaned(&self) {
        // Nobody is there to hear of it when crisp shuts down; it is looked for at the next start.
        let _ = self.commands.send(Command::Report(Event::Cleaned(self.id, self.token))).await;
    }

    /// Bytes may come from now on, or not.
    pub(super) async fn tell(&self, flies: bool) {
        // Nobody is there to hear of it when crisp shuts down.
        let _ = self.commands.send(Command::Report(Event::Turn(self.id, self.token, flies))).await;
    }
}

/// Notes what may be seen although nobody has asked for it.
#[derive(Debug)]
pub(super) struct Notes(pub(super) mpsc::WeakSender<Command>);

impl Notes {
    /// Notes it on disk, and gives the number by which it is known. Nothing may be pulled without one.
    pub(super) async fn note(&self, trace: Trace) -> Option<Id> {
        let (answer, answered) = oneshot::channel();
        self.0.upgrade()?.send(Command::Do(Event::Looks(trace), answer)).await.ok()?;
        match answered.await {
            Ok(Ok(Answer::Noted(id))) => Some(id),
            _ => None,
        }
    }

    /// Nothing of it can be seen any more.
    pub(super) async fn cleaned(&self, id: Id) {
        if let Some(commands) = self.0.upgrade() {
            // Nobody is there to hear of it when crisp shuts down; it is looked for at the next start.
            let _ = commands.send(Command::Report(Event::Cleaned(id, 0))).await;
        }
    }
}
