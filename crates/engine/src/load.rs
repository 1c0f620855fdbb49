//! Load: shed evenly before the process drowns, and recover.
//!
//! A [`Shedder`] says of each piece of work whether it may start; a [`Prober`] finds out from a
//! thread of its own how long tasks wait in an executor, and how long admitted work did, and moves
//! the level. The arithmetic is [`admittance_core::load`]'s.
//!
//! ```text
//!   request ──► Shedder ──► Root ──► executor ──► work
//!                  ▲          └ delays ┐  ▲
//!                  │                   ▼  │ probes
//!               cut-off ◄───────── Prober ┘
//! ```
//!
//! # Guarantee
//! - An answer reads two words, hashes the key and counts; it does not wait, lock or allocate.
//! - Every answer is counted once.
//! - At most so much waits as may be made to wait, critical work excepted; probes under way are
//!   bounded.
//! - A shedder that is not started, or whose prober has stopped, admits everything.
//! - One key that is more than about a twentieth of the traffic makes shedding by key coarse: it is
//!   all there or all gone.
//!
//! # Proven by
//! `tests/it/load.rs`; in a closed loop on a real runtime by `tests/it/load_runtime.rs`.
//!
//! # Example
//! ```
//! use admittance::load::{Class, LoadRules, Shedder, TokioExecutor};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let shedder = Shedder::new(LoadRules::default())?;
//! let prober = shedder.start(TokioExecutor::current())?;
//! match shedder.admit(Class::Default, "user-42") {
//!     Ok(root) => tokio::spawn(root.measure(async { /* the work */ })).await?,
//!     Err(shed) => println!("{shed}"),
//! }
//! prober.stop();
//! # Ok(())
//! # }
//! ```

mod counts;
mod driver;
mod key;
#[cfg(feature = "tower")]
mod layer;
mod pool;
mod probe;
mod prober;
mod root;
#[cfg(feature = "tokio")]
mod runtime;
mod shedder;
mod status;

pub use admittance_core::load::{
    Class, DelayRules, Hashed, JitterRules, Law, Level, Moment, Seed, Tasks,
};
pub use driver::{Driver, Executor};
pub use key::LoadKey;
#[cfg(feature = "tower")]
pub use layer::{Busy, LoadFuture, LoadLayer, LoadService, RefuseShed, Sort, Sorted};
pub use pool::on_pool;
pub use probe::{Probe, UNFINISHED_MAX};
pub use prober::{Prober, StartError};
pub use root::{Measured, Root};
#[cfg(feature = "tokio")]
pub use runtime::TokioExecutor;
pub use shedder::{Arrival, LoadRules, Shed, Shedder};
pub use status::{Metric, MetricKind, Status};
