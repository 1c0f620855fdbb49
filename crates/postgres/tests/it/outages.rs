//! A server that is away, slow, restarted or cut off in the middle.

use crate::common;

use std::time::Duration;

use admittance::{Builtin, Span, StoreError, Window};
use admittance_postgres::PostgresStore;
use admittance_testkit::servers::{Proxy, free_port};

fn window(limit: u64) -> Builtin {
    Window::fixed(limit, Span::from_secs(86_400 * 365)).unwrap().into()
}

#[test]
fn a_server_that_is_absent_at_first_is_found_when_it_is_there() {
    let (database, runtime) = (common::database(), common::runtime());
    let proxy = Proxy::start(common::shared().address()).unwrap();
    proxy.cut();
    runtime.block_on(async {
        let url = database.url_at(proxy.address());
        let store = PostgresStore::builder(url).connections(2).connect().await.unwrap();
        for _ in 0..3 {
            let answer = common::check(&store, "api", &window(5), b"ann").await;
            assert_eq!(answer, Err(StoreError::Unavailable));
        }
        proxy.pass();
        let there = async || common::check(&store, "api", &window(5), b"ann").await.is_ok();
        common::until("the server is found", there).await;
    });
}

#[test]
fn nobody_at_the_address_is_unavailable() {
    let runtime = common::runtime();
    runtime.block_on(async {
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres", free_port());
        let store = PostgresStore::builder(url).connections(1).connect().await.unwrap();
        let answer = common::check(&store, "api", &window(5), b"ann").await;
        assert_eq!(answer, Err(StoreError::Unavailable));
    });
}

#[test]
fn a_restart_and_a_cut_in_the_middle_are_recovered_from_and_charge_at_most_once() {
    let (server, runtime) = (common::server(), common::runtime());
    let proxy = Proxy::start(server.address()).unwrap();
    runtime.block_on(async {
        let url = format!("postgres://postgres@{}/postgres", proxy.address());
        let store = PostgresStore::builder(url).connections(2).connect().await.unwrap();
        let (mut admitted, mut unknown) = (0, 0);
        for round in 0..60 {
            match round {
                20 => server.restart().unwrap(),
                40 => {
                    proxy.cut();
                    proxy.pass();
                }
                _ => {}
            }
            match common::check_when_there(&store, "api", &window(100), b"ann").await {
                Ok(decision) => admitted += u64::from(decision.is_admit()),
                Err(StoreError::Lost) => unknown += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(admitted + unknown, 60);
        let last = common::check_when_there(&store, "api", &window(100), b"ann").await;
        let left = last.unwrap().remaining;
        let charged = 100 - left - 1;
        assert!((admitted..=admitted + unknown).contains(&charged), "{charged} were charged");
    });
}

#[test]
fn an_answer_that_is_lost_is_not_taken_for_a_charge_that_did_not_happen() {
    let (database, runtime) = (common::database(), common::runtime());
    let proxy = Proxy::start(common::shared().address()).unwrap();
    runtime.block_on(async {
        let url = format!("{}?sslmode=disable", database.url_at(proxy.address()));
        let builder = PostgresStore::builder(url).connections(1).reap_every(None);
        let store = builder.answer_within(Duration::from_millis(300)).connect().await.unwrap();
        let _ = common::check(&store, "api", &window(5), b"ann").await.unwrap();
        proxy.drop_replies();
        let error = common::check(&store, "api", &window(5), b"ann").await.unwrap_err();
        assert_eq!(error, StoreError::Timeout { waited: Span::from_ms(300) });
        proxy.pass();
        let there = async || common::check(&store, "api", &window(5), b"bob").await.is_ok();
        common::until("the connection is made anew", there).await;
        let left = common::check(&store, "api", &window(5), b"ann").await.unwrap().remaining;
        assert_eq!(left, 2, "the lost one was charged");
    });
}

#[test]
fn a_row_that_is_held_too_long_is_unavailable_and_not_charged() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let builder = PostgresStore::builder(database.url()).connections(4).reap_every(None);
        let store = common::connect_as_it_is(builder).await;
        let _ = common::check(&store, "api", &window(5), b"ann").await.unwrap();
        let mut holder = common::client(&database.url()).await;
        let transaction = holder.transaction().await.unwrap();
        transaction.batch_execute("SELECT FROM admittance_logged FOR UPDATE").await.unwrap();
        let answer = common::check(&store, "api", &window(5), b"ann").await;
        assert_eq!(answer, Err(StoreError::Unavailable));
        transaction.rollback().await.unwrap();
        let left = common::check(&store, "api", &window(5), b"ann").await.unwrap().remaining;
        assert_eq!(left, 3);
    });
}

#[test]
fn a_server_that_became_read_only_is_unavailable() {
    let (database, runtime) = (common::database(), common::runtime());
    runtime.block_on(async {
        let store = common::store(&database.url()).await;
        let _ = common::check(&store, "api", &window(5), b"ann").await.unwrap();
        // As a demoted server answers.
        let broken = "CREATE OR REPLACE FUNCTION admittance_logged_one(wanted bytea, \
            spec bigint[], action int, cost bigint, hook bigint) RETURNS bigint[] \
            LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '25006'; END $$";
        database.sql(broken).unwrap();
        let answer = common::check(&store, "api", &window(5), b"ann").await;
        assert_eq!(answer, Err(StoreError::Unavailable));
    });
}

#[test]
fn a_caller_that_goes_away_leaves_the_store_usable() {
    let (database, runtime) = (common::database(), common::runtime());
    let proxy = Proxy::start(common::shared().address()).unwrap();
    runtime.block_on(async {
        let url = format!("{}?sslmode=disable", database.url_at(proxy.address()));
        let builder = PostgresStore::builder(url).connections(1).reap_every(None);
        let store = builder.connect().await.unwrap();
        proxy.delay(Duration::from_millis(20));
        for _ in 0..10 {
            let strategy = window(100);
            let check = common::check(&store, "api", &strategy, b"ann");
            let gone = tokio::time::timeout(Duration::from_millis(1), check).await;
            assert!(gone.is_err());
        }
        proxy.pass();
        let left = common::check(&store, "api", &window(100), b"ann").await.unwrap().remaining;
        assert!((89..=99).contains(&left), "{left}");
    });
}
