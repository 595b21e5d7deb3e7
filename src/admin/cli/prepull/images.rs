//! Which images are meant: those on the command line and those in files.

use std::collections::HashSet;
use std::io::Read;

use crate::image::{ImageSpec, Reference};
use crate::prepull::spec::Spec;

/// The largest file that is read.
const MAX_FILE: u64 = 16 << 20;

/// An image that was understood.
#[derive(Debug)]
pub(super) enum Named {
    Name(String),
    Spec(ImageSpec),
}

/// Reads a file, or standard input.
pub(super) fn read(path: &str) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let limit = MAX_FILE + 1;
    match path {
        "-" => std::io::stdin().lock().take(limit).read_to_end(&mut content)?,
        _ => std::fs::File::open(path)?.take(limit).read_to_end(&mut content)?,
    };
    if content.len() as u64 > MAX_FILE {
        return Err(std::io::Error::other("has more than 16 MiB"));
    }
    Ok(content)
}

/// All images that are named, each once. All mistakes are told at once, each with its place.
pub(super) fn named<'a>(
    arguments: impl Iterator<Item = &'a str>,
    files: &[&str],
) -> Result<Vec<Named>, Vec<String>> {
    let (mut found, mut mistakes, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    let mut take = |place: String, text: &str| {
        if !seen.insert(text.to_owned()) {
            return Ok(());
        }
        let named = if text.starts_with('{') {
            ImageSpec::from_json(text).map(Named::Spec).map_err(|error| error.to_string())
        } else {
            let name = Reference::parse(text).map(|_| Named::Name(text.to_owned()));
            name.map_err(|error| error.to_string())
        };
        found.push(named.map_err(|error| format!("{place}: {error}"))?);
        Ok(())
    };
    for argument in arguments {
        mistakes.extend(take(format!("IMAGE {argument:?}"), argument).err());
    }
    for file in files {
        let text = match read(file).map(String::from_utf8) {
            Ok(Ok(text)) => text,
            Ok(Err(_)) => {
                mistakes.push(format!("--file {file}: is not text"));
                continue;
            }
            Err(error) => {
                mistakes.push(format!("--file {file}: {error}"));
                continue;
            }
        };
        let lines = text.lines().enumerate().map(|(number, line)| (number + 1, without_comment(line)));
        let mut lines = lines.filter(|(_, line)| !line.is_empty()).peekable();
        if lines.peek().is_none() {
            mistakes.push(format!("--file {file}: names no image"));
        }
        for (number, line) in lines {
            mistakes.extend(take(format!("--file {file}, line {number}"), line).err());
        }
    }
    if mistakes.is_empty() { Ok(found) } else { Err(mistakes) }
}

/// No name of an image has a `#` in it.
fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

// === impl Named ===

impl Named {
    /// A spec that asks for this image.
    pub(super) fn asked_for(self, spec: Spec) -> Spec {
        match self {
            Self::Name(image) => Spec { image, ..spec },
            Self::Spec(image) => Spec { image: String::new(), image_spec: Some(Box::new(image)), ..spec },
        }
    }
}
