//! Spans and events of this thread, as a program would collect them.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::Registry;

/// The fields of a span or an event, and its name under `name`.
pub(crate) type Fields = BTreeMap<String, String>;

/// All that was collected since the last look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collected {
    pub(crate) spans: BTreeMap<u64, Fields>,
    pub(crate) events: Vec<Fields>,
}

#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Collected>>);

impl Collector {
    /// Collects from this thread for as long as the guard lives.
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let collector = Self::default();
        let subscriber = Registry::default().with(collector.clone());
        (collector, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn taken(&self) -> Collected {
        std::mem::take(&mut *self.0.lock().expect("not poisoned"))
    }
}

struct Into<'a>(&'a mut Fields);

impl Visit for Into<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

/// Ours only: others speak too.
fn is_ours(metadata: &tracing::Metadata<'_>) -> bool {
    metadata.target().starts_with("admittance")
}

impl<S: Subscriber> Layer<S> for Collector {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        if is_ours(attributes.metadata()) {
            let mut fields = Fields::new();
            fields.insert("name".into(), attributes.metadata().name().into());
            fields.insert("target".into(), attributes.metadata().target().into());
            attributes.record(&mut Into(&mut fields));
            self.0.lock().expect("not poisoned").spans.insert(id.into_u64(), fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some(fields) = self.0.lock().expect("not poisoned").spans.get_mut(&id.into_u64()) {
            values.record(&mut Into(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if is_ours(event.metadata()) {
            let mut fields = Fields::new();
            event.record(&mut Into(&mut fields));
            self.0.lock().expect("not poisoned").events.push(fields);
        }
    }
}
