//! The forms in which commands answer.

use std::io::Write;

use clap::builder::PossibleValue;
use clap::{Arg, ArgMatches};
use serde::Serialize;

/// A form of an answer. JSON and YAML are for scripts: fields may be added, not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Text,
    /// A JSON document.
    Json,
    /// The same document as YAML.
    Yaml,
}

/// The flag with which it is chosen.
pub(super) fn output(what: &str) -> Arg {
    Arg::new("output")
        .short('o')
        .long("output")
        .value_name("FORM")
        .value_parser([
            PossibleValue::new("text").alias("table"),
            PossibleValue::new("json"),
            PossibleValue::new("yaml"),
        ])
        .default_value("text")
        .help(format!("Form of the {what}"))
}

// === impl Form ===

impl Form {
    /// The one that was chosen.
    pub fn of(matches: &ArgMatches) -> Self {
        match matches.try_get_one::<String>("output").ok().flatten().map(String::as_str) {
            Some("json") => Self::Json,
            Some("yaml") => Self::Yaml,
            _ => Self::Text,
        }
    }

    /// Writes an answer.
    pub fn write<T: Serialize>(
        self,
        out: &mut impl Write,
        answer: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        // Made whole first: an error of writing must stay one of writing, as a closed pipe is none at all.
        let words = match self {
            Self::Text => text(answer),
            Self::Json => serde_json::to_string_pretty(answer)? + "\n",
            Self::Yaml => serde_norway::to_string(answer)?,
        };
        out.write_all(words.as_bytes())?;
        Ok(out.flush()?)
    }

    /// Writes one answer of many: a line of JSON, a document of YAML.
    pub fn write_next<T: Serialize>(
        self,
        out: &mut impl Write,
        answer: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        match self {
            Self::Text => return self.write(out, answer, text),
            Self::Json => writeln!(out, "{}", serde_json::to_string(answer)?)?,
            Self::Yaml => write!(out, "---\n{}", serde_norway::to_string(answer)?)?,
        }
        Ok(out.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_says_the_same() {
        let answer = serde_json::json!({"items": [{"id": 7, "image": "a: b # c"}]});
        let said = |form: Form| {
            let mut out = Vec::new();
            form.write(&mut out, &answer, |_| "words\n".to_owned()).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(said(Form::Text), "words\n");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&said(Form::Json)).unwrap(), answer);
        assert_eq!(serde_norway::from_str::<serde_json::Value>(&said(Form::Yaml)).unwrap(), answer);
        let mut out = Vec::new();
        Form::Json.write_next(&mut out, &answer, |_| String::new()).unwrap();
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
    }
}
