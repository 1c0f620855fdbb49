//! Random clocks and random costs, drawn so that they land on the edges where limits go wrong.

use admittance_core::{Cost, Decision, Micros, Span};
use fastrand::Rng;

pub const HORIZON: u64 = Micros::HORIZON.epoch_us();
pub const DAY: u64 = 86_400_000_000;
pub const YEAR: u64 = 365 * DAY;

/// The generator of one test. The seed is printed, which a failing test shows.
pub fn generator(salt: u64) -> Rng {
    let seed = std::env::var("ADMITTANCE_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or(20_260_117);
    println!("replay with ADMITTANCE_SEED={seed}");
    Rng::with_seed(seed ^ salt.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// How often to try: ten times as often if somebody has the time.
pub fn long(count: usize) -> usize {
    if std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1") { count * 10 } else { count }
}

/// A number whose length in bits is uniform, between 1 and `max`: small and extreme ones alike.
pub fn spread(rng: &mut Rng, max: u64) -> u64 {
    let bits = rng.u32(0..=u64::BITS - max.leading_zeros());
    let number = if bits == 0 { 1 } else { rng.u64(..) >> (u64::BITS - bits) };
    number.clamp(1, max)
}

pub fn instant(us: u64) -> Micros {
    Micros::from_epoch_us(us).expect("timelines stay before the horizon")
}

/// An instant that results may name, which can lie past the horizon.
pub fn result(us: u64) -> Micros {
    assert!(us <= admittance_core::EXACT_MAX, "a result must stay exact: {us}");
    Micros::ZERO + Span::from_us(us)
}

/// Whether the clock may step back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    Forward,
    Jumping,
}

/// A clock that likes to stop, to crawl, to land exactly where something changes, and to jump.
pub struct Timeline {
    clock: Clock,
    base: u64,
    now: u64,
    /// The period or window of what is tested.
    scale: u64,
    /// The time between two units, or a bucket's width.
    unit: u64,
    /// Every instant is a multiple of this.
    grain: u64,
}

impl Timeline {
    pub fn new(rng: &mut Rng, clock: Clock, scale: u64, unit: u64) -> Self {
        let base = base(rng);
        Self { clock, base, now: base, scale, unit: unit.max(1), grain: 1 }
    }

    /// The same in whole multiples of `grain` ticks.
    pub fn grained(mut self, grain: u64) -> Self {
        self.grain = grain;
        self.now -= self.now % grain;
        self
    }

    /// The next instant, which depends on what was last answered.
    pub fn next(&mut self, rng: &mut Rng, last: Option<&Decision>) -> Micros {
        let retry = last.and_then(Decision::retry_after).map_or(self.unit, Span::us);
        let reset = last.map_or(self.now, |decision| decision.reset_at.epoch_us());
        let now = self.now;
        let to = match rng.u8(0..if self.clock == Clock::Forward { 25 } else { 32 }) {
            0..=5 => now,
            6..=8 => now + rng.u64(1..5),
            9..=12 => now.saturating_add(retry),
            13..=14 => now.saturating_add(retry).saturating_sub(1).max(now),
            15 => now + self.unit - 1 + rng.u64(0..3),
            16 => now + self.scale,
            17..=18 => now + rng.u64(0..=self.scale),
            19 => now + rng.u64(0..=self.unit * 3),
            20..=21 => reset.max(now),
            22 => reset.saturating_sub(1).max(now),
            23 => now + rng.u64(0..=2 * self.scale),
            24 if rng.u8(..8) == 0 => now + rng.u64(1..4) * YEAR,
            24 => now,
            25..=26 => now.saturating_sub(rng.u64(1..5)),
            27 => now.saturating_sub(self.unit),
            28 => now.saturating_sub(rng.u64(0..=self.scale)),
            29 => now.saturating_sub(rng.u64(0..=2 * self.scale)),
            30 => self.base,
            _ => match rng.u8(..16) {
                0 => 0,
                1 => HORIZON,
                2..=4 => now.saturating_sub(rng.u64(1..4) * YEAR),
                5..=6 => now + rng.u64(1..30) * YEAR,
                _ => now,
            },
        };
        let to = to.min(HORIZON);
        self.now =
            if self.grain == 1 { to } else { to.next_multiple_of(self.grain).min(self.end()) };
        instant(self.now)
    }

    fn end(&self) -> u64 {
        HORIZON - HORIZON % self.grain
    }
}

/// Where a timeline begins: a real epoch mostly, and the places calendars stumble over.
pub fn base(rng: &mut Rng) -> u64 {
    match rng.u8(..12) {
        0 => 0,
        1 => HORIZON - rng.u64(0..=10 * YEAR),
        2 => rng.u64(0..=HORIZON),
        // 28 February of 2024, a leap year, of 2000, one too, and of 2100, which is none.
        3 => 1_709_078_400_000_000 + rng.u64(0..3 * DAY),
        4 => 951_696_000_000_000 + rng.u64(0..3 * DAY),
        5..=6 => 4_107_456_000_000_000 + rng.u64(0..3 * DAY),
        _ => 1_700_000_000_123_456 + rng.u64(0..=YEAR),
    }
}

/// What the next request costs: mostly little, sometimes just what fits, sometimes what never can.
pub fn cost(rng: &mut Rng, limit: u64, remaining: u64) -> Cost {
    let units = match rng.u8(..16) {
        0..=5 => 1,
        6..=8 => rng.u64(1..=limit.min(8)),
        9..=10 => rng.u64(1..=limit),
        11..=12 => remaining.max(1),
        13 => remaining + 1,
        14 => limit,
        _ if rng.bool() => limit + 1,
        _ => rng.u64(limit..=Cost::MAX.units()),
    };
    Cost::new(units).unwrap_or(Cost::MAX)
}
