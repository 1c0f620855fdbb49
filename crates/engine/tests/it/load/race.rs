//! Many threads at once: every answer is counted once, and room is not overrun.

use std::sync::atomic::{AtomicU64, Ordering};

use admittance::load::{Class, Root};

use super::*;

fn long(count: u64) -> u64 {
    if std::env::var("ADMITTANCE_LONG").is_ok_and(|text| text == "1") { count * 10 } else { count }
}

/// What counts answers, so that one that loses some goes through the same lines.
trait Counting: Sync {
    fn ask(&self, class: Class, key: u64) -> bool;
    fn allowed_and_rejected(&self) -> (u64, u64);
}

impl Counting for Shedder {
    fn ask(&self, class: Class, key: u64) -> bool {
        match key % 4 {
            0 => self.reject_as(class),
            _ => self.reject_key_as(class, key),
        }
    }

    fn allowed_and_rejected(&self) -> (u64, u64) {
        let status = self.status();
        assert_eq!(status.rejected, status.rejected_by_class.iter().sum::<u64>());
        (status.allowed, status.rejected)
    }
}

/// Raises a stripe without a locked instruction, though threads share it.
struct Sharing<'a>(&'a Shedder, [AtomicU64; 2]);

impl Counting for Sharing<'_> {
    fn ask(&self, class: Class, key: u64) -> bool {
        let is_rejected = self.0.ask(class, key);
        let cell = &self.1[usize::from(is_rejected)];
        let seen = cell.load(Ordering::Relaxed);
        // Another thread's turn, as it may be between any two instructions.
        std::thread::yield_now();
        cell.store(seen + 1, Ordering::Relaxed);
        is_rejected
    }

    fn allowed_and_rejected(&self) -> (u64, u64) {
        (self.1[0].load(Ordering::Relaxed), self.1[1].load(Ordering::Relaxed))
    }
}

/// Whether what so many threads were told at once is what was counted, round after round; threads
/// end between rounds and give back what they had.
fn counts_all(counting: &impl Counting, threads: u64, asks: u64) -> bool {
    let (allowed, rejected) = (AtomicU64::new(0), AtomicU64::new(0));
    let before = counting.allowed_and_rejected();
    for round in 0..4 {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (allowed, rejected) = (&allowed, &rejected);
                scope.spawn(move || {
                    for ask in 0..asks {
                        let class = Class::ALL[usize::try_from(ask % 4).unwrap()];
                        let key = (round * threads + thread) * asks + ask;
                        let told = if counting.ask(class, key) { rejected } else { allowed };
                        told.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
    }
    let told = (allowed.into_inner(), rejected.into_inner());
    assert!(told.0 > 0 && told.1 > 0, "both are asked about");
    let after = counting.allowed_and_rejected();
    (after.0 - before.0, after.1 - before.1) == told
}

#[test]
fn every_answer_is_counted_once_by_few_threads_and_by_more_than_have_a_stripe() {
    for threads in [1, 2, 8, 31, 32, 33, 80] {
        let (shedder, _clock, _executor, _driver) = behind(6);
        assert!(counts_all(&shedder, threads, long(2_000)), "{threads} threads");
    }
    let (shedder, _clock, _executor, _driver) = behind(6);
    let sharing = Sharing(&shedder, [const { AtomicU64::new(0) }; 2]);
    assert!(!counts_all(&sharing, 8, 2_000), "a stripe that is shared must lock");
}

#[test]
fn answers_are_counted_while_a_thread_ends() {
    /// Asks when the thread's own variables are dropped.
    struct Last(Shedder, u64);

    impl Drop for Last {
        fn drop(&mut self) {
            for _ in 0..self.1 {
                let _ = self.0.reject();
            }
        }
    }

    thread_local! {
        static FIRST: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
        static SECOND: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }

    let shedder = shedder(&start());
    for is_known in [false, true] {
        let threads: Vec<_> = (0..40)
            .map(|_| {
                let shedder = shedder.clone();
                std::thread::spawn(move || {
                    FIRST.set(Some(Last(shedder.clone(), 100)));
                    if is_known {
                        let _ = shedder.reject();
                    }
                    // Dropped on the other side of whatever the count keeps.
                    SECOND.set(Some(Last(shedder, 100)));
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    assert_eq!(shedder.status().allowed, 2 * 40 * 200 + 40);
}

#[test]
fn what_one_thread_counted_the_next_owner_of_its_stripe_goes_on_from() {
    let shedder = shedder(&start());
    for round in 1..=200u64 {
        let asking = shedder.clone();
        std::thread::spawn(move || (0..10u64).for_each(|key| _ = asking.reject_key(key)))
            .join()
            .unwrap();
        assert_eq!(shedder.status().allowed, 10 * round);
    }
}

/// What has room, so that one that looks first and takes later goes through the same lines.
trait Roomy: Sync {
    fn admit(&self) -> Option<Root>;
}

impl Roomy for Shedder {
    fn admit(&self) -> Option<Root> {
        Shedder::admit(self, Class::Default, 1u64).ok()
    }
}

struct LooksFirst(Shedder);

impl Roomy for LooksFirst {
    fn admit(&self) -> Option<Root> {
        let status = self.0.status();
        if status.waiting >= status.room? {
            return None;
        }
        std::thread::yield_now();
        // Critical work is given room whatever waits.
        self.0.admit(Class::Critical, 1u64).ok()
    }
}

/// The most that were ever let wait at once by threads that ask together.
fn most_waiting(roomy: &impl Roomy, shedder: &Shedder, rounds: u64) -> u64 {
    let mut most = 0;
    for _ in 0..rounds {
        let barrier = std::sync::Barrier::new(8);
        let kept: Vec<Root> = std::thread::scope(|scope| {
            let ask = || {
                barrier.wait();
                (0..20).filter_map(|_| roomy.admit()).collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(kept.len() as u64, shedder.status().waiting);
        most = most.max(kept.len() as u64);
        drop(kept);
        assert_eq!(shedder.status().waiting, 0);
    }
    most
}

#[test]
fn threads_that_ask_at_once_do_not_overrun_the_room() {
    let (shedder, clock, _driver) = work::with_room();
    let room = shedder.status().room.unwrap();
    assert_eq!(most_waiting(&shedder, &shedder, long(50)), room);
    let looks_first = LooksFirst(shedder.clone());
    let most = (0..100).map(|_| most_waiting(&looks_first, &shedder, 50)).find(|most| *most > room);
    assert!(most.is_some(), "whoever looks first and takes later overruns {room}");
    drop(clock);
}
