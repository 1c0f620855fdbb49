//! The relay in memory under the suite, and relays that are nearly right: each has one flaw, and
//! the promise that forbids it must see it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::task::Poll;

use admittance::relay::{Collect, Collected, NOTES_MAX, Note, Posted, Secret, Told};
use admittance::{Clock, ManualClock, MemoryRelay, Micros, Relay, Span, StoreError};
use admittance_testkit::{
    Departure, Promise, Relays, block_on, relays_are_atomic, relays_are_bounded,
    relays_equal_memory,
};

struct InProcess(ManualClock);

impl Relays for InProcess {
    type Relay = MemoryRelay<ManualClock>;

    async fn fresh(&self) -> Self::Relay {
        MemoryRelay::new(self.0.clone())
    }

    async fn set_clock(&self, _relay: &Self::Relay, now: Micros) {
        self.0.set(now);
    }
}

/// Every promise.
async fn hold<R: Relays>(relays: &R) -> Result<(), Departure> {
    relays_are_atomic(relays).await?;
    relays_are_bounded(relays).await?;
    relays_equal_memory(relays).await
}

#[test]
fn the_relay_in_memory_holds_every_promise() {
    block_on(hold(&InProcess(ManualClock::default()))).unwrap();
}

/// What is wrong with a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// What was collected is collected again.
    CollectsTwice,
    EndsNotRemembered,
    /// The owner's word that a lease has ended is not heard.
    EndedUnheard,
    ForgetsEndsATickEarly,
    /// What is left for one who is not here is found when he comes.
    LeavesForTheAbsent,
    HereATickLonger,
    TellsTheSecretOfTheAbsent,
    SecretStays,
    AgesAreNothing,
    /// The first note about a lease is kept, not the last.
    FirstNoteStays,
    OwnersAreOne,
    NeverFull,
    FullOneEarly,
    AnyOrder,
    OverloadIsAFinish,
    ReadsThenWrites,
}

/// The relay in memory, spoiled.
struct Spoiled {
    flaw: Flaw,
    clock: ManualClock,
    inner: MemoryRelay<ManualClock>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    last: HashMap<u64, Vec<Collected>>,
    secrets: HashMap<u64, Secret>,
    absent: HashMap<u64, Vec<Note>>,
    noted: HashMap<(u64, u64), ()>,
    ended: HashMap<u64, Vec<u64>>,
}

impl Relay for Spoiled {
    async fn collect(&self, collect: Collect<'_>) -> Result<Vec<Collected>, StoreError> {
        let owner = if self.flaw == Flaw::OwnersAreOne { 1 } else { collect.owner };
        let mut asked = Collect { owner, ..collect };
        let first = *self.kept.lock().unwrap().secrets.entry(owner).or_insert(*collect.secret);
        match self.flaw {
            Flaw::EndedUnheard => asked.ended = &[],
            Flaw::SecretStays => asked.secret = &first,
            Flaw::HereATickLonger => asked.ttl = Span::from_us(asked.ttl.us() + 1),
            Flaw::ReadsThenWrites => turn().await,
            _ => {}
        }
        if self.flaw == Flaw::LeavesForTheAbsent {
            let left = self.kept.lock().unwrap().absent.remove(&owner).unwrap_or_default();
            self.inner.collect(Collect { ended: &[], ..asked }).await?;
            self.inner.post(owner, &left).await?;
        }
        let mut collected = self.inner.collect(asked).await?;
        let mut kept = self.kept.lock().unwrap();
        kept.noted.retain(|(of, _), ()| *of != owner);
        kept.ended.entry(owner).or_default().extend(collect.ended);
        match self.flaw {
            Flaw::CollectsTwice => {
                let last = kept.last.insert(owner, collected.clone());
                collected.extend(last.unwrap_or_default());
            }
            Flaw::AgesAreNothing => collected.iter_mut().for_each(|c| c.age = Span::ZERO),
            Flaw::AnyOrder => collected.reverse(),
            Flaw::OverloadIsAFinish => {
                let overloads = collected.iter_mut().filter(|c| c.note.told == Told::Overload);
                overloads.for_each(|c| c.note.told = Told::Finish);
            }
            _ => {}
        }
        Ok(collected)
    }

    async fn secret(&self, owner: u64) -> Result<Option<Secret>, StoreError> {
        let told = self.inner.secret(owner).await?;
        let kept = self.kept.lock().unwrap();
        match self.flaw {
            Flaw::TellsTheSecretOfTheAbsent => Ok(told.or(kept.secrets.get(&owner).copied())),
            _ => Ok(told),
        }
    }

    async fn post(&self, owner: u64, notes: &[Note]) -> Result<Option<Vec<Posted>>, StoreError> {
        let owner = if self.flaw == Flaw::OwnersAreOne { 1 } else { owner };
        let now = self.clock.now();
        let ask = |notes: Vec<Note>| async move { self.inner.post(owner, &notes).await };
        match self.flaw {
            Flaw::LeavesForTheAbsent if self.inner.secret(owner).await?.is_none() => {
                let mut kept = self.kept.lock().unwrap();
                kept.absent.entry(owner).or_default().extend(notes);
                Ok(None)
            }
            Flaw::EndsNotRemembered => {
                // Asked as beats, which end nothing.
                let beat = |note: &Note| Note { told: Told::Beat, ..*note };
                ask(notes.iter().map(beat).collect()).await
            }
            Flaw::ForgetsEndsATickEarly => {
                let Some(mut posted) = ask(notes.to_vec()).await? else { return Ok(None) };
                for (posted, note) in posted.iter_mut().zip(notes) {
                    if *posted == Posted::Ended {
                        self.clock.set(now + Span::TICK);
                        let early = ask(vec![*note]).await?;
                        self.clock.set(now);
                        *posted = early.map_or(*posted, |early| early[0]);
                    }
                }
                Ok(Some(posted))
            }
            Flaw::FirstNoteStays => {
                let mut posted = Vec::new();
                for note in notes {
                    let is_first = self.kept.lock().unwrap().noted.insert((owner, note.lease), ());
                    let Some(told) = ask(vec![*note]).await? else { return Ok(None) };
                    // Told as if left, but the note is not replaced.
                    posted.extend(if is_first.is_none() { told } else { vec![Posted::Left] });
                }
                Ok(self.inner.secret(owner).await?.map(|_| posted))
            }
            Flaw::NeverFull => {
                let posted = ask(notes.to_vec()).await?;
                let full = |posted| if posted == Posted::Full { Posted::Left } else { posted };
                Ok(posted.map(|posted| posted.into_iter().map(full).collect()))
            }
            Flaw::FullOneEarly if notes.len() == NOTES_MAX - 1 => {
                let posted = ask(notes.to_vec()).await?;
                Ok(posted.map(|mut posted| {
                    posted.pop();
                    posted.push(Posted::Full);
                    posted
                }))
            }
            Flaw::ReadsThenWrites => {
                let ended = self.kept.lock().unwrap().ended.clone();
                turn().await;
                let of = ended.get(&owner).cloned().unwrap_or_default();
                let mut kept = self.kept.lock().unwrap();
                kept.ended.entry(owner).or_default().extend(notes.iter().map(|note| note.lease));
                let posted = |note: &Note| match of.contains(&note.lease) {
                    true => Posted::Ended,
                    false => Posted::Left,
                };
                Ok(Some(notes.iter().map(posted).collect()))
            }
            _ => ask(notes.to_vec()).await,
        }
    }
}

/// Lets others go first, once.
async fn turn() {
    let mut is_first = true;
    std::future::poll_fn(|context| {
        context.waker().wake_by_ref();
        if std::mem::replace(&mut is_first, false) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
}

struct Flawed {
    flaw: Flaw,
    clock: ManualClock,
}

impl Relays for Flawed {
    type Relay = Spoiled;

    async fn fresh(&self) -> Spoiled {
        let (flaw, clock) = (self.flaw, self.clock.clone());
        let inner = MemoryRelay::new(clock.clone());
        Spoiled { flaw, clock, inner, kept: Mutex::default() }
    }

    async fn set_clock(&self, _relay: &Spoiled, now: Micros) {
        self.clock.set(now);
    }
}

#[test]
fn every_flaw_is_seen() {
    let seen_by = [
        (Flaw::CollectsTwice, Promise::Equals),
        (Flaw::EndsNotRemembered, Promise::Equals),
        (Flaw::EndedUnheard, Promise::Equals),
        (Flaw::ForgetsEndsATickEarly, Promise::Equals),
        (Flaw::LeavesForTheAbsent, Promise::Equals),
        (Flaw::HereATickLonger, Promise::Equals),
        (Flaw::TellsTheSecretOfTheAbsent, Promise::Equals),
        (Flaw::SecretStays, Promise::Equals),
        (Flaw::AgesAreNothing, Promise::Equals),
        (Flaw::FirstNoteStays, Promise::Equals),
        (Flaw::OwnersAreOne, Promise::Equals),
        (Flaw::AnyOrder, Promise::Equals),
        (Flaw::OverloadIsAFinish, Promise::Equals),
        (Flaw::NeverFull, Promise::Bounded),
        (Flaw::FullOneEarly, Promise::Bounded),
        (Flaw::ReadsThenWrites, Promise::Atomic),
    ];
    for (flaw, promise) in seen_by {
        let relays = Flawed { flaw, clock: ManualClock::default() };
        let held = block_on(async {
            match promise {
                Promise::Atomic => relays_are_atomic(&relays).await,
                Promise::Bounded => relays_are_bounded(&relays).await,
                _ => relays_equal_memory(&relays).await,
            }
        });
        let departure = held.expect_err(&format!("{flaw:?} is not seen"));
        assert_eq!(departure.promise, promise, "{flaw:?}");
    }
}
