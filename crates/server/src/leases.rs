//! The permits that clients hold: who holds one until when, and how it comes back.
//!
//! A permit lives in the instance that admitted. Its lease ends by release, or when nobody was
//! heard for its time to live: then it counts as dropped. A release or heartbeat that arrives at
//! another instance goes through the [relay](admittance::relay) of the store that both share; an
//! admission that stays with one instance costs no message.
//!
//! # Guarantee
//! - A lease ends once: by release, by time, or with the process that holds it.
//! - It is taken back at the first sweep after its end. A heartbeat that arrives before that sweep
//!   keeps it, even if its time was over.
//! - A release that arrives elsewhere frees the place when the owner collects its notes, and the
//!   time in between does not count as work.
//! - A name cannot be guessed, and one that nobody gave out is told *reclaimed*.
//!
//! # Proven by
//! `tests/admit.rs`, with a manual clock and two instances on one relay.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use admittance::gate::Permit;
use admittance::relay::{Collect, Note, Posted, Relay, Told};
use admittance::{Clock, EXACT_MAX, Micros, Span, StoreError};

use crate::lease_id::{LeaseId, Signer};
use crate::service::SharedClock;
use crate::store::AnyFleet;

/// The leases of one instance.
pub(crate) struct Leases {
    owner: u64,
    signer: Signer,
    clock: SharedClock,
    next: AtomicU64,
    held: [Mutex<HashMap<u64, Held>>; SHARDS],
    /// Leases that were taken back, which the relay has not been told of.
    ended: Mutex<Vec<u64>>,
    relay: Option<AnyFleet>,
    /// What others sign with, as far as they have been met.
    others: Mutex<BTreeMap<u64, Signer>>,
    /// Who was not here when last asked for, and when that was: names can be made up.
    absent: Mutex<BTreeMap<u64, Micros>>,
    /// The shortest that any policy's leases live.
    ttl_min: Span,
    reclaimed: AtomicU64,
}

/// A permit, and until when it is held.
struct Held {
    permit: Permit,
    ttl: Span,
    until: Micros,
    /// No heartbeat keeps it longer.
    at_most: Micros,
}

/// A lease that was given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name, which cannot be guessed.
    pub id: String,
    /// When it ends unless a heartbeat comes.
    pub until: Micros,
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
            ended: Mutex::default(),
            relay,
            others: Mutex::default(),
            absent: Mutex::default(),
            ttl_min,
            reclaimed: AtomicU64::new(0),
        }
    }

    /// Says that this instance is not here any more.
    pub(crate) async fn close(&self) {
        if let Some(relay) = &self.relay {
            let (owner, secret) = (self.owner, self.signer.secret());
            let ttl = Span::from_ms(1);
            let _ = relay.collect(Collect { owner, secret, ttl, ended: &[] }).await;
        }
    }

    /// What the clock shows that leases end by.
    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Gives out a lease on a permit.
    pub(crate) fn give(&self, permit: Permit, ttl: Span, hold: Option<Span>) -> Lease {
        let lease = self.next.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.precise();
        let at_most = hold.map_or(Micros::HORIZON, |hold| now + hold);
        let until = (now + ttl).min(at_most);
        self.shard(lease).insert(lease, Held { permit, ttl, until, at_most });
        Lease { id: self.signer.sign(self.owner, lease).to_string(), until }
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
        for text in ids {
            match LeaseId::parse(&text) {
                Some(id) if id.owner == self.owner => {
                    let until = self.signer.knows(&id).then(|| self.renew(id.lease, now)).flatten();
                    first = [first, until].into_iter().flatten().min();
                    let list = if until.is_some() { &mut heard.live } else { &mut heard.reclaimed };
                    list.push(text);
                }
                Some(id) => elsewhere.entry(id.owner).or_default().push((text, id)),
                None => heard.reclaimed.push(text),
            }
        }
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
        let elsewhere = (has_others || first.is_none()).then(|| now + self.ttl_min);
        heard.next_deadline = [first, elsewhere].into_iter().flatten().min().unwrap_or(now);
        heard
    }

    /// Takes back what nobody was heard of in time; says how many.
    pub(crate) fn sweep(&self) -> usize {
        let now = self.clock.precise();
        let mut count = 0;
        for shard in &self.held {
            let mut shard = lock(shard);
            let over: Vec<u64> =
                shard.iter().filter(|(_, held)| held.until <= now).map(|(id, _)| *id).collect();
            for lease in over {
                if let Some(held) = shard.remove(&lease) {
                    held.permit.overload();
                    self.remember_end(lease);
                    count += 1;
                }
            }
        }
        self.reclaimed.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
        count
    }

    /// Fetches what other instances were told, and acts on it; says how much it was.
    pub(crate) async fn collect(&self) -> Result<usize, StoreError> {
        let Some(relay) = &self.relay else { return Ok(0) };
        let ended = std::mem::take(&mut *lock(&self.ended));
        let (owner, secret) = (self.owner, self.signer.secret());
        let collect = Collect { owner, secret, ttl: HERE_TTL, ended: &ended };
        let notes = relay.collect(collect).await?;
        let now = self.clock.precise();
        for collected in &notes {
            let Note { lease, told } = collected.note;
            let is_held = match told {
                Told::Beat => self.renew(lease, now - collected.age).is_some(),
                Told::Finish | Told::Overload => {
                    self.end(lease, told, collected.age);
                    true
                }
            };
            if !is_held {
                self.remember_end(lease);
            }
        }
        Ok(notes.len())
    }

    /// How many leases are held.
    pub(crate) fn held(&self) -> usize {
        self.held.iter().map(|shard| lock(shard).len()).sum()
    }

    /// How many were taken back because nobody was heard.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.reclaimed.load(Ordering::Relaxed)
    }

    /// Whether other instances can reach this one.
    pub(crate) const fn has_relay(&self) -> bool {
        self.relay.is_some()
    }

    fn renew(&self, lease: u64, heard_at: Micros) -> Option<Micros> {
        let mut shard = self.shard(lease);
        let held = shard.get_mut(&lease)?;
        held.until = held.until.max(heard_at + held.ttl).min(held.at_most);
        Some(held.until)
    }

    fn end(&self, lease: u64, told: Told, ago: Span) {
        let held = self.shard(lease).remove(&lease);
        let Some(Held { permit, .. }) = held else { return };
        let permit = permit.ended_ago(ago);
        match told {
            Told::Overload => permit.overload(),
            Told::Finish | Told::Beat => permit.finish(),
        }
    }

    async fn pass_on_until(
        &self,
        until: tokio::time::Instant,
        owner: u64,
        named: &[(LeaseId, Told)],
    ) -> Result<Vec<Posted>, StoreError> {
        let passed = tokio::time::timeout_at(until, self.pass_on(owner, named)).await;
        passed.unwrap_or(Err(StoreError::Timeout { waited: Span::from_ms(ELSEWHERE_MAX_MS) }))
    }

    /// What came of each note. An owner that is not there holds nothing.
    async fn pass_on(
        &self,
        owner: u64,
        named: &[(LeaseId, Told)],
    ) -> Result<Vec<Posted>, StoreError> {
        let all_ended = || vec![Posted::Ended; named.len()];
        let Some(relay) = &self.relay else { return Ok(all_ended()) };
        let Some(signer) = self.signer_of(relay, owner).await? else { return Ok(all_ended()) };
        let known: Vec<bool> = named.iter().map(|(id, _)| signer.knows(id)).collect();
        let notes: Vec<Note> = named
            .iter()
            .zip(&known)
            .filter(|(_, known)| **known)
            .map(|((id, told), _)| Note { lease: id.lease, told: *told })
            .collect();
        if notes.is_empty() {
            return Ok(all_ended());
        }
        let mut posted = Vec::with_capacity(notes.len());
        // A few at a time: a store does nothing else meanwhile.
        for some in notes.chunks(NOTES_AT_ONCE) {
            let Some(came) = relay.post(owner, some).await? else {
                // It was here a moment ago. If it still is, it says so before it is asked again.
                lock(&self.others).remove(&owner);
                return Err(StoreError::Unavailable);
            };
            posted.extend(came);
        }
        let mut posted = posted.into_iter();
        let of = |known: &bool| if *known { posted.next() } else { None };
        Ok(known.iter().map(of).map(|posted| posted.unwrap_or(Posted::Ended)).collect())
    }

    async fn signer_of(&self, relay: &AnyFleet, owner: u64) -> Result<Option<Signer>, StoreError> {
        let known = lock(&self.others).get(&owner).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let now = self.clock.precise();
        if lock(&self.absent).get(&owner).is_some_and(|at| now.since(*at) < ABSENT_KEPT) {
            return Ok(None);
        }
        let Some(secret) = relay.secret(owner).await? else {
            let mut absent = lock(&self.absent);
            absent.retain(|_, at| now.since(*at) < ABSENT_KEPT);
            if absent.len() < OTHERS_MAX {
                absent.insert(owner, now);
            }
            return Ok(None);
        };
        let signer = Signer::new(secret);
        let mut others = lock(&self.others);
        if others.len() >= OTHERS_MAX {
            others.pop_first();
        }
        others.insert(owner, signer.clone());
        Ok(Some(signer))
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

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases").field("held", &self.held()).finish_non_exhaustive()
    }
}

/// How long another instance is here without a word from it.
const HERE_TTL: Span = Span::from_secs(3);
/// How long it is remembered that an instance is not here.
const ABSENT_KEPT: Span = Span::from_ms(500);
/// Leases of so many other instances are passed on in one call.
const OWNERS_MAX: usize = 64;
/// How long a call waits for what is held elsewhere.
const ELSEWHERE_MAX_MS: u64 = 250;
const ELSEWHERE_MAX: std::time::Duration = std::time::Duration::from_millis(ELSEWHERE_MAX_MS);
const NOTES_AT_ONCE: usize = 500;
const SHARDS: usize = 16;
const OTHERS_MAX: usize = 1_024;
/// More than this between two collections are forgotten: a heartbeat elsewhere then learns of the
/// end one collection later.
const ENDED_MAX: usize = 10_000;
