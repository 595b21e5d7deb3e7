//! The CRI's numbers as words. A number that has no word yet stays a number; zero is the default and left out.

use super::node::Node;
use crate::cri::view;

/// The CRI's signals 1 to 34, in its order; 35 to 65 are those for real time.
const SIGNALS: [&str; 34] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

pub(super) fn signal(number: i32) -> Option<Node> {
    match number {
        35 => Some(Node::Text("SIGRTMIN".to_owned())),
        36..=50 => Some(Node::Text(format!("SIGRTMIN+{}", number - 35))),
        51..=64 => Some(Node::Text(format!("SIGRTMAX-{}", 65 - number))),
        65 => Some(Node::Text("SIGRTMAX".to_owned())),
        _ => word(number, &SIGNALS),
    }
}

pub(super) fn propagation(number: i32) -> Option<Node> {
    word(number, &["hostToContainer", "bidirectional"])
}

pub(super) fn namespace(number: i32) -> Option<Node> {
    word(number, &["container", "node", "target"])
}

pub(super) fn groups_policy(number: i32) -> Option<Node> {
    word(number, &["strict"])
}

/// A profile of seccomp or AppArmor, in the form that the CRI had before there was a message for it.
pub(super) fn profile(profile: Option<&view::SecurityProfile>, before: &str) -> String {
    match profile {
        None => before.to_owned(),
        Some(profile) => match profile.profile_type {
            0 => "runtime/default".to_owned(),
            1 => "unconfined".to_owned(),
            2 => format!("localhost/{}", profile.localhost_ref),
            other => format!("{other}/{}", profile.localhost_ref),
        },
    }
}

fn word(number: i32, words: &[&str]) -> Option<Node> {
    if number == 0 {
        return None;
    }
    let word = usize::try_from(number - 1).ok().and_then(|n| words.get(n));
    Some(word.map_or_else(|| Node::Number(number.into()), |word| Node::Text((*word).to_owned())))
}
