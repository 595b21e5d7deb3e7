//! `crisp pins`

use std::io::Write;
use std::path::Path;

use clap::Command;

use crate::admin::cli::asking;
use crate::admin::cli::form::{Form, output};
use crate::admin::cli::table::{self, bytes, shown};
use crate::admin::client;
use crate::admin::prepull::{PinItem, Pins};
use crate::prepull::time::Time;

const HEADER: [&str; 8] = ["ID", "IMAGE", "OWNER", "HOW", "SIZE", "LEFT", "CLASS", "PRIORITY"];

/// The command.
pub(super) fn command() -> Command {
    asking("pins")
        .about("Show the images that are kept on the node for their owners, pinned or parked")
        .arg(output("list"))
}

/// Asks the crisp at this admin socket and writes what is kept.
pub async fn run(socket: &Path, form: Form, out: &mut impl Write) -> anyhow::Result<()> {
    let pins: Pins = client::get(socket, "/v1/pins").await?;
    form.write(out, &pins, |pins| {
        if pins.items.is_empty() {
            return "No image is pinned or parked.\n".into();
        }
        let now = Time::now();
        let table = table::of(HEADER, pins.items.iter().map(|pin| row(pin, now)));
        format!("{table}{} pinned, {} parked\n", bytes(pins.pinned_bytes), bytes(pins.parked_bytes))
    })
}

fn row(pin: &PinItem, now: Time) -> [String; HEADER.len()] {
    let left = pin.until.map_or_else(|| "owner".to_owned(), |until| table::span(until.since(now)));
    [
        pin.id.to_string(),
        shown(&pin.image),
        shown(&pin.owner),
        pin.how.name().to_owned(),
        bytes(pin.bytes),
        left,
        pin.class.to_string(),
        pin.priority.to_string(),
    ]
}
