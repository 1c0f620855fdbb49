//! A real primary with a real hot standby: writes go where writing is possible.

use crate::common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use admittance::concurrency::{FleetRules, Node, Report};
use admittance::{Builtin, Coordinator, Micros, Span, StoreError, Window};
use admittance_postgres::PostgresStore;
use admittance_testkit::servers::{PostgresServer, free_port};
use tempfile::TempDir;

/// A copy of a server that follows it, and can only be read until it is promoted.
struct Standby {
    process: Child,
    port: u16,
    _directory: TempDir,
}

impl Standby {
    async fn of(primary: &PostgresServer) -> Self {
        let (directory, port) = (TempDir::new().unwrap(), free_port());
        let data = directory.path().join("data");
        // The server's user owns its files and goes through the directory above.
        if is_root() {
            let owned = Command::new("chown").arg("postgres:").arg(directory.path()).status();
            assert!(owned.unwrap().success());
        }
        let mut copy = as_postgres("pg_basebackup");
        copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--pgdata"]);
        let copied = copy.arg(&data).arg(format!("--dbname={}", primary.url())).output().unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        let mut server = as_postgres("postgres");
        server.arg("-D").arg(&data);
        for setting in [
            format!("port={port}"),
            "listen_addresses=127.0.0.1".into(),
            format!("unix_socket_directories={}", data.display()),
            // A standby must allow for as many as its primary does.
            "max_connections=400".into(),
            "dynamic_shared_memory_type=mmap".into(),
            // Nothing here depends on what a crash would lose.
            "fsync=off".into(),
        ] {
            server.args(["-c", &setting]);
        }
        let process = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let standby = Self { process, port, _directory: directory };
        let url = standby.url();
        let there = async || tokio_postgres::connect(&url, tokio_postgres::NoTls).await.is_ok();
        common::until("the standby can be read", there).await;
        standby
    }

    fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        // SIGINT ends a server and all of its children; a kill would leave those.
        let ended = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
        if ended.is_ok_and(|status| status.success()) {
            let _ = self.process.wait();
        }
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// One of Postgres' programs, which refuse to run as root, and which end with this thread.
fn as_postgres(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).current_dir("/");
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
    }
    command.arg(program(name));
    command
}

fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let versions = versions.filter(|version| version.path().join("bin/postgres").is_file());
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let newest = versions.map(|version| version.path()).max_by_key(number);
    newest.map_or_else(|| Path::new(name).to_owned(), |version| version.join("bin").join(name))
}

fn window(limit: u64) -> Builtin {
    Window::fixed(limit, Span::from_secs(86_400 * 365)).unwrap().into()
}

#[test]
fn of_a_standby_and_its_primary_the_one_that_can_be_written_to_is_used() {
    let (primary, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let standby = Standby::of(&primary).await;
        let hosts = format!("127.0.0.1:{},127.0.0.1:{}", standby.port, primary.port());
        let store = common::store(&format!("postgres://postgres@{hosts}/postgres")).await;
        for left in [4, 3, 2] {
            let decision = common::check(&store, "api", &window(5), b"ann").await.unwrap();
            assert_eq!(decision.remaining, left);
        }
        assert_eq!(primary.sql("SELECT count(*) FROM admittance_logged").unwrap(), "1");
    });
}

#[test]
fn a_standby_is_unavailable_until_it_is_promoted() {
    let (primary, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let standby = Standby::of(&primary).await;
        let store = common::untried(&standby.url()).await;
        let answer = common::check(&store, "api", &window(5), b"ann").await;
        assert_eq!(answer, Err(StoreError::Unavailable));
        let client = common::client(&standby.url()).await;
        client.batch_execute("SELECT pg_promote()").await.unwrap();
        let decision = common::check_when_there(&store, "api", &window(5), b"ann").await.unwrap();
        assert_eq!(decision.remaining, 4);
    });
}

#[test]
fn a_connection_that_turns_out_to_be_read_only_is_made_anew() {
    let (primary, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        // Installed before the copy is made: nothing can be installed there.
        drop(common::store(&primary.url()).await);
        let standby = Standby::of(&primary).await;
        // Whoever says any gets the standby, as one who was connected before it was demoted.
        let url = format!("{}?target_session_attrs=any", standby.url());
        let builder = PostgresStore::builder(url).connections(1).reap_every(None);
        let store = builder.migrates(false).connect().await.unwrap();
        let client = common::client(&standby.url()).await;
        // The store's and the reaper's: only the first was told that it cannot write.
        let sessions = async || -> Vec<i32> {
            let read = "SELECT pid FROM pg_stat_activity WHERE application_name = 'admittance'";
            client.query(read, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
        };
        let both = async || sessions().await.len() == 2;
        common::until("the store and its reaper are connected", both).await;
        let before = sessions().await;
        let answer = common::check(&store, "api", &window(5), b"ann").await;
        assert_eq!(answer, Err(StoreError::Unavailable));
        let anew = async || {
            let now = sessions().await;
            now.len() == 2 && now.iter().filter(|pid| before.contains(pid)).count() == 1
        };
        common::until("the connection is another one", anew).await;
        let before = sessions().await;
        assert_eq!(store.reap().await, Err(StoreError::Unavailable));
        let anew = async || {
            let now = sessions().await;
            now.len() == 2 && now.iter().filter(|pid| before.contains(pid)).count() == 1
        };
        common::until("the reaper's connection is another one", anew).await;
    });
}

#[test]
fn a_promoted_standby_grants_nothing_before_what_its_primary_granted_has_surely_ended() {
    let (primary, runtime) = (common::server(), common::runtime());
    runtime.block_on(async {
        let (rules, start) = (FleetRules::default(), Micros::from_epoch_ms(1_700_000_000_000));
        let (start, quiet) = (start.unwrap(), Span::from_us(rules.ttl.us() + rules.max_hold.us()));
        let report = |name, sequence| Report {
            node: Node::new(name, 1).unwrap(),
            sequence,
            local_limit: 40,
            is_sampled: true,
            in_flight: 0,
            epoch: 0,
            applied: 0,
            new_epoch: 1_000 + sequence,
        };
        let store = common::store(&primary.url()).await;
        let standby = Standby::of(&primary).await;
        for (at, share) in [(start, 0), (start + quiet, 40)] {
            store.set_now(Some(at));
            let grant = store.beat("fleet", &rules, &report("a", at.epoch_us())).await.unwrap();
            assert_eq!(grant.share, share);
        }
        let client = common::client(&standby.url()).await;
        client.batch_execute("SELECT pg_promote()").await.unwrap();
        let promoted = common::store(&standby.url()).await;
        let founded = start + quiet;
        let instants = [founded, founded + quiet - Span::TICK, founded + quiet];
        for (at, share) in instants.into_iter().zip([0, 0, 40]) {
            promoted.set_now(Some(at));
            let grant = promoted.beat("fleet", &rules, &report("b", at.epoch_us())).await.unwrap();
            assert_eq!(grant.share, share);
        }
    });
}
