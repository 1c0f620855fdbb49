//! What chance allows: bounds that a fair draw breaks once in a thousand runs of a whole check,
//! however many tests the check makes (Bonferroni).

/// How likely a check of fair draws is to fail, all its tests together.
const ALARM: f64 = 1e-3;

/// What one of `tests` tests may be broken with, on each of its two sides.
fn each(tests: usize) -> f64 {
    ALARM / (2.0 * tests as f64)
}

/// The z that a normal deviate exceeds with probability `tail`, by bisection.
pub(crate) fn quantile(tail: f64) -> f64 {
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if libm::erfc(middle / core::f64::consts::SQRT_2) / 2.0 > tail {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The z that one of `tests` tests stays within.
pub(crate) fn bound(tests: usize) -> f64 {
    quantile(each(tests))
}

/// Between which chi-squares of `degrees` one of `tests` tests stays, after Wilson and Hilferty.
/// Counts that are too even are as little a draw as counts that are too uneven.
pub(crate) fn chi_square_bounds(degrees: f64, tests: usize) -> (f64, f64) {
    let part = 2.0 / (9.0 * degrees);
    let at = |z: f64| degrees * (1.0 - part + z * libm::sqrt(part)).max(0.0).powi(3);
    (at(-bound(tests)), at(bound(tests)))
}

/// The chi-square of counts that should all be equal.
pub(crate) fn chi_square(counts: &[u32]) -> f64 {
    let total: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let expected = total / counts.len() as f64;
    counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum()
}

/// By how much `hits` of `tries` at a probability of `p` differ from what is expected: the root of
/// twice the divergence, which is about z. Chernoff: the probability of a larger one on one side
/// is at most exp(−z²/2), also far out where a binomial is not normal.
pub(crate) fn deviation(hits: u64, tries: u64, p: f64) -> f64 {
    let (n, q) = (tries as f64, hits as f64 / tries as f64);
    let term = |a: f64, b: f64| if a == 0.0 { 0.0 } else { a * libm::log(a / b) };
    libm::sqrt((2.0 * n * (term(q, p) + term(1.0 - q, 1.0 - p))).max(0.0))
}

/// The [`deviation`] that one of `tests` tests stays within.
pub(crate) fn deviation_bound(tests: usize) -> f64 {
    libm::sqrt(-2.0 * libm::log(each(tests)))
}

#[test]
fn the_quantiles_are_those_of_the_tables() {
    for (tail, z) in [(0.025, 1.959_964), (0.001, 3.090_232), (1e-9, 5.997_807)] {
        assert!((quantile(tail) - z).abs() < 1e-5, "{tail}: {}", quantile(tail));
    }
    // A table's chi-square of 100 degrees at 0.001 is 149.449; one test has half of that a side.
    let (_, high) = chi_square_bounds(100.0, 1);
    assert!((high - 153.17).abs() < 0.3, "{high}");
    assert!((deviation(60, 100, 0.5) - 2.0).abs() < 0.02, "sixty heads are two sigmas");
}
