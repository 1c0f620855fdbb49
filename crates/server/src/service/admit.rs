//! Admissions: every axis of a policy in one decision, and one lease on what it takes.
//!
//! What the work must be worth comes first, then whether this process is behind, then concurrency,
//! rate and cost, as an [`Admitter`] asks them.
//!
//! # Guarantee
//! - Admit and Explain of every door, and the counts of metrics, go by the same [`Verdicts`].
//! - A denial holds nothing, and no lease.
//! - The lease of an admission is the number of its reservation too: who knows its name can debit
//!   and settle at any instance that shares the accounts.
//!
//! # Proven by
//! `tests/it/admit.rs`, `tests/it/admission.rs`, `tests/it/admission_leases.rs`,
//! `tests/it/admission_ends.rs`, and `tests/it/admission.rs` of the command, with instances that
//! share a store and one that is killed.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use admittance::admission::{
    Admission, Admitter, AdmitterStats, Admitting, Charges, Counted, Explanation, Joint, Request,
};
use admittance::budget::Budget;
use admittance::learn::price::Bid;
use admittance::load::Class;
use admittance::{Axis, Cost, Decided, Decision, Invalid, Micros, Source, Span, Verdicts};
use tokio::time::timeout_at;

use super::axes::Axes;
use super::gated::Gated;
use super::{Operation, Policy, Refusal, Service, bounded};
use crate::config::{LoadBy, PolicyConfig};
use crate::leases::{Heard, Lease, Renewing, Term};

/// Work that asks to be admitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work<'a> {
    /// The policy.
    pub policy: &'a str,
    /// Whose limits and accounts it goes by.
    pub key: &'a str,
    /// What it is expected to cost.
    pub cost: Cost,
    /// What it is worth; 1 unless said.
    pub value: Option<f64>,
    /// For how many milliseconds it will hold its permit, as far as known.
    pub hold_ms: Option<f64>,
}

impl<'a> Work<'a> {
    /// Work for this key that costs 1.
    #[must_use]
    pub const fn new(policy: &'a str, key: &'a str) -> Self {
        Self { policy, key, cost: Cost::ONE, value: None, hold_ms: None }
    }

    pub(super) fn request(&self) -> Request<'a> {
        let (value, hold_ms) = (self.value, self.hold_ms);
        let request = Request::new(self.key).cost(self.cost.units());
        Request { value, hold_ms, ..request }
    }
}

/// What an admission decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Over all axes.
    pub decision: Decision,
    /// The axis that denied, if one did.
    pub binding: Option<Axis>,
    /// What each axis said that was asked.
    pub verdicts: Verdicts,
    /// What is held, if the work may start.
    pub lease: Option<Lease>,
    /// Where rate and cost were decided.
    pub source: Source,
    /// Whether an axis has denied, and the policy refuses nobody: the decision was made an
    /// admission, which holds nothing. The verdicts are what the axes said.
    pub is_shadow_denied: bool,
}

impl Admitted {
    fn new(verdicts: Verdicts, lease: Option<Lease>, source: Source) -> Self {
        let (decision, binding) = (verdicts.decision(), verdicts.binding());
        Self { decision, binding, verdicts, lease, source, is_shadow_denied: false }
    }
}

/// What decides the admissions of one policy.
#[derive(Debug)]
pub(super) struct Admits {
    admitter: Admitter<Axes>,
    /// For how long what is admitted is held; nothing if it holds nothing.
    term: Option<Term>,
    /// How often a reservation must be renewed in its accounts.
    renewed: Option<Span>,
}

impl Admits {
    /// For a policy that Admit decides on these axes, with what the one before it counted and
    /// learned; `None` for others.
    pub(super) fn new(
        policy: &PolicyConfig,
        gate: Option<&Gated>,
        (counted, learned): (Option<Counted>, Option<Joint>),
        axes: impl FnOnce() -> Axes,
    ) -> Result<Option<Self>, Invalid> {
        if gate.is_none() && !policy.is_admission() {
            return Ok(None);
        }
        let axes = axes();
        let lives = policy.reservation_ttl().zip(policy.lease_ttl());
        let renewed = lives.map(|(ttl, lease)| renew_every(ttl, lease));
        let mut admitter = Admitter::new(axes).atomicity(policy.atomicity);
        if let Some(gate) = gate {
            admitter = admitter.concurrency(gate.gate().clone());
        }
        if let Some(joint) = &policy.joint {
            admitter = admitter.joint(match (learned, joint.refine) {
                (Some(learned), _) => learned,
                (None, Some(rules)) => Joint::refined(joint.prior, rules),
                (None, None) => Joint::given(joint.prior),
            });
        }
        if let Some(counted) = counted {
            admitter = admitter.counting_on(counted);
        }
        let term = policy.lease_ttl().map(|ttl| Term { ttl, hold: policy.hold_max() });
        Ok(Some(Self { admitter: admitter.build()?, term, renewed }))
    }

    pub(super) const fn admitter(&self) -> &Admitter<Axes> {
        &self.admitter
    }

    /// Whether every axis answers at once.
    pub(super) fn is_at_once(&self) -> bool {
        self.admitter.charges().is_at_once()
    }

    /// Whether the work is worth its price, as far as is known before it is recorded.
    fn is_worth(&self, work: &Work<'_>) -> bool {
        let bid = || Bid::new(work.value, work.cost.units(), work.hold_ms);
        self.admitter.joint().is_none_or(|joint| joint.prices().admits(&bid()))
    }

    pub(super) fn renewing(&self, admission: &Admission<Axes>, key: &str) -> Option<Renewing> {
        let (every, lease) = (self.renewed?, admission.lease()?);
        let (admitter, key) = (self.admitter.clone(), key.as_bytes().into());
        Some(Renewing { admitter, key, lease, every })
    }
}

/// Admissions that were decided without asking an [`Admitter`]: by load, or of a policy that limits
/// nothing else.
#[derive(Debug, Default)]
pub(super) struct Unasked {
    admitted: AtomicU64,
    shed: AtomicU64,
}

impl Service {
    /// Decides whether a piece of work of cost 1 may start, and holds what it takes if it may.
    ///
    /// # Errors
    /// As [`admit_work`](Self::admit_work).
    pub async fn admit(&self, policy: &str, key: &str) -> Result<Admitted, Refusal> {
        self.admit_work(&Work::new(policy, key)).await
    }

    /// Decides whether a piece of work may start, and holds what it takes if it may.
    ///
    /// # Errors
    /// An unknown policy, one that is not for admissions, a key that is too long, a cost that no
    /// account counts, as many leases as there may be, a store that could not answer; then nothing
    /// is held.
    pub async fn admit_work(&self, work: &Work<'_>) -> Result<Admitted, Refusal> {
        let policy = &*self.admitting(work)?;
        let watching = self.watching(policy);
        let observed = self.counts.observe(policy, Operation::Admit);
        let mut admitted = self.admitted(policy, work).await?;
        self.admit_beside(policy, work, &admitted);
        if admitted.binding != Some(Axis::Load) && policy.shadows.admit(&mut admitted.decision) {
            (admitted.binding, admitted.is_shadow_denied) = (None, true);
        }
        observed.admitted(work.key, &admitted);
        watching.saw(work.key, &admitted.decision, admitted.binding);
        Ok(admitted)
    }

    async fn admitted(&self, policy: &Policy, work: &Work<'_>) -> Result<Admitted, Refusal> {
        let key = work.key;
        let admits = policy.admits.as_ref();
        if admits.is_none_or(|admits| admits.is_worth(work))
            && let Some(Decided { decision, source }) = self.shed(policy, key)?
        {
            policy.unasked.shed.fetch_add(1, Ordering::Relaxed);
            let verdicts = Verdicts::NONE.with(Axis::Load, decision);
            return Ok(Admitted::new(verdicts, None, source));
        }
        let Some(admits) = admits else {
            // Nothing is held.
            policy.unasked.admitted.fetch_add(1, Ordering::Relaxed);
            let verdicts = Verdicts::NONE.with(Axis::Load, self.unlimited());
            return Ok(Admitted::new(verdicts, None, Source::Node));
        };
        if admits.term.is_some() && self.leases.is_full() {
            return Err(Refusal::TooManyLeases { most: self.leases.most() });
        }
        let mut request = work.request();
        // Others debit and settle by the lease's own number, so it has one before it is asked for.
        let named = policy.has_cost_axis().then(|| self.leases.name());
        if let Some(named) = &named {
            request = request.lease(named.code());
        }
        let decided = admits.admitter.admit(request).await;
        let (verdicts, lease, source) = match decided.map_err(|error| policy.failed(error))? {
            Admitting::Denied(denial) => {
                let source = match denial.binding() {
                    // Places and prices are nobody else's.
                    None | Some(Axis::Concurrency) => Source::Store,
                    _ => denial.source(),
                };
                (denial.verdicts(), None, source)
            }
            Admitting::Admitted(admission) => {
                let (verdicts, source) = (admission.verdicts(), admission.source());
                let lease = admits.term.map(|term| {
                    let named = named.unwrap_or_else(|| self.leases.name());
                    let renewing = admits.renewing(&admission, key);
                    self.leases.give(&named, admission, term, renewing)
                });
                (verdicts, lease, source)
            }
        };
        Ok(Admitted::new(self.with_load(policy, verdicts), lease, source))
    }

    /// What an admission would be told now, what each axis sees, and what would have to be
    /// otherwise. Charges nothing and holds nothing.
    ///
    /// Load that is shed by chance, and a rate that is leased or shared among tenants, cannot be
    /// looked at: they are absent.
    ///
    /// # Errors
    /// As [`admit_work`](Self::admit_work), and a store that could not be looked up.
    pub async fn explain(&self, work: &Work<'_>) -> Result<Explanation, Refusal> {
        let policy = &*self.admitting(work)?;
        let mut explained = match &policy.admits {
            Some(admits) => {
                let explained = admits.admitter.explain(work.request()).await;
                explained.map_err(|error| policy.failed(error))?
            }
            None => Explanation {
                verdicts: Verdicts::NONE,
                seen: Verdicts::NONE,
                worth: None,
                cost_max: None,
                source: Source::Node,
            },
        };
        if let Some(said) = self.seen_load(policy, work.key) {
            explained.seen = explained.seen.with(Axis::Load, said);
            explained.verdicts = match (explained.verdicts.is_policy_denied(), said.is_admit()) {
                (true, _) => explained.verdicts,
                (false, true) => explained.verdicts.with(Axis::Load, said),
                (false, false) => Verdicts::NONE.with(Axis::Load, said),
            };
        }
        Ok(explained)
    }

    /// The policy, if it is one for admissions and the work one that it can judge.
    fn admitting(&self, work: &Work<'_>) -> Result<Arc<Policy>, Refusal> {
        let policy = self.policy(work.policy)?;
        bounded(work.key)?;
        if policy.admits.is_none() && !policy.is_load_only() {
            return Err(policy.cannot(Operation::Admit));
        }
        let units = work.cost.units();
        if policy.has_cost_axis() && units > Budget::UNITS_MAX {
            return Err(Refusal::UnitsOutOfRange { given: units.cast_signed() });
        }
        Ok(policy)
    }

    /// With what the load axis said of one that went on: nothing, if the policy has none.
    fn with_load(&self, policy: &Policy, verdicts: Verdicts) -> Verdicts {
        let has_load = self.shedder().is_some() && policy.config.load.is_some();
        match has_load && !verdicts.is_policy_denied() {
            true => verdicts.with(Axis::Load, Decision::NEUTRAL),
            false => verdicts,
        }
    }

    /// What the load axis would say, if the policy has one that does not go by chance.
    fn seen_load(&self, policy: &Policy, key: &str) -> Option<Decision> {
        let load = policy.config.load.filter(|load| load.by == LoadBy::Key)?;
        let class: Class = load.class;
        let shedder = self.shedder()?;
        Some(match shedder.would_reject(class, key) {
            true => shedder.denial(self.now()),
            false => Decision::NEUTRAL,
        })
    }

    pub(crate) fn now(&self) -> Micros {
        self.leases.now()
    }

    pub(crate) fn wall(&self) -> Micros {
        self.leases.wall()
    }

    /// Ends a lease. One that has ended already stays so.
    ///
    /// # Errors
    /// It is held by another instance, which could not be reached; it then ends by itself.
    pub async fn release(&self, lease: &str, is_dropped: bool) -> Result<(), Refusal> {
        let released = self.leases.release(lease, is_dropped).await;
        released.map_err(|error| Refusal::Relay { error })
    }

    /// Keeps leases that are still in use.
    ///
    /// # Errors
    /// More leases than one call may have.
    pub async fn heartbeat(&self, leases: Vec<String>) -> Result<Heard, Refusal> {
        if leases.len() > super::BATCH_MAX {
            return Err(Refusal::BatchTooLong { length: leases.len() });
        }
        Ok(self.leases.heartbeat(leases).await)
    }

    /// Takes back what nobody was heard of in time; says how many leases that were.
    pub fn sweep(&self) -> usize {
        self.leases.sweep()
    }

    /// Acts on what other instances were told for this one. Says how much that was.
    ///
    /// # Errors
    /// The store that they share did not answer.
    pub async fn collect(&self) -> Result<usize, admittance::StoreError> {
        self.leases.collect().await
    }

    /// The same, with at most so many leases at a time, about; a million unless said.
    #[must_use]
    pub fn with_leases_max(mut self, most: usize) -> Self {
        self.leases.set_most(most);
        self
    }

    /// How many permits are held by clients.
    #[must_use]
    pub fn leases_held(&self) -> usize {
        self.leases.held()
    }

    /// How many were taken back because nobody was heard.
    #[must_use]
    pub fn leases_reclaimed(&self) -> u64 {
        self.leases.reclaimed()
    }

    /// Sweeps and collects for as long as it is polled.
    pub async fn tend(&self) {
        let sweeping = async {
            loop {
                tokio::time::sleep(SWEEP - SWEEP_COLLECTS).await;
                self.forget_former();
                if !self.is_leasing() {
                    continue;
                }
                // What was heard elsewhere counts, if the store says so in time.
                let began = tokio::time::Instant::now();
                let mut collect = pin!(self.collect());
                let collected = timeout_at(began + SWEEP_COLLECTS, &mut collect).await;
                tokio::time::sleep_until(began + SWEEP_COLLECTS).await;
                self.sweep();
                if collected.is_err() {
                    // Notes that the store has given out are nowhere else.
                    let _ = timeout_at(began + COLLECT_MAX, collect).await;
                }
            }
        };
        tokio::join!(sweeping, self.collecting());
    }

    /// Whether a policy gives leases, or did and some are still held.
    fn is_leasing(&self) -> bool {
        self.kinds.gives_leases() || self.leases.held() > 0
    }

    async fn collecting(&self) {
        let mut pause = COLLECT_SLOW;
        while self.leases.has_relay() {
            if !self.is_leasing() {
                tokio::time::sleep(COLLECT_SLOW).await;
                continue;
            }
            let collected = tokio::time::timeout(COLLECT_MAX, self.collect()).await;
            let is_busy = matches!(collected, Ok(Ok(notes)) if notes > 0);
            pause = if is_busy { COLLECT_FAST } else { (pause * 2).min(COLLECT_SLOW) };
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits until the accounts know of every lease that has ended so far, or could not be told.
    pub async fn all_told(&self) {
        self.leases.all_told().await;
    }
}

impl Policy {
    /// How often its admissions were decided in which way; nothing if it is not for admissions.
    #[must_use]
    pub fn admissions(&self) -> Option<AdmitterStats> {
        if self.admits.is_none() && !self.is_load_only() {
            return None;
        }
        let asked = self.admits.as_ref().map(|admits| admits.admitter.stats());
        let mut stats = asked.unwrap_or_default();
        if self.shadows.is_whole() {
            // Those have all been admitted; who was denied is counted apart.
            stats.admitted += stats.policy_denied + stats.denied.iter().sum::<u64>();
            (stats.policy_denied, stats.denied) = Default::default();
        }
        stats.admitted += self.unasked.admitted.load(Ordering::Relaxed);
        stats.denied[Axis::Load as usize] += self.unasked.shed.load(Ordering::Relaxed);
        Some(stats)
    }

    /// What it has counted, for the policy that takes its place.
    pub(super) fn counted(&self) -> Option<Counted> {
        self.admits.as_ref().map(|admits| admits.admitter.counted())
    }

    /// The prices that it has learned.
    pub(super) fn joint(&self) -> Option<Joint> {
        self.admits.as_ref().and_then(|admits| admits.admitter.joint().cloned())
    }

    pub(super) fn gives_leases(&self) -> bool {
        self.admits.as_ref().is_some_and(|admits| admits.term.is_some())
    }

    /// Whether Admit charges a budget of it.
    pub(super) fn has_cost_axis(&self) -> bool {
        self.config.cost.as_ref().is_some_and(|cost| cost.is_axis)
    }
}

impl PolicyConfig {
    /// How long an admission is held without being heard of; nothing if it holds nothing.
    pub(super) fn lease_ttl(&self) -> Option<Span> {
        let cost = self.cost.as_ref().filter(|cost| cost.is_axis).map(|cost| cost.lease_ttl);
        self.concurrency.as_ref().map(|gate| gate.lease_ttl).or(cost)
    }

    /// How long the reservation of an admission is kept without being heard of: longer than the
    /// lease whose heartbeats renew it, which can be kept until it is swept.
    pub(super) fn reservation_ttl(&self) -> Option<Span> {
        let cost = self.cost.as_ref().filter(|cost| cost.is_axis)?.lease_ttl;
        let longest = self.lease_ttl().map_or(cost, |lease| cost.max(kept_for(lease)));
        Some(longest.min(Budget::TTL_MAX))
    }

    /// For how long a place may be held at most: longer than that nobody keeps it after this
    /// instance is gone.
    fn hold_max(&self) -> Option<Span> {
        let fleet = self.concurrency.as_ref()?.fleet.as_ref()?.rules;
        Some(fleet.max_hold).filter(|hold| fleet.handoff && *hold > Span::ZERO)
    }
}

/// How often heartbeats renew a reservation that lives so long, for a lease that lives so long:
/// with two more tries before it ends, and often enough that it ends after the lease, however late
/// the next heartbeat comes.
fn renew_every(ttl: Span, lease: Span) -> Span {
    let beyond = ttl.us().saturating_sub(kept_for(lease).us());
    Span::from_us(beyond.min(ttl.us() / 3))
}

/// How long a heartbeat may find a lease that lives so long: until it is swept.
const fn kept_for(lease: Span) -> Span {
    Span::from_us(lease.us() + OVERDUE_MAX.us())
}

/// Sweeps are at most this far apart, with a slow store.
const OVERDUE_MAX: Span = Span::from_secs(1);

/// How often permits are taken back whose holders are gone.
pub const SWEEP: Duration = Duration::from_millis(500);
/// How often notes of other instances are looked for, when there were some and when there were not.
const SWEEP_COLLECTS: Duration = Duration::from_millis(100);
/// How long the store may take to give them out. Then they are lost.
const COLLECT_MAX: Duration = Duration::from_millis(500);
const COLLECT_FAST: Duration = Duration::from_millis(20);
const COLLECT_SLOW: Duration = Duration::from_millis(250);
