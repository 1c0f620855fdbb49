//! Accounts in the database: streams of several instances, what a crash keeps, what is deleted and
//! what is touched.

use crate::common::{self, Database};

use std::sync::Arc;

use admittance::budget::{
    Account, Accounts, Act, Answered, Booked, Budget, Charge, Debt, Entry, LeaseKey, Reserve,
    Settlement,
};
use admittance::{Cadence, Micros, Span, StoreError};
use admittance_postgres::{PostgresStore, TableName, migrate_edited};
use admittance_testkit::servers::{PostgresServer, Proxy};
use tokio::task::JoinSet;

const YEAR: Span = Span::from_secs(86_400 * 365);
const TTL: Span = Span::from_secs(300);

fn yearly(limit: u64) -> Budget {
    Budget::new(limit, Cadence::every(YEAR)).unwrap()
}

async fn one(
    store: &impl Accounts,
    (policy, key): (&str, &[u8]),
    budget: &Budget,
    units: u64,
    act: Act,
) -> Result<Answered, StoreError> {
    let charges = [Charge { policy, budget, key, units }];
    store.book(Entry { charges: &charges, act }).await.map(|booked| booked.together.each[0])
}

/// The same, asked again while the store says that it is away, which is safe.
async fn when_there(
    store: &impl Accounts,
    account: (&str, &[u8]),
    budget: &Budget,
    act: Act,
) -> Answered {
    for _ in 0..6_000 {
        match one(store, account, budget, 1, act).await {
            Ok(answered) => return answered,
            Err(StoreError::Unavailable) => {}
            Err(other) => panic!("{other}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("the server does not come back");
}

/// Two instances of a service, each with connections of its own.
async fn instances(url: &str, table: &str) -> [Arc<PostgresStore>; 2] {
    let mut both = Vec::new();
    for _ in 0..2 {
        let builder = PostgresStore::builder(url).table(table).connections(8);
        let builder = builder.batch_max(1).reap_every(None).unlogged("quick");
        let builder = builder.migrates(table == "admittance");
        both.push(Arc::new(common::connect(builder).await));
    }
    both.try_into().unwrap()
}

async fn edited(url: &str, table: &str, edits: &[(&str, &str)]) {
    let name: TableName = table.parse().unwrap();
    let edit = |step: &str, sql: &str| {
        if !["budgets", "accounts", "unsettled"].contains(&step) {
            return sql.to_owned();
        }
        edits.iter().fold(sql.to_owned(), |sql, (from, to)| sql.replace(from, to))
    };
    for (from, _) in edits {
        let both = [
            include_str!("../../migrations/0010_budgets.sql"),
            include_str!("../../migrations/0011_accounts.sql"),
            include_str!("../../migrations/0015_unsettled.sql"),
        ];
        assert!(both.iter().any(|sql| sql.contains(from)), "no step says {from:?}");
    }
    migrate_edited(url, &name, edit).await.unwrap();
}

/// What 64 streams on two instances served, token by token, each until it is told to stop.
async fn served(stores: &[Arc<PostgresStore>; 2], policy: &'static str, reserve: u64) -> u64 {
    let mut streams = JoinSet::new();
    for stream in 0..64_u64 {
        let store = Arc::clone(&stores[usize::from(stream % 2 == 0)]);
        streams.spawn(async move {
            let (budget, account) = (yearly(500), (policy, &b"team"[..]));
            let lease = LeaseKey(u128::from(stream) + 1);
            if reserve > 0 {
                let act = Act::Reserve { lease, ttl: TTL };
                let _ = one(&store, account, &budget, reserve, act).await.unwrap();
            }
            let own = (reserve > 0).then_some(lease);
            let mut served = 0;
            while one(&store, account, &budget, 1, Act::Debit(own))
                .await
                .unwrap()
                .decision
                .is_admit()
            {
                served += 1;
            }
            let settled = one(&store, account, &budget, served, Act::Settle(lease)).await.unwrap();
            assert_eq!(settled.standing.debt, 0);
            served
        });
    }
    streams.join_all().await.into_iter().sum()
}

#[test]
fn sixty_four_streams_on_two_instances_serve_the_limit_to_the_token() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let stores = instances(&database.url(), "admittance").await;
        for (policy, reserve) in [("metered", 0), ("reserved", 5), ("quick", 3), ("much", 100)] {
            assert_eq!(served(&stores, policy, reserve).await, 500, "{policy}");
            let look = one(&*stores[0], (policy, b"team"), &yearly(500), 0, Act::Look).await;
            let standing = look.unwrap().standing;
            let seen = (standing.spent, standing.reserved, standing.debt, standing.open);
            assert_eq!(seen, (500, 0, 0, 0), "{policy}");
        }
    });
}

#[test]
fn streams_on_an_account_that_is_not_locked_serve_too_much_and_are_caught() {
    let (database, runtime) = (common::database(), common::runtime());
    let edits = [
        ("WHERE t.key = wanted FOR NO KEY UPDATE;", "WHERE t.key = wanted;"),
        (
            "        UPDATE {state}_accounts t SET in_window",
            "        IF a.spent < 10 THEN PERFORM pg_sleep(0.1); END IF;\n        \
             UPDATE {state}_accounts t SET in_window",
        ),
    ];
    runtime.block_on(async {
        edited(&database.url(), "unlocked", &edits).await;
        let stores = instances(&database.url(), "unlocked").await;
        assert!(served(&stores, "metered", 0).await > 500);
    });
}

/// Entries over several accounts in every order. Gives how many failed.
async fn in_every_order(stores: &[Arc<PostgresStore>; 2], count: u64, rounds: u64) -> usize {
    let mut callers = JoinSet::new();
    for caller in 0..count {
        let store = Arc::clone(&stores[usize::from(caller % 2 == 0)]);
        callers.spawn(async move {
            let mut rng = fastrand::Rng::with_seed(caller);
            let budget = yearly(1_000_000);
            let mut failed = 0;
            for _ in 0..rounds {
                let all = [("kept", b"a"), ("quick", b"a"), ("kept", b"b"), ("quick", b"b")];
                let charge = |(policy, key): (&'static str, &'static [u8; 1])| Charge {
                    policy,
                    budget: &budget,
                    key,
                    units: 1,
                };
                let mut charges = all.map(charge);
                rng.shuffle(&mut charges);
                let entry = Entry { charges: &charges, act: Act::Debit(None) };
                failed += usize::from(store.book(entry).await.is_err());
            }
            failed
        });
    }
    callers.join_all().await.into_iter().sum()
}

const DEADLOCKS: &str = "SELECT sum(deadlocks) FROM pg_stat_database";

#[test]
fn entries_in_every_order_never_wait_for_each_other_in_a_circle() {
    let (server, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let stores = instances(&server.url(), "admittance").await;
        assert_eq!(in_every_order(&stores, 32, 20).await, 0);
        for policy in ["kept", "quick"] {
            for key in [b"a", b"b"] {
                let budget = yearly(1_000_000);
                let look = one(&*stores[0], (policy, key), &budget, 0, Act::Look).await.unwrap();
                assert_eq!(look.standing.spent, 32 * 20);
            }
        }
        drop(stores);
        assert!(!server.log().contains("deadlock"), "{}", server.log());
        assert_eq!(server.sql(DEADLOCKS).unwrap(), "0");
    });
}

#[test]
fn entries_that_lock_in_the_order_given_do_and_are_caught() {
    let (server, runtime) = (common::server(), common::runtime());
    let edits = [(
        "SELECT DISTINCT w.key FROM unnest(wanted) AS w (key) ORDER BY w.key",
        "SELECT w.key || substr(w.key, 1, 0 * length(pg_sleep(0.05)::text)) \
         FROM unnest(wanted) AS w (key)",
    )];
    runtime.block_on(async {
        edited(&server.url(), "unordered", &edits).await;
        let stores = instances(&server.url(), "unordered").await;
        in_every_order(&stores, 2, 20).await;
        drop(stores);
        let log = server.log();
        assert!(log.contains("lock timeout") || log.contains("deadlock"), "{log}");
    });
}

/// The instant of an entry that waited for a row, and one at which it still did.
async fn waited(url: &str, table: &str) -> (Micros, Micros) {
    let stores = instances(url, table).await;
    let budget = yearly(10);
    let _ = one(&*stores[0], ("api", b"ann"), &budget, 1, Act::Debit(None)).await.unwrap();
    let mut holder = common::client(url).await;
    for _ in 0..100 {
        let transaction = holder.transaction().await.unwrap();
        let lock = format!("SELECT FROM {table}_logged_accounts FOR NO KEY UPDATE");
        transaction.batch_execute(&lock).await.unwrap();
        let store = Arc::clone(&stores[1]);
        let waiting = tokio::spawn(async move {
            let charges = [Charge { policy: "api", budget: &budget, key: b"ann", units: 1 }];
            store.book(Entry { charges: &charges, act: Act::Debit(None) }).await
        });
        let waits = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, \
                     EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                     AND datname = current_database())";
        let mut still = Micros::ZERO;
        while !waiting.is_finished() {
            let row = transaction.query_one(waits, &[]).await.unwrap();
            if row.get::<_, bool>(1) {
                let us: i64 = row.get(0);
                still = Micros::from_epoch_us(us.unsigned_abs()).unwrap();
                break;
            }
        }
        transaction.rollback().await.unwrap();
        // On a busy machine it may have waited for too long, and has booked nothing.
        if let Ok(Booked { at, .. }) = waiting.await.unwrap() {
            return (at, still);
        }
    }
    panic!("it always waits for too long");
}

#[test]
fn the_clock_is_read_once_the_account_is_held() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let (at, still) = waited(&database.url(), "admittance").await;
        assert!(at >= still, "{at:?} {still:?}");
        edited(&database.url(), "early", &[("clock_timestamp()", "statement_timestamp()")]).await;
        let (at, still) = waited(&database.url(), "early").await;
        assert!(at < still, "an edit that reads it before is noticed");
    });
}

#[test]
fn a_crash_keeps_accounts_and_leases_that_are_logged_and_empties_the_others() {
    let (server, runtime) = (PostgresServer::start().unwrap(), common::runtime());
    runtime.block_on(async {
        let builder = PostgresStore::builder(server.url()).connections(2).unlogged("quick");
        let store = common::connect(builder.reap_every(None)).await;
        let budget = yearly(100);
        let (open, ended) = (LeaseKey(1), LeaseKey(u128::MAX));
        let mut before = Vec::new();
        for policy in ["kept", "quick"] {
            let ask = async |units, act| {
                one(&store, (policy, b"ann"), &budget, units, act).await.unwrap()
            };
            let _ = ask(20, Act::Reserve { lease: open, ttl: TTL }).await;
            let _ = ask(5, Act::Debit(Some(open))).await;
            let _ = ask(10, Act::Reserve { lease: ended, ttl: TTL }).await;
            before.push(ask(70, Act::Settle(ended)).await);
        }
        assert_eq!(before[0].standing, before[1].standing);
        assert_eq!((before[0].standing.spent, before[0].standing.debt), (15, 60));
        let Settlement::Now(settled) = before[0].settlement else { panic!("it was settled") };
        server.crash_restart().unwrap();
        let (kept, quick) = (("kept", &b"ann"[..]), ("quick", &b"ann"[..]));
        let again = when_there(&store, quick, &budget, Act::Settle(ended)).await;
        assert_eq!(again.settlement, Settlement::Unknown, "a crash has emptied it");
        assert_eq!((again.standing.spent, again.standing.open), (0, 0));
        let again = when_there(&store, kept, &budget, Act::Settle(ended)).await;
        assert_eq!(again.settlement, Settlement::Before(settled));
        assert_eq!(again.standing, before[0].standing);
        server.restart().unwrap();
        let held = when_there(&store, kept, &budget, Act::Debit(Some(open))).await;
        assert_eq!(held.unspent, 14, "of its own reservation");
        assert_eq!(held.standing.spent, 16);
    });
}

#[test]
fn every_entry_is_one_round_trip_and_every_update_of_an_account_is_heap_only() {
    let (server, runtime) = (common::server(), common::runtime());
    let proxy = Proxy::start(server.address()).unwrap();
    runtime.block_on(async {
        let url = format!("postgres://postgres@{}/postgres?sslmode=disable", proxy.address());
        let builder = PostgresStore::builder(url).connections(1).reap_every(None);
        let store = common::connect(builder).await;
        while store.reap().await.is_err() {
            tokio::task::yield_now().await;
        }
        let before = proxy.round_trips();
        for _ in 0..400 {
            let _ = one(&store, ("api", b"ann"), &yearly(300), 1, Act::Debit(None)).await.unwrap();
        }
        assert_eq!(proxy.round_trips() - before, 400);
        let (lease, ttl) = (LeaseKey(1), TTL);
        let budget = yearly(300);
        let both = |units| {
            ["a", "b"].map(|key| Charge {
                policy: "both",
                budget: &budget,
                key: key.as_bytes(),
                units,
            })
        };
        let before = proxy.round_trips();
        for act in [Act::Reserve { lease, ttl }, Act::Debit(Some(lease)), Act::Settle(lease)] {
            let booked = store.book(Entry { charges: &both(5), act }).await.unwrap();
            assert!(booked.together.decision.is_admit());
        }
        assert_eq!(proxy.round_trips() - before, 3);
        drop(store);
        // A first touch is a row and an update; a denial writes nothing. A session's counts arrive
        // when it ends. Two more accounts: three entries each.
        let read = "SELECT n_tup_ins, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables \
                    WHERE relname = 'admittance_logged_accounts'";
        let seen = async || server.sql(read).unwrap().starts_with("3|30");
        common::until("the counts are there", seen).await;
        let counts = server.sql(read).unwrap();
        let counts: Vec<u64> = counts.split('|').map(|count| count.parse().unwrap()).collect();
        assert_eq!(counts[1], counts[2], "every update is heap-only");
    });
}

#[test]
fn a_debit_on_an_account_without_leases_touches_its_row_alone() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let builder = PostgresStore::builder(database.url()).connections(1).reap_every(None);
        let store = common::connect_as_it_is(builder).await;
        let debit = async |key: &[u8]| {
            let debit = one(&store, ("api", key), &yearly(2), 1, Act::Debit(None)).await;
            debit.map(|debit| debit.decision.is_admit())
        };
        // The connection learns what the tables look like.
        assert_eq!(debit(b"ann").await, Ok(true));
        let mut holder = common::client(&database.url()).await;
        let transaction = holder.transaction().await.unwrap();
        let lock = "LOCK TABLE admittance_logged_leases IN ACCESS EXCLUSIVE MODE";
        transaction.batch_execute(lock).await.unwrap();
        assert_eq!(debit(b"ann").await, Ok(true));
        assert_eq!(debit(b"ann").await, Ok(false));
        assert_eq!(debit(b"bob").await, Ok(true), "a new one too");
        let reserve = Act::Reserve { lease: LeaseKey(1), ttl: TTL };
        let reserved = one(&store, ("api", b"bob"), &yearly(2), 1, reserve).await;
        assert!(reserved.is_err(), "who touches them would have waited");
    });
}

#[test]
fn thousands_of_leases_end_in_one_step_and_are_forgotten_some_at_a_time() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
        let budget = yearly(1_000_000);
        store.set_now(Some(start));
        for lease in 1..=Budget::OPEN_MAX {
            let act = Act::Reserve { lease: LeaseKey(lease.into()), ttl: TTL };
            let reserved = one(&store, ("api", b"ann"), &budget, 100, act).await.unwrap();
            assert_eq!(reserved.standing.open, lease);
        }
        let act = Act::Reserve { lease: LeaseKey(0), ttl: TTL };
        let denied = one(&store, ("api", b"ann"), &budget, 100, act).await.unwrap();
        assert_eq!(denied.decision.retry_after(), Some(TTL));
        store.set_now(Some(start + TTL));
        let debit = one(&store, ("api", b"ann"), &budget, 1, Act::Debit(None)).await.unwrap();
        let standing = debit.standing;
        assert_eq!((standing.spent, standing.reserved, standing.open), (1, 0, 0));
        let count = "SELECT count(*) FROM admittance_logged_leases";
        assert_eq!(database.sql(count).unwrap(), "4096");
        store.set_now(Some(start + TTL + Budget::ENDED_KEPT));
        for step in 1..=4_096 / Budget::FORGOTTEN_AT_ONCE {
            let _ = one(&store, ("api", b"ann"), &budget, 1, Act::Look).await.unwrap();
            let left = 4_096 - step * Budget::FORGOTTEN_AT_ONCE;
            assert_eq!(database.sql(count).unwrap(), left.to_string());
        }
    });
}

/// A name, what happens to its account with how many units and so many seconds after the start,
/// and when core says that it is idle.
type Idle = (&'static str, Vec<(u64, Act, u64)>, Micros);

fn idle(start: Micros, budget: &Budget) -> Vec<Idle> {
    let lease = LeaseKey(1);
    let reserve = Act::Reserve { lease, ttl: TTL };
    // One that is settled early is remembered as long as if it had lived to its end.
    let short = Act::Reserve { lease, ttl: Span::ZERO };
    let all = [
        ("looked", vec![(0, Act::Look, 0)]),
        ("spent", vec![(5, Act::Debit(None), 0)]),
        ("settled", vec![(5, short, 0), (0, Act::Settle(lease), 0)]),
        ("late", vec![(5, short, 0), (0, Act::Settle(lease), 50)]),
        ("reserved", vec![(5, reserve, 0)]),
        ("open", vec![(5, reserve, 0), (9, Act::Debit(Some(lease)), 50)]),
        ("indebted", vec![(5, short, 0), (250, Act::Settle(lease), 0)]),
    ];
    let idle_at = |acts: &[(u64, Act, u64)]| {
        let mut account = Account::default();
        for &(units, act, secs) in acts {
            let now = start + Span::from_secs(secs);
            let _ = match act {
                Act::Look => account.look(budget, now),
                Act::Debit(lease) => account.debit(budget, lease, units, now),
                Act::Settle(lease) => account.settle(budget, lease, Some(units), now),
                Act::Reserve { lease, ttl } => {
                    account.reserve(budget, Reserve { lease, units, ttl }, now)
                }
                other => unreachable!("{other:?} is not here"),
            };
        }
        // Not before it was last touched.
        account.idle_at(budget).max(start)
    };
    all.map(|(name, acts)| (name, acts.clone(), idle_at(&acts))).into()
}

/// Whether each account is there a tick before a minute after it is idle, and then.
async fn there(database: &Database, table: &str, debt: Debt) -> Vec<[bool; 2]> {
    let builder = PostgresStore::builder(database.url()).table(table).connections(1);
    let builder = builder.migrates(table == "admittance").reap_every(None);
    let store = common::connect(builder.prefix(format!("{debt:?}"))).await;
    let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
    let budget = Budget::new(10, Cadence::every(Span::from_secs(100))).unwrap().debt(debt);
    let accounts = idle(start, &budget);
    for then in [0, 50] {
        store.set_now(Some(start + Span::from_secs(then)));
        for (name, acts, _) in &accounts {
            for &(units, act, _) in acts.iter().filter(|(.., secs)| *secs == then) {
                let _ = one(&store, ("api", name.as_bytes()), &budget, units, act).await.unwrap();
            }
        }
    }
    let gone = |place: usize| accounts[place].2 + Span::from_secs(60);
    let before = (0..accounts.len()).map(|place| (gone(place) - Span::TICK, place, 0));
    let mut looks: Vec<(Micros, usize, usize)> = before.collect();
    looks.extend((0..accounts.len()).map(|place| (gone(place), place, 1)));
    looks.sort_unstable();
    let mut seen = vec![[false; 2]; accounts.len()];
    for (at, place, which) in looks {
        store.set_now(Some(at));
        store.reap().await.unwrap();
        let name = accounts[place].0;
        let rows = format!("SELECT FROM {table}_logged_accounts WHERE key LIKE '%{name}'");
        let rows = database.sql(&format!("SELECT count(*) FROM ({rows}) AS r")).unwrap();
        seen[place][which] = rows == "1";
    }
    let leases = format!("SELECT count(*) FROM {table}_logged_leases");
    let all_are_gone = seen.iter().all(|there| !there[1]);
    assert_eq!(
        database.sql(&leases).unwrap() == "0",
        all_are_gone,
        "leases go with their accounts"
    );
    seen
}

#[test]
fn an_account_is_reaped_a_minute_after_it_is_idle_and_with_debt_after_the_debt() {
    let (database, runtime) = (common::database(), common::runtime());
    for debt in [Debt::Carry, Debt::Forgive] {
        let seen = runtime.block_on(there(&database, "admittance", debt));
        assert_eq!(seen, [[true, false]; 7], "{debt:?}");
    }
    let edits: [(&str, &str); 8] = [
        ("THEN reset_at ELSE 0 END)\n", "THEN 0 ELSE 0 END)\n"),
        ("idle_at = greatest(now_us, a.kept_until,", "idle_at = greatest(now_us,"),
        ("idle_at = greatest(now_us, a.kept_until,", "idle_at = greatest(a.kept_until,"),
        ("a.kept_until := greatest(a.kept_until, now_us + 600000000);", ""),
        ("a.kept_until := greatest(a.kept_until, l.until + 600000000);", ""),
        ("l.until + CASE WHEN l.phase = 0 THEN 600000000 ELSE 0 END);", "0);"),
        ("AND t.idle_at <= idle_since\n", "AND t.idle_at < idle_since\n"),
        ("4503599627370495)) - grace_us;", "4503599627370495));"),
    ];
    for (place, edit) in edits.iter().enumerate() {
        let table = format!("edited_{place}");
        let seen = runtime.block_on(async {
            edited(&database.url(), &table, &[*edit]).await;
            there(&database, &table, Debt::Carry).await
        });
        assert_ne!(seen, [[true, false]; 7], "nobody noticed {edit:?}");
    }
}

#[test]
fn an_account_with_many_leases_is_reaped_in_steps_and_may_come_back_between() {
    let (server, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&server.url()).await;
        let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
        let budget = Budget::new(10_000, Cadence::every(Span::from_secs(100))).unwrap();
        store.set_now(Some(start));
        for key in [b"back", b"gone"] {
            for lease in 1..=700 {
                let lease = LeaseKey(lease);
                for act in [Act::Reserve { lease, ttl: TTL }, Act::Settle(lease)] {
                    if act == Act::Settle(lease) && lease.0.is_multiple_of(2) {
                        continue;
                    }
                    let _ = one(&store, ("api", key), &budget, 5, act).await.unwrap();
                }
            }
        }
        let rows = || {
            let count = |table: &str| format!("(SELECT count(*) FROM admittance_logged_{table})");
            let tables = ["accounts", "leases"].map(count).join(", ");
            server.sql(&format!("SELECT {tables}")).unwrap()
        };
        let idle = start + TTL + Budget::ENDED_KEPT + Span::from_secs(60);
        let step = |at: Micros| {
            let at = at.epoch_us();
            let step =
                format!("SELECT admittance_logged_reap_accounts(0, 64, 500, 60000000, {at})");
            server.sql(&step).unwrap()
        };
        assert_eq!(step(idle - Span::TICK), "{0,0,0}");
        assert_eq!(step(idle), "{0,0,500}", "some leases of the first");
        assert_eq!(rows(), "2|900");
        // It comes back to life, and knows nothing that it should not.
        store.set_now(Some(idle));
        let look = one(&store, ("api", b"back"), &budget, 1, Act::Look).await.unwrap().standing;
        assert_eq!((look.spent, look.reserved, look.debt, look.open), (0, 0, 0, 0));
        let known = "SELECT open, ended FROM admittance_logged_accounts WHERE key LIKE '%back'";
        assert_eq!(server.sql(known).unwrap(), "0|0");
        assert_eq!(rows(), "2|700");
        // One that is held is passed over.
        let mut holder = common::client(&server.url()).await;
        let transaction = holder.transaction().await.unwrap();
        let held = "SELECT FROM admittance_logged_accounts FOR NO KEY UPDATE";
        transaction.batch_execute(held).await.unwrap();
        assert_eq!(store.reap().await.unwrap().keys, 0);
        transaction.rollback().await.unwrap();
        assert_eq!(store.reap().await.unwrap().keys, 1);
        assert_eq!(rows(), "1|0");
        store.set_now(Some(idle + Span::from_secs(60)));
        assert_eq!(store.reap_at_a_tick().await.keys, 1);
        assert_eq!(rows(), "0|0");
    });
}

/// What is owed after a window that a lease outlived.
async fn owed(url: &str, table: &str) -> u64 {
    let builder = PostgresStore::builder(url).table(table).connections(1);
    let builder = builder.migrates(table == "admittance").reap_every(None);
    let store = common::connect(builder).await;
    let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
    let budget = Budget::new(10, Cadence::every(Span::from_secs(100))).unwrap();
    store.set_now(Some(start));
    let reserve = |lease, secs| Act::Reserve { lease, ttl: Span::from_secs(secs) };
    let (long, short) = (LeaseKey(1), LeaseKey(2));
    for (units, act) in [(5, reserve(long, 150)), (1, reserve(short, 9)), (21, Act::Settle(short))]
    {
        let _ = one(&store, ("api", b"ann"), &budget, units, act).await.unwrap();
    }
    store.set_now(Some(start + Span::from_secs(160)));
    one(&store, ("api", b"ann"), &budget, 0, Act::Look).await.unwrap().standing.debt
}

#[test]
fn a_lease_that_outlives_its_window_gives_nothing_back_to_it() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        // One was spent and five were reserved to its end: four pay.
        assert_eq!(owed(&database.url(), "admittance").await, 16);
        edited(&database.url(), "outlived", &[(" AND l.until < ends), 0)", "), 0)")]).await;
        assert_eq!(owed(&database.url(), "outlived").await, 11, "an edit is noticed");
    });
}
