//! The cost axis: reserve, debit, settle, over the accounts of one policy or of several.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use admittance::budget::{
    Act, Answered, BookedBy, Budget, Budgets, Charge, Entry, Flow, LeaseKey, MemoryAccounts,
    Settlement, SharedAccounts,
};
use admittance::learn::reserve::{ReserveRules, Sizes, Weights};
use admittance::{Axis, Cost, Decided, Decision, Micros, Outcome, Source, Span, StoreError};

use super::axes::{Kept, Purse};
use super::{Answer, Operation, Policy, Refusal, Service, SharedClock, bounded};
use crate::config::{CostConfig, ReserveConfig};
use crate::lease_id::{LeaseId, fresh_lease, parse_held};
use crate::store::AnyStore;

/// What is asked of the accounts that a key has with a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The policy.
    pub policy: &'a str,
    /// The key.
    pub key: &'a str,
    /// What to reserve or to debit, or what was produced. To reserve nothing is to reserve what the
    /// policy says.
    pub units: u64,
}

/// What a caller says about its work to policies that learn how much to reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected<'a> {
    /// What kind of work it is.
    pub class: &'a str,
    /// What it is expected to cost.
    pub prediction: Option<u64>,
    /// Whether it was stopped before it was done: it would have cost at least as much.
    pub is_stopped: bool,
}

/// What a caller may choose about a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Whose it will be, so that asking again reserves nothing more; a new lease if nothing is
    /// said.
    pub lease: Option<LeaseKey>,
    /// How long it lives without being heard of, at most what the policies say.
    pub ttl: Option<Span>,
}

/// What accounts answered together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The one answer.
    pub decision: Decision,
    /// Whether to go on.
    pub flow: Flow,
    /// Which of `lines` denied, if one did.
    pub binding: Option<usize>,
    /// Each account, in the order that was asked, a policy's windows in the order of its file.
    pub lines: Vec<CostLine>,
    /// Who decided.
    pub source: Source,
    /// When.
    pub at: Micros,
    /// Whether accounts have denied, and their policies refuse nobody: the decision was made an
    /// admission. The lines are what the accounts said.
    pub is_shadow_denied: bool,
    /// Whether the permit of the admission that was debited is lost: nobody was heard of in time.
    pub is_reclaimed: bool,
}

impl Costs {
    /// The one answer, and who gave it.
    pub(crate) const fn answer(&self) -> Answer<Decision> {
        let Self { decision: decided, source, is_shadow_denied, .. } = *self;
        Answer { decided, source, is_shadow_denied }
    }
}
/// One account's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostLine {
    /// The policy.
    pub policy: String,
    /// The key.
    pub key: String,
    /// The window's name.
    pub window: String,
    /// The budget that was asked.
    pub budget: Budget,
    /// What it said.
    pub answered: Answered,
}

/// A reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// What the accounts said.
    pub costs: Costs,
    /// Whose it is; `None` if it was denied.
    pub lease: Option<LeaseKey>,
    /// How long it lives without being heard of.
    pub ttl: Span,
    /// What was reserved for each thing asked.
    pub units: Vec<u64>,
}

/// The cost axis of one policy, ready to decide.
pub(super) struct Costed {
    config: CostConfig,
    /// The policy's name where its accounts live.
    name: Box<str>,
    /// Where that is, if not in this process alone.
    shared: Option<Arc<SharedAccounts<AnyStore>>>,
    /// What was learned from settlements, for as long as the rules of that are the same.
    sizes: Option<Arc<Mutex<Sizes>>>,
}

impl Costed {
    pub(super) fn new(
        config: &CostConfig,
        name: &str,
        shared: Option<Arc<SharedAccounts<AnyStore>>>,
        old: Option<&Self>,
    ) -> Self {
        let learned = old.filter(|old| old.config.reserve == config.reserve);
        let sizes = match config.reserve {
            ReserveConfig::Units(_) => None,
            _ if let Some(learned) = learned => learned.sizes.clone(),
            ReserveConfig::Learned { hold, overrun, min, max } => {
                let rules = ReserveRules::new(Weights { hold, overrun }, min..=max);
                // Lengths are often far below the most there may be, and they drift.
                let rules = rules.map(|rules| rules.looking_back().remembering(REMEMBERED));
                let sizes = rules.and_then(|rules| Sizes::new(rules, Sizes::CLASSES));
                Some(Arc::new(Mutex::new(sizes.expect("the reader has built it once"))))
            }
        };
        Self { config: config.clone(), name: name.into(), shared, sizes }
    }

    pub(super) fn answered_by_fail_mode(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.answered_by_fail_mode())
    }

    /// How much is reserved for who does not say.
    pub(super) fn estimate(&self, expected: Expected<'_>) -> u64 {
        match (&self.sizes, self.config.reserve) {
            (Some(sizes), _) => {
                let sizes = sizes.lock().unwrap_or_else(PoisonError::into_inner);
                sizes.estimate(expected.class, expected.prediction)
            }
            (None, ReserveConfig::Units(units)) => units,
            (None, ReserveConfig::Learned { max, .. }) => max,
        }
    }

    pub(super) fn learn(&self, expected: Expected<'_>, actual: u64) {
        if let Some(sizes) = &self.sizes {
            let mut sizes = sizes.lock().unwrap_or_else(PoisonError::into_inner);
            match expected.is_stopped {
                true => sizes.learn_stopped(expected.class, expected.prediction, actual),
                false => sizes.learn(expected.class, expected.prediction, actual),
            }
        }
    }

    /// As the cost axis of an admission, if it is one, with reservations that live so long.
    pub(super) fn purse(&self, ledger: &Ledger, ttl: Option<Span>) -> Option<Purse> {
        let ttl = ttl.filter(|_| self.config.is_axis)?;
        let budgets: Vec<Budget> = self.config.budgets.iter().map(|(_, budget)| *budget).collect();
        let budgets = Budgets::new(&*self.name, budgets).expect("the reader has built it once");
        let kept = match &self.shared {
            Some(shared) => Kept::There(Arc::clone(shared)),
            None => Kept::Here(Arc::clone(&ledger.here)),
        };
        Some(Purse { kept, budgets, ttl })
    }

    /// What is charged for a key.
    pub(super) fn charges<'a>(&'a self, key: &'a [u8], units: u64) -> Vec<Charge<'a>> {
        let each = self.config.budgets.iter();
        let policy = &*self.name;
        each.map(|(_, budget)| Charge { policy, budget, key, units }).collect()
    }

    pub(super) const fn shared(&self) -> Option<&Arc<SharedAccounts<AnyStore>>> {
        self.shared.as_ref()
    }

    pub(super) const fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether its accounts are charged in the same place as another's, by the same rules.
    fn is_with(&self, other: &Self) -> bool {
        match (&self.shared, &other.shared) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Whether a reservation in the accounts of one is found in those of the other.
    pub(super) fn has_accounts_of(&self, other: &Self) -> bool {
        let has = |budget: &Budget| {
            self.config.budgets.iter().any(|(_, own)| own.cadence() == budget.cadence())
        };
        self.name == other.name
            && self.shared.is_some() == other.shared.is_some()
            && other.config.budgets.iter().all(|(_, budget)| has(budget))
    }

    pub(super) const fn is_here(&self) -> bool {
        self.shared.is_none()
    }

    pub(super) const fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn accounts_max(&self) -> u64 {
        self.config.accounts_max()
    }
}

/// What the service keeps for the cost axis of all its policies.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Accounts of this process alone.
    pub(super) here: Arc<MemoryAccounts<SharedClock>>,
    ignored: AtomicU64,
}

impl Ledger {
    pub(super) fn new(here: MemoryAccounts<SharedClock>) -> Self {
        Self { here: Arc::new(here), ignored: AtomicU64::new(0) }
    }
}

impl Service {
    /// Counts what is about to be served, without a reservation.
    ///
    /// # Errors
    /// An unknown policy, one without a budget, a key that is too long.
    pub async fn debit(&self, policy: &str, key: &str, units: Cost) -> Result<Decided, Refusal> {
        let Answer { decided, source, .. } = self.debit_answer(policy, key, units).await?;
        Ok(Decided { decision: decided, source })
    }

    /// The same, with whether the policy would have denied if it refuses nobody.
    ///
    /// # Errors
    /// As [`debit`](Self::debit).
    pub async fn debit_answer(
        &self,
        policy: &str,
        key: &str,
        units: Cost,
    ) -> Result<Answer<Decision>, Refusal> {
        self.debit_costs(policy, key, units.units()).await.map(|(answer, _)| answer)
    }

    /// The same, with what each account said; none was asked if it was shed.
    pub(crate) async fn debit_costs(
        &self,
        policy: &str,
        key: &str,
        units: u64,
    ) -> Result<(Answer<Decision>, Option<Costs>), Refusal> {
        let asked = [Asked { policy, key, units }];
        let (named, key) = (self.policy(policy)?, bounded(key)?);
        named.costed(Operation::Debit)?;
        let watching = self.watching(&named);
        let observed = self.counts.observe(&named, Operation::Debit);
        if let Some(denied) = self.shed(&named, key)? {
            observed.decided(key, &denied, Axis::Load);
            watching.saw(key, &denied.decision, Some(Axis::Load));
            let Decided { decision: decided, source } = denied;
            return Ok((Answer { decided, source, is_shadow_denied: false }, None));
        }
        let costs = self.debited(&asked, None).await?;
        let decided = Decided { decision: costs.decision, source: costs.source };
        observed.decided(key, &decided, Axis::Cost);
        watching.saw(key, &costs.decision, Some(Axis::Cost));
        Ok((costs.answer(), Some(costs)))
    }

    /// Takes an estimate out of what is left in every account, or in none.
    ///
    /// # Errors
    /// An unknown policy, one without a budget, a key that is too long, nothing or too much asked
    /// at once, policies whose accounts do not live in one place.
    pub async fn reserve(
        &self,
        asked: &[Asked<'_>],
        terms: Terms,
        expected: Expected<'_>,
    ) -> Result<Reserved, Refusal> {
        let mut sized = Vec::with_capacity(asked.len());
        let mut own_ttl: Option<Span> = None;
        for one in asked.iter().take(Entry::CHARGES_MAX + 1) {
            let policy = self.policy(one.policy)?;
            let costed = policy.costed(Operation::Reserve)?;
            let estimate = if one.units == 0 { costed.estimate(expected) } else { one.units };
            own_ttl = Some(
                own_ttl.map_or(costed.config.lease_ttl, |ttl| ttl.min(costed.config.lease_ttl)),
            );
            sized.push(Asked { units: estimate, ..*one });
        }
        // A caller may ask for less than the operator gives, never for more.
        let own_ttl = own_ttl.unwrap_or(CostConfig::LEASE_TTL_DEFAULT);
        let ttl = terms.ttl.map_or(own_ttl, |ttl| ttl.min(own_ttl));
        let lease = terms.lease.unwrap_or_else(fresh_lease);
        let act = Act::Reserve { lease, ttl };
        let named = terms.lease.is_some().then_some(Charged::Named);
        let costs = self.book_as(&sized, act, Operation::Reserve, named);
        let costs = self.observed_costs(asked, Operation::Reserve, costs).await?;
        // A candidate sizes for itself what nobody has.
        self.book_beside(asked, act, &costs, expected);
        let lease = costs.decision.is_admit().then_some(lease);
        let units = sized.iter().map(|one| if lease.is_some() { one.units } else { 0 }).collect();
        Ok(Reserved { costs, lease, ttl, units })
    }

    /// Counts what is about to be served, from a lease's reservation first.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub async fn debit_lease(
        &self,
        asked: &[Asked<'_>],
        lease: Option<LeaseKey>,
    ) -> Result<Costs, Refusal> {
        self.observed_costs(asked, Operation::Debit, self.debited(asked, lease)).await
    }

    /// The same with a lease as the wire writes it; empty for none. The lease of an admission is
    /// kept as by a heartbeat, and the answer says if that came too late.
    ///
    /// # Errors
    /// As [`debit_lease`](Self::debit_lease), and a lease that is none.
    pub async fn debit_held(&self, asked: &[Asked<'_>], lease: &str) -> Result<Costs, Refusal> {
        let key = match lease {
            "" => None,
            lease => Some(parse_held(lease)?),
        };
        let costs = self.debit_lease(asked, key).await;
        let Some(held) = LeaseId::parse(lease) else { return costs };
        // What was debited is heard of in its accounts.
        let is_booked = costs.as_ref().is_ok_and(|costs| costs.source != Source::FailMode);
        let is_live = self.leases.hear(held, is_booked).await;
        Ok(Costs { is_reclaimed: !is_live, ..costs? })
    }

    async fn debited(
        &self,
        asked: &[Asked<'_>],
        lease: Option<LeaseKey>,
    ) -> Result<Costs, Refusal> {
        let act = Act::Debit(lease);
        let mut costs = self.book(asked, act, Operation::Debit).await?;
        self.book_beside(asked, act, &costs, Expected::default());
        self.admit_debit(asked, &mut costs);
        Ok(costs)
    }

    /// Makes an admission of a denial if all who were asked refuse nobody. Beside one that does,
    /// nothing would have been charged there either; one that is gone refuses as it did.
    fn admit_debit(&self, asked: &[Asked<'_>], costs: &mut Costs) {
        let policies = || asked.iter().filter_map(|one| self.policy(one.policy).ok());
        let whole = || policies().filter(|policy| policy.shadows.is_whole()).count();
        if costs.decision.is_admit() || whole() < asked.len() {
            return;
        }
        for policy in policies() {
            let mut own = costs.lines.iter().filter(|line| line.policy == policy.name());
            if own.any(|line| !line.answered.decision.is_admit()) {
                costs.is_shadow_denied |= policy.shadows.admit(&mut { costs.decision });
            }
        }
        (costs.decision.outcome, costs.flow, costs.binding) = (Outcome::Admit, Flow::GoOn, None);
    }

    /// Ends a lease with what was produced, or with what was debited if nobody knows.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), a lease that no account knows, and a store that did not
    /// answer: settling again is safe.
    pub async fn settle(
        &self,
        asked: &[Asked<'_>],
        lease: LeaseKey,
        is_known: bool,
        expected: Expected<'_>,
    ) -> Result<Costs, Refusal> {
        let act = if is_known { Act::Settle(lease) } else { Act::Abandon(lease) };
        let mut costs = self.book(asked, act, Operation::Settle).await?;
        if is_unknown(&costs) && self.former.has_any(asked) {
            // It may have been reserved by what the policy was before a reload.
            let former = Some(Charged::Before);
            costs = self.book_as(asked, act, Operation::Settle, former).await?;
        }
        self.book_beside(asked, act, &costs, expected);
        if is_unknown(&costs) {
            self.ledger.ignored.fetch_add(1, Ordering::Relaxed);
            let policy = asked.first().map_or("", |one| one.policy).to_owned();
            return Err(Refusal::UnknownLease { policy });
        }
        let settlements = || costs.lines.iter().map(|line| line.answered.settlement);
        let is_first = settlements().any(|settlement| matches!(settlement, Settlement::Now(_)));
        if is_known && is_first {
            for one in asked {
                self.charged(one.policy, act, Operation::Settle, None)?.learn(expected, one.units);
            }
        }
        Ok(costs)
    }

    /// How accounts stand. Charges nothing.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), and a store that did not answer.
    pub async fn budget(&self, asked: &[Asked<'_>]) -> Result<Costs, Refusal> {
        self.book(asked, Act::Look, Operation::Budget).await
    }

    /// How many accounts are kept in this process.
    #[must_use]
    pub fn accounts_kept(&self) -> u64 {
        self.ledger.here.stats().kept
    }

    /// How many settlements were of leases that no account knew, or no longer.
    #[must_use]
    pub fn settlements_ignored(&self) -> u64 {
        self.ledger.ignored.load(Ordering::Relaxed)
    }

    async fn book(
        &self,
        asked: &[Asked<'_>],
        act: Act,
        operation: Operation,
    ) -> Result<Costs, Refusal> {
        self.book_as(asked, act, operation, None).await
    }

    /// The cost axis that an act is booked by. Who holds a lease of a policy that a reload has
    /// removed can still debit and settle it.
    fn charged(
        &self,
        policy: &str,
        act: Act,
        operation: Operation,
        how: Option<Charged>,
    ) -> Result<Arc<Costed>, Refusal> {
        let has_lease = matches!(act, Act::Debit(Some(_)) | Act::Settle(_) | Act::Abandon(_));
        let former = || self.former.get(policy).filter(|_| has_lease);
        if how == Some(Charged::Before)
            && let Some(former) = former()
        {
            return Ok(former);
        }
        let now = self.policy(policy).and_then(|policy| {
            let costed = policy.cost.clone();
            costed.ok_or_else(|| policy.cannot(operation))
        });
        now.or_else(|refusal| former().ok_or(refusal))
    }

    /// The same, in a way that only some are.
    async fn book_as(
        &self,
        asked: &[Asked<'_>],
        act: Act,
        operation: Operation,
        how: Option<Charged>,
    ) -> Result<Costs, Refusal> {
        let mut named: Vec<(Asked<'_>, &str, &Costed)> = Vec::new();
        let mut charges: Vec<Charge<'_>> = Vec::new();
        // One more than may be charged is enough to know that it is too much.
        let policies = asked.iter().take(Entry::CHARGES_MAX + 1);
        let policies: Result<Vec<_>, _> =
            policies.map(|one| self.charged(one.policy, act, operation, how)).collect();
        let policies = policies?;
        for (one, costed) in asked.iter().zip(&policies) {
            let costed = &**costed;
            let key = bounded(one.key)?.as_bytes();
            if one.units > Budget::UNITS_MAX {
                return Err(Refusal::UnitsOutOfRange { given: one.units.cast_signed() });
            }
            for (window, budget) in &costed.config.budgets {
                named.push((*one, window, costed));
                let (policy, units) = (&*costed.name, one.units);
                charges.push(Charge { policy, budget, key, units });
            }
            if charges.len() > Entry::CHARGES_MAX {
                return Err(Refusal::TooManyAccounts { asked: charges.len() });
            }
        }
        let Some((first, _, costed)) = named.first() else {
            return Err(Refusal::TooManyAccounts { asked: 0 });
        };
        if let Some((other, _, _)) = named.iter().find(|(_, _, other)| !costed.is_with(other)) {
            let (one, other) = (first.policy.to_owned(), other.policy.to_owned());
            return Err(Refusal::Apart { one, other });
        }
        if let Some(twice) = twice(asked) {
            return Err(Refusal::TwiceCharged { policy: twice.policy.to_owned() });
        }
        let entry = Entry { charges: &charges, act };
        let booked = match &costed.shared {
            Some(shared) if how == Some(Charged::Named) => shared.book_named(entry).await,
            Some(shared) => shared.book(entry).await,
            None => self
                .ledger
                .here
                .book_now(entry)
                .map(|booked| BookedBy { booked, source: Source::Store }),
        };
        let policy = first.policy;
        let BookedBy { booked, source } = booked.map_err(|error| unbooked(policy, error))?;
        let together = booked.together;
        let lines =
            named.iter().zip(&charges).zip(together.each).map(|((name, charge), answered)| {
                let (one, window, _) = *name;
                CostLine {
                    policy: one.policy.to_owned(),
                    key: one.key.to_owned(),
                    window: window.to_owned(),
                    budget: *charge.budget,
                    answered,
                }
            });
        Ok(Costs {
            decision: together.decision,
            flow: together.flow,
            binding: together.binding,
            lines: lines.collect(),
            source,
            at: booked.at,
            is_shadow_denied: false,
            is_reclaimed: false,
        })
    }
}

impl Policy {
    fn costed(&self, operation: Operation) -> Result<&Costed, Refusal> {
        self.cost.as_deref().ok_or_else(|| self.cannot(operation))
    }
}

/// How something is booked that is not booked as most is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Charged {
    /// Of a lease that its caller may have named.
    Named,
    /// By what policies were before a reload, where they were something else.
    Before,
}

fn is_unknown(costs: &Costs) -> bool {
    costs.lines.iter().all(|line| line.answered.settlement == Settlement::Unknown)
}

/// Something that is asked for twice.
fn twice<'a, 'b>(asked: &'b [Asked<'a>]) -> Option<&'b Asked<'a>> {
    let is_same = |a: &Asked<'_>, b: &Asked<'_>| a.policy == b.policy && a.key == b.key;
    let mut each = asked.iter().enumerate();
    each.find(|(place, one)| asked[..*place].iter().any(|before| is_same(before, one)))
        .map(|(_, one)| one)
}

fn unbooked(policy: &str, error: StoreError) -> Refusal {
    match error {
        StoreError::TwoLimits => Refusal::TwiceCharged { policy: policy.to_owned() },
        StoreError::AcrossSlots => Refusal::AcrossNodes { policy: policy.to_owned() },
        error => Refusal::Store { policy: policy.to_owned(), error },
    }
}

impl fmt::Debug for Costed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Costed").field("name", &self.name).finish_non_exhaustive()
    }
}

/// How many settlements a learned size goes back on, about.
const REMEMBERED: NonZeroU32 = NonZeroU32::new(1_000).expect("not zero");
