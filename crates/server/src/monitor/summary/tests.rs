//! Summaries beside exact counts, over streams that are hard on them.

use std::collections::{BTreeMap, HashMap};
use std::hash::RandomState;

use super::super::watched::COUNTERS;
use super::*;

/// Counts keys over several summaries, and lists what it has counted.
trait Counting {
    fn new(stripes: usize, counters: usize) -> Self;
    fn count(&mut self, stripe: usize, key: &Key<'_>);
    fn merged(&self) -> Vec<(String, u64)>;
}

/// What is shipped.
struct Shipped(Vec<Summary>);

impl Counting for Shipped {
    fn new(stripes: usize, counters: usize) -> Self {
        Self((0..stripes).map(|_| Summary::new(counters)).collect())
    }

    fn count(&mut self, stripe: usize, key: &Key<'_>) {
        self.0[stripe].count(key);
        // At random times all of it is looked at; the summaries are large for that.
        if key.code().is_multiple_of(64) {
            self.0[stripe].assert_in_order();
        }
    }

    fn merged(&self) -> Vec<(String, u64)> {
        self.0.iter().for_each(Summary::assert_in_order);
        merged(&self.0.iter().map(Summary::listed).collect::<Vec<_>>())
    }
}

/// Shows one summary less.
struct OneNotMerged(Shipped);

impl Counting for OneNotMerged {
    fn new(stripes: usize, counters: usize) -> Self {
        Self(Shipped::new(stripes, counters))
    }

    fn count(&mut self, stripe: usize, key: &Key<'_>) {
        self.0.count(stripe, key);
    }

    fn merged(&self) -> Vec<(String, u64)> {
        merged(&self.0.0.iter().skip(1).map(Summary::listed).collect::<Vec<_>>())
    }
}

/// Takes a key that has no counter in a summary for one that was not counted there.
struct NoFloor(Shipped);

impl Counting for NoFloor {
    fn new(stripes: usize, counters: usize) -> Self {
        Self(Shipped::new(stripes, counters))
    }

    fn count(&mut self, stripe: usize, key: &Key<'_>) {
        self.0.count(stripe, key);
    }

    fn merged(&self) -> Vec<(String, u64)> {
        let bare = |summary: &Summary| Listed { floor: 0, ..summary.listed() };
        merged(&self.0.0.iter().map(bare).collect::<Vec<_>>())
    }
}

/// Counters by hand, where who takes one over goes on from `after(least)`.
struct ByHand<const KIND: u8>(Vec<HashMap<String, u64>>, usize);

/// A key that takes over a counter begins at one.
type NotInherited = ByHand<0>;
/// The counter that has most is taken over.
type MostTaken = ByHand<1>;
/// A key that has no counter is not counted while there is none free.
type FirstStay = ByHand<2>;

impl<const KIND: u8> Counting for ByHand<KIND> {
    fn new(stripes: usize, counters: usize) -> Self {
        Self(vec![HashMap::new(); stripes], counters)
    }

    fn count(&mut self, stripe: usize, key: &Key<'_>) {
        let counts = &mut self.0[stripe];
        let key = Kept::from(*key).shown();
        if !counts.contains_key(&key) && counts.len() == self.1 {
            let by_count = counts.iter().map(|(key, count)| (*count, key.clone()));
            let (least, taken) =
                if KIND == 1 { by_count.max() } else { by_count.min() }.expect("full");
            if KIND == 2 {
                return;
            }
            counts.remove(&taken);
            counts.insert(key.clone(), if KIND == 0 { 0 } else { least });
        }
        *counts.entry(key).or_default() += 1;
    }

    fn merged(&self) -> Vec<(String, u64)> {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        let floor = |counts: &HashMap<String, u64>| match counts.len() == self.1 {
            true => counts.values().min().copied().unwrap_or(0),
            false => 0,
        };
        for key in self.0.iter().flat_map(HashMap::keys) {
            let each =
                self.0.iter().map(|counts| counts.get(key).copied().unwrap_or(floor(counts)));
            all.insert(key.clone(), each.sum());
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_by(|(one, a), (other, b)| b.cmp(a).then_with(|| one.cmp(other)));
        all
    }
}

/// What the guarantee says, of one stream of `(stripe, key)`.
fn judged<C: Counting>(
    stream: &[(usize, String)],
    stripes: usize,
    counters: usize,
) -> Result<(), String> {
    let coder = RandomState::new();
    let (mut counting, mut exact) = (C::new(stripes, counters), HashMap::<String, u64>::new());
    for (stripe, key) in stream {
        let key = Key::new(key, &coder);
        counting.count(*stripe, &key);
        *exact.entry(Kept::from(key).shown()).or_default() += 1;
    }
    let (all, over) = (stream.len() as u64, (stream.len() / counters) as u64);
    let shown = counting.merged();
    let by_key: HashMap<&str, u64> = shown.iter().map(|(key, count)| (&**key, *count)).collect();
    for (key, count) in &exact {
        // More than N/k, which need not be whole.
        if count * counters as u64 > all && !by_key.contains_key(&**key) {
            return Err(format!("{key} came {count} times of {all} and is missing"));
        }
    }
    for (key, count) in &shown {
        let truth = exact.get(&**key).copied().ok_or_else(|| format!("{key} never came"))?;
        if *count < truth || *count > truth + over {
            return Err(format!("{key} came {truth} times, {count} are shown, {over} may be over"));
        }
    }
    if shown.windows(2).any(|pair| (pair[1].1, &pair[0].0) > (pair[0].1, &pair[1].0)) {
        return Err("they are not in order".into());
    }
    if counters >= 100 {
        let ten: Vec<&str> = shown.iter().take(10).map(|(key, _)| &**key).collect();
        let mut most = exact.iter().filter(|(_, count)| **count * 10 > all);
        if let Some((key, count)) = most.find(|(key, _)| !ten.contains(&&***key)) {
            return Err(format!("{key} came {count} times of {all} and is not among the ten"));
        }
    }
    Ok(())
}

/// A stream of one of several kinds, and over how many stripes of how many counters it goes.
fn stream(rng: &mut fastrand::Rng) -> (Vec<(usize, String)>, usize, usize) {
    let stripes = rng.usize(1..=4);
    let counters = *rng.choice(&[1, 2, 3, 8, 17, 64, COUNTERS]).expect("some");
    let length = rng.usize(1..=6_000);
    let kind = rng.u8(0..6);
    let keys = rng.usize(1..=4 * counters + 2);
    let mut fresh = 0;
    let mut out = Vec::with_capacity(length);
    for place in 0..length {
        let key = match kind {
            // About Zipf: each key half as likely as one with half its number.
            0 => keys / rng.usize(1..=keys),
            1 => rng.usize(0..keys),
            // Keys that never come again, among which some do: each takes over a counter.
            2 => {
                fresh += 1;
                if rng.u8(0..10) < 3 { rng.usize(0..3) } else { 1_000 + fresh }
            }
            // Round and round, by one more than there are counters: the worst for what is evicted.
            3 => place % (counters + 1),
            // One after another, in blocks.
            4 => place / (1 + length / keys),
            // A rare one at first, then a flood, then nothing but that one.
            _ if place < length / 3 || place > 2 * length / 3 => 7,
            _ => 10 + place,
        };
        // Sometimes all of a key's go to one stripe, sometimes to any.
        let stripe = if kind.is_multiple_of(2) { rng.usize(0..stripes) } else { key % stripes };
        // Some keys are so long that they are not kept whole.
        let long = if key % 11 == 3 { "x".repeat(150) } else { String::new() };
        out.push((stripe, format!("{long}{key}")));
    }
    (out, stripes, counters)
}

fn seed() -> u64 {
    let given = std::env::var("ADMITTANCE_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| fastrand::u64(..))
}

fn cases() -> usize {
    if std::env::var_os("ADMITTANCE_LONG").is_some() { 10_000 } else { 1_000 }
}

/// The first of so many streams that is not judged as it should be.
fn first_flaw<C: Counting>(seed: u64, cases: usize) -> Result<(), String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..cases).try_for_each(|case| {
        let (stream, stripes, counters) = stream(&mut rng);
        let judged = judged::<C>(&stream, stripes, counters);
        judged.map_err(|why| format!("case {case}, {stripes} stripes of {counters}: {why}"))
    })
}

#[test]
fn no_key_that_comes_often_is_missed_and_no_count_is_off_by_more_than_its_part() {
    let seed = seed();
    println!("ADMITTANCE_SEED={seed}");
    first_flaw::<Shipped>(seed, cases()).expect("what is guaranteed");
}

#[test]
fn ways_to_count_wrongly_are_caught() {
    let seed = seed();
    println!("ADMITTANCE_SEED={seed}");
    let flaws = [
        ("not inherited", first_flaw::<NotInherited>(seed, 300)),
        ("the most is taken", first_flaw::<MostTaken>(seed, 300)),
        ("the first stay", first_flaw::<FirstStay>(seed, 300)),
        ("one is not merged", first_flaw::<OneNotMerged>(seed, 300)),
        ("no floor", first_flaw::<NoFloor>(seed, 300)),
    ];
    for (what, flaw) in flaws {
        let why = flaw.expect_err(what);
        println!("{what}: {why}");
    }
}

#[test]
fn a_summary_that_was_cleared_is_as_new() {
    let coder = RandomState::new();
    let mut rng = fastrand::Rng::with_seed(5);
    let (mut used, mut new) = (Summary::new(16), Summary::new(16));
    for _ in 0..1_000 {
        used.count(&Key::new(&rng.u8(..).to_string(), &coder));
    }
    used.clear();
    for _ in 0..1_000 {
        let key = rng.u8(..).to_string();
        used.count(&Key::new(&key, &coder));
        new.count(&Key::new(&key, &coder));
    }
    assert_eq!(merged(&[used.listed()]), merged(&[new.listed()]));
    used.assert_in_order();
}

#[test]
fn a_summary_takes_no_more_than_it_says() {
    let coder = RandomState::new();
    let mut summary = Summary::new(COUNTERS);
    for number in 0..100_000_u64 {
        summary.count(&Key::new(&(number * number % 7_001).to_string(), &coder));
    }
    let lists = summary.counters.capacity() * size_of::<Counter>()
        + summary.groups.capacity() * size_of::<Group>()
        + size_of_val(&*summary.table);
    assert!(size_of::<Summary>() + lists <= Summary::bytes_max(COUNTERS));
}

impl Summary {
    /// Everything that is true of it between two keys.
    fn assert_in_order(&self) {
        let mut before = (NONE, 0);
        let (mut at, mut counters) = (self.lowest, 0);
        while let Some(group) = self.groups.get(usize::from(at)) {
            assert_eq!(group.lower, before.0);
            assert!(group.count > before.1);
            let (mut behind, mut counter) = (NONE, group.first);
            assert_ne!(counter, NONE, "no group is empty");
            while let Some(one) = self.counters.get(usize::from(counter)) {
                assert_eq!((one.group, one.before), (at, behind));
                (behind, counter, counters) = (counter, one.after, counters + 1);
            }
            (before, at) = ((at, group.count), group.higher);
        }
        assert_eq!(counters, self.counters.len());
        let in_table = self.table.iter().filter(|counter| **counter != NONE).count();
        assert_eq!(in_table, self.counters.len());
        assert!(self.groups.len() <= self.counters_max);
    }
}
