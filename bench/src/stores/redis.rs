//! Redis: ours, the scripts that decide nothing, and the one of the public client.

use std::path::PathBuf;
use std::sync::Arc;

use admittance::StoreError;
use admittance::store::lanes::{Carry, Lanes, Size};
use admittance_redis::RedisStore;
use admittance_testkit::servers::RedisServer;
use redis::aio::MultiplexedConnection;

use super::load::Asked;
use super::{CALLERS, Checked, Contender, Effort, Report, Scenario, key};

const OURS: &str = "admittance";
const ALONE: &str = "admittance, one check per script";
const FLOOR: &str = "script of TIME, GET, SET PX";
const EMPTY: &str = "empty script";
const PEER: &str = "throttlekit-py's gcra script";

pub(super) async fn run(effort: Effort, report: &mut Report) {
    let server = RedisServer::start().expect("redis-server starts");
    println!("redis-server {} on loopback", version(&server));
    let store = |prefix: &str| RedisStore::builder(&server.url()).prefix(prefix);
    let floor = "local t = redis.call('TIME') redis.call('GET', KEYS[1]) \
                 redis.call('SET', KEYS[1], t[1], 'PX', 60000) return 1";
    let mut contenders = vec![
        Contender::new(OURS, Checked::new(store("ours").build().expect("a good url"))),
        Contender::new(FLOOR, Script::new(&server, floor, "floor", &[]).await),
        Contender::new(EMPTY, Script::new(&server, "return 1", "empty", &[]).await),
    ];
    match peer_script() {
        Some(text) => {
            // now (0: the server's), period in ms, limit, burst, cost.
            let arguments = ["0", "3600000", "3600", "3600", "1"];
            contenders
                .push(Contender::new(PEER, Script::new(&server, &text, "peer", &arguments).await));
        }
        None => println!("without the public client's script: run ./test once, it installs it"),
    }
    for callers in CALLERS {
        let name = format!("Redis, 100k keys, {callers} caller(s)");
        let scenario = Scenario::measure(name, &contenders, callers, effort).await;
        if callers == 256 {
            report.claim(0.6, &scenario, OURS, FLOOR);
            report.claim(1.0, &scenario, OURS, PEER);
        }
        report.scenarios.push(scenario);
    }
    // The same without putting several checks into one script.
    let alone = Size { batch_max: 1, lanes: 64, ..SIZE };
    let alone = store("alone").lanes(alone).build().expect("a good url");
    contenders.insert(1, Contender::new(ALONE, Checked::new(alone)));
    for name in ["Redis, 100k keys, 256 callers, uncoalesced too", "Redis, one key, 256 callers"] {
        let scenario = Scenario::measure(name.to_owned(), &contenders, 256, effort).await;
        report.scenarios.push(scenario);
    }
    memory(&server, effort, report).await;
}

/// What a gcra key takes in the server, with its name and its expiry.
async fn memory(server: &RedisServer, effort: Effort, report: &mut Report) {
    server.command(&["FLUSHALL"]).expect("the server answers");
    let before = used(server);
    let store = RedisStore::builder(&server.url()).build().expect("a good url");
    let checked = Arc::new(Checked::new(store));
    let mut asks = tokio::task::JoinSet::new();
    for number in 0..effort.keys {
        let checked = Arc::clone(&checked);
        asks.spawn(async move { checked.ask(number).await });
        while asks.len() > 512 {
            asks.join_next().await;
        }
    }
    asks.join_all().await;
    let bytes = (used(server) - before) / effort.keys as f64;
    println!("\nRedis memory, {} gcra keys of 24 bytes", effort.keys);
    report.fact("Redis bytes per gcra key", bytes);
}

fn used(server: &RedisServer) -> f64 {
    let info = server.command(&["INFO", "memory"]).expect("the server answers");
    info.field("used_memory").and_then(|text| text.parse().ok()).expect("INFO says it")
}

fn version(server: &RedisServer) -> String {
    let info = server.command(&["INFO", "server"]).expect("the server answers");
    info.field("redis_version").unwrap_or_default()
}

/// The script that the public client ships, from where `./test` installs it.
fn peer_script() -> Option<String> {
    let versions = std::fs::read_dir(".venv/lib").ok()?;
    let of = |version: PathBuf| version.join("site-packages/throttlekit/_scripts/gcra.check.lua");
    let mut paths = versions.flatten().map(|entry| of(entry.path()));
    paths.find_map(|path| std::fs::read_to_string(path).ok())
}

/// A script that is called once per ask, through the lanes that our store uses.
struct Script {
    lanes: Lanes<Pipeline>,
}

struct Pipeline {
    connections: Vec<MultiplexedConnection>,
    hash: String,
    prefix: &'static str,
    arguments: Vec<String>,
}

impl Script {
    async fn new(
        server: &RedisServer,
        text: &str,
        prefix: &'static str,
        arguments: &[&str],
    ) -> Self {
        let client = redis::Client::open(server.url()).expect("a good url");
        let mut connections = Vec::new();
        for _ in 0..SIZE.lanes {
            let connection = client.get_multiplexed_async_connection().await;
            connections.push(connection.expect("the server answers"));
        }
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(text).to_owned();
        let hash = load.query_async(&mut connections[0]).await.expect("the script compiles");
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let pipeline = Pipeline { connections, hash, prefix, arguments };
        Self { lanes: Lanes::start(SIZE, Arc::new(pipeline)) }
    }
}

impl Carry for Pipeline {
    type Ask = String;
    type Answer = ();

    async fn carry(&self, lane: usize, asks: Vec<String>) -> Vec<Result<(), StoreError>> {
        let mut pipe = redis::pipe();
        for key in &asks {
            let call = pipe.cmd("EVALSHA").arg(&self.hash).arg(1);
            call.arg(format!("{}:{key}", self.prefix)).arg(&self.arguments).ignore();
        }
        let mut connection = self.connections[lane].clone();
        let sent: redis::RedisResult<()> = pipe.query_async(&mut connection).await;
        sent.expect("the server answers");
        asks.iter().map(|_| Ok(())).collect()
    }
}

impl Asked for Script {
    async fn ask(&self, number: usize) {
        self.lanes.ask(key(number)).await.expect("the server answers");
    }
}

/// As our store has it if nobody says otherwise.
const SIZE: Size = Size { lanes: 2, batch_max: 512, queue_max: 10_000 };
