//! How much of a response's body is still to come.

use bytes::Buf;
use http::header::CONTENT_LENGTH;
use http::{Response, StatusCode};
use http_body::Body;

/// Bytes of a body that are still to come, if that is known. A server that has sent them all, or
/// that sends no body with such a status, does not ask for the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due(Option<u64>);

impl Due {
    /// Before there is a response.
    pub(crate) const UNKNOWN: Self = Self(None);

    pub(crate) fn of<B: Body>(response: &Response<B>) -> Self {
        let body = response.body();
        let is_unsent =
            matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if is_unsent || body.is_end_stream() {
            return Self(Some(0));
        }
        let told = response.headers().get(CONTENT_LENGTH);
        let told = told.and_then(|told| told.to_str().ok()?.parse().ok());
        Self(told.or_else(|| body.size_hint().exact()))
    }

    /// These have come.
    pub(crate) fn take(&mut self, data: &impl Buf) {
        let length = u64::try_from(data.remaining()).unwrap_or(u64::MAX);
        self.0 = self.0.map(|due| due.saturating_sub(length));
    }

    /// Whether that was all.
    pub(crate) fn is_over(self) -> bool {
        self.0 == Some(0)
    }
}
