//! What a shedder does and has done, for people and for metrics.

use std::sync::atomic::Ordering;

use admittance_core::Span;
use admittance_core::load::Class;

use super::shedder::Shared;

/// What a shedder does and has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The part of the work that may start, in hundredths: 100 is everything, 0 nothing.
    pub percent: u32,
    /// How many were admitted, since the shedder was made.
    pub allowed: u64,
    /// How many were refused.
    pub rejected: u64,
    /// Those that were refused, by class in the order of [`Class::ALL`].
    pub rejected_by_class: [u64; Class::ALL.len()],
    /// How many steps the level has made in one direction; below zero if they go down.
    pub step: i64,
    /// The mean delay of the last interval.
    pub average: Span,
    /// The standard deviation of the delays of the last interval.
    pub spread: Span,
    /// How much admitted work has not begun.
    pub waiting: u64,
    /// How much may wait; `None` if it is not bounded.
    pub room: Option<u64>,
    /// Probes that were sent.
    pub probes_sent: u64,
    /// Probes that ran.
    pub probes_finished: u64,
    /// Probes that never ran: their executor dropped them, or the regulation ended.
    pub probes_lost: u64,
    /// How often the level was judged.
    pub adjustments: u64,
    /// How often it moved.
    pub moves: u64,
    /// Workers that are awake and have not looked up from their work for two seconds. A tokio
    /// worker looks up after 61 tasks: if all of them together take that long, it counts too.
    pub stuck_workers: u64,
}

/// What kind of number a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetricKind {
    /// Goes up and down.
    Gauge,
    /// Only goes up.
    Counter,
}

/// A number under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// As it is exposed, in base units. A counter's sample has `_total` behind it.
    pub name: &'static str,
    /// What kind of number.
    pub kind: MetricKind,
    /// What it says.
    pub help: &'static str,
    /// The class that it is of, if it is told apart by class.
    pub class: Option<Class>,
    /// The number, in millionths: levels, counts and seconds alike are exact in it.
    pub millionths: i128,
}

impl Status {
    pub(super) fn of(shared: &Shared) -> Self {
        let (shown, totals) = (shared.shown(), shared.counts.totals());
        let rejected = totals.refused.iter().sum();
        let offered: u64 = totals.offered.iter().sum();
        Self {
            percent: shown.last.level.percent(),
            // Read while others count: a refusal may be seen before its offer.
            allowed: offered.saturating_sub(rejected),
            rejected,
            rejected_by_class: totals.refused,
            step: shown.last.run,
            average: shown.last.mean,
            spread: shown.last.spread,
            waiting: shared.work.waiting.load(Ordering::Relaxed),
            room: (shown.last.room != u64::MAX).then_some(shown.last.room),
            probes_sent: shown.probes_sent,
            probes_finished: shown.probes_finished,
            probes_lost: shown.probes_lost,
            adjustments: shown.adjustments,
            moves: shown.moves,
            stuck_workers: shown.stuck_workers,
        }
    }

    /// What was counted since an earlier status; what is not a count stays as it is now.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = *self;
        let classes = since.rejected_by_class.iter_mut().zip(earlier.rejected_by_class);
        classes.for_each(|(now, then)| *now = now.saturating_sub(then));
        since.allowed = self.allowed.saturating_sub(earlier.allowed);
        since.rejected = self.rejected.saturating_sub(earlier.rejected);
        since.probes_sent = self.probes_sent.saturating_sub(earlier.probes_sent);
        since.probes_finished = self.probes_finished.saturating_sub(earlier.probes_finished);
        since.probes_lost = self.probes_lost.saturating_sub(earlier.probes_lost);
        since.adjustments = self.adjustments.saturating_sub(earlier.adjustments);
        since.moves = self.moves.saturating_sub(earlier.moves);
        since
    }

    /// Each number as a metric.
    pub fn metrics(&self) -> impl Iterator<Item = Metric> {
        let whole = |number: u64| i128::from(number) * 1_000_000;
        let span = |span: Span| i128::from(span.us());
        let level = i128::from(self.percent) * 10_000;
        let step = i128::from(self.step) * 1_000_000;
        let delay = "Mean delay of the last interval.";
        let spread = "Standard deviation of the delays of the last interval.";
        let up = "Steps of the level in one direction, below zero downwards.";
        let stuck = "Workers that have not looked up from their work for two seconds.";
        let room = self.room.map(|room| {
            let help = "How much admitted work may wait; absent while it is not bounded.";
            gauge("admittance_load_room", help, whole(room))
        });
        let single = [
            gauge("admittance_load_level_ratio", "The part of the work that may start.", level),
            counter("admittance_load_allowed", "Work that might start.", self.allowed),
            gauge("admittance_load_step", up, step),
            gauge("admittance_load_delay_seconds", delay, span(self.average)),
            gauge("admittance_load_delay_spread_seconds", spread, span(self.spread)),
            gauge(
                "admittance_load_waiting",
                "Admitted work that has not begun.",
                whole(self.waiting),
            ),
            counter("admittance_load_probes_sent", "Probes sent.", self.probes_sent),
            counter("admittance_load_probes_finished", "Probes that ran.", self.probes_finished),
            counter("admittance_load_probes_lost", "Probes that never ran.", self.probes_lost),
            counter("admittance_load_adjustments", "Times the level was judged.", self.adjustments),
            counter("admittance_load_moves", "Times the level moved.", self.moves),
            gauge("admittance_load_stuck_workers", stuck, whole(self.stuck_workers)),
        ];
        let rejected = Class::ALL.into_iter().zip(self.rejected_by_class);
        let rejected = rejected.map(|(class, count)| {
            let rejected = counter("admittance_load_rejected", "Work that was refused.", count);
            Metric { class: Some(class), ..rejected }
        });
        single.into_iter().chain(room).chain(rejected)
    }
}

fn gauge(name: &'static str, help: &'static str, millionths: i128) -> Metric {
    Metric { name, kind: MetricKind::Gauge, help, class: None, millionths }
}

fn counter(name: &'static str, help: &'static str, count: u64) -> Metric {
    let millionths = i128::from(count) * 1_000_000;
    Metric { name, kind: MetricKind::Counter, help, class: None, millionths }
}
