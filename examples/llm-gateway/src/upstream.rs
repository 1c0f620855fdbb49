//! The way to the upstream. Dropping an answer cancels it.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::config::ConfigError;
use crate::failure::Failure;
use crate::sse::{Event, Parser};

/// Who answers.
#[derive(Debug)]
pub(crate) struct Upstream {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    completions: Uri,
    authorization: Option<HeaderValue>,
}

impl Upstream {
    pub(crate) fn new(base: &str, key: Option<&str>) -> Result<Self, ConfigError> {
        let address = format!("{}/chat/completions", base.trim_end_matches('/'));
        let completions: Uri = address.parse().map_err(|_| ConfigError::Upstream(base.into()))?;
        let is_tls = match completions.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(ConfigError::Upstream(base.into())),
        };
        let bearer = |key: &str| HeaderValue::from_str(&format!("Bearer {key}"));
        let authorization =
            key.map(bearer).transpose().map_err(|_| ConfigError::UpstreamKey)?.map(secret);
        let builder =
            Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).to_owned();
        let client = builder.build(connector(is_tls)?);
        Ok(Self { client, completions, authorization })
    }

    /// Asks it. The answer's head has arrived when this is ready.
    pub(crate) async fn ask(&self, body: Vec<u8>) -> Result<Response<Body>, Failure> {
        let mut request = Request::post(self.completions.clone());
        request = request.header(header::CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request.body(Full::from(body)).map_err(|_| Failure::Unreachable)?;
        let answer = self.client.request(request).await.map_err(|_| Failure::Unreachable)?;
        Ok(answer.map(Body::new))
    }
}

/// Kept out of what is printed.
fn secret(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

fn connector(is_tls: bool) -> Result<HttpsConnector<HttpConnector>, ConfigError> {
    let provider = rustls::crypto::ring::default_provider();
    let builder = HttpsConnectorBuilder::new();
    let builder = if is_tls {
        let certificates = builder.with_provider_and_native_roots(provider);
        certificates.map_err(ConfigError::Certificates)?
    } else {
        // Without TLS nobody's certificate is believed, so that none need be installed.
        let versions = rustls::DEFAULT_VERSIONS;
        let config = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_protocol_versions(versions)
            .map_err(|error| ConfigError::Certificates(std::io::Error::other(error)))?;
        let nobody = rustls::RootCertStore::empty();
        builder.with_tls_config(config.with_root_certificates(nobody).with_no_client_auth())
    };
    Ok(builder.https_or_http().enable_http1().build())
}

/// The events of an answer that streams.
#[derive(Debug)]
pub(crate) struct Events {
    body: Body,
    parser: Parser,
}

impl Events {
    pub(crate) fn new(body: Body) -> Self {
        Self { body, parser: Parser::default() }
    }

    /// The next event. An answer that ends is broken: the last event should have said so.
    pub(crate) async fn next(&mut self) -> Result<Event, Failure> {
        loop {
            if let Some(event) = self.parser.next() {
                return Ok(event);
            }
            if self.parser.is_too_long() {
                return Err(Failure::Broken);
            }
            let frame = self.body.frame().await.ok_or(Failure::Broken)?;
            if let Ok(data) = frame.map_err(|_| Failure::Broken)?.into_data() {
                self.parser.push(&data);
            }
        }
    }
}
