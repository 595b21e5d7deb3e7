//! `crisp status`

use std::io::Write;
use std::path::Path;

use crate::admin::client::{self, ClientError};
use crate::admin::status::Status;

/// Asks the crisp at this admin socket and writes its summary.
pub async fn run(socket: &Path, json: bool, out: &mut impl Write) -> anyhow::Result<()> {
    let answer = client::get(socket, "/v1/status").await?;
    let status: Status = serde_json::from_slice(&answer)
        .map_err(|e| ClientError::Answer { path: socket.to_owned(), reason: e.to_string() })?;
    if json {
        serde_json::to_writer_pretty(&mut *out, &status)?;
        writeln!(out)?;
    } else {
        write!(out, "{status}")?;
    }
    Ok(())
}
