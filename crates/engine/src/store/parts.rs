//! Which part of a shared limit is this node's, if it must go on alone.
//!
//! The nodes on one store report to its coordinator, which splits a thousand parts among them as it
//! splits places. A node that loses the store goes on with the part that it was granted last.
//!
//! # Guarantee
//! - The parts that nodes hold sum to at most the whole, if the store is lost to all of them within
//!   [`KEPT`] of each other: for so long nobody else is given the part of one that is not heard. A
//!   node that was never granted a part has none.
//! - With `reserve`, nodes that still reach the store leave to those that do not what those may
//!   spend: **the sum stays within the limit while only some are cut off**. For that, a node goes
//!   on alone only when it has not been heard for twice the time to live, so that everyone else
//!   knows; and for no longer than the coordinator keeps its part, after which it admits nothing.
//!   A node that reaches the store but not its coordinator asks for its own part only.
//! - A store that is new, or lost what it knew, grants no parts for [`KEPT`].
//!
//! # Proven by
//! `tests/it/parts.rs`, with a manual clock and three nodes of which one is cut off.

use std::sync::Arc;

use admittance_core::concurrency::{FleetRules, Grant, MemberRules, Node, Outage};
use admittance_core::{Builtin, Decimal, Invalid, Micros, Span};

use crate::gate::{FleetGate, FleetSettings, Gate, LimitRules};
use crate::two_tier::{BootClock, LeaseClock};
use crate::{Coordinator, StoreError};

/// This node's part of every limit on a store.
#[derive(Debug)]
pub struct Parts {
    fleet: FleetGate,
    clock: Clock,
    reserve: bool,
}

#[derive(Clone)]
struct Clock(Arc<dyn LeaseClock>);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl LeaseClock for Clock {
    fn now(&self) -> Micros {
        self.0.now()
    }

    fn wall(&self) -> Micros {
        self.0.wall()
    }
}

impl Parts {
    /// Reports to the coordinator from now on. Nodes with `reserve` and without are two fleets.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Never for a node that could be named.
    pub fn start(
        coordinator: impl Coordinator + 'static,
        node: Node,
        reserve: bool,
    ) -> Result<Self, Invalid> {
        Self::on_clock(coordinator, node, reserve, Arc::new(BootClock))
    }

    /// The same on another clock, for tests.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn on_clock(
        coordinator: impl Coordinator + 'static,
        node: Node,
        reserve: bool,
        clock: Arc<dyn LeaseClock>,
    ) -> Result<Self, Invalid> {
        let clock = Clock(clock);
        let of_gate = clock.clone();
        let gate = Gate::builder(LimitRules::fixed(WHOLE)).lease_clock(move || of_gate.now());
        let settings = FleetSettings {
            fleet: if reserve { "~reserved".into() } else { "~nodes".into() },
            node,
            rules: FleetRules { ttl: TTL, max_hold: hold(reserve), ..FleetRules::default() },
            // It is for when the coordinator is away: the part must outlive the grant.
            member: MemberRules { outage: Outage::FailClosed, fence: false, eager: false },
            heartbeat: Span::from_secs(1),
            deadline: Span::from_ms(500),
        };
        let fleet = FleetGate::start(gate.build()?, coordinator, settings, clock.clone());
        Ok(Self { fleet, clock, reserve })
    }

    /// How many thousandths of a limit to go on alone with now; `None` if that is nothing.
    #[must_use]
    pub fn alone(&self) -> Option<u32> {
        let (grant, applied_at) = self.granted()?;
        let since = self.clock.now().since(applied_at);
        if self.reserve && (since < known_to_all() || since >= hold(true)) {
            return None;
        }
        (grant.share > 0).then_some(grant.share)
    }

    /// For how long that has been so; at least a lower bound of it.
    pub(crate) fn alone_for(&self) -> Span {
        let since = self.granted().map(|(_, applied_at)| self.clock.now().since(applied_at));
        let start = if self.reserve { known_to_all() } else { Span::ZERO };
        Span::from_us(since.unwrap_or_default().us().saturating_sub(start.us()))
    }

    /// How many thousandths of the limit may be asked of the store now; `None` if all of it.
    #[must_use]
    pub fn together(&self) -> Option<u32> {
        if !self.reserve {
            return None;
        }
        let Some((grant, applied_at)) = self.granted() else { return Some(0) };
        Some(if self.clock.now().since(applied_at) >= TTL {
            // Who else is cut off is not known any more.
            grant.share
        } else {
            match grant.withheld {
                0 => return None,
                withheld => WHOLE.saturating_sub(withheld),
            }
        })
    }

    /// Stops reporting; to be followed by [`close`](Self::close).
    pub fn begin_close(&self) {
        self.fleet.begin_close();
    }

    /// Gives this node's part back.
    ///
    /// # Errors
    /// The coordinator did not take it; it is then kept until it ends by itself.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.fleet.close().await
    }

    fn granted(&self) -> Option<(Grant, Micros)> {
        let state = self.fleet.state();
        Some((state.grant?, state.applied_at))
    }
}

/// A share of a limit; `None` if that is nothing. If the rate cannot be kept exact with so fine a
/// share of thousandths, a coarser one that is smaller.
pub(super) fn part_of(strategy: &Builtin, share: Decimal) -> Option<Builtin> {
    let coarser = |grain: u32| {
        let thousandths = u32::try_from(share.times(WHOLE.into())?).ok()?;
        share_of(thousandths / grain * grain)
    };
    [Some(share), coarser(10), coarser(100)]
        .into_iter()
        .find_map(|share| strategy.scaled(share?).ok())?
}

/// So many thousandths as a share.
pub(crate) fn share_of(thousandths: u32) -> Option<Decimal> {
    match thousandths.min(WHOLE) {
        WHOLE => Decimal::whole(1),
        part => format!("0.{part:03}").parse().ok(),
    }
}

const fn hold(reserve: bool) -> Span {
    if reserve { ALONE_MAX } else { KEPT }
}

/// When this has passed since a node was last heard, every other one has been told, or has ended.
/// Theirs may be slower clocks than this one.
fn known_to_all() -> Span {
    let twice = 2 * TTL.us();
    Span::from_us(twice + twice.div_ceil(500))
}

/// The limit is split into so many parts.
const WHOLE: u32 = 1_000;

/// A node counts as heard for so long.
const TTL: Span = Span::from_secs(5);

/// How long the part of a node that is not heard is kept for it.
pub const KEPT: Span = Span::from_secs(30);

/// How long a node goes on alone at most, if others leave its part to it meanwhile.
pub const ALONE_MAX: Span = Span::from_secs(300);
