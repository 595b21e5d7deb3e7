//! The crisp program: arguments → configuration → telemetry → run until a signal.

use std::process::ExitCode;

use crisp::admin::cli::{self, exit};
use crisp::admin::client::ClientError;
use crisp::app;

fn main() -> ExitCode {
    let matches = cli::command().get_matches();
    let Some((mut name, mut matches)) = matches.subcommand() else { return ExitCode::from(exit::USAGE) };
    if let Some(inner) = matches.subcommand() {
        (name, matches) = inner;
    }
    let config = match cli::config(matches) {
        Ok(config) => config,
        Err(error) => return fail(exit::CONFIG, &error),
    };
    match name {
        "serve" => match app::serve(config) {
            Ok(()) => ExitCode::from(exit::OK),
            Err(error) => {
                let config = error.is::<app::NoRuntime>() || error.is::<app::CallsItself>();
                let code = if config { exit::CONFIG } else { exit::FAILURE };
                fail(code, &format!("{error:#}"))
            }
        },
        "inspect" => {
            let image = matches.get_one::<String>("image").map(String::as_str).unwrap_or_default();
            match cli::image::inspect(image, &config.image_aci_names, json(matches), &mut std::io::stdout()) {
                Ok(()) => ExitCode::from(exit::OK),
                Err(error) => fail(exit::FAILURE, &error.to_string()),
            }
        }
        "pulls" => {
            let watch = matches.get_flag("watch");
            answer(cli::pulls::run(&config.admin_listen, json(matches), watch, &mut std::io::stdout()))
        }
        _ => answer(cli::status::run(&config.admin_listen, json(matches), &mut std::io::stdout())),
    }
}

fn json(matches: &clap::ArgMatches) -> bool {
    matches.get_one::<String>("output").is_some_and(|form| form == "json")
}

/// Asks a running crisp.
fn answer(question: impl Future<Output = anyhow::Result<()>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(question)) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) if matches!(error.downcast_ref(), Some(ClientError::Unreachable { .. })) => {
            fail(exit::UNREACHABLE, &error.to_string())
        }
        // Who reads has seen enough, as with `crisp pulls --watch | head`.
        Err(error) if is_closed_pipe(&error) => ExitCode::from(exit::OK),
        Err(error) => fail(exit::FAILURE, &error.to_string()),
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
