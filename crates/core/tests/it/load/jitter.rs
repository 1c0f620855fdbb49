//! What must hold of the law of the standard deviation: the original's own sequence and rows.

use admittance_core::load::{JitterRules, Seen, Tasks};
use admittance_core::{Micros, Span};

use crate::load::Check;
use crate::load::laws::{Law, tenths};

/// ⌊n^1.5⌋ for n from 1 to 10.
const STEPS: [i64; 10] = [1, 2, 5, 8, 11, 14, 18, 22, 27, 31];

fn rules(upper: u64, lower: u64) -> JitterRules {
    JitterRules {
        probe_every: Span::from_ms(10),
        window: 10,
        interval: Span::from_ms(100),
        upper: Span::from_ms(upper),
        lower: Span::from_ms(lower),
        load_target: 800,
    }
}

/// One interval: ten probes, of which every second takes so many milliseconds more than a first.
fn interval(law: &mut impl Law, now_ms: u64, first: u64, more: u64, load: Tasks) -> (u32, i64) {
    for probe in 0..10 {
        law.probed(0, Span::from_ms(if probe % 2 == 0 { first } else { first + more }));
    }
    let seen = Seen { elapsed: Span::from_ms(100), load, offered: 1, ..Seen::default() };
    let found = law.adjust(Micros::from_epoch_ms(now_ms).unwrap(), &seen);
    (found.level.percent(), found.run)
}

/// 100 → 97 after two intervals, 59 after six, 41 after seven; then on to nothing, which is where
/// this law goes: it has no floor.
pub(crate) fn the_documented_sequence<L: Law>(new: impl Fn(JitterRules) -> L) -> Check {
    let mut law = new(rules(100, 80));
    // The probes of the documented test see 0 ms and 1,000 ms.
    let found: Vec<u32> =
        (1..=10).map(|count| interval(&mut law, 100 * count, 0, 1_000, tenths(9)).0).collect();
    if found != [99, 97, 92, 84, 73, 59, 41, 19, 0, 0] {
        return Err(format!("{found:?}"));
    }
    Ok(format!("{found:?}"))
}

/// The rows of the original's test of a regulator, with an exponent of 1.5: load in tenths, how
/// much more every second probe takes, and the runs after four intervals.
pub(crate) fn the_rows_of_the_original<L: Law>(new: impl Fn(JitterRules) -> L) -> Check {
    let rows: [(u64, u64, [i64; 4]); 12] = [
        (0, 0, [0; 4]),
        (0, 99, [0; 4]),
        (0, 150, [0; 4]),
        (0, 201, [0; 4]),
        (9, 0, [1, 2, 3, 4]),
        (9, 99, [1, 2, 3, 4]),
        (9, 200, [0; 4]),
        (9, 2_000, [-1, -2, -3, -4]),
        // Less is admitted whatever the load; more only from the target on.
        (0, 2_000, [-1, -2, -3, -4]),
        (7, 0, [0; 4]),
        (8, 0, [1, 2, 3, 4]),
        // A deviation of 195 of a sample and of 185 of all: between the two thresholds of 190.
        (9, 370, [0; 4]),
    ];
    for (load, more, runs) in rows {
        let mut law = new(rules(200, if more == 370 { 190 } else { 100 }));
        let step = |count: u64| interval(&mut law, 100 * count, 1, more, tenths(load)).1;
        let found: Vec<i64> = (1..=4).map(step).collect();
        if found != runs {
            return Err(format!("load 0.{load}, {more} ms more: {found:?} instead of {runs:?}"));
        }
    }
    Ok(format!("{} rows", rows.len()))
}

/// Ten down, ten up and ten down: the n-th step of a run is ⌊n^1.5⌋ hundredths, and a change of
/// direction, or an interval between the thresholds, begins anew.
pub(crate) fn steps_grow_and_begin_anew<L: Law>(new: impl Fn(JitterRules) -> L) -> Check {
    let mut law = new(rules(200, 100));
    let (mut now, mut percent) = (0, 100i64);
    for (more, sign) in [(2_000, -1), (0, 1), (2_000, -1), (300, 0), (2_000, -1), (0, 1)] {
        let length = if sign == 0 { 1 } else { STEPS.len() };
        for (index, step) in STEPS[..length].iter().enumerate() {
            now += 100;
            percent = (percent + sign * step).clamp(0, 100);
            let found = interval(&mut law, now, 1, more, tenths(9));
            let run = sign * i64::try_from(index + 1).unwrap();
            if found != (u32::try_from(percent).unwrap(), run) {
                return Err(format!("{found:?} instead of {percent} % in a run of {run}"));
            }
        }
    }
    Ok(String::from("down, up, down, a pause, down, up"))
}

/// A deviation that is just a threshold is neither above nor below it.
pub(crate) fn a_threshold_is_neither_above_nor_below<L: Law>(
    new: impl Fn(JitterRules) -> L,
) -> Check {
    for (upper, lower) in [(100, 80), (120, 100)] {
        let mut law = new(JitterRules { window: 3, ..rules(upper, lower) });
        [100, 200, 300].iter().for_each(|ms| law.probed(0, Span::from_ms(*ms)));
        let seen = Seen { load: tenths(9), ..Seen::default() };
        let found = law.adjust(Micros::ZERO, &seen);
        if found.run != 0 {
            return Err(format!("a deviation of 100 ms between {lower} and {upper}: {found:?}"));
        }
    }
    Ok(String::from("both thresholds hit exactly"))
}

/// Two million intervals of health at load leave it where it is, and so do two million of the
/// opposite; the first step after them is one hundredth.
pub(crate) fn a_long_run_does_not_overflow<L: Law>(new: impl Fn(JitterRules) -> L) -> Check {
    for (more, back, level, after) in [(0, 2_000, 100, 99), (2_000, 0, 0, 1)] {
        let mut law = new(JitterRules { window: 2, ..rules(200, 100) });
        let mut now = 0;
        let mut step = |law: &mut L, more: u64| {
            now += 100;
            law.probed(0, Span::ZERO);
            law.probed(0, Span::from_ms(more));
            let seen = Seen { load: tenths(9), ..Seen::default() };
            law.adjust(Micros::from_epoch_ms(now).unwrap(), &seen).level.percent()
        };
        for count in 0..2_000_000 {
            let found = step(&mut law, more);
            if count > 20 && found != level {
                return Err(format!("{found} % after {count} intervals at {level} %"));
            }
        }
        let found = step(&mut law, back);
        if found != after {
            return Err(format!("{found} % after the turn, {after} % expected"));
        }
    }
    Ok(String::from("two million intervals in each direction"))
}
