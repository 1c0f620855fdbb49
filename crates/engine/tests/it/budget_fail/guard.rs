//! What reaches the store, and how often.

use std::time::Duration;

use tokio::time::Instant;

use super::*;

async fn book_at(guard: &Guarded<Arc<Moody>>, act: Act) -> Result<Booked, StoreError> {
    let budget = budget(100);
    let charges = [Charge { policy: "p", budget: &budget, key: b"k", units: 1 }];
    guard.book(Entry { charges: &charges, act }).await
}

#[tokio::test(start_paused = true)]
async fn what_was_not_answered_in_time_is_not_sent_again() {
    let world = World::new();
    let guard = world.guard(10);
    world.store.hangs();
    let waited = DEADLINE;
    for (act, sent) in [DEBIT, reserve(1), Act::Settle(LeaseKey(1)), Act::Look].iter().zip(1..) {
        let began = Instant::now();
        let error = book_at(&guard, *act).await.unwrap_err();
        assert_eq!(error, StoreError::Timeout { waited });
        assert_eq!(began.elapsed(), Duration::from(waited));
        assert_eq!(world.booked(), sent);
    }
    let counters = guard.counters();
    assert_eq!((counters.asked, counters.failed, counters.timed_out), (4, 4, 4));
}

#[tokio::test(start_paused = true)]
async fn what_was_not_taken_is_sent_once_more_and_only_that() {
    let world = World::new();
    let guard = world.guard(10);
    world.store.fails(StoreError::Unavailable);
    assert_eq!(book_at(&guard, DEBIT).await.unwrap_err(), StoreError::Unavailable);
    assert_eq!(world.booked(), 2);
    for (error, sent) in [StoreError::Lost, StoreError::Unreadable].into_iter().zip(3..) {
        world.store.fails(error.clone());
        assert_eq!(book_at(&guard, DEBIT).await.unwrap_err(), error);
        assert_eq!(world.booked(), sent);
    }
}

#[tokio::test(start_paused = true)]
async fn while_the_breaker_is_open_nothing_reaches_the_store_and_nothing_waits() {
    let (world, budget) = (World::new(), budget(100));
    let node = SharedAccounts::new(world.guard(3), FailMode::Closed).unwrap();
    world.store.hangs();
    for _ in 0..3 {
        let _ = book(&node, &budget, 1, DEBIT).await.unwrap();
    }
    let (began, sent) = (Instant::now(), world.booked());
    for _ in 0..100 {
        let _ = book(&node, &budget, 1, DEBIT).await.unwrap();
        let _ = book(&node, &budget, 1, Act::Settle(LeaseKey(1))).await.unwrap_err();
    }
    assert_eq!((began.elapsed(), world.booked()), (Duration::ZERO, sent));
    let counters = node.store().counters();
    assert_eq!((counters.opened, counters.turned_away), (1, 200));
    assert_eq!(node.answered_by_fail_mode(), 103);
    // Probes alone find out that it is back.
    recover(&world, node.store()).await;
    assert_eq!(world.booked(), sent);
    assert!(book(&node, &budget, 1, DEBIT).await.is_ok());
    assert_eq!(world.booked(), sent + 1);
}

#[tokio::test(start_paused = true)]
async fn debits_that_are_given_up_late_do_not_hide_an_outage() {
    let world = World::new();
    let guard = world.guard(2);
    world.store.hangs();
    let patience = Duration::from_millis(15);
    assert!(tokio::time::timeout(patience, book_at(&guard, DEBIT)).await.is_err());
    assert_eq!(guard.counters().failed, 0, "a caller that leaves is no failure of the store");
    // The guard asks for itself, twice in vain.
    tokio::time::sleep(Duration::from_millis(41)).await;
    assert_eq!(guard.counters().state, BreakerState::Open);
}
