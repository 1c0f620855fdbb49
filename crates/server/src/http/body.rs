//! The body of a request: read whole, within a bound, and then as JSON.

use admittance::EXACT_MAX;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Request, StatusCode};
use http_body::Body;
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use schemars::SchemaGenerator;
use serde::Deserialize;
use tonic::{Code, Status};

use super::answer::Failure;
use super::table::Operation;
use crate::config::nearest;
use crate::serve::MESSAGE_MAX;

/// Whether a request says that its body is JSON, or does not say, and not that it is too long.
pub(super) fn is_readable<B: Body>(request: &Request<B>) -> Result<(), Failure> {
    if !is_json(request.headers()) {
        let wanted = "send the body as content-type: application/json, without content-encoding";
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, wanted));
    }
    let most = u64::try_from(MESSAGE_MAX).unwrap_or(u64::MAX);
    if request.body().size_hint().lower() > most {
        return Err(too_large());
    }
    Ok(())
}

/// Reads a body. Most arrive in one piece, which is not copied.
pub(super) async fn read<B>(mut body: B) -> Result<Bytes, Failure>
where
    B: Body<Data = Bytes, Error = Status> + Unpin,
{
    let (mut only, mut all) = (Bytes::new(), Vec::new());
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        // What follows a body means nothing here.
        let Ok(data) = frame.map_err(|why| broken_off(&why))?.into_data() else { continue };
        if only.len() + all.len() + data.len() > MESSAGE_MAX {
            return Err(too_large());
        }
        if only.is_empty() && all.is_empty() {
            only = data;
            continue;
        }
        if all.is_empty() {
            // No more than has come: what is only announced is not charged for.
            all.reserve(2 * (only.len() + data.len()));
            all.extend_from_slice(&std::mem::take(&mut only));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { only } else { all.into() })
}

fn too_large() -> Failure {
    let detail = format!("the body may have {MESSAGE_MAX} bytes; ask in several requests");
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

fn broken_off(why: &Status) -> Failure {
    match why.code() {
        // There was no room for the rest of it: that is our concern, and passes.
        Code::ResourceExhausted => Failure::unavailable(why.message().to_owned(), 1),
        _ => Failure::bad("the body broke off"),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let is_coded = |value: &http::HeaderValue| !value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers.get(CONTENT_ENCODING).is_some_and(is_coded) {
        return false;
    }
    let Some(given) = headers.get(CONTENT_TYPE) else { return true };
    let given = given.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    given.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// What a body asks for.
pub(super) fn parse<'a, T: Deserialize<'a>>(
    operation: &Operation,
    body: &'a [u8],
) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| malformed(operation, body, &error))
}

/// With the place, and what was probably meant. Only this way does a request cost more than its
/// parsing.
fn malformed(operation: &Operation, body: &[u8], error: &serde_json::Error) -> Failure {
    if body.is_empty() {
        return Failure::bad("the body is empty; send a JSON object, see /openapi.json");
    }
    let said = error.to_string();
    let mut detail: String = said.chars().take(SAID_MAX).collect();
    if said.chars().nth(SAID_MAX).is_some() {
        let (line, column) = (error.line(), error.column());
        detail.push_str(&format!("… at line {line} column {column}"));
    }
    if let Some(meant) = unknown_field(&said).and_then(|field| meant(operation, field)) {
        detail.push_str(&format!("; did you mean `{meant}`?"));
    } else if NUMBERS.iter().any(|wrong| said.starts_with(wrong)) {
        detail.push_str(&format!("; whole numbers are written without a point, up to {EXACT_MAX}"));
    }
    Failure::bad(detail)
}

/// The field that is not known, in the words of the parser.
fn unknown_field(said: &str) -> Option<&str> {
    said.strip_prefix("unknown field `")?.split_once("`, expected").map(|(field, _)| field)
}

/// A field of the operation that is nearly the same.
fn meant(operation: &Operation, field: &str) -> Option<String> {
    let mut generator = SchemaGenerator::default();
    let schema = operation.request?(&mut generator);
    let mut known = Vec::new();
    fields(schema.as_value(), &mut known);
    generator.definitions().values().for_each(|schema| fields(schema, &mut known));
    nearest(field, &known).map(str::to_owned)
}

fn fields<'a>(schema: &'a serde_json::Value, known: &mut Vec<&'a str>) {
    let named = schema.get("properties").and_then(serde_json::Value::as_object);
    known.extend(named.into_iter().flatten().map(|(name, _)| name.as_str()));
}

/// How the parser begins when a number is not one of ours.
const NUMBERS: [&str; 3] =
    ["invalid type: floating point", "invalid value: integer", "number out of range"];
/// The most characters of what a parser says, which quotes what it was given.
const SAID_MAX: usize = 256;
