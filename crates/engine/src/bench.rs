//! The least that any keyed check must do: hash the key, read the clock, load one line and swap
//! sixteen bytes of it. No probing, no growth, no collisions told apart. It limits nothing useful;
//! it is what the table's speed is measured against.

use admittance_core::{Cost, Tat, TatWord};

use crate::key::Secret;
use crate::slots::{Cell, Memory, Native, Slot};
use crate::{Clock, Key, SystemClock};

/// A direct-mapped array of lines.
#[expect(missing_debug_implementations, reason = "nothing to show")]
pub struct Floor {
    groups: <Native as Memory>::Groups,
    word: TatWord,
    clock: SystemClock,
    secret: Secret,
}

impl Floor {
    /// An array of 2^bits lines.
    #[must_use]
    pub fn new(tat: Tat, bits: u32) -> Self {
        let word = TatWord::new(&tat).expect("the benchmark's rate has a word");
        let (clock, secret) = (SystemClock::new(), Secret::of_process());
        Self { groups: Native::groups(1 << bits), word, clock, secret }
    }

    /// Charges whatever key lies on this key's line.
    #[inline]
    pub fn check(&self, key: impl Key) -> bool {
        let key = self.secret.hash(&key).get();
        let now = self.clock.now();
        #[expect(clippy::cast_possible_truncation, reason = "masked by the array's length")]
        let cell = &self.groups[key as usize & (self.groups.len() - 1)].0[0];
        loop {
            let slot = cell.load();
            let (word, decision) = self.word.step(slot.word, now, Cost::ONE);
            if !decision.is_admit() || cell.swap(slot, Slot { key, word }) {
                return decision.is_admit();
            }
        }
    }
}
