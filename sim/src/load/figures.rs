//! What was seen, counted from outside the regulator.

use admittance_core::Span;
use admittance_core::load::{Class, Delays, Level};

/// One run: a part for each tenth of a second, and every adjustment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// What happened in each tenth of a second.
    pub parts: Vec<Part>,
    /// The level after each adjustment, and when that was.
    pub levels: Vec<(Span, Level)>,
    /// Microseconds of work that the workers can do in a tenth of a second.
    pub capacity: u64,
}

/// What happened in a tenth of a second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// How much was offered, by class.
    pub offered: [u64; Class::ALL.len()],
    /// How much of it was admitted.
    pub admitted: [u64; Class::ALL.len()],
    /// How long what began had waited since it was admitted.
    pub waited: Delays,
    /// Microseconds of work that ended.
    pub done: u64,
}

impl Figures {
    /// The parts between two instants.
    fn between(&self, from: u64, to: u64) -> &[Part] {
        let index = |second: u64| usize::try_from(second * 10).unwrap_or(usize::MAX);
        let to = index(to).min(self.parts.len());
        &self.parts[index(from).min(to)..to]
    }

    /// The work that ended between two seconds, as a part of what the workers can do.
    #[must_use]
    pub fn goodput(&self, from: u64, to: u64) -> f64 {
        let parts = self.between(from, to);
        let done: u64 = parts.iter().map(|part| part.done).sum();
        done as f64 / (self.capacity * parts.len().max(1) as u64) as f64
    }

    /// The part of what was offered between two seconds that was refused.
    #[must_use]
    pub fn refused(&self, from: u64, to: u64) -> f64 {
        let sum = |of: fn(&Part) -> u64| self.between(from, to).iter().map(of).sum::<u64>();
        let offered = sum(|part| part.offered.iter().sum());
        let admitted = sum(|part| part.admitted.iter().sum());
        1.0 - admitted as f64 / offered.max(1) as f64
    }

    /// The part of what was offered of a class between two seconds that was admitted; all of it
    /// if nothing was.
    #[must_use]
    pub fn admitted(&self, class: Class, from: u64, to: u64) -> f64 {
        let parts = self.between(from, to);
        let offered: u64 = parts.iter().map(|part| part.offered[class.index()]).sum();
        let admitted: u64 = parts.iter().map(|part| part.admitted[class.index()]).sum();
        if offered == 0 { 1.0 } else { admitted as f64 / offered as f64 }
    }

    /// How long what began between two seconds had waited.
    #[must_use]
    pub fn waited(&self, from: u64, to: u64) -> Delays {
        let mut all = Delays::default();
        self.between(from, to).iter().for_each(|part| all.merge(&part.waited));
        all
    }

    /// The median over tenths of a second of each one's median wait.
    #[must_use]
    pub fn usual_wait(&self, from: u64, to: u64) -> Span {
        let parts = self.between(from, to).iter();
        let mut medians: Vec<Span> = parts.filter_map(|part| part.waited.percentile(50)).collect();
        medians.sort_unstable();
        medians.get(medians.len() / 2).copied().unwrap_or(Span::ZERO)
    }

    /// The levels between two seconds, as parts of a full one.
    #[must_use]
    pub fn levels(&self, from: u64, to: u64) -> Vec<f64> {
        let range = Span::from_secs(from)..Span::from_secs(to);
        let levels = self.levels.iter().filter(|(at, _)| range.contains(at));
        levels.map(|(_, level)| level.parts() as f64 / Level::FULL.parts() as f64).collect()
    }

    /// How often the level changed its direction.
    #[must_use]
    pub fn turns(&self, from: u64, to: u64) -> usize {
        let levels = self.levels(from, to);
        let moves: Vec<bool> =
            levels.windows(2).filter(|w| w[0] != w[1]).map(|w| w[0] < w[1]).collect();
        moves.windows(2).filter(|w| w[0] != w[1]).count()
    }

    /// How long after a second the level was first below full.
    #[must_use]
    pub fn noticed(&self, second: u64) -> Option<Span> {
        self.first(second, |level| level < Level::FULL)
    }

    /// How long after a second the level was first full.
    #[must_use]
    pub fn back(&self, second: u64) -> Option<Span> {
        self.first(second, |level| level == Level::FULL)
    }

    fn first(&self, second: u64, is: impl Fn(Level) -> bool) -> Option<Span> {
        let from = Span::from_secs(second);
        let found = self.levels.iter().find(|(at, level)| *at >= from && is(*level));
        found.map(|(at, _)| Span::from_us(at.us() - from.us()))
    }
}
