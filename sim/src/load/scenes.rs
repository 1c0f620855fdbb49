//! What is offered, what goes wrong, and what must hold.

use admittance_core::Span;
use admittance_core::load::Class;

use super::figures::Figures;
use super::setup::{Fault, Keys, Measures, Phase, Queues, Service, Setup};

/// One world, and what must hold in it.
#[derive(Clone, Debug)]
pub struct Scene {
    /// What happens.
    pub name: String,
    /// In which world.
    pub setup: Setup,
    /// The seconds that are looked at.
    pub judged: (u64, u64),
    /// When what went wrong is over, if it is.
    pub over: Option<u64>,
    /// What must hold.
    pub bounds: Vec<Bound>,
}

/// What must hold between two seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At most this part of what is offered is refused.
    Refuses(f64),
    /// At least this part of what the workers can do is done.
    Goodput(f64),
    /// The median over tenths of a second of each one's median wait is at most this.
    Waits(Span),
    /// The level stays within so many times what could be served of what is offered, up and down:
    /// it does not swing between the floor and full.
    Near(f64, f64),
    /// The level is below full at most so long after this second.
    Noticed(u64, Span),
    /// The level is full again at most so long after this second.
    Back(u64, Span),
    /// At least this part of what is offered of a class is admitted.
    Admits(Class, f64),
    /// At most this part of what is offered of a class is admitted.
    AdmitsAtMost(Class, f64),
}

impl Bound {
    /// Holds it against figures; what was found if it does not hold.
    #[must_use]
    pub fn broken(&self, figures: &Figures, (from, to): (u64, u64)) -> Option<String> {
        let found = match *self {
            Self::Refuses(most) => Found::at_most(figures.refused(from, to), most),
            Self::Goodput(least) => Found::at_least(figures.goodput(from, to), least),
            Self::Waits(most) => Found::at_most(ms(figures.usual_wait(from, to)), ms(most)),
            Self::Near(ideal, factor) => {
                let levels = figures.levels(from, to);
                let least = levels.iter().copied().fold(1.0, f64::min);
                let most = levels.iter().copied().fold(0.0, f64::max);
                let highest = (ideal * factor).min(1.0);
                let low = Found::at_least(least, ideal / factor);
                if low.is_held { Found::at_most(most, highest) } else { low }
            }
            Self::Noticed(second, within) => Found::soon(figures.noticed(second), within),
            Self::Back(second, within) => Found::soon(figures.back(second), within),
            Self::Admits(class, least) => Found::at_least(figures.admitted(class, from, to), least),
            Self::AdmitsAtMost(class, most) => {
                Found::at_most(figures.admitted(class, from, to), most)
            }
        };
        (!found.is_held).then(|| format!("{self:?}: {}", found.value))
    }
}

struct Found {
    value: String,
    is_held: bool,
}

impl Found {
    fn at_most(value: f64, most: f64) -> Self {
        Self { value: format!("{value:.3}"), is_held: value <= most }
    }

    fn at_least(value: f64, least: f64) -> Self {
        Self { value: format!("{value:.3}"), is_held: value >= least }
    }

    fn soon(found: Option<Span>, within: Span) -> Self {
        let is_held = found.is_some_and(|after| after <= within);
        let value =
            found.map_or("never".to_owned(), |after| format!("after {} ms", after.us() / 1_000));
        Self { value, is_held }
    }
}

impl Scene {
    /// The same world, in which the regulator is told of probes alone. It then does not know how
    /// much is done, and finds it out by cutting: what must hold is less, and from the sixth
    /// second on.
    #[must_use]
    pub fn by_probes(mut self) -> Self {
        self.setup.measures = Measures::Probes;
        self.judged.0 = self.judged.0.max(6);
        for bound in &mut self.bounds {
            *bound = match *bound {
                Bound::Goodput(least) => Bound::Goodput(least * 0.8),
                Bound::Refuses(most) if most > 0.1 => Bound::Refuses(2.0 * most),
                Bound::Admits(Class::Default, least) => Bound::Admits(Class::Default, least - 0.2),
                Bound::Near(ideal, factor) => Bound::Near(ideal, 2.0 * factor),
                other => other,
            };
        }
        self
    }

    /// The same world, in which nothing is refused for want of room.
    #[must_use]
    pub fn without_room(mut self) -> Self {
        self.setup.has_room = false;
        self
    }

    /// What did not hold.
    #[must_use]
    pub fn broken(&self, figures: &Figures) -> Vec<String> {
        self.bounds.iter().filter_map(|bound| bound.broken(figures, self.judged)).collect()
    }
}

/// A load that does not change: executors of all sizes and kinds.
#[must_use]
pub fn steady(seed: u64, percent: u64) -> Vec<Scene> {
    let mut scenes = Vec::new();
    for queues in [Queues::One, STEALING] {
        for mean in [1, 10] {
            for service in [Service::Constant, Service::Exponential, Service::Mixed] {
                for workers in [1, 2, 8, 64] {
                    scenes.push(one(seed, percent, workers, mean, service, queues));
                }
            }
        }
    }
    scenes
}

fn one(
    seed: u64,
    percent: u64,
    workers: usize,
    mean: u64,
    service: Service,
    queues: Queues,
) -> Scene {
    let mean = Span::from_ms(mean);
    let setup = Setup { workers, mean, service, queues, ..Setup::new(seed, percent) };
    let kind = match queues {
        Queues::One => "one queue",
        Queues::Stealing { .. } => "stealing",
    };
    let name =
        format!("{percent:>4} % {workers:>2} × {:>2} ms {service:?}, {kind}", mean.us() / 1_000);
    let bounds = steady_bounds(&setup, percent);
    Scene { name, setup, judged: (3, 20), over: None, bounds }
}

/// What an executor can be held to depends on how much chance there is in its queue. Where eight
/// pieces of work take two targets at most, and all are of a kind, the bounds are those of the
/// issue; where a few take long, or few are done at a time, chance alone makes queues that are
/// longer than the target, and goodput of nine tenths and short waits exclude each other.
fn steady_bounds(setup: &Setup, percent: u64) -> Vec<Bound> {
    let is_fine = 8 * setup.mean.us() / setup.workers as u64 <= 2 * TARGET;
    let (refused, goodput) = match (is_fine, setup.service) {
        (true, Service::Mixed) => (0.1, 0.85),
        // At nine tenths a run of seconds is offered more than it says, now and then.
        (true, _) if percent > 80 => (0.02, 0.9),
        (true, _) => (0.01, 0.9),
        (false, Service::Mixed) => (0.5, 0.45),
        (false, _) => (0.3, 0.65),
    };
    if percent < 100 {
        return vec![Bound::Refuses(refused)];
    }
    let ideal = 100.0 / percent as f64;
    let mut bounds = vec![Bound::Goodput(goodput)];
    if is_fine {
        let is_mixed = setup.service == Service::Mixed;
        let (waits, near) = if is_mixed { (5, 2.0 * NEAR) } else { (3, NEAR) };
        bounds.extend([Bound::Waits(Span::from_us(waits * TARGET)), Bound::Near(ideal, near)]);
    } else {
        bounds.push(Bound::Waits(WAIT_MAX));
    }
    bounds
}

/// Loads that change, and things that go wrong; eight workers and a millisecond of work.
#[must_use]
pub fn changing(seed: u64, queues: Queues) -> Vec<Scene> {
    let scene = |name: &str, offered: &[(u64, u64)], faults: &[(u64, Fault)], judged, over| {
        let offered = offered
            .iter()
            .map(|(at, percent)| Phase { at: Span::from_secs(*at), percent: *percent });
        let faults = faults.iter().map(|(at, fault)| (Span::from_secs(*at), *fault)).collect();
        let length = Span::from_secs(30);
        let offered = offered.collect();
        let setup = Setup { offered, faults, length, queues, ..Setup::new(seed, 0) };
        Scene { name: name.to_owned(), setup, judged, over, bounds: Vec::new() }
    };
    let lasts = Span::from_secs(5);
    let on_off: Vec<(u64, u64)> =
        (0..15).map(|nth| (2 * nth, if nth % 2 == 0 { 300 } else { 20 })).collect();
    let with = |scene: Scene, bounds: &[Bound]| Scene { bounds: bounds.to_vec(), ..scene };
    let ten = Span::from_secs(10);
    let one = Span::from_secs(1);
    let late = Fault::Late { by: Span::from_ms(20), lasts: ten };
    let pause = Fault::Stuck { workers: 8, lasts: Span::from_ms(600) };
    let four = |mut scene: Scene| {
        scene.setup.classes = [10, 40, 30, 20];
        scene
    };
    let heavy = |mut scene: Scene| {
        scene.setup.keys = Keys::Heavy;
        scene
    };
    let zipf = |mut scene: Scene| {
        scene.setup.keys = Keys::Zipf;
        scene
    };
    let over = [Bound::Goodput(0.9), Bound::Waits(Span::from_us(3 * TARGET))];
    vec![
        with(
            scene(
                "burst of 3× for 5 s, then 0.5×",
                &[(0, 50), (5, 300), (10, 50)],
                &[],
                (6, 10),
                Some(10),
            ),
            &[Bound::Noticed(5, one), Bound::Back(10, ten), Bound::Goodput(0.9)],
        ),
        with(
            scene(
                "burst of 2× for 3 s, then 0.5×",
                &[(0, 50), (5, 200), (8, 50)],
                &[],
                (18, 30),
                Some(8),
            ),
            &[Bound::Noticed(5, one), Bound::Back(8, ten), Bound::Refuses(0.01)],
        ),
        with(
            scene("3× for 2 s, 0.2× for 2 s", &on_off, &[], (4, 28), None),
            &[Bound::Goodput(0.4)],
        ),
        with(
            scene("20 ms later for 10 s at 0.5×", &[(0, 50)], &[(5, late)], (5, 15), Some(15)),
            &[Bound::Noticed(5, one), Bound::Back(15, ten)],
        ),
        with(
            scene(
                "1 of 8 stuck for 5 s at 0.7×",
                &[(0, 70)],
                &[(5, Fault::Stuck { workers: 1, lasts })],
                (5, 10),
                Some(10),
            ),
            &[Bound::Goodput(0.6), Bound::Back(10, ten)],
        ),
        with(
            scene(
                "1 of 8 stuck for 5 s at 1.5×",
                &[(0, 150)],
                &[(5, Fault::Stuck { workers: 1, lasts })],
                (5, 10),
                Some(10),
            ),
            &[Bound::Goodput(0.9 * 7.0 / 8.0), Bound::Waits(Span::from_us(3 * TARGET))],
        ),
        with(
            scene(
                "all stuck for 5 s at 0.5×",
                &[(0, 50)],
                &[(5, Fault::Stuck { workers: 8, lasts })],
                (5, 10),
                Some(10),
            ),
            &[Bound::Noticed(5, one), Bound::Back(10, ten)],
        ),
        with(
            scene("pause of 600 ms at 0.7×", &[(0, 70)], &[(5, pause)], (5, 15), Some(6)),
            &[Bound::Refuses(0.15), Bound::Back(6, ten)],
        ),
        with(
            scene(
                "half as fast for 10 s at 0.8×",
                &[(0, 80)],
                &[(5, Fault::Slow { lasts: ten })],
                (8, 15),
                Some(15),
            ),
            &[Bound::Goodput(0.45), Bound::Waits(Span::from_us(3 * TARGET)), Bound::Back(15, ten)],
        ),
        with(
            four(scene("four classes at 2×", &[(0, 200)], &[], (3, 30), None)),
            &[
                over[0],
                over[1],
                Bound::Admits(Class::Critical, 0.99),
                Bound::Admits(Class::Default, 0.9),
                Bound::AdmitsAtMost(Class::Sheddable, 0.3),
                Bound::AdmitsAtMost(Class::Background, 0.1),
            ],
        ),
        with(
            heavy(scene("a key of 20 % at 1.5×", &[(0, 150)], &[], (3, 30), None)),
            &[Bound::Goodput(0.75), Bound::Waits(WAIT_MAX)],
        ),
        with(zipf(scene("keys by Zipf's law at 1.5×", &[(0, 150)], &[], (3, 30), None)), &over),
    ]
}

fn ms(span: Span) -> f64 {
    span.us() as f64 / 1_000.0
}

/// How far a level may be from what could be served.
const NEAR: f64 = 2.5;
/// How long admitted work may be made to wait, by default.
const WAIT_MAX: Span = Span::from_ms(50);
/// How long work may wait, by default, in microseconds.
const TARGET: u64 = 5_000;
/// As tokio does it by default.
const STEALING: Queues = Queues::Stealing { every: 61 };
