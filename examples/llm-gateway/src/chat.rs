//! Requests and chunks of `/v1/chat/completions`: the few fields that matter here; the rest is
//! passed on as it came.

use std::collections::BTreeSet;

use admittance::budget::Budget;
use serde_json::{Map, Value, json};

use crate::failure::Failure;

/// Counts tokens. What it finds is debited; the upstream's usage corrects it at the end.
pub trait Counter: Send + Sync {
    /// About how many tokens a request's prompt has.
    fn prompt(&self, request: &Map<String, Value>) -> u64;

    /// How many tokens a chunk of a stream has.
    fn chunk(&self, chunk: &Value) -> u64;
}

/// The default: a token is four bytes of a prompt, and one per choice of a chunk that says
/// anything. Images in a prompt count far too much this way: give them a counter of your own.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnePerChunk;

impl Counter for OnePerChunk {
    fn prompt(&self, request: &Map<String, Value>) -> u64 {
        let part = |name| request.get(name).map_or(0, |value: &Value| value.to_string().len());
        (part("messages") + part("tools")).div_ceil(4) as u64
    }

    fn chunk(&self, chunk: &Value) -> u64 {
        choices(chunk).filter(|choice| says_anything(&choice["delta"])).count() as u64
    }
}

/// What an upstream says a request has cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Tokens of the answer, those that nobody is shown included.
    pub completion: u64,
}

impl Usage {
    /// The usage of a response or of a chunk, if it has one.
    #[must_use]
    pub fn of(value: &Value) -> Option<Self> {
        let count = |name| value["usage"][name].as_u64().map(|n| n.min(Budget::UNITS_MAX / 2));
        Some(Self { prompt: count("prompt_tokens")?, completion: count("completion_tokens")? })
    }
}

/// A request.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) body: Map<String, Value>,
    pub(crate) is_stream: bool,
    /// Whether the caller wants to see the usage of a stream.
    pub(crate) wants_usage: bool,
    /// How many answers.
    pub(crate) choices: u64,
    /// The most tokens of each.
    max_tokens: Option<u64>,
}

impl Ask {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Failure> {
        let body: Map<String, Value> = serde_json::from_slice(bytes)
            .map_err(|error| Failure::Invalid(format!("the body is no JSON object: {error}")))?;
        let number = |name: &str| match body.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number @ 1..=TOKENS_MAX) => Ok(Some(number)),
                _ => Err(Failure::Invalid(format!("`{name}` must be from 1 to {TOKENS_MAX}"))),
            },
        };
        if !body.get("messages").is_some_and(Value::is_array) {
            return Err(Failure::Invalid("`messages` must be a list".into()));
        }
        let choices = number("n")?.unwrap_or(1);
        if choices > CHOICES_MAX {
            return Err(Failure::Invalid(format!("`n` must be from 1 to {CHOICES_MAX}")));
        }
        let (newer, older) = (number("max_completion_tokens")?, number("max_tokens")?);
        let is_true = |value: Option<&Value>| value.and_then(Value::as_bool).unwrap_or(false);
        let options = body.get("stream_options");
        Ok(Self {
            is_stream: is_true(body.get("stream")),
            wants_usage: is_true(options.and_then(|options| options.get("include_usage"))),
            choices,
            max_tokens: newer.or(older),
            body,
        })
    }

    /// The model's name.
    pub(crate) fn model(&self) -> &str {
        self.body.get("model").and_then(Value::as_str).unwrap_or_default()
    }

    /// What to reserve for the answer. A stream can be ended, so the usual length will do; without
    /// a stream it is all that may come, and the usual length if the caller did not say.
    pub(crate) fn estimate(&self, size: u64) -> u64 {
        let most = self.max_tokens.unwrap_or(size);
        let each = if self.is_stream { most.min(size) } else { most };
        each.max(1).saturating_mul(self.choices).min(Budget::UNITS_MAX / 2)
    }

    /// The request as it goes to the upstream: a stream tells its usage at the end, and an answer
    /// without a stream is no longer than what was reserved for it.
    pub(crate) fn forwarded(&self, size: u64) -> Vec<u8> {
        let mut body = self.body.clone();
        if self.is_stream {
            let options = body.entry("stream_options").or_insert_with(|| json!({}));
            if !options.is_object() {
                *options = json!({});
            }
            options["include_usage"] = json!(true);
        } else if self.max_tokens.is_none() {
            body.insert("max_tokens".into(), json!(size.max(1)));
        }
        Value::Object(body).to_string().into_bytes()
    }
}

/// What is known of the chunks of a stream, for ending it as its upstream would.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    head: Map<String, Value>,
    begun: BTreeSet<u64>,
    finished: BTreeSet<u64>,
}

impl Seen {
    pub(crate) fn note(&mut self, chunk: &Value) {
        if self.head.is_empty() {
            let head = ["id", "object", "created", "model", "system_fingerprint"];
            let known = head.iter().filter_map(|name| Some((*name, chunk.get(name)?.clone())));
            self.head = known.map(|(name, value)| (name.into(), value)).collect();
        }
        for choice in choices(chunk) {
            let index = choice["index"].as_u64().unwrap_or(0);
            if self.begun.len() < CHOICES_SEEN_MAX {
                self.begun.insert(index);
            }
            if !choice["finish_reason"].is_null() && self.begun.contains(&index) {
                self.finished.insert(index);
            }
        }
    }

    /// The chunks that end a stream for want of budget.
    pub(crate) fn ended(&self, usage: Option<Usage>) -> Vec<u8> {
        let chunk = |fields: Value| {
            let mut chunk = self.head.clone();
            chunk.extend(fields.as_object().cloned().unwrap_or_default());
            format!("data: {}\n\n", Value::Object(chunk))
        };
        let length = |index| json!({ "index": index, "delta": {}, "finish_reason": "length" });
        let mut text = String::new();
        for index in self.begun.difference(&self.finished) {
            text += &chunk(json!({ "choices": [length(index)] }));
        }
        if let Some(Usage { prompt, completion }) = usage {
            let total = prompt + completion;
            text += &chunk(json!({ "choices": [], "usage": {
                "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total,
            } }));
        }
        (text + "data: [DONE]\n\n").into_bytes()
    }
}

/// Whether a chunk only tells the usage.
pub(crate) fn is_only_usage(chunk: &Value) -> bool {
    chunk["usage"].is_object() && choices(chunk).next().is_none()
}

/// Whether a chunk's text ends a sentence.
pub(crate) fn ends_sentence(chunk: &Value) -> bool {
    let text = |choice: &Value| choice["delta"]["content"].as_str().map(str::to_owned);
    choices(chunk).filter_map(text).any(|text| {
        text.ends_with('\n') || text.trim_end().ends_with(['.', '!', '?', '。', '！', '？'])
    })
}

fn choices(chunk: &Value) -> impl Iterator<Item = &Value> {
    chunk["choices"].as_array().into_iter().flatten()
}

/// Whether a delta has more than the name of a role.
fn says_anything(delta: &Value) -> bool {
    let is_something = |value: &Value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    let fields = delta.as_object().into_iter().flatten();
    fields.filter(|(name, _)| *name != "role").any(|(_, value)| is_something(value))
}

/// The longest answer that can be asked for.
const TOKENS_MAX: u64 = 10_000_000;
/// The most answers to one request.
const CHOICES_MAX: u64 = 128;
const CHOICES_SEEN_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(body: Value) -> Ask {
        Ask::parse(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_stream_reserves_the_usual_length_and_an_answer_in_one_piece_all_that_may_come() {
        let with = |stream: bool, more: Value| {
            let mut body = json!({ "messages": [], "stream": stream });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            ask(body).estimate(100)
        };
        assert_eq!(with(true, json!({})), 100);
        assert_eq!(with(true, json!({ "max_tokens": 7 })), 7);
        assert_eq!(with(true, json!({ "max_completion_tokens": 4_096, "n": 3 })), 300);
        assert_eq!(with(false, json!({})), 100);
        assert_eq!(with(false, json!({ "max_tokens": 4_096, "n": 2 })), 8_192);
    }

    #[test]
    fn an_upstream_is_asked_for_usage_and_gets_the_fields_that_nobody_here_knows() {
        let stream = ask(json!({ "messages": [], "stream": true, "x": [1], "stream_options": 3 }));
        let sent: Value = serde_json::from_slice(&stream.forwarded(9)).unwrap();
        assert_eq!(
            (&sent["stream_options"]["include_usage"], &sent["x"]),
            (&json!(true), &json!([1]))
        );
        let whole: Value =
            serde_json::from_slice(&ask(json!({ "messages": [] })).forwarded(9)).unwrap();
        assert_eq!(whole, json!({ "messages": [], "max_tokens": 9 }));
    }

    #[test]
    fn each_choice_that_says_something_is_a_token() {
        let tokens = |deltas: &[Value]| {
            let choice = |delta| json!({ "delta": delta });
            let choices: Vec<Value> = deltas.iter().map(choice).collect();
            OnePerChunk.chunk(&json!({ "choices": choices }))
        };
        assert_eq!(tokens(&[json!({ "role": "assistant", "content": "" })]), 0);
        assert_eq!(tokens(&[json!({ "content": "a" }), json!({ "tool_calls": [{}] })]), 2);
        assert_eq!(tokens(&[json!({ "refusal": null }), json!({})]), 0);
        assert_eq!(OnePerChunk.chunk(&json!({ "error": {} })), 0);
    }

    #[test]
    fn every_choice_that_was_not_finished_is_ended() {
        let mut seen = Seen::default();
        seen.note(&json!({ "id": "c", "choices": [{ "index": 0 }, { "index": 1 }] }));
        seen.note(&json!({ "choices": [{ "index": 1, "finish_reason": "stop" }] }));
        let text = String::from_utf8(seen.ended(None)).unwrap();
        let expected = json!({ "id": "c", "choices": [
            { "index": 0, "delta": {}, "finish_reason": "length" }
        ] });
        assert_eq!(text, format!("data: {expected}\n\ndata: [DONE]\n\n"));
    }
}
