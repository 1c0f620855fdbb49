//! How much is let through, and who.
//!
//! # Guarantee
//! - A level of nothing admits nobody, a full one everybody, and what lies between resolves
//!   2^-32. [`Level::percent`] says 0 only for nothing and 100 only for everything.
//! - Who is admitted at a cut-off is admitted at every higher one.
//! - Classes are shed in order: while one of a class is admitted for its place, nobody of a class
//!   before it is refused.
//!
//! # Proven by
//! `tests/it/load.rs`.

use super::Place;

/// The part of the work that may start, as a fixed-point number from nothing to everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(u64);

impl Level {
    /// Nobody.
    pub const NOTHING: Self = Self(0);

    /// Everybody.
    pub const FULL: Self = Self(1 << 32);

    /// So many hundredths. More than 100 is 100.
    #[must_use]
    pub const fn from_percent(percent: u32) -> Self {
        let percent = if percent < 100 { percent as u64 } else { 100 };
        Self((percent << 32) / 100)
    }

    /// So many of the smallest parts, of which [`FULL`](Self::FULL) has 2^32. More is full.
    #[must_use]
    pub const fn from_parts(parts: u64) -> Self {
        if parts < Self::FULL.0 { Self(parts) } else { Self::FULL }
    }

    /// The part that `of` is of `whole`: full if it is all of it or there is nothing.
    #[must_use]
    pub fn ratio(of: u64, whole: u64) -> Self {
        if of >= whole {
            return Self::FULL;
        }
        let parts = (u128::from(of) << 32) / u128::from(whole);
        u64::try_from(parts).map_or(Self::FULL, Self::from_parts)
    }

    /// How many of the smallest parts.
    #[must_use]
    pub const fn parts(self) -> u64 {
        self.0
    }

    /// Whole hundredths, rounded to the nearest, in which 0 means nobody and 100 means everybody.
    #[must_use]
    pub fn percent(self) -> u32 {
        match self {
            Self::NOTHING => 0,
            Self::FULL => 100,
            Self(parts) => {
                let nearest = (parts * 100 + (1 << 31)) >> 32;
                u32::try_from(nearest.clamp(1, 99)).unwrap_or(99)
            }
        }
    }

    /// This level times a fraction, rounded down. More than full is full.
    #[must_use]
    pub fn times(self, numerator: u64, denominator: u64) -> Self {
        let parts = u128::from(self.0) * u128::from(numerator) / u128::from(denominator.max(1));
        u64::try_from(parts).map_or(Self::FULL, Self::from_parts)
    }
}

/// How much work matters. Ordered as it is kept: background work is shed first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// What must go on while anything does: releases, heartbeats.
    Critical,
    /// What is not said to be anything else.
    #[default]
    Default,
    /// What a user can do without for a while.
    Sheddable,
    /// What nobody waits for.
    Background,
}

impl Class {
    /// All of them, in the order in which they are kept.
    pub const ALL: [Self; 4] = [Self::Critical, Self::Default, Self::Sheddable, Self::Background];

    /// Its place in [`ALL`](Self::ALL).
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// As users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Default => "default",
            Self::Sheddable => "sheddable",
            Self::Background => "background",
        }
    }
}

/// One threshold over the compound of class and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cutoff(u64);

impl Cutoff {
    /// Admits everybody.
    pub const OPEN: Self = Self((Class::ALL.len() as u64) << 32);

    /// Admits nobody.
    pub const SHUT: Self = Self(0);

    /// The cut-off that admits the part `level` of traffic like `recent`, which counts how much of
    /// each class was offered in each part of the places. Inside a part it is spread evenly.
    ///
    /// Where nothing was offered nothing is known, and all classes are taken to be equally common.
    #[must_use]
    pub fn new(level: Level, recent: &Traffic) -> Self {
        // Nothing is nothing: else whoever comes before the first traffic would still be admitted.
        match level {
            Level::FULL => return Self::OPEN,
            Level::NOTHING => return Self::SHUT,
            _ => {}
        }
        let total: u128 = recent.0.iter().flatten().map(|offered| u128::from(*offered)).sum();
        if total == 0 {
            return Self(level.parts() * Class::ALL.len() as u64);
        }
        // In 2^-32 of a request, so that a part of one request counts too.
        let mut wanted = total * u128::from(level.parts());
        for (index, offered) in (0u64..).zip(recent.0.iter().flatten()) {
            let here = u128::from(*offered) << 32;
            if wanted < here {
                let within = (wanted * u128::from(COHORT_WIDTH)) / here;
                return Self(index * COHORT_WIDTH + u64::try_from(within).unwrap_or(0));
            }
            wanted -= here;
        }
        Self::OPEN
    }

    /// Admits this class and those before it, and no other.
    #[must_use]
    pub const fn through(class: Class) -> Self {
        Self((class as u64 + 1) << 32)
    }

    /// Whether one of this class at this place may start.
    #[inline]
    #[must_use]
    pub const fn admits(self, class: Class, place: Place) -> bool {
        ((class as u64) << 32 | place.0 as u64) < self.0
    }

    /// For an atomic word.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// From an atomic word.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// How much was offered of late, by class and by where in the order of places it stood. One key
/// that is much of the traffic shows as a heavy cohort.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traffic(pub [[u64; COHORTS]; Class::ALL.len()]);

impl Traffic {
    /// None.
    pub const NONE: Self = Self([[0; COHORTS]; Class::ALL.len()]);

    /// Which cohort a place belongs to.
    #[inline]
    #[must_use]
    pub const fn cohort(place: Place) -> usize {
        (place.0 as u64 / COHORT_WIDTH) as usize
    }

    /// Counts one.
    pub fn count(&mut self, class: Class, place: Place) {
        let cell = &mut self.0[class.index()][Self::cohort(place)];
        *cell = cell.saturating_add(1);
    }

    /// How much there was in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().flatten().fold(0, |sum, offered| sum.saturating_add(*offered))
    }

    /// The first class, in the order they are kept, of which more than a thirty-second lacked room:
    /// one piece of work that came at a bad moment is no reason to shut others out.
    #[must_use]
    pub fn crowded(&self, lacked: [u64; Class::ALL.len()]) -> Option<Class> {
        Class::ALL.into_iter().find(|class| {
            let offered: u64 = self.0[class.index()].iter().copied().fold(0, u64::saturating_add);
            u128::from(lacked[class.index()]) * 32 > u128::from(offered)
        })
    }

    /// Forgets half and adds what was offered since: what was long ago fades.
    pub fn fade(&mut self, since: &Self) {
        for (cell, new) in self.0.iter_mut().flatten().zip(since.0.iter().flatten()) {
            *cell = (*cell / 2).saturating_add(*new);
        }
    }
}

/// Into how many parts the places of a class are divided when traffic is counted.
pub const COHORTS: usize = 64;

const COHORT_WIDTH: u64 = (1 << 32) / COHORTS as u64;
