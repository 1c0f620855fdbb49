//! The part of something shared that a node goes on with while its store is away.
//!
//! # Guarantee
//! - A part is made once for each outage, of what the node is left at that time, and is dropped at
//!   the first answer of the store after it.
//! - It counts as spent since the outage was noticed, or since others left it to this node if that
//!   is later. If another part is granted meanwhile, or the same is taken back and left again, it
//!   is made anew and counts as spent from now: what others admitted of it is not known here.
//! - One who was slower does not bring back the part of an older outage.
//!
//! # Proven by
//! `tests/it/parts.rs`, `tests/it/budget_fail/parts.rs`, `tests/it/alone.rs`, `tests/it/escrow.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use admittance_core::{Decimal, Invalid, Micros, Span};

use super::guarded::{Guarded, Outage};
use super::parts::{Parts, share_of};
use super::shared::{FailMode, part};
use crate::Clock;

/// What a node goes on with during an outage: `T` is what counts in it.
pub(crate) struct OutageShare<T> {
    source: ShareSource,
    held: RwLock<Option<Held<T>>>,
    /// Whether there is something to drop, for those who only want to know that.
    is_held: AtomicBool,
}

/// Where a node's share comes from.
enum ShareSource {
    /// It has none: the mode alone answers.
    None,
    /// The operator wrote it down.
    Fixed(Decimal),
    /// The store's coordinator grants it, if there is one.
    Granted { parts: Option<Arc<Parts>>, reserve: bool },
}

struct Held<T> {
    outage: u64,
    share: Decimal,
    /// Since when others leave it to this node, if somebody grants it.
    left: Option<Micros>,
    value: T,
}

impl<T: Clone> OutageShare<T> {
    /// The share of a node with this fail mode.
    ///
    /// # Errors
    /// A share of zero or above one.
    pub(crate) fn new(fail: FailMode) -> Result<Self, Invalid> {
        let source = match fail {
            FailMode::Open | FailMode::Closed => ShareSource::None,
            FailMode::Local { share } => ShareSource::Fixed(part(share)?),
            FailMode::Granted { reserve } => ShareSource::Granted { parts: None, reserve },
        };
        Ok(Self { source, held: RwLock::new(None), is_held: AtomicBool::new(false) })
    }

    /// Where a granted share comes from; other modes have no use for it.
    pub(crate) fn granted_by(mut self, from: Arc<Parts>) -> Self {
        if let ShareSource::Granted { parts, .. } = &mut self.source {
            *parts = Some(from);
        }
        self
    }

    /// The thousandths of the whole that may be asked of the store now: less than all while others
    /// are cut off and are left their parts; `None` if it is all.
    pub(crate) fn together(&self) -> Option<u32> {
        self.parts().and_then(|parts| parts.together())
    }

    /// The share and what counts in it, made by `make` of a share and of the instant since which it
    /// is spent. `None` without an outage, without a share, or if `make` makes nothing.
    pub(crate) fn during(
        &self,
        outage: Option<Outage>,
        clock: &dyn Clock,
        make: impl FnOnce(Decimal, Micros) -> Option<T>,
    ) -> Option<(Decimal, T)> {
        let outage = outage?;
        let share = match &self.source {
            ShareSource::None => return None,
            ShareSource::Fixed(share) => *share,
            ShareSource::Granted { parts, .. } => share_of(parts.as_ref()?.alone()?)?,
        };
        // Others may have left this node's part to it only after the outage began.
        let left = self.parts().map(|parts| clock.precise() - parts.alone_for());
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.as_ref().filter(|held| self.is_this(held, outage, share, left)) {
            return Some((share, held.value.clone()));
        }
        drop(held);
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let known = held.as_ref().filter(|held| held.outage >= outage.number);
        if let Some(known) = known.filter(|held| self.is_this(held, outage, share, left)) {
            return Some((share, known.value.clone()));
        }
        let since = match (known, left) {
            (Some(_), _) => clock.precise(),
            (None, Some(left)) => left.max(outage.since),
            (None, None) => outage.since,
        };
        let number = known.map_or(outage.number, |known| known.outage);
        let value = make(share, since)?;
        *held = Some(Held { outage: number, share, left, value: value.clone() });
        self.is_held.store(true, Ordering::Release);
        Some((share, value))
    }

    /// Whether what is held is what goes on now.
    fn is_this(
        &self,
        held: &Held<T>,
        outage: Outage,
        share: Decimal,
        left: Option<Micros>,
    ) -> bool {
        let leaves = matches!(self.source, ShareSource::Granted { reserve: true, .. });
        // They took it back meanwhile; that they leave it again takes longer than this.
        let is_left_anew = leaves && left > held.left.map(|left| left + LEFT_ANEW);
        held.outage >= outage.number && held.share == share && !is_left_anew
    }

    /// Drops what was counted here: the store has answered, and knows nothing of it.
    pub(crate) fn recovered<S>(&self, store: &Guarded<S>) {
        if !self.is_held() {
            return;
        }
        let Some(over) = store.outages_over() else { return };
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        // A new outage may have begun since: its part must not be forgotten and made again.
        if held.as_ref().is_some_and(|held| held.outage <= over) {
            *held = None;
            self.is_held.store(false, Ordering::Release);
        }
    }

    /// Whether something is counted here.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held.load(Ordering::Acquire)
    }

    fn parts(&self) -> Option<&Arc<Parts>> {
        match &self.source {
            ShareSource::Granted { parts, .. } => parts.as_ref(),
            ShareSource::None | ShareSource::Fixed(_) => None,
        }
    }
}

/// Less than it takes until a part that was taken back is left to its node again.
const LEFT_ANEW: Span = Span::from_secs(5);
