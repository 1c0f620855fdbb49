//! A forked child holds what its parent borrowed, in memory, and must not spend it.
#![cfg(all(feature = "tokio", unix))]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use admittance::two_tier::{Batch, Leasing, TwoTier};
use admittance::{
    Builtin, Cost, FailMode, GuardSettings, Guarded, Memory, PreciseClock, SharedLimiter, Span,
    Window,
};

#[test]
fn a_forked_child_spends_nothing_that_its_parent_borrowed() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let node = runtime.block_on(async {
        let store =
            Arc::new(Guarded::start(Memory::new(PreciseClock::new()), GuardSettings::default()));
        let window: Builtin = Window::fixed(100, Span::from_secs(86_400)).unwrap().into();
        let shared = SharedLimiter::new("api", window, store, FailMode::Closed).unwrap();
        let leasing = Leasing { batch: Batch::Fixed(100), ..Leasing::default() };
        let node = TwoTier::leased(shared, leasing).unwrap();
        assert!(node.check(b"ann", Cost::ONE).await.unwrap().decision.is_admit());
        node
    });
    assert!(node.spend(b"ann", Cost::ONE).is_some());
    // SAFETY: the child reads memory, does not allocate, and ends without unwinding or cleaning up.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let spent = node.spend(b"ann", Cost::ONE).is_some();
        // SAFETY: it ends this process, which is the child.
        unsafe { libc::_exit(i32::from(spent)) };
    }
    assert!(child > 0, "there is room for a process");
    let mut status = 0;
    // SAFETY: it waits for the child that was just made, and writes its status.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, libc::WIFEXITED(status)), (child, true));
    assert_eq!(libc::WEXITSTATUS(status), 0, "the child spent its parent's credits");
    assert!(node.spend(b"ann", Cost::ONE).is_some(), "the parent goes on");
}

#[test]
fn a_forked_child_does_not_take_its_parents_leases_for_its_own() {
    use admittance::budget::{Budget, Budgets, MemoryAccounts, Meter, Payer, Reserving};
    use admittance::{Cadence, ManualClock};

    let budget = Budget::new(100, Cadence::every(Span::from_secs(60))).unwrap();
    let payer = Payer::new(&Budgets::new("p", [budget]).unwrap(), "k");
    let meter = Meter::new(MemoryAccounts::new(ManualClock::default()));
    let lease = || {
        let reserving = std::pin::pin!(meter.reserve(payer.clone(), 1));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match reserving.poll(&mut context) {
            std::task::Poll::Ready(Ok(Reserving::Held(held))) => held.lease().0,
            other => panic!("{other:?}"),
        }
    };
    // The keys of this thread are drawn, and its count has begun.
    let before = lease();
    let mut ends = [0; 2];
    // SAFETY: it writes two descriptors to where there is room for two.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child touches no lock that another thread could hold, other than the allocator's,
    // which the C library readies for forks; it ends without unwinding or cleaning up.
    let child = unsafe { libc::fork() };
    let next = lease().to_ne_bytes();
    if child == 0 {
        // SAFETY: it writes the sixteen bytes that are there, and ends this process, the child.
        unsafe {
            libc::write(ends[1], next.as_ptr().cast(), next.len());
            libc::_exit(0);
        }
    }
    assert!(child > 0, "there is room for a process");
    // SAFETY: the descriptor is this process's own. Were it open, a child that fails would be
    // waited for here for ever.
    unsafe { libc::close(ends[1]) };
    let mut theirs = [0_u8; 16];
    // SAFETY: it reads sixteen bytes to where there is room for them.
    let read = unsafe { libc::read(ends[0], theirs.as_mut_ptr().cast(), theirs.len()) };
    let mut status = 0;
    // SAFETY: it waits for the child that was just made, and writes its status.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((read, waited), (16, child));
    assert_ne!(theirs, next, "the child's next lease is its parent's");
    assert_ne!(u128::from_ne_bytes(theirs), before);
}
