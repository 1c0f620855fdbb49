//! A proxy between a client and a fake upstream, over real sockets and a clock that stands still.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use admittance::ManualClock;
use admittance::budget::{MemoryAccounts, Meter};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use llm_gateway::fake::Fake;
use llm_gateway::{Config, Gateway, Metering, RawConfig, router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) type Accounts = Meter<MemoryAccounts<ManualClock>>;

/// A proxy that runs.
pub(crate) struct Stand<M> {
    pub(crate) fake: Fake,
    pub(crate) gateway: Arc<Gateway<M>>,
    pub(crate) clock: ManualClock,
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A proxy as it should be.
pub(crate) async fn stand(config: &str, fake: Fake) -> Stand<Accounts> {
    stand_with(config, fake, |meter| meter, |_| {}).await
}

/// A proxy with something else in it.
pub(crate) async fn stand_with<M: Metering>(
    config: &str,
    fake: Fake,
    wrap: impl FnOnce(Accounts) -> M,
    change: impl FnOnce(&mut Config),
) -> Stand<M> {
    let upstream = listen(fake.clone().router()).await;
    let mut raw = RawConfig::parse(config).unwrap();
    raw.upstream = format!("http://{upstream}/v1");
    let mut config = raw.resolve().unwrap();
    change(&mut config);
    let clock = ManualClock::default();
    let meter = wrap(Meter::new(MemoryAccounts::new(clock.clone())));
    let gateway = Arc::new(Gateway::new(config, Some("upstream's"), meter).unwrap());
    let address = listen(router(Arc::clone(&gateway))).await;
    let client = Client::builder(TokioExecutor::new()).build_http();
    Stand { fake, gateway, clock, address, client }
}

async fn listen(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// An answer whose head has arrived.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Body,
    text: String,
}

impl<M: Metering> Stand<M> {
    pub(crate) async fn post(&self, key: &str, body: &Value) -> Answer {
        self.send("POST", "/v1/chat/completions", key, body.to_string()).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, key: &str, body: String) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.address))
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json");
        let request = request.body(Full::from(body)).unwrap();
        let answer = self.client.request(request).await.unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = Body::new(answer.into_body());
        Answer { status, headers, body, text: String::new() }
    }

    /// How an account stands, by its place in the list.
    pub(crate) async fn account(&self, key: &str, place: usize) -> Value {
        let answer = self.send("GET", "/v1/budget", key, String::new()).await;
        assert_eq!(answer.status, StatusCode::OK);
        answer.json().await["data"][place].clone()
    }

    /// Waits until nothing runs any more, here and upstream.
    pub(crate) async fn quiet(&self) {
        let is_quiet = || {
            let upstream = self.fake.served();
            self.gateway.gate_stats().in_flight == 0 && upstream.iter().all(|one| one.is_over)
        };
        until(is_quiet).await;
    }
}

/// Lets others run until this is so. The time limit only ends a test that hangs.
pub(crate) async fn until(mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it never was so");
}

/// What a stream said.
#[derive(Debug, Default)]
pub(crate) struct Said {
    /// The tokens of the answer, in order.
    pub(crate) tokens: Vec<String>,
    pub(crate) finish_reason: Option<String>,
    pub(crate) usage: Option<Value>,
    pub(crate) error: Option<Value>,
    pub(crate) is_done: bool,
}

impl Said {
    fn hear(&mut self, data: &str) {
        assert!(!self.is_done, "nothing follows the end");
        if data == "[DONE]" {
            self.is_done = true;
            return;
        }
        let chunk: Value = serde_json::from_str(data).unwrap();
        if let Some(error) = chunk.get("error") {
            self.error = Some(error.clone());
            return;
        }
        assert_eq!(chunk["object"], "chat.completion.chunk");
        assert_eq!(chunk["id"], "chatcmpl-fake", "what the proxy adds looks like the upstream's");
        if chunk["usage"].is_object() {
            self.usage = Some(chunk["usage"].clone());
        }
        let choice = &chunk["choices"][0];
        match choice["delta"]["content"].as_str() {
            None | Some("") => {}
            Some(token) => self.tokens.push(token.trim().to_owned()),
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.finish_reason = Some(reason.to_owned());
        }
    }

    /// How many tokens came, each once and in order.
    pub(crate) fn count(&self) -> u64 {
        for (number, token) in self.tokens.iter().enumerate() {
            assert_eq!(token.trim_end_matches('.'), format!("w{number}"));
        }
        self.tokens.len() as u64
    }
}

impl Answer {
    pub(crate) async fn json(self) -> Value {
        let bytes = self.body.collect().await.unwrap().to_bytes();
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Hears a stream to its end.
    pub(crate) async fn said(mut self) -> Said {
        let mut said = Said::default();
        while self.hear(&mut said).await {}
        said
    }

    /// Hears what comes next; false at the end.
    pub(crate) async fn hear(&mut self, said: &mut Said) -> bool {
        let Some(frame) = self.body.frame().await else { return false };
        if let Ok(data) = frame.unwrap().into_data() {
            self.text += std::str::from_utf8(&data).unwrap();
        }
        while let Some((event, rest)) = self.text.split_once("\n\n") {
            said.hear(event.strip_prefix("data: ").unwrap());
            self.text = rest.to_owned();
        }
        true
    }
}

/// A request that streams, with more fields.
pub(crate) fn ask(more: Value) -> Value {
    let mut body = json!({
        "model": "fake-1",
        "stream": true,
        "messages": [{ "role": "user", "content": "Say something." }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The seed of this run.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(1);
    println!("replay with ADMITTANCE_SEED={seed}");
    seed
}

/// How many cases of each kind to try.
pub(crate) fn cases(usual: u64) -> u64 {
    if std::env::var_os("ADMITTANCE_LONG").is_some() { 10 * usual } else { usual }
}
