//! Streams that share one budget, whatever they reserve.

use std::collections::BTreeMap;

use admittance_core::budget::{Account, Budget, LeaseKey, Reserve};
use admittance_core::learn::reserve::{Learned, Predicted};
use admittance_core::{Cadence, Micros, Span};
use fastrand::Rng;

use crate::reserve::checks::rules;
use crate::reserve::samples::{BETRAYING, Foreseen, Foresight, NOISY, NONE, TRUE, normal, whole};
use crate::timeline::{generator, instant, long};

/// What is reserved.
pub(crate) enum Policy {
    /// Always so much.
    Fixed(u64),
    /// What will be needed.
    Knowing,
    Learned(Learned),
    Predicted(Predicted, &'static Foresight),
}

const NEEDS: (u64, u64) = (1, 1_000);
/// Of which four in five fit their reservation.
const WEIGHTS: (u64, u64) = (1, 4);

impl Policy {
    /// Each with its name.
    pub(crate) fn all() -> Vec<(&'static str, Self)> {
        let rules = rules(WEIGHTS, NEEDS);
        let predicted = |foresight| Self::Predicted(Predicted::new(rules), foresight);
        vec![
            ("nothing", Self::Fixed(0)),
            ("a mean", Self::Fixed(124)),
            ("the most", Self::Fixed(NEEDS.1)),
            ("more than there is", Self::Fixed(LIMIT + 1)),
            ("learned", Self::Learned(Learned::new(rules))),
            ("looking back", Self::Predicted(Predicted::new(rules.looking_back()), &NONE)),
            ("noisy predictions", predicted(&NOISY)),
            ("true predictions", predicted(&TRUE)),
            ("betraying predictions", predicted(&BETRAYING)),
            ("what is needed", Self::Knowing),
        ]
    }

    fn predict(&self, rng: &mut Rng, needed: u64) -> Option<u64> {
        let Self::Predicted(blend, foresight) = self else { return None };
        let (min, max) = NEEDS;
        foresight.predict(rng, needed, &Foreseen { min, max, at: 0, trust: blend.trust() })
    }

    fn estimate(&self, needed: u64, prediction: Option<u64>) -> u64 {
        match self {
            Self::Fixed(units) => *units,
            Self::Knowing => needed,
            Self::Learned(learned) => learned.estimate(),
            Self::Predicted(blend, _) => blend.estimate(prediction),
        }
    }

    fn learn(&mut self, stream: &Stream, is_stopped: bool) {
        match (self, is_stopped) {
            (Self::Fixed(_) | Self::Knowing, _) => {}
            (Self::Learned(learned), false) => learned.learn(stream.served),
            (Self::Learned(learned), true) => learned.learn_stopped(stream.served),
            (Self::Predicted(blend, _), false) => blend.learn(stream.prediction, stream.served),
            (Self::Predicted(blend, _), true) => {
                blend.learn_stopped(stream.prediction, stream.served);
            }
        }
    }
}

/// What streams ask. The shipped account, and broken ones.
pub(crate) trait Books: Default {
    fn reserve(&mut self, budget: &Budget, reserve: Reserve, now: Micros) -> bool;
    fn debit(&mut self, budget: &Budget, lease: LeaseKey, units: u64, now: Micros) -> bool;
    fn settle(&mut self, budget: &Budget, lease: LeaseKey, actual: u64, now: Micros);
    /// Spent and reserved, if they are to be compared.
    fn used(&mut self, budget: &Budget, now: Micros) -> Option<(u64, u64)>;
}

impl Books for Account {
    fn reserve(&mut self, budget: &Budget, reserve: Reserve, now: Micros) -> bool {
        self.reserve(budget, reserve, now).decision.is_admit()
    }

    fn debit(&mut self, budget: &Budget, lease: LeaseKey, units: u64, now: Micros) -> bool {
        self.debit(budget, Some(lease), units, now).decision.is_admit()
    }

    fn settle(&mut self, budget: &Budget, lease: LeaseKey, actual: u64, now: Micros) {
        let standing = self.settle(budget, lease, Some(actual), now).standing;
        assert_eq!(standing.debt, 0, "all that was served was debited before");
    }

    fn used(&mut self, budget: &Budget, now: Micros) -> Option<(u64, u64)> {
        let standing = self.look(budget, now).standing;
        Some((standing.spent, standing.reserved))
    }
}

/// Believes that work needs what was estimated, and counts the rest afterwards.
#[derive(Default)]
pub(crate) struct CountsAfterwards(Account);

impl Books for CountsAfterwards {
    fn reserve(&mut self, budget: &Budget, reserve: Reserve, now: Micros) -> bool {
        self.0.reserve(budget, reserve, now).decision.is_admit()
    }

    fn debit(&mut self, _: &Budget, _: LeaseKey, _: u64, _: Micros) -> bool {
        true
    }

    fn settle(&mut self, budget: &Budget, lease: LeaseKey, actual: u64, now: Micros) {
        let _ = self.0.settle(budget, lease, Some(actual), now);
    }

    fn used(&mut self, _: &Budget, _: Micros) -> Option<(u64, u64)> {
        None
    }
}

/// Grants what was estimated as long as anything is left.
#[derive(Default)]
pub(crate) struct GrantsAnyEstimate(Account);

impl Books for GrantsAnyEstimate {
    fn reserve(&mut self, budget: &Budget, reserve: Reserve, now: Micros) -> bool {
        let is_left = self.0.look(budget, now).decision.is_admit();
        let endless = budget.limited(Budget::UNITS_MAX).unwrap();
        is_left && self.0.reserve(&endless, reserve, now).decision.is_admit()
    }

    fn debit(&mut self, budget: &Budget, lease: LeaseKey, units: u64, now: Micros) -> bool {
        self.0.debit(budget, Some(lease), units, now).decision.is_admit()
    }

    fn settle(&mut self, budget: &Budget, lease: LeaseKey, actual: u64, now: Micros) {
        let _ = self.0.settle(budget, lease, Some(actual), now);
    }

    fn used(&mut self, _: &Budget, _: Micros) -> Option<(u64, u64)> {
        None
    }
}

/// One piece of work that is being served.
struct Stream {
    lease: LeaseKey,
    needed: u64,
    prediction: Option<u64>,
    served: u64,
    /// The window it reserved from, and what is left of that.
    window: u64,
    unspent: u64,
}

/// What a run came to.
#[derive(Default)]
pub(crate) struct Row {
    pub(crate) finished: u64,
    pub(crate) refused: u64,
    pub(crate) stopped: u64,
    /// Charged to windows over their limits, the last one not counted.
    pub(crate) used: f64,
    /// Reserved and not spent, over the limit, in the mean of all instants.
    pub(crate) idle: f64,
    /// Reserved, not needed, and its window over by then; over the limits.
    pub(crate) gone: f64,
    /// By how much a window was exceeded at most.
    pub(crate) overshoot: u64,
}

/// What was charged to each window, and is reserved of it: every unit, counted anew.
#[derive(Default)]
struct Ledger(BTreeMap<u64, (u64, u64)>);

impl Ledger {
    fn of(&mut self, window: u64) -> &mut (u64, u64) {
        self.0.entry(window).or_default()
    }

    fn draw(&mut self, stream: &mut Stream, units: u64, window: u64) {
        let own = units.min(stream.unspent);
        stream.unspent -= own;
        let reserved = self.of(stream.window);
        *reserved = (reserved.0 + own, reserved.1 - own);
        self.of(window).0 += units - own;
        stream.served += units;
    }

    fn end(&mut self, stream: &Stream) {
        self.of(stream.window).1 -= stream.unspent;
    }

    fn over(&self) -> u64 {
        let over = |(spent, reserved): &(u64, u64)| (spent + reserved).saturating_sub(LIMIT);
        self.0.values().map(over).max().unwrap_or(0)
    }
}

/// A stream of a length that nobody knows before, and what it reserves.
fn draw(rng: &mut Rng, seer: &mut Rng, policy: &Policy, lease: u128, window: u64) -> Stream {
    let needed = whole(80.0 * (0.9 * normal(rng)).exp()).clamp(NEEDS.0, NEEDS.1);
    let prediction = policy.predict(seer, needed);
    let unspent = policy.estimate(needed, prediction);
    Stream { lease: LeaseKey(lease), needed, prediction, served: 0, window, unspent }
}

/// Of one window.
const LIMIT: u64 = 10_000;
/// Instants of one window.
const TICKS: u64 = 300;

/// `places` streams at once, `chunk` units at a time, for some windows.
pub(crate) fn run<B: Books>(mut policy: Policy, places: usize, chunk: u64) -> Result<Row, String> {
    let (mut rng, mut seer) = (generator(90), generator(91));
    let windows = u64::try_from(long(8)).unwrap();
    let budget = Budget::new(LIMIT, Cadence::every(Span::from_secs(TICKS / 10))).unwrap();
    let (mut books, mut ledger, mut row) = (B::default(), Ledger::default(), Row::default());
    let mut streams: Vec<Option<Stream>> = (0..places).map(|_| None).collect();
    let mut leases = 0..;
    for tick in 0..windows * TICKS {
        // The same time for as many units, whatever a chunk is.
        if !tick.is_multiple_of(chunk) {
            continue;
        }
        let (now, window) = (instant(tick * 100_000), tick / TICKS);
        let mut order: Vec<usize> = (0..places).collect();
        rng.shuffle(&mut order);
        for place in order {
            match &mut streams[place] {
                None if rng.u64(..8) < chunk => {
                    let lease = leases.next().unwrap();
                    let stream = draw(&mut rng, &mut seer, &policy, lease, window);
                    let (lease, units) = (stream.lease, stream.unspent);
                    let reserve = Reserve { lease, units, ttl: Span::from_secs(3_600) };
                    if books.reserve(&budget, reserve, now) {
                        ledger.of(window).1 += units;
                        streams[place] = Some(stream);
                    } else {
                        row.refused += 1;
                    }
                }
                None => {}
                Some(stream) => {
                    let units = chunk.min(stream.needed - stream.served);
                    let is_served = books.debit(&budget, stream.lease, units, now);
                    if is_served {
                        ledger.draw(stream, units, window);
                    }
                    if !is_served || stream.served == stream.needed {
                        books.settle(&budget, stream.lease, stream.served, now);
                        ledger.end(stream);
                        if stream.window < window {
                            row.gone += stream.unspent as f64 / (LIMIT * windows) as f64;
                        }
                        policy.learn(stream, !is_served);
                        row.stopped += u64::from(!is_served);
                        row.finished += u64::from(is_served);
                        streams[place] = None;
                    }
                }
            }
            row.overshoot = row.overshoot.max(ledger.over());
            if row.overshoot >= chunk {
                return Err(format!("{} too many by chunks of {chunk}", row.overshoot));
            }
        }
        let here = *ledger.of(window);
        let used = books.used(&budget, now).unwrap_or(here);
        if used != here {
            return Err(format!("spent and reserved are {used:?}, not {here:?}"));
        }
        row.idle += here.1 as f64 * chunk as f64 / (LIMIT * windows * TICKS) as f64;
    }
    let charged = ledger.0.range(..windows - 1).map(|(_, (charged, _))| charged).sum::<u64>();
    row.used = charged as f64 / (LIMIT * (windows - 1)) as f64;
    Ok(row)
}
