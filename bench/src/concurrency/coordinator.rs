//! What a coordinator bears: beats per second on Redis and on Postgres.

use std::sync::Arc;
use std::time::Instant;

use admittance::Coordinator;
use admittance::concurrency::{FleetRules, Node, Report};
use admittance_postgres::PostgresStore;
use admittance_redis::RedisStore;
use admittance_testkit::servers::{PostgresServer, RedisServer};

use super::Effort;

pub(super) async fn run(effort: Effort) {
    println!("\ncoordinator, {CALLERS} reports at once, one fleet");
    println!("  {:10} {:>6} {:>12} {:>18}", "store", "nodes", "beats/s", "µs, one at a time");
    let server = RedisServer::start().expect("redis-server starts");
    let redis = RedisStore::builder(&server.url()).build().expect("a good url");
    table("Redis", &Arc::new(redis), effort).await;
    let server = PostgresServer::start().expect("postgres starts");
    let url = server.database("bench").expect("a database");
    let postgres = PostgresStore::builder(url.as_str()).connect().await.expect("a good url");
    table("Postgres", &Arc::new(postgres), effort).await;
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn table<C: Coordinator + 'static>(name: &str, coordinator: &Arc<C>, effort: Effort) {
    for nodes in [10, 100, 1_000] {
        let fleet = format!("fleet-{nodes}");
        // Everybody is known before anything is measured.
        let _ = beats(coordinator, &fleet, nodes, nodes, 0).await;
        let alone = Instant::now();
        let few = effort.beats / 10;
        for nth in 0..few {
            beat(coordinator, &fleet, nth % nodes, 1_000 + nth as u64).await;
        }
        let each = alone.elapsed() / u32::try_from(few.max(1)).expect("few");
        let seconds = beats(coordinator, &fleet, nodes, effort.beats, 1_000_000).await;
        let rate = effort.beats as f64 / seconds;
        println!("  {name:10} {nodes:>6} {rate:>12.0} {:>18}", each.as_micros());
    }
}

/// The time that so many beats take, in seconds.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn beats<C: Coordinator + 'static>(
    coordinator: &Arc<C>,
    fleet: &str,
    nodes: usize,
    count: usize,
    sequence: u64,
) -> f64 {
    let began = Instant::now();
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (coordinator, fleet) = (Arc::clone(coordinator), fleet.to_owned());
            tokio::spawn(async move {
                for nth in (caller..count).step_by(CALLERS) {
                    beat(&coordinator, &fleet, nth % nodes, sequence + nth as u64 + 1).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("no panic");
    }
    began.elapsed().as_secs_f64()
}

async fn beat<C: Coordinator>(coordinator: &Arc<C>, fleet: &str, node: usize, sequence: u64) {
    let report = Report {
        node: Node::new(&format!("node-{node:04}"), 1).expect("a plain name"),
        sequence,
        local_limit: 8_000,
        is_sampled: true,
        in_flight: u32::try_from(sequence % 8).expect("small"),
        epoch: 1,
        applied: 0,
        new_epoch: 1,
    };
    let answer = coordinator.beat(fleet, &FleetRules::default(), &report).await;
    answer.expect("the coordinator answers");
}

const CALLERS: usize = 16;
