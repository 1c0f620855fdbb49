//! Spans of the real binary, as a collector gets them, and a collector that does not.

use crate::service;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_proto::v1::{AdmitRequest, CheckRequest};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use crate::service::Service;

/// A collector that keeps what it gets.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<Span>>>,
    names: Arc<Mutex<Vec<String>>>,
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.map(|resource| resource.attributes);
            for attribute in attributes.unwrap_or_default() {
                if attribute.key == "service.name" {
                    let name = format!("{:?}", attribute.value.and_then(|value| value.value));
                    self.names.lock().expect("not poisoned").push(name);
                }
            }
            let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.spans.lock().expect("not poisoned").extend(spans);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Where it listens.
    async fn start(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let collecting = Server::builder().add_service(TraceServiceServer::new(self.clone()));
        tokio::spawn(collecting.serve_with_incoming(incoming));
        format!("http://{address}")
    }

    fn spans(&self, name: &str) -> Vec<Span> {
        let spans = self.spans.lock().expect("not poisoned");
        spans.iter().filter(|span| span.name == name).cloned().collect()
    }
}

fn attributes(span: &Span) -> BTreeMap<String, String> {
    let text = |value: Value| match value {
        Value::StringValue(text) => text,
        Value::BoolValue(is_so) => is_so.to_string(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let all = span.attributes.iter().filter_map(|attribute| {
        let value = attribute.value.clone().and_then(|value| value.value)?;
        Some((attribute.key.clone(), text(value)))
    });
    all.collect()
}

async fn client(service: &Service) -> RateLimiterClient<Channel> {
    let url = format!("http://{}", service.address);
    RateLimiterClient::connect(url).await.expect("the port is open")
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// The same, of a caller that wants no spans of it.
const UNSAMPLED: &str = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

fn check(key: &str, parent: Option<&'static str>) -> Request<CheckRequest> {
    let (policy, key) = ("api".to_owned(), key.to_owned());
    let mut request = Request::new(CheckRequest { policy, key, cost: 1 });
    if let Some(parent) = parent {
        request.metadata_mut().insert("traceparent", parent.parse().expect("ascii"));
    }
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_the_span_of_every_call_in_its_callers_trace() {
    let collector = Collector::default();
    let endpoint = collector.start().await;
    let service = Service::start(&["--otlp-endpoint", &endpoint, "--log-denials", "0"]);
    let mut client = client(&service).await;
    for _ in 0..6 {
        client.check(check("needle", Some(PARENT))).await.expect("a reply");
    }
    client.check(check("other", Some(UNSAMPLED))).await.expect("a reply");
    let unknown = AdmitRequest { policy: "nope".into(), ..AdmitRequest::default() };
    client.admit(unknown).await.expect_err("there is none");
    service.signal("TERM");
    let (code, complaints) = service.wait();
    assert_eq!((code, complaints.as_str()), (Some(0), ""));
    let mut spans = collector.spans("admittance.check");
    spans.sort_by_key(|span| span.start_time_unix_nano);
    assert_eq!(spans.len(), 6, "what its caller does not sample is not sent");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (place, span) in spans.iter().enumerate() {
        assert_eq!(hex(&span.trace_id), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(hex(&span.parent_span_id), "b7ad6b7169203331");
        let said = attributes(span);
        let is_allowed = place < 5;
        for (attribute, value) in [
            ("admittance.policy", "api"),
            ("admittance.source", "store"),
            ("admittance.allowed", if is_allowed { "true" } else { "false" }),
            ("admittance.binding_axis", if is_allowed { "" } else { "rate" }),
            ("rpc.system", "grpc"),
            ("rpc.service", "throttlekit.v1.RateLimiter"),
            ("rpc.method", "Check"),
            ("rpc.grpc.status_code", "0"),
        ] {
            assert_eq!(
                said.get(attribute).map(String::as_str),
                Some(value),
                "{attribute}: {said:?}"
            );
        }
        // That it is a server's.
        assert_eq!(span.kind, 2);
        assert!(!format!("{span:?}").contains("needle"), "{span:?}");
    }
    let [refused] = &collector.spans("admittance.admit")[..] else { panic!("one admission") };
    assert_eq!(attributes(refused)["rpc.grpc.status_code"], "5");
    assert!(refused.parent_span_id.is_empty(), "it begins a trace");
    let names = collector.names.lock().expect("not poisoned");
    assert!(names.iter().all(|name| name.contains("\"admittance\"")), "{names:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn none_of_the_calls_is_sampled_if_none_is_to_be() {
    let collector = Collector::default();
    let endpoint = collector.start().await;
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let service = Service::start_with(&["--trace-sample", "0"], &variables);
    let mut client = client(&service).await;
    client.check(check("ann", None)).await.expect("a reply");
    client.check(check("ann", Some(PARENT))).await.expect("a reply");
    service.signal("TERM");
    assert_eq!(service.wait().0, Some(0));
    let spans = collector.spans("admittance.check");
    assert_eq!(spans.len(), 1, "but for what its caller samples");
    assert!(!spans[0].parent_span_id.is_empty());
}

/// Asks more often than spans are kept for; every call is answered, and the service ends as ever.
async fn goes_on_without(endpoint: &str) -> String {
    let service = Service::start(&["--otlp-endpoint", endpoint, "--log-denials", "0"]);
    let mut calling = tokio::task::JoinSet::new();
    for caller in 0..16 {
        let mut client = client(&service).await;
        calling.spawn(async move {
            for call in 0..300 {
                let key = format!("{caller}-{call}");
                let reply = client.check(check(&key, None)).await.expect("a reply").into_inner();
                assert!(reply.decision.expect("one").allowed);
            }
        });
    }
    calling.join_all().await;
    service.signal("TERM");
    let (code, complaints) = service.wait();
    assert_eq!(code, Some(0), "{complaints}");
    complaints
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_is_said_once_and_costs_no_call() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let complaints = goes_on_without(&endpoint).await;
    let said = format!("collector {endpoint} does not take spans: ");
    assert_eq!(complaints.matches(&said).count(), 1, "{complaints}");
    assert_eq!(complaints.lines().count(), 1, "{complaints}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_costs_no_call() {
    // Connections are made by the system, and nobody reads them.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    let complaints = goes_on_without(&endpoint).await;
    assert!(complaints.lines().count() <= 1, "{complaints}");
}

#[test]
fn an_endpoint_that_is_none_is_refused() {
    let output = service::run(&["serve", "--port", "0", "--otlp-endpoint", "127.0.0.1:4317"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).expect("text");
    let wanted =
        "--otlp-endpoint \"127.0.0.1:4317\": not a URL; write e.g. http://127.0.0.1:4317\n";
    assert_eq!(said, wanted);
}
