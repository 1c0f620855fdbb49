//! However responses end, nothing stays behind.
//!
//! `ADMITTANCE_SEED=n` replays what is asked, `ADMITTANCE_LONG=1` asks ten times as often. The
//! order in which two threads answer is the system's.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use admittance::admission::{Charges, Request};
use axum::Router;
use axum::body::Bytes;
use fastrand::Rng;
use http_body::Frame;

use crate::admission_layer::world::{
    Far, Limits, Stream, answer, ask_for, layer, limits, limits_of, serve, until,
};
use crate::timeline::{generator, long};

/// How a stream ends.
fn end(rng: &mut Rng, stream: &Stream) {
    if rng.bool() {
        let _ = stream.frames.send(Ok(Frame::data(Bytes::from("some"))));
    }
    if rng.bool() {
        let _ = stream.frames.send(Err("it broke"));
    }
    if let Some(admitted) = stream.admitted.clone() {
        let (units, is_settled) = (rng.u64(0..20), rng.bool());
        // It may come before the end, in the middle of it, or after it.
        tokio::spawn(async move {
            let _ = admitted.debit(units).await;
            if is_settled {
                let _ = admitted.settle(units).await;
            }
        });
    }
}

/// Asks for pages and streams that end well, end badly, panic, or lose their client.
async fn ask_at_random(wrap: impl FnOnce(Router) -> Router, count: usize) {
    let mut rng = generator(37);
    let (address, mut streams) = serve(wrap).await;
    let mut gone = Vec::new();
    for _ in 0..count {
        let user = ["ann", "bob"][rng.usize(0..2)];
        let headers = format!("x-user: {user}\r\nx-cost: {}\r\n", rng.u8(1..50));
        match rng.u8(0..4) {
            0 => {
                let path = ["/", "/busy", "/empty", "/metered", "/panic", "/sized"];
                _ = answer(address, path[rng.usize(0..path.len())], &headers).await;
            }
            // A client that does not wait for its answer.
            1 => drop(ask_for(address, ["/", "/metered"][rng.usize(0..2)], &headers).await),
            _ => {
                let client = ask_for(address, "/stream", &headers).await;
                let stream = streams.recv().await.unwrap();
                end(&mut rng, &stream);
                match rng.bool() {
                    true => drop((client, stream)),
                    // The client goes first: whoever writes to nobody finds out.
                    false => {
                        drop(client);
                        gone.push(stream.frames);
                    }
                }
            }
        }
    }
    let is_over = || {
        let more = || Ok(Frame::data(Bytes::from("more")));
        gone.iter().filter(|frames| frames.send(more()).is_ok()).count() == 0
    };
    until(is_over).await;
}

async fn leaves_nothing<X: Charges>(limits: &Limits<X>, count: usize) {
    let front = layer(limits);
    ask_at_random(|app| app.layer(front), count).await;
    until(|| limits.is_idle()).await;
    assert_eq!(limits.gate.stats().lost, 0);
    let stats = limits.gate.stats();
    println!("{stats:?}");
    for (ending, count) in [stats.finished, stats.overloaded, stats.ignored].iter().enumerate() {
        assert!(*count > 0, "none ended the way {ending}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_behind_in_this_process() {
    leaves_nothing(&limits(1_000_000, 1_000_000, 100), long(1_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_stays_behind_where_axes_are_asked_over_a_network() {
    let limits = limits_of(1_000_000, 1_000_000, 100, |here| Arc::new(Far::new(here)));
    leaves_nothing(&limits, long(1_000)).await;
}

#[tokio::test]
async fn a_layer_that_ends_only_what_was_answered_is_noticed() {
    let limits = limits(1_000_000, 1_000_000, 1_000);
    let admitter = limits.admitter.clone();
    let mutant = axum::middleware::from_fn(move |request, next: axum::middleware::Next| {
        let admission = admitter.admit_sync(Request::new(b"ann").cost(10)).unwrap().admitted();
        let admission = ManuallyDrop::new(admission.unwrap());
        async move {
            let response = next.run(request).await;
            ManuallyDrop::into_inner(admission).finish();
            response
        }
    });
    let (address, _) = serve(|app| app.layer(mutant)).await;
    assert_eq!(answer(address, "/panic", "").await, "");
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(!limits.is_idle());
}
