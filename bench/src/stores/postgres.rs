//! Postgres: ours, and statements that decide nothing.

use std::sync::Arc;

use admittance::StoreError;
use admittance::store::lanes::{Carry, Lanes, Size};
use admittance_postgres::PostgresStore;
use admittance_testkit::servers::PostgresServer;
use tokio_postgres::{Client, NoTls, Statement};

use super::load::Asked;
use super::{CALLERS, Checked, Contender, Effort, Report, Scenario, key};

const OURS: &str = "admittance, one check per statement";
const TOGETHER: &str = "admittance";
const UNLOGGED: &str = "admittance, unlogged";
const UPSERT: &str = "plain upsert";
const PIPELINED: &str = "plain upsert, pipelined";
const SELECT: &str = "SELECT 1";

pub(super) async fn run(effort: Effort, report: &mut Report) {
    let server = PostgresServer::start().expect("postgres starts");
    let url = server.database("bench").expect("a database");
    println!("\n{}", server.sql_in("bench", "SELECT version()").expect("it answers"));
    let create = "CREATE TABLE floor (key bytea PRIMARY KEY, n bigint) WITH (fillfactor = 70)";
    server.sql_in("bench", create).expect("a table");
    let store = || PostgresStore::builder(url.as_str()).connections(CONNECTIONS);
    let upsert = "INSERT INTO floor VALUES ($1, 1) \
                  ON CONFLICT (key) DO UPDATE SET n = floor.n + 1 RETURNING n";
    let select = "SELECT 1 WHERE $1::bytea IS NOT NULL";
    let unlogged = store().prefix("unlogged").unlogged("api");
    let contenders = [
        Contender::new(TOGETHER, Checked::new(store().connect().await.expect("a good url"))),
        Contender::new(OURS, {
            let alone = store().prefix("alone").batch_max(1).connect().await;
            Checked::new(alone.expect("a good url"))
        }),
        Contender::new(UNLOGGED, Checked::new(unlogged.connect().await.expect("a good url"))),
        Contender::new(UPSERT, Floor::new(&url, upsert, 1).await),
        Contender::new(PIPELINED, Floor::new(&url, upsert, BATCH).await),
        Contender::new(SELECT, Floor::new(&url, select, 1).await),
    ];
    for callers in CALLERS {
        let name = format!("Postgres, 100k keys, {callers} caller(s), {CONNECTIONS} connections");
        let scenario = Scenario::measure(name, &contenders, callers, effort).await;
        report.claim(0.7, &scenario, OURS, UPSERT);
        if callers == 256 {
            report.claim(0.7, &scenario, TOGETHER, UPSERT);
        }
        report.scenarios.push(scenario);
    }
    let name = format!("Postgres, one key, 256 callers, {CONNECTIONS} connections");
    report.scenarios.push(Scenario::measure(name, &contenders, 256, effort).await);
    memory(&server, report);
}

/// What a gcra key takes, with its index entry and the room that updates need.
fn memory(server: &PostgresServer, report: &mut Report) {
    let size = "SELECT sum(pg_total_relation_size(c.oid)) / greatest(sum(s.n_live_tup), 1) \
                FROM pg_class c JOIN pg_stat_user_tables s ON s.relid = c.oid \
                WHERE c.relname = 'admittance_logged'";
    let bytes = server.sql_in("bench", size).expect("it answers");
    println!("\nPostgres disk, gcra keys of 24 bytes");
    report.fact("Postgres bytes per gcra key", bytes.trim().parse().unwrap_or(f64::NAN));
}

/// A statement that is run once per ask, through the lanes that our store uses.
struct Floor {
    lanes: Lanes<Statements>,
}

struct Statements {
    clients: Vec<(Client, Statement)>,
}

impl Floor {
    async fn new(url: &str, text: &str, batch_max: usize) -> Self {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let (client, connection) =
                tokio_postgres::connect(url, NoTls).await.expect("it answers");
            tokio::spawn(connection);
            let statement = client.prepare(text).await.expect("good SQL");
            clients.push((client, statement));
        }
        let size = Size { lanes: CONNECTIONS, batch_max, queue_max: 10_000 };
        Self { lanes: Lanes::start(size, Arc::new(Statements { clients })) }
    }
}

impl Carry for Statements {
    type Ask = String;
    type Answer = ();

    async fn carry(&self, lane: usize, asks: Vec<String>) -> Vec<Result<(), StoreError>> {
        let (client, statement) = &self.clients[lane];
        // Statements whose futures are polled together are written together.
        let run = asks.into_iter().map(async |key| {
            client.query_one(statement, &[&key.as_bytes()]).await.expect("it answers");
            Ok(())
        });
        admittance_testkit::join_all(run).await
    }
}

impl Asked for Floor {
    async fn ask(&self, number: usize) {
        self.lanes.ask(key(number)).await.expect("it answers");
    }
}

const CONNECTIONS: usize = 8;
const BATCH: usize = 128;
