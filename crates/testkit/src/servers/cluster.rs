//! A Redis Cluster: three primaries, each with a replica.

use std::collections::BTreeMap;

use super::failure::wait_for;
use super::redis::{Flavor, RedisServer, usual};
use super::{Failure, Reply, free_port};

/// Six nodes. Nodes 0, 1 and 2 are born primaries of a third of the slots each, and node `i + 3` is
/// the replica of node `i`; after a failover it is otherwise.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts a cluster of Redis. It serves all slots and its replicas follow when this returns.
    ///
    /// # Errors
    /// Redis is not installed, or the cluster does not form.
    pub fn start() -> Result<Self, Failure> {
        Self::start_flavor(Flavor::Redis)
    }

    /// Starts a cluster of Valkey.
    ///
    /// # Errors
    /// Valkey is not installed, or the cluster does not form.
    pub fn start_valkey() -> Result<Self, Failure> {
        Self::start_flavor(Flavor::Valkey)
    }

    /// Starts a cluster of either.
    ///
    /// # Errors
    /// The server is not installed, or the cluster does not form.
    pub fn start_flavor(flavor: Flavor) -> Result<Self, Failure> {
        let node = |_| {
            RedisServer::launch(flavor, |port, _| {
                let bus = free_port().to_string();
                let mut arguments = usual(port, &NODE_ARGUMENTS);
                arguments.extend(["--cluster-port".into(), bus.into()]);
                Ok(arguments)
            })
        };
        let nodes = (0..PRIMARIES * 2).map(node).collect::<Result<Vec<_>, _>>()?;
        let cluster = Self { nodes };
        cluster.form()?;
        Ok(cluster)
    }

    fn form(&self) -> Result<(), Failure> {
        let per_primary = SLOTS.div_ceil(PRIMARIES);
        for (index, node) in self.nodes.iter().enumerate() {
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
            if index < PRIMARIES {
                let first = (index * per_primary).to_string();
                let last = (((index + 1) * per_primary).min(SLOTS) - 1).to_string();
                node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
            }
        }
        for node in &self.nodes[1..] {
            let config = node.command(&["CONFIG", "GET", "cluster-port"])?;
            let bus = config.array().get(1).and_then(Reply::text);
            let bus = bus.ok_or(Failure::Unexpected { answer: format!("{config:?}") })?;
            let port = node.port().to_string();
            self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        let (primaries, replicas) = self.nodes.split_at(PRIMARIES);
        for (primary, replica) in primaries.iter().zip(replicas) {
            let id = primary.command(&["CLUSTER", "MYID"])?;
            let id = id.text().ok_or(Failure::Unexpected { answer: format!("{id:?}") })?;
            // The replica may not have heard of its primary yet.
            wait_for("a replica knows its primary", || {
                replica.command(&["CLUSTER", "REPLICATE", &id]).ok()
            })?;
        }
        self.wait_until_whole()
    }

    /// Waits until all six nodes run, every one of them sees all slots served by a primary with a
    /// replica, and each replica has what its primary has. For instance after a killed node was
    /// started again.
    ///
    /// # Errors
    /// It takes more than a minute.
    pub fn wait_until_whole(&self) -> Result<(), Failure> {
        wait_for("all nodes of a cluster agree and follow", || {
            let whole = |node: &RedisServer| {
                let owners = owners(node)?;
                let served: usize = owners.values().map(|owner| owner.slots).sum();
                let followed = owners.values().all(|owner| owner.replicas > 0);
                Some(is_ok(node)? && served == SLOTS && followed && is_synced(node)?)
            };
            self.nodes.iter().all(|node| whole(node) == Some(true)).then_some(())
        })
    }

    /// The nodes' urls.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// One node, to be looked at, paused or killed.
    ///
    /// # Panics
    /// If there is no such node: there are six.
    #[must_use]
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index]
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// No node answers.
    pub fn slot_of(&self, key: &str) -> Result<usize, Failure> {
        let slot = self.first_answer(|node| {
            let slot = node.command(&["CLUSTER", "KEYSLOT", key]).ok()?.integer()?;
            usize::try_from(slot).ok()
        });
        slot.ok_or(Failure::NotRunning)
    }

    /// Which node is the primary of a slot, as the first node that answers sees it.
    ///
    /// # Errors
    /// No node answers, or nobody serves the slot.
    pub fn primary_of(&self, slot: usize) -> Result<usize, Failure> {
        let primary = self.first_answer(|node| {
            let port = *owners_of_slots(node)?.get(slot)?;
            self.index_of(port?)
        });
        primary.ok_or(Failure::NotRunning)
    }

    /// Kills a primary and waits until every other node sees its slots served by another, whose
    /// index is given.
    ///
    /// # Errors
    /// The node has no slots, or nobody takes over within a minute.
    pub fn failover(&self, primary: usize) -> Result<usize, Failure> {
        let dead = self.nodes[primary].port();
        let slots = owners_of_slots(&self.nodes[primary]).ok_or(Failure::NotRunning)?;
        let slot = slots.iter().position(|port| *port == Some(dead)).ok_or_else(|| {
            Failure::Unexpected { answer: format!("node {primary} serves no slot") }
        })?;
        self.nodes[primary].kill();
        wait_for("a replica takes over", || {
            let mut agreed = None;
            // Nodes that the test killed before have no say.
            for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
                let port = (*owners_of_slots(node)?.get(slot)?)?;
                if !is_ok(node)? || port == dead || agreed.is_some_and(|other| other != port) {
                    return None;
                }
                agreed = Some(port);
            }
            self.index_of(agreed?)
        })
    }

    fn first_answer<T>(&self, ask: impl FnMut(&RedisServer) -> Option<T>) -> Option<T> {
        self.nodes.iter().filter(|node| node.pid().is_some()).find_map(ask)
    }

    fn index_of(&self, port: u16) -> Option<usize> {
        self.nodes.iter().position(|node| node.port() == port)
    }
}

/// How much one primary has, as a node sees it.
#[derive(Default)]
struct Owner {
    slots: usize,
    replicas: usize,
}

/// The primaries by their ports.
fn owners(node: &RedisServer) -> Option<BTreeMap<u16, Owner>> {
    let mut owners = BTreeMap::<u16, Owner>::new();
    for (first, last, port, replicas) in ranges(node)? {
        let owner = owners.entry(port).or_default();
        owner.slots += last + 1 - first;
        owner.replicas = replicas;
    }
    Some(owners)
}

/// The port of each slot's primary.
fn owners_of_slots(node: &RedisServer) -> Option<Vec<Option<u16>>> {
    let mut slots = vec![None; SLOTS];
    for (first, last, port, _) in ranges(node)? {
        slots.get_mut(first..=last)?.fill(Some(port));
    }
    Some(slots)
}

/// What `CLUSTER SLOTS` says: first slot, last slot, port of the primary, number of replicas.
fn ranges(node: &RedisServer) -> Option<Vec<(usize, usize, u16, usize)>> {
    let reply = node.command(&["CLUSTER", "SLOTS"]).ok()?;
    let range = |entry: &Reply| {
        let entry = entry.array();
        let number = |at: usize| usize::try_from(entry.get(at)?.integer()?).ok();
        let port = u16::try_from(entry.get(2)?.array().get(1)?.integer()?).ok()?;
        Some((number(0)?, number(1)?, port, entry.len() - 3))
    };
    reply.array().iter().map(range).collect()
}

fn is_ok(node: &RedisServer) -> Option<bool> {
    Some(node.command(&["CLUSTER", "INFO"]).ok()?.field("cluster_state")? == "ok")
}

/// A primary always is; a replica is when it follows.
fn is_synced(node: &RedisServer) -> Option<bool> {
    let replication = node.command(&["INFO", "replication"]).ok()?;
    let primary = replication.field("role")? == "master";
    Some(primary || replication.field("master_link_status")? == "up")
}

/// How many slots a cluster has.
pub const SLOTS: usize = 16_384;
const PRIMARIES: usize = 3;
const NODE_ARGUMENTS: [&str; 12] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1000",
    "--cluster-announce-ip",
    "127.0.0.1",
    // Replicas stay where a test knows them.
    "--cluster-allow-replica-migration",
    "no",
    // The default waits five seconds for more replicas before it sends the first one its data.
    "--repl-diskless-sync-delay",
    "0",
    "--repl-ping-replica-period",
    "1",
];
