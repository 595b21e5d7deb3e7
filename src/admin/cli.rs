//! The command line: one function that describes it, one file per command beside `serve`.

pub mod completions;
pub mod form;
pub mod image;
pub mod links;
pub mod pins;
pub mod prepull;
pub mod pulls;
pub mod queue;
pub mod restarts;
pub mod status;
mod table;

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};

use self::form::output;
use crate::config::{Config, Mistakes, fields};

/// Exit codes of every command.
pub mod exit {
    /// All went well.
    pub const OK: u8 = 0;
    /// Something failed while running; an image that was waited for could not be pulled.
    pub const FAILURE: u8 = 1;
    /// The command line is wrong (clap's own code).
    pub const USAGE: u8 = 2;
    /// No running crisp could be asked.
    pub const UNREACHABLE: u8 = 69;
    /// The configuration is wrong.
    pub const CONFIG: u8 = 78;
    /// Interrupted while waiting (Ctrl-C): what was asked for stays queued.
    pub const INTERRUPTED: u8 = 130;
}

const EXIT_CODES: &str = "Exit codes: 0 all went well; 1 something failed while running, or an image that was waited for \
could not be pulled; 2 the command line is wrong; 69 no running crisp could be asked; 78 the configuration is wrong; \
130 interrupted while waiting.";

/// What a command line says is wrong in a way that only the command itself can see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// Version, git revision.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("CRISP_REVISION"), ")");

/// The whole command line.
pub fn command() -> Command {
    Command::new("crisp")
        .version(VERSION)
        .about("A CRI proxy between the kubelet and the container runtime")
        .after_help(EXIT_CODES)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("serve")
                .about("Serve the CRI on a socket, in front of the real runtime")
                .after_help(EXIT_CODES)
                .arg(config_file())
                .args(fields().map(field)),
        )
        .subcommand(
            asking("status").about("Show a summary of a running crisp").arg(output("summary")),
        )
        .subcommand(
            asking("pulls")
                .about("Show the pulls under way: who waits, how far they are")
                .arg(output("list"))
                .arg(
                    Arg::new("watch")
                        .short('w')
                        .long("watch")
                        .action(ArgAction::SetTrue)
                        .help("Go on until interrupted, once a second"),
                ),
        )
        .subcommand(prepull::command())
        .subcommand(queue::command())
        .subcommand(pins::command())
        .subcommand(restarts::command())
        .subcommand(links::command())
        .subcommand(
            Command::new("image")
                .about("Look into names and specs of images")
                .after_help(EXIT_CODES)
                .subcommand_required(true)
                .arg_required_else_help(true)
                .subcommand(
                    Command::new("inspect")
                        .about("Show how a name or an ImageSpec is understood; needs no running crisp")
                        .after_help(EXIT_CODES)
                        .arg(config_file())
                        .args(fields().filter(|f| f.key == "image.aciPrefixes").map(field))
                        .arg(output("answer"))
                        .arg(
                            Arg::new("image")
                                .value_name("REF|JSON")
                                .required(true)
                                .help("An image as pods write it, or a spec such as {\"aci\":{\"name\":\"coreos.com/etcd\"}}"),
                        ),
                ),
        )
        .subcommand(completions::command())
}

/// A command that asks a running crisp.
fn asking(name: &'static str) -> Command {
    Command::new(name)
        .after_help(EXIT_CODES)
        .arg(config_file())
        .args(fields().filter(|f| f.key == "adminListen").map(field))
}

/// Reads the configuration that a command's flags and file give. The error is ready to be shown.
pub fn config(matches: &ArgMatches) -> Result<Config, String> {
    let path = matches.try_get_one::<String>("config").ok().flatten();
    let file = path.map(std::fs::read_to_string).transpose();
    let flags = fields().filter_map(|field| {
        let value = matches.try_get_one::<String>(field.key).ok().flatten()?;
        Some((field.key, value.as_str()))
    });
    let unreadable = file.as_ref().err().map(|error| format!("the file cannot be read: {error}"));
    let loaded = Config::load(file.unwrap_or_default().as_deref(), flags);
    let mut mistakes: Vec<String> = unreadable.into_iter().collect();
    match loaded {
        Ok(config) if mistakes.is_empty() => return Ok(config),
        Ok(_) => {}
        Err(Mistakes(others)) => mistakes.extend(others),
    }
    let place = path.map(|path| format!(" (file {path})")).unwrap_or_default();
    Err(format!("the configuration is wrong{place}:\n{}", Mistakes(mistakes)))
}

fn config_file() -> Arg {
    Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_hint(ValueHint::FilePath)
        .help("YAML file with the settings below; flags win over it")
}

fn field(field: &'static crate::config::Field) -> Arg {
    let default = if field.default.is_empty() { "none" } else { field.default };
    Arg::new(field.key)
        .long(field.flag())
        .value_name(field.form)
        .help(format!("{} [key: {}] [default: {default}]", field.help, field.key))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
