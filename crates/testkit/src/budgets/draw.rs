//! Random timelines of entries, and what core answers to each.

use admittance::budget::{Act, Booked, Budget, Charge, Debt, Entry, LeaseKey, Phase};
use admittance::{Cadence, Micros, Span, Weekday};
use fastrand::Rng;

use super::pure::{Name, Pure};
use crate::timeline::{DAY, HORIZON, base, spread};

/// One entry, and what must be answered.
pub(super) struct Step {
    pub(super) act: Act,
    charges: Vec<(Name, Budget, u64)>,
    pub(super) expected: Booked,
}

impl Step {
    pub(super) fn charges(&self) -> Vec<Charge<'_>> {
        charges(&self.charges)
    }
}

fn charges<'a>(drawn: &'a [(Name, Budget, u64)]) -> Vec<Charge<'a>> {
    let charge = |((policy, key, _), budget, units): &'a (Name, Budget, u64)| Charge {
        policy,
        budget,
        key,
        units: *units,
    };
    drawn.iter().map(charge).collect()
}

/// All that happens in one timeline.
pub(super) fn timeline(rng: &mut Rng, number: usize) -> Vec<Step> {
    let mut drawn = Drawn::new(rng, number);
    let steps = if drawn.crowd.is_some() { CROWDED_STEPS } else { STEPS };
    (0..steps).map(|_| drawn.next(rng)).collect()
}

/// Leases that end one after the other while nobody settles them, and bounds that are lowered then:
/// several of them are too many.
pub(super) fn lowered_bounds() -> Vec<Step> {
    let cadence = Cadence::every(Span::from_us(DAY));
    let roomy = Budget::new(100, cadence).expect("in range").remembering(12, 4);
    let tight = roomy.remembering(3, 2);
    let name = ("lowered".to_owned(), b"a".to_vec(), cadence);
    let mut pure = Pure::default();
    let mut steps = Vec::new();
    let mut ask = |seconds: u64, budget: Budget, act: Act| {
        let charges_one = vec![(name.clone(), budget, 1)];
        let now = Micros::saturating_from_epoch_us(1_700_000_000_000_000);
        let entry = Entry { charges: &charges(&charges_one), act };
        let expected = pure.book(entry, now + Span::from_secs(seconds));
        steps.push(Step { act, charges: charges_one, expected });
    };
    let reserve = |number: u64| {
        let ttl = Span::from_secs(number + 1);
        Act::Reserve { lease: LeaseKey(number.into()), ttl }
    };
    (0..12).for_each(|number| ask(0, roomy, reserve(number)));
    // All are open, then half of them, then none, and then some are forgotten.
    for seconds in [0, 6, 20, 603, 607] {
        ask(seconds, tight, reserve(100));
        ask(seconds, roomy, reserve(101));
        ask(seconds, tight, Act::Settle(LeaseKey(u128::from(seconds % 7))));
        ask(seconds, tight, reserve(102));
    }
    // Three that are settled at one instant, of which two are remembered: in the order of their
    // names, and not of the lower halves.
    let few = roomy.remembering(12, 2);
    let names = [1, 2, 3].map(|place| LeaseKey(place << 64 | (10 - place)));
    for lease in names {
        ask(2_000, few, Act::Reserve { lease, ttl: Span::from_secs(60) });
    }
    for lease in names.into_iter().chain(names) {
        ask(2_000, few, Act::Settle(lease));
    }
    steps
}

struct Drawn {
    accounts: Vec<Known>,
    pure: Pure,
    leases: Vec<LeaseKey>,
    /// Many leases, most of them open, and how many may be: about as many as a denial looks at, or
    /// more.
    crowd: Option<u32>,
    /// Little is reserved, and very much is produced: debt up to the most that is remembered.
    is_owing: bool,
    /// How many ended leases are remembered, if that is to be few.
    remembered: Option<u32>,
    /// How long leases live, about.
    ttl: u64,
    now: u64,
    last: Option<Booked>,
}

/// One account of a timeline.
struct Known {
    name: Name,
    budget: Budget,
    /// Budgets up to this.
    limit_max: u64,
    /// The end of the window that it is in, and when it was first seen in it.
    window: (Micros, u64),
    /// It may have been forgotten: before this it would then be another.
    floor: u64,
}

impl Drawn {
    fn new(rng: &mut Rng, number: usize) -> Self {
        let (is_crowded, is_owing) = (number % 8 == 3, number % 16 == 7);
        let crowd = is_crowded.then(|| [u32::MAX, 64, 65][number / 8 % 3]);
        let remembered = is_owing.then(|| [1, 2, 3][number / 16 % 3]);
        let count = if is_crowded { 1 } else { rng.usize(1..=4) };
        let (mut scale, mut limit_max) = (scale(rng), limit_max(rng));
        if is_crowded {
            limit_max = rng.u64(100..3_000);
        }
        if is_crowded || is_owing {
            // Windows that last longer than the leases.
            scale = DAY;
        }
        let mut accounts: Vec<Known> = Vec::new();
        while accounts.len() < count {
            let policy = POLICIES[rng.usize(..POLICIES.len())].replace('#', &number.to_string());
            let key = KEYS[rng.usize(..KEYS.len())].to_vec();
            let cadence = cadence(rng, scale);
            let budget = budget(rng, cadence, limit_max, crowd);
            // Many are settled at one instant, and few of them are remembered.
            let budget = remembering(budget, remembered);
            let name = (policy, key, budget.cadence());
            if accounts.iter().all(|known| known.name != name) {
                let window = (Micros::ZERO, 0);
                accounts.push(Known { name, budget, limit_max, window, floor: 0 });
            }
        }
        let ttl = match rng.u8(..8) {
            // So that most are open at once.
            _ if is_crowded => rng.u64(1_000_000..Budget::TTL_MAX.us()),
            0 => rng.u64(1..5),
            1 => spread(rng, 2 * Budget::TTL_MAX.us()),
            2 => Budget::TTL_MAX.us(),
            _ if is_owing => spread(rng, 1_000_000_000),
            _ => spread(rng, 3 * scale.min(Budget::TTL_MAX.us())),
        };
        let few = rng.usize(if is_owing { 6..12 } else { 1..12 });
        let leases = leases(rng, if is_crowded { CROWD } else { few });
        let now = base(rng);
        let (pure, last) = (Pure::default(), None);
        Self { accounts, pure, leases, crowd, is_owing, remembered, ttl, now, last }
    }

    fn next(&mut self, rng: &mut Rng) -> Step {
        self.now = self.moved(rng);
        let now = Micros::saturating_from_epoch_us(self.now);
        let act = self.act(rng);
        let mut places: Vec<usize> = (0..self.accounts.len()).collect();
        rng.shuffle(&mut places);
        // Mostly all of them, so that a lease is known to several.
        let count = if rng.bool() { places.len() } else { rng.usize(1..=places.len()) };
        places.truncate(count);
        let same = rng.bool().then(|| self.units(rng, places[0], act));
        let mut drawn = Vec::with_capacity(count);
        for &place in &places {
            let known = &mut self.accounts[place];
            let is_changed = rng.u8(..if self.crowd.is_some() { 100 } else { 24 }) == 0;
            if is_changed && known.may_change(&self.pure, now) {
                let cadence = known.budget.cadence();
                let budget = budget(rng, cadence, known.limit_max, self.crowd);
                known.budget = remembering(budget, self.remembered);
            }
            let units = same.unwrap_or_else(|| self.units(rng, place, act));
            let known = &self.accounts[place];
            drawn.push((known.name.clone(), known.budget, units));
        }
        let entry = Entry { charges: &charges(&drawn), act };
        let expected = self.pure.book(entry, now);
        self.note(&places, &expected);
        self.last = Some(expected.clone());
        Step { act, charges: drawn, expected }
    }

    /// Which accounts may now be forgotten, and which are surely known again.
    fn note(&mut self, places: &[usize], booked: &Booked) {
        for (&place, answered) in places.iter().zip(&booked.together.each) {
            let known = &mut self.accounts[place];
            if known.window.0 != answered.standing.window_end {
                known.window = (answered.standing.window_end, self.now);
            }
        }
        for (place, known) in self.accounts.iter_mut().enumerate() {
            let Some(account) = self.pure.account(&known.name) else { continue };
            let is_idle = account.idle_at(&known.budget).epoch_us() <= self.now;
            if is_idle || !places.contains(&place) {
                known.floor = known.floor_at(&self.pure, self.now);
            } else {
                known.floor = 0;
            }
        }
    }

    fn act(&self, rng: &mut Rng) -> Act {
        let lease = self.leases[rng.usize(..self.leases.len())];
        let ttl = match rng.u8(..24) {
            0 => 0,
            1 => 1,
            2 => spread(rng, 2 * Budget::TTL_MAX.us()),
            3..=9 => rng.u64(0..=self.ttl),
            _ => self.ttl,
        };
        let reserve = Act::Reserve { lease, ttl: Span::from_us(ttl) };
        let drawn = rng.u8(..32);
        match drawn {
            0..=1 => Act::Look,
            2..=24 if self.crowd.is_some() => reserve,
            2..=14 if self.is_owing => reserve,
            15..=27 if self.is_owing => Act::Settle(lease),
            2..=8 => Act::Debit(None),
            9..=16 => Act::Debit(Some(lease)),
            17..=25 => reserve,
            26..=29 => Act::Settle(lease),
            _ => Act::Abandon(lease),
        }
    }

    /// Mostly little, often just what fits or one more.
    fn units(&self, rng: &mut Rng, place: usize, act: Act) -> u64 {
        let known = &self.accounts[place];
        let limit = known.budget.limit();
        let account = self.pure.account(&known.name);
        let left = account.map_or(limit.cast_signed(), |account| {
            account.standing(&known.budget).left(&known.budget)
        });
        let left = left.max(0).unsigned_abs();
        let lease = act.lease().and_then(|lease| account?.lease(lease));
        let (unspent, debited) = lease.map_or((0, 0), |lease| (lease.unspent, lease.debited));
        let is_settled = matches!(act, Act::Settle(_));
        let units = match rng.u8(..32) {
            10..=31 if self.is_owing => {
                if is_settled {
                    Budget::UNITS_MAX
                } else {
                    rng.u64(0..2)
                }
            }
            0..=1 => 0,
            2..=8 => 1,
            // More than 64 of them fit, and what 64 give back is not enough.
            9..=28 if self.crowd.is_some() && !is_settled => limit / 90,
            29 if self.crowd.is_some() => limit,
            9..=12 => rng.u64(0..=limit.min(8)),
            13..=14 => rng.u64(0..=limit),
            15..=16 => left,
            17 => left + 1,
            18 => limit,
            19 => limit + 1,
            20..=21 => unspent,
            22 => unspent + 1,
            23 => unspent.saturating_sub(1),
            24..=25 => debited,
            26 => debited + unspent,
            27 => debited + unspent + rng.u64(1..4),
            28 => rng.u64(0..=debited),
            29 => spread(rng, Budget::UNITS_MAX),
            30 if known.limit_max == Budget::UNITS_MAX => Budget::UNITS_MAX,
            _ => rng.u64(0..=limit / 4 + 1),
        };
        units.min(Budget::UNITS_MAX)
    }

    /// The next instant: often the same, often where something ends.
    fn moved(&self, rng: &mut Rng) -> u64 {
        let (now, end) = (self.now, self.end(rng));
        let place = rng.usize(..self.accounts.len());
        let window = self.accounts[place].budget.cadence().shortest().us();
        // Mostly together.
        let stays = (self.crowd.is_some() || self.is_owing) && rng.u8(..32) > 0;
        let to = match rng.u8(if stays { 0..16 } else { 0..40 }) {
            0..=9 => now,
            10..=16 => now + rng.u64(1..5),
            17..=20 => end.max(now),
            21..=22 => end.saturating_sub(1).max(now),
            23 => end.max(now) + 1,
            24..=26 => now + rng.u64(0..=self.ttl),
            27 => now + window,
            28 => now + rng.u64(0..=3 * window),
            29 => now + rng.u64(0..200) * window,
            30 => now + rng.u64(0..=2 * Budget::ENDED_KEPT.us()),
            31 if rng.u8(..8) == 0 => now + rng.u64(0..1_000) * DAY,
            32..=33 => now.saturating_sub(rng.u64(1..5)),
            34 => now.saturating_sub(rng.u64(0..=window)),
            35 => now.saturating_sub(rng.u64(0..=self.ttl)),
            36 => now.saturating_sub(rng.u64(0..=3 * window)),
            37 => end,
            38 if rng.u8(..8) == 0 => rng.u64(0..=HORIZON),
            _ => now,
        };
        let mut to = to.min(HORIZON);
        // One may be idle only from then on: so often at most is there another.
        for _ in 0..self.accounts.len() {
            let floors = self.accounts.iter().map(|known| known.floor_at(&self.pure, to));
            to = to.max(floors.max().unwrap_or(0));
        }
        to
    }

    /// The end of something.
    fn end(&self, rng: &mut Rng) -> u64 {
        let known = &self.accounts[rng.usize(..self.accounts.len())];
        let lease = self.leases[rng.usize(..self.leases.len())];
        let account = self.pure.account(&known.name);
        let answered = self.last.as_ref().map(|last| &last.together);
        let decision = answered.map(|together| together.decision);
        let end = match rng.u8(..8) {
            0..=2 => account.and_then(|account| account.lease(lease)).map(|lease| {
                let (Phase::Open(end) | Phase::Expired(end) | Phase::Settled(end, _)) = lease.phase;
                end.epoch_us()
            }),
            3 => account.map(|account| account.idle_at(&known.budget).epoch_us()),
            4 => Some(known.window.0.epoch_us()),
            5 => decision.map(|decision| decision.reset_at.epoch_us()),
            _ => decision.and_then(|d| d.retry_after()).map(|retry| self.now + retry.us()),
        };
        end.unwrap_or(self.now)
    }
}

impl Known {
    /// The earliest instant at which it makes no difference whether it was forgotten, if it may be
    /// at `to`.
    fn floor_at(&self, pure: &Pure, to: u64) -> u64 {
        match pure.account(&self.name).map(|account| account.idle_at(&self.budget).epoch_us()) {
            Some(idle_at) if idle_at <= to => self.floor.max(idle_at).max(self.window.1),
            _ => self.floor,
        }
    }

    /// Debt that is paid by now is so by the rules that it was last asked with: with others there
    /// may be a difference between an account that was kept and one that was forgotten.
    fn may_change(&self, pure: &Pure, now: Micros) -> bool {
        let Some(account) = pure.account(&self.name) else { return true };
        let is_kept = self.floor == 0 && now < account.idle_at(&self.budget);
        is_kept || account.standing(&self.budget).debt == 0
    }
}

/// Any budget at all.
pub(crate) fn any_budget(rng: &mut Rng) -> Budget {
    let (scale, limit_max) = (scale(rng), limit_max(rng));
    let cadence = cadence(rng, scale);
    budget(rng, cadence, limit_max, None)
}

/// How long windows are, about.
fn scale(rng: &mut Rng) -> u64 {
    match rng.u8(..4) {
        0 => rng.u64(1..20),
        1 => DAY,
        _ => spread(rng, 10_000_000_000),
    }
}

fn cadence(rng: &mut Rng, scale: u64) -> Cadence {
    let offset_minutes = match rng.u8(..4) {
        0 => 0,
        1 => [-840, 840, -1, 1, 330][rng.usize(..5)],
        _ => rng.i16(-840..=840),
    };
    let period = if rng.bool() { scale } else { spread(rng, 2 * scale) };
    if scale == DAY && rng.u8(..8) > 0 {
        let starts_on = Weekday::from_number(rng.u64(..7)).unwrap_or(Weekday::Sunday);
        return match rng.u8(..4) {
            0..=1 => Cadence::Day { offset_minutes },
            2 => Cadence::Week { offset_minutes, starts_on },
            _ => Cadence::Month { offset_minutes },
        };
    }
    let period = Span::from_us(period);
    match rng.u8(..4) {
        0 => Cadence::Fixed { period, anchor_us: rng.i64(-3..3) },
        1 => Cadence::Fixed { period, anchor_us: rng.i64(-(1 << 51)..1 << 51) },
        _ => Cadence::every(period),
    }
}

fn limit_max(rng: &mut Rng) -> u64 {
    match rng.u8(..8) {
        0 => Budget::UNITS_MAX,
        1 => spread(rng, Budget::UNITS_MAX),
        2 => 1_000,
        _ => rng.u64(1..=30),
    }
}

fn budget(rng: &mut Rng, cadence: Cadence, limit_max: u64, crowd: Option<u32>) -> Budget {
    let limit = match rng.u8(..4) {
        0 => limit_max,
        1 => limit_max - rng.u64(0..limit_max.min(3)),
        _ => rng.u64(1..=limit_max),
    };
    let budget = Budget::new(limit, cadence).expect("within every range");
    let budget = match rng.u8(..3) {
        0 => budget.debt(Debt::Forgive),
        _ => budget.debt(Debt::Carry),
    };
    let budget = match rng.u8(..4) {
        0 => budget.soft(0),
        1 => budget.soft(rng.u64(0..=limit + 1)),
        _ => budget,
    };
    let few = |rng: &mut Rng| rng.u32(1..7);
    if let Some(open_max) = crowd {
        return budget.remembering(open_max, if rng.bool() { u32::MAX } else { few(rng) });
    }
    match rng.u8(..8) {
        0..=3 => budget,
        4 => budget.remembering(few(rng), few(rng)),
        5 => budget.remembering(few(rng), u32::MAX),
        _ => budget.remembering(u32::MAX, few(rng)),
    }
}

fn remembering(budget: Budget, ended_max: Option<u32>) -> Budget {
    ended_max.map_or(budget, |ended_max| budget.remembering(u32::MAX, ended_max))
}

/// Names whose order is that of the numbers and of nothing else: not of their digits, nor of the
/// lower or the signed half.
fn leases(rng: &mut Rng, count: usize) -> Vec<LeaseKey> {
    let lease = |place: usize| {
        let low = u128::from(rng.u64(..));
        LeaseKey(match rng.u8(..8) {
            0 => place as u128,
            1 => u128::MAX - place as u128,
            2 => (place as u128) << 64 | 7,
            3 => 7 << 64 | place as u128,
            4 => 1 << 127 | place as u128,
            _ => u128::from(rng.u64(..)) << 64 | low,
        })
    };
    (0..count).map(lease).collect()
}

/// Names of policies that are not the same, whatever is left out, cut off or put in braces.
const POLICIES: [&str; 6] = ["tokens#", "Tokens#", "tokens#:", "{tokens#}", "tokens# ", "%7B#"];
const KEYS: [&[u8]; 8] = [b"", b"a", b"A", b"a:", b"a\0", b"\xff{a}", b"{a}", "\u{e9}".as_bytes()];

const STEPS: usize = 60;
const CROWDED_STEPS: usize = 200;
const CROWD: usize = 300;
