//! What happened, counted from outside the machines, and what must not happen.
//!
//! Each check looks at one event and says at once if it breaks a bound; the first one that does
//! ends the run.

use std::fmt;

use admittance_core::lease::Coupling;
use admittance_core::{Micros, Span};

use crate::report::{Figures, Report, Worst};
use crate::setup::{Kind, Setup};
use crate::store::{LostGrant, epoch};

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Coupled: no window pays for more than the limit and the grants that the store lost.
    Window,
    /// Coupled: the store's clock shows an instant of the window that paid, at each decision.
    Inside,
    /// Continuous: no interval of length d admits more than burst + rate·(d + e).
    Interval,
    /// Carry-over: no window admits more than the limit, and a batch and the low water per node.
    CarryOver,
    /// Every request of a node that lives is answered.
    Answered,
    /// No request waits longer than its deadline.
    Deadline,
    /// A request is denied only if the store's rest and the node's credits were too little.
    Denial,
    /// No holder wants to be called again and again at one instant.
    Quiet,
}

/// A bound that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub check: Check,
    /// The true instant, since the run began.
    pub at: Span,
    /// The facts.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} us: {}", self.check, self.at.us(), self.detail)
    }
}

/// An admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    /// The true instant.
    pub(crate) at: u64,
    /// What the store's clock shows then, and the latest that it has shown.
    pub(crate) reading: Micros,
    pub(crate) peak: Micros,
    pub(crate) node: usize,
    pub(crate) key: usize,
    pub(crate) cost: u64,
    pub(crate) paid_until: Micros,
    /// The hundredth of the window that the request came in, and whether it waited since.
    pub(crate) part: usize,
    pub(crate) has_waited: bool,
}

/// All counts of a run.
pub(crate) struct Ledger {
    limit: u64,
    burst: u64,
    window: Span,
    kind: Kind,
    coupling: Coupling,
    low_water: u64,
    nodes: usize,
    epoch: Micros,
    books: Vec<Book>,
    /// The most that each node asked for at once, by key.
    wants: Vec<u64>,
    pub(crate) figures: Figures,
    only: Option<Check>,
    pub(crate) violation: Option<Violation>,
}

/// What is known of one key.
struct Book {
    windows: Vec<Page>,
    /// What the interval that ends now and admits most beyond the rate admits beyond it, times the
    /// period.
    excess: u128,
    /// When that interval began, and when it was last looked at.
    began: u64,
    seen: u64,
    lost: Vec<LostGrant>,
    /// The sum of the most that each node asked for at once.
    wants: u64,
}

/// What is known of one window of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    offered: u64,
    /// Admitted while it was the store's window.
    during: u64,
    /// Paid by it.
    paid: u64,
    /// Granted by it, acknowledged and lost by the store.
    lost: u64,
}

impl Ledger {
    pub(crate) fn new(setup: &Setup, coupling: Coupling) -> Self {
        let book = || Book {
            windows: vec![Page::default(); setup.windows + 2],
            excess: 0,
            began: 0,
            seen: 0,
            lost: Vec::new(),
            wants: 0,
        };
        Self {
            limit: setup.limit,
            burst: setup.burst(),
            window: setup.window,
            kind: setup.strategy,
            coupling,
            low_water: setup.low_water,
            nodes: setup.nodes,
            epoch: epoch(setup.window),
            books: std::iter::repeat_with(book).take(setup.keys).collect(),
            wants: vec![0; setup.keys * setup.nodes],
            figures: Figures::default(),
            only: setup.only,
            violation: None,
        }
    }

    pub(crate) fn violate(&mut self, check: Check, at: u64, detail: String) {
        if self.only.is_some_and(|only| only != check) {
            return;
        }
        let at = Span::from_us(at);
        self.violation.get_or_insert(Violation { check, at, detail });
    }

    /// A request; says in which hundredth of the window it came.
    pub(crate) fn offered(&mut self, reading: Micros, key: usize, cost: u64) -> usize {
        let part = self.part(reading);
        self.figures.requests += 1;
        self.figures.offered += cost;
        if let Some(counted) = self.figures.after_boundary.get_mut(part) {
            counted.offered += cost;
        }
        self.page(key, reading).offered += cost;
        part
    }

    /// An ask that was sent.
    pub(crate) fn asked(&mut self, node: usize, key: usize, want: u64) {
        self.figures.asks += 1;
        let most = &mut self.wants[key * self.nodes + node];
        let more = want.saturating_sub(*most);
        *most += more;
        self.books[key].wants += more;
    }

    pub(crate) fn lost(&mut self, lost: LostGrant) {
        self.figures.lost_by_store += lost.units;
        if self.kind == Kind::FixedWindow {
            self.page(lost.key, lost.paid_until - Span::TICK).lost += lost.units;
        }
        self.books[lost.key].lost.push(lost);
    }

    /// Counts an admission and holds it against the bounds. `late` is what the store has admitted
    /// by itself with the answer that this came with, and is therefore in time.
    pub(crate) fn admitted(&mut self, it: Admission, late: Option<&mut u64>) {
        let at_once = u64::from(!it.has_waited);
        self.figures.admitted += it.cost;
        self.figures.admissions += 1;
        self.figures.at_once += at_once;
        if let Some(counted) = self.figures.after_boundary.get_mut(it.part) {
            counted.admitted += it.cost;
            counted.at_once += it.cost * at_once;
        }
        // The store's window is that of the latest instant it has seen.
        self.page(it.key, it.peak).during += it.cost;
        match self.coupling {
            Coupling::Windowed => {
                self.check_window(&it);
                self.check_inside(&it, late);
            }
            Coupling::CarryOver => self.check_carry_over(&it),
            Coupling::Continuous { lease_time } => self.check_interval(&it, lease_time),
        }
    }

    fn check_window(&mut self, it: &Admission) {
        let limit = self.limit;
        let page = self.page(it.key, it.paid_until - Span::TICK);
        page.paid += it.cost;
        let Page { paid, lost, .. } = *page;
        if paid > limit + lost {
            let (key, node) = (it.key, it.node);
            let detail = format!(
                "key {key}, node {node}: {paid} admitted by one window, limit {limit}, lost {lost}"
            );
            self.violate(Check::Window, it.at, detail);
        }
    }

    fn check_inside(&mut self, it: &Admission, late: Option<&mut u64>) {
        let begun = it.paid_until - self.window <= it.peak;
        if begun && it.reading < it.paid_until {
            return;
        }
        // What the store admitted at its own instant is in time whenever it arrives.
        if let Some(late) = late.filter(|late| **late >= it.cost && begun) {
            *late -= it.cost;
            return;
        }
        let after = it.reading.since(it.paid_until).us();
        let (key, node) = (it.key, it.node);
        let detail =
            format!("key {key}, node {node}: spent {after} us after the window that paid ended");
        self.violate(Check::Inside, it.at, detail);
    }

    fn check_carry_over(&mut self, it: &Admission) {
        let (limit, nodes) = (self.limit, u64::try_from(self.nodes).unwrap_or(u64::MAX));
        let carried = self.books[it.key].wants + nodes * self.low_water;
        let Page { during, lost, .. } = *self.page(it.key, it.peak);
        let over = during.saturating_sub(limit + lost);
        let worst = Worst { seen: during, bound: limit + lost + carried };
        self.figures.carried = self.figures.carried.max(Some(over));
        if worst.seen > worst.bound {
            let key = it.key;
            let detail = format!("key {key}: {during} in one window, the most is {}", worst.bound);
            self.violate(Check::CarryOver, it.at, detail);
        }
    }

    fn check_interval(&mut self, it: &Admission, lease_time: Span) {
        let (limit, period) = (u128::from(self.limit), u128::from(self.window.us()));
        let book = &mut self.books[it.key];
        let refilled = u128::from(it.at - book.seen) * limit;
        if book.excess <= refilled {
            book.began = it.at;
        }
        book.excess = book.excess.saturating_sub(refilled) + u128::from(it.cost) * period;
        book.seen = it.at;
        // A lost grant excuses the intervals in which its credits may have been spent.
        let from = book.began.saturating_sub(lease_time.us());
        book.lost.retain(|it| it.at >= from);
        let lost: u64 = book.lost.iter().map(|it| it.units).sum();
        let bound = u128::from(self.burst) * period + limit * u128::from(lease_time.us());
        let units = |parts: u128| u64::try_from(parts / period).unwrap_or(u64::MAX);
        let seen = book.excess;
        let worst = Worst { seen: units(seen), bound: units(bound) + lost };
        self.figures.interval = self.figures.interval.max(Some(worst));
        if seen > bound + u128::from(lost) * period {
            let (key, length) = (it.key, it.at - book.began);
            let detail = format!(
                "key {key}: an interval of {length} us admits more than {} beyond its rate, the \
                 most is {}",
                worst.seen, worst.bound
            );
            self.violate(Check::Interval, it.at, detail);
        }
    }

    /// Which hundredth of its window the instant is in.
    fn part(&self, reading: Micros) -> usize {
        let into = reading.since(self.epoch).us() % self.window.us();
        usize::try_from(into * 100 / self.window.us()).unwrap_or(usize::MAX)
    }

    /// The window that the instant is in; all after the last one count as one.
    fn page(&mut self, key: usize, reading: Micros) -> &mut Page {
        let index = reading.since(self.epoch).us() / self.window.us();
        let pages = &mut self.books[key].windows;
        let last = pages.len() - 1;
        &mut pages[usize::try_from(index).map_or(last, |index| index.min(last))]
    }

    /// The end of the run.
    pub(crate) fn close(self, setup: &Setup) -> Report {
        let mut figures = self.figures;
        for book in &self.books {
            // A rate begins with its burst, and what is not asked for fills it up again.
            let mut unused = if self.kind == Kind::Gcra { self.burst } else { 0 };
            for page in &book.windows[..setup.windows] {
                let admitted = match self.coupling {
                    Coupling::Windowed => page.paid,
                    Coupling::CarryOver | Coupling::Continuous { .. } => page.during,
                };
                let most = self.limit + unused;
                if self.kind == Kind::Gcra {
                    unused = most.saturating_sub(page.offered).min(self.burst);
                }
                if page.offered > 0 {
                    figures.windows.add(admitted, page.offered, most);
                }
            }
        }
        Report { setup: setup.clone(), figures, violation: self.violation }
    }
}
