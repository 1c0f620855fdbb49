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
