//! Installing, upgrading and refusing.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use admittance::{Builtin, Recovery, Span, StoreError, Window};
use admittance_postgres::{MigrateError, PostgresStore, Report, TableName, migrate};
use tokio::task::JoinSet;

fn window(limit: u64) -> Builtin {
    Window::fixed(limit, Span::from_secs(86_400 * 365)).unwrap().into()
}

#[test]
fn eight_instances_that_start_together_install_once() {
    let (server, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let mut instances = JoinSet::new();
        for _ in 0..8 {
            let url = server.url();
            instances.spawn(async move { migrate(&url, &TableName::default()).await.unwrap() });
        }
        let reports = instances.join_all().await;
        let worked: Vec<&Report> = reports.iter().filter(|report| report.applied > 0).collect();
        assert_eq!(worked.len(), 1, "{reports:?}");
        assert!(reports.iter().all(|report| report.version == worked[0].version));
        let again = migrate(&server.url(), &TableName::default()).await.unwrap();
        assert_eq!(again, Report { applied: 0, ..*worked[0] });
    });
}

#[test]
fn a_step_with_another_checksum_and_a_newer_database_are_refused() {
    let (server, runtime) = (common::server(), common::runtime());
    let table = TableName::default();
    runtime.block_on(async {
        let report = migrate(&server.url(), &table).await.unwrap();
        server.sql("UPDATE admittance_migrations SET checksum = 'x' WHERE version = 2").unwrap();
        let error = migrate(&server.url(), &table).await.unwrap_err();
        assert!(matches!(error, MigrateError::Changed { version: 2 }), "{error}");

        let store = common::store(&server.url()).await;
        let error = common::check(&store, "api", &window(1), b"ann").await.unwrap_err();
        assert_eq!(error.recovery(), Recovery::Operator);
        assert!(error.to_string().contains("step 2"), "{error}");

        server.sql("DELETE FROM admittance_migrations WHERE version = 2").unwrap();
        let error = migrate(&server.url(), &table).await.unwrap_err();
        assert!(matches!(error, MigrateError::Database(_)), "its functions are there: {error}");
        assert_eq!(server.sql("SELECT count(*) FROM admittance_migrations").unwrap(), "4");

        server.sql("INSERT INTO admittance_migrations VALUES (1000, 'later', 'x')").unwrap();
        let error = migrate(&server.url(), &table).await.unwrap_err();
        let known = report.version;
        assert!(
            matches!(error, MigrateError::Newer { found: 1000, known: it } if it == known),
            "{error}"
        );
    });
}

#[test]
fn two_deployments_share_a_database_and_nothing_else() {
    let (server, runtime) = (common::server(), common::runtime());
    server.sql("CREATE SCHEMA tenant").unwrap();
    runtime.block_on(async {
        for table in ["admittance", "other", "tenant.admittance"] {
            let builder = PostgresStore::builder(server.url()).table(table).connections(1);
            let store = builder.connect().await.unwrap();
            assert!(common::check(&store, "api", &window(1), b"ann").await.unwrap().is_admit());
            assert!(!common::check(&store, "api", &window(1), b"ann").await.unwrap().is_admit());
        }
    });
}

#[test]
fn without_its_functions_the_database_is_refused_with_what_to_do() {
    let (server, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let builder = PostgresStore::builder(server.url()).migrates(false).connections(1);
        let store = builder.connect().await.unwrap();
        let error = common::check(&store, "api", &window(1), b"ann").await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("admittance migrate"), "{error}");
        // Somebody migrates, and the store goes on by itself.
        migrate(&server.url(), &TableName::default()).await.unwrap();
        let works = async || common::check(&store, "api", &window(9), b"ann").await.is_ok();
        common::until("the store finds its functions", works).await;
    });
}

#[test]
fn a_missing_database_or_role_is_refused_and_no_password_shown() {
    let (server, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let port = server.port();
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
