//! Concurrency: how many may be in flight at once, in one process and across a fleet.
//!
//! A gate counts permits in one [`Word`]; beside the count stand the two ceilings it is held to,
//! the limit that this process inferred ([`learn::Limit`](crate::learn)) and the share that a
//! coordinator granted. A [`Partition`] divides both among classes. N processes that each infer a
//! limit for one backend would admit N times its capacity, so each reports to a coordinator, which
//! splits one limit among them.
//!
//! Two machines, and nothing else: [`Members`] is a pure step over what is remembered of a fleet,
//! which any store runs; [`Member`] is a node's side of it. They exchange [`Report`], [`Grant`] and
//! [`Leave`]. Neither reads a clock or sends a message.
//!
//! # Guarantee
//! With handoff and fencing, and work that ends within [`max_hold`](FleetRules::max_hold): what is
//! in flight on all nodes together is at most the largest limit of the last time to live plus
//! `max_hold`, at every instant, whatever happens to messages, nodes and the store; at most the
//! limit if it was constant for that long. It assumes that a node's clock is at most
//! [`DRIFT_MAX_PPM`](crate::lease::DRIFT_MAX_PPM) slower than the store's, and that the store's
//! does not jump ahead. Without handoff there is a bounded excess that drains by itself.
//!
//! # Proven by
//! `models/` explores these very machines with every message lost, late, twice or out of order.

mod coordinator;
mod member;
mod node;
mod partition;
mod word;

pub use coordinator::{
    Aggregate, FleetRules, Grant, Leave, Members, NODES_MAX, Record, Report, Split, Unheard,
};
pub use member::{Applied, Beat, Member, MemberRules, Outage, Standing};
pub use node::{InvalidNode, NODE_ID_MAX, Node};
pub use partition::{CLASSES_MAX, Partition, Parts};
pub use word::{PERMITS_MAX, Word};
