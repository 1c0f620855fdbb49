//! The Redis and the Postgres that the tests of this program share. A test that stops or crashes a
//! server, or watches what it is asked, starts one for itself.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use admittance_testkit::servers::{PostgresServer, RedisServer};

/// The URL of a Redis database that no other test has.
pub(crate) fn redis() -> String {
    static SERVER: LazyLock<RedisServer> = LazyLock::new(|| {
        RedisServer::start_with(&["--databases", "1000"]).expect("redis-server starts")
    });
    format!("{}/{}", SERVER.url(), number())
}

/// The URL of a Postgres database that no other test has.
pub(crate) fn postgres() -> String {
    static SERVER: LazyLock<PostgresServer> = LazyLock::new(|| {
        let quick = ["fsync=off", "full_page_writes=off", "autovacuum=off", "max_connections=400"];
        PostgresServer::start_with(&quick).expect("postgres starts")
    });
    SERVER.database(&format!("test_{}", number())).expect("a database")
}

/// A number that was not given before.
fn number() -> u32 {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    GIVEN.fetch_add(1, Ordering::Relaxed)
}
