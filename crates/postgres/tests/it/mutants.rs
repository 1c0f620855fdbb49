//! Functions that are nearly right, each of which a contract must notice. What is edited is the
//! text of the migrations, installed under a name of its own.

use crate::common;

use std::sync::Arc;

use crate::common::{Path, Postgres};
use admittance::{
    Action, Builtin, Combine, Cost, Gcra, Group, Limit, Many, Micros, Op, SlidingLog, Span, Store,
    Tat, Window,
};
use admittance_postgres::PostgresStore;
use admittance_testkit::{
    Contract, equals_core, groups_equal_core, keeps_what_was_spent_when_a_limit_changes,
    leases_equal_core, many_keys_at_one_instant, resets_forget_what_was_lent,
};
use tokio::task::JoinSet;

/// A step of the migrations, what it says, what it says instead, and who must notice.
type Mutant = (&'static str, &'static str, &'static str, Contract);

const BY_CONTRACT: &[Mutant] = &[
    // An exact fit is denied.
    ("units", "next_part <= reach_part", "next_part < reach_part", Contract::EqualsCore),
    // The wait is rounded down.
    (
        "units",
        "wait := next - reach + (next_part > reach_part)::int",
        "wait := next - reach",
        Contract::EqualsCore,
    ),
    // Wide products overflow into the quick path.
    (
        "units",
        "IF room <= 4611686018427387903 / parts THEN",
        "IF room <= 922337203685477 THEN",
        Contract::EqualsCore,
    ),
    // A clock that steps back opens an earlier window.
    ("steps", "IF known[1] >= index THEN", "IF known[1] = index THEN", Contract::EqualsCore),
    // March is taken for February.
    ("steps", "(153 * month + 2) / 5", "(153 * month + 1) / 5", Contract::EqualsCore),
    // What the oldest bucket still counts is rounded down.
    (
        "steps",
        "RETURN (units * part + whole - 1) / whole",
        "RETURN units * part / whole",
        Contract::EqualsCore,
    ),
    // The ring is not emptied where it turned.
    ("steps", "ring[1 + (newest + age) % size] := 0;", "NULL;", Contract::EqualsCore),
    // An entry counts a tick longer than the window.
    (
        "ops",
        "e.at > judged - spec[3] AND e.total <=",
        "e.at >= judged - spec[3] AND e.total <=",
        Contract::EqualsCore,
    ),
    // Entries that are live are pruned.
    ("ops", "e.at <= step[7] - spec[3]", "e.at <= step[7]", Contract::EqualsCore),
    // The short way charges what it admits only from now on.
    (
        "states",
        "+ greatest(t.state[1] * parts + t.state[2], c.now_us * parts) AS next",
        "+ c.now_us * parts AS next",
        Contract::EqualsCore,
    ),
    // The short way admits what the next one would have to wait for.
    ("states", "+ charge - tolerance <= parts *", "- tolerance <= parts *", Contract::EqualsCore),
    // A key that occurs twice in a batch is decided as it was before the batch.
    ("ops", "IF ask.again THEN", "IF false THEN", Contract::ManyAtOnce),
    // What was asked of several limits is charged although one denied.
    (
        "several",
        "charged := 0;\n            END IF;",
        "NULL;\n            END IF;",
        Contract::Groups,
    ),
    // Any charges every limit that admits.
    ("several", "charged := i;", "NULL;", Contract::Groups),
    // A lease of gcra is given back in full.
    (
        "units",
        "- div(greatest(now_us - granted_at, 0)::numeric * parts + unit - 1, unit)",
        "- 0",
        Contract::Leases,
    ),
    // What came back meanwhile is rounded down.
    ("units", "::numeric * parts + unit - 1, unit)", "::numeric * parts, unit)", Contract::Leases),
    // A lease is given back to another window than paid.
    ("units", "index = known[1] AND ends = paid_until", "index = known[1]", Contract::Leases),
    // What helps nobody is granted.
    ("lend", "IF step[3] < enough THEN", "IF false THEN", Contract::Leases),
    // There is no time to use what is granted.
    ("lend", "step[4] - now_us < 4 * trip", "false", Contract::Leases),
    // What is granted is not charged.
    (
        "leases",
        "SET state = step[7:], idle_at = step[6] WHERE",
        "SET idle_at = step[6] WHERE",
        Contract::Leases,
    ),
    // Nobody notes that a lease was given back.
    (
        "states",
        "INSERT INTO {state}_returned VALUES (wanted, whose, which, now_us + 180000000)\n    \
         ON CONFLICT DO NOTHING;",
        "PERFORM 1;",
        Contract::Leases,
    ),
    // A state that another rate wrote keeps its instant.
    (
        "units",
        "IF known[5] <> spec[4]\n                OR",
        "IF false AND known[5] <> spec[4]\n                AND",
        Contract::KeepsSpent,
    ),
    // What a changed rate finds lent is rounded down.
    (
        "units",
        "numeric := div(lead + unit - 1, unit);",
        "numeric := div(lead, unit);",
        Contract::KeepsSpent,
    ),
    // The wait for what another rate lent is rounded down.
    (
        "units",
        "RETURN ARRAY[1, div(beyond + known[3] - 1, known[3])",
        "RETURN ARRAY[1, div(beyond, known[3])",
        Contract::KeepsSpent,
    ),
    // The short way takes another rate's state for its own.
    ("states", "AND t.state[5] = spec[4] AND t.state[6] = spec[5]", "", Contract::KeepsSpent),
    // A reset leaves no instant, or one that nothing is older than.
    ("states", "AND r.until - 180000000 >= granted_at)", "AND false)", Contract::Resets),
    ("states", "IF get_byte(wanted, 0) & 15 <= 2 THEN", "IF false THEN", Contract::Resets),
    // A lease is given back too late.
    (
        "states",
        "IF NOT FOUND OR now_us - granted_at > 120000000 THEN",
        "IF NOT FOUND THEN",
        Contract::Leases,
    ),
];

#[test]
fn every_edited_step_is_noticed_by_its_contract() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    for (place, (step, from, to, contract)) in BY_CONTRACT.iter().enumerate() {
        let table = format!("mutant_{place}");
        let harness = async {
            let harness = Postgres::new(&server.url(), &runtime, Path::OneLogged, 100).await;
            harness.edited(&table, step, from, to).await
        };
        let harness = runtime.block_on(harness);
        let seen = admittance_testkit::block_on(async {
            match contract {
                Contract::KeepsSpent => keeps_what_was_spent_when_a_limit_changes(&harness).await,
                Contract::ManyAtOnce => many_keys_at_one_instant(&harness).await,
                Contract::Groups => groups_equal_core(&harness).await,
                Contract::Leases => leases_equal_core(&harness).await,
                Contract::Resets => resets_forget_what_was_lent(&harness).await,
                _ => equals_core(&harness).await,
            }
        });
        let violation = seen.expect_err(&format!("nobody noticed {to:?} for {from:?}"));
        assert_eq!(violation.contract, *contract);
    }
}

async fn edited(url: &str, edits: &[(&str, &str, &str)]) -> Arc<PostgresStore> {
    let edit = |name: &str, sql: &str| {
        let mut sql = sql.to_owned();
        for (_, from, to) in edits.iter().filter(|(step, ..)| *step == name) {
            assert!(sql.contains(from), "{name} does not say {from:?}");
            sql = sql.replace(from, to);
        }
        sql
    };
    let table = "edited".parse().unwrap();
    admittance_postgres::migrate_edited(url, &table, edit).await.unwrap();
    let builder = PostgresStore::builder(url).table("edited").migrates(false).reap_every(None);
    Arc::new(common::connect(builder.batch_max(1)).await)
}

fn window(limit: u64) -> Builtin {
    Window::fixed(limit, Span::from_secs(86_400 * 365)).unwrap().into()
}

/// As `races.rs` counts them.
#[test]
fn a_row_that_is_not_locked_admits_too_many() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        // Reads, lets others go ahead, and writes by the key.
        let store = edited(
            &database.url(),
            &[
                ("ops", "WHERE t.key = wanted FOR NO KEY UPDATE;", "WHERE t.key = wanted;"),
                ("ops", "WHERE t.ctid = place;", "WHERE t.key = wanted;"),
                (
                    "ops",
                    "ELSIF is_there THEN\n            UPDATE {state} t SET\n",
                    "ELSIF is_there THEN\n            PERFORM pg_sleep(0.02);\n            \
                 UPDATE {state} t SET\n",
                ),
            ],
        )
        .await;
        let mut callers = JoinSet::new();
        for _ in 0..200 {
            let store = Arc::clone(&store);
            callers.spawn(async move {
                common::check(&*store, "race", &window(50), b"key").await.unwrap().is_admit()
            });
        }
        let admitted = callers.join_all().await.into_iter().filter(|admitted| *admitted).count();
        assert!(admitted > 50, "{admitted}");
    });
}

/// As `storage.rs` reaps them.
#[test]
fn a_reaper_that_does_not_look_at_the_clock_deletes_what_is_live() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = edited(
            &database.url(),
            &[
                ("reap", "            AND t.idle_at <= idle_since\n", ""),
                ("reap", " AND t.idle_at <= idle_since", ""),
            ],
        )
        .await;
        let _ = common::check(&*store, "api", &window(50), b"key").await.unwrap();
        assert_eq!(store.reap().await.unwrap().keys, 1);
    });
}

/// As `storage.rs` counts them.
#[test]
fn an_index_on_what_checks_change_ends_heap_only_updates() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = edited(
            &database.url(),
            &[("state", "CREATE SEQUENCE", "CREATE INDEX ON {state} (idle_at); CREATE SEQUENCE")],
        )
        .await;
        let strategy = Tat::gcra(Gcra { limit: 7, period: Span::from_secs(60), burst: 99 });
        let strategy = strategy.unwrap().into();
        for _ in 0..50 {
            let _ = common::check(&*store, "api", &strategy, b"ann").await.unwrap();
        }
        drop(store);
        let read = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables \
                    WHERE relname = 'edited_logged'";
        let seen = async || database.sql(read).unwrap() == "50|0";
        common::until("no update is heap-only any more", seen).await;
    });
}

/// As `races.rs` runs them: without one order, two batches wait for each other.
#[test]
fn batches_that_lock_in_the_order_given_deadlock() {
    let (server, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let store = edited(
            &server.url(),
            &[(
                "ops",
                "SELECT DISTINCT w.key, 0::bigint FROM unnest(wanted) AS w (key) ORDER BY w.key",
                "SELECT w.key, 0::bigint + coalesce(length(pg_sleep(0.05)::text), 0) \
                 FROM unnest(wanted) AS w (key)",
            )],
        )
        .await;
        let mut callers = JoinSet::new();
        for order in [[&b"a"[..], &b"b"[..]], [&b"b"[..], &b"a"[..]]] {
            let store = Arc::clone(&store);
            callers.spawn(async move {
                let strategy = window(50);
                let many = Many { policy: "p", strategy: &strategy, keys: &order, cost: Cost::ONE };
                store.check_many(many).await.is_ok()
            });
        }
        callers.join_all().await;
        let count = "SELECT sum(deadlocks) > 0 FROM pg_stat_database";
        let waited = server.log().contains("lock timeout") || server.log().contains("deadlock");
        assert!(waited || server.sql(count).unwrap() == "t", "{}", server.log());
    });
}

/// The unedited functions pass what the edited ones do not, so the tests above test the edits.
#[test]
fn unedited_functions_are_installed_the_same_way_and_right() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = edited(&database.url(), &[]).await;
        let log: Builtin = SlidingLog::new(2, Span::from_secs(60)).unwrap().into();
        store.set_now(Micros::from_epoch_ms(1_700_000_000_000));
        let limits =
            [b"a", b"b"].map(|key| Limit { policy: "p", strategy: &log, key, cost: Cost::ONE });
        for expected in [true, true, false] {
            let group = Group { combine: Combine::All, limits: &limits };
            let several = store.several(group).await.unwrap().several;
            assert_eq!(several.decision.is_admit(), expected);
        }
        let op = Op { policy: "p", strategy: &log, key: b"a", action: Action::Peek };
        assert_eq!(store.apply(op).await.unwrap().decision().unwrap().remaining, 0);
    });
}
