//! What belongs to one process: a child made by `fork` gets another.

use std::sync::Arc;

use arc_swap::ArcSwapOption;

/// A value of this process. In a child it is made anew, and the parent's is left alone: its
/// threads, sockets and locks are not the child's.
pub(crate) struct PerProcess<T> {
    cell: ArcSwapOption<Owned<T>>,
}

struct Owned<T> {
    pid: u32,
    value: T,
}

impl<T: Clone> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { cell: ArcSwapOption::const_empty() }
    }

    /// That of this process, made if there is none yet. Of several made at once, one stays.
    pub(crate) fn get<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let pid = std::process::id();
        let before = self.cell.load_full();
        if let Some(owned) = before.as_ref().filter(|owned| owned.pid == pid) {
            return Ok(owned.value.clone());
        }
        let made = Arc::new(Owned { pid, value: make()? });
        let found = self.cell.compare_and_swap(&before, Some(Arc::clone(&made)));
        if let Some(first) = found.as_ref().filter(|owned| owned.pid == pid) {
            return Ok(first.value.clone());
        }
        // To drop what was the parent's could wait for threads that are not here.
        std::mem::forget(before);
        Ok(made.value.clone())
    }

    /// Lets go of it.
    pub(crate) fn forget(&self) {
        leave(self.cell.swap(None));
    }

    /// Lets go of it if it is that one; one that has come since stays.
    pub(crate) fn forget_if(&self, is_it: impl FnOnce(&T) -> bool) {
        let before = self.cell.load_full();
        let pid = std::process::id();
        if before.as_ref().is_some_and(|owned| owned.pid == pid && is_it(&owned.value)) {
            self.cell.compare_and_swap(&before, None);
        }
    }

    /// That of this process, if there is one.
    pub(crate) fn known(&self) -> Option<T> {
        let owned = self.cell.load();
        owned.as_ref().filter(|owned| owned.pid == std::process::id()).map(|it| it.value.clone())
    }
}

/// Dropped in a child, what is the parent's is left alone too.
impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        leave(self.cell.swap(None));
    }
}

/// Drops what is this process's own.
fn leave<T>(owned: Option<Arc<Owned<T>>>) {
    if let Some(owned) = owned.filter(|owned| owned.pid != std::process::id()) {
        std::mem::forget(owned);
    }
}
