//! One limit for two nodes, decided locally: each borrows a batch from the shared store and spends
//! it without asking again. Here the store is in memory; in a fleet it is Redis or Postgres.
//!
//! `cargo run -p admittance --example leased`

use std::error::Error;
use std::sync::Arc;

use admittance::two_tier::{Batch, Leasing, TwoTier};
use admittance::{
    Builtin, Cost, FailMode, GuardSettings, Guarded, Memory, PreciseClock, SharedLimiter, Source,
    Span, Window,
};

type Store = Arc<Memory<PreciseClock>>;

/// A node of the fleet. Must be made within a runtime, where its tasks run.
fn node(store: &Store) -> Result<TwoTier<Store>, Box<dyn Error>> {
    let guard = Arc::new(Guarded::start(Arc::clone(store), GuardSettings::default()));
    let limit: Builtin = Window::fixed(1_000, Span::from_secs(86_400))?.into();
    let shared = SharedLimiter::new("api", limit, guard, FailMode::Closed)?;
    let leasing = Leasing { batch: Batch::Fixed(100), ..Leasing::default() };
    Ok(TwoTier::leased(shared, leasing)?)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let store = Arc::new(Memory::new(PreciseClock::new()));
    let nodes = [node(&store)?, node(&store)?];
    let (mut admitted, mut asked) = (0, 0);
    for turn in 0..1_100 {
        let decided = nodes[turn % 2].check(b"tenant-7", Cost::ONE).await?;
        admitted += u64::from(decided.decision.is_admit());
        asked += u64::from(decided.source == Source::Store);
    }
    println!("{admitted} of 1,100 admitted at a limit of 1,000; {asked} requests asked the store");
    assert_eq!(admitted, 1_000);
    for node in &nodes {
        node.close().await; // Gives back what is left, for the others.
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(run())
}
