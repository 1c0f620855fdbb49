//! What `serve` tells operators: logs on standard error, spans to a collector.
//!
//! # Guarantee
//! - A line of text is the message and nothing before it; a line of JSON has its time, its level,
//!   where it comes from, and each field by its name.
//! - Spans wait in a queue of at most [`QUEUE_MAX`] and are lost beyond it. They leave from a
//!   thread of their own: a collector that is away or slow costs decisions nothing.
//! - Lines leave from [another thread](crate::lines), likewise.
//! - What is in the queue at the end is sent, for as long as the end may take.
//!
//! # Proven by
//! `tests/it/traces.rs`, `tests/it/logs.rs`.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use admittance_server::{DenialLog, Parents};
use clap::ValueEnum;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, SpanData, SpanExporter,
};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Event, Metadata, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::{FilterExt, Targets, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use crate::lines::Lines;
use crate::{Failure, shown};

/// What operators see, and where.
#[derive(Debug, clap::Args)]
pub(crate) struct ObserveArgs {
    /// How lines on standard error look
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) log: LogArg,
    /// The least that is logged
    #[arg(long, value_enum, default_value = "info", value_name = "LEVEL")]
    pub(crate) log_level: LevelArg,
    /// How many denials of one policy are logged in a second, at the level info; 0 for none
    #[arg(long, value_name = "NUMBER", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(0..=1_000))]
    pub(crate) log_denials: u32,
    /// Log the keys of denials as they were sent; without it they are codes
    #[arg(long)]
    pub(crate) log_keys: bool,
    /// Send spans to this collector, e.g. http://127.0.0.1:4317; also read from
    /// OTEL_EXPORTER_OTLP_ENDPOINT
    #[arg(long, value_name = "URL")]
    pub(crate) otlp_endpoint: Option<String>,
    /// The part of the calls that spans are made of, where their caller has not decided it: 0 to 1
    #[arg(long, value_name = "RATIO", default_value = "1", value_parser = ratio)]
    pub(crate) trace_sample: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogArg {
    /// Lines to read
    Text,
    /// One JSON object each
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LevelArg {
    /// Nothing at all
    Off,
    /// What ends the service
    Error,
    /// What needs somebody's attention
    Warn,
    /// What is worth knowing
    Info,
    /// What helps to find a mistake
    Debug,
}

impl From<LevelArg> for LevelFilter {
    fn from(level: LevelArg) -> Self {
        match level {
            LevelArg::Off => Self::OFF,
            LevelArg::Error => Self::ERROR,
            LevelArg::Warn => Self::WARN,
            LevelArg::Info => Self::INFO,
            LevelArg::Debug => Self::DEBUG,
        }
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "not a number from 0 to 1, such as 0.01".into())
}

impl ObserveArgs {
    /// What is logged of denials.
    pub(crate) const fn denials(&self) -> DenialLog {
        DenialLog { per_second: self.log_denials, with_keys: self.log_keys }
    }
}

/// Logs and spans, from here to the end.
pub(crate) struct Observing {
    export: Option<Export>,
    lines: Lines,
}

/// However it ends, what was logged is written.
impl Drop for Observing {
    fn drop(&mut self) {
        self.lines.finish(FLUSH_MIN);
    }
}

/// Spans on their way to a collector.
struct Export {
    provider: SdkTracerProvider,
    /// Where they leave from: not where requests are decided.
    runtime: tokio::runtime::Runtime,
}

impl Observing {
    /// Begins to log, and to send spans if there is somewhere to send them.
    pub(crate) fn start(args: &ObserveArgs) -> Result<Self, Failure> {
        let of_environment = || std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok();
        let endpoint = args.otlp_endpoint.clone().or_else(of_environment);
        let endpoint = endpoint.filter(|endpoint| !endpoint.is_empty());
        let export = endpoint.map(|endpoint| Export::start(&endpoint, args)).transpose()?;
        let writing = Lines::start(io::stderr());
        let writing = writing.map_err(|error| Failure(format!("cannot log: {error}")))?;
        let provider = export.as_ref().map(|export| &export.provider);
        let set = tracing::dispatcher::set_global_default(dispatch(args, provider, &writing));
        set.map_err(|error| Failure(format!("cannot log: {error}")))?;
        Ok(Self { export, lines: writing })
    }

    /// Which traces requests belong to.
    pub(crate) fn parents(&self) -> Parents {
        if self.export.is_none() {
            return Parents::default();
        }
        let propagator = TraceContextPropagator::new();
        Parents::new(move |span, headers| {
            let context = propagator.extract(&Headers(headers));
            if context.span().span_context().is_valid() {
                // A span that nobody samples has no parent to be set.
                let _ = span.set_parent(context);
            }
        })
    }

    /// Sends what is still to be sent, until then at most.
    pub(crate) fn finish(mut self, until: Instant) {
        if let Some(Export { provider, runtime }) = self.export.take() {
            let left = until.saturating_duration_since(Instant::now()).max(FLUSH_MIN);
            // What could not be sent is lost: nobody is left to wait for it.
            let _ = provider.shutdown_with_timeout(left);
            runtime.shutdown_background();
        }
    }
}

impl Export {
    fn start(endpoint: &str, args: &ObserveArgs) -> Result<Self, Failure> {
        let wrong = |why: &dyn fmt::Display| {
            Failure(format!(
                "--otlp-endpoint {endpoint:?}: {why}; write e.g. http://127.0.0.1:4317"
            ))
        };
        if endpoint.starts_with("https://") {
            return Err(wrong(&"spans are sent in the clear; run a collector beside the service"));
        }
        if !endpoint.starts_with("http://") {
            return Err(wrong(&"not a URL"));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("admittance-spans")
            .enable_all()
            .build()
            .map_err(|error| Failure(format!("cannot start threads: {error}")))?;
        let provider = {
            let _here = runtime.enter();
            let exporter = opentelemetry_otlp::SpanExporter::builder()
                .with_tonic()
                .with_endpoint(endpoint)
                .with_timeout(EXPORT_MAX)
                .build()
                .map_err(|error| wrong(&error))?;
            let shown = shown::printable(endpoint);
            let exporter = Telling { exporter, endpoint: shown, is_away: AtomicBool::new(false) };
            let batch = BatchConfigBuilder::default()
                .with_max_queue_size(QUEUE_MAX)
                .with_max_export_batch_size(BATCH_MAX)
                .with_scheduled_delay(BATCH_EVERY)
                .build();
            let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batch).build();
            let root = Sampler::TraceIdRatioBased(args.trace_sample);
            SdkTracerProvider::builder()
                .with_span_processor(processor)
                .with_sampler(Sampler::ParentBased(Box::new(root)))
                .with_resource(resource())
                .build()
        };
        Ok(Self { provider, runtime })
    }
}

/// What takes lines, and spans if there is somebody to send them to.
///
/// Nothing stands for spans that nobody wants: an absent layer has no filter, so whoever asks would
/// be told that spans are wanted, of every library too. Those of HTTP/2 alone took three quarters
/// of the processor.
fn dispatch(args: &ObserveArgs, spans: Option<&SdkTracerProvider>, lines: &Lines) -> Dispatch {
    let Some(provider) = spans else {
        return Registry::default().with(logging(args, lines)).into();
    };
    let spans = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("admittance"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false);
    let exported = filter_fn(is_exported).with_max_level_hint(LevelFilter::DEBUG);
    Registry::default().with(spans.with_filter(exported)).with(logging(args, lines)).into()
}

/// What becomes a line: ours as it was asked for, of others only if something is wrong.
fn logging<S>(args: &ObserveArgs, lines: &Lines) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let level = LevelFilter::from(args.log_level);
    let others = level.min(LevelFilter::WARN);
    let logged = Targets::new().with_default(others).with_target("admittance", level);
    let logged = logged.and(filter_fn(is_event).with_max_level_hint(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(lines.clone());
    match args.log {
        LogArg::Text => lines.event_format(Text).with_filter(logged).boxed(),
        LogArg::Json => {
            let json = lines.json().flatten_event(true);
            json.with_current_span(false).with_span_list(false).with_filter(logged).boxed()
        }
    }
}

/// Who sends: as the environment says, or by our own name.
fn resource() -> Resource {
    let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    let resource = Resource::builder().with_attribute(version);
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(_) => resource.build(),
        Err(_) => resource.with_service_name("admittance").build(),
    }
}

/// Spans are sent, not logged.
fn is_event(metadata: &Metadata<'_>) -> bool {
    metadata.is_event()
}

/// The spans that are sent: those of calls, and of admissions within them.
fn is_exported(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    metadata.is_span() && (target == "admittance::calls" || target == "admittance::admission")
}

/// An exporter that says when its collector stops taking spans, and when it takes them again.
#[derive(Debug)]
struct Telling<E> {
    exporter: E,
    endpoint: String,
    is_away: AtomicBool,
}

impl<E: SpanExporter> SpanExporter for Telling<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let sent = self.exporter.export(batch).await;
        let endpoint = &self.endpoint;
        match (&sent, self.is_away.swap(sent.is_err(), Ordering::Relaxed)) {
            (Err(error), false) => {
                let error = shown::printable(&error.to_string());
                tracing::warn!(
                    "collector {endpoint} does not take spans: {error}; {count} are lost, and \
                     those that come until it does"
                );
            }
            (Ok(()), true) => tracing::info!("collector {endpoint} takes spans again"),
            _ => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The headers of a request, where the parent of its span is named.
struct Headers<'a>(&'a http::HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// A message, and its fields behind it.
struct Text;

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Line::default();
        event.record(&mut line);
        writeln!(writer, "{}{}", line.message, line.fields)
    }
}

/// An event as it is read.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            name => self.fields.push_str(&format!(" {name}={}", shown::word(value))),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message.push_str(&format!("{value:?}")),
            name => self.fields.push_str(&format!(" {name}={value:?}")),
        }
    }
}

/// Spans that wait to be sent; more are lost.
const QUEUE_MAX: usize = 2_048;
/// Spans that are sent together.
const BATCH_MAX: usize = 512;
/// How long they wait for others.
const BATCH_EVERY: Duration = Duration::from_secs(1);
/// How long a collector may take.
const EXPORT_MAX: Duration = Duration::from_secs(3);
/// What it may take at the end, however late that is.
const FLUSH_MIN: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tracing::Level;

    use super::*;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        observe: ObserveArgs,
    }

    /// Who is wanted: spans of calls, spans of a library, its debugging events, lines of ours.
    fn wanted(dispatch: &Dispatch) -> [bool; 4] {
        tracing::dispatcher::with_default(dispatch, || {
            [
                tracing::span_enabled!(target: "admittance::calls", Level::DEBUG),
                tracing::span_enabled!(target: "h2::proto", Level::TRACE),
                tracing::event_enabled!(target: "h2::proto", Level::DEBUG),
                tracing::event_enabled!(target: "admittance::denials", Level::INFO),
            ]
        })
    }

    #[test]
    fn spans_that_nobody_collects_are_not_made_and_those_of_libraries_never() {
        let lines = Lines::start(io::sink()).expect("a thread");
        let provider = SdkTracerProvider::builder().build();
        for log in ["text", "json"] {
            let args = Typed::parse_from(["serve", "--log", log]).observe;
            assert_eq!(wanted(&dispatch(&args, None, &lines)), [false, false, false, true]);
            let collected = dispatch(&args, Some(&provider), &lines);
            assert_eq!(wanted(&collected), [true, false, false, true]);
            // Mutant: a layer that is absent.
            let absent = Registry::default().with(None::<tracing_subscriber::layer::Identity>);
            let absent = absent.with(logging(&args, &lines)).into();
            assert_ne!(wanted(&absent), [false, false, false, true], "it wants everything");
        }
    }

    #[test]
    fn a_ratio_lies_between_none_and_all() {
        for text in ["0", "1", "0.5", "1e-3"] {
            assert!(ratio(text).is_ok(), "{text}");
        }
        for text in ["-0.1", "1.1", "NaN", "inf", "half", ""] {
            assert!(ratio(text).is_err(), "{text}");
        }
    }
}
