//! A node: its clocks, and for every key the shipped holder with the cell it publishes to.

use std::cell::Cell;

use admittance_core::learn::Sizer;
use admittance_core::lease::{self, Coupling, Grant, Holder, LeaseId, Rules, Word, WordCell};
use admittance_core::{Cost, Micros};

use crate::between::Between;
use crate::clock::LeaseClock;
use crate::queue::Own;

/// One process of the fleet.
pub(crate) struct Node<B> {
    pub(crate) clock: LeaseClock,
    /// How far its wall clock is from the store's.
    pub(crate) skew_us: i64,
    /// Drawn anew at every start.
    pub(crate) incarnation: u64,
    /// Attempts so far.
    pub(crate) count: u64,
    pub(crate) is_up: bool,
    pub(crate) seats: Vec<Option<Box<Seat<B>>>>,
}

impl<B: Between> Node<B> {
    /// The id of the next attempt.
    pub(crate) fn fresh(&mut self, between: B) -> LeaseId {
        self.count += 1;
        between.id(LeaseId { incarnation: self.incarnation, count: self.count })
    }

    pub(crate) fn seat(&mut self, key: usize, sizer: Sizer, between: B) -> &mut Seat<B> {
        self.seats[key].get_or_insert_with(|| Box::new(Seat::new(sizer, between)))
    }

    /// What its wall clock shows while the store's shows `store`.
    pub(crate) fn wall(&self, store: Micros) -> Micros {
        let shown = store.epoch_us().saturating_add_signed(self.skew_us);
        Micros::saturating_from_epoch_us(shown)
    }
}

/// A node's side of one key, as the engine keeps it.
pub(crate) struct Seat<B> {
    pub(crate) holder: Holder,
    pub(crate) spot: Spot<B>,
    pub(crate) sizer: Sizer,
    /// When the holder wants to be called, as true time.
    pub(crate) due: Option<u64>,
    pub(crate) is_refilling: bool,
    pub(crate) waiting: Vec<Waits>,
    /// Attempts whose answer has not come.
    pub(crate) open: Vec<LeaseId>,
    /// The true instant of the last call, and how many calls in a row wanted another one then.
    pub(crate) spins: (u64, u32),
    shadow: Vec<Shadow>,
    /// What it was granted since it last asked.
    gained: u64,
}

/// A request that waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub(crate) id: u64,
    /// When it came, on the node's clock.
    pub(crate) since: Micros,
    pub(crate) cost: u64,
    /// The hundredth of the window that it came in.
    pub(crate) part: usize,
}

/// What the node must hold of one window, counted from outside the holder.
#[derive(Clone, Copy, Debug)]
struct Shadow {
    paid_until: Micros,
    units: u64,
    /// When the first of its leases dies.
    expiry: Micros,
}

impl<B: Between> Seat<B> {
    fn new(sizer: Sizer, between: B) -> Self {
        Self {
            holder: Holder::new(sizer.size().units()),
            spot: Spot::new(between),
            sizer,
            due: None,
            is_refilling: false,
            waiting: Vec::new(),
            open: Vec::new(),
            spins: (0, 0),
            shadow: Vec::new(),
            gained: 0,
        }
    }

    /// Counts an ask that is sent.
    pub(crate) fn asks(&mut self, id: LeaseId) {
        self.open.push(id);
        self.gained = 0;
    }

    /// Counts units that a grant brought.
    pub(crate) fn gains(&mut self, rules: &Rules, sent: Micros, now: Micros, grant: &Grant) {
        self.gained += grant.granted;
        if rules.coupling() != Coupling::Windowed {
            return;
        }
        // What is long dead is of no interest and would pile up.
        self.shadow.retain(|it| it.units > 0 && now < it.expiry);
        let paid_until = grant.decision.reset_at;
        let life = lease::lifetime(paid_until.since(grant.at));
        let expiry = life.map_or(sent, |life| sent + life);
        match self.shadow.iter_mut().find(|it| it.paid_until == paid_until) {
            Some(it) => {
                it.units += grant.granted;
                it.expiry = it.expiry.min(expiry);
            }
            None => self.shadow.push(Shadow { paid_until, units: grant.granted, expiry }),
        }
    }

    /// Counts units that were spent or given back.
    pub(crate) fn loses(&mut self, paid_until: Micros, units: u64) {
        if let Some(it) = self.shadow.iter_mut().find(|it| it.paid_until == paid_until) {
            it.units = it.units.saturating_sub(units);
        }
    }

    /// What it holds that can be added to a grant paid by the window that ends at `paid_until`;
    /// `None` if some of it is dying, so that it cannot be told from outside.
    pub(crate) fn own(&self, rules: &Rules, now: Micros, paid_until: Micros) -> Option<Own> {
        let units = if rules.coupling() == Coupling::Windowed {
            match self.shadow.iter().find(|it| it.paid_until == paid_until) {
                Some(it) => (now < it.expiry).then_some(it.units)?,
                None => 0,
            }
        } else {
            self.holder.held().saturating_sub(self.spot.spent())
        };
        Some(Own { units, overtook: self.gained.min(units) })
    }
}

/// The cell of a key: in one thread a swap is a swap.
pub(crate) struct Spot<B> {
    between: B,
    word: Cell<Word>,
    paid_until: Cell<Micros>,
    /// What was spent since the holder last looked.
    spent: Cell<u64>,
    kept: Cell<u64>,
}

impl<B: Between> Spot<B> {
    fn new(between: B) -> Self {
        Self {
            between,
            word: Cell::new(Word::EMPTY),
            paid_until: Cell::new(Micros::ZERO),
            spent: Cell::new(0),
            kept: Cell::new(0),
        }
    }

    /// Spends from the word: what is left in it, and when the window that paid ends.
    pub(crate) fn spend(&self, now: Micros, cost: Cost) -> Option<(u64, Micros)> {
        let next = self.word.get().spend(now, cost)?;
        self.word.set(next);
        self.spent.set(self.spent.get() + cost.units());
        Some((next.credits(), self.paid_until.get()))
    }
}

impl<B> Spot<B> {
    fn spent(&self) -> u64 {
        self.spent.get()
    }
}

impl<B: Between> WordCell for Spot<B> {
    fn publish(&self, next: Word, paid_until: Micros) -> Word {
        let mut kept = self.kept.get();
        let published = self.between.publish(&mut kept, self.word.get(), next);
        self.kept.set(kept);
        self.word.set(published.stored);
        self.spent.set(0);
        self.paid_until.set(paid_until);
        published.told
    }
}
