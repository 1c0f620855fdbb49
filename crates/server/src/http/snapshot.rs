//! What the monitor shows, over HTTP.

use admittance_proto::v1::GetSnapshotRequest;
use admittance_proto::v1::monitor_server::Monitor;
use http::{HeaderValue, Request, StatusCode};
use tonic::Code;
use tonic::metadata::MetadataMap;

use super::HttpDoor;
use super::answer::{Answered, Failure, plain};
use crate::serve::Arriving;

impl HttpDoor {
    /// The snapshot of the gRPC door, to whom that shows it: there is one guard.
    pub(super) async fn snapshot(&self, request: &Request<Arriving>) -> Answered {
        let Some(monitor) = &self.0.monitor else {
            return Err(Failure::new(StatusCode::NOT_FOUND, "the monitor is off: --monitor on"));
        };
        let mut asked = tonic::Request::new(GetSnapshotRequest {});
        *asked.metadata_mut() = MetadataMap::from_headers(request.headers().clone());
        asked.extensions_mut().insert(request.body().peer().clone());
        match monitor.get_snapshot(asked).await {
            Ok(reply) => {
                let text = reply.into_inner().snapshot.unwrap_or_default().raw_json;
                let json = HeaderValue::from_static("application/json");
                Ok(plain(StatusCode::OK, json, text.into()))
            }
            Err(status) => {
                let code = match status.code() {
                    Code::Unauthenticated => StatusCode::UNAUTHORIZED,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                };
                Err(Failure::new(code, status.message()))
            }
        }
    }
}
