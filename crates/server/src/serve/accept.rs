//! Accepts connections, each in a task of its own, and ends them when the drain begins.
//!
//! # Guarantee
//! - At most so many as [`Places`] has are served at once, those in a handshake included.
//! - Who does not finish its handshake, its greeting or the head of a request in [`CALL_MAX`] is
//!   disconnected; so is a peer that answers no ping, one that takes no bytes for so long, and one
//!   that leaves an answer untaken for twice as long.
//! - A connection holds at most what [`room`](super::room) gives its calls, [`WINDOW`] of what is
//!   not read yet, and the buffers below.
//! - On a drain the port closes, requests that have begun are answered, and then their connection
//!   ends.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use admittance::load::Shedder;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::aside::Aside;
use super::dispatch::Dispatch;
use super::places::{Place, Places};
use super::room::{Held, Room};
use super::turns::{Begin, Begun};
use super::{CALL_MAX, STREAMS_MAX};
use crate::connection::{Connection, Stream};
use crate::load::Peer;
use crate::observe::doors::DoorCounts;
use crate::tls::Tls;

/// What every connection is served with.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) dispatch: Arc<Dispatch>,
    pub(super) tls: Option<Tls>,
    pub(super) shedder: Option<Shedder>,
    pub(super) draining: watch::Receiver<bool>,
    pub(super) room: Arc<Room>,
    pub(super) counts: Arc<DoorCounts>,
}

/// Serves until the drain has ended every connection.
pub(super) async fn serve(listener: TcpListener, served: Served, places: Places) {
    let mut draining = served.draining.clone();
    tokio::select! {
        () = accept(listener, &places, &served) => {}
        _ = draining.wait_for(|draining| *draining) => {}
    }
    // Whoever is still connected has a place.
    places.all_free().await;
}

async fn accept(listener: TcpListener, places: &Places, served: &Served) {
    while let Some(free) = places.free().await {
        match listener.accept().await {
            Ok((stream, address)) => {
                let Some(place) = places.give(free, address.ip()) else {
                    served.counts.turned_away();
                    continue;
                };
                // Answers are small: waiting to fill a packet only delays them.
                let _ = stream.set_nodelay(true);
                let peer = Peer::new(address, served.shedder.clone());
                tokio::spawn(connected(stream, peer, place, served.clone()));
            }
            // Out of descriptors, most likely: let others finish before trying again.
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// One connection, from its first byte to its last.
async fn connected(stream: TcpStream, peer: Peer, place: Place, served: Served) {
    let Served { dispatch, tls, mut draining, room, counts, .. } = served;
    let _open = counts.accepted();
    let drain = async move {
        let _ = draining.wait_for(|draining| *draining).await;
    };
    let mut drain = std::pin::pin!(drain);
    let stream = match tls {
        None => Stream::Plain(stream),
        Some(tls) => {
            tokio::select! {
                biased;
                () = &mut drain => return,
                shaken = tls.shake(stream) => match shaken {
                    Some(stream) => Stream::Tls(Box::new(stream)),
                    None => {
                        counts.unshaken();
                        return;
                    }
                },
            }
        }
    };
    let connection = Connection::new(stream, &peer);
    let held = Held::new(peer, &room, place.share());
    let holding = Arc::clone(&held);
    let answering =
        service_fn(move |request: http::Request<Incoming>| dispatch.answer(request, &holding));
    let begun = Begun::default();
    let http = http(begun.begin());
    let conversation = http.serve_connection(TokioIo::new(connection), answering);
    let mut conversation = std::pin::pin!(conversation);
    let aside = Aside::new(async {
        tokio::select! {
            () = stalled(&held) => End::Stalled,
            () = drain => End::Drain,
        }
    });
    tokio::select! {
        biased;
        // A peer that breaks off, or breaks the rules, is its own concern.
        _ = poll_fn(|context| begun.poll(conversation.as_mut(), context)) => {}
        end = aside => match end {
            // Nor is it waited for.
            End::Stalled => {}
            End::Drain => {
                conversation.as_mut().graceful_shutdown();
                let _ = poll_fn(|context| begun.poll(conversation.as_mut(), context)).await;
            }
        },
    }
    drop(place);
}

/// Why a conversation ends before its peer ends it.
enum End {
    /// The peer takes nothing.
    Stalled,
    /// The service stops.
    Drain,
}

/// Until the peer has left an answer untaken for too long.
async fn stalled(held: &Held) {
    let mut ticks = tokio::time::interval_at(Instant::now() + CALL_MAX, CALL_MAX);
    // Ticks that follow one another at once would find stalls where there are none.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if held.tick() {
            return;
        }
    }
}

/// Both versions of HTTP, with the bounds on what a client may hold.
fn http(begin: Begin) -> Builder<Begin> {
    let mut http = Builder::new(begin);
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(CALL_MAX)
        .max_buf_size(HEADERS_MAX as usize);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_header_list_size(HEADERS_MAX)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(SEND_MAX)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(LOCAL_RESETS_MAX);
    http
}

/// A peer that does not answer a ping within the timeout is gone.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADERS_MAX: u32 = 16 << 10;
/// What a peer may send before it is read, on one stream and on all of a connection.
const WINDOW: u32 = 256 << 10;
/// What of one answer may wait to be sent, before its rest is not even looked at.
const SEND_MAX: usize = 64 << 10;
/// How many streams a peer may open and reset before they are looked at; then it is disconnected.
const RESETS_MAX: usize = 20;
/// How many streams it may have reset for breaking rules.
const LOCAL_RESETS_MAX: usize = 256;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
