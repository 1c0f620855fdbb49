//! Limits and budgets in one script on real servers: equal to the pure step in both modes, no trace
//! of a denial, racing callers; with scripts that are nearly right and must be noticed.

use std::time::Duration;

use crate::support::{OnServer, fresh, hourly, peek, runtime, shared};
use admittance::budget::{Accounts, Act, Budget, Charge, Entry};
use admittance::{Atomicity, Cadence, Cost, FuseAsk, Fuses, Limit, StoreError};
use admittance_redis::{PolicyOptions, script_texts};
use admittance_testkit::{
    Departure, fused_asks_are_atomic, fused_denials_leave_no_trace, fused_equal_core,
    joint_admits_less,
};

async fn hold(harness: &OnServer) -> Result<(), Departure> {
    fused_asks_are_atomic(harness).await?;
    fused_denials_leave_no_trace(harness).await?;
    fused_equal_core(harness).await?;
    joint_admits_less(harness).await
}

#[test]
fn redis_decides_limits_and_budgets_together_as_core_does() {
    let harness = OnServer::new(&shared::redis());
    runtime().block_on(hold(&harness)).unwrap();
}

#[test]
fn valkey_decides_limits_and_budgets_together_as_core_does() {
    let harness = OnServer::new(&shared::valkey());
    runtime().block_on(hold(&harness)).unwrap();
}

#[test]
fn a_cluster_decides_limits_and_budgets_together_as_core_does() {
    let harness = OnServer::new(&shared::cluster());
    runtime().block_on(hold(&harness)).unwrap();
}

/// What a script has in it, and what it is to have instead.
const NEARLY: &[(&str, &str)] = &[
    // The modes: never one of them, or the other way round.
    ("is_charged = is_spent or is_per_axis\n", "is_charged = true\n"),
    ("is_charged = is_spent or is_per_axis\n", "is_charged = is_spent\n"),
    ("ARGV[#ARGV - 1] == '1'", "ARGV[#ARGV - 1] ~= '1'"),
    // Budgets that are asked although a limit denies, or not at all, or of which one is enough.
    (
        "if is_admitted and count > 0 then",
        "if not is_admitted and count > 0 then book({ KEYS[1], KEYS[2], KEYS[3] }) end \
         if is_admitted and count > 0 then",
    ),
    ("if is_admitted and count > 0 then", "if is_admitted and count > 1 then"),
    ("is_spent = is_spent and booked[i] == ADMIT", "is_spent = booked[i] == ADMIT"),
    // Limits that are charged although another denies, or show the charge.
    (
        "  if is_charged then\n    l.of.write(l.p, l.key",
        "  if is_charged or l.wait == ADMIT then\n    l.of.write(l.p, l.key",
    ),
    (
        "    l.wait, l.left, l.reset = l.of.peek(l.p, l.first, l.second)\n  end\n  local n",
        "  end\n  local n",
    ),
];

#[test]
fn a_script_that_is_nearly_right_is_caught() {
    let mut harness = OnServer::new(&shared::redis());
    for &edit in NEARLY {
        let edited = script_texts().iter().filter(|(_, text, _)| text.contains(edit.0)).count();
        assert_eq!(edited, 1, "{:?} is in that script and in no other", edit.0);
        harness.edits = vec![edit];
        let departure = harness.run(fused_equal_core(&harness)).expect_err(edit.1);
        assert!(!departure.given.contains("Refused"), "it does not run: {departure}");
    }
}

#[test]
fn what_lies_in_several_slots_is_refused_unless_a_tag_holds_it_together() {
    let url = shared::cluster();
    runtime().block_on(async {
        let apart = fresh(&url).build().unwrap();
        let tag = PolicyOptions { hash_tag: Some("one".into()), ..PolicyOptions::default() };
        let tagged = fresh(&url).policy("api", tag.clone());
        let tagged = tagged.policy("tokens", tag).build().unwrap();
        let strategy = hourly(3);
        let limits = [Limit { policy: "api", strategy: &strategy, key: b"ann", cost: Cost::ONE }];
        let budget = Budget::new(5, Cadence::Day { offset_minutes: 0 }).unwrap();
        let charges = [Charge { policy: "tokens", budget: &budget, key: b"team", units: 2 }];
        let entry = Entry { charges: &charges, act: Act::Debit(None) };
        let ask = FuseAsk { limits: &limits, entry, atomicity: Atomicity::All };
        assert_eq!(apart.fuse(ask).await.unwrap_err(), StoreError::AcrossSlots);
        assert_eq!(peek(&apart, &strategy, b"ann").await.unwrap().remaining, 3);
        assert!(tagged.fuse(ask).await.unwrap().fused.is_admit());
        assert_eq!(peek(&tagged, &strategy, b"ann").await.unwrap().remaining, 2);
    });
}

#[test]
fn what_cannot_be_read_is_an_error_and_nobody_is_charged() {
    let url = shared::redis();
    runtime().block_on(async {
        let store = fresh(&url).build().unwrap();
        let strategy = hourly(3);
        let limits = [Limit { policy: "api", strategy: &strategy, key: b"ann", cost: Cost::ONE }];
        let budget = Budget::new(5, Cadence::Day { offset_minutes: 0 }).unwrap();
        let charges = [Charge { policy: "tokens", budget: &budget, key: b"ann", units: 2 }];
        let entry = Entry { charges: &charges, act: Act::Debit(None) };
        let client = redis::Client::open(url.as_str()).unwrap();
        let mut line = client.get_multiplexed_async_connection().await.unwrap();
        let set = async |line: &mut _, key: &[u8]| {
            let mut command = redis::cmd("SET");
            command.arg(key).arg("odd").query_async::<()>(line).await.unwrap();
        };
        let [account, ..] = store.stored_account("tokens", &budget, b"ann");
        let limit = store.stored_name("api", &strategy, b"ann");
        for atomicity in [Atomicity::All, Atomicity::PerAxis] {
            let ask = FuseAsk { limits: &limits, entry, atomicity };
            set(&mut line, &account).await;
            assert_eq!(store.fuse(ask).await.unwrap_err(), StoreError::Unreadable);
            assert_eq!(peek(&store, &strategy, b"ann").await.unwrap().remaining, 3);
            redis::cmd("DEL").arg(&account).query_async::<()>(&mut line).await.unwrap();
            set(&mut line, &limit).await;
            assert_eq!(store.fuse(ask).await.unwrap_err(), StoreError::Unreadable);
            redis::cmd("DEL").arg(&limit).query_async::<()>(&mut line).await.unwrap();
            let looked = store.book(Entry { act: Act::Look, ..entry }).await.unwrap();
            assert_eq!(looked.together.each[0].standing.spent, 0);
        }
    });
}

#[test]
fn what_no_replica_confirms_says_so_and_a_denial_does_not_wait() {
    runtime().block_on(async {
        let options = PolicyOptions { wait_replicas: 1, ..PolicyOptions::default() };
        let builder = fresh(&shared::redis()).policy("api", options);
        let store = builder.replica_patience(Duration::from_millis(1)).build().unwrap();
        let strategy = hourly(4);
        let limits = [Limit { policy: "api", strategy: &strategy, key: b"ann", cost: Cost::ONE }];
        let budget = Budget::new(1, Cadence::Month { offset_minutes: 0 }).unwrap();
        let charges = [Charge { policy: "tokens", budget: &budget, key: b"ann", units: 1 }];
        let ask = async |charges: &[Charge<'_>], atomicity| {
            let entry = Entry { charges, act: Act::Debit(None) };
            let fused = store.fuse(FuseAsk { limits: &limits, entry, atomicity }).await;
            fused.map(|applied| applied.fused.is_admit())
        };
        let unconfirmed = Err(StoreError::NotReplicated { confirmed: 0 });
        assert_eq!(ask(&charges, Atomicity::All).await, unconfirmed, "both");
        assert_eq!(ask(&charges, Atomicity::All).await, Ok(false), "neither");
        assert_eq!(ask(&charges, Atomicity::PerAxis).await, unconfirmed, "the limit");
        assert_eq!(ask(&[], Atomicity::All).await, unconfirmed, "the limit alone");
        assert_eq!(ask(&[], Atomicity::All).await, unconfirmed, "and the last of it");
        assert_eq!(ask(&charges, Atomicity::PerAxis).await, Ok(false), "neither");
    });
}
