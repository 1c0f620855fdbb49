//! Which lanes an ask takes.
//!
//! Where there is one server at a time, there is one set of lanes. On a cluster each primary has
//! lanes of its own: a lane waits for what it has sent, and must not wait for one server with asks
//! for another.
//!
//! # Guarantee
//! - A server of a cluster that does not answer delays asks for its own keys only.
//! - An ask for keys of several servers is put together again in the order of its keys. If a part
//!   of it was not run and another may have been, it is [`StoreError::Lost`].
//! - Bounded: there are lanes for the primaries that the cluster has, and for no others.
//!
//! # Proven by
//! `tests/it/failures.rs::a_primary_that_hangs_delays_nobody_elses_keys`,
//! `tests/it/failures.rs::an_ask_of_which_a_part_was_run_is_lost_and_never_to_be_sent_again`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use admittance::store::lanes::{Lanes, Size};
use admittance::{Micros, StoreError};
use tokio::task::JoinSet;

use crate::ask::{Ask, Item, Params, Told, What, width};
use crate::carry::{Carrier, Patient, joint};
use crate::cluster::Slots;
use crate::names::slot;
use crate::scripts::Script;
use crate::url::Host;

/// The lanes to every server.
pub(crate) struct Ways {
    carrier: Arc<Carrier>,
    size: Size,
    does_any_wait: bool,
    /// Where there is one server at a time.
    only: Option<Way>,
    /// Those of a cluster.
    each: Mutex<HashMap<Host, Arc<Way>>>,
}

/// The lanes to one server.
struct Way {
    lanes: Lanes<Carrier>,
    /// For asks that wait for replicas, so that no other ask waits with them.
    patient: Option<Lanes<Patient>>,
}

/// What goes to one server of an ask for many keys.
struct Share {
    way: Arc<Way>,
    /// The places that its keys have in the ask.
    places: Vec<usize>,
    items: Vec<Item>,
}

impl Way {
    fn start(carrier: &Arc<Carrier>, size: Size, does_any_wait: bool) -> Self {
        let lanes = Lanes::start(size, Arc::clone(carrier));
        let patient = does_any_wait.then(|| {
            let patient = Patient { carrier: Arc::clone(carrier), first_lane: size.lanes.max(1) };
            Lanes::start(size, Arc::new(patient))
        });
        Self { lanes, patient }
    }

    async fn ask(&self, ask: Ask) -> Result<Vec<Told>, StoreError> {
        match &self.patient {
            Some(patient) if ask.replicas > 0 => patient.ask(ask).await,
            _ => self.lanes.ask(ask).await,
        }
    }
}

impl Ways {
    pub(crate) fn start(carrier: Arc<Carrier>, size: Size, does_any_wait: bool) -> Self {
        carrier.warm(size.lanes);
        let only = (!carrier.is_cluster()).then(|| Way::start(&carrier, size, does_any_wait));
        Self { carrier, size, does_any_wait, only, each: Mutex::default() }
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Vec<Told>, StoreError> {
        if let Some(only) = &self.only {
            return only.ask(ask).await;
        }
        let slots = self.carrier.slots().await?.ok_or(StoreError::Unavailable)?;
        let Ask { what, now, replicas } = ask;
        let name = match &what {
            What::Keys { items, .. } => items.first().map(|item| &item.name),
            What::Whole { keys, .. } => keys.first(),
        };
        let first = name.map_or(0, |name| slot(name));
        match what {
            What::Keys { script, params, items } if items.len() > 1 => {
                let shares = self.shares(&slots, items)?;
                spread(script, params, shares, (now, replicas)).await
            }
            what => self.way(&slots, first)?.ask(Ask { what, now, replicas }).await,
        }
    }

    /// The lanes to the server that has a slot.
    fn way(&self, slots: &Slots, slot: u16) -> Result<Arc<Way>, StoreError> {
        let Some(host) = slots.owner(slot) else {
            self.carrier.learn();
            return Err(StoreError::Unavailable);
        };
        let mut each = self.each.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(way) = each.get(host) {
            return Ok(Arc::clone(way));
        }
        // Lanes to servers that have left end when the last that asks there has its answer.
        each.retain(|host, _| slots.has(host));
        let way = Arc::new(Way::start(&self.carrier, self.size, self.does_any_wait));
        each.insert(host.clone(), Arc::clone(&way));
        Ok(way)
    }

    /// The keys by the servers that have them. If nobody has one of them, nothing is asked.
    fn shares(&self, slots: &Slots, items: Vec<Item>) -> Result<Vec<Share>, StoreError> {
        let mut shares: Vec<Share> = Vec::with_capacity(1);
        let mut of: HashMap<Option<&Host>, usize> = HashMap::new();
        for (place, item) in items.into_iter().enumerate() {
            let slot = slot(&item.name);
            let owner = slots.owner(slot);
            let share = if let Some(&share) = of.get(&owner) {
                share
            } else {
                let way = self.way(slots, slot)?;
                shares.push(Share { way, places: Vec::new(), items: Vec::new() });
                of.insert(owner, shares.len() - 1);
                shares.len() - 1
            };
            shares[share].places.push(place);
            shares[share].items.push(item);
        }
        Ok(shares)
    }
}

/// Asks every server for its share at the same time.
async fn spread(
    script: Script,
    params: Params,
    shares: Vec<Share>,
    (now, replicas): (Option<Micros>, u32),
) -> Result<Vec<Told>, StoreError> {
    let mut asks = JoinSet::new();
    for Share { way, places, items } in shares {
        let ask = Ask { what: What::Keys { script, params, items }, now, replicas };
        asks.spawn(async move { (places, way.ask(ask).await) });
    }
    let answers = asks.join_all().await;
    joint(answers.iter().map(|(_, told)| told.as_ref().map(drop)))?;
    let count: usize = answers.iter().map(|(places, _)| places.len()).sum();
    let width = width(script);
    let (mut latest, mut numbers) = (Micros::ZERO, vec![0; width * count]);
    for (places, told) in answers {
        let mut own = Vec::with_capacity(width * places.len());
        for told in told? {
            latest = latest.max(told.at());
            let Told::Numbers { numbers, .. } = told else { return Err(StoreError::Unreadable) };
            own.extend(numbers);
        }
        if own.len() != width * places.len() {
            return Err(StoreError::Unreadable);
        }
        for (place, own) in places.into_iter().zip(own.chunks(width)) {
            numbers[width * place..width * (place + 1)].copy_from_slice(own);
        }
    }
    Ok(vec![Told::Numbers { at: latest, numbers }])
}
