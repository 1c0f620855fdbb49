//! Every key of a table, for a table whose place another takes.

use super::memory::{Cell, Count, Memory};
use super::table::Table;
use crate::key::Fingerprint;

impl<M: Memory> Table<M> {
    /// The keys there are, idle ones too. A key that comes or moves meanwhile may be missing.
    pub(crate) fn fingerprints(&self) -> Vec<Fingerprint> {
        let cells = (0..self.size.load()).flat_map(|index| &self.group(index).0);
        let keys = cells.map(Cell::load).filter(|slot| !slot.is_empty());
        keys.map(|slot| Fingerprint::new(slot.key)).collect()
    }
}
