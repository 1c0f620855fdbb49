//! Relays: where instances leave notes for one another, held to the one in memory.
//!
//! Implement [`Relays`] for a relay and run [`relays_equal_memory`], [`relays_are_atomic`] and
//! [`relays_are_bounded`].
//!
//! # Guarantee
//! A relay that passes answers what [`MemoryRelay`] answers at the same instants, in every field;
//! atomically; and keeps as many notes and ends as are promised and no more.
//!
//! # Proven by
//! `tests/it/relays.rs`: the relay in memory passes, and each of many flawed ones does not.

use std::sync::Barrier;

use admittance::relay::{
    Collect, Collected, ENDED_KEPT, ENDED_MAX, NOTES_MAX, Note, Posted, Secret, Told,
};
use admittance::{EXACT_MAX, ManualClock, MemoryRelay, Micros, Relay, Span, StoreError};
use fastrand::Rng;

use crate::departure::{Departure, Promise};
use crate::timeline::{HORIZON, generator, long, spread};
use crate::trial::START;
use crate::{block_on, join_all};

/// A kind of relay under test.
pub trait Relays: Sync {
    /// The relay.
    type Relay: Relay;

    /// One in which nobody is here.
    fn fresh(&self) -> impl Future<Output = Self::Relay> + Send;

    /// Sets the clock that it counts by. It may go back.
    fn set_clock(&self, relay: &Self::Relay, now: Micros) -> impl Future<Output = ()> + Send;

    /// How many random timelines [`relays_equal_memory`] compares.
    fn timelines(&self) -> usize {
        TIMELINES_DEFAULT
    }

    /// Runs a future to its end on the calling thread, as each of the racing callers does. One
    /// whose futures need a runtime enters it here, as in [`Harness::wait`](crate::Harness).
    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        block_on(future)
    }
}

/// What is asked of a relay.
#[derive(Clone, Debug)]
enum Asked {
    Collect { owner: u64, secret: Secret, ttl: Span, ended: Vec<u64> },
    Secret { owner: u64 },
    Post { owner: u64, notes: Vec<Note> },
}

/// What a relay answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answered {
    Collected(Vec<Collected>),
    Secret(Option<Secret>),
    Posted(Option<Vec<Posted>>),
}

impl Asked {
    async fn of(&self, relay: &impl Relay) -> Result<Answered, StoreError> {
        Ok(match self {
            Self::Collect { owner, secret, ttl, ended } => {
                let collect = Collect { owner: *owner, secret, ttl: *ttl, ended };
                Answered::Collected(relay.collect(collect).await?)
            }
            Self::Secret { owner } => Answered::Secret(relay.secret(*owner).await?),
            Self::Post { owner, notes } => Answered::Posted(relay.post(*owner, notes).await?),
        })
    }
}

/// A relay under test beside the one in memory.
struct Pair<'r, R: Relays> {
    relays: &'r R,
    relay: R::Relay,
    clock: ManualClock,
    memory: MemoryRelay<ManualClock>,
    promise: Promise,
}

impl<'r, R: Relays> Pair<'r, R> {
    async fn new(relays: &'r R, promise: Promise) -> Self {
        let clock = ManualClock::default();
        let memory = MemoryRelay::new(clock.clone());
        Self { relays, relay: relays.fresh().await, clock, memory, promise }
    }

    async fn set_clock(&self, now: Micros) {
        self.clock.set(now);
        self.relays.set_clock(&self.relay, now).await;
    }

    async fn ask(&self, at: Micros, asked: &Asked) -> Result<(), Departure> {
        self.set_clock(at).await;
        let (expected, given) = (asked.of(&self.memory).await, asked.of(&self.relay).await);
        Departure::unless_equal(self.promise, (at, asked), &expected, &given)
    }
}

/// Every answer is that of the relay in memory: owners that come, stay and go, notes about leases
/// that are held, ended or both, while the clock stops, crawls, lands on every end and the tick
/// before it, and steps back.
///
/// A relay may forget an owner that is gone, so the clock steps back only as far as nobody is here
/// again because of it.
///
/// # Errors
/// The first answer that is another.
pub async fn relays_equal_memory<R: Relays>(relays: &R) -> Result<(), Departure> {
    let mut rng = generator(73);
    let mut pair = Pair::new(relays, Promise::Equals).await;
    for timeline in 0..long(relays.timelines()) {
        if timeline % TIMELINES_PER_STORE == 0 {
            pair = Pair::new(relays, Promise::Equals).await;
        }
        let mut drawn = Drawn::new(&mut rng, timeline as u64);
        for _ in 0..STEPS {
            let (at, asked) = drawn.next(&mut rng);
            pair.ask(at, &asked).await?;
        }
    }
    Ok(())
}

/// However many leave the end of one lease at once, one of them does; however many collect at once,
/// each note is collected by one of them.
///
/// # Errors
/// The first count that is another.
pub async fn relays_are_atomic<R: Relays>(relays: &R) -> Result<(), Departure> {
    for on_threads in [false, true] {
        let relay = relays.fresh().await;
        relays.set_clock(&relay, START).await;
        let mut left = [0; LEASES_RACED];
        let failed = |error| Departure {
            promise: Promise::Atomic,
            at: START,
            asked: "many at once".to_owned(),
            expected: "an answer".to_owned(),
            given: format!("{error:?}"),
        };
        let collect = Collect { owner: 1, secret: &[1; 32], ttl: Span::from_secs(60), ended: &[] };
        relay.collect(collect).await.map_err(failed)?;
        let leases = 0..LEASES_RACED as u64;
        let notes: Vec<Note> = leases.map(|lease| Note { lease, told: Told::Finish }).collect();
        let posts = at_once(relays, on_threads, || relay.post(1, &notes)).await;
        for posted in posts {
            let posted = posted.map_err(failed)?.unwrap_or_default();
            for (count, posted) in left.iter_mut().zip(posted) {
                *count += usize::from(posted == Posted::Left);
            }
        }
        Departure::unless_equal(Promise::Atomic, (START, &notes), &[1; LEASES_RACED], &left)?;
        let mut collected = [0; LEASES_RACED];
        for notes in at_once(relays, on_threads, || relay.collect(collect)).await {
            for Collected { note, .. } in notes.map_err(failed)? {
                if let Some(count) =
                    usize::try_from(note.lease).ok().and_then(|l| collected.get_mut(l))
                {
                    *count += 1;
                }
            }
        }
        Departure::unless_equal(
            Promise::Atomic,
            (START, &collect),
            &[1; LEASES_RACED],
            &collected,
        )?;
    }
    Ok(())
}

/// The same ask by many at once: on threads of their own, or taking turns wherever one waits.
async fn at_once<R: Relays, T: Send, F: Future<Output = T> + Send>(
    relays: &R,
    on_threads: bool,
    ask: impl Fn() -> F + Sync,
) -> Vec<T> {
    if !on_threads {
        return join_all((0..RACERS).map(|_| ask())).await;
    }
    let barrier = Barrier::new(RACERS);
    let call = || {
        barrier.wait();
        relays.wait(ask())
    };
    std::thread::scope(|scope| {
        let calls: Vec<_> = (0..RACERS).map(|_| scope.spawn(call)).collect();
        calls.into_iter().map(|call| call.join().expect("a caller does not panic")).collect()
    })
}

/// [`NOTES_MAX`] notes wait for an owner and [`ENDED_MAX`] ends are remembered, and no more; the
/// oldest ends are forgotten first, of those the lowest leases.
///
/// # Errors
/// The first answer that is another.
pub async fn relays_are_bounded<R: Relays>(relays: &R) -> Result<(), Departure> {
    let pair = Pair::new(relays, Promise::Bounded).await;
    let collect = |ended| Asked::Collect { owner: 9, secret: [9; 32], ttl: ENDED_KEPT, ended };
    let post = |leases: std::ops::Range<u64>, told| {
        let notes = leases.map(|lease| Note { lease, told }).collect();
        Asked::Post { owner: 9, notes }
    };
    let (notes_max, ended_max) = (NOTES_MAX as u64, ENDED_MAX as u64);
    pair.ask(START, &collect(vec![])).await?;
    pair.ask(START, &post(5..notes_max + 4, Told::Beat)).await?;
    pair.ask(START, &post(notes_max..notes_max + 10, Told::Beat)).await?;
    // One that is among them may be replaced.
    pair.ask(START, &post(5..7, Told::Overload)).await?;
    pair.ask(START, &collect(vec![])).await?;
    let later = START + Span::from_us(5);
    pair.ask(later, &collect((1_000..900 + ended_max).collect())).await?;
    pair.ask(later, &post(0..104, Told::Finish)).await?;
    // 5 and 6 ended before all others; then the lowest of those of one instant.
    pair.ask(later, &post(0..10, Told::Beat)).await?;
    pair.ask(later, &post(995..1_010, Told::Beat)).await
}

/// Random owners and leases.
struct Drawn {
    owners: Vec<Owner>,
    now: u64,
    /// Before this somebody who is gone would be here.
    floor: u64,
    ttl: u64,
}

struct Owner {
    name: u64,
    here_until: u64,
    /// Instants from which something is over.
    ends: Vec<u64>,
}

impl Drawn {
    fn new(rng: &mut Rng, timeline: u64) -> Self {
        // The relay has seen other timelines at other times; no owner was in two of them.
        let owner = |place: u64| Owner {
            name: if timeline.is_multiple_of(2) {
                4 * timeline + place
            } else {
                EXACT_MAX - 4 * timeline - place
            },
            here_until: 0,
            ends: Vec::new(),
        };
        let owners = (0..rng.u64(1..4)).map(owner).collect();
        let base = match rng.u8(..8) {
            0 => 0,
            1 => HORIZON - rng.u64(0..=100_000_000),
            _ => 1_700_000_000_123_456 + rng.u64(0..=1_000_000_000),
        };
        Self { owners, now: base, floor: 0, ttl: spread(rng, 200_000_000) }
    }

    fn next(&mut self, rng: &mut Rng) -> (Micros, Asked) {
        let place = rng.usize(..self.owners.len());
        self.move_on(rng, place);
        for owner in &self.owners {
            if owner.here_until <= self.now {
                self.floor = self.floor.max(owner.here_until);
            }
        }
        let (now, ttl) = (self.now, self.ttl);
        let owner = &mut self.owners[place];
        let lease = |rng: &mut Rng| match rng.u8(..16) {
            0 => EXACT_MAX,
            1 => spread(rng, EXACT_MAX),
            _ => rng.u64(1..12),
        };
        let name = owner.name;
        let asked = match rng.u8(..8) {
            0..=2 => {
                let ttl = if rng.u8(..4) == 0 { spread(rng, ttl) } else { ttl };
                owner.here_until = now + ttl;
                let count = rng.usize(0..4);
                let ended: Vec<u64> = (0..count).map(|_| lease(rng)).collect();
                owner.ends.push(now + ENDED_KEPT.us());
                let secret = [rng.u8(..); 32];
                Asked::Collect { owner: name, secret, ttl: Span::from_us(ttl), ended }
            }
            3 => Asked::Secret { owner: name },
            _ => {
                let note = |rng: &mut Rng| {
                    let told = [Told::Beat, Told::Beat, Told::Finish, Told::Overload];
                    Note { lease: lease(rng), told: told[rng.usize(..told.len())] }
                };
                let count = rng.usize(0..6);
                owner.ends.push(now + ENDED_KEPT.us());
                Asked::Post { owner: name, notes: (0..count).map(|_| note(rng)).collect() }
            }
        };
        (Micros::saturating_from_epoch_us(now), asked)
    }

    fn move_on(&mut self, rng: &mut Rng, place: usize) {
        let owner = &self.owners[place];
        let end = match rng.u8(..4) {
            0 => owner.here_until,
            _ => owner.ends.get(rng.usize(..owner.ends.len().max(1))).copied().unwrap_or(self.now),
        };
        let now = self.now;
        let to = match rng.u8(..16) {
            0..=5 => now,
            6 => now + rng.u64(1..5),
            7..=8 => end.max(now),
            9 => end.saturating_sub(1).max(now),
            10 => end.max(now) + 1,
            11 => now + rng.u64(0..=self.ttl),
            12 => now + rng.u64(0..=ENDED_KEPT.us()),
            13 => now.saturating_sub(rng.u64(1..5)),
            14 => now.saturating_sub(rng.u64(0..=ENDED_KEPT.us())),
            _ => end,
        };
        self.now = to.max(self.floor).min(HORIZON);
    }
}

/// Callers at once.
const RACERS: usize = 48;
/// Leases whose end each of them leaves.
const LEASES_RACED: usize = 8;
/// Asks in each timeline.
const STEPS: usize = 60;
const TIMELINES_PER_STORE: usize = 200;
/// A tenth of what is asked for; `ADMITTANCE_LONG=1` runs all.
const TIMELINES_DEFAULT: usize = 1_000;
