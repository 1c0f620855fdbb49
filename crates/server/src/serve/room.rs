//! How much memory calls may hold: all of them together, those of one connection, and for how long
//! answers wait to be taken.
//!
//! A call is charged for what it may hold while it lasts: its head, its body and what a body of
//! this size can grow to once it is read and answered. The charge is given back when the answer has
//! been sent or given up.
//!
//! Answers that go on for as long as somebody listens are charged for themselves alone once they
//! have begun; calls in which both sides go on talking, which only reflection has, are charged once
//! and for all before they begin, and end after [`CALL_MAX`](super::CALL_MAX).
//!
//! # Guarantee
//! - Calls never hold more than [`ROOM`] and [`OWN_MIN`] for each connection.
//! - A connection that holds no more than [`OWN_MIN`] is not refused, whatever others hold.
//! - One connection holds at most [`OWN_MAX`], and one network half of the room; loopback is
//!   exempt from this half.
//! - A connection whose peer leaves an answer untaken for [`CALL_MAX`](super::CALL_MAX) is found
//!   stalled at the second [`Held::tick`] at the latest. A stream that has nothing to say is not,
//!   nor one that is watched.
//!
//! # Proven by
//! The tests below, with counts that miss something; `tests/it/hostile.rs` of the command.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use http::Request;
use http_body::{Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

use crate::load::Peer;

/// What all calls may hold together, beyond [`OWN_MIN`] each.
pub(super) const ROOM: usize = 512 << 20;

/// What the calls from one network may hold at most.
const SHARE_MAX: usize = ROOM / 2;

/// What the calls of one connection may hold whatever the others do.
pub(super) const OWN_MIN: usize = 64 << 10;

/// What the calls of one connection may hold at most.
pub(super) const OWN_MAX: usize = 32 << 20;

/// The room of one service.
#[derive(Debug, Default)]
pub(super) struct Room {
    taken: AtomicUsize,
}

/// What the calls from one network hold.
#[derive(Debug, Default)]
pub(super) struct Share {
    taken: AtomicUsize,
}

/// What the calls of one connection hold.
#[derive(Debug)]
pub(super) struct Held {
    peer: Peer,
    room: Arc<Room>,
    /// Of the network that the connection comes from, unless that is loopback.
    share: Option<Arc<Share>>,
    own: AtomicUsize,
    owed: Owed,
}

/// There is no room for a call, or for more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("calls hold all the memory that they may; finish some, or ask again later")]
pub(super) struct NoRoom;

impl Held {
    pub(super) fn new(peer: Peer, room: &Arc<Room>, share: Option<Arc<Share>>) -> Arc<Self> {
        let (own, owed) = (AtomicUsize::new(0), Owed::default());
        Arc::new(Self { peer, room: Arc::clone(room), share, own, owed })
    }

    fn take(&self, bytes: usize) -> Result<(), NoRoom> {
        // Counts only: nothing is read by way of them.
        let add =
            |taken: &AtomicUsize| taken.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let (own, all) = (add(&self.own), add(&self.room.taken));
        let shared = self.share.as_ref().map_or(0, |share| add(&share.taken));
        if own <= OWN_MIN || (own <= OWN_MAX && all <= ROOM && shared <= SHARE_MAX) {
            return Ok(());
        }
        self.give_back(bytes);
        Err(NoRoom)
    }

    fn give_back(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        self.room.taken.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(share) = &self.share {
            share.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Makes room for a call.
    pub(super) fn call<B>(self: &Arc<Self>, request: &Request<B>) -> Result<Arc<Call>, NoRoom> {
        let fields = request.headers().iter();
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len());
        let bytes = CALL_BYTES + fields.sum::<usize>();
        self.take(bytes)?;
        Ok(self.charged(bytes))
    }

    /// A call that is only told that it has no room.
    pub(super) fn refused(self: &Arc<Self>) -> Arc<Call> {
        self.charged(0)
    }

    fn charged(self: &Arc<Self>, bytes: usize) -> Arc<Call> {
        Arc::new(Call { held: Arc::clone(self), charged: AtomicUsize::new(bytes) })
    }

    /// To be called every [`CALL_MAX`](super::CALL_MAX): whether the peer has left an answer
    /// untaken for at least so long.
    pub(super) fn tick(&self) -> bool {
        self.owed.tick()
    }
}

/// What one call holds. Its body and its answer have it in common; the last one gives it back.
#[derive(Debug)]
pub(crate) struct Call {
    held: Arc<Held>,
    charged: AtomicUsize,
}

impl Call {
    /// Makes room for an answer of so many bytes, as far as it has none yet.
    pub(super) fn fits(&self, answer: u64) -> Result<(), NoRoom> {
        let bytes = usize::try_from(answer).unwrap_or(usize::MAX);
        match bytes.saturating_sub(self.charged.load(Ordering::Relaxed)) {
            0 => Ok(()),
            more => self.grow(more),
        }
    }

    fn grow(&self, bytes: usize) -> Result<(), NoRoom> {
        self.held.take(bytes)?;
        self.charged.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// The request is gone, and its answer goes on: from here on the call is charged for no more
    /// than any call that has begun.
    pub(super) fn goes_on(&self) {
        let charged = self.charged.load(Ordering::Relaxed);
        // Nobody else changes the charge of a call whose body has been read.
        self.charged.store(charged.min(CALL_BYTES), Ordering::Relaxed);
        self.held.give_back(charged.saturating_sub(CALL_BYTES));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.held.give_back(*self.charged.get_mut());
    }
}

/// What a body of this size is charged for: itself, and what becomes of it. The smallest key of a
/// batch has two bytes, and is decided and answered in some 150.
fn charge(bytes: usize) -> usize {
    bytes.saturating_add(bytes.saturating_mul(GROWTH).min(GROWTH_MAX))
}

/// The body of a request, which is charged for as it arrives.
#[derive(Debug)]
pub(crate) struct Arriving {
    body: Incoming,
    call: Arc<Call>,
    arrived: usize,
    /// When the body ends at the latest, if it has been charged for beforehand.
    talk_until: Option<Pin<Box<Sleep>>>,
}

impl Arriving {
    pub(super) const fn new(body: Incoming, call: Arc<Call>) -> Self {
        Self { body, call, arrived: 0, talk_until: None }
    }

    /// The body of a call that is answered while it arrives.
    pub(super) fn talk(body: Incoming, call: Arc<Call>) -> Result<Self, NoRoom> {
        call.grow(TALK_BYTES)?;
        let until = Box::pin(tokio::time::sleep(super::CALL_MAX));
        Ok(Self { body, call, arrived: 0, talk_until: Some(until) })
    }

    /// Who sends it.
    pub(crate) fn peer(&self) -> &Peer {
        &self.call.held.peer
    }

    /// Has so many more bytes charged for.
    fn arrive(&mut self, bytes: usize) -> Result<(), Status> {
        let before = charge(self.arrived);
        self.arrived = self.arrived.saturating_add(bytes);
        if self.talk_until.is_some() {
            return match self.arrived {
                ..=TALK_MAX => Ok(()),
                _ => Err(Status::resource_exhausted("so much is not asked in one stream")),
            };
        }
        let more = charge(self.arrived).saturating_sub(before);
        self.call.grow(more).map_err(|none| Status::resource_exhausted(none.to_string()))
    }
}

impl http_body::Body for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(until) = &mut self.talk_until
            && until.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(Status::deadline_exceeded("the stream took too long"))));
        }
        let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(broken_off(&error)))),
            None => return Poll::Ready(None),
        };
        if let Some(data) = frame.data_ref()
            && let Err(refused) = self.arrive(data.len())
        {
            return Poll::Ready(Some(Err(refused)));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request whose end did not come.
fn broken_off(error: &hyper::Error) -> Status {
    Status::cancelled(format!("the request broke off: {error}"))
}

/// The body of an answer, which holds its call until it has been taken. A long one is given out in
/// pieces, each only when there is room for it on the way: what has been given out waits where
/// nobody counts it, so the last piece is short, and a copy that keeps nothing else alive.
#[derive(Debug)]
pub(crate) struct Answer {
    body: Body,
    /// What has not been given out of the last frame.
    rest: Bytes,
    call: Arc<Call>,
    /// Whether the peer must take it in time.
    is_owed: bool,
    /// Since when the peer has had something to take.
    owed: Option<Since>,
}

impl Answer {
    pub(super) fn new(body: Body, call: Arc<Call>) -> Self {
        let owed = Some(call.held.owed.enter());
        Self { body, rest: Bytes::new(), call, is_owed: true, owed }
    }

    /// One that may be left untaken: what is behind it is bounded, and loses what is too much.
    /// Calls beside it on the connection are not to end by it.
    pub(super) fn watch(body: Body, call: Arc<Call>) -> Self {
        Self { body, rest: Bytes::new(), call, is_owed: false, owed: None }
    }

    fn enter(&self) -> Option<Since> {
        self.is_owed.then(|| self.call.held.owed.enter())
    }

    fn piece(&mut self) -> Bytes {
        match self.rest.len().checked_sub(LAST_MAX) {
            Some(before @ 1..) => self.rest.split_to(before.min(PIECE_MAX)),
            _ => Bytes::copy_from_slice(&std::mem::take(&mut self.rest)),
        }
    }

    fn settle(&mut self) {
        if let Some(since) = self.owed.take() {
            self.call.held.owed.leave(since);
        }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    /// Who asks for more has taken what was before.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.settle();
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                end => return Poll::Ready(end),
            };
            self.owed = self.enter();
            match frame.into_data() {
                Ok(data) if data.len() > LAST_MAX => self.rest = data,
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        } else {
            self.owed = self.enter();
        }
        let piece = self.piece();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (of_body, rest) = (self.body.size_hint(), self.rest.len());
        let rest = u64::try_from(rest).unwrap_or(u64::MAX);
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower().saturating_add(rest));
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.settle();
    }
}

/// How many answers wait to be taken, by the stretch of time in which they began to. Three
/// stretches are enough: this one, the one before, and the one to come.
#[derive(Debug, Default)]
struct Owed {
    stretch: AtomicU32,
    waiting: [AtomicU32; 3],
}

#[derive(Clone, Copy, Debug)]
struct Since(usize);

impl Owed {
    fn enter(&self) -> Since {
        let since = Since(Self::place(self.stretch.load(Ordering::Relaxed)));
        self.waiting[since.0].fetch_add(1, Ordering::Relaxed);
        since
    }

    fn leave(&self, since: Since) {
        self.waiting[since.0].fetch_sub(1, Ordering::Relaxed);
    }

    fn tick(&self) -> bool {
        let now = self.stretch.load(Ordering::Relaxed);
        // Modulo 3 the one before is the second after.
        let before = Self::place(now.wrapping_add(2));
        if self.waiting[before].load(Ordering::Relaxed) > 0 {
            return true;
        }
        self.stretch.store(now.wrapping_add(1) % 3, Ordering::Relaxed);
        false
    }

    fn place(stretch: u32) -> usize {
        match stretch % 3 {
            0 => 0,
            1 => 1,
            _ => 2,
        }
    }
}

/// What a call holds beside its fields and its body: its task, its stream, its answer's head.
const CALL_BYTES: usize = 4 << 10;
/// What may be sent in one stream of reflection, which is names, and what it holds with its answer.
const TALK_MAX: usize = 32 << 10;
const TALK_BYTES: usize = 192 << 10;
/// Answers are given out in pieces of this size, the last one of at most so much.
const PIECE_MAX: usize = 16 << 10;
const LAST_MAX: usize = 1 << 10;
const GROWTH: usize = 75;
/// A batch has at most 10,000 keys.
const GROWTH_MAX: usize = 1_500_000;

const _: () = assert!(OWN_MIN >= 4 * CALL_BYTES && OWN_MAX > charge_max() && ROOM >= OWN_MAX);

/// The charge of the largest message.
const fn charge_max() -> usize {
    super::MESSAGE_MAX + GROWTH_MAX + CALL_BYTES + (16 << 10)
}

#[cfg(test)]
mod tests;
