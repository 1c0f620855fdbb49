//! Division by a number known in advance: one multiplication and one correction.

/// Divides by a fixed divisor without a division.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reciprocal {
    divisor: u64,
    /// ⌊(2^64 − 1) / divisor⌋
    inverse: u64,
}

impl Reciprocal {
    /// The divisor must not be zero.
    pub(crate) const fn new(divisor: u64) -> Self {
        Self { divisor, inverse: u64::MAX / divisor }
    }

    /// ⌊n / divisor⌋, exactly.
    ///
    /// With m = ⌊(2^64 − 1)/d⌋ the estimate ⌊n·m / 2^64⌋ is never above ⌊n/d⌋, and below it by
    /// less than n·(d + 1)/(d·2^64) + 1, so by two at most; the corrections make it exact.
    #[inline(always)]
    pub(crate) const fn floor(self, n: u64) -> u64 {
        let mut quotient = ((n as u128 * self.inverse as u128) >> 64) as u64;
        let mut rest = n - quotient * self.divisor;
        if rest >= self.divisor {
            quotient += 1;
            rest -= self.divisor;
        }
        if rest >= self.divisor {
            quotient += 1;
        }
        quotient
    }

    /// ⌈n / divisor⌉, exactly.
    #[inline(always)]
    pub(crate) const fn ceil(self, n: u64) -> u64 {
        let quotient = self.floor(n);
        if quotient * self.divisor == n { quotient } else { quotient + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::Reciprocal;

    #[test]
    fn a_reciprocal_divides_as_the_processor_does() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..200_000 {
            let divisor = (rng.u64(..) >> rng.u32(..64)).max(1);
            let n = rng.u64(..) >> rng.u32(..64);
            let by = Reciprocal::new(divisor);
            for n in [n, n - n % divisor, (n - n % divisor).wrapping_sub(1), u64::MAX, 0, divisor] {
                assert_eq!(by.floor(n), n / divisor, "{n} / {divisor}");
                assert_eq!(by.ceil(n), n.div_ceil(divisor), "{n} / {divisor}");
            }
        }
    }
}
