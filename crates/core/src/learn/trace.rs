//! Demand with a name, so that tests, simulations and benchmarks speak of the same one.

/// Demand that drifts over five orders of magnitude: it grows by a factor of 2^(1/20) per window
/// from 1 to 65,536, shrinks back in the same way, and begins anew every 640 windows.
///
/// The numbers are not powers of two, so that no fixed size happens to divide them all.
///
/// ```
/// use admittance_core::learn::trace;
///
/// let one_period: Vec<u64> = trace::drifting(640).collect();
/// assert_eq!(one_period[0], 1);
/// assert_eq!(one_period[310], 46_341);
/// assert_eq!(one_period[320], 65_536);
/// assert_eq!(one_period[330], 46_341);
/// ```
pub fn drifting(windows: usize) -> impl Iterator<Item = u64> + Clone {
    (0..WINDOWS_PER_PERIOD).cycle().take(windows).map(|window| {
        let twentieths = window.min(WINDOWS_PER_PERIOD - window);
        super::size::whole(libm::exp2(f64::from(twentieths) / f64::from(WINDOWS_PER_DOUBLING)))
    })
}

/// How many windows a doubling, or a halving, takes.
const WINDOWS_PER_DOUBLING: u16 = 20;
/// Sixteen doublings and sixteen halvings.
const WINDOWS_PER_PERIOD: u16 = 2 * 16 * WINDOWS_PER_DOUBLING;
