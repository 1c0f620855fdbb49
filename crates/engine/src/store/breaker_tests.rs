//! The breaker against what its documentation says, and machines that are nearly right.

use fastrand::Rng;

use super::*;

const RULES: BreakerRules = BreakerRules {
    run_max: 3,
    window: Span::from_ms(1_000),
    asked_min: 10,
    failed_percent: 50,
    probe_every: Span::from_ms(100),
    probes_needed: 2,
};

/// What a breaker is to its owner, so that mutants go through the same lines.
trait Machine {
    fn pass(&self) -> Option<Pass>;
    fn answer(&mut self, pass: Pass, now: Span, answered: bool) -> bool;
    fn probe(&mut self, now: Span, passed: bool) -> bool;
    fn probe_at(&self) -> Option<Span>;
}

impl Machine for Breaker {
    fn pass(&self) -> Option<Pass> {
        Self::pass(self)
    }

    fn answer(&mut self, pass: Pass, now: Span, answered: bool) -> bool {
        self.handle_answer(pass, now, answered)
    }

    fn probe(&mut self, now: Span, passed: bool) -> bool {
        self.handle_probe(now, passed)
    }

    fn probe_at(&self) -> Option<Span> {
        self.poll_probe()
    }
}

/// A breaker with one defect.
struct MutantBreaker {
    inner: Breaker,
    mutant: Mutant,
}

#[derive(Clone, Copy, Debug)]
enum Mutant {
    /// Lets requests through while it is open.
    PassesWhenOpen,
    /// Lets requests through while it is probing.
    PassesWhenProbing,
    /// Takes a late answer for a new one.
    HearsLateAnswers,
    /// Counts failures that are not in a row.
    ForgetsSuccesses,
    /// Closes at the first probe that passes.
    ClosesEarly,
    /// Keeps the probes that passed before one that failed.
    KeepsProbes,
}

impl Machine for MutantBreaker {
    fn pass(&self) -> Option<Pass> {
        let opened = self.inner.opened;
        match (self.mutant, self.inner.state()) {
            (Mutant::PassesWhenOpen, BreakerState::Open)
            | (Mutant::PassesWhenProbing, BreakerState::Probing) => Some(Pass { opened }),
            _ => self.inner.pass(),
        }
    }

    fn answer(&mut self, pass: Pass, now: Span, answered: bool) -> bool {
        match self.mutant {
            Mutant::HearsLateAnswers => {
                let pass = Pass { opened: self.inner.opened };
                self.inner.handle_answer(pass, now, answered)
            }
            Mutant::ForgetsSuccesses if answered => false,
            _ => self.inner.handle_answer(pass, now, answered),
        }
    }

    fn probe(&mut self, now: Span, passed: bool) -> bool {
        match (self.mutant, passed) {
            (Mutant::ClosesEarly, true) => {
                let was_open = self.inner.state() != BreakerState::Closed;
                self.inner.place = closed(now);
                was_open
            }
            (Mutant::KeepsProbes, false) if self.inner.state() == BreakerState::Probing => false,
            _ => self.inner.handle_probe(now, passed),
        }
    }

    fn probe_at(&self) -> Option<Span> {
        self.inner.poll_probe()
    }
}

/// The same rules over the whole history, which a real one does not keep.
#[derive(Default)]
struct Model {
    /// When each answer of this closed time came, and whether it was one.
    answers: Vec<(u64, bool)>,
    closed_at: u64,
    /// The probes since it opened; `None` while it is closed.
    probes: Option<Vec<bool>>,
    opened: u64,
}

impl Model {
    fn answer(&mut self, opened: u64, now: u64, answered: bool) -> bool {
        if self.probes.is_some() || opened != self.opened {
            return false;
        }
        self.answers.push((now, answered));
        // Windows follow one another from the first answer after the last one ended.
        let (mut began, mut asked, mut failed) = (self.closed_at, 0, 0);
        for &(at, answered) in &self.answers {
            if at - began >= RULES.window.us() {
                (began, asked, failed) = (at, 0, 0);
            }
            asked += 1;
            failed += u64::from(!answered);
        }
        let run = self.answers.iter().rev().take_while(|(_, answered)| !answered).count();
        let often = asked >= u64::from(RULES.asked_min) && failed * 2 >= asked;
        let opens = !answered && (run >= RULES.run_max as usize || often);
        if opens {
            (self.probes, self.opened) = (Some(Vec::new()), self.opened + 1);
            self.answers.clear();
        }
        opens
    }

    fn probe(&mut self, now: u64, passed: bool) -> bool {
        let Some(probes) = &mut self.probes else { return false };
        probes.push(passed);
        let run = probes.iter().rev().take_while(|&&passed| passed).count();
        let closes = run >= RULES.probes_needed as usize;
        if closes {
            (self.probes, self.closed_at) = (None, now);
        }
        closes
    }
}

/// Runs a machine beside the model over random histories.
fn agrees(build: impl Fn() -> Box<dyn Machine>) -> Result<(), String> {
    let mut rng = Rng::with_seed(0xB4EA);
    for history in 0..500 {
        let (mut machine, mut model) = (build(), Model::default());
        let mut in_flight: Vec<(Pass, u64)> = Vec::new();
        let (mut now, health) = (0, rng.u8(1..10));
        for step in 0..200 {
            now += rng.u64(..20_000);
            let at = Span::from_us(now);
            let told = |what: &str| Err(format!("{what}, history {history} step {step}"));
            match (machine.pass(), model.probes.is_none()) {
                (Some(pass), true) => in_flight.push((pass, model.opened)),
                (None, false) => {}
                (Some(_), false) => return told("passes while it is not closed"),
                (None, true) => return told("does not pass while it is closed"),
            }
            if !in_flight.is_empty() && rng.u8(..4) > 0 {
                let (pass, opened) = in_flight.swap_remove(rng.usize(..in_flight.len()));
                let answered = rng.u8(..10) < health;
                if machine.answer(pass, at, answered) != model.answer(opened, now, answered) {
                    return told("opens when it should not, or the other way");
                }
            }
            if rng.u8(..3) == 0 {
                let passed = rng.bool();
                if machine.probe(at, passed) != model.probe(now, passed) {
                    return told("closes when it should not, or the other way");
                }
            }
            if machine.probe_at().is_some() != model.probes.is_some() {
                return told("is due for a probe while closed, or not while open");
            }
        }
    }
    Ok(())
}

#[test]
fn it_opens_and_closes_as_its_rules_say() {
    agrees(|| Box::new(Breaker::new(RULES))).unwrap();
}

#[test]
fn machines_with_one_mistake_are_caught() {
    for mutant in [
        Mutant::PassesWhenOpen,
        Mutant::PassesWhenProbing,
        Mutant::HearsLateAnswers,
        Mutant::ForgetsSuccesses,
        Mutant::ClosesEarly,
        Mutant::KeepsProbes,
    ] {
        let caught = agrees(|| Box::new(MutantBreaker { inner: Breaker::new(RULES), mutant }));
        assert!(caught.is_err(), "{mutant:?} passes");
    }
}

#[test]
fn a_slow_store_opens_it_without_a_run_and_a_good_one_never_does() {
    let mut breaker = Breaker::new(RULES);
    let at = Span::from_ms;
    let pass = breaker.pass().unwrap();
    for ms in 0..9 {
        assert!(!breaker.handle_answer(pass, at(ms), ms % 2 == 0), "fewer than ten were asked");
    }
    assert!(breaker.handle_answer(pass, at(9), false), "five of ten failed");
    let mut breaker = Breaker::new(RULES);
    for ms in 0..100_000 {
        // Two failures in a row of every six: a third, in runs shorter than three.
        assert!(!breaker.handle_answer(pass, at(ms), ms % 6 > 1), "{ms}");
    }
}

#[test]
fn probes_are_due_at_once_and_then_at_their_pace() {
    let mut breaker = Breaker::new(RULES);
    let at = Span::from_ms;
    let pass = breaker.pass().unwrap();
    for failures in 1..=3 {
        assert_eq!(breaker.handle_answer(pass, at(5), false), failures == 3);
    }
    assert_eq!(breaker.poll_probe(), Some(at(5)));
    assert!(!breaker.handle_probe(at(5), false));
    assert_eq!((breaker.poll_probe(), breaker.state()), (Some(at(105)), BreakerState::Open));
    assert!(!breaker.handle_probe(at(105), true));
    assert_eq!((breaker.poll_probe(), breaker.state()), (Some(at(205)), BreakerState::Probing));
    assert!(breaker.handle_probe(at(205), true));
    assert_eq!((breaker.poll_probe(), breaker.opened()), (None, 1));
}
