//! Permits of a gate that are taken, kept and ended in any order.
//!
//! # Guarantee
//! For any rules, shares, fences and endings: what is in flight is what is held; without classes a
//! permit is given exactly if fewer are in flight than the limit and the share, before the fence;
//! with them never beyond what they may have together; each permit is counted once, under one
//! ending; the limit stays within its rules.

use admittance::gate::{
    Gate, LimitAlgorithm, LimitRules, PERMITS_MAX, Partition, Permit, Recalibrate, Refused,
    ThroughputGuard,
};
use admittance::{Clock, ManualClock, Micros, Span};

use crate::Input;

/// How a permit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The work is done.
    Finish,
    /// Nothing can be said.
    Ignore,
    /// It was too much.
    Overload,
}

/// A gate, or what takes itself for one.
pub trait Gates {
    /// The gate that is looked at.
    fn gate(&self) -> &Gate<ManualClock>;

    /// A permit for a class.
    ///
    /// # Errors
    /// There is none.
    fn acquire(&self, class: Option<usize>) -> Result<Permit<ManualClock>, Refused> {
        match class {
            None => self.gate().acquire(),
            Some(class) => self.gate().acquire_as(class),
        }
    }

    /// Ends one.
    fn end(&self, permit: Permit<ManualClock>, end: End) {
        match end {
            End::Finish => permit.finish(),
            End::Ignore => permit.ignore(),
            End::Overload => permit.overload(),
        }
    }
}

impl Gates for Gate<ManualClock> {
    fn gate(&self) -> &Self {
        self
    }
}

/// Feeds the gate.
pub fn target(bytes: &[u8]) {
    checked(bytes, |gate| gate);
}

/// Feeds any gate.
///
/// # Panics
/// If the guarantee does not hold.
pub fn checked<G: Gates>(bytes: &[u8], make: impl Fn(Gate<ManualClock>) -> G) {
    let input = &mut Input::new(bytes);
    let (work, lease) = (ManualClock::at(Micros::ZERO), ManualClock::at(Micros::ZERO));
    let Some((gate, rules, classes)) = built(input, &work, &lease) else { return };
    let mut run = Run { gate: make(gate), held: Vec::new(), given: 0, ended: [0; 3], refused: 0 };
    let mut fence = None;
    while let Some(op) = input.more() {
        let gate = run.gate.gate();
        match op & 15 {
            0..=4 => {
                let is_fenced = fence.is_some_and(|at| lease.now() >= at);
                let class = (classes > 0 && op & 16 > 0).then(|| input.below(classes + 1));
                run.acquire(class, classes > 0, is_fenced);
            }
            5..=8 => {
                let end = [End::Finish, End::Ignore, End::Overload][usize::from(op >> 4) % 3];
                run.end(input, end);
            }
            9 => {
                let first = run.held.first_mut();
                first.into_iter().for_each(Permit::first_byte);
            }
            10 => gate.set_share(u32::from(input.byte())),
            11 if op & 16 > 0 => {
                gate.unfence();
                fence = None;
            }
            11 => {
                let at = lease.now() + Span::from_us(u64::from(input.byte()));
                gate.fence_at(at);
                fence = Some(at);
            }
            12 => {
                let limit = u32::from(input.byte()) + 1;
                gate.follow(limit, Span::from_ms(input.number(10_000)), op & 16 > 0);
            }
            13 => lease.set(lease.now() + Span::from_us(u64::from(input.byte()))),
            14 => work.advance(Span::from_us(input.number(1 << 34))),
            _ => work.advance(Span::from_us(u64::from(input.byte()))),
        }
        run.sound(&rules);
    }
    let last = run.held.drain(..).collect::<Vec<_>>();
    run.ended[1] += last.len() as u64;
    drop(last);
    run.sound(&rules);
    assert_eq!(run.gate.gate().stats().in_flight, 0, "places are left over");
}

struct Run<G> {
    gate: G,
    held: Vec<Permit<ManualClock>>,
    given: u64,
    /// Finished, ignored, overloaded.
    ended: [u64; 3],
    refused: u64,
}

impl<G: Gates> Run<G> {
    fn acquire(&mut self, class: Option<usize>, has_classes: bool, is_fenced: bool) {
        let word = self.gate.gate().snapshot();
        match self.gate.acquire(class) {
            Ok(permit) => {
                assert!(!is_fenced, "a permit was given after the fence");
                let had_room = word.in_flight() < word.ceiling();
                assert!(has_classes || had_room, "a permit too many: {word:?}");
                assert!(word.share() > 0, "a permit without a share");
                self.held.push(permit);
                self.given += 1;
            }
            Err(refused) => {
                let is_full = word.in_flight() >= word.ceiling();
                assert!(is_full || is_fenced || has_classes, "{refused} with {word:?}");
                assert!(refused.retry > Span::ZERO, "{refused:?}");
                self.refused += 1;
            }
        }
    }

    fn end(&mut self, input: &mut Input<'_>, end: End) {
        if self.held.is_empty() {
            return;
        }
        let permit = self.held.swap_remove(input.below(self.held.len()));
        self.gate.end(permit, end);
        self.ended[end as usize] += 1;
    }

    fn sound(&self, rules: &LimitRules) {
        let stats = self.gate.gate().stats();
        assert_eq!(stats.in_flight as usize, self.held.len(), "what is in flight is what is held");
        assert_eq!(stats.acquired, self.given, "what was given");
        assert_eq!(stats.refused, self.refused, "what was refused");
        let ended = [stats.finished, stats.ignored, stats.overloaded];
        assert_eq!(ended, self.ended, "how permits ended");
        let least = if rules.recalibrate.is_some() { 1 } else { rules.min };
        assert!((least..=rules.max).contains(&stats.limit), "{stats:?} by {rules:?}");
    }
}

type Built = (Gate<ManualClock>, LimitRules, usize);

fn built(input: &mut Input<'_>, work: &ManualClock, lease: &ManualClock) -> Option<Built> {
    let kind = input.byte();
    let min = u32::from(input.byte() % 16) + 1;
    let max = (min + u32::from(input.byte())).min(PERMITS_MAX);
    let initial = min + u32::from(input.byte()) % (max - min + 1);
    let algorithm = match kind % 3 {
        0 => LimitAlgorithm::Gradient2,
        1 => LimitAlgorithm::Aimd,
        _ => LimitAlgorithm::Fixed,
    };
    let stable = LimitRules::seed_defaults();
    let mut rules = LimitRules { algorithm, min, max, initial, ..stable };
    rules.throughput_guard = (kind & 24 == 8).then_some(ThroughputGuard::STABLE);
    rules.recalibrate = (kind & 16 > 0).then_some(Recalibrate::SEED);
    rules.rtt_max = (kind & 32 > 0).then(|| Span::from_us(input.number(1 << 30)));
    let lease = lease.clone();
    let mut builder = Gate::builder(rules).clock(work.clone()).lease_clock(move || lease.now());
    let mut classes = 0;
    if kind & 64 > 0 {
        let percentages = [u32::from(input.byte() % 60), u32::from(input.byte() % 40)];
        builder = builder.partition(Partition::new(&percentages).ok()?);
        classes = percentages.len();
    }
    Some((builder.build().ok()?, rules, classes))
}
