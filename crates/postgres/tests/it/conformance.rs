//! The suite that every store passes, and equality with core over random timelines, on both kinds
//! of tables.

use crate::common;

use std::sync::Arc;

use crate::common::{Path, Postgres};
use admittance_testkit::{
    conformance, custom_strategies_decide_exactly, equals_core, groups_equal_core,
    leases_equal_core,
};

#[test]
fn postgres_holds_every_contract_and_equals_core() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let url = server.url();
    runtime.block_on(admittance_postgres::migrate(&url, &Default::default())).unwrap();
    let harness =
        runtime.block_on(Postgres::new(&url, &runtime, Path::OneLogged, common::timelines(50)));
    let suite = conformance(&harness);
    // The suite waits for callers on threads of their own, which enter the runtime themselves.
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    admittance_testkit::block_on(suite).unwrap();
    admittance_testkit::block_on(custom_strategies_decide_exactly(&harness)).unwrap();
}

#[test]
fn the_unlogged_tables_and_the_batches_do_too() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let url = server.url();
    runtime.block_on(admittance_postgres::migrate(&url, &Default::default())).unwrap();
    let harness =
        runtime.block_on(Postgres::new(&url, &runtime, Path::BatchUnlogged, common::timelines(50)));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    admittance_testkit::block_on(equals_core(&harness)).unwrap();
    admittance_testkit::block_on(groups_equal_core(&harness)).unwrap();
    admittance_testkit::block_on(leases_equal_core(&harness)).unwrap();
}
