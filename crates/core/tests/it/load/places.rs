//! What must hold of places: fair in every window, and each window drawn anew.

use std::collections::BTreeSet;

use admittance_core::load::Moment;
use fastrand::Rng;

use crate::load::Check;
use crate::load::chance::{bound, chi_square, chi_square_bounds, deviation, deviation_bound};
use crate::load::hashes::{Keyed, WORDS};
use crate::timeline::generator;

/// How many keys of each kind.
const KEYS: u64 = 20_000;
/// Every tenth of a percent.
const LEVELS: usize = 1_000;
/// A window of an hour in 2026.
const FIRST: u64 = 496_500;

/// Seeds that somebody could choose, and those that meet the hash's own constants.
pub(crate) const SEEDS: [u64; 8] =
    [20_260_117, 0, 1, u64::MAX, WORDS[0], WORDS[1], WORDS[2], WORDS[3]];

pub(crate) const KINDS: [&str; 12] = [
    "from 0",
    "from 1,000,000",
    "across 2^32",
    "by 100",
    "by 1,000",
    "by 2^32",
    "random",
    "user-n",
    "nine digits",
    "uuid",
    "mail",
    "random bytes",
];

/// The hashes of so many keys of a kind.
pub(crate) fn hashes(keyed: &impl Keyed, seed: u64, kind: usize, keys: u64) -> Vec<u64> {
    let mut rng = Rng::with_seed(7);
    let hash = |n: u64| {
        let text = match kind {
            0 => return keyed.number(seed, n),
            1 => return keyed.number(seed, 1_000_000 + n),
            2 => return keyed.number(seed, (1 << 32) - keys / 2 + n),
            3 => return keyed.number(seed, 100 * n),
            4 => return keyed.number(seed, 1_000 * n),
            5 => return keyed.number(seed, n << 32),
            6 => return keyed.number(seed, rng.u64(..)),
            7 => format!("user-{n}"),
            8 => format!("{n:09}"),
            9 => {
                let (high, low) = (rng.u64(..), rng.u64(..) >> 16);
                let (a, b, c) = (high >> 32, high >> 16 & 0xffff, high & 0xfff);
                format!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{low:012x}", 0x8000 | n & 0x3fff)
            }
            10 => format!("somebody.{n}@mail.example.com"),
            _ => {
                let length = rng.usize(8..=48);
                let bytes: Vec<u8> = (0..length).map(|_| rng.u8(..)).collect();
                return keyed.bytes(seed, &bytes);
            }
        };
        keyed.bytes(seed, text.as_bytes())
    };
    (0..keys).map(hash).collect()
}

pub(crate) fn moment(window: u64) -> Moment {
    // Somewhere inside, so that one part of the keys is a window ahead of the other.
    Moment::from_bits((FIRST + window) << 32 | 0x9e37_79b9)
}

/// In each window: chi-square over a thousand equal bins, and at every tenth of a percent the
/// number that a level there admits; over all windows, the sum of the chi-squares.
pub(crate) fn are_uniform(keyed: &impl Keyed, seed: u64, windows: u64) -> Check {
    let tests = KINDS.len() * usize::try_from(windows).unwrap();
    let (low, high) = chi_square_bounds((LEVELS - 1) as f64, tests);
    let most = deviation_bound(tests * (LEVELS - 1));
    let (mut worst, mut widest) = (0.0f64, 0.0f64);
    for (kind, name) in KINDS.iter().enumerate() {
        let hashes = hashes(keyed, seed, kind, KEYS);
        let mut sum = 0.0;
        for window in 0..windows {
            let mut bins = [0u32; LEVELS];
            for &hash in &hashes {
                let place = u64::from(keyed.place(hash, moment(window)));
                bins[usize::try_from((place * LEVELS as u64) >> 32).unwrap()] += 1;
            }
            let found = chi_square(&bins);
            if !(low..=high).contains(&found) {
                return Err(format!(
                    "{name}, seed {seed:#x}, window {window}: chi-square {found:.0}, not between \
                     {low:.0} and {high:.0}"
                ));
            }
            sum += found;
            worst = worst.max(found);
            let mut admitted = 0;
            for (bin, count) in bins[..LEVELS - 1].iter().enumerate() {
                admitted += u64::from(*count);
                let level = (bin + 1) as f64 / LEVELS as f64;
                let off = deviation(admitted, KEYS, level);
                widest = widest.max(off);
                if off > most {
                    return Err(format!(
                        "{name}, seed {seed:#x}, window {window}: a level of {level:.3} admits \
                         {admitted} of {KEYS}, {off:.1} sigmas off"
                    ));
                }
            }
        }
        let (low, high) = chi_square_bounds((LEVELS - 1) as f64 * windows as f64, KINDS.len());
        if !(low..=high).contains(&sum) {
            return Err(format!("{name}, seed {seed:#x}: over all windows chi-square {sum:.0}"));
        }
    }
    Ok(format!(
        "seed {seed:#x}: {} kinds of {KEYS} keys in {windows} windows, chi-square at most \
         {worst:.0} of {high:.0}, levels off by at most {widest:.2} of {most:.2} sigmas",
        KINDS.len()
    ))
}

/// The chi-square of a table of sixteen by sixteen, in which both axes are uniform.
fn table(pairs: impl Iterator<Item = (u32, u32)>) -> f64 {
    let mut cells = [0u32; 256];
    for (row, column) in pairs {
        cells[usize::try_from(row >> 28 << 4 | column >> 28).unwrap()] += 1;
    }
    chi_square(&cells)
}

/// Where a key stands says nothing about where it stands in the next window, or in the one after,
/// and its phase says nothing about either.
pub(crate) fn are_drawn_anew(keyed: &impl Keyed, windows: u64) -> Check {
    let tests = 3 * KINDS.len() * usize::try_from(windows).unwrap();
    let (low, high) = chi_square_bounds(255.0, tests);
    let most = bound(tests);
    let (mut worst, mut widest) = (0.0f64, 0.0f64);
    for (kind, name) in KINDS.iter().enumerate() {
        let hashes = hashes(keyed, SEEDS[0], kind, KEYS);
        let places = |window: u64| {
            let place = |&hash: &u64| keyed.place(hash, moment(window));
            hashes.iter().map(place).collect::<Vec<_>>()
        };
        let phases: Vec<u32> = hashes.iter().map(|hash| high_half(*hash)).collect();
        let mut rows = [places(0), places(1), places(2)];
        for window in 0..windows {
            let with = |others: &[u32]| table(rows[0].iter().copied().zip(others.iter().copied()));
            let [next, after, phase] = [with(&rows[1]), with(&rows[2]), with(&phases)];
            for (found, what) in [(next, "next"), (after, "one after"), (phase, "phase")] {
                worst = worst.max(found);
                if !(low..=high).contains(&found) {
                    return Err(format!(
                        "{name}, window {window} against the {what}: chi-square {found:.0}, not \
                         between {low:.0} and {high:.0}"
                    ));
                }
            }
            for level in [0.1, 0.5, 0.9] {
                let z = together(&rows[0], &rows[1], level);
                widest = widest.max(z.abs());
                if z.abs() > most {
                    return Err(format!("{name}, window {window}: {z:.1} sigmas of correlation"));
                }
            }
            rows = [std::mem::take(&mut rows[1]), std::mem::take(&mut rows[2]), places(window + 3)];
        }
    }
    Ok(format!("{tests} tables, chi-square at most {worst:.0} of {high:.0}, z {widest:.2}"))
}

/// The z of how many are admitted in both of two windows.
fn together(one: &[u32], other: &[u32], level: f64) -> f64 {
    let admitted = |place: u32| f64::from(place) < level * 4_294_967_296.0;
    let centred = |place: u32| f64::from(u8::from(admitted(place))) - level;
    let sum: f64 = one.iter().zip(other).map(|(a, b)| centred(*a) * centred(*b)).sum();
    sum / (level * (1.0 - level) * libm::sqrt(one.len() as f64))
}

/// In how many of a day's windows a key is admitted at one half is what 24 coins show: places of
/// one key must not hang together over many windows either.
pub(crate) fn are_coins_over_a_day(keyed: &impl Keyed) -> Check {
    const KEYS: u64 = 100_000;
    let (low, high) = chi_square_bounds(16.0, KINDS.len());
    let mut worst = 0.0f64;
    for (kind, name) in KINDS.iter().enumerate() {
        let mut counts = [0u64; 25];
        for hash in hashes(keyed, SEEDS[0], kind, KEYS) {
            let admitted = |window: &u64| keyed.place(hash, moment(*window)) < 1 << 31;
            counts[(0..24).filter(admitted).count()] += 1;
        }
        // Four and fewer, and twenty and more, are pooled: 17 cells with 78 or more each.
        let mut ways = 1.0;
        let mut expected = [0.0; 17];
        let mut found = [0u64; 17];
        for (heads, count) in counts.iter().enumerate() {
            let cell = heads.clamp(4, 20) - 4;
            expected[cell] += KEYS as f64 * ways / f64::from(1 << 24);
            found[cell] += count;
            ways *= (24 - heads) as f64 / (heads + 1) as f64;
        }
        let parts = found.iter().zip(&expected).map(|(f, e)| (*f as f64 - e).powi(2) / e);
        let chi: f64 = parts.sum();
        worst = worst.max(chi);
        if !(low..=high).contains(&chi) {
            let (never, always) = (counts[0], counts[24]);
            return Err(format!(
                "{name}: chi-square {chi:.0} of {high:.0}; {never} of {KEYS} keys were refused in \
                 all 24 windows, {always} in none"
            ));
        }
    }
    Ok(format!("24 windows of {KEYS} keys are coins: chi-square at most {worst:.1} of {high:.1}"))
}

/// Counts which bits of an output change.
struct Flips {
    counts: Vec<[u32; 64]>,
    tries: u32,
}

impl Flips {
    fn of(bits: usize, tries: u32, mut sample: impl FnMut(usize) -> u64) -> Self {
        let mut counts = vec![[0; 64]; bits];
        for (bit, row) in counts.iter_mut().enumerate() {
            for _ in 0..tries {
                let changed = sample(bit);
                for (at, count) in row.iter_mut().enumerate() {
                    *count += u32::from(changed >> at & 1 == 1);
                }
            }
        }
        Self { counts, tries }
    }

    /// The largest deviation from one half.
    fn worst(&self) -> (f64, usize, usize) {
        let mut worst = (0.0, 0, 0);
        for (bit, row) in self.counts.iter().enumerate() {
            for (at, count) in row.iter().enumerate() {
                let off = deviation(u64::from(*count), u64::from(self.tries), 0.5);
                if off > worst.0 {
                    worst = (off, bit, at);
                }
            }
        }
        worst
    }
}

/// Any one bit of a number, of a text of 1 to 40 bytes, of the seed or of the window changes every
/// bit of what comes out with a probability of one half.
pub(crate) fn avalanche(keyed: &impl Keyed) -> Check {
    const TRIES: u32 = 1_000;
    let mut rng = generator(81);
    let mut all: Vec<(String, Flips)> = Vec::new();
    for seed in SEEDS {
        let numbers = Flips::of(64, TRIES, |bit| {
            let key = rng.u64(..);
            keyed.number(seed, key) ^ keyed.number(seed, key ^ 1 << bit)
        });
        all.push((format!("a number under seed {seed:#x}"), numbers));
        let small = Flips::of(20, TRIES, |bit| {
            let key = rng.u64(..1 << 20);
            keyed.number(seed, key) ^ keyed.number(seed, key ^ 1 << bit)
        });
        all.push((format!("a small number under seed {seed:#x}"), small));
    }
    let seeds = Flips::of(64, TRIES, |bit| {
        let (seed, key) = (rng.u64(..), rng.u64(..1 << 20));
        keyed.number(seed, key) ^ keyed.number(seed ^ 1 << bit, key)
    });
    all.push((String::from("the seed of a number"), seeds));
    for length in 1..=40usize {
        let mut key = vec![0; length];
        let flips = Flips::of(8 * length, TRIES / 2, |bit| {
            let seed = rng.u64(..);
            key.fill_with(|| rng.u8(..));
            let before = keyed.bytes(seed, &key);
            key[bit / 8] ^= 1 << (bit % 8);
            before ^ keyed.bytes(seed, &key)
        });
        all.push((format!("a text of {length}"), flips));
        let flips = Flips::of(64, TRIES / 2, |bit| {
            let seed = rng.u64(..);
            key.fill_with(|| rng.u8(b'a'..=b'z'));
            keyed.bytes(seed, &key) ^ keyed.bytes(seed ^ 1 << bit, &key)
        });
        all.push((format!("the seed of a text of {length}"), flips));
    }
    let windows = Flips::of(32, TRIES, |bit| {
        let (hash, moment) = (rng.u64(..), rng.u64(..));
        let place = |moment| u64::from(keyed.place(hash, Moment::from_bits(moment)));
        // Two windows whose numbers differ in one bit, at the same part of a window.
        (place(moment) ^ place(moment ^ 1 << (32 + bit))) << 32 | rng.u64(..1 << 32)
    });
    all.push((String::from("the window"), windows));
    let tests = all.iter().map(|(_, flips)| flips.counts.len() * 64).sum();
    let most = deviation_bound(tests);
    let mut widest = 0.0f64;
    for (name, flips) in &all {
        let (off, bit, at) = flips.worst();
        widest = widest.max(off);
        if off > most {
            return Err(format!("bit {bit} of {name}: bit {at} is {off:.1} sigmas off one half"));
        }
    }
    Ok(format!("{tests} pairs of bits, at most {widest:.2} of {most:.2} sigmas off one half"))
}

/// Zeros of any number, and all texts of one and two bytes, have hashes of their own.
pub(crate) fn are_distinct(keyed: &impl Keyed) -> Check {
    for seed in SEEDS {
        let mut seen = BTreeSet::new();
        let zeros = (0..=64).map(|length| vec![0; length]);
        let pairs = (0..=u16::MAX).map(|pair| pair.to_le_bytes().to_vec());
        let ones = (0..=u8::MAX).map(|byte| vec![byte]);
        let triples = (1..=u16::MAX).map(|pair| [&[0], &pair.to_le_bytes()[..]].concat());
        let mut keys: BTreeSet<Vec<u8>> = zeros.chain(pairs).chain(ones).chain(triples).collect();
        keys.extend((0..=u8::MAX).map(|byte| [&[byte; 16][..], &[0; 5]].concat()));
        let count = keys.len();
        seen.extend(keys.iter().map(|key| keyed.bytes(seed, key)));
        if seen.len() != count {
            let lost = count - seen.len();
            return Err(format!("seed {seed:#x}: {lost} of {count} texts share a hash"));
        }
    }
    Ok(format!("no two texts share a hash, under {} seeds", SEEDS.len()))
}

fn high_half(word: u64) -> u32 {
    u32::try_from(word >> 32).unwrap()
}
