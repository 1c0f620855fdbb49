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
    let world = Setup { queues, length: Span::from_secs(30), ..Setup::new(seed, 100) };
    [bursts(&world), faults(&world), mixes(&world)].concat()
}

fn bursts(world: &Setup) -> Vec<Scene> {
    let on_off: Vec<(u64, u64)> =
        (0..15).map(|nth| (2 * nth, if nth % 2 == 0 { 300 } else { 20 })).collect();
    let scene = |name, offered, judged| changed(world, name, offered, judged);
    let long = scene("burst of 3× for 5 s, then 0.5×", &[(0, 50), (5, 300), (10, 50)], (6, 10));
    let short = scene("burst of 2× for 3 s, then 0.5×", &[(0, 50), (5, 200), (8, 50)], (18, 30));
    let bounds = [Bound::Noticed(5, SOON), Bound::Back(10, LATE), Bound::Goodput(0.9)];
    let after = [Bound::Noticed(5, SOON), Bound::Back(8, LATE), Bound::Refuses(0.01)];
    vec![
        Scene { over: Some(10), bounds: bounds.to_vec(), ..long },
        Scene { over: Some(8), bounds: after.to_vec(), ..short },
        Scene {
            bounds: vec![Bound::Goodput(0.4)],
            ..scene("3× for 2 s, 0.2× for 2 s", &on_off, (4, 28))
        },
    ]
}

fn faults(world: &Setup) -> Vec<Scene> {
    let lasts = Span::from_secs(5);
    let stuck = |workers| Fault::Stuck { workers, lasts };
    let pause = Fault::Stuck { workers: 8, lasts: Span::from_ms(600) };
    let late = Fault::Late { by: Span::from_ms(20), lasts: LATE };
    let slow = Fault::Slow { lasts: LATE };
    let scene = |name, percent, fault, judged, over, bounds: &[Bound]| {
        let mut scene = changed(world, name, &[(0, percent)], judged);
        scene.setup.faults = vec![(Span::from_secs(5), fault)];
        Scene { over: Some(over), bounds: bounds.to_vec(), ..scene }
    };
    let waits = Bound::Waits(Span::from_us(3 * TARGET));
    let (noticed, back) = (Bound::Noticed(5, SOON), |second| Bound::Back(second, LATE));
    let seven = [Bound::Goodput(0.9 * 7.0 / 8.0), waits];
    let half = [Bound::Goodput(0.45), waits, back(15)];
    let one = [Bound::Goodput(0.6), back(10)];
    let paused = [Bound::Refuses(0.15), back(6)];
    vec![
        scene("20 ms later for 10 s at 0.5×", 50, late, (5, 15), 15, &[noticed, back(15)]),
        scene("1 of 8 stuck for 5 s at 0.7×", 70, stuck(1), (5, 10), 10, &one),
        scene("1 of 8 stuck for 5 s at 1.5×", 150, stuck(1), (5, 10), 10, &seven),
        scene("all stuck for 5 s at 0.5×", 50, stuck(8), (5, 10), 10, &[noticed, back(10)]),
        scene("pause of 600 ms at 0.7×", 70, pause, (5, 15), 6, &paused),
        scene("half as fast for 10 s at 0.8×", 80, slow, (8, 15), 15, &half),
    ]
}

fn mixes(world: &Setup) -> Vec<Scene> {
    let scene = |name, percent, bounds: &[Bound]| {
        let bounds = bounds.to_vec();
        Scene { bounds, ..changed(world, name, &[(0, percent)], (3, 30)) }
    };
    let waits = Bound::Waits(Span::from_us(3 * TARGET));
    let by_class = [
        Bound::Goodput(0.9),
        waits,
        Bound::Admits(Class::Critical, 0.99),
        Bound::Admits(Class::Default, 0.9),
        Bound::AdmitsAtMost(Class::Sheddable, 0.3),
        Bound::AdmitsAtMost(Class::Background, 0.1),
    ];
    let mut classes = scene("four classes at 2×", 200, &by_class);
    classes.setup.classes = [10, 40, 30, 20];
    // Whether the key is admitted decides on three tenths of what the workers can do.
    let coarse = [Bound::Goodput(0.75), Bound::Waits(WAIT_MAX)];
    let mut heavy = scene("a key of 20 % at 1.5×", 150, &coarse);
    heavy.setup.keys = Keys::Heavy;
    let mut zipf = scene("keys by Zipf's law at 1.5×", 150, &[Bound::Goodput(0.85), waits]);
    zipf.setup.keys = Keys::Zipf;
    vec![classes, heavy, zipf]
}

fn changed(world: &Setup, name: &str, offered: &[(u64, u64)], judged: (u64, u64)) -> Scene {
    let phase = |&(at, percent): &(u64, u64)| Phase { at: Span::from_secs(at), percent };
    let setup = Setup { offered: offered.iter().map(phase).collect(), ..world.clone() };
    Scene { name: name.to_owned(), setup, judged, over: None, bounds: Vec::new() }
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
/// Within this what goes wrong is noticed.
const SOON: Span = Span::from_secs(1);
/// Within this it is left behind.
const LATE: Span = Span::from_secs(10);
