//! `crisp completions`

use std::io::Write;

use clap::{Arg, ArgMatches, Command};
use clap_complete::Shell;

/// The command.
pub(super) fn command() -> Command {
    Command::new("completions")
        .about("Print a script with which a shell completes crisp's commands; needs no running crisp")
        .after_help(
            "bash:  crisp completions bash > /etc/bash_completion.d/crisp\n\
             zsh:   crisp completions zsh > \"${fpath[1]}/_crisp\"\n\
             fish:  crisp completions fish > /etc/fish/completions/crisp.fish",
        )
        .arg(
            Arg::new("shell")
                .value_name("SHELL")
                .required(true)
                .value_parser(["bash", "zsh", "fish"])
                .help("The shell"),
        )
}

/// Writes the script.
pub fn run(matches: &ArgMatches, out: &mut impl Write) -> anyhow::Result<()> {
    let shell = match matches.get_one::<String>("shell").map(String::as_str) {
        Some("zsh") => Shell::Zsh,
        Some("fish") => Shell::Fish,
        _ => Shell::Bash,
    };
    // Not straight to `out`: the generator panics when it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "crisp", &mut script);
    out.write_all(&script)?;
    Ok(out.flush()?)
}
