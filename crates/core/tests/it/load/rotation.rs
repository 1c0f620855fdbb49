//! What must hold of rotation: a key stays where it is for a window, and then moves alone.

use std::cell::Cell;

use admittance_core::load::Moment;
use admittance_core::{EXACT_MAX, Micros, Span};
use num_bigint::BigUint;

use crate::load::Check;
use crate::load::chance::{deviation, deviation_bound};
use crate::load::hashes::{Keyed, Shipped};
use crate::load::places::{KINDS, SEEDS, hashes, moment};
use crate::timeline::{generator, instant, spread};

const HOUR: Span = Span::from_secs(3_600);
/// Some day in 2026, not at the top of an hour.
const START: u64 = 1_787_392_123_456_789;

/// A second after another over four windows: a key moves once in each window, always at the same
/// second of it, and that is the second its hash says.
pub(crate) fn moves_once_in_a_window(keyed: &impl Keyed) -> Check {
    for hash in hashes(keyed, SEEDS[0], 0, 50) {
        let at =
            |second: u64| keyed.place(hash, Moment::at(instant(START + second * 1_000_000), HOUR));
        let mut changes = Vec::new();
        let mut last = at(0);
        for second in 1..=4 * 3_600 {
            let place = at(second);
            if place != last {
                changes.push(second);
            }
            last = place;
        }
        // The window of a key begins when the part of the hour and its phase make a whole.
        let into = (START % HOUR.us()) as f64 / HOUR.us() as f64;
        let phase = (hash >> 32) as f64 / 4_294_967_296.0;
        let first = (2.0 - into - phase) % 1.0 * 3_600.0;
        let seconds: Vec<f64> = changes.iter().map(|&second| second as f64).collect();
        let as_said = (0..4).map(|window| first + 3_600.0 * f64::from(window));
        let fits = seconds.len() == 4
            && as_said.zip(&seconds).all(|(said, found)| (0.0..1.01).contains(&(found - said)));
        if !fits {
            return Err(format!("hash {hash:#x} moved at {changes:?}, not at {first:.1} and on"));
        }
    }
    Ok(String::from("50 keys moved once in each of four windows, at their own second"))
}

/// At one half, every one of 100,000 keys is admitted in some window of a day.
pub(crate) fn nobody_is_shut_out_for_a_day(keyed: &impl Keyed) -> Check {
    for (kind, name) in KINDS.iter().enumerate() {
        let hashes = hashes(keyed, SEEDS[0], kind, 100_000);
        let admitted = |hash: u64, window| keyed.place(hash, moment(window)) < 1 << 31;
        let shut = |hash: &&u64| (0..24).all(|window| !admitted(**hash, window));
        let shut = hashes.iter().filter(shut).count();
        if shut > 0 {
            return Err(format!("{name}: {shut} of 100,000 keys were refused for a day at 50 %"));
        }
    }
    Ok(format!("none of 100,000 keys of {} kinds was refused for a day at 50 %", KINDS.len()))
}

/// In each of `steps` steps, the part of 100,000 keys that moves is what the step is of an hour,
/// and no more than chance allows on top; `most` is what is promised.
pub(crate) fn few_move_at_once(keyed: &impl Keyed, step: Span, steps: u64, most: u64) -> Check {
    const KEYS: u64 = 100_000;
    let part = step.us() as f64 / HOUR.us() as f64;
    let bound = deviation_bound(usize::try_from(steps).unwrap());
    let mut largest = 0;
    // Numbers in a row, and texts.
    let mut hashes: Vec<u64> = hashes(keyed, SEEDS[0], 0, KEYS / 2)
        .into_iter()
        .chain(hashes(keyed, SEEDS[0], 7, KEYS / 2))
        .collect();
    hashes.sort_unstable();
    let at = |now: u64| Moment::at(instant(now), HOUR);
    let mut places: Vec<u32> = hashes.iter().map(|hash| keyed.place(*hash, at(START))).collect();
    let mut moved_in_all = 0;
    for count in 1..=steps {
        let now = at(START + count * step.us());
        let mut moved = 0;
        for (hash, place) in hashes.iter().zip(&mut places) {
            let new = keyed.place(*hash, now);
            moved += u64::from(new != *place);
            *place = new;
        }
        largest = largest.max(moved);
        moved_in_all += moved;
        let many = moved as f64 > KEYS as f64 * part && deviation(moved, KEYS, part) > bound;
        if many || moved > most {
            return Err(format!("{moved} of {KEYS} keys moved in step {count} of {step:?}"));
        }
    }
    let expected = KEYS as f64 * part * steps as f64;
    if (moved_in_all as f64 - expected).abs() > 6.0 * libm::sqrt(expected) {
        return Err(format!("{moved_in_all} moves in all, {expected:.0} expected"));
    }
    let percent = largest as f64 * 100.0 / KEYS as f64;
    Ok(format!("{steps} steps of {step:?}: at most {largest} of {KEYS} moved, {percent:.3} %"))
}

/// Whatever way the clock goes, a key stands where it stood at that instant.
pub(crate) fn an_earlier_instant_has_its_earlier_places<K: Keyed>(new: impl Fn() -> K) -> Check {
    let mut rng = generator(91);
    for kind in [0, 7] {
        let keyed = new();
        for hash in hashes(&keyed, SEEDS[0], kind, 20) {
            let at = |minute: u64| {
                let now = instant(START + minute * 60_000_000);
                keyed.place(hash, Moment::at(now, HOUR))
            };
            let forward: Vec<u32> = (0..600).map(at).collect();
            for _ in 0..600 {
                let minute = rng.u64(..600);
                let (found, before) = (at(minute), forward[usize::try_from(minute).unwrap()]);
                if found != before {
                    return Err(format!("at minute {minute} a key stood at {before}, now {found}"));
                }
            }
        }
    }
    Ok(String::from("40 keys stand where they stood, in any order of instants"))
}

/// A moment is ⌊now · 2^32 / window⌋ modulo 2^64, for every instant and every length of a window.
#[test]
fn a_moment_is_exact_for_tiny_and_for_huge_windows() {
    let mut rng = generator(92);
    let nows = [0, 1, START, Micros::HORIZON.epoch_us(), EXACT_MAX];
    let spans = [0, 1, 2, 3_600_000_000, u64::MAX >> 1, u64::MAX];
    let drawn = (0..10_000).map(|_| (spread(&mut rng, EXACT_MAX), spread(&mut rng, u64::MAX)));
    let edges = nows.iter().flat_map(|now| spans.map(|span| (*now, span)));
    for (now, span) in edges.chain(drawn.collect::<Vec<_>>()) {
        let moment = Moment::at(Micros::ZERO + Span::from_us(now), Span::from_us(span));
        let exact = (BigUint::from(now) << 32) / BigUint::from(span.max(1));
        let exact = exact % (BigUint::from(1u8) << 64);
        assert_eq!(BigUint::from(moment.to_bits()), exact, "{now} {span}");
        assert_eq!(Moment::from_bits(moment.to_bits()), moment);
        // Nor does a place panic, whatever the phase.
        for hash in [0, u64::MAX, rng.u64(..)] {
            Shipped.place(hash, moment);
        }
    }
}

/// A window that never goes back: after a step of the clock its places are nobody else's.
pub(crate) struct Latched(pub(crate) Cell<u64>);

impl Keyed for Latched {
    fn number(&self, seed: u64, key: u64) -> u64 {
        Shipped.number(seed, key)
    }

    fn bytes(&self, seed: u64, key: &[u8]) -> u64 {
        Shipped.bytes(seed, key)
    }

    fn place(&self, hash: u64, moment: Moment) -> u32 {
        self.0.set(self.0.get().max(moment.to_bits()));
        Shipped.place(hash, Moment::from_bits(self.0.get()))
    }
}
