//! How much of the server's memory a key takes.

use crate::support::{hourly, runtime};
use admittance::{Builtin, Cost, Many, Store};
use admittance_redis::RedisStore;
use admittance_testkit::servers::RedisServer;

/// The most bytes that a gcra key of 24 bytes under a policy of three takes, with everything that
/// the server keeps about it: some 180 MiB for a million of them.
const BYTES_MAX: u64 = 190;

fn used(server: &RedisServer) -> u64 {
    let info = server.command(&["INFO", "memory"]).unwrap();
    info.field("used_memory").unwrap().parse().unwrap()
}

#[test]
fn a_gcra_key_takes_less_than_the_documented_bytes() {
    let server = RedisServer::start().unwrap();
    let strategies: [(&str, Builtin); 2] = [("whole", hourly(60)), ("fractions", hourly(7))];
    for (what, strategy) in strategies {
        server.command(&["FLUSHALL"]).unwrap();
        let (before, keys) = (used(&server), 100_000_u64);
        runtime().block_on(async {
            let store = RedisStore::builder(&server.url()).prefix("a").build().unwrap();
            let names: Vec<String> = (0..keys).map(|key| format!("user-{key:019}")).collect();
            for names in names.chunks(Many::KEYS_MAX) {
                let keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
                let many =
                    Many { policy: "api", strategy: &strategy, keys: &keys, cost: Cost::ONE };
                let applied = store.check_many(many).await.unwrap();
                assert!(applied.decisions.iter().all(|decision| decision.is_admit()));
            }
        });
        let each = (used(&server) - before) / keys;
        println!("{what}: {each} bytes per key");
        assert!(each <= BYTES_MAX, "{what}: {each} bytes per key");
    }
}
