//! Requests over HTTP/1 and HTTP/2: methods, paths, fields and bodies.
//!
//! # Guarantee
//! For any request that HTTP allows: it is answered; never with a status of 5xx but those that say
//! what the service cannot do now (503, 504) or over this version (505); what is said to be JSON is
//! JSON; a refusal (4xx) has a problem document with its own status and a detail; no task panics,
//! and an honest caller is answered afterwards.

use std::sync::OnceLock;

use fastrand::Rng;
use http::{Method, Request, Uri, Version};
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::Value;

use crate::live::{Answer, Live, NAMES, Sent, live};

/// Feeds the door. The first line is a method and a path, fields follow up to an empty line, the
/// rest is the body. A path that begins with `#` is the one of that number among those described.
pub fn target(bytes: &[u8]) {
    feed(live(), bytes);
}

/// The same of any service.
///
/// # Panics
/// If a property does not hold.
pub fn feed(live: &Live, bytes: &[u8]) {
    let Some((request, is_http2)) = request(bytes) else { return };
    let method = request.method().clone();
    live.runtime.block_on(async {
        let shown = format!("{method} {}", request.uri());
        let answer = match is_http2 {
            false => live.over_http1(request).await,
            true => match live.over_http2(request).await {
                Some(answer) => Some(live.read(answer).await),
                None => None,
            },
        };
        let answer = answer.unwrap_or_else(|| panic!("{shown}: no answer at all"));
        judge(&method, &answer);
        live.unharmed().await;
    });
}

/// What an answer must be.
///
/// # Panics
/// If it is not.
fn judge(method: &Method, answer: &Answer) {
    let Answer { head, body, .. } = answer;
    let status = head.status.as_u16();
    let shown = || format!("{head:?} {}", String::from_utf8_lossy(body));
    assert!(status < 500 || matches!(status, 503..=505), "{}", shown());
    let kind = head.headers.get("content-type").and_then(|kind| kind.to_str().ok());
    let kind = kind.unwrap_or_default();
    // To HEAD nobody sends a body.
    if *method == Method::HEAD || kind.starts_with("application/grpc") {
        return;
    }
    let is_json = kind.contains("json");
    let parsed: Option<Value> = serde_json::from_slice(body).ok();
    assert!(!is_json || parsed.is_some(), "not JSON: {}", shown());
    // Of what is not even read nothing more can be said than that.
    if (400..500).contains(&status) && !body.is_empty() {
        assert!(kind.starts_with("application/problem+json"), "no problem document: {}", shown());
        let problem = parsed.unwrap_or_default();
        assert_eq!(problem["status"], status, "{}", shown());
        assert!(problem["detail"].is_string() || problem["title"].is_string(), "{}", shown());
    }
}

fn request(bytes: &[u8]) -> Option<(Request<Sent>, bool)> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = match text.find("\n\n") {
        Some(end) => (&text[..end], &bytes[(end + 2).min(bytes.len())..]),
        None => (&text[..], &[][..]),
    };
    let mut lines = head.lines();
    let mut first = lines.next()?.splitn(3, ' ');
    let (method, path) = (first.next()?, first.next()?);
    let is_http2 = first.next() == Some("2");
    let path = match path.strip_prefix('#') {
        Some(number) => {
            let known = paths();
            let number: usize = number.parse().ok()?;
            known[number % known.len()].as_str()
        }
        None => path,
    };
    let method: Method = method.parse().ok()?;
    // What a connection becomes after that is not spoken here.
    if method == Method::CONNECT || !path.starts_with('/') {
        return None;
    }
    let uri: Uri = match is_http2 {
        true => format!("http://fuzz{path}").parse().ok()?,
        false => path.parse().ok()?,
    };
    let mut request = Request::builder().method(method).uri(uri);
    if !is_http2 {
        request = request.version(Version::HTTP_11).header("host", "fuzz");
    }
    for line in lines.take(64) {
        let (name, value) = line.split_once(':')?;
        // How long a body is, and what becomes of the connection, the client says.
        let is_ours = ["host", "content-length", "transfer-encoding", "connection", "upgrade"];
        let is_ours = is_ours.iter().any(|ours| name.eq_ignore_ascii_case(ours));
        if !is_ours && !name.eq_ignore_ascii_case("expect") {
            request = request.header(name, value.trim());
        }
    }
    Some((request.body(Full::new(Bytes::copy_from_slice(body))).ok()?, is_http2))
}

/// The paths that the service describes, and some that there may be.
fn paths() -> &'static [String] {
    static PATHS: OnceLock<Vec<String>> = OnceLock::new();
    PATHS.get_or_init(|| {
        let live = live();
        let asked = Request::get("/openapi.json").header("host", "fuzz").body(Sent::default());
        let asked = asked.expect("a request");
        let answer = live.runtime.block_on(live.over_http1(asked));
        let document = answer.filter(|answer| answer.head.status == 200);
        let document: Option<Value> =
            document.and_then(|answer| serde_json::from_slice(&answer.body).ok());
        let described = document.as_ref().and_then(|document| document["paths"].as_object());
        let described = described.into_iter().flat_map(|paths| paths.keys().cloned());
        let all: Vec<String> =
            described.chain(PATHS_KNOWN.iter().map(|&path| path.into())).collect();
        all
    })
}

/// Makes up a request to one of the described paths, with a body that nearly fits.
pub fn make(rng: &mut Rng) -> Vec<u8> {
    let method = if rng.u8(..6) > 0 { "POST" } else { METHODS[rng.usize(..METHODS.len())] };
    let version = if rng.bool() { " 2" } else { " 1" };
    let mut text =
        format!("{method} #{}{version}\ncontent-type: application/json\n\n{{", rng.u8(..));
    let fields = rng.usize(..6);
    for nth in 0..fields {
        let comma = if nth > 0 { "," } else { "" };
        let name = FIELDS[rng.usize(..FIELDS.len())];
        let value = match rng.u8(..8) {
            0..=3 => format!("{:?}", NAMES[rng.usize(..NAMES.len())]),
            4 => format!("{:?}", "k".repeat(rng.usize(..5_000))),
            _ => VALUES[rng.usize(..VALUES.len())].into(),
        };
        text.push_str(&format!("{comma}\"{name}\":{value}"));
    }
    text.push('}');
    text.into_bytes()
}

const METHODS: &[&str] =
    &["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "X"];
const PATHS_KNOWN: &[&str] = &[
    "/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/v1",
    "/v1/",
    "/v1/check",
    "/v1/check/",
    "/v1/nothing",
    "/v1/../healthz",
    "/%00",
    "/v1/check?policy=gcra",
    "/throttlekit.v1.RateLimiter/Check",
];
const FIELDS: &[&str] = &[
    "policy", "policy", "policy", "key", "key", "cost", "keys", "lease", "leaseId", "lease_id",
    "leases", "leaseIds", "dropped", "units", "actual", "value", "holdMs", "hold_ms", "estimate",
    "ttl", "ttlMs", "charges", "asks", "nothing", "need", "want",
];
const VALUES: &[&str] = &[
    "0",
    "1",
    "-1",
    "1.5",
    "9007199254740991",
    "9007199254740992",
    "1e400",
    "-0",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "[\"a\",\"b\"]",
    "[{\"policy\":\"gcra\",\"key\":\"k\"}]",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "1e-400",
    "[[[[[[[[]]]]]]]]",
];

/// What stands in requests.
pub const WORDS: &[&str] = &[
    "GET ",
    "POST ",
    "HEAD ",
    "OPTIONS ",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    " 2\n",
    " 1\n",
    "\n\n",
    "content-type: application/json\n",
    "content-type: application/grpc\n",
    "content-type: text/plain\n",
    "accept: text/html\n",
    "content-encoding: gzip\n",
    "authorization: Bearer x\n",
    "grpc-timeout: 1S\n",
    "te: trailers\n",
    "traceparent: 00-1-1-01\n",
    "x-forwarded-for: 1.2.3.4\n",
    "accept-encoding: gzip\n",
    "range: bytes=0-1\n",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"policy\":",
    "\"key\":",
    "\"cost\":",
    "\"gcra\"",
    "\"places\"",
    "\"tokens\"",
    "\"all\"",
    "null",
    "true",
    "1e999",
    "9007199254740993",
    "\\u0000",
    "\\ud800",
];
