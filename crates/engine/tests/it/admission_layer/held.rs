//! What was admitted is held as long as the response goes on, is metered by its handler, and ends
//! once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use admittance::admission::{Charges, Request};
use admittance::budget::Flow;
use admittance::gate::Measure;
use axum::Router;
use axum::body::Bytes;
use http_body::Frame;
use tokio::io::AsyncReadExt;

use crate::admission_layer::world::{
    Far, Limits, answer, ask_for, ask_with, layer, limits, limits_of, serve, until,
};

/// Whether a stream that has begun and not ended still has its place.
async fn is_held_while_streaming<X: Charges>(
    limits: &Limits<X>,
    wrap: impl FnOnce(Router) -> Router,
) -> bool {
    let (address, mut streams) = serve(wrap).await;
    let mut streaming = ask_for(address, "/stream", "x-user: ann\r\nx-cost: 100\r\n").await;
    let stream = streams.recv().await.unwrap();
    stream.frames.send(Ok(Frame::data(Bytes::from("some")))).unwrap();
    let mut some = [0; 1_000];
    assert!(streaming.read(&mut some).await.unwrap() > 0);
    let is_held = limits.gate.stats().in_flight == 1 && limits.open() == 1;
    drop(stream.frames);
    until(|| limits.is_idle()).await;
    is_held
}

#[tokio::test]
async fn a_permit_and_a_reservation_are_held_until_the_body_ends() {
    let honest = limits(100, 1_000, 1);
    let front = layer(&honest);
    assert!(is_held_while_streaming(&honest, |app| app.layer(front)).await);
    assert_eq!(honest.gate.stats().finished, 1);
    assert_eq!(honest.left("ann").await, (99, 900), "what was expected counts");
}

#[tokio::test]
async fn a_layer_that_ends_with_the_head_is_noticed() {
    let limits = limits(100, 1_000, 1);
    let admitter = limits.admitter.clone();
    let mutant = axum::middleware::from_fn(move |request, next: axum::middleware::Next| {
        let admission = admitter.admit_sync(Request::new(b"ann").cost(100)).unwrap().admitted();
        async move {
            let response = next.run(request).await;
            admission.unwrap().finish();
            response
        }
    });
    assert!(!is_held_while_streaming(&limits, |app| app.layer(mutant)).await);
}

#[tokio::test]
async fn a_client_that_goes_away_pays_what_was_debited() {
    let limits = limits(100, 1_000, 1);
    let (address, mut streams) = serve(|app| app.layer(layer(&limits))).await;
    let streaming = ask_for(address, "/stream", "x-user: ann\r\nx-cost: 500\r\n").await;
    let stream = streams.recv().await.unwrap();
    let admitted = stream.admitted.unwrap();
    assert_eq!(admitted.debit(70).await.unwrap().unspent, 430);
    assert_eq!(limits.left("ann").await, (99, 500), "it is reserved");
    drop(streaming);
    // Whoever writes to nobody finds out; then the body is dropped, and the frames' receiver.
    until(|| {
        let _ = stream.frames.send(Ok(Frame::data(Bytes::from("more"))));
        stream.frames.is_closed()
    })
    .await;
    until(|| limits.is_idle()).await;
    assert_eq!((limits.gate.stats().ignored, limits.gate.stats().finished), (1, 0));
    assert_eq!(limits.left("ann").await, (99, 930));
    // A handle that outlives it holds nothing, and is told to stop.
    let over = admitted.debit(1).await.unwrap();
    assert_eq!((over.flow, over.decision.is_admit()), (Flow::Stop, false));
    assert_eq!(limits.left("ann").await, (99, 930));
}

#[tokio::test]
async fn a_client_that_breaks_off_its_answer_pays_what_was_expected() {
    let limits = limits(100, 1_000, 1);
    let (address, mut streams) = serve(|app| app.layer(layer(&limits))).await;
    let mut streaming = ask_for(address, "/stream", "x-user: ann\r\nx-cost: 500\r\n").await;
    let stream = streams.recv().await.unwrap();
    stream.frames.send(Ok(Frame::data(Bytes::from("some")))).unwrap();
    let mut some = [0; 1_000];
    assert!(streaming.read(&mut some).await.unwrap() > 0, "the answer has begun");
    drop(streaming);
    until(|| {
        let _ = stream.frames.send(Ok(Frame::data(Bytes::from("more"))));
        stream.frames.is_closed()
    })
    .await;
    until(|| limits.is_idle()).await;
    assert_eq!((limits.gate.stats().ignored, limits.gate.stats().finished), (1, 0));
    assert_eq!(limits.left("ann").await, (99, 500));
}

#[tokio::test]
async fn a_handler_meters_what_it_serves_and_settles_what_it_was() {
    let limits = limits(100, 1_000, 1);
    let (address, _) = serve(|app| app.layer(layer(&limits))).await;
    let text = answer(address, "/metered", "x-user: ann\r\nx-cost: 500\r\n").await;
    assert!(text.ends_with("goon goon"), "{text}");
    until(|| limits.is_idle()).await;
    assert_eq!(limits.left("ann").await, (99, 925));
}

#[tokio::test]
async fn endings_are_judged_by_status_by_body_and_by_panics() {
    let limits = limits(100, 1_000, 1);
    let (address, mut streams) = serve(|app| app.layer(layer(&limits))).await;
    let ann = "x-user: ann\r\nx-cost: 10\r\n";
    assert!(answer(address, "/busy", ann).await.ends_with("not now"));
    until(|| limits.is_idle() && limits.gate.stats().overloaded == 1).await;
    assert_eq!(limits.left("ann").await.1, 1_000, "nothing was produced");
    assert!(answer(address, "/empty", ann).await.starts_with("http/1.1 204"));
    until(|| limits.is_idle() && limits.gate.stats().finished == 1).await;
    assert_eq!(limits.left("ann").await.1, 990);
    let streaming = ask_for(address, "/stream", ann).await;
    streams.recv().await.unwrap().frames.send(Err("it broke")).unwrap();
    until(|| limits.is_idle() && limits.gate.stats().overloaded == 2).await;
    drop(streaming);
    assert_eq!(answer(address, "/panic", ann).await, "");
    until(|| limits.is_idle() && limits.gate.stats().overloaded == 3).await;
    assert_eq!(limits.left("ann").await.1, 990);
    let stats = limits.gate.stats();
    assert_eq!((stats.acquired, stats.in_flight, stats.lost), (4, 0, 0));
}

#[tokio::test]
async fn a_body_has_ended_when_all_of_its_length_was_sent() {
    let limits = limits(100, 1_000, 1);
    let (address, _) = serve(|app| app.layer(layer(&limits))).await;
    let text = answer(address, "/sized", "x-user: ann\r\nx-cost: 10\r\n").await;
    assert!(text.ends_with("fourand five"), "{text}");
    until(|| limits.is_idle()).await;
    assert_eq!((limits.gate.stats().finished, limits.gate.stats().ignored), (1, 0));
    assert_eq!(limits.left("ann").await, (99, 990));
}

#[tokio::test]
async fn streams_are_measured_by_their_head_or_their_first_data() {
    for measure in [Measure::Head, Measure::FirstData] {
        let limits = limits(100, 1_000, 1);
        let front = layer(&limits).measure(measure);
        let (address, mut streams) = serve(|app| app.layer(front)).await;
        let streaming = ask_for(address, "/stream", "x-user: ann\r\n").await;
        let stream = streams.recv().await.unwrap();
        let samples = || limits.gate.limit_stats().map_or(0, |known| known.samples);
        if measure == Measure::FirstData {
            assert_eq!(samples(), 0, "there is no data yet");
            stream.frames.send(Ok(Frame::data(Bytes::from("some")))).unwrap();
        }
        until(|| samples() == 1).await;
        assert_eq!(limits.gate.stats().in_flight, 1, "it goes on");
        drop(stream.frames);
        until(|| limits.is_idle()).await;
        assert_eq!(samples(), 1, "and its length is no sample");
        drop(streaming);
    }
}

#[tokio::test]
async fn a_client_that_goes_away_while_the_store_is_asked_leaves_nothing() {
    let limits = limits_of(100, 1_000, 1, |here| Arc::new(Far::new(here)));
    let far = Arc::clone(limits.admitter.charges());
    let (address, _) = serve(|app| app.layer(layer(&limits))).await;
    far.open(false);
    let asking = ask_for(address, "/", "x-user: ann\r\n").await;
    until(|| far.asked.load(Ordering::SeqCst) == 1).await;
    assert_eq!(limits.gate.stats().in_flight, 1);
    drop(asking);
    until(|| limits.is_idle()).await;
    far.open(true);
    assert!(answer(address, "/", "x-user: ann\r\n").await.ends_with("done"));
    until(|| limits.is_idle()).await;
    assert_eq!(limits.left("ann").await, (99, 999));
}

#[tokio::test]
async fn a_response_that_ends_while_it_is_metered_ends_when_that_is_done_or_given_up() {
    for is_given_up in [false, true] {
        let limits = limits_of(100, 1_000, 1, |here| Arc::new(Far::new(here)));
        let far = Arc::clone(limits.admitter.charges());
        let (address, mut streams) = serve(|app| app.layer(layer(&limits))).await;
        let streaming = ask_for(address, "/stream", "x-user: ann\r\nx-cost: 500\r\n").await;
        let stream = streams.recv().await.unwrap();
        far.open(false);
        let asked = far.asked.load(Ordering::SeqCst);
        let admitted = stream.admitted.unwrap();
        let debiting = tokio::spawn(async move { admitted.debit(70).await });
        until(|| far.asked.load(Ordering::SeqCst) == asked + 1).await;
        drop((stream.frames, streaming));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(limits.gate.stats().in_flight, 1, "it is in use");
        if is_given_up {
            debiting.abort();
            until(|| limits.gate.stats().in_flight == 0).await;
        }
        far.open(true);
        until(|| limits.is_idle()).await;
        let left = if is_given_up { 500 } else { 930 };
        assert_eq!(limits.left("ann").await, (99, left), "{is_given_up}");
    }
}

/// Nobody sends the body of an answer to HEAD, so nobody asks for its end: that is not a client
/// that went away.
#[tokio::test]
async fn a_response_whose_body_is_not_sent_has_ended_with_its_head() {
    let limits = limits(100, 1_000, 1);
    let (address, mut streams) = serve(|app| app.layer(layer(&limits))).await;
    for (nth, path) in ["/", "/sized", "/stream", "/unmodified"].into_iter().enumerate() {
        let method = if path == "/unmodified" { "GET" } else { "HEAD" };
        let mut asked = ask_with(method, address, path, "x-user: ann\r\nx-cost: 10\r\n").await;
        let mut text = String::new();
        asked.read_to_string(&mut text).await.unwrap();
        assert!(text.ends_with("\r\n\r\n"), "it has no body: {text}");
        until(|| limits.is_idle()).await;
        let (stats, done) = (limits.gate.stats(), nth as u64 + 1);
        assert_eq!((stats.finished, stats.ignored), (done, 0), "{path}");
        assert_eq!(limits.left("ann").await, (100 - done, 1_000 - 10 * done), "{path}");
    }
    drop(streams.recv().await);
}

/// Whoever is next in turn to meter it may be gone before its turn comes.
#[tokio::test]
async fn a_response_that_ends_before_one_who_waits_to_meter_gives_up_has_ended() {
    for is_first_given_up in [false, true] {
        let limits = limits_of(100, 1_000, 1, |here| Arc::new(Far::new(here)));
        let far = Arc::clone(limits.admitter.charges());
        let (address, mut streams) = serve(|app| app.layer(layer(&limits))).await;
        let mut streaming = ask_for(address, "/stream", "x-user: ann\r\nx-cost: 500\r\n").await;
        let stream = streams.recv().await.unwrap();
        let admitted = stream.admitted.unwrap();
        far.open(false);
        let mut first = Box::pin(admitted.debit(70));
        let mut second = Box::pin(admitted.debit(7));
        let mut context = Context::from_waker(Waker::noop());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        // The turn is the second's from now on, or from when the first is gone.
        if is_first_given_up {
            drop(stream.frames);
            streaming.read_to_end(&mut Vec::new()).await.unwrap();
            drop(first);
        } else {
            far.open(true);
            let _ = first.await.unwrap();
            drop(stream.frames);
            streaming.read_to_end(&mut Vec::new()).await.unwrap();
        }
        far.open(true);
        drop(second);
        until(|| limits.is_idle()).await;
        assert_eq!(limits.gate.stats().finished, 1, "as it was judged");
        let left = if is_first_given_up { 500 } else { 930 };
        assert_eq!(limits.left("ann").await, (99, left));
        drop(admitted);
    }
}

/// Handlers that meter and responses that end, on two threads: nothing stays behind, and only what
/// was counted is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metering_and_ending_race_without_a_leak() {
    let limits = limits_of(100_000, 100_000, 8, |here| Arc::new(Far::new(here)));
    let (address, mut streams) = serve(|app| app.layer(layer(&limits))).await;
    let rounds = if std::env::var("ADMITTANCE_LONG").is_ok() { 5_000 } else { 500 };
    let mut spent = 0;
    for round in 0..rounds {
        let streaming = ask_for(address, "/stream", "x-user: ann\r\nx-cost: 9\r\n").await;
        let stream = streams.recv().await.unwrap();
        let admitted = stream.admitted.unwrap();
        let meters = [1, 2, 3].map(|units| {
            let admitted = admitted.clone();
            tokio::spawn(async move {
                let metered = admitted.debit(units).await.unwrap();
                if metered.flow == Flow::Stop { 0 } else { units }
            })
        });
        if round % 2 == 0 {
            let _ = stream.frames.send(Err("it broke"));
        }
        drop((stream.frames, streaming));
        let mut counted = 0;
        for meter in meters {
            counted += meter.await.unwrap();
        }
        until(|| limits.is_idle()).await;
        let now = 100_000 - limits.left("ann").await.1;
        // One that finished before anything was debited counts as expected.
        let is_right = now - spent == counted || (counted == 0 && now - spent == 9);
        assert!(is_right, "{} for {counted}", now - spent);
        spent = now;
    }
    let stats = limits.gate.stats();
    assert_eq!((stats.in_flight, stats.lost), (0, 0));
}
