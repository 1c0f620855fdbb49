//! The admissions that clients hold: who holds one until when, and how it comes back.
//!
//! A permit lives in the instance that admitted. Its lease ends by release, or when nobody was
//! heard for its time to live, which says nothing about the load. A release or heartbeat that
//! arrives at another instance goes through the [relay](admittance::relay) of the store that both
//! share; an admission that stays with one instance costs no message.
//!
//! A reservation of the cost axis ends when its lease is released. Until then heartbeats renew it
//! in its accounts, and nobody waits for that. A lease that is taken back leaves its reservation
//! alone: the work may still go on, and must be charged when it is settled.
//!
//! # Guarantee
//! - A lease ends once: by release, by time, or with the process that holds it. Unless it was
//!   released, its reservation is then left to end by itself; a settlement is booked until then,
//!   and afterwards as debt.
//! - A debit that names a lease keeps it, as a heartbeat does.
//! - A reservation that is not settled does not end before its lease.
//! - Bounded: at most a million are held, and as many more as are asked for at one moment.
//! - It is taken back at the first sweep after its end. A heartbeat that arrives before that sweep
//!   keeps it, even if its time was over.
//! - A release that arrives elsewhere frees the place when the owner collects its notes, and the
//!   time in between does not count as work.
//! - A name cannot be guessed, and one that nobody gave out is told *reclaimed*.
//! - Accounts are told of an end once it is decided, after the place is free: neither a release nor
//!   a heartbeat waits for them or fails with them. What they cannot be told ends by itself there.
//!
//! # Proven by
//! `tests/it/admit.rs`, `tests/it/admission_leases.rs` and `tests/it/admission_ends.rs`, with a
//! manual clock and two instances on one relay.

mod elsewhere;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use admittance::admission::{Admission, Admitter, Charges, Telling, Word};
use admittance::budget::LeaseKey;
use admittance::relay::{Collect, Note, Posted, Relay, Told};
use admittance::{Clock, EXACT_MAX, Micros, Span, StoreError};
use tokio::task::JoinSet;

use crate::beside::{Beside, Ending};
use crate::lease_id::{LeaseId, Signer};
use crate::service::{Axes, SharedClock};
use crate::store::AnyFleet;

/// The leases of one instance.
pub(crate) struct Leases {
    owner: u64,
    signer: Signer,
    clock: SharedClock,
    next: AtomicU64,
    held: [Mutex<HashMap<u64, Held>>; SHARDS],
    /// How many those are, and how many they may be.
    count: AtomicUsize,
    most: usize,
    /// Leases that were taken back, which the relay has not been told of.
    ended: Mutex<Vec<u64>>,
    relay: Option<AnyFleet>,
    /// What others sign with, as far as they have been met.
    others: Mutex<BTreeMap<u64, Signer>>,
    /// Who was not here when last asked for, and when that was: names can be made up.
    absent: Mutex<BTreeMap<u64, Micros>>,
    /// When others were last told of leases that were debited here.
    heard_elsewhere: Mutex<HashMap<LeaseKey, Micros>>,
    /// The shortest that any policy's leases live.
    ttl_min_us: AtomicU64,
    reclaimed: AtomicU64,
    /// What accounts are being told.
    telling: Mutex<JoinSet<()>>,
}

/// An admission, and until when it is held.
struct Held {
    admission: Admission<Axes>,
    ttl: Span,
    until: Micros,
    /// No heartbeat keeps it longer.
    at_most: Micros,
    /// The reservation that must be renewed with it, and when that is due.
    renewing: Option<(Renewing, Micros)>,
    /// What candidates hold with it.
    beside: Vec<Arc<Beside<Axes>>>,
}

/// For how long something is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    /// Without being heard of.
    pub(crate) ttl: Span,
    /// At all.
    pub(crate) hold: Option<Span>,
}

/// A reservation that ends in its accounts unless it is heard of there.
#[derive(Clone, Debug)]
pub(crate) struct Renewing {
    pub(crate) admitter: Admitter<Axes>,
    pub(crate) key: Box<[u8]>,
    pub(crate) lease: LeaseKey,
    /// A heartbeat after this long is passed on.
    pub(crate) every: Span,
}

impl Renewing {
    /// When it is to be heard of next.
    pub(crate) fn due(&self, now: Micros) -> Micros {
        now + self.every
    }

    async fn renew(self) {
        let told = Telling { key: &self.key, lease: self.lease, word: Word::Debit(0) };
        // The next heartbeat tries again.
        let _ = self.admitter.charges().meter(told).await;
    }
}

/// A lease that was given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name, which cannot be guessed.
    pub id: String,
    /// When it ends unless a heartbeat comes.
    pub until: Micros,
    /// How long that is from when it was given out.
    pub ttl: Span,
}

/// What a heartbeat found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Leases that go on.
    pub live: Vec<String>,
    /// Leases that have ended, or never were.
    pub reclaimed: Vec<String>,
    /// When the first of those that go on ends, if nobody is heard any more.
    pub next_deadline: Micros,
}

impl Leases {
    /// No leases. Through `relay`, other instances pass on what they are told.
    pub(crate) fn new(clock: SharedClock, relay: Option<AnyFleet>, ttl_min: Span) -> Self {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).expect("the system has randomness");
        let mut owner = [0; 8];
        getrandom::fill(&mut owner).expect("the system has randomness");
        Self {
            owner: u64::from_be_bytes(owner) & EXACT_MAX,
            signer: Signer::new(secret),
            clock,
            next: AtomicU64::new(1),
            held: std::array::from_fn(|_| Mutex::default()),
            count: AtomicUsize::new(0),
            most: HELD_MAX,
            ended: Mutex::default(),
            relay,
            others: Mutex::default(),
            absent: Mutex::default(),
            heard_elsewhere: Mutex::default(),
            ttl_min_us: AtomicU64::new(ttl_min.us()),
            reclaimed: AtomicU64::new(0),
            telling: Mutex::default(),
        }
    }

    /// Says that this instance is not here any more, and acts on the last that others were told.
    pub(crate) async fn close(&self) {
        let _ = tokio::join!(self.collect_for(Span::from_ms(1)), self.all_told());
        self.all_told().await;
    }

    /// What the clock shows that leases end by.
    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// What the wall clock shows: limits reset by it.
    pub(crate) fn wall(&self) -> Micros {
        self.clock.wall()
    }

    /// What they end by.
    pub(crate) fn clock(&self) -> SharedClock {
        Arc::clone(&self.clock)
    }

    /// A name for what may be held, never used before.
    pub(crate) fn name(&self) -> LeaseId {
        self.signer.sign(self.owner, self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Gives out a lease on an admission.
    pub(crate) fn give(
        &self,
        id: &LeaseId,
        admission: Admission<Axes>,
        Term { ttl, hold }: Term,
        renewing: Option<Renewing>,
    ) -> Lease {
        let now = self.clock.precise();
        let at_most = hold.map_or(Micros::HORIZON, |hold| now + hold);
        let until = (now + ttl).min(at_most);
        let renewing = renewing.map(|renewing| {
            let due = renewing.due(now);
            (renewing, due)
        });
        let held = Held { admission, ttl, until, at_most, renewing, beside: Vec::new() };
        self.count.fetch_add(1, Ordering::Relaxed);
        self.shard(id.lease).insert(id.lease, held);
        Lease { id: id.to_string(), until, ttl: until.since(now) }
    }

    /// Has what a candidate holds end with a lease of this instance.
    pub(crate) fn attach(&self, lease: u64, beside: Arc<Beside<Axes>>) {
        if let Some(held) = self.shard(lease).get_mut(&lease) {
            held.beside.push(beside);
        } else if let Some(admission) = beside.end(Ending::RECLAIMED) {
            self.end_admission(admission, Ending::RECLAIMED);
        }
    }

    /// Ends a lease, here or wherever it is held. One that has ended already is none of it.
    pub(crate) async fn release(&self, id: &str, is_dropped: bool) -> Result<(), StoreError> {
        let Some(id) = LeaseId::parse(id) else { return Ok(()) };
        let told = if is_dropped { Told::Overload } else { Told::Finish };
        if id.owner == self.owner {
            if self.signer.knows(&id) {
                self.end(id.lease, told, Span::ZERO);
            }
            return Ok(());
        }
        let until = tokio::time::Instant::now() + ELSEWHERE_MAX;
        match self.pass_on_until(until, id.owner, &[(id, told)]).await?.first() {
            Some(Posted::Full) => Err(StoreError::Unavailable),
            _ => Ok(()),
        }
    }

    /// Keeps leases for another time to live, here or wherever they are held. A lease whose holder
    /// could not be reached is in neither list.
    pub(crate) async fn heartbeat(&self, ids: Vec<String>) -> Heard {
        let now = self.clock.precise();
        let mut heard = Heard { next_deadline: now, ..Heard::default() };
        let mut first: Option<Micros> = None;
        let mut elsewhere: BTreeMap<u64, Vec<(String, LeaseId)>> = BTreeMap::new();
        let mut due = Vec::new();
        for text in ids {
            match LeaseId::parse(&text) {
                Some(id) if id.owner == self.owner => {
                    let renew = || self.renew(id.lease, now, &mut due);
                    let until = self.signer.knows(&id).then(renew).flatten();
                    first = [first, until].into_iter().flatten().min();
                    let list = if until.is_some() { &mut heard.live } else { &mut heard.reclaimed };
                    list.push(text);
                }
                Some(id) => elsewhere.entry(id.owner).or_default().push((text, id)),
                None => heard.reclaimed.push(text),
            }
        }
        self.keep(due);
        // One deadline for all of them: many owners must not hold up the answer for those here.
        let until = tokio::time::Instant::now() + ELSEWHERE_MAX;
        let has_others = !elsewhere.is_empty();
        for (owner, named) in elsewhere.into_iter().take(OWNERS_MAX) {
            let beats: Vec<_> = named.iter().map(|(_, id)| (*id, Told::Beat)).collect();
            let Ok(posted) = self.pass_on_until(until, owner, &beats).await else { continue };
            for ((text, _), posted) in named.into_iter().zip(posted) {
                match posted {
                    Posted::Left => heard.live.push(text),
                    Posted::Ended => heard.reclaimed.push(text),
                    // Nobody will know of this beat; the next one may get through.
                    Posted::Full => {}
                }
            }
        }
        // What is held elsewhere lives at least as long as the shortest that is configured.
        let elsewhere = (has_others || first.is_none()).then(|| now + self.ttl_min());
        heard.next_deadline = [first, elsewhere].into_iter().flatten().min().unwrap_or(now);
        heard
    }

    /// A debit has named a lease: that is as good as a heartbeat. Says whether it goes on, as far
    /// as that is known. If the debit was booked, its accounts need not hear of it once more.
    pub(crate) async fn hear(&self, id: LeaseId, is_booked: bool) -> bool {
        if id.owner == self.owner {
            let mut due = Vec::new();
            let now = self.clock.precise();
            let renew = || self.renew(id.lease, now, &mut due);
            let is_live = self.signer.knows(&id).then(renew).flatten().is_some();
            if !is_booked {
                self.keep(due);
            }
            return is_live;
        }
        if !self.is_due_elsewhere(&id) {
            return true;
        }
        let until = tokio::time::Instant::now() + ELSEWHERE_MAX;
        let posted = self.pass_on_until(until, id.owner, &[(id, Told::Beat)]).await;
        !posted.is_ok_and(|posted| posted.first() == Some(&Posted::Ended))
    }

    /// Takes back what nobody was heard of in time; says how many.
    pub(crate) fn sweep(&self) -> usize {
        let now = self.clock.precise();
        let mut over = Vec::new();
        for shard in &self.held {
            let taken = lock(shard).extract_if(|_, held| held.until <= now).collect::<Vec<_>>();
            over.extend(taken);
        }
        let count = over.len();
        self.count.fetch_sub(count, Ordering::Relaxed);
        for (lease, held) in over {
            self.end_held(held, Ending::RECLAIMED);
            self.remember_end(lease);
        }
        self.reclaimed.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
        count
    }

    /// Fetches what other instances were told, and acts on it; says how much it was.
    pub(crate) async fn collect(&self) -> Result<usize, StoreError> {
        self.collect_for(HERE_TTL).await
    }

    /// The same, and this instance is here for so long.
    async fn collect_for(&self, ttl: Span) -> Result<usize, StoreError> {
        let Some(relay) = &self.relay else { return Ok(0) };
        let ended = std::mem::take(&mut *lock(&self.ended));
        let (owner, secret) = (self.owner, self.signer.secret());
        let collect = Collect { owner, secret, ttl, ended: &ended };
        let notes = relay.collect(collect).await?;
        let now = self.clock.precise();
        let mut due = Vec::new();
        for collected in &notes {
            let Note { lease, told } = collected.note;
            let is_held = match told {
                Told::Beat => self.renew(lease, now - collected.age, &mut due).is_some(),
                Told::Finish | Told::Overload => {
                    self.end(lease, told, collected.age);
                    true
                }
            };
            if !is_held {
                self.remember_end(lease);
            }
        }
        self.keep(due);
        Ok(notes.len())
    }

    /// The shortest that any policy's leases live, from now on. It only falls: leases that others
    /// gave out before live no longer than they did.
    pub(crate) fn set_ttl_min(&self, ttl_min: Span) {
        self.ttl_min_us.fetch_min(ttl_min.us(), Ordering::Relaxed);
    }

    fn ttl_min(&self) -> Span {
        Span::from_us(self.ttl_min_us.load(Ordering::Relaxed))
    }

    /// How many leases are held.
    pub(crate) fn held(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether no more should be given out. Those who ask at the same moment may all find room.
    pub(crate) fn is_full(&self) -> bool {
        self.held() >= self.most
    }

    /// How many may be held.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    pub(crate) const fn set_most(&mut self, most: usize) {
        self.most = most;
    }

    /// How many were taken back because nobody was heard.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.reclaimed.load(Ordering::Relaxed)
    }

    /// Whether other instances can reach this one.
    pub(crate) const fn has_relay(&self) -> bool {
        self.relay.is_some()
    }

    /// Keeps a lease. What must be renewed elsewhere with it joins `due`.
    fn renew(&self, lease: u64, heard_at: Micros, due: &mut Vec<Renewing>) -> Option<Micros> {
        let mut shard = self.shard(lease);
        let held = shard.get_mut(&lease)?;
        held.until = held.until.max(heard_at + held.ttl).min(held.at_most);
        if let Some((renewing, at)) = &mut held.renewing
            && *at <= heard_at
        {
            *at = renewing.due(heard_at);
            due.push(renewing.clone());
        }
        held.beside.iter().for_each(|beside| beside.renew(heard_at, due));
        Some(held.until)
    }

    fn end(&self, lease: u64, told: Told, ago: Span) {
        let held = self.shard(lease).remove(&lease);
        let Some(held) = held else { return };
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.end_held(held, Ending { told: Some(told), ago });
    }

    fn end_held(&self, held: Held, ending: Ending) {
        self.end_admission(held.admission, ending);
        for admission in held.beside.iter().filter_map(|beside| beside.end(ending)) {
            self.end_admission(admission, ending);
        }
    }

    /// Frees the permit of an admission, and then tells its accounts, unless nobody has said that
    /// the work is over: whoever does it may still debit and settle, until the reservation ends by
    /// itself and beyond.
    pub(crate) fn end_admission(&self, mut admission: Admission<Axes>, ending: Ending) {
        ending.free(&mut admission);
        if ending.told.is_none() {
            return admission.leave();
        }
        if admission.lease().is_none() {
            return;
        }
        let mut telling = Box::pin(ending.tell(admission));
        // Accounts of this process know at once.
        let is_told = telling.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if !is_told {
            self.aside(telling);
        }
    }

    /// Has accounts hear of reservations, a few at a time.
    fn keep(&self, due: Vec<Renewing>) {
        if due.is_empty() {
            return;
        }
        self.aside(async move {
            let mut renewed = JoinSet::new();
            for one in due {
                if renewed.len() >= RENEWED_AT_ONCE {
                    let _ = renewed.join_next().await;
                }
                renewed.spawn(one.renew());
            }
            while renewed.join_next().await.is_some() {}
        });
    }

    fn aside(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut telling = lock(&self.telling);
        while telling.try_join_next().is_some() {}
        telling.spawn(task);
    }

    /// Waits until accounts have been told all that they are being told now.
    pub(crate) async fn all_told(&self) {
        let mut telling = std::mem::take(&mut *lock(&self.telling));
        while telling.join_next().await.is_some() {}
    }

    fn remember_end(&self, lease: u64) {
        if self.relay.is_none() {
            return;
        }
        let mut ended = lock(&self.ended);
        if ended.len() < ENDED_MAX {
            ended.push(lease);
        }
    }

    fn shard(&self, lease: u64) -> MutexGuard<'_, HashMap<u64, Held>> {
        let shards = u64::try_from(SHARDS).unwrap_or(1);
        lock(&self.held[usize::try_from(lease % shards).unwrap_or(0)])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whoever holds a lease of an instance that stops is still at work, and settles elsewhere.
impl Drop for Leases {
    fn drop(&mut self) {
        for shard in &mut self.held {
            let held = shard.get_mut().unwrap_or_else(PoisonError::into_inner);
            for (_, Held { admission, beside, .. }) in held.drain() {
                admission.leave();
                let beside = beside.iter().filter_map(|beside| beside.end(Ending::RECLAIMED));
                beside.for_each(Admission::leave);
            }
        }
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("held", &self.held()).finish_non_exhaustive()
    }
}

/// How long another instance is here without a word from it.
const HERE_TTL: Span = Span::from_secs(3);
/// Leases of so many other instances are passed on in one call.
const OWNERS_MAX: usize = 64;
/// How long a call waits for what is held elsewhere.
const ELSEWHERE_MAX_MS: u64 = 250;
const ELSEWHERE_MAX: std::time::Duration = std::time::Duration::from_millis(ELSEWHERE_MAX_MS);
/// So many reservations are renewed in their accounts at a time.
const RENEWED_AT_ONCE: usize = 32;
const SHARDS: usize = 16;
/// The most leases that are held here, but for those that are being asked for at that moment.
const HELD_MAX: usize = 1_000_000;
/// More than this between two collections are forgotten: a heartbeat elsewhere then learns of the
/// end one collection later.
const ENDED_MAX: usize = 10_000;
