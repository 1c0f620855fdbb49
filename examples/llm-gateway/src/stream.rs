//! A stream that is metered while it passes.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use admittance::Permit;
use admittance::budget::Flow;
use admittance::gate::Ending;
use axum::body::{Body, Bytes};
use serde_json::Value;
use tokio::time::timeout;

use crate::chat::{Counter, Seen, Usage, ends_sentence, is_only_usage};
use crate::config::{OnSoftStop, Options};
use crate::failure::Failure;
use crate::gateway::Notes;
use crate::metering::Work;
use crate::sizes::Sizes;
use crate::upstream::Events;

/// What a request holds while it runs. Dropped, it gives back the permit and settles with what was
/// debited.
#[derive(Debug)]
pub(crate) struct Held<W> {
    pub(crate) permit: Permit,
    pub(crate) work: W,
}

impl<W: Work> Held<W> {
    /// Settles, then gives back the permit.
    pub(crate) async fn end(self, actual: u64, ending: Ending, notes: &Notes) {
        let Self { permit, work } = self;
        if work.settle(actual).await.is_err() {
            notes.unsettled.fetch_add(1, Relaxed);
        }
        match ending {
            Ending::Finish => permit.finish(),
            Ending::Ignore => permit.ignore(),
            Ending::Overload => permit.overload(),
        }
    }
}

/// A stream on its way from the upstream to the caller.
pub(crate) struct Metered<W> {
    /// Gone when the stream has ended.
    pub(crate) held: Option<Held<W>>,
    /// Gone when nothing more is wanted, which cancels the upstream.
    pub(crate) events: Option<Events>,
    pub(crate) counter: Arc<dyn Counter>,
    pub(crate) sizes: Arc<dyn Sizes>,
    pub(crate) notes: Arc<Notes>,
    pub(crate) options: Options,
    pub(crate) wants_usage: bool,
    /// Tokens of the prompt, as they were debited before.
    pub(crate) prompt: u64,
    /// Tokens that were debited since.
    pub(crate) completion: u64,
    pub(crate) choices: u64,
    pub(crate) model: String,
    pub(crate) usage: Option<Usage>,
    pub(crate) seen: Seen,
    pub(crate) is_soft: bool,
}

/// What to pass on.
enum Next {
    /// And there may be more.
    Pass(Bytes),
    /// And nothing more.
    Last(Vec<u8>),
}

impl<W: Work> Metered<W> {
    /// The stream as a response's body, which owns all that it holds.
    pub(crate) fn into_body(self) -> Body {
        let next = |metered: Option<Self>| async move {
            let mut metered = metered?;
            Some(match metered.next().await {
                Next::Pass(bytes) => (Ok::<_, Infallible>(bytes), Some(metered)),
                Next::Last(bytes) => (Ok(bytes.into()), None),
            })
        };
        Body::from_stream(futures_util::stream::unfold(Some(self), next))
    }

    async fn next(&mut self) -> Next {
        loop {
            let Some(events) = &mut self.events else { return Next::Last(Vec::new()) };
            let event = match timeout(self.options.idle, events.next()).await {
                Ok(Ok(event)) => event,
                Ok(Err(failure)) => return self.fail(failure).await,
                Err(_) => return self.fail(Failure::Silent).await,
            };
            let chunk = match event.data.as_deref() {
                // A comment keeps connections alive, and the reservation too.
                None => Value::Null,
                Some("[DONE]") => return self.done(&event.raw).await,
                Some(data) => match serde_json::from_str(data) {
                    Ok(chunk) => chunk,
                    // What cannot be read cannot be metered.
                    Err(_) => return self.fail(Failure::Broken).await,
                },
            };
            self.usage = Usage::of(&chunk).or(self.usage);
            if is_only_usage(&chunk) && !self.wants_usage {
                continue;
            }
            return match self.meter(&chunk).await {
                Ok(Flow::Stop) => self.stop(&[]).await,
                Ok(Flow::SoftStop) if self.ends_here(&chunk) => self.stop(&event.raw).await,
                Ok(_) => Next::Pass(event.raw),
                Err(failure) => self.fail(failure).await,
            };
        }
    }

    /// Debits a chunk that is about to be passed on.
    async fn meter(&mut self, chunk: &Value) -> Result<Flow, Failure> {
        self.seen.note(chunk);
        let tokens = self.counter.chunk(chunk);
        let Some(held) = &mut self.held else { return Ok(Flow::Stop) };
        held.permit.first_byte();
        let flow = held.work.debit(tokens).await?.flow;
        if flow != Flow::Stop {
            self.completion += tokens;
        }
        if flow == Flow::SoftStop && !std::mem::replace(&mut self.is_soft, true) {
            self.notes.soft_stops.fetch_add(1, Relaxed);
        }
        Ok(flow)
    }

    /// Whether a stream that was asked to come to an end does so with this chunk.
    fn ends_here(&self, chunk: &Value) -> bool {
        self.options.on_soft_stop == OnSoftStop::Sentence && ends_sentence(chunk)
    }

    /// The upstream's end: what it says it cost is the truth.
    async fn done(&mut self, raw: &[u8]) -> Next {
        let debited = self.prompt + self.completion;
        let actual = self.usage.map_or(debited, |usage| self.options.charged(usage));
        let completion = self.usage.map_or(self.completion, |usage| usage.completion);
        self.sizes.ended(&self.model, completion / self.choices.max(1));
        self.end(actual, Ending::Finish).await;
        self.notes.done.fetch_add(1, Relaxed);
        Next::Last(raw.to_vec())
    }

    /// The budget's end, after a last chunk if it was debited.
    async fn stop(&mut self, last: &[u8]) -> Next {
        let (prompt, completion) = (self.prompt, self.completion);
        self.end(prompt + completion, Ending::Finish).await;
        self.notes.stops.fetch_add(1, Relaxed);
        self.sizes.stopped(&self.model, completion / self.choices.max(1));
        let usage = self.wants_usage.then_some(Usage { prompt, completion });
        Next::Last([last, &self.seen.ended(usage)].concat())
    }

    /// Something else's end. The status has been told already, so the last event tells why.
    async fn fail(&mut self, failure: Failure) -> Next {
        self.end(self.prompt + self.completion, Ending::Overload).await;
        self.notes.failed.fetch_add(1, Relaxed);
        Next::Last(format!("data: {}\n\n", failure.body()).into_bytes())
    }

    async fn end(&mut self, actual: u64, ending: Ending) {
        self.events = None;
        if let Some(held) = self.held.take() {
            held.end(actual, ending, &self.notes).await;
        }
    }
}

impl<W> Drop for Metered<W> {
    fn drop(&mut self) {
        if self.held.is_some() {
            self.notes.hung_up.fetch_add(1, Relaxed);
        }
    }
}
