//! Calls to a supplier who wants them evenly spaced: wait for a turn instead of being denied.
//!
//! `cargo run -p admittance --example shaper`

use std::error::Error;
use std::sync::Arc;

use admittance::{Cost, Retry, ShapedLimiter, Shaper, Span};

fn main() -> Result<(), Box<dyn Error>> {
    // Fifty a second, and at most four wait.
    let queue = Arc::new(ShapedLimiter::new(Shaper::new(50, Span::from_secs(1), 4)?));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let call = |number: u64| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move { (number, queue.schedule(Cost::ONE).await) })
        };
        let calls: Vec<_> = (0..6).map(call).collect();
        let mut started = 0;
        for call in calls {
            match call.await? {
                (number, Ok(waited)) => {
                    println!("call {number} starts after {} ms", waited.ms_ceil());
                    assert!(waited <= Span::from_ms(20 * number), "one turn every 20 ms");
                    started += 1;
                }
                (number, Err(Retry::After(wait))) => {
                    println!("call {number} finds the queue full; try in {} ms", wait.ms_ceil());
                    assert!(wait <= Span::from_ms(20));
                }
                (_, Err(Retry::Never)) => unreachable!("one unit fits an empty queue"),
            }
        }
        assert_eq!(started, 5, "one starts at once and four wait");
        Ok(())
    })
}
