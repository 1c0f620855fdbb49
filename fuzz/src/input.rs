//! Bytes as choices: what a target does is decided by what it is fed, and by nothing else.

/// Bytes that are read one choice at a time.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of these.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next byte; `None` at the end, which ends what is done with them.
    pub fn more(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next byte, or nought at the end.
    pub fn byte(&mut self) -> u8 {
        self.more().unwrap_or(0)
    }

    /// A number below `bound`, which is at least one.
    pub fn below(&mut self, bound: usize) -> usize {
        let high = if bound > 256 { usize::from(self.byte()) << 8 } else { 0 };
        (high + usize::from(self.byte())) % bound
    }

    /// Whether.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number from one to `max`, small ones and those at the ends as likely as any other.
    pub fn number(&mut self, max: u64) -> u64 {
        let (kind, low) = (self.byte(), u64::from(self.byte()));
        let drawn = match kind % 8 {
            0..=3 => low,
            4 => low << 8 | u64::from(self.byte()),
            5 => (low + 1) << (self.byte() % 56),
            6 => max.saturating_sub(low),
            _ => max / (low + 1),
        };
        drawn.clamp(1, max)
    }

    /// What has not been read.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.0
    }
}
