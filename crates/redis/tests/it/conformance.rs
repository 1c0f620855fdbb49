//! Every contract of a store, on every kind of server.

use crate::support::{OnServer, shared};
use admittance_testkit::{conformance, custom_strategies_decide_exactly};

fn conforms(url: &str) {
    let harness = OnServer::new(url);
    harness.run(async {
        conformance(&harness).await.unwrap();
        custom_strategies_decide_exactly(&harness).await.unwrap();
    });
}

#[test]
fn redis_holds_every_contract() {
    conforms(&shared::redis());
}

#[test]
fn valkey_holds_every_contract() {
    conforms(&shared::valkey());
}

#[test]
fn a_cluster_holds_every_contract() {
    conforms(&shared::cluster());
}

#[test]
fn a_sentinels_primary_holds_every_contract() {
    conforms(&shared::sentinel());
}
