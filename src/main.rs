//! The crisp program: arguments → configuration → telemetry → run until a signal.

use std::process::ExitCode;

use crisp::admin::cli::form::Form;
use crisp::admin::cli::{self, Usage, exit};
use crisp::admin::client::ClientError;
use crisp::app;
use crisp::config::Config;

fn main() -> ExitCode {
    let matches = cli::command().get_matches();
    let Some((name, mut matches)) = matches.subcommand() else { return ExitCode::from(exit::USAGE) };
    let mut inner = "";
    if let Some((name, found)) = matches.subcommand() {
        (inner, matches) = (name, found);
    }
    let config = match cli::config(matches) {
        Ok(config) => config,
        Err(error) => return fail(exit::CONFIG, &error),
    };
    match run(name, inner, matches, config) {
        Ok(code) => ExitCode::from(code),
        // Who reads has seen enough, as with `crisp pulls --watch | head`.
        Err(error) if name != "serve" && is_closed_pipe(&error) => ExitCode::from(exit::OK),
        Err(error) => fail(code_of(&error), &format!("{error:#}")),
    }
}

fn run(name: &str, inner: &str, matches: &clap::ArgMatches, config: Config) -> anyhow::Result<u8> {
    let (form, mut out) = (Form::of(matches), std::io::stdout());
    if name == "serve" {
        return app::serve(config).map(|()| exit::OK);
    }
    let socket = config.admin_listen.as_path();
    let question = async {
        match name {
            "prepull" => return cli::prepull::run(socket, matches, form, &mut out).await,
            "queue" => cli::queue::run(socket, inner, matches, form, &mut out).await?,
            "restarts" => cli::restarts::run(socket, matches, form, &mut out).await?,
            "links" => cli::links::run(socket, form, &mut out).await?,
            "pins" => cli::pins::run(socket, form, &mut out).await?,
            "pulls" => cli::pulls::run(socket, form, matches.get_flag("watch"), &mut out).await?,
            "image" => {
                let image = matches.get_one::<String>("image").map(String::as_str).unwrap_or_default();
                cli::image::inspect(image, &config.image_aci_names, form, &mut out)?;
            }
            "completions" => cli::completions::run(matches, &mut out)?,
            _ => cli::status::run(socket, form, &mut out).await?,
        }
        Ok(exit::OK)
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(question)
}

fn code_of(error: &anyhow::Error) -> u8 {
    if matches!(error.downcast_ref(), Some(ClientError::Unreachable { .. })) {
        exit::UNREACHABLE
    } else if error.is::<Usage>() {
        exit::USAGE
    } else if error.is::<app::NoWay>() {
        exit::CONFIG
    } else {
        exit::FAILURE
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::BrokenPipe)
}

fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("crisp: {message}");
    ExitCode::from(code)
}
