//! What a connection has done before anybody asks it.

use crate::common::{self, Database};

use admittance::{Gcra, Span, Tat};
use admittance_postgres::{Builder, PostgresStore};

/// The functions of this store's that nobody has called, of those that are counted.
const UNCALLED: &str = "
    SELECT string_agg(substr(p.proname, 12), ' ' ORDER BY p.proname)
    FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
    LEFT JOIN pg_stat_user_functions s ON s.funcid = p.oid
    WHERE p.proname LIKE 'admittance\\_%' AND l.lanname = 'plpgsql' AND coalesce(s.calls, 0) = 0";

/// Those that delete, serve fleets and notes, or are of strategies of one's own: what they take at
/// first is nobody's decision.
const OTHERS: [&str; 22] = [
    "beat",
    "collect",
    "end",
    "forget_ended",
    "leave",
    "life",
    "logged_forget",
    "logged_load",
    "logged_reap",
    "logged_reap_accounts",
    "logged_reset",
    "logged_swap",
    "post",
    "reap_boxes",
    "reap_fleets",
    "secret",
    "unlogged_forget",
    "unlogged_load",
    "unlogged_reap",
    "unlogged_reap_accounts",
    "unlogged_reset",
    "unlogged_swap",
];

/// What nobody has called when two connections that were asked once, both together, have ended.
fn uncalled(database: &Database, edit: impl Fn(Builder) -> Builder, calls: &str) -> String {
    let counted = format!("ALTER DATABASE {} SET track_functions = 'all'", database.name);
    database.sql(&counted).unwrap();
    let runtime = common::runtime();
    runtime.block_on(async {
        let builder = PostgresStore::builder(database.url()).connections(2).reap_every(None);
        let store = edit(builder.unlogged("quick")).connect().await.unwrap();
        assert!(store.is_connected());
        let gcra = Gcra { limit: 1, period: Span::from_secs(60), burst: 1 };
        let strategy = Tat::gcra(gcra).unwrap().into();
        let decision = common::check(&store, "api", &strategy, b"ann").await.unwrap();
        assert!(decision.is_admit());
    });
    // A connection's counts are there when it has ended.
    drop(runtime);
    let counts = "SELECT sum(calls) FROM pg_stat_user_functions \
                  WHERE funcname = 'admittance_logged_quick'";
    common::runtime().block_on(common::until("both have ended", async || {
        database.sql(counts).unwrap() == calls
    }));
    database.sql(UNCALLED).unwrap()
}

#[test]
fn every_function_that_decides_has_run_before_a_connection_is_asked_and_nothing_stays() {
    let database = common::database();
    // Three times by each connection, and the check.
    assert_eq!(uncalled(&database, |builder| builder, "7"), OTHERS.join(" "));
    for (table, rows) in [("logged", "1"), ("unlogged", "0"), ("logged_accounts", "0")] {
        let left = database.sql(&format!("SELECT count(*) FROM admittance_{table}")).unwrap();
        assert_eq!(left, rows, "{table}");
    }
    // A connection that does not rehearse has called what it was asked, and nothing else.
    let uncalled = uncalled(&common::database(), Builder::unrehearsed, "1");
    assert!(uncalled.contains("logged_one") && uncalled.contains("several"), "{uncalled}");
}
