//! One run as a row.

use std::fmt;

use admittance_core::Span;

use super::figures::Figures;
use super::regulates::Regulates;
use super::scenes::Scene;
use super::world::run;

/// One run.
#[derive(Clone, Debug)]
pub struct Row {
    /// Of what.
    pub scene: Scene,
    /// What was found.
    pub figures: Figures,
}

/// What the columns of a row are.
pub const HEADING: &str = "                                         goodput  refused   \
                           p50 ms    p99 ms  level %: mean least  most  turns  full after  bounds";

impl Row {
    /// Runs a scene.
    pub fn of(scene: Scene, regulator: &mut impl Regulates) -> Self {
        let figures = run(&scene.setup, regulator);
        Self { scene, figures }
    }

    /// Whether every bound held.
    #[must_use]
    pub fn held(&self) -> bool {
        self.scene.broken(&self.figures).is_empty()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (it, (from, to)) = (&self.figures, self.scene.judged);
        let levels = it.levels(from, to);
        let mean = levels.iter().sum::<f64>() / levels.len().max(1) as f64;
        let least = levels.iter().copied().fold(1.0, f64::min);
        let most = levels.iter().copied().fold(0.0, f64::max);
        let waited = it.waited(from, to);
        let wait = |percent| {
            let wait = waited.percentile(percent).map_or(0, Span::us);
            format!("{}.{}", wait / 1_000, wait % 1_000 / 100)
        };
        let back = self.scene.over.map(|second| {
            let after = it.back(second);
            after.map_or("never".to_owned(), |after| format!("{:.1} s", after.us() as f64 / 1e6))
        });
        let broken = self.scene.broken(it);
        write!(
            f,
            "{:40} {:>7.3} {:>8.4} {:>8} {:>9} {:>14.1} {:>5.1} {:>5.1} {:>6} {:>11}  {}",
            self.scene.name,
            it.goodput(from, to),
            it.refused(from, to),
            wait(50),
            wait(99),
            100.0 * mean,
            100.0 * least,
            100.0 * most,
            it.turns(from, to),
            back.unwrap_or_default(),
            if broken.is_empty() { "held".to_owned() } else { broken.join("; ") },
        )
    }
}
