//! Waiting for an answer while this process runs.

use std::time::Duration;

use admittance_core::Span;

/// The answer, unless it takes longer than the deadline while this process runs.
///
/// If the process is stopped, throttled or starved, a timer and the answer wake together, and the
/// timer would win. So the deadline is waited for in tenths, of which a stall costs one.
pub async fn within<F: Future>(deadline: Span, answer: F) -> Option<F::Output> {
    let mut answer = std::pin::pin!(answer);
    let mut left = deadline.us();
    let part = left.div_ceil(PARTS).max(PART_MIN.us());
    loop {
        let now = left.min(part);
        let waited = Duration::from_micros(now);
        if let Ok(answer) = tokio::time::timeout(waited, answer.as_mut()).await {
            return Some(answer);
        }
        left -= now;
        if left == 0 {
            return None;
        }
    }
}

/// How many parts a deadline is waited for in.
const PARTS: u64 = 10;
/// Timers have steps of a millisecond: shorter parts would add up to more than the deadline.
const PART_MIN: Span = Span::from_ms(2);
