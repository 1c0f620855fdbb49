//! What each mode answers, and what the answers say.

use admittance::budget::{Flow, MemoryAccounts, Meter, Payer, Reserving, Settlement};
use admittance::{Outcome, Retry, Source};

use super::*;

fn probed_soon(answered: &Answered) -> bool {
    let Outcome::Deny(Retry::After(wait)) = answered.decision.outcome else { return false };
    // A probe may just be due.
    (1..=BreakerRules::default().probe_every.us()).contains(&wait.us())
}

#[tokio::test(start_paused = true)]
async fn open_lets_pass_and_closed_refuses_and_both_say_so() {
    for fail in [FailMode::Open, FailMode::Closed, FailMode::Granted { reserve: false }] {
        let (world, budget) = (World::new(), budget(100));
        let node = world.node(fail);
        let booked = book(&node, &budget, 30, DEBIT).await.unwrap();
        assert_eq!((booked.source, only(&booked).decision.remaining), (Source::Store, 70));
        world.store.fails(StoreError::Unavailable);
        for (nth, act) in [DEBIT, reserve(1), Act::Debit(Some(LeaseKey(1)))].iter().enumerate() {
            let booked = book(&node, &budget, 30, *act).await.unwrap();
            let answered = only(&booked);
            assert_eq!(booked.source, Source::FailMode);
            assert_eq!(node.answered_by_fail_mode(), nth as u64 + 1);
            if fail == FailMode::Open {
                assert_eq!((answered.flow, answered.decision.remaining), (Flow::GoOn, 100));
            } else {
                assert_eq!((answered.flow, answered.decision.remaining), (Flow::Stop, 0));
                assert!(probed_soon(&answered), "{answered:?}");
            }
        }
        for act in [Act::Look, Act::Settle(LeaseKey(1)), Act::Abandon(LeaseKey(1))] {
            let error = book(&node, &budget, 30, act).await.unwrap_err();
            assert_eq!(error, StoreError::Unavailable, "{act:?} has no mode");
        }
        assert_eq!(node.answered_by_fail_mode(), 3);
        recover(&world, node.store()).await;
        let booked = book(&node, &budget, 0, Act::Look).await.unwrap();
        assert_eq!((booked.source, only(&booked).decision.remaining), (Source::Store, 70));
    }
}

#[tokio::test(start_paused = true)]
async fn reserving_more_than_a_whole_budget_is_never_in_every_mode() {
    for fail in [FailMode::Open, FailMode::Closed, local("0.5")] {
        let (world, budget) = (World::new(), budget(100));
        let node = world.node(fail);
        world.store.fails(StoreError::Unavailable);
        // The first is before the breaker is open, the second after.
        for _ in 0..2 {
            let booked = book(&node, &budget, 101, reserve(1)).await.unwrap();
            let outcome = booked.booked.together.decision.outcome;
            assert_eq!(outcome, Outcome::Deny(Retry::Never), "{fail:?}");
        }
        // Of a debit no store can say that.
        let debited = only(&book(&node, &budget, 101, DEBIT).await.unwrap());
        assert_ne!(debited.decision.outcome, Outcome::Deny(Retry::Never), "{fail:?}");
        assert_eq!(debited.decision.is_admit(), fail == FailMode::Open);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_only_more_than_the_part_is_not_never() {
    let (world, budget) = (World::new(), budget(100));
    let node = world.node(local("0.5"));
    world.store.fails(StoreError::Unavailable);
    let _ = book(&node, &budget, 1, DEBIT).await.unwrap();
    world.clock.advance(WINDOW);
    let booked = book(&node, &budget, 51, reserve(1)).await.unwrap();
    assert!(probed_soon(&only(&booked)), "{booked:?}");
    assert_eq!(booked.booked.together.decision.outcome, only(&booked).decision.outcome);
    // A lease that was settled here has had its time, whoever is asked.
    assert!(only(&book(&node, &budget, 10, reserve(2)).await.unwrap()).decision.is_admit());
    let settled = only(&book(&node, &budget, 4, Act::Settle(LeaseKey(2))).await.unwrap());
    assert!(matches!(settled.settlement, Settlement::Now(_)));
    for act in [reserve(2), Act::Debit(Some(LeaseKey(2)))] {
        let again = only(&book(&node, &budget, 1, act).await.unwrap());
        assert_eq!(again.decision.outcome, Outcome::Deny(Retry::Never), "{act:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_begins_spent_and_is_itself_from_the_next_window_on() {
    let (world, budget) = (World::new(), budget(101));
    let node = world.node(local("0.5"));
    world.store.fails(StoreError::Unavailable);
    let mut admitted = [0; 3];
    for window in &mut admitted {
        for _ in 0..300 {
            let booked = book(&node, &budget, 1, DEBIT).await.unwrap();
            *window += u64::from(only(&booked).decision.is_admit());
        }
        world.clock.advance(WINDOW);
    }
    assert_eq!(admitted, [0, 50, 50], "rounded down");
    assert_eq!(node.answered_by_fail_mode(), 900);
}

#[tokio::test(start_paused = true)]
async fn what_was_reserved_alone_is_settled_alone_and_what_was_not_is_not() {
    let (world, budget) = (World::new(), budget(100));
    let node = world.node(local("0.5"));
    let _ = book(&node, &budget, 20, reserve(1)).await.unwrap();
    world.store.fails(StoreError::Unavailable);
    let _ = book(&node, &budget, 1, DEBIT).await.unwrap();
    world.clock.advance(WINDOW);
    assert!(only(&book(&node, &budget, 20, reserve(2)).await.unwrap()).decision.is_admit());
    let debited = only(&book(&node, &budget, 5, Act::Debit(Some(LeaseKey(2)))).await.unwrap());
    assert_eq!((debited.unspent, debited.standing.reserved), (15, 15));
    let settled = book(&node, &budget, 8, Act::Settle(LeaseKey(2))).await.unwrap();
    assert_eq!(settled.source, Source::FailMode);
    assert_eq!((only(&settled).standing.spent, only(&settled).standing.reserved), (8, 0));
    for act in [Act::Settle(LeaseKey(1)), Act::Abandon(LeaseKey(1)), Act::Settle(LeaseKey(9))] {
        assert_eq!(book(&node, &budget, 8, act).await.unwrap_err(), StoreError::Unavailable);
    }
    // The store settles what it reserved once it is back, and knows nothing of the other.
    recover(&world, node.store()).await;
    let settled = only(&book(&node, &budget, 8, Act::Settle(LeaseKey(1))).await.unwrap());
    assert!(matches!(settled.settlement, Settlement::Now(_)));
    let unknown = only(&book(&node, &budget, 8, Act::Settle(LeaseKey(2))).await.unwrap());
    assert_eq!(unknown.settlement, Settlement::Unknown);
}

#[tokio::test(start_paused = true)]
async fn recovery_drops_the_part_and_the_next_outage_makes_it_anew() {
    let (world, budget) = (World::new(), budget(100));
    let node = world.node(local("0.5"));
    world.store.fails(StoreError::Unavailable);
    let _ = book(&node, &budget, 1, DEBIT).await.unwrap();
    world.clock.advance(WINDOW);
    assert!(only(&book(&node, &budget, 10, reserve(1)).await.unwrap()).decision.is_admit());
    recover(&world, node.store()).await;
    // Nobody has asked yet: it is dropped with the first answer.
    let first = book(&node, &budget, 1, DEBIT).await.unwrap();
    assert_eq!((first.source, only(&first).standing.spent), (Source::Store, 1));
    world.store.fails(StoreError::Unavailable);
    let _ = book(&node, &budget, 1, DEBIT).await.unwrap();
    let error = book(&node, &budget, 1, Act::Settle(LeaseKey(1))).await.unwrap_err();
    assert_eq!(error, StoreError::Unavailable, "the part that knew it is gone");
    let spent = only(&book(&node, &budget, 1, DEBIT).await.unwrap());
    assert!(!spent.decision.is_admit(), "and the new one begins spent");
}

#[tokio::test(start_paused = true)]
async fn a_wrong_ask_is_told_whatever_the_mode() {
    for fail in [FailMode::Open, FailMode::Closed, local("0.5")] {
        let (world, budget) = (World::new(), budget(100));
        let node = world.node(fail);
        for is_lost in [false, true] {
            if is_lost {
                world.store.fails(StoreError::Unavailable);
            }
            let error = book(&node, &budget, Budget::UNITS_MAX + 1, DEBIT).await.unwrap_err();
            assert_eq!(error, StoreError::CostTooLarge);
            let none = Entry { charges: &[], act: DEBIT };
            assert!(matches!(node.book(none).await, Err(StoreError::TooMany { asked: 0, .. })));
            let charge = Charge { policy: "p", budget: &budget, key: b"k", units: 1 };
            let twice = Entry { charges: &[charge, charge], act: DEBIT };
            assert_eq!(node.book(twice).await.unwrap_err(), StoreError::TwoLimits);
        }
        assert_eq!((world.booked(), node.answered_by_fail_mode()), (0, 0));
    }
}

#[test]
fn a_share_of_nothing_or_of_more_than_all_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        for share in ["0", "1.001", "2"] {
            assert!(SharedAccounts::new(World::new().guard(1), local(share)).is_err(), "{share}");
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_meter_goes_on_through_an_outage() {
    use admittance::budget::Budgets;

    let (world, budget) = (World::new(), budget(100));
    let node = Arc::new(world.node(local("0.5")));
    let meter: Meter<Node> = Meter::new(Arc::clone(&node));
    let payer = Payer::new(&Budgets::new("p", [budget]).unwrap(), "k");
    world.store.fails(StoreError::Unavailable);
    let Reserving::Denied(_) = meter.reserve(payer.clone(), 10).await.unwrap() else {
        panic!("it is spent");
    };
    world.clock.advance(WINDOW);
    let Reserving::Held(mut work) = meter.reserve(payer.clone(), 10).await.unwrap() else {
        panic!("it fits");
    };
    assert_eq!(work.debit(10).await.unwrap().flow, Flow::GoOn);
    let settled = work.settle(10).await.unwrap();
    assert_eq!(settled.decision.remaining, 40);
    // Dropped, it is told in a task.
    let Reserving::Held(work) = meter.reserve(payer.clone(), 10).await.unwrap() else {
        panic!("it fits");
    };
    drop(work);
    tokio::task::yield_now().await;
    let looked = meter.debit(&payer, 0).await.unwrap();
    assert_eq!((looked.each[0].standing.spent, looked.each[0].standing.reserved), (10, 0));
}

/// Whether a node's settlement of what nobody here has reserved is an error during an outage.
async fn tells_that_nobody_booked(
    settle: impl AsyncFn(&Node, LeaseKey) -> Result<BookedBy, StoreError>,
) -> Result<(), String> {
    let (world, budget) = (World::new(), budget(100));
    let node = world.node(local("0.5"));
    let _ = book(&node, &budget, 20, reserve(1)).await.unwrap();
    world.store.fails(StoreError::Unavailable);
    for _ in 0..2 {
        if settle(&node, LeaseKey(1)).await.is_ok() {
            return Err("a success that nobody booked".into());
        }
    }
    let look = [Charge { policy: "p", budget: &budget, key: b"k", units: 0 }];
    let open = world.store.inner().book(Entry { charges: &look, act: Act::Look }).await.unwrap();
    assert_eq!(open.together.each[0].standing.open, 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_settlement_that_nobody_booked_is_no_success() {
    let budget = budget(100);
    let shipped = async |node: &Node, lease| book(node, &budget, 5, Act::Settle(lease)).await;
    tells_that_nobody_booked(shipped).await.unwrap();
    // One that takes the answer of accounts of its own for that of the store.
    let alone = MemoryAccounts::new(ManualClock::default());
    let pretends = async |node: &Node, lease| {
        let charges = [Charge { policy: "p", budget: &budget, key: b"k", units: 5 }];
        let entry = Entry { charges: &charges, act: Act::Settle(lease) };
        match node.book(entry).await {
            Err(_) => {
                let booked = alone.book_now(entry)?;
                Ok(BookedBy { booked, source: Source::FailMode })
            }
            booked => booked,
        }
    };
    tells_that_nobody_booked(pretends).await.unwrap_err();
}

/// What is reserved in the store itself.
async fn reserved(world: &World) -> u64 {
    let budget = budget(100);
    let charges = [Charge { policy: "p", budget: &budget, key: b"k", units: 0 }];
    let entry = Entry { charges: &charges, act: Act::Look };
    world.store.inner().book(entry).await.unwrap().together.each[0].standing.reserved
}

#[tokio::test(start_paused = true)]
async fn a_reservation_whose_answer_is_lost_does_not_stay_when_its_caller_was_denied_or_is_gone() {
    let world = World::new();
    for is_cancelled in [false, true] {
        let node = world.node(FailMode::Closed);
        let lease = 70 + u128::from(is_cancelled);
        world.store.behaves(|_| Behavior::serve_and_hang());
        if is_cancelled {
            let budget = budget(100);
            let booking = book(&node, &budget, 60, reserve(lease));
            let gone = tokio::time::timeout(std::time::Duration::from_millis(1), booking).await;
            assert!(gone.is_err(), "its caller has gone");
        } else {
            let denied = book(&node, &budget(100), 60, reserve(lease)).await.unwrap();
            assert!(!only(&denied).decision.is_admit());
        }
        assert_eq!(reserved(&world).await, 60, "the store took it");
        world.store.serves();
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(reserved(&world).await, 0, "and was told that nobody wants it");
    }
    // One that its caller has named stays: a second ask may have been admitted for it.
    let (node, budget_of) = (world.node(FailMode::Closed), budget(100));
    world.store.behaves(|_| Behavior::serve_and_hang());
    let charges = [Charge { policy: "p", budget: &budget_of, key: b"k", units: 30 }];
    let denied = node.book_named(Entry { charges: &charges, act: reserve(75) }).await.unwrap();
    assert!(!only(&denied).decision.is_admit());
    world.store.serves();
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    assert_eq!(reserved(&world).await, 30);
    let settle = Act::Settle(LeaseKey(75));
    let charges = [Charge { units: 0, ..charges[0] }];
    let _ = world.store.inner().book(Entry { charges: &charges, act: settle }).await.unwrap();
    // One that is admitted all the same has its lease.
    let node = world.node(FailMode::Open);
    world.store.behaves(|_| Behavior::serve_and_hang());
    let passed = book(&node, &budget(100), 60, reserve(80)).await.unwrap();
    assert!(only(&passed).decision.is_admit());
    world.store.serves();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(reserved(&world).await, 60);
}
