//! Metrics on the port of the doors.
//!
//! # Guarantee
//! They are put together where no request waits, once at a time.
//!
//! # Proven by
//! The tests below, with one that puts them together in place and one that takes no turns.

use std::sync::Arc;

use http::header::ACCEPT;
use http::{HeaderValue, Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::JoinError;
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
        let text = aside(&self.0.exposing, move || exposition_of(&service, form)).await;
        let Ok(text) = text else {
            return problem(StatusCode::SERVICE_UNAVAILABLE, "metrics cannot be had now");
        };
        plain(StatusCode::OK, HeaderValue::from_static(form.content_type()), text.into())
    }
}

/// Makes something on a thread that no request waits for, when its turn comes.
async fn aside<T: Send + 'static>(
    turns: &Semaphore,
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    let turn = turns.acquire().await;
    let made = tokio::task::spawn_blocking(make).await;
    drop(turn);
    made
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Makes one text, and says whether it was made off the worker and met no other.
    type Make = Box<dyn FnOnce() -> bool + Send>;

    /// Asks for two texts at once, on a runtime whose only worker is this thread. Whether both were
    /// made elsewhere, and the second after the first, which waits so long to meet it.
    async fn is_aside_and_alone(ask: impl AsyncFn(Make) -> bool, patience: Duration) -> bool {
        let worker = thread::current().id();
        let (begun, heard) = channel();
        let first: Make = Box::new(move || {
            let is_aside = thread::current().id() != worker;
            is_aside && heard.recv_timeout(patience).is_err()
        });
        let second: Make = Box::new(move || {
            let _ = begun.send(());
            thread::current().id() != worker
        });
        let (first, second) = tokio::join!(ask(first), ask(second));
        first && second
    }

    /// Nobody is met in it by one who takes turns: it may be short.
    const SHORT: Duration = Duration::from_millis(20);
    /// A mutant meets the other in it on any scheduler.
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn metrics_are_put_together_off_the_workers_and_once_at_a_time() {
        let turns = Semaphore::new(1);
        let ask = async |make: Make| aside(&turns, make).await.expect("it does not panic");
        assert!(is_aside_and_alone(ask, SHORT).await);
    }

    #[tokio::test]
    async fn what_is_put_together_in_place_or_without_turns_is_caught() {
        assert!(!is_aside_and_alone(async |make: Make| make(), SHORT).await);
        let turns = Semaphore::new(2);
        let ask = async |make: Make| aside(&turns, make).await.expect("it does not panic");
        assert!(!is_aside_and_alone(ask, LONG).await);
    }
}
