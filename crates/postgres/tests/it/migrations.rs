//! Installing, upgrading and refusing.

use crate::common;

use admittance::budget::{Accounts, Act, Budget, Charge, Entry, LeaseKey};
use admittance::concurrency::{FleetRules, Leave, Node, Report as NodeReport};
use admittance::lease::{Ask, GiveBack, LeaseId};
use admittance::relay::{Collect, Note, Posted, Told};
use admittance::{
    Action, Answer, Builtin, Cadence, Cell, Cells, Coordinator, Cost, Gcra, Many, Micros, Op,
    Recovery, Relay, SlidingLog, SlidingWindow, Span, Store, StoreError, Swap, Swapped, Tat,
    Window,
};
use admittance_postgres::{MigrateError, PostgresStore, Report, TableName, migrate};
use tokio::task::JoinSet;

fn window(limit: u64) -> Builtin {
    Window::fixed(limit, Span::from_secs(86_400 * 365)).unwrap().into()
}

#[test]
fn eight_instances_that_start_together_install_once() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let mut instances = JoinSet::new();
        for _ in 0..8 {
            let url = database.url();
            instances.spawn(async move { migrate(&url, &TableName::default()).await.unwrap() });
        }
        let reports = instances.join_all().await;
        let worked: Vec<&Report> = reports.iter().filter(|report| report.applied > 0).collect();
        assert_eq!(worked.len(), 1, "{reports:?}");
        assert!(reports.iter().all(|report| report.version == worked[0].version));
        let again = migrate(&database.url(), &TableName::default()).await.unwrap();
        assert_eq!(again, Report { applied: 0, ..*worked[0] });
    });
}

#[test]
fn the_defaults_of_the_database_do_not_matter() {
    let runtime = common::runtime();
    let settings = ["isolation = 'repeatable read'", "isolation = serializable", "read_only = on"];
    runtime.block_on(async {
        for setting in settings {
            let database = common::database();
            let name = &database.name;
            let set = format!("ALTER DATABASE {name} SET default_transaction_{setting}");
            database.sql(&set).unwrap();
            let mut instances = JoinSet::new();
            for _ in 0..8 {
                let url = database.url();
                instances.spawn(async move { migrate(&url, &TableName::default()).await });
            }
            let reports = instances.join_all().await;
            let reports: Vec<Report> = reports.into_iter().map(Result::unwrap).collect();
            let worked = reports.iter().filter(|report| report.applied > 0).count();
            assert_eq!(worked, 1, "{setting}: {reports:?}");
            let store = common::store(&database.url()).await;
            let decision = common::check(&store, "api", &window(1), b"ann").await.unwrap();
            assert!(decision.is_admit(), "{setting}");
        }
    });
}

async fn fleets_and_notes_work(store: &PostgresStore) {
    let (node, told) = (Node::new("ann", 1).unwrap(), Told::Finish);
    let report = NodeReport {
        node: node.clone(),
        sequence: 1,
        local_limit: 5,
        is_sampled: true,
        in_flight: 0,
        epoch: 0,
        applied: 0,
        new_epoch: 7,
    };
    let grant = store.beat("fleet", &FleetRules::default(), &report).await.unwrap();
    assert_eq!((grant.epoch, grant.nodes), (7, 1));
    let leave = Leave { node, sequence: 2, in_flight: 0 };
    store.leave("fleet", &leave).await.unwrap();
    let ttl = Span::from_secs(1);
    let here = Collect { owner: 1, secret: &[7; 32], ttl, ended: &[1] };
    assert_eq!(store.collect(here).await.unwrap(), []);
    assert_eq!(store.secret(1).await.unwrap(), Some([7; 32]));
    let posted = store.post(1, &[Note { lease: 2, told }]).await.unwrap();
    assert_eq!(posted, Some(vec![Posted::Left]));
}

async fn budgets_work(store: &PostgresStore) {
    let budget = Budget::new(10, Cadence::every(Span::from_secs(60))).unwrap();
    let (lease, ttl) = (LeaseKey(7), Span::from_secs(5));
    let charge = |policy| Charge { policy, budget: &budget, key: b"ann", units: 3 };
    let both = [charge("api"), charge("quick")];
    for charges in [&both[..], &both[..1], &both[1..]] {
        for act in [
            Act::Reserve { lease, ttl },
            Act::Debit(Some(lease)),
            Act::Debit(None),
            Act::Settle(lease),
            Act::Look,
        ] {
            let booked = store.book(Entry { charges, act }).await.unwrap();
            assert_eq!(booked.together.each.len(), charges.len());
        }
    }
}

#[test]
fn a_role_that_may_create_nothing_runs_the_store_after_the_owner_migrated() {
    let (database, runtime) = (common::database(), common::runtime());
    // A role is the server's. No other test makes one.
    database.sql("CREATE ROLE service LOGIN").unwrap();
    database.sql("REVOKE ALL ON SCHEMA public FROM PUBLIC").unwrap();
    let no_functions = "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC";
    database.sql(no_functions).unwrap();
    let log: Builtin = SlidingLog::new(5, Span::from_secs(1)).unwrap().into();
    runtime.block_on(async {
        let url = database.url().replace("postgres@", "service@");
        let store = common::untried(&url).await;
        let error = common::check(&store, "api", &window(5), b"ann").await.unwrap_err();
        assert!(error.to_string().contains("admittance migrate"), "it may create nothing: {error}");
        drop(store);

        migrate(&database.url(), &TableName::default()).await.unwrap();
        database.sql(include_str!("../../grants.sql")).unwrap();
        assert_eq!(migrate(&url, &TableName::default()).await.unwrap().applied, 0);
        let builder = PostgresStore::builder(url).connections(1).unlogged("quick");
        let store = builder.reap_every(None).connect().await.unwrap();
        let start = Micros::from_epoch_ms(1_700_000_000_000).unwrap();
        store.set_now(Some(start));
        let gcra = Gcra { limit: 5, period: Span::from_secs(1), burst: 5 };
        let gcra: Builtin = Tat::gcra(gcra).unwrap().into();
        let sliding: Builtin = SlidingWindow::new(5, Span::from_secs(1), 10).unwrap().into();
        for policy in ["api", "quick"] {
            for strategy in [&window(5), &gcra, &sliding, &log] {
                let decision = common::check(&store, policy, strategy, b"ann").await.unwrap();
                assert!(decision.is_admit());
                let op = Op { policy, strategy, key: b"bob", action: Action::Reset };
                let _ = store.apply(op).await.unwrap();
            }
            let ask = Ask { need: 1, least: 1, want: 2, round_trip: Span::ZERO };
            let action = Action::Lease(ask);
            let op = Op { policy, strategy: &window(5), key: b"eve", action };
            let grant = store.apply(op).await.unwrap().answer.grant().unwrap();
            let id = LeaseId { incarnation: 1, count: 1 };
            let paid_until = grant.decision.reset_at;
            let back = GiveBack { id, units: 1, granted_at: grant.at, paid_until };
            let op = Op { action: Action::GiveBack(back), ..op };
            assert_eq!(store.apply(op).await.unwrap().answer, Answer::GivenBack(1));
            let keys: [&[u8]; 2] = [b"ann", b"bob"];
            let many = Many { policy, strategy: &log, keys: &keys, cost: Cost::ONE };
            let _ = store.check_many(many).await.unwrap();
            let cell = Cell { policy, shape: "own", key: b"ann" };
            let swap = Swap { expected: None, new: Some(b"x"), idle_at: start };
            assert_eq!(store.swap(cell, swap).await.unwrap(), Swapped::Done);
            assert_eq!(store.load(cell).await.unwrap().bytes.unwrap(), b"x");
        }
        fleets_and_notes_work(&store).await;
        budgets_work(&store).await;
        store.set_now(Some(start + Span::from_secs(3_600)));
        // By policy: gcra, the sliding window, two logs, a cell and an account.
        assert_eq!(store.reap().await.unwrap().keys, 12);
        store.reap().await.unwrap();
    });
}

#[test]
fn a_step_with_another_checksum_and_a_newer_database_are_refused() {
    let (database, runtime) = (common::database(), common::runtime());
    let table = TableName::default();
    runtime.block_on(async {
        let report = migrate(&database.url(), &table).await.unwrap();
        database.sql("UPDATE admittance_migrations SET checksum = 'x' WHERE version = 2").unwrap();
        let error = migrate(&database.url(), &table).await.unwrap_err();
        assert!(matches!(error, MigrateError::Changed { version: 2 }), "{error}");

        let store = common::untried(&database.url()).await;
        let error = common::check(&store, "api", &window(1), b"ann").await.unwrap_err();
        assert_eq!(error.recovery(), Recovery::Operator);
        assert!(error.to_string().contains("step 2"), "{error}");

        database.sql("DELETE FROM admittance_migrations WHERE version = 2").unwrap();
        let error = migrate(&database.url(), &table).await.unwrap_err();
        assert!(matches!(error, MigrateError::Database(_)), "its functions are there: {error}");
        let others = (report.version - 1).to_string();
        assert_eq!(database.sql("SELECT count(*) FROM admittance_migrations").unwrap(), others);

        database.sql("INSERT INTO admittance_migrations VALUES (1000, 'later', 'x')").unwrap();
        let error = migrate(&database.url(), &table).await.unwrap_err();
        let known = report.version;
        assert!(
            matches!(error, MigrateError::Newer { found: 1000, known: it } if it == known),
            "{error}"
        );
    });
}

/// A state that an older version wrote does not say its unit. It is read as one of the rate that
/// asks, and says it from the next admission on.
#[test]
fn a_state_of_an_older_version_is_read_and_goes_on() {
    let (database, runtime) = (common::database(), common::runtime());
    let strategy = Tat::gcra(Gcra { limit: 7, period: Span::from_secs(86_400), burst: 3 });
    let strategy = Builtin::from(strategy.unwrap());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let check = async || common::check(&store, "api", &strategy, b"ann").await.unwrap();
        assert_eq!(check().await.remaining, 2);
        let length = "SELECT cardinality(state) FROM admittance_logged";
        assert_eq!(database.sql(length).unwrap(), "6");
        database.sql("UPDATE admittance_logged SET state = state[1:4]").unwrap();
        let op = Op { policy: "api", strategy: &strategy, key: b"ann", action: Action::Peek };
        let peeked = store.apply(op).await.unwrap().decision().unwrap();
        assert_eq!(peeked.remaining, 2);
        assert_eq!(check().await.remaining, 1);
        assert_eq!(database.sql(length).unwrap(), "6");
        assert_eq!(check().await.remaining, 0);
        assert!(!check().await.is_admit());
    });
}

#[test]
fn two_deployments_share_a_database_and_nothing_else() {
    let (database, runtime) = (common::database(), common::runtime());
    database.sql("CREATE SCHEMA tenant").unwrap();
    runtime.block_on(async {
        // The server shortens the names that it makes of a long one.
        let long = "a_name_as_long_as_the_tables_of_one_may_be_"[..40].to_owned();
        for table in ["admittance", "other", "tenant.admittance", &long] {
            let builder = PostgresStore::builder(database.url()).table(table).connections(1);
            let store = builder.connect().await.unwrap();
            assert!(common::check(&store, "api", &window(1), b"ann").await.unwrap().is_admit());
            assert!(!common::check(&store, "api", &window(1), b"ann").await.unwrap().is_admit());
        }
    });
}

#[test]
fn without_its_functions_the_database_is_refused_with_what_to_do() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let builder = PostgresStore::builder(database.url()).migrates(false).connections(1);
        let store = builder.connect().await.unwrap();
        let error = common::check(&store, "api", &window(1), b"ann").await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("admittance migrate"), "{error}");
        // Somebody migrates, and the store goes on by itself.
        migrate(&database.url(), &TableName::default()).await.unwrap();
        let works = async || common::check(&store, "api", &window(9), b"ann").await.is_ok();
        common::until("the store finds its functions", works).await;
    });
}

#[test]
fn a_missing_database_or_role_is_refused_and_no_password_shown() {
    let runtime = common::runtime();
    runtime.block_on(async {
        let port = common::shared().port();
        for url in [
            format!("postgres://nobody:s3cret@127.0.0.1:{port}/postgres"),
            format!("postgres://postgres:s3cret@127.0.0.1:{port}/missing"),
        ] {
            let builder = PostgresStore::builder(url).connections(1);
            assert!(!format!("{builder:?}").contains("s3cret"));
            let store = builder.connect().await.unwrap();
            let error = common::check(&store, "api", &window(1), b"ann").await.unwrap_err();
            assert!(matches!(error, StoreError::Refused { .. }), "{error}");
            assert!(!format!("{error} {error:?} {store:?}").contains("s3cret"));
        }
    });
}
