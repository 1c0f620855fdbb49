//! An upstream for tests and for trying things out. It makes one token per chunk, and as many as a
//! seed says.
//!
//! A request's `seed` chooses the length together with the fake's own, so that a length does not
//! depend on who comes first. Its field `fake` asks for trouble, such as
//! `{"tokens": 12, "prompt": 3, "stall_after": 3}`, `{"break_after": 3}`, `{"status": 500}` or
//! `{"usage": false}`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Value, json};

/// An upstream that invents its answers.
#[derive(Clone, Debug)]
pub struct Fake {
    seed: u64,
    longest: u64,
    pace: Duration,
    log: Arc<Mutex<Vec<Served>>>,
}

/// What became of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The request's seed.
    pub seed: u64,
    /// How many tokens its answer has.
    pub tokens: u64,
    /// How many of them were made before it ended or was cancelled.
    pub made: u64,
    /// Whether it is over.
    pub is_over: bool,
    /// Whether it was cancelled before its end.
    pub is_cancelled: bool,
    /// The request.
    pub request: Value,
}

/// The trouble that a request asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Trouble {
    tokens: Option<u64>,
    prompt: Option<u64>,
    status: Option<u16>,
    stall_after: Option<u64>,
    break_after: Option<u64>,
    usage: Option<bool>,
}

impl Fake {
    /// An upstream whose answers have up to `longest` tokens.
    #[must_use]
    pub fn new(seed: u64, longest: u64) -> Self {
        Self { seed, longest: longest.max(1), pace: Duration::ZERO, log: Arc::default() }
    }

    /// The same, with a pause before each token.
    #[must_use]
    pub fn pace(self, pace: Duration) -> Self {
        Self { pace, ..self }
    }

    /// What became of the requests so far, in the order they came.
    #[must_use]
    pub fn served(&self) -> Vec<Served> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How long the answer to a request with this seed is, if nothing cuts it off.
    #[must_use]
    pub fn length(&self, seed: u64) -> u64 {
        let mixed = self.seed ^ seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        fastrand::Rng::with_seed(mixed).u64(1..=self.longest)
    }

    /// Its routes.
    pub fn router(self) -> Router {
        Router::new().route("/v1/chat/completions", post(completions)).with_state(self)
    }
}

async fn completions(State(fake): State<Fake>, Json(request): Json<Value>) -> Response {
    let trouble = Trouble::deserialize(&request["fake"]).unwrap_or_default();
    let seed = request["seed"].as_u64().unwrap_or(0);
    let wanted = trouble.tokens.unwrap_or_else(|| fake.length(seed));
    let most = request["max_tokens"].as_u64().unwrap_or(u64::MAX);
    let tokens = wanted.min(most);
    let answer = Answer {
        tokens,
        finish_reason: if wanted > most { "length" } else { "stop" },
        prompt: trouble.prompt.unwrap_or_else(|| words(&request["messages"])),
        usage: trouble.usage.unwrap_or(true),
        model: request["model"].as_str().unwrap_or("fake").to_owned(),
    };
    let is_stream = request["stream"] == true;
    let wants_usage = request["stream_options"]["include_usage"] == true;
    let log = Log::begin(&fake, Served { seed, tokens, request, ..Served::default() });
    if let Some(status) = trouble.status.and_then(|status| StatusCode::from_u16(status).ok()) {
        log.over();
        let error = json!({ "error": { "message": "as you asked", "type": "fake" } });
        return (status, [(header::RETRY_AFTER, "7")], Json(error)).into_response();
    }
    if !is_stream {
        log.made(tokens);
        if trouble.stall_after.is_some() {
            std::future::pending::<()>().await;
        }
        log.over();
        return Json(answer.whole()).into_response();
    }
    let usage = answer.usage && wants_usage;
    let state = Making { fake, log, answer: Answer { usage, ..answer }, trouble, made: 0 };
    let body = Body::from_stream(stream::unfold(Some(state), Making::next));
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// What will be answered.
struct Answer {
    tokens: u64,
    finish_reason: &'static str,
    prompt: u64,
    usage: bool,
    model: String,
}

impl Answer {
    fn usage(&self) -> Value {
        let (prompt, completion) = (self.prompt, self.tokens);
        let total = prompt + completion;
        json!({
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total,
        })
    }

    fn whole(&self) -> Value {
        let text: String = (0..self.tokens).map(word).collect();
        let message = json!({ "role": "assistant", "content": text });
        let finish_reason = self.finish_reason;
        let choice = json!({ "index": 0, "message": message, "finish_reason": finish_reason });
        let mut whole = json!({ "id": ID, "object": "chat.completion", "created": 0 });
        whole["model"] = json!(self.model);
        whole["choices"] = json!([choice]);
        if self.usage {
            whole["usage"] = self.usage();
        }
        whole
    }

    fn chunk(&self, choices: &Value) -> Value {
        json!({
            "id": ID, "object": "chat.completion.chunk", "created": 0,
            "model": self.model, "choices": choices,
        })
    }

    fn delta(&self, delta: Value, finish_reason: Option<&str>) -> Value {
        self.chunk(&json!([{ "index": 0, "delta": delta, "finish_reason": finish_reason }]))
    }
}

/// An answer that is being streamed.
struct Making {
    fake: Fake,
    log: Log,
    answer: Answer,
    trouble: Trouble,
    made: u64,
}

impl Making {
    /// The next bytes, and what is left to make; an error breaks the connection.
    async fn next(making: Option<Self>) -> Option<(Result<Bytes, Broken>, Option<Self>)> {
        let mut making = making?;
        let made = making.made;
        if making.trouble.stall_after == Some(made) {
            std::future::pending::<()>().await;
        }
        if making.trouble.break_after == Some(made) {
            making.log.over();
            return Some((Err(Broken), None));
        }
        // Let others have their turn, as a model that thinks would.
        match making.fake.pace {
            Duration::ZERO => tokio::task::yield_now().await,
            pace => tokio::time::sleep(pace).await,
        }
        let answer = &making.answer;
        if made == answer.tokens {
            making.log.over();
            return Some((Ok(Bytes::from(making.ending())), None));
        }
        let role = answer.delta(json!({ "role": "assistant", "content": "" }), None);
        let role = if made == 0 { event(&role) } else { String::new() };
        let text = role + &event(&answer.delta(json!({ "content": word(made) }), None));
        making.made += 1;
        making.log.made(making.made);
        Some((Ok(Bytes::from(text)), Some(making)))
    }

    fn ending(&self) -> String {
        let answer = &self.answer;
        let mut text = event(&answer.delta(json!({}), Some(answer.finish_reason)));
        if answer.usage {
            let mut chunk = answer.chunk(&json!([]));
            chunk["usage"] = answer.usage();
            text += &event(&chunk);
        }
        text + "data: [DONE]\n\n"
    }
}

/// Breaks a connection in the middle of an answer.
#[derive(Debug, thiserror::Error)]
#[error("broken off, as asked")]
struct Broken;

/// A request's line in the log; one that is dropped before it is over was cancelled.
struct Log {
    log: Arc<Mutex<Vec<Served>>>,
    place: usize,
}

impl Log {
    fn begin(fake: &Fake, served: Served) -> Self {
        let mut log = fake.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.push(served);
        Self { log: Arc::clone(&fake.log), place: log.len() - 1 }
    }

    fn write(&self, write: impl FnOnce(&mut Served)) {
        write(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner)[self.place]);
    }

    fn made(&self, made: u64) {
        self.write(|served| served.made = made);
    }

    fn over(&self) {
        self.write(|served| served.is_over = true);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.write(|served| {
            served.is_cancelled = !served.is_over;
            served.is_over = true;
        });
    }
}

/// The text of a token: words, and a sentence of every ten.
fn word(number: u64) -> String {
    let end = if number % 10 == 9 { "." } else { "" };
    format!("w{number}{end} ")
}

/// How many words the messages have.
fn words(messages: &Value) -> u64 {
    let texts = messages.as_array().into_iter().flatten();
    let texts = texts.filter_map(|message| message["content"].as_str());
    texts.map(|text| text.split_whitespace().count() as u64).sum()
}

fn event(chunk: &Value) -> String {
    format!("data: {chunk}\n\n")
}

const ID: &str = "chatcmpl-fake";
