//! What must hold of levels and cut-offs: who is admitted, and how much that is.

use admittance_core::load::{COHORTS, Class, Cutoff, Level, Place, Traffic};
use fastrand::Rng;
use num_bigint::BigUint;
use num_traits::Zero;

use crate::load::Check;
use crate::timeline::{generator, long, spread};

/// What a check of cut-offs drives.
pub(crate) trait Shed {
    fn cut(&self, level: Level, recent: &Traffic) -> u64;
    fn admits(&self, cut: u64, class: Class, place: Place) -> bool;
}

/// As it ships.
pub(crate) struct Shipped;

impl Shed for Shipped {
    fn cut(&self, level: Level, recent: &Traffic) -> u64 {
        Cutoff::new(level, recent).to_bits()
    }

    fn admits(&self, cut: u64, class: Class, place: Place) -> bool {
        Cutoff::from_bits(cut).admits(class, place)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LevelMutant {
    /// `<=`: a place more than the level says, and one at a level of nothing.
    OffByOne,
    /// The same threshold in every class: nobody is shed first.
    PerClass,
    /// All classes and places are taken to be equally common.
    MixIgnored,
    /// Nothing is a place like any other: what lies before the first traffic stays admitted.
    NothingIsALevel,
    /// A sum that stops at 2^64.
    Saturated,
}

impl Shed for LevelMutant {
    fn cut(&self, level: Level, recent: &Traffic) -> u64 {
        let first = recent.0.iter().flatten().position(|offered| *offered > 0);
        match self {
            Self::OffByOne => Shipped.cut(level, recent),
            Self::PerClass => level.parts(),
            Self::MixIgnored => level.parts() * 4,
            Self::NothingIsALevel if level == Level::NOTHING => first.unwrap_or(0) as u64 * WIDTH,
            Self::NothingIsALevel => Shipped.cut(level, recent),
            Self::Saturated => {
                let exact: u128 = recent.0.iter().flatten().map(|&count| u128::from(count)).sum();
                let parts = u128::from(level.parts()) * u128::from(recent.total());
                let parts = parts.checked_div(exact).unwrap_or(u128::from(level.parts()));
                Shipped.cut(Level::from_parts(u64::try_from(parts).unwrap()), recent)
            }
        }
    }

    fn admits(&self, cut: u64, class: Class, place: Place) -> bool {
        match self {
            Self::OffByOne => at(class, place) <= cut,
            Self::PerClass => u64::from(place.0) < cut,
            _ => Shipped.admits(cut, class, place),
        }
    }
}

const WIDTH: u64 = (1 << 32) / COHORTS as u64;
const END: u64 = 4 << 32;

fn at(class: Class, place: Place) -> u64 {
    (class.index() as u64) << 32 | u64::from(place.0)
}

/// The class and place at a position in the one order of all.
fn who(at: u64) -> (Class, Place) {
    let place = u32::try_from(at & 0xffff_ffff).unwrap();
    (Class::ALL[usize::try_from(at >> 32).unwrap()], Place(place))
}

/// Traffic of any shape: even, in few cells, none of some classes, one heavy key, none, too much.
fn traffic(rng: &mut Rng) -> Traffic {
    let mut recent = Traffic::NONE;
    let shape = rng.u8(..8);
    for class in 0..4 {
        let empty = rng.u8(..4) == 0 || shape == 1 && class != 2;
        if shape == 0 || empty {
            continue;
        }
        let scale = spread(rng, 1_000_000);
        for cell in &mut recent.0[class] {
            *cell = match shape {
                2 if rng.u8(..16) > 0 => 0,
                3 => u64::MAX - rng.u64(..3),
                4 => spread(rng, u64::MAX),
                _ => rng.u64(..=scale),
            };
        }
    }
    if shape == 5 {
        // One key with three tenths of all.
        let heavy = recent.total() * 3 / 7;
        recent.0[rng.usize(..4)][rng.usize(..COHORTS)] += heavy;
    }
    recent
}

fn level(rng: &mut Rng) -> Level {
    match rng.u8(..8) {
        0 => Level::NOTHING,
        1 => Level::FULL,
        2 => Level::from_parts(spread(rng, 1 << 32)),
        3 => Level::from_parts((1 << 32) - spread(rng, 1 << 32)),
        4 => Level::from_percent(rng.u32(..=100)),
        _ => Level::from_parts(rng.u64(..1 << 32)),
    }
}

/// Positions that a mistake would show at.
fn positions(rng: &mut Rng, cut: u64) -> Vec<u64> {
    let mut found = vec![0, 1, END - 1];
    found.extend((0..4).flat_map(|class| [class << 32, (class << 32) + 0xffff_ffff]));
    found.extend([cut.saturating_sub(1), cut, cut + 1]);
    found.extend((0..20).map(|_| rng.u64(..END)));
    found.retain(|position| *position < END);
    found
}

/// A full level admits everybody and none nobody, whatever the traffic was.
pub(crate) fn ends_are_all_and_nobody(shed: &impl Shed) -> Check {
    let mut rng = generator(101);
    let cases = long(2_000);
    for _ in 0..cases {
        let recent = traffic(&mut rng);
        for (level, expected) in [(Level::NOTHING, false), (Level::FULL, true)] {
            let cut = shed.cut(level, &recent);
            for position in positions(&mut rng, cut) {
                let (class, place) = who(position);
                if shed.admits(cut, class, place) != expected {
                    let verb = if expected { "refuses" } else { "admits" };
                    return Err(format!("{level:?} {verb} {class:?} at {place:?}"));
                }
            }
        }
    }
    Ok(format!("{cases} mixes: all at a full level, nobody at none"))
}

/// Who is admitted stays admitted as the level rises; nobody is refused while one of a later class
/// is admitted; the cut-off never falls as the level rises.
pub(crate) fn sets_are_nested_and_classes_in_order(shed: &impl Shed) -> Check {
    let mut rng = generator(102);
    let cases = long(1_000);
    for _ in 0..cases {
        let recent = traffic(&mut rng);
        let mut levels: Vec<Level> = (0..20).map(|_| level(&mut rng)).collect();
        levels.sort_unstable();
        let cuts: Vec<u64> = levels.iter().map(|level| shed.cut(*level, &recent)).collect();
        if !cuts.is_sorted() {
            return Err(format!("the cut-off falls as the level rises: {cuts:?}"));
        }
        let watched = positions(&mut rng, cuts[10]);
        for pair in cuts.windows(2) {
            for &position in &watched {
                let (class, place) = who(position);
                let admitted = shed.admits(pair[0], class, place);
                if admitted && !shed.admits(pair[1], class, place) {
                    return Err(format!("{class:?} at {place:?} is refused at a higher level"));
                }
                let before = &Class::ALL[..class.index()];
                let last = Place(u32::MAX);
                if admitted && before.iter().any(|class| !shed.admits(pair[0], *class, last)) {
                    return Err(format!("{class:?} is admitted while a class before it is not"));
                }
            }
        }
    }
    Ok(format!("{cases} mixes: nested, and classes in order"))
}

/// How much of `recent` lies before a position, in 2^-26 of a request: inside a cell it is spread
/// evenly.
fn before(recent: &Traffic, position: u64) -> BigUint {
    let mut sum = BigUint::zero();
    for (index, offered) in (0u64..).zip(recent.0.iter().flatten()) {
        let inside = position.saturating_sub(index * WIDTH).min(WIDTH);
        sum += BigUint::from(*offered) * BigUint::from(inside);
    }
    sum
}

/// The last position that admits no more than the wanted part, found by bisection.
fn written(level: Level, recent: &Traffic) -> u64 {
    let all = before(recent, END);
    if level == Level::NOTHING || all.is_zero() {
        return level.parts() * 4;
    }
    let wanted = all * BigUint::from(level.parts());
    let (mut low, mut high) = (0, END);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if before(recent, middle) << 32usize <= wanted {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// The cut-off is the one that the wanted part of traffic like the recent lies before.
pub(crate) fn the_wanted_part_is_admitted(shed: &impl Shed) -> Check {
    let mut rng = generator(103);
    let cases = long(500);
    for _ in 0..cases {
        let (recent, level) = (traffic(&mut rng), level(&mut rng));
        let cut = written(level, &recent);
        let found = shed.cut(level, &recent);
        for position in positions(&mut rng, cut) {
            let (class, place) = who(position);
            let admitted = shed.admits(found, class, place);
            if admitted != (position < cut) {
                let (found, cut) = (found as f64 / WIDTH as f64, cut as f64 / WIDTH as f64);
                return Err(format!(
                    "{class:?} at {place:?}: {admitted}; the cut is at cell {found:.3} instead of \
                     {cut:.3} for {level:?}"
                ));
            }
        }
    }
    Ok(format!("{cases} mixes: just the wanted part is admitted"))
}

/// The same, told in requests: drawn from keys of which one has three tenths of the load, what is
/// admitted differs from what was wanted by no more than was offered in the cell of the cut.
pub(crate) fn one_move_sheds_the_wanted_amount(shed: &impl Shed) -> Check {
    let mut rng = generator(104);
    let cases = long(200);
    let mut worst = 0;
    for _ in 0..cases {
        let keys: Vec<(Class, Place)> = (0..rng.usize(1..300))
            .map(|_| (Class::ALL[rng.usize(..4).max(rng.usize(..4))], Place(rng.u32(..))))
            .collect();
        let mut recent = Traffic::NONE;
        let requests: Vec<(Class, Place)> = (0..3_000)
            .map(|_| if rng.u8(..10) < 3 { keys[0] } else { keys[rng.usize(..keys.len())] })
            .collect();
        for (class, place) in &requests {
            recent.count(*class, *place);
        }
        let level = level(&mut rng);
        let cut = shed.cut(level, &recent);
        let admitted = |(class, place): &&(Class, Place)| shed.admits(cut, *class, *place);
        let admitted = requests.iter().filter(admitted).count() as u64;
        let wanted = (3_000 * level.parts()) >> 32;
        let cell = usize::try_from(written(level, &recent) / WIDTH).unwrap();
        let here = recent.0.iter().flatten().nth(cell).copied().unwrap_or(0);
        let off = admitted.abs_diff(wanted);
        worst = worst.max(off);
        if off > here + 1 {
            return Err(format!(
                "{admitted} of 3,000 admitted, {wanted} wanted, {here} in the cell"
            ));
        }
    }
    Ok(format!("{cases} mixes of keys: off by a cell at most; {worst} of 3,000 at worst"))
}

#[test]
fn a_percentage_is_nothing_at_zero_and_everything_at_a_hundred() {
    for percent in 0..=100 {
        assert_eq!(Level::from_percent(percent).percent(), percent);
    }
    assert_eq!(Level::from_percent(0), Level::NOTHING);
    assert_eq!(Level::from_percent(100), Level::FULL);
    assert_eq!(Level::from_percent(u32::MAX), Level::FULL);
    assert_eq!(Level::from_parts(1).percent(), 1, "somebody is admitted");
    assert_eq!(Level::from_parts((1 << 32) - 1).percent(), 99, "somebody is refused");
    let mut rng = generator(105);
    for _ in 0..10_000 {
        let parts = rng.u64(1..1 << 32);
        let nearest = (parts as f64 * 100.0 / 4_294_967_296.0).round();
        let nearest = nearest.clamp(1.0, 99.0);
        assert!((f64::from(Level::from_parts(parts).percent()) - nearest).abs() < 0.5);
    }
}

#[test]
fn a_part_of_a_level_is_rounded_down_and_never_more_than_full() {
    let mut rng = generator(106);
    let full = BigUint::from(1u64 << 32);
    for _ in 0..10_000 {
        let (level, numerator) = (level(&mut rng), spread(&mut rng, u64::MAX) - 1);
        let denominator = spread(&mut rng, u64::MAX);
        let exact = BigUint::from(level.parts()) * numerator / denominator;
        assert_eq!(
            BigUint::from(level.times(numerator, denominator).parts()),
            exact.min(full.clone())
        );
        let exact = (BigUint::from(numerator) << 32usize) / denominator;
        let ratio = Level::ratio(numerator, denominator);
        assert_eq!(BigUint::from(ratio.parts()), exact.min(full.clone()));
    }
    assert_eq!(Level::ratio(0, 0), Level::FULL, "where nothing is offered all may come");
    assert_eq!(Level::FULL.times(1, 0), Level::FULL);
}

#[test]
fn traffic_of_long_ago_fades() {
    let mut recent = Traffic::NONE;
    let mut since = Traffic::NONE;
    let cell = Traffic::cohort(Place(u32::MAX));
    assert_eq!((Traffic::cohort(Place(0)), cell), (0, COHORTS - 1));
    since.0[1][cell] = 1_000;
    recent.fade(&since);
    let halves = (0..11).map(|_| {
        recent.fade(&Traffic::NONE);
        recent.total()
    });
    assert!(halves.eq([500, 250, 125, 62, 31, 15, 7, 3, 1, 0, 0]));
    since.0[1][cell] = u64::MAX;
    for _ in 0..3 {
        recent.fade(&since);
        assert_eq!(recent.total(), u64::MAX);
    }
    recent.count(Class::Default, Place(u32::MAX));
    assert_eq!(recent.0[1][cell], u64::MAX);
}
