//! Metrics on the port of the doors.
//!
//! # Guarantee
//! They are put together where no request waits, once at a time.

use std::sync::Arc;

use http::header::ACCEPT;
use http::{HeaderValue, Request, Response, StatusCode};
use tonic::body::Body;

use super::HttpDoor;
use super::answer::{plain, problem};
use crate::metrics::{Form, exposition_of};

impl HttpDoor {
    /// As OpenMetrics, or as the older text for collectors that ask for it.
    pub(super) async fn metrics<B>(&self, request: &Request<B>) -> Response<Body> {
        let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
        let form = Form::accepted(accept.unwrap_or_default());
        let service = Arc::clone(self.service());
        let turn = self.0.exposing.acquire().await;
        let text = tokio::task::spawn_blocking(move || exposition_of(&service, form)).await;
        drop(turn);
        let Ok(text) = text else {
            return problem(StatusCode::SERVICE_UNAVAILABLE, "metrics cannot be had now");
        };
        plain(StatusCode::OK, HeaderValue::from_static(form.content_type()), text.into())
    }
}
