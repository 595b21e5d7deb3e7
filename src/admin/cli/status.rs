//! `crisp status`

use std::io::Write;
use std::path::Path;

use crate::admin::cli::form::Form;
use crate::admin::client;
use crate::admin::status::Status;

/// Asks the crisp at this admin socket and writes its summary.
pub async fn run(socket: &Path, form: Form, out: &mut impl Write) -> anyhow::Result<()> {
    let status: Status = client::get(socket, "/v1/status").await?;
    form.write(out, &status, Status::to_string)
}
