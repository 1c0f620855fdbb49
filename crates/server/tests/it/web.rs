//! A small HTTP client that judges every answer by the OpenAPI document.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex};

use admittance_server::openapi;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

/// An answer, read whole.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    pub(crate) fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap_or_default().to_owned()
    }
}

/// One connection.
pub(crate) enum Web {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Web {
    pub(crate) async fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the port is open");
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.expect("it speaks HTTP/1");
        tokio::spawn(connection);
        Self::One(sender)
    }

    /// HTTP/2 by prior knowledge.
    pub(crate) async fn to_h2(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the port is open");
        let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = shaken.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        Self::Two(sender)
    }

    /// Whatever is to be sent; the answer need not be in the document.
    pub(crate) async fn send(&mut self, mut request: Request<Full<Bytes>>) -> Reply {
        let response = match self {
            Self::One(sender) => {
                let host = "localhost".parse().expect("a name");
                request.headers_mut().entry("host").or_insert(host);
                sender.ready().await.expect("still there");
                sender.send_request(request).await
            }
            Self::Two(sender) => {
                let path = request.uri().path_and_query().expect("a path").as_str();
                let uri = format!("http://localhost{path}");
                *request.uri_mut() = uri.parse().expect("a uri");
                sender.ready().await.expect("still there");
                sender.send_request(request).await
            }
        };
        read(response.expect("an answer")).await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Reply {
        let request = Request::get(path).body(Full::default()).expect("a request");
        let reply = self.send(request).await;
        documented(&Method::GET, path, &reply).expect("documented");
        reply
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> Reply {
        self.post_text(path, body.to_string()).await
    }

    pub(crate) async fn post_text(&mut self, path: &str, body: impl Into<Bytes>) -> Reply {
        let request = Request::post(path).header(CONTENT_TYPE, "application/json");
        let request = request.body(Full::new(body.into())).expect("a request");
        let reply = self.send(request).await;
        documented(&Method::POST, path, &reply).expect("documented");
        reply
    }
}

async fn read(response: http::Response<Incoming>) -> Reply {
    let (head, body) = response.into_parts();
    let body = body.collect().await.expect("the whole body").to_bytes();
    let text = String::from_utf8(body.into()).expect("text");
    Reply { status: head.status.as_u16(), headers: head.headers, text }
}

/// Whether the document knows an answer: its status, its type, its form.
pub(crate) fn documented(method: &Method, path: &str, reply: &Reply) -> Result<(), String> {
    let document = &*DOCUMENT;
    let path = path.split('?').next().expect("a part");
    let operation = &document["paths"][path][method.as_str().to_ascii_lowercase()];
    let response = &operation["responses"][reply.status.to_string()];
    if response.is_null() {
        return Err(format!("{method} {path}: {} is not documented: {reply:?}", reply.status));
    }
    let kind = reply.header("content-type").split(';').next().expect("a part");
    let content = &response["content"][kind];
    if content.is_null() {
        return Err(format!("{method} {path}: {kind} is not documented: {reply:?}"));
    }
    if !kind.ends_with("json") {
        return Ok(());
    }
    let mut forms = FORMS.lock().expect("nobody panicked");
    let form = forms.entry(content["schema"].to_string()).or_insert_with(|| {
        let schema = json!({ "allOf": [content["schema"]], "components": document["components"] });
        jsonschema::validator_for(&schema).expect("a schema")
    });
    let said = reply.json();
    form.validate(&said).map_err(|error| format!("{method} {path}: {error}: {reply:?}"))
}

static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(openapi()).expect("our own"));
/// What answers are judged by, made once for each schema.
static FORMS: LazyLock<Mutex<HashMap<String, jsonschema::Validator>>> =
    LazyLock::new(Mutex::default);
