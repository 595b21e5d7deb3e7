//! What a run of the suite saw, with everything masked that differs from run to run.

use serde::Serialize;
use serde_json::{Value, json};
use tonic::{Response, Status};

/// Times are never the same twice, but a zero stays: "not yet" is part of the answer.
const TIMES: [&str; 3] = ["created_at", "started_at", "finished_at"];

/// Statistics, and the times of their collection, may be zero in one run and not in the next.
const STATISTICS: [&str; 2] = ["value", "timestamp"];

#[derive(Debug, Default)]
pub(crate) struct Transcript {
    steps: Vec<(String, Value)>,
    masks: Vec<(String, String)>,
}

impl Transcript {
    /// From now on `text` is written as `<name>` wherever it occurs.
    pub(crate) fn mask(&mut self, name: &str, text: &str) {
        assert!(!text.is_empty(), "nothing to mask as {name}");
        self.masks.push((text.to_owned(), format!("<{name}>")));
    }

    /// Notes the answer to a call and returns its message; for calls that have to succeed.
    pub(crate) fn ok<T: Serialize>(&mut self, step: &str, answer: Result<Response<T>, Status>) -> T {
        let answer = answer.unwrap_or_else(|status| panic!("{step}: {status:?}")).into_inner();
        self.note(step, &answer);
        answer
    }

    /// Notes the answer to a call, whatever it is.
    pub(crate) fn any<T: Serialize>(&mut self, step: &str, answer: Result<Response<T>, Status>) {
        match answer {
            Ok(answer) => self.note(step, answer.get_ref()),
            Err(status) => self.error(step, &status),
        }
    }

    /// Notes the answer to a call that has to fail.
    pub(crate) fn err<T: Serialize>(&mut self, step: &str, answer: Result<Response<T>, Status>) {
        match answer {
            Ok(answer) => panic!("{step} succeeded: {}", json!(answer.get_ref())),
            Err(status) => self.error(step, &status),
        }
    }

    /// Notes anything else that was seen.
    pub(crate) fn note(&mut self, step: &str, value: impl Serialize) {
        self.steps.push((step.to_owned(), serde_json::to_value(value).expect("JSON")));
    }

    pub(crate) fn error(&mut self, step: &str, status: &Status) {
        let details = String::from_utf8_lossy(status.details()).into_owned();
        self.note(
            step,
            json!({"code": format!("{:?}", status.code()), "message": status.message(), "details": details}),
        );
    }

    /// One line per step, ready to compare. Masks count for all steps, also for those before them.
    pub(crate) fn lines(mut self) -> Vec<String> {
        // Longest first: an ID may occur inside of another text that is masked as a whole.
        self.masks.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        let masks = &self.masks;
        self.steps
            .into_iter()
            .map(|(step, mut value)| {
                mask_value(&mut value, masks);
                format!("{step}: {value}")
            })
            .collect()
    }
}

fn mask_value(value: &mut Value, masks: &[(String, String)]) {
    match value {
        Value::String(text) => {
            for (original, mask) in masks {
                *text = text.replace(original, mask);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask_value(item, masks)),
        Value::Object(fields) => {
            for (key, field) in fields {
                let time = TIMES.contains(&key.as_str()) && field.as_i64() != Some(0);
                if field.is_number() && (time || STATISTICS.contains(&key.as_str())) {
                    *field = json!("<number>");
                } else {
                    mask_value(field, masks);
                }
            }
        }
        _ => {}
    }
}
