//! A primary with two replicas, and three sentinels that watch over them.

use std::fs;
use std::path::Path;

use super::failure::wait_for;
use super::redis::{Flavor, RedisServer, usual};
use super::{Failure, Reply};

/// Three servers of data, of which one is the primary, and three sentinels, of which two must agree
/// that it is gone before another becomes the primary.
#[derive(Debug)]
pub struct RedisSentinel {
    /// First, so that they end before what they watch and see nothing of its end.
    sentinels: Vec<RedisServer>,
    servers: Vec<RedisServer>,
}

impl RedisSentinel {
    /// Starts a group of Redis. All know each other and the replicas follow when this returns.
    ///
    /// # Errors
    /// Redis is not installed, or the group does not form.
    pub fn start() -> Result<Self, Failure> {
        Self::start_flavor(Flavor::Redis)
    }

    /// Starts a group of either.
    ///
    /// # Errors
    /// The server is not installed, or the group does not form.
    pub fn start_flavor(flavor: Flavor) -> Result<Self, Failure> {
        let primary = RedisServer::start_flavor(flavor, &SERVER_ARGUMENTS)?;
        let port = primary.port();
        let mut servers = vec![primary];
        for _ in 0..REPLICAS {
            servers.push(RedisServer::launch(flavor, |own, _| {
                let mut arguments = usual(own, &SERVER_ARGUMENTS);
                let primary = format!("127.0.0.1 {port}");
                arguments.extend(["--replicaof".into(), primary.into()]);
                Ok(arguments)
            })?);
        }
        wait_for("replicas follow", || {
            let replication = servers[0].command(&["INFO", "replication"]).ok()?;
            let online = |index: usize| {
                Some(replication.field(&format!("slave{index}"))?.contains("state=online"))
            };
            (0..REPLICAS).all(|index| online(index) == Some(true)).then_some(())
        })?;
        let sentinel = |_| {
            RedisServer::launch(flavor, |own, directory: &Path| {
                let file = directory.join("sentinel.conf");
                fs::write(&file, configuration(own, port)).map_err(Failure::io("write a file"))?;
                Ok(vec![file.into(), "--sentinel".into()])
            })
        };
        let sentinels = (0..SENTINELS).map(sentinel).collect::<Result<Vec<_>, _>>()?;
        for sentinel in &sentinels {
            sentinel.command(&HURRY)?;
        }
        let group = Self { sentinels, servers };
        group.wait_until_whole()?;
        Ok(group)
    }

    /// Waits until each sentinel sees a primary that is up, two replicas that are, and both other
    /// sentinels. For instance after a killed server was started again.
    ///
    /// # Errors
    /// It takes more than a minute.
    pub fn wait_until_whole(&self) -> Result<(), Failure> {
        let whole = |sentinel: &RedisServer| {
            let primary = sentinel.command(&["SENTINEL", "MASTER", NAME]).ok()?;
            let up = attribute(&primary, "flags")? == "master";
            let others = attribute(&primary, "num-other-sentinels")?;
            let known = others == (SENTINELS - 1).to_string();
            let replicas = sentinel.command(&["SENTINEL", "REPLICAS", NAME]).ok()?;
            let follows = |replica: &Reply| {
                let linked = attribute(replica, "master-link-status").as_deref() == Some("ok");
                linked && attribute(replica, "flags").as_deref() == Some("slave")
            };
            let following = replicas.array().iter().filter(|replica| follows(replica)).count();
            Some(up && known && following == REPLICAS)
        };
        wait_for("all of a sentinel group know each other", || {
            self.sentinels.iter().all(|sentinel| whole(sentinel) == Some(true)).then_some(())
        })
    }

    /// The name that the sentinels know the primary by.
    #[must_use]
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// The urls of the sentinels.
    #[must_use]
    pub fn sentinel_urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// The sentinels, to be looked at, paused or killed.
    #[must_use]
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The servers of data, in the order they were started: the first was born the primary.
    #[must_use]
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The primary, as most of the sentinels see it.
    ///
    /// # Errors
    /// No two sentinels agree.
    pub fn primary(&self) -> Result<&RedisServer, Failure> {
        let ports: Vec<u16> = self.sentinels.iter().filter_map(primary_port).collect();
        let votes = |port: u16| ports.iter().filter(|vote| **vote == port).count();
        let elected = self.servers.iter().find(|server| votes(server.port()) >= QUORUM);
        elected.ok_or(Failure::Unexpected { answer: format!("sentinels name {ports:?}") })
    }

    /// The servers of data other than the primary, whether they run or not.
    ///
    /// # Errors
    /// No two sentinels agree which is the primary.
    pub fn replicas(&self) -> Result<Vec<&RedisServer>, Failure> {
        let primary = self.primary()?.port();
        Ok(self.servers.iter().filter(|server| server.port() != primary).collect())
    }

    /// Kills the primary and waits until the sentinels made another one, which is given. From then
    /// on they leave it alone: on a busy machine a server may be silent for half a second, and a
    /// second failover that nobody asked for would lose what only the first one's server has.
    ///
    /// # Errors
    /// There is no primary, or none takes over within a minute.
    pub fn failover(&self) -> Result<&RedisServer, Failure> {
        let dead = self.primary()?;
        dead.kill();
        wait_for("a replica takes over", || {
            self.primary().ok().filter(|next| next.port() != dead.port())
        })?;
        for sentinel in &self.sentinels {
            sentinel.command(&PATIENCE)?;
        }
        // One that had begun before may still end.
        wait_for("the sentinels are at rest", || {
            let at_rest = |sentinel: &RedisServer| {
                let primary = sentinel.command(&["SENTINEL", "MASTER", NAME]).ok()?;
                Some(attribute(&primary, "flags")? == "master")
            };
            if !self.sentinels.iter().all(|sentinel| at_rest(sentinel) == Some(true)) {
                return None;
            }
            let ports: Vec<u16> = self.sentinels.iter().filter_map(primary_port).collect();
            let next = self.servers.iter().find(|server| ports == [server.port(); SENTINELS])?;
            let role = next.command(&["ROLE"]).ok()?.array().first()?.text()?;
            (role == "master").then_some(next)
        })
    }
}

fn primary_port(sentinel: &RedisServer) -> Option<u16> {
    sentinel.pid()?;
    let address = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]).ok()?;
    address.array().get(1)?.text()?.parse().ok()
}

/// The value after a name in a flat list of names and values.
fn attribute(reply: &Reply, name: &str) -> Option<String> {
    let mut pairs = reply.array().chunks_exact(2);
    pairs.find(|pair| pair[0].text().as_deref() == Some(name))?[1].text()
}

fn configuration(own: u16, primary: u16) -> String {
    format!(
        "port {own}\n\
         bind 127.0.0.1\n\
         protected-mode no\n\
         sentinel monitor {NAME} 127.0.0.1 {primary} {QUORUM}\n\
         sentinel down-after-milliseconds {NAME} 500\n\
         sentinel failover-timeout {NAME} 2000\n\
         sentinel parallel-syncs {NAME} 2\n"
    )
}

const NAME: &str = "admittance";
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
const QUORUM: usize = 2;
/// The default waits five seconds for more replicas before it sends the first one its data.
const SERVER_ARGUMENTS: [&str; 2] = ["--repl-diskless-sync-delay", "0"];
/// How long a primary may be silent once one has taken over.
const PATIENCE: [&str; 5] = ["SENTINEL", "SET", NAME, "down-after-milliseconds", "600000"];
/// Sentinels look at their servers every ten seconds and stay out of everything for thirty after a
/// pause. Both are long for a test; a sentinel that is started again has the usual times. The
/// period of pings stays: five of them is how old the news of a replica may be for it to be
/// promoted.
const HURRY: [&str; 10] = [
    "SENTINEL",
    "DEBUG",
    "INFO-PERIOD",
    "500",
    "ASK-PERIOD",
    "100",
    "PUBLISH-PERIOD",
    "200",
    "TILT-PERIOD",
    "1000",
];
