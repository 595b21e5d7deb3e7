//! How answers look to people: columns, names, sizes and times.

use std::time::Duration;

use indicatif::{HumanBytes, HumanDuration};

/// How many letters of a name are shown: more than any that a registry can serve.
const MAX_NAME: usize = 500;

/// Columns as wide as they have to be.
pub(super) fn of<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut all = vec![header.map(str::to_owned)];
    all.extend(rows);
    let mut widths = [0; N];
    for row in &all {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for row in &all {
        let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// A name on one line. One that the runtime will refuse may be of any length and any letters, those included that a
/// terminal takes for orders.
pub(super) fn shown(name: &str) -> String {
    let cut = if name.chars().nth(MAX_NAME).is_some() { "..." } else { "" };
    let name = name.chars().take(MAX_NAME);
    name.map(|letter| if letter.is_control() { '?' } else { letter }).chain(cut.chars()).collect()
}

/// Somebody's words on one line, and no more than so many letters of them.
pub(super) fn words(text: &str, most: usize) -> String {
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(most) {
        Some((end, _)) => shown(text.get(..end).unwrap_or_default()) + "...",
        None => shown(&text),
    }
}

/// A time that has passed, or is left.
pub(super) fn seconds(seconds: f64) -> String {
    HumanDuration(Duration::from_secs(seconds as u64)).to_string()
}

/// The same of a duration.
pub(super) fn span(span: Duration) -> String {
    seconds(span.as_secs_f64())
}

/// A size.
pub(super) fn bytes(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}
