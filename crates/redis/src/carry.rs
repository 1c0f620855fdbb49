//! Batches of asks on their way to the servers.
//!
//! Asks of one thing, by one strategy, at one instant become one script with many keys; the scripts
//! of a batch go to their server in one write. On a cluster a script's keys must share a slot, so
//! there is one script per slot.
//!
//! # Guarantee
//! An ask is sent again only if the server said that it did not run it: an unknown script, a slot
//! that has moved. Everything else that was sent and not answered is [`StoreError::Lost`], and so
//! is an ask of which only a part was run.
//!
//! # Proven by
//! `tests/it/failures.rs`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admittance::StoreError;
use admittance::store::lanes::Carry;
use redis::{Cmd, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::ask::{ADMIT, Arg, Ask, Params, Told, What, is_joint, told, width};
use crate::budget::has_booked;
use crate::cluster::Slots;
use crate::fault::Fault;
use crate::keep::Keeper;
use crate::names::slot;
use crate::scripts::{Script, Scripts};
use crate::server::{Connection, Connector};
use crate::url::{Host, Kind};

/// What carries asks to the servers.
pub(crate) struct Carrier {
    pub(crate) scripts: Scripts,
    connector: Arc<Connector>,
    /// Nothing where there is one server at a time.
    slots: Option<Arc<Keeper<Arc<Slots>>>>,
    links: Mutex<HashMap<(usize, Option<Host>), Link>>,
    replica_patience: Duration,
}

type Link = Arc<Keeper<Connection>>;

/// One script on its way.
struct Call {
    script: Script,
    keys: Vec<Vec<u8>>,
    args: Vec<Arg>,
    replicas: u32,
    slot: u16,
}

/// What became of a call.
#[derive(Clone)]
struct Done {
    told: Result<Told, StoreError>,
    /// How many replicas confirmed it, if it waited for any.
    confirmed: Option<u64>,
}

/// How a call goes out in one round.
#[derive(Clone)]
struct Sending {
    call: usize,
    /// Where to; nothing is the primary.
    to: Option<Host>,
    with_text: bool,
    is_asking: bool,
}

/// Where the answers to an ask's keys are: which call, from which key on, how many.
struct Part {
    call: usize,
    from: usize,
    count: usize,
}

impl Carry for Carrier {
    type Ask = Ask;
    type Answer = Vec<Told>;

    async fn carry(&self, lane: usize, asks: Vec<Ask>) -> Vec<Result<Vec<Told>, StoreError>> {
        let replicas: Vec<u32> = asks.iter().map(|ask| ask.replicas).collect();
        let (calls, parts) = self.grouped(asks);
        let (calls, done) = self.execute(lane, calls, &HashSet::new()).await;
        let answers = parts.into_iter().zip(replicas);
        answers.map(|(parts, replicas)| answer(&calls, &done, &parts, replicas)).collect()
    }
}

/// The same on lanes of its own.
#[derive(Debug)]
pub(crate) struct Patient {
    pub(crate) carrier: Arc<Carrier>,
    pub(crate) first_lane: usize,
}

impl Carry for Patient {
    type Ask = Ask;
    type Answer = Vec<Told>;

    async fn carry(&self, lane: usize, asks: Vec<Ask>) -> Vec<Result<Vec<Told>, StoreError>> {
        self.carrier.carry(self.first_lane + lane, asks).await
    }
}

impl Carrier {
    pub(crate) fn new(connector: Connector, scripts: Scripts, replica_patience: Duration) -> Self {
        let connector = Arc::new(connector);
        let slots = match connector.target.kind {
            Kind::Cluster => Some(Slots::keeper(&connector)),
            Kind::One | Kind::Sentinel { .. } => None,
        };
        let links = Mutex::default();
        Self { scripts, connector, slots, links, replica_patience }
    }

    /// Connects before anybody asks, as far as it is known where to.
    pub(crate) fn warm(&self, lanes: usize) {
        match &self.slots {
            Some(slots) => slots.renew(),
            None => (0..lanes.max(1)).for_each(|lane| self.link(lane, &None).renew()),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.slots.is_some()
    }

    /// The asks as calls, each with its own, in their order; for tests of one after another.
    pub(crate) async fn carry_in_order(
        &self,
        asks: Vec<Ask>,
    ) -> Vec<Result<Vec<Told>, StoreError>> {
        let (mut calls, mut parts) = (Vec::new(), Vec::new());
        for ask in asks {
            let (more, of) = self.grouped(vec![ask]);
            let shifted = of.into_iter().flatten();
            let shift = |part: Part| Part { call: part.call + calls.len(), ..part };
            parts.push(shifted.map(shift).collect::<Vec<_>>());
            calls.extend(more);
        }
        // The first of each script goes with its text: one that the server did not know would be
        // sent again, after those that it did.
        let mut known = HashSet::new();
        let first = calls.iter().enumerate().filter(|(_, call)| known.insert(call.script));
        let with_text = first.map(|(place, _)| place).collect();
        let (calls, done) = self.execute(0, calls, &with_text).await;
        parts.iter().map(|parts| answer(&calls, &done, parts, 0)).collect()
    }

    /// Puts together what can be asked in one script.
    fn grouped(&self, asks: Vec<Ask>) -> (Vec<Call>, Vec<Vec<Part>>) {
        let mut calls: Vec<Call> = Vec::with_capacity(8);
        let mut places: HashMap<(Script, Params, Option<u64>, u16), usize> = HashMap::new();
        let mut parts = Vec::with_capacity(asks.len());
        for Ask { what, now, replicas } in asks {
            let now = now.map(|now| now.epoch_us());
            match what {
                What::Whole { script, keys, args } => {
                    let slot = keys.first().map_or(0, |key| self.slot(key));
                    let mut all = vec![clock(now)];
                    all.extend(args);
                    parts.push(vec![Part { call: calls.len(), from: 0, count: keys.len() }]);
                    calls.push(Call { script, keys, args: all, replicas, slot });
                }
                What::Keys { script, params, items } => {
                    let mut of: Vec<Part> = Vec::with_capacity(1);
                    let (count, mut begun) = (items.len(), HashSet::new());
                    let keys_max = KEYS_MAX.min(params.keys_max());
                    for item in items {
                        let slot = self.slot(&item.name);
                        let place = places.get(&(script, params, now, slot)).copied();
                        // An ask has one script per slot, in whatever order its keys come.
                        let is_begun = count > 1 && !begun.insert(slot);
                        let is_full = |place: usize| calls[place].keys.len() + count > keys_max;
                        if !is_begun && place.is_some_and(is_full) {
                            // Asks that travel together do not make one long script. One
                            // ask alone may be as long as the store lets it.
                            places.remove(&(script, params, now, slot));
                        }
                        let place =
                            places.entry((script, params, now, slot)).or_insert_with(|| {
                                let mut args = vec![clock(now)];
                                args.extend(params.numbers().iter().map(|&n| Arg::Number(n)));
                                calls.push(Call {
                                    script,
                                    keys: Vec::new(),
                                    args,
                                    replicas: 0,
                                    slot,
                                });
                                calls.len() - 1
                            });
                        let call = &mut calls[*place];
                        call.replicas = call.replicas.max(replicas);
                        match of.last_mut() {
                            Some(part) if part.call == *place => part.count += 1,
                            _ => of.push(Part { call: *place, from: call.keys.len(), count: 1 }),
                        }
                        call.keys.push(item.name);
                        if matches!(script, Script::Check(_) | Script::Forecast(_)) {
                            call.args.push(Arg::Number(item.cost.cast_signed()));
                        }
                    }
                    parts.push(of);
                }
            }
        }
        (calls, parts)
    }

    fn slot(&self, name: &[u8]) -> u16 {
        if self.is_cluster() { slot(name) } else { 0 }
    }

    /// Runs every call once, wherever it must go.
    async fn execute(
        &self,
        lane: usize,
        calls: Vec<Call>,
        with_text: &HashSet<usize>,
    ) -> (Arc<[Call]>, Vec<Done>) {
        let calls: Arc<[Call]> = calls.into();
        let nothing = Done { told: Err(StoreError::Unavailable), confirmed: None };
        let mut done = vec![nothing; calls.len()];
        let mut sending = match self.route(&calls).await {
            Ok(sending) => sending,
            Err(error) => {
                for done in &mut done {
                    done.told = Err(error.clone());
                }
                return (calls, done);
            }
        };
        for sending in &mut sending {
            sending.with_text = with_text.contains(&sending.call);
        }
        for _ in 0..ROUNDS_MAX {
            let mut again = Vec::new();
            for (sent, replies) in self.send(lane, &calls, sending).await {
                for (sending, (reply, confirmed)) in sent.into_iter().zip(replies) {
                    let call = &calls[sending.call];
                    let done = &mut done[sending.call];
                    done.confirmed = confirmed;
                    match self.judged(call, sending, reply) {
                        Ok(told) => done.told = told,
                        Err(sending) => again.push(sending),
                    }
                }
            }
            if again.is_empty() {
                break;
            }
            sending = again;
        }
        (calls, done)
    }

    /// Where the slots are, if there are any.
    pub(crate) async fn slots(&self) -> Result<Option<Arc<Slots>>, StoreError> {
        let Some(slots) = &self.slots else { return Ok(None) };
        let known = timeout(CONNECT_WAIT, slots.get()).await;
        known.unwrap_or(Err(StoreError::Unavailable)).map(Some)
    }

    /// Where each call goes first.
    async fn route(&self, calls: &[Call]) -> Result<Vec<Sending>, StoreError> {
        let slots = self.slots().await?;
        let owner = |call: &Call| slots.as_ref().and_then(|slots| slots.owner(call.slot).cloned());
        let mut sending = Vec::with_capacity(calls.len());
        for (place, call) in calls.iter().enumerate() {
            let to = owner(call);
            if to.is_none() && self.is_cluster() {
                // Nobody has the slot. The other calls go all the same.
                self.learn();
                continue;
            }
            sending.push(Sending { call: place, to, with_text: false, is_asking: false });
        }
        Ok(sending)
    }

    /// Sends calls to their servers, all servers at the same time.
    async fn send(
        &self,
        lane: usize,
        calls: &Arc<[Call]>,
        sending: Vec<Sending>,
    ) -> Vec<(Vec<Sending>, Vec<Reply>)> {
        let mut servers: Vec<(Link, Vec<Sending>)> = Vec::with_capacity(1);
        let mut places: HashMap<Option<Host>, usize> = HashMap::new();
        for sending in sending {
            let place = places.entry(sending.to.clone()).or_insert_with_key(|to| {
                servers.push((self.link(lane, to), Vec::new()));
                servers.len() - 1
            });
            servers[*place].1.push(sending);
        }
        let mut answered = Vec::with_capacity(servers.len());
        let patience = self.replica_patience;
        if let [(link, sending)] = servers.as_mut_slice() {
            let sending = std::mem::take(sending);
            let told = talk(link, &self.scripts, calls, &sending, patience).await;
            answered.push((sending, told));
        } else {
            let mut talks = JoinSet::new();
            for (link, sending) in servers {
                let (scripts, calls) = (self.scripts.clone(), Arc::clone(calls));
                talks.spawn(async move {
                    let told = talk(&link, &scripts, &calls, &sending, patience).await;
                    (sending, told)
                });
            }
            answered.extend(talks.join_all().await);
        }
        let is_failed = |reply: &Reply| reply.0.is_err();
        if answered.iter().any(|(_, replies)| replies.iter().any(is_failed)) {
            self.learn();
        }
        answered
    }

    /// What a reply means: an answer, or that the call must go out again.
    fn judged(
        &self,
        call: &Call,
        sending: Sending,
        reply: Result<Value, StoreError>,
    ) -> Result<Result<Told, StoreError>, Sending> {
        let error = match reply {
            Ok(Value::ServerError(error)) => error,
            Ok(value) => {
                let told = told(call.script, call.keys.len(), value);
                return Ok(told.ok_or(StoreError::Unreadable));
            }
            Err(error) => return Ok(Err(error)),
        };
        let fault = Fault::of(&error);
        match &fault {
            Fault::NoScript if !sending.with_text => Err(Sending { with_text: true, ..sending }),
            Fault::Moved { to } | Fault::Ask { to } => {
                let Some(to) = address(to, sending.to.as_ref()) else {
                    return Ok(Err(StoreError::Unavailable));
                };
                let is_asking = matches!(fault, Fault::Ask { .. });
                if !is_asking {
                    self.learn();
                }
                Err(Sending { to: Some(to), is_asking, ..sending })
            }
            Fault::Elsewhere => {
                self.learn();
                Ok(Err(StoreError::Unavailable))
            }
            _ => Ok(Err(fault.error())),
        }
    }

    /// Learns anew where the slots are, if there are any.
    pub(crate) fn learn(&self) {
        if let Some(slots) = &self.slots {
            slots.renew();
        }
    }

    /// The lane's own connection to a server.
    fn link(&self, lane: usize, to: &Option<Host>) -> Link {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if !links.contains_key(&(lane, to.clone())) {
            // Nodes that have left are not looked for any more.
            let slots = self.slots.as_ref().and_then(|slots| slots.held());
            let is_known = |host: &Host| slots.as_ref().is_none_or(|slots| slots.has(host));
            links.retain(|(_, host), _| host.as_ref().is_none_or(is_known));
        }
        let link = links.entry((lane, to.clone())).or_insert_with(|| {
            let (connector, to) = (Arc::clone(&self.connector), to.clone());
            Keeper::new(move || {
                let (connector, to) = (Arc::clone(&connector), to.clone());
                async move {
                    match &to {
                        Some(host) => connector.open(host).await,
                        None => connector.primary().await,
                    }
                }
            })
        });
        Arc::clone(link)
    }
}

/// The address in a redirection. A server that does not know its own name leaves it out.
fn address(to: &str, from: Option<&Host>) -> Option<Host> {
    match to.strip_prefix(':') {
        Some(port) => Some(Host { name: from?.name.clone(), port: port.parse().ok()? }),
        None => Host::parse(to, 0).ok(),
    }
}

/// A reply, and how many replicas have confirmed what came before it, if that was asked.
type Reply = (Result<Value, StoreError>, Option<u64>);

/// One round trip with one server.
async fn talk(
    link: &Link,
    scripts: &Scripts,
    calls: &[Call],
    sending: &[Sending],
    replica_patience: Duration,
) -> Vec<Reply> {
    let all = |error: StoreError| vec![(Err(error), None); sending.len()];
    let connection = loop {
        let held = timeout(CONNECT_WAIT, link.get()).await;
        match held.unwrap_or(Err(StoreError::Unavailable)) {
            Ok(connection) if connection.has_ended() => link.lose(|held| held.is(&connection)),
            Ok(connection) => break connection,
            Err(error) => return all(error),
        }
    };
    let mut pipeline = redis::Pipeline::with_capacity(sending.len() + 1);
    let replicas = sending.iter().map(|sending| calls[sending.call].replicas).max().unwrap_or(0);
    for sending in sending {
        if sending.is_asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command(scripts, &calls[sending.call], sending.with_text));
    }
    if replicas > 0 {
        let patience = u64::try_from(replica_patience.as_millis()).unwrap_or(1).max(1);
        pipeline.cmd("WAIT").arg(replicas).arg(patience);
    }
    let sent = connection.clone().send(&pipeline).await;
    let Ok(replies) = sent else {
        connection.end();
        link.lose(|held| held.is(&connection));
        return all(StoreError::Lost);
    };
    let mut replies = replies.into_iter();
    let mut told = Vec::with_capacity(sending.len());
    for sending in sending {
        if sending.is_asking {
            replies.next();
        }
        told.push((replies.next().ok_or(StoreError::Lost), None));
    }
    if replicas > 0 {
        let confirmed = match replies.next() {
            Some(Value::Int(confirmed)) => confirmed.unsigned_abs(),
            _ => 0,
        };
        for (_, of) in &mut told {
            *of = Some(confirmed);
        }
    }
    let is_elsewhere = |reply: &Reply| match &reply.0 {
        Ok(Value::ServerError(error)) => Fault::of(error) == Fault::Elsewhere,
        _ => false,
    };
    // A node of a cluster says where to go; the one primary there is must be looked for.
    let is_primary = sending.iter().all(|sending| sending.to.is_none());
    if is_primary && told.iter().any(is_elsewhere) {
        connection.end();
        link.lose(|held| held.is(&connection));
    }
    told
}

fn command(scripts: &Scripts, call: &Call, with_text: bool) -> Cmd {
    let body = scripts.body(call.script);
    let mut command = redis::cmd(if with_text { "EVAL" } else { "EVALSHA" });
    command.arg(if with_text { &body.text } else { &body.hash }).arg(call.keys.len());
    for key in &call.keys {
        command.arg(key.as_slice());
    }
    for arg in &call.args {
        match arg {
            Arg::Number(number) => command.arg(*number),
            Arg::Bytes(bytes) => command.arg(bytes.as_slice()),
        };
    }
    command
}

fn clock(now: Option<u64>) -> Arg {
    now.map_or(Arg::Bytes(Vec::new()), |now| Arg::Number(now.cast_signed()))
}

/// The answer to an ask from the calls that its keys went with.
fn answer(
    calls: &[Call],
    done: &[Done],
    parts: &[Part],
    replicas: u32,
) -> Result<Vec<Told>, StoreError> {
    joint(parts.iter().map(|part| done[part.call].told.as_ref().map(drop)))?;
    let mut answer = Vec::with_capacity(parts.len());
    for part in parts {
        let (call, done) = (&calls[part.call], &done[part.call]);
        let told = match done.told.as_ref().map_err(Clone::clone)? {
            Told::Numbers { at, numbers } if is_joint(call.script) => {
                Told::Numbers { at: *at, numbers: numbers.clone() }
            }
            Told::Numbers { at, numbers } => {
                let width = width(call.script);
                let own = part.from * width..(part.from + part.count) * width;
                let own = numbers.get(own).ok_or(StoreError::Unreadable)?;
                Told::Numbers { at: *at, numbers: own.to_vec() }
            }
            cell @ Told::Cell { .. } => cell.clone(),
        };
        if let Some(confirmed) = done.confirmed
            && confirmed < u64::from(replicas)
            && has_charged(call.script, &told)
        {
            return Err(StoreError::NotReplicated { confirmed });
        }
        answer.push(told);
    }
    Ok(answer)
}

/// Whether an ask that went out in several parts has an answer. If one part was not run and
/// another was, or may have been, asking again could charge twice.
pub(crate) fn joint<'a>(
    parts: impl Iterator<Item = Result<(), &'a StoreError>>,
) -> Result<(), StoreError> {
    let is_unrun =
        |error: &StoreError| matches!(error, StoreError::Unavailable | StoreError::Refused { .. });
    let (mut was_run, mut failed) = (false, None);
    for part in parts {
        was_run |= part.err().is_none_or(|error| !is_unrun(error));
        failed = failed.or(part.err());
    }
    match failed {
        None => Ok(()),
        Some(error) if was_run && is_unrun(error) => Err(StoreError::Lost),
        Some(error) => Err(error.clone()),
    }
}

/// Whether something was written that a failover could undo to somebody's advantage.
fn has_charged(script: Script, told: &Told) -> bool {
    match (script, told) {
        (Script::Check(_) | Script::Any, Told::Numbers { numbers, .. }) => {
            numbers.chunks(3).any(|numbers| numbers[0] == ADMIT)
        }
        // All of them, or some admit and were not charged.
        (Script::All, Told::Numbers { numbers, .. }) => {
            numbers.chunks(3).all(|numbers| numbers[0] == ADMIT)
        }
        (Script::Lease(_), Told::Numbers { numbers, .. }) => {
            numbers.last().is_some_and(|&granted| granted > 0)
        }
        (Script::Book, Told::Numbers { numbers, .. }) => has_booked(numbers),
        (Script::Fuse, Told::Numbers { numbers, .. }) => numbers.first() == Some(&1),
        (_, Told::Cell { code, .. }) => *code == 2,
        _ => false,
    }
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connector.fmt(f)
    }
}

/// How often a call may be redirected or sent anew with its text.
const ROUNDS_MAX: usize = 5;
/// The most keys in one script, unless one ask alone has more in it.
const KEYS_MAX: usize = 1_000;
/// How long an ask waits for a connection that is being made. It goes on being made after that.
const CONNECT_WAIT: Duration = Duration::from_millis(250);
