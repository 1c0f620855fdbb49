//! What a lease is counted by: the machine's time since boot, and whether this is still the process
//! that borrowed.
//!
//! # Why the standard library's clock will not do
//! `Instant` stands still while a Linux machine sleeps. Credits would outlive the sleep, and with
//! it the window that paid for them. `CLOCK_BOOTTIME` counts on.
//!
//! # Why the process id is not asked
//! It is a system call, which costs more than the whole of a local spend. A handler that the
//! system calls in a forked child raises a number that a spend reads instead.
//!
//! # Safety argument
//! `clock_gettime` writes one `timespec`, which is ours. `pthread_atfork` is given a function
//! that lives as long as the program and does one atomic addition, which is allowed between `fork`
//! and whatever the child does next.
//!
//! # Proven by
//! `tests/fork.rs`, which forks; the tests below.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use admittance_core::Micros;

/// How often this process is a child of the one that started, by `fork`.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A number that is another one in a forked child.
#[inline]
pub(super) fn generation() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Has forks counted from now on.
pub(super) fn count_forks() {
    static COUNTED: Once = Once::new();
    COUNTED.call_once(|| {
        // SAFETY: see the safety argument. If the system has no memory for the handler a forked
        // child is not noticed, which is no worse than not asking.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
}

/// Time since the machine was booted, sleep included where the system counts it.
#[inline]
pub(super) fn since_boot() -> Micros {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: libc::clockid_t = libc::CLOCK_BOOTTIME;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: libc::clockid_t = libc::CLOCK_MONOTONIC;
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: see the safety argument.
    let _ = unsafe { libc::clock_gettime(CLOCK, &raw mut now) };
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Micros::saturating_from_epoch_us(seconds.saturating_mul(1_000_000) + nanos / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_since_boot_goes_on() {
        let before = since_boot();
        assert!(before.epoch_us() > 0);
        assert!(before <= since_boot());
    }
}
