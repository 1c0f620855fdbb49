//! The OpenAPI document of the HTTP door, made of the table that dispatches.

use std::sync::LazyLock;

use http::{HeaderValue, Response, StatusCode};
use hyper::body::Bytes;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use tonic::body::Body;

use super::answer::plain;
use super::reply::Problem;
use super::table::{About, OPERATIONS, Operation, Reply};

/// What is served under `/openapi.json`: OpenAPI 3.1, as text.
#[must_use]
pub fn openapi() -> &'static str {
    &DOCUMENT
}

pub(super) fn served() -> Response<Body> {
    let kind = HeaderValue::from_static("application/json");
    plain(StatusCode::OK, kind, Bytes::from_static(openapi().as_bytes()))
}

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let mut text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text.push('\n');
    text
});

fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for operation in &OPERATIONS {
        let method = operation.method().as_str().to_ascii_lowercase();
        let described = described(operation, &mut generator);
        paths.insert(operation.path.to_owned(), json!({ method: described }));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Admittance",
            "summary": "Decides, for every request, whether the work may start.",
            "description": "Fields have the names of the .proto files; lowerCamelCase is \
                            understood too. Numbers are whole unless said otherwise.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": { "schemas": generator.take_definitions(true) },
    })
}

fn described(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": responses(operation, generator),
    });
    if let Some(request) = operation.request {
        described["requestBody"] = json!({
            "required": true,
            "content": { JSON: { "schema": request(generator) } },
        });
    }
    if operation.decides() {
        described["parameters"] = json!([{
            "name": "status",
            "in": "query",
            "description": "With 200 a denial is a reply like an admission, not a problem.",
            "schema": { "type": "integer", "enum": [200] },
        }]);
    }
    described
}

fn responses(operation: &Operation, generator: &mut SchemaGenerator) -> Value {
    let problem = json!(generator.subschema_for::<Problem<'static>>());
    let refused =
        |why: &str| json!({ "description": why, "content": { PROBLEM: { "schema": problem } } });
    let mut responses = Map::new();
    let mut busy = refused("The process is behind, draining, or a store could not answer.");
    match operation.reply {
        Reply::Json(reply) => {
            let content = json!({ JSON: { "schema": reply(generator) } });
            responses.insert("200".into(), json!({ "description": "Done.", "content": content }));
        }
        Reply::Decision { admitted, denied } => {
            let (admitted, denied) = (admitted(generator), denied(generator));
            let content = json!({ JSON: { "schema": admitted } });
            let headers = headers();
            let told = |why: &str, content: &Value| {
                let (description, headers) = (why, &headers);
                json!({ "description": description, "content": content, "headers": headers })
            };
            responses.insert("200".into(), told("Admitted.", &content));
            let content = json!({ PROBLEM: { "schema": denied } });
            responses
                .insert("429".into(), told("Denied by a rate, a budget or a price.", &content));
            let either = json!({ "anyOf": [denied, problem] });
            busy = told(
                "Denied by concurrency or load; or the process is behind, or a store could not \
                 answer.",
                &json!({ PROBLEM: { "schema": either } }),
            );
        }
        Reply::Ready(reply) => {
            let content = json!({ JSON: { "schema": reply(generator) } });
            let ready = json!({ "description": "Requests are taken.", "content": content });
            responses.insert("200".into(), ready);
            busy = json!({ "description": "The service is stopping.", "content": content });
        }
        Reply::Text => {
            let content = json!({ "text/plain": { "schema": { "type": "string" } } });
            responses
                .insert("200".into(), json!({ "description": "It does.", "content": content }));
            return responses.into();
        }
        Reply::Metrics => {
            let content = json!({
                "application/openmetrics-text": { "schema": { "type": "string" } },
                "text/plain": { "schema": { "type": "string" } },
            });
            responses.insert("200".into(), json!({ "description": "Text.", "content": content }));
        }
        Reply::Document | Reply::Snapshot => {
            let content = json!({ JSON: { "schema": { "type": "object" } } });
            responses.insert("200".into(), json!({ "description": "Done.", "content": content }));
        }
    }
    if let Reply::Snapshot = operation.reply {
        responses.insert("401".into(), refused("The monitor's secret is missing or wrong."));
        responses.insert("404".into(), refused("The monitor is off."));
    }
    responses.insert("503".into(), busy);
    if operation.request.is_some() {
        for (status, why) in failures(operation.about) {
            responses.insert((*status).into(), refused(why));
        }
    }
    responses.into()
}

/// How a request with a body can fail, by what it is about.
const fn failures(about: About) -> &'static [(&'static str, &'static str)] {
    const ALL: &[(&str, &str)] = &[
        ("409", "The accounts cannot be charged together."),
        ("404", "There is no such policy."),
        ("422", "The policy is of a kind that cannot do this."),
        ("400", "The request is malformed, or a number out of range."),
        ("413", "The body is too large."),
        ("415", "The body is not JSON."),
        ("504", "The request took too long."),
    ];
    match about {
        About::Accounts => ALL,
        About::Policy => ALL.split_at(1).1,
        About::Nothing => ALL.split_at(3).1,
    }
}

fn headers() -> Value {
    let text =
        |description: &str| json!({ "description": description, "schema": { "type": "string" } });
    json!({
        "RateLimit-Policy": text("Each limit: its name, quota and window in seconds."),
        "RateLimit": text("Each limit that was asked: what is left, and seconds until more is."),
        "Retry-After": {
            "description": "Seconds; absent when admitted, or if waiting does not help.",
            "schema": { "type": "integer" },
        },
        "Admittance-Source": text("`node` or `fail-mode` if the store did not decide."),
    })
}

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";
