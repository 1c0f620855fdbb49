//! Every contract of a store, on every kind of server.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use admittance_testkit::servers::{RedisCluster, RedisSentinel, RedisServer};
use admittance_testkit::{conformance, custom_strategies_decide_exactly};
use support::OnServer;

fn conforms(url: &str) {
    let harness = OnServer::new(url);
    harness.run(async {
        conformance(&harness).await.unwrap();
        custom_strategies_decide_exactly(&harness).await.unwrap();
    });
}

#[test]
fn redis_holds_every_contract() {
    conforms(&RedisServer::start().unwrap().url());
}

#[test]
fn valkey_holds_every_contract() {
    conforms(&RedisServer::start_valkey().unwrap().url());
}

#[test]
fn a_cluster_holds_every_contract() {
    let cluster = RedisCluster::start().unwrap();
    conforms(&support::cluster_url(&cluster));
}

#[test]
fn a_sentinels_primary_holds_every_contract() {
    let sentinel = RedisSentinel::start().unwrap();
    conforms(&support::sentinel_url(&sentinel));
}
