//! How much weight one of two has earned against the other.

/// The weight of the first of two, `1 / (1 + exp(η · behind))`, where `behind` is how much more it
/// has cost than the second, and `η = ln 2 / gap`. The gap is the sum of what mixing has cost so
/// far: of each sample, the mean of the two losses less `−ln(mean of exp(−η · loss)) / η`. So η
/// needs no tuning and no scale: it is large while one of the two is clearly better, and small
/// where they take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Hedge {
    behind: f64,
    /// Zero as long as the two have never differed.
    gap: f64,
    /// How often it was judged since the weights were last even.
    judged: u32,
}

impl Hedge {
    /// From 0 to 1; one half at first.
    pub(super) fn weight(&self) -> f64 {
        let Some(rate) = self.rate() else { return 0.5 };
        // An exponential too large to be counted is infinite, and the weight zero.
        1.0 / (1.0 + libm::exp(rate * self.behind))
    }

    /// The first has cost `more` than the second, or less. After `memory` of these the weights are
    /// even again.
    pub(super) fn judge(&mut self, more: f64, memory: u32) {
        // Less than that is no difference, and a rate made of it could not be counted.
        if more.abs() >= DIFFERENCE_MIN {
            self.gap += self.mixing_cost(more);
            self.behind += more;
        }
        self.judged = self.judged.saturating_add(1);
        if self.judged >= memory && memory < u32::MAX {
            *self = Self::default();
        }
    }

    /// By how much the mean of two losses that differ by `more` exceeds the mixture's.
    fn mixing_cost(&self, more: f64) -> f64 {
        let apart = more.abs();
        let Some(rate) = self.rate() else { return apart / 2.0 };
        // How far the one that is worse now was ahead until now: its weight is 1 / (1 + exp(−a)).
        let ahead = rate * if more > 0.0 { -self.behind } else { self.behind };
        // Twice the same, so that small numbers are subtracted from small ones.
        let cost = if ahead > 0.0 {
            let better = 1.0 / (1.0 + libm::exp(ahead));
            (soft(rate * apart - ahead) - soft(-ahead)) / rate - better * apart
        } else {
            let worse = 1.0 / (1.0 + libm::exp(-ahead));
            worse * apart - (soft(ahead) - soft(ahead - rate * apart)) / rate
        };
        cost.clamp(0.0, apart)
    }

    /// η; `None` before the two have differed, when it would be infinite.
    fn rate(&self) -> Option<f64> {
        (self.gap > 0.0).then(|| core::f64::consts::LN_2 / self.gap)
    }
}

/// `ln(1 + exp(x))`, finite for every finite number.
fn soft(x: f64) -> f64 {
    x.max(0.0) + libm::log1p(libm::exp(-x.abs()))
}

/// In units of loss. The gap is at least half of it, so that the rate is at most 2 · 10⁹.
const DIFFERENCE_MIN: f64 = 1e-9;
