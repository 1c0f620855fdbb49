//! Where the slots of a cluster are.

use std::sync::Arc;

use admittance::StoreError;
use redis::Value;

use crate::fault::unconnected;
use crate::keep::Keeper;
use crate::names::SLOTS;
use crate::server::Connector;
use crate::url::Host;

/// Which node each slot is on.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    nodes: Vec<Host>,
    /// The place in `nodes` of each slot's primary; one past the end if nobody has it.
    owners: Arc<[u16]>,
}

impl Slots {
    pub(crate) fn owner(&self, slot: u16) -> Option<&Host> {
        self.nodes.get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    pub(crate) fn has(&self, host: &Host) -> bool {
        self.nodes.contains(host)
    }

    /// Keeps them, asking any node that is known.
    pub(crate) fn keeper(connector: &Arc<Connector>) -> Arc<Keeper<Arc<Self>>> {
        let connector = Arc::clone(connector);
        let known = Arc::new(std::sync::Mutex::new(connector.target.hosts.clone()));
        Keeper::new(move || learn(Arc::clone(&connector), Arc::clone(&known)))
    }

    fn parse(reply: &Value, asked: &Host) -> Option<Self> {
        let Value::Array(ranges) = reply else { return None };
        let mut nodes: Vec<Host> = Vec::new();
        let mut owners = vec![u16::MAX; usize::from(SLOTS)];
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = range.as_slice()
            else {
                return None;
            };
            let host = host(primary, asked)?;
            let place = nodes.iter().position(|node| *node == host).unwrap_or(nodes.len());
            if place == nodes.len() {
                nodes.push(host);
            }
            let slots = usize::try_from(*first).ok()?..=usize::try_from(*last).ok()?;
            owners.get_mut(slots)?.fill(u16::try_from(place).ok()?);
        }
        (!nodes.is_empty()).then(|| Self { nodes, owners: owners.into() })
    }
}

/// A node of the reply. One that does not know its own address has the one it was asked at.
fn host(node: &[Value], asked: &Host) -> Option<Host> {
    let (name, port) = match node {
        [Value::BulkString(name), Value::Int(port), ..] => (name.as_slice(), port),
        [Value::Nil, Value::Int(port), ..] => (b"".as_slice(), port),
        _ => return None,
    };
    let name = String::from_utf8(name.to_vec()).ok()?;
    let name = if name.is_empty() || name == "?" { asked.name.clone() } else { name };
    Some(Host { name, port: u16::try_from(*port).ok()? })
}

async fn learn(
    connector: Arc<Connector>,
    known: Arc<std::sync::Mutex<Vec<Host>>>,
) -> Result<Arc<Slots>, StoreError> {
    let mut hosts = known.lock().map(|known| known.clone()).unwrap_or_default();
    fastrand::shuffle(&mut hosts);
    let mut failed = StoreError::Unavailable;
    for host in hosts {
        match ask(&connector, &host).await {
            Ok(slots) => {
                if let Ok(mut known) = known.lock() {
                    // Those of the URL stay: they are what an operator keeps up to date.
                    known.clone_from(&connector.target.hosts);
                    let more =
                        slots.nodes.iter().filter(|node| !connector.target.hosts.contains(node));
                    known.extend(more.cloned());
                }
                return Ok(Arc::new(slots));
            }
            Err(StoreError::Unavailable) => {}
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn ask(connector: &Connector, host: &Host) -> Result<Slots, StoreError> {
    let mut connection = connector.bare(host, &connector.target.login, 0).await?;
    let mut command = redis::cmd("CLUSTER");
    let reply = connection.send_packed_command(command.arg("SLOTS")).await;
    let reply = reply.map_err(|error| unconnected(&error))?;
    Slots::parse(&reply, host).ok_or(StoreError::Unavailable)
}
