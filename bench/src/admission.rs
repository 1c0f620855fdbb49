//! Admission: what one decision over four axes costs beside its parts and beside what people chain
//! by hand, and what one fused step of a store saves over two.

mod inproc;
mod stores;

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    rounds: usize,
    admissions: usize,
    /// Of what travels.
    travels: usize,
    /// Asks of a store in one round, with one in flight and with many.
    asks: [usize; 2],
}

pub(crate) const FULL: Effort =
    Effort { rounds: 101, admissions: 10_000, travels: 9, asks: [1_000, 10_000] };
pub(crate) const QUICK: Effort =
    Effort { rounds: 21, admissions: 10_000, travels: 3, asks: [200, 2_000] };

/// Measures and prints the part that is named; everything if none is.
pub(crate) fn run(effort: Effort, only: &str) {
    if only.is_empty() || only == "inproc" {
        inproc::run(effort);
    }
    if only.is_empty() || only == "stores" {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().expect("it starts");
        runtime.block_on(stores::run(effort));
    }
}
