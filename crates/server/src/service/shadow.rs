//! Policies that are tried out: those that refuse nobody, and candidates beside others.
//!
//! A candidate sees the requests of its parent once the parent has decided. Where its keys are in
//! this process it decides at once, else its ask is handed to tasks that wait for the store.
//!
//! # Guarantee
//! - A candidate can neither change nor fail what its parent decides, nor what its parent keeps: it
//!   is asked after the decision, with keys and accounts of its own, and what stands between it
//!   and a store is its own too, so that an outage that only it sees opens no breaker but its own.
//! - No request waits for a candidate's store. Asks that wait are bounded, in number and in bytes;
//!   what does not fit is counted as dropped.
//! - A candidate is not asked where its parent was not: if the process was behind, the store was
//!   lost, or another policy that was charged with it denied.
//! - A policy with `shadow: true` charges and counts as any other, and denies nobody but for load.
//!
//! # Proven by
//! `tests/it/shadow.rs` and `tests/it/shadow_admit.rs`.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use admittance::{Cost, Decision, Outcome, Source};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::rate::{Rate, Unanswered};
use super::{Policy, Service};
use crate::config::ShadowConfig;
use crate::escrow::Escrow;

/// What was answered, and whether it would have been a denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// What was decided, for each key that was asked for.
    pub decided: T,
    /// By whom.
    pub source: Source,
    /// Whether the policy has denied and refuses nobody: the decision was made an admission.
    pub is_shadow_denied: bool,
}

/// What came of trying policies out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shadowed {
    /// How often the policy would have denied, if it refuses nobody.
    pub denied: u64,
    /// What those beside it decided.
    pub candidates: Vec<CandidateCounts>,
}

/// What a candidate decided, beside what its parent did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CandidateCounts {
    /// The candidate.
    pub candidate: String,
    /// Both admitted.
    pub both_admit: u64,
    /// Both denied.
    pub both_deny: u64,
    /// The candidate would have denied what was admitted.
    pub newly_denied: u64,
    /// The candidate would have admitted what was denied.
    pub newly_admitted: u64,
    /// The candidate was not asked: too many asks waited already.
    pub dropped: u64,
    /// The candidate was asked and did not decide: its store was lost, or something broke.
    pub failed: u64,
}

/// What one policy has of this.
#[derive(Debug)]
pub(super) struct Shadows {
    is_whole: bool,
    denied: Arc<AtomicU64>,
    pub(super) candidates: Box<[Arc<Candidate>]>,
}

/// One policy beside another.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) name: Box<str>,
    both_admit: AtomicU64,
    both_deny: AtomicU64,
    newly_denied: AtomicU64,
    newly_admitted: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl Shadows {
    /// Those of a policy, with what was counted before a reload.
    pub(super) fn new(config: &ShadowConfig, former: Option<&Self>) -> Self {
        let candidates = config.candidates().iter().map(|name| {
            let mut known = former.into_iter().flat_map(|former| former.candidates.iter());
            let known = known.find(|known| *known.name == **name);
            known.map_or_else(|| Arc::new(Candidate::new(name)), Arc::clone)
        });
        let denied = former.map_or_else(Arc::default, |former| Arc::clone(&former.denied));
        let is_whole = *config == ShadowConfig::Whole;
        Self { is_whole, denied, candidates: candidates.collect() }
    }

    pub(super) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Makes an admission of a denial if the policy refuses nobody; says whether it did.
    pub(super) fn admit(&self, decision: &mut Decision) -> bool {
        let is_denied = self.is_whole && !decision.is_admit();
        if is_denied {
            self.denied.fetch_add(1, Ordering::Relaxed);
            decision.outcome = Outcome::Admit;
        }
        is_denied
    }
}

impl Candidate {
    fn new(name: &str) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            name: name.into(),
            both_admit: zero(),
            both_deny: zero(),
            newly_denied: zero(),
            newly_admitted: zero(),
            dropped: zero(),
            failed: zero(),
        }
    }

    /// The parent has decided the one, the candidate the other.
    pub(super) fn saw(&self, parent: bool, decided: bool) {
        let (counted, flip) = match (parent, decided) {
            (true, true) => (&self.both_admit, None),
            (false, false) => (&self.both_deny, None),
            (true, false) => (&self.newly_denied, Some("newly denied")),
            (false, true) => (&self.newly_admitted, Some("newly admitted")),
        };
        counted.fetch_add(1, Ordering::Relaxed);
        if let Some(flip) = flip {
            tracing::debug!(candidate = &*self.name, flip, "a candidate decided otherwise");
        }
    }

    /// The same of one that its store, or its fail mode, has answered.
    pub(super) fn heard(&self, parent: bool, decided: bool, source: Source) {
        match source {
            Source::FailMode => self.failed(1),
            Source::Store | Source::Node => self.saw(parent, decided),
        }
    }

    pub(super) fn dropped(&self, asks: usize) {
        self.dropped.fetch_add(number(asks), Ordering::Relaxed);
    }

    pub(super) fn failed(&self, asks: usize) {
        self.failed.fetch_add(number(asks), Ordering::Relaxed);
    }

    fn counts(&self) -> CandidateCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CandidateCounts {
            candidate: self.name.as_ref().to_owned(),
            both_admit: read(&self.both_admit),
            both_deny: read(&self.both_deny),
            newly_denied: read(&self.newly_denied),
            newly_admitted: read(&self.newly_admitted),
            dropped: read(&self.dropped),
            failed: read(&self.failed),
        }
    }
}

/// Asks of candidates that wait for a store.
pub(super) struct Queue {
    room: Arc<Semaphore>,
    asking: Arc<Semaphore>,
}

impl Queue {
    pub(super) fn new() -> Self {
        let room = Arc::new(Semaphore::new(QUEUE_MAX as usize));
        Self { room, asking: Arc::new(Semaphore::new(ASKED_AT_ONCE)) }
    }

    /// Room for what `asks` requests ask of a candidate, which keep so many bytes meanwhile;
    /// counted as dropped if there is none.
    pub(super) fn room(
        &self,
        candidate: &Arc<Candidate>,
        asks: usize,
        bytes: usize,
    ) -> Option<Room> {
        let units = asks.saturating_add(bytes / BYTES_PER_UNIT);
        let units = u32::try_from(units).ok().filter(|units| *units <= QUEUE_MAX);
        let room = units.and_then(|it| Arc::clone(&self.room).try_acquire_many_owned(it).ok());
        let (Some(room), Ok(runtime)) = (room, Handle::try_current()) else {
            candidate.dropped(asks);
            return None;
        };
        let unheard = Unheard { candidate: Arc::clone(candidate), asks };
        Some(Room { room, runtime, asking: Arc::clone(&self.asking), unheard })
    }

    /// Waits until nothing waits.
    async fn emptied(&self) {
        let _ = self.room.acquire_many(QUEUE_MAX).await;
    }
}

/// Room for one ask.
pub(super) struct Room {
    room: OwnedSemaphorePermit,
    runtime: Handle,
    asking: Arc<Semaphore>,
    unheard: Unheard,
}

impl Room {
    /// Has a task ask.
    pub(super) fn ask(self, ask: impl Future<Output = ()> + Send + 'static) {
        let Self { room, runtime, asking, mut unheard } = self;
        runtime.spawn(async move {
            let asking = asking.acquire_owned().await;
            ask.await;
            unheard.asks = 0;
            drop((asking, unheard, room));
        });
    }
}

/// Asks whose task has not come to its end. If it breaks off, they have failed.
struct Unheard {
    candidate: Arc<Candidate>,
    asks: usize,
}

impl Drop for Unheard {
    fn drop(&mut self) {
        if self.asks > 0 {
            self.candidate.failed(self.asks);
        }
    }
}

impl Service {
    /// Waits until candidates have decided what they were asked so far.
    pub async fn shadows_told(&self) {
        self.queue.emptied().await;
    }

    /// The policies beside this one, as they are now.
    pub(super) fn beside<'p>(
        &self,
        policy: &'p Policy,
    ) -> impl Iterator<Item = (&'p Arc<Candidate>, Arc<Policy>)> + use<'p> {
        let policies = self.policies.load_full();
        let candidates = policy.shadows.candidates.iter();
        candidates.filter_map(move |candidate| {
            Some((candidate, Arc::clone(policies.get(&*candidate.name)?)))
        })
    }

    /// Has candidates see what the policy decided for a key.
    #[inline]
    pub(super) fn checked_beside(
        &self,
        policy: &Policy,
        key: &str,
        cost: Cost,
        answer: (bool, Source),
    ) {
        if !policy.shadows.candidates.is_empty() {
            self.check_beside(policy, &[key], cost, (&[answer.0], answer.1));
        }
    }

    /// The same for each of several keys.
    pub(super) fn check_beside<K: AsRef<str>>(
        &self,
        policy: &Policy,
        keys: &[K],
        cost: Cost,
        (admitted, source): (&[bool], Source),
    ) {
        if source == Source::FailMode {
            return;
        }
        for (candidate, beside) in self.beside(policy) {
            let Some(rate) = &beside.rate else { continue };
            let is_apart = catch_unwind(AssertUnwindSafe(|| {
                keys.iter().zip(admitted).all(|(key, admitted)| {
                    let decided = at_once(rate, key.as_ref(), cost);
                    decided.map(|decided| candidate.saw(*admitted, decided)).is_some()
                })
            }));
            match is_apart {
                Ok(true) => {}
                Ok(false) => self.queue_check(candidate, rate, keys, cost, admitted),
                Err(_) => candidate.failed(keys.len()),
            }
        }
    }

    /// Has candidates see what the policy decided for the keys of a batch that were not shed, and
    /// makes admissions of its denials if it refuses nobody. Says whether there was one.
    pub(super) fn many_beside(
        &self,
        policy: &Policy,
        keys: &[String],
        cost: Cost,
        (decided, source, shed): (&mut [Decision], Source, Option<&[bool]>),
    ) -> bool {
        let is_shed = |place: usize| shed.is_some_and(|shed| shed[place]);
        if policy.shadows.is_whole && !policy.is_load_only() {
            let each = decided.iter_mut().enumerate().filter(|(place, _)| !is_shed(*place));
            return each.fold(false, |any, (_, one)| policy.shadows.admit(one) || any);
        }
        if !policy.shadows.candidates.is_empty() {
            let asked = keys.iter().zip(decided.iter()).enumerate();
            let asked = asked.filter(|(place, _)| !is_shed(*place));
            let (keys, admitted): (Vec<&str>, Vec<bool>) =
                asked.map(|(_, (key, one))| (key.as_str(), one.is_admit())).unzip();
            self.check_beside(policy, &keys, cost, (&admitted, source));
        }
        false
    }

    fn queue_check<K: AsRef<str>>(
        &self,
        candidate: &Arc<Candidate>,
        rate: &Arc<Rate>,
        keys: &[K],
        cost: Cost,
        admitted: &[bool],
    ) {
        let bytes = keys.iter().map(|key| key.as_ref().len() + size_of::<String>()).sum();
        let Some(room) = self.queue.room(candidate, keys.len(), bytes) else { return };
        let owned: Vec<String> = keys.iter().map(|key| key.as_ref().to_owned()).collect();
        let (rate, asked) = (Arc::clone(rate), Arc::clone(candidate));
        let admitted = admitted.to_vec();
        room.ask(async move {
            match decided(&rate, &owned, cost).await {
                Some((decisions, source)) => {
                    for (parent, decision) in admitted.iter().zip(&decisions) {
                        asked.heard(*parent, decision.is_admit(), source);
                    }
                }
                None => asked.failed(owned.len()),
            }
        });
    }
}

/// What a rate of this process decides; nothing if it must be waited for.
fn at_once(rate: &Rate, key: &str, cost: Cost) -> Option<bool> {
    match rate {
        Rate::Here(here) => Some(here.limiter().check_cost(key, cost).is_admit()),
        Rate::Together(escrow) => match &**escrow {
            Escrow::Here(escrow) => Some(escrow.check(key.as_bytes(), cost).is_admit()),
            Escrow::There(_) => None,
        },
        Rate::There(_) | Rate::Tiered(_) => None,
    }
}

async fn decided(rate: &Rate, keys: &[String], cost: Cost) -> Option<(Vec<Decision>, Source)> {
    match rate.check_many(keys, cost).await {
        Ok(decided) => return Some(decided),
        Err(Unanswered::Store(_)) => return None,
        Err(Unanswered::Unsupported) => {}
    }
    let (mut decisions, mut source) = (Vec::with_capacity(keys.len()), Source::Store);
    for key in keys {
        let said = rate.check(key.as_bytes(), cost).await.ok()?;
        decisions.push(said.decision);
        source = source.max(said.source);
    }
    Some((decisions, source))
}

impl Policy {
    /// What came of trying it out, or others beside it; nothing if neither is asked for.
    #[must_use]
    pub fn shadowed(&self) -> Option<Shadowed> {
        let Shadows { is_whole, denied, candidates } = &self.shadows;
        let is_tried = *is_whole || !candidates.is_empty();
        is_tried.then(|| Shadowed {
            denied: denied.load(Ordering::Relaxed),
            candidates: candidates.iter().map(|candidate| candidate.counts()).collect(),
        })
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.room.available_permits();
        f.debug_struct("Queue").field("free", &free).finish_non_exhaustive()
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// How many asks may wait for stores, or 4 MiB of keys: each takes one unit, and one more for so
/// many bytes.
const QUEUE_MAX: u32 = 16_384;
const BYTES_PER_UNIT: usize = 256;
/// So many of them ask at a time: candidates share connections with those who decide.
const ASKED_AT_ONCE: usize = 64;
