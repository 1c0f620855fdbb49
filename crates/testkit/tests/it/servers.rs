//! The servers that tests start: they answer, can be stopped and started, and leave nothing behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use admittance_testkit::servers::{
    Connection, Failure, Flavor, PostgresServer, Proxy, RedisCluster, RedisSentinel, RedisServer,
    Reply, alive,
};

type Outcome = Result<(), Failure>;

#[test]
fn redis_answers_pauses_restarts_and_ends() -> Outcome {
    survives(&RedisServer::start()?)?;
    ends(RedisServer::start()?)
}

#[test]
fn valkey_answers_pauses_restarts_and_ends() -> Outcome {
    let server = RedisServer::start_valkey()?;
    assert!(server.command(&["INFO", "server"])?.field("valkey_version").is_some());
    survives(&server)?;
    ends(server)
}

fn survives(server: &RedisServer) -> Outcome {
    server.command(&["SET", "key", "value"])?;
    assert_eq!(server.command(&["GET", "key"])?, Reply::Bulk(b"value".to_vec()));
    assert!(matches!(server.command(&["GET"]), Err(Failure::Refused { .. })));

    // A paused server is connected to and gives no answer; a resumed one gives it late.
    let mut connection = server.connect()?;
    server.pause()?;
    let answer = in_background(move || connection.command(&["GET", "key"]));
    assert!(matches!(answer.try_recv(), Err(TryRecvError::Empty)));
    server.resume()?;
    assert_eq!(received(&answer)?, Reply::Bulk(b"value".to_vec()));

    let (pid, port) = (server.pid(), server.port());
    server.restart()?;
    assert_ne!(server.pid(), pid);
    assert_eq!(server.port(), port);
    assert_eq!(server.command(&["GET", "key"])?, Reply::Nil);

    server.kill();
    assert!(matches!(server.pause(), Err(Failure::NotRunning)));
    assert!(server.command(&["PING"]).is_err());
    server.restart()?;
    assert_eq!(server.command(&["PING"])?, Reply::Status("PONG".to_owned()));
    Ok(())
}

fn ends(server: RedisServer) -> Outcome {
    let pid = server.pid().expect("it runs");
    assert!(alive(pid));
    drop(server);
    assert!(!alive(pid));
    Ok(())
}

#[test]
fn redis_keeps_what_it_was_told_to_keep() -> Outcome {
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"])?;
    server.command(&["SET", "key", "value"])?;
    server.restart()?;
    assert_eq!(server.command(&["GET", "key"])?.text().as_deref(), Some("value"));
    Ok(())
}

#[test]
fn a_server_that_does_not_start_shows_its_log() {
    let failure = RedisServer::start_with(&["--no-such-option", "1"]).unwrap_err();
    assert!(failure.to_string().contains("no-such-option"), "{failure}");
}

#[test]
fn redis_speaks_tls() -> Outcome {
    let server = RedisServer::start_tls()?;
    let url = server.url();
    let password = url.strip_prefix("rediss://:").unwrap().split('@').next().unwrap();
    let output = Command::new("redis-cli")
        .args(["-h", "127.0.0.1", "-p", &server.port().to_string(), "--tls", "--cacert"])
        .arg(server.ca_pem_path().unwrap())
        .args(["--no-auth-warning", "-a", password, "PING"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "PONG");
    assert_eq!(server.command(&["DBSIZE"])?, Reply::Integer(0));
    // Without the password there is no answer on either port.
    assert!(Connection::open(server.address())?.command(&["DBSIZE"]).is_err());
    server.restart()
}

#[test]
fn a_cluster_forms_and_fails_over() -> Outcome {
    fails_over(&RedisCluster::start()?)
}

#[test]
fn a_cluster_of_valkey_forms_and_fails_over() -> Outcome {
    fails_over(&RedisCluster::start_valkey()?)
}

fn fails_over(cluster: &RedisCluster) -> Outcome {
    assert_eq!(cluster.urls().len(), 6);
    let slot = cluster.slot_of("key")?;
    let primary = cluster.primary_of(slot)?;
    assert!(primary < 3);
    // On one connection: `WAIT` waits for what its own connection wrote.
    let mut writer = cluster.node(primary).connect()?;
    writer.command(&["SET", "key", "value"])?;
    assert_eq!(writer.command(&["WAIT", "1", "5000"])?, Reply::Integer(1));
    let other = (primary + 1) % 3;
    let moved = cluster.node(other).command(&["GET", "key"]).expect_err("another slot");
    assert!(moved.to_string().contains("MOVED"), "{moved}");

    let next = cluster.failover(primary)?;
    assert_eq!(next, primary + 3);
    assert_eq!(cluster.primary_of(slot)?, next);
    assert_eq!(cluster.node(next).command(&["GET", "key"])?.text().as_deref(), Some("value"));

    cluster.node(primary).restart()?;
    cluster.wait_until_whole()?;
    assert_eq!(cluster.primary_of(slot)?, next);
    Ok(())
}

#[test]
fn sentinels_replace_a_killed_primary() -> Outcome {
    let group = RedisSentinel::start()?;
    assert_eq!(group.sentinel_urls().len(), 3);
    let before = group.primary()?;
    assert_eq!(before.port(), group.servers()[0].port());
    let mut writer = before.connect()?;
    writer.command(&["SET", "key", "value"])?;
    assert_eq!(writer.command(&["WAIT", "2", "5000"])?, Reply::Integer(2));

    let after = group.failover()?;
    assert_ne!(after.port(), before.port());
    assert_eq!(after.command(&["GET", "key"])?.text().as_deref(), Some("value"));
    assert_eq!(group.replicas()?.len(), 2);

    before.restart()?;
    group.wait_until_whole()
}

#[test]
fn sentinels_of_valkey_know_each_other() -> Outcome {
    let group = RedisSentinel::start_flavor(Flavor::Valkey)?;
    assert_eq!(group.primary()?.port(), group.servers()[0].port());
    Ok(())
}

#[test]
fn postgres_answers_pauses_restarts_and_ends() -> Outcome {
    let server = PostgresServer::start_with(&["fsync=off"])?;
    assert_eq!(server.sql("SHOW max_connections")?, "200");
    assert_eq!(server.sql("SHOW fsync")?, "off");
    assert!(server.sql("SELECT no_such_thing").unwrap_err().to_string().contains("no_such_thing"));

    let url = server.database("fresh")?;
    assert!(url.ends_with("/fresh"));
    server.sql_in("fresh", "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1), (2)")?;
    assert_eq!(server.sql_in("fresh", "SELECT n, n FROM kept ORDER BY n")?, "1|1\n2|2");

    std::thread::scope(|scope| -> Outcome {
        server.pause()?;
        let answer = scope.spawn(|| server.sql("SELECT 1"));
        // Nobody can answer, so this holds whenever it is looked at.
        assert!(!answer.is_finished());
        server.resume()?;
        assert_eq!(answer.join().expect("no panic")?, "1");
        Ok(())
    })?;

    server.restart()?;
    assert_eq!(server.sql_in("fresh", "SELECT count(*) FROM kept")?, "2");
    server.pause()?;
    server.kill();
    assert!(server.sql("SELECT 1").is_err());
    server.restart()?;
    assert_eq!(server.sql_in("fresh", "SELECT count(*) FROM kept")?, "2");
    server.database("fresh")?;
    assert!(server.sql_in("fresh", "SELECT count(*) FROM kept").is_err());

    let pid = server.pid().expect("it runs");
    server.pause()?;
    drop(server);
    assert!(!alive(pid));
    Ok(())
}

#[test]
fn a_crash_of_postgres_empties_unlogged_tables_only() -> Outcome {
    let server = PostgresServer::start()?;
    assert_eq!(server.sql("SHOW fsync")?, "on");
    server.sql("CREATE TABLE logged (n int); CREATE UNLOGGED TABLE unlogged (n int)")?;
    server.sql("INSERT INTO logged VALUES (1); INSERT INTO unlogged VALUES (1)")?;
    let counts = "SELECT (SELECT count(*) FROM logged), (SELECT count(*) FROM unlogged)";
    server.restart()?;
    assert_eq!(server.sql(counts)?, "1|1");
    server.crash_restart()?;
    assert_eq!(server.sql(counts)?, "1|0");
    Ok(())
}

/// Runs itself once more as a process that starts servers, and kills that one.
#[test]
fn servers_end_with_a_killed_process() -> Outcome {
    const NAME: &str = "servers::servers_end_with_a_killed_process";
    const HOLDS: &str = "ADMITTANCE_TEST_HOLDS_SERVERS";
    if std::env::var_os(HOLDS).is_some() {
        let (redis, postgres) = (RedisServer::start()?, PostgresServer::start()?);
        let (paused_redis, paused) = (RedisServer::start()?, PostgresServer::start()?);
        let backends: Vec<u32> = paused
            .sql("SELECT pid FROM pg_stat_activity WHERE backend_type <> 'client backend'")?
            .lines()
            .map(|pid| pid.parse().unwrap())
            .collect();
        paused_redis.pause()?;
        paused.pause()?;
        let pids = [redis.pid(), postgres.pid(), paused_redis.pid(), paused.pid()];
        let pids = pids.into_iter().flatten().chain(backends).map(|pid| pid.to_string());
        // Not `println`, which the harness keeps to itself.
        let line = format!("\n{HOLDS} {}\n", pids.collect::<Vec<_>>().join(" "));
        std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()).unwrap();
        loop {
            std::thread::park();
        }
    }
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(HOLDS, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find_map(|line| line.strip_prefix(HOLDS).map(str::to_owned));
    let Some(line) = line else {
        let ended = holder.wait_with_output().unwrap();
        panic!("the other process started no servers: {}", String::from_utf8_lossy(&ended.stderr));
    };
    let pids: Vec<u32> = line.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.len() > 4);
    assert!(pids.iter().all(|pid| alive(*pid)));
    holder.kill().unwrap();
    holder.wait().unwrap();
    eventually("its servers end", || pids.iter().all(|pid| !alive(*pid)));
    Ok(())
}

#[test]
fn a_proxy_passes_delays_and_counts() -> Outcome {
    let redis = RedisServer::start()?;
    let proxy = Proxy::start(redis.address())?;
    let mut client = Connection::open(proxy.address())?;
    client.command(&["SET", "key", "value"])?;
    client.command(&["GET", "key"])?;
    assert_eq!((proxy.connections(), proxy.commands(), proxy.chunks_to_server()), (1, 2, 2));
    assert_eq!(proxy.bytes_to_server(), 33 + 22);
    assert_eq!(proxy.bytes_to_client(), 5 + 11);

    // Long enough that only a switch can end it.
    proxy.delay(Duration::from_secs(3_600));
    let answer = in_background(move || client.command(&["GET", "key"]));
    assert!(matches!(answer.try_recv(), Err(TryRecvError::Empty)));
    assert_eq!(proxy.commands(), 2);
    proxy.delay(Duration::from_millis(1));
    assert_eq!(received(&answer)?.text().as_deref(), Some("value"));
    assert_eq!(proxy.commands(), 3);
    Ok(())
}

#[test]
fn a_proxy_holds_back_and_cuts() -> Outcome {
    let redis = RedisServer::start()?;
    let proxy = Proxy::start(redis.address())?;
    let mut old = Connection::open(proxy.address())?;
    old.command(&["PING"])?;

    proxy.blackhole();
    let passed = proxy.bytes_to_server();
    let mut new = Connection::open(proxy.address())?;
    let waiting = in_background(move || old.command(&["INCR", "key"]));
    let also_waiting = in_background(move || new.command(&["INCR", "key"]));
    assert!(matches!(waiting.try_recv(), Err(TryRecvError::Empty)));
    assert_eq!(proxy.bytes_to_server(), passed);
    assert_eq!(redis.command(&["EXISTS", "key"])?, Reply::Integer(0));
    proxy.pass();
    let sum = received(&waiting)?.integer().unwrap() + received(&also_waiting)?.integer().unwrap();
    assert_eq!(sum, 3);

    let mut open = Connection::open(proxy.address())?;
    open.command(&["PING"])?;
    proxy.cut();
    assert!(open.command(&["PING"]).is_err());
    assert!(Connection::open(proxy.address()).is_err());
    proxy.pass();
    Connection::open(proxy.address())?.command(&["PING"])?;
    Ok(())
}

/// A program that is being started shares this process's sockets for a moment.
#[test]
fn a_proxy_that_is_cut_refuses_while_programs_start() -> Outcome {
    let redis = RedisServer::start()?;
    let proxy = Proxy::start(redis.address())?;
    std::thread::scope(|scope| {
        let starts = scope.spawn(|| {
            for _ in 0..500 {
                assert!(Command::new("true").status().unwrap().success());
            }
        });
        while !starts.is_finished() {
            proxy.cut();
            assert!(Connection::open(proxy.address()).is_err());
            proxy.pass();
        }
    });
    Connection::open(proxy.address())?.command(&["PING"])?;
    Ok(())
}

#[test]
fn a_proxy_swallows_answers_and_not_requests() -> Outcome {
    let redis = RedisServer::start()?;
    let proxy = Proxy::start(redis.address())?;
    let mut client = Connection::open(proxy.address())?;
    client.command(&["PING"])?;
    proxy.drop_replies();
    let passed = proxy.bytes_to_client();
    let answer = in_background(move || client.command(&["INCR", "key"]));
    eventually("the request arrives", || {
        redis.command(&["GET", "key"]).is_ok_and(|reply| reply.text().as_deref() == Some("1"))
    });
    assert_eq!(proxy.bytes_to_client(), passed);
    // The answer is lost for good: the connection ends rather than go on without it. Had the
    // answer not come to the proxy yet, it would pass, and that too is what a network does.
    proxy.pass();
    match received(&answer) {
        Err(Failure::Io { .. }) | Ok(Reply::Integer(1)) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(Connection::open(proxy.address())?.command(&["INCR", "key"])?, Reply::Integer(2));
    Ok(())
}

#[test]
fn a_proxy_counts_the_round_trips_of_postgres() -> Outcome {
    let server = PostgresServer::start_with(&["fsync=off"])?;
    let proxy = Proxy::start(server.address())?;
    let url = server.url().replace(&server.port().to_string(), &proxy.port().to_string());
    let output = Command::new("psql")
        .args(["-XAtq", "-c", "SELECT 1", "-c", "SELECT 2", "-d", &url])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n2\n");
    assert_eq!((proxy.round_trips(), proxy.commands()), (2, 0));
    Ok(())
}

fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(work()));
    receiver
}

fn received<T>(receiver: &Receiver<T>) -> T {
    receiver.recv().expect("the other thread sends its answer")
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not in time: {what}");
}
