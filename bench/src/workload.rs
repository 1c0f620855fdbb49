//! Keys and the order they come in, made from a seed.

/// A pseudorandom sequence (xorshift64*), good enough to scatter keys.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }
}

/// Distinct keys of 24 bytes, as a multi-tenant service has them.
pub(crate) fn strings(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("tenant:{:06}:user:{:05}", n / 100_000, n % 100_000)).collect()
}

/// Distinct numeric keys.
pub(crate) fn numbers(count: usize) -> Vec<u64> {
    let mut random = Random::new(3);
    (0..count).map(|_| random.next()).collect()
}

/// How keys follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spread {
    /// Every key equally likely.
    Uniform,
    /// The n-th most frequent key comes with a frequency of about 1/n.
    Zipf,
}

/// Which key each check asks for.
pub(crate) fn order(keys: usize, length: usize, spread: Spread, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let index = |n: u64| u32::try_from(n).expect("fewer than 2^32 keys");
    match spread {
        Spread::Uniform => (0..length).map(|_| index(random.below(keys as u64))).collect(),
        Spread::Zipf => {
            let cumulative = cumulative_harmonic(keys);
            let total = cumulative[keys - 1];
            let mut draw = || {
                let at = random.below(total);
                let rank = cumulative.partition_point(|&sum| sum <= at);
                // Neighbouring ranks must not be neighbours in memory.
                index((rank as u64).wrapping_mul(0x9e37_79b9) % keys as u64)
            };
            (0..length).map(|_| draw()).collect()
        }
    }
}

/// Sums of 1/1, 1/2, 1/3, … in units of 2^-32.
fn cumulative_harmonic(count: usize) -> Vec<u64> {
    let mut sum = 0;
    let more = |n: usize| {
        sum += (1_u64 << 32) / (n as u64 + 1);
        sum
    };
    (0..count).map(more).collect()
}
