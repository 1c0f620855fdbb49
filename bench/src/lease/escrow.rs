//! A check of a fair escrow among few tenants and among many.

use std::hint::black_box;
use std::time::Instant;

use admittance::{Cost, EscrowRules, FairEscrow, ManualClock, Span};

use super::Effort;
use crate::report::{Spread, spread};

pub(super) fn run(effort: Effort) {
    println!("\nfair escrow, ns per check, tenants of one weight in turn");
    println!("  {:>8} {:>9}  {:>19}", "tenants", "ns/check", "quartiles");
    for tenants in [10, 100, 1_000, 10_000] {
        let nanos: Vec<f64> = (0..effort.rounds).map(|_| nanos(effort, tenants)).collect();
        let Spread { median, low, high } = spread(&nanos);
        let quartiles = format!("{low:.0} – {high:.0}");
        println!("  {tenants:>8} {median:>9.0}  {quartiles:>19}");
    }
}

/// A budget that is never spent, so that every check counts what it charges.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn nanos(effort: Effort, tenants: usize) -> f64 {
    let rules = EscrowRules::new(1 << 40, Span::from_secs(60));
    let escrow = FairEscrow::on_clock(&rules, ManualClock::default()).expect("exact");
    let names: Vec<String> = (0..tenants).map(|tenant| format!("tenant:{tenant:06}")).collect();
    for name in &names {
        let _ = escrow.check(name.as_bytes(), Cost::ONE);
    }
    let checks = effort.spends / 4;
    let started = Instant::now();
    for turn in 0..checks {
        // A stride without a pattern that the processor could learn.
        let name = &names[turn.wrapping_mul(7_919) % tenants];
        let _ = black_box(escrow.check(name.as_bytes(), Cost::ONE));
    }
    started.elapsed().as_secs_f64() * 1e9 / checks as f64
}
