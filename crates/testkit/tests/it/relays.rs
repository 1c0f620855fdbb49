//! The relay in memory under the suite, and relays that are nearly right: each has one defect, and
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
enum Mutant {
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
    mutant: Mutant,
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
        let owner = if self.mutant == Mutant::OwnersAreOne { 1 } else { collect.owner };
        let mut asked = Collect { owner, ..collect };
        let first = *self.kept.lock().unwrap().secrets.entry(owner).or_insert(*collect.secret);
        match self.mutant {
            Mutant::EndedUnheard => asked.ended = &[],
            Mutant::SecretStays => asked.secret = &first,
            Mutant::HereATickLonger => asked.ttl = Span::from_us(asked.ttl.us() + 1),
            Mutant::ReadsThenWrites => turn().await,
            _ => {}
        }
        if self.mutant == Mutant::LeavesForTheAbsent {
            let left = self.kept.lock().unwrap().absent.remove(&owner).unwrap_or_default();
            self.inner.collect(Collect { ended: &[], ..asked }).await?;
            self.inner.post(owner, &left).await?;
        }
        let mut collected = self.inner.collect(asked).await?;
        let mut kept = self.kept.lock().unwrap();
        kept.noted.retain(|(of, _), ()| *of != owner);
        kept.ended.entry(owner).or_default().extend(collect.ended);
        match self.mutant {
            Mutant::CollectsTwice => {
                let last = kept.last.insert(owner, collected.clone());
                collected.extend(last.unwrap_or_default());
            }
            Mutant::AgesAreNothing => collected.iter_mut().for_each(|c| c.age = Span::ZERO),
            Mutant::AnyOrder => collected.reverse(),
            Mutant::OverloadIsAFinish => {
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
        match self.mutant {
            Mutant::TellsTheSecretOfTheAbsent => Ok(told.or(kept.secrets.get(&owner).copied())),
            _ => Ok(told),
        }
    }

    async fn post(&self, owner: u64, notes: &[Note]) -> Result<Option<Vec<Posted>>, StoreError> {
        let owner = if self.mutant == Mutant::OwnersAreOne { 1 } else { owner };
        let now = self.clock.now();
        let ask = |notes: Vec<Note>| async move { self.inner.post(owner, &notes).await };
        match self.mutant {
            Mutant::LeavesForTheAbsent if self.inner.secret(owner).await?.is_none() => {
                let mut kept = self.kept.lock().unwrap();
                kept.absent.entry(owner).or_default().extend(notes);
                Ok(None)
            }
            Mutant::EndsNotRemembered => {
                // Asked as beats, which end nothing.
                let beat = |note: &Note| Note { told: Told::Beat, ..*note };
                ask(notes.iter().map(beat).collect()).await
            }
            Mutant::ForgetsEndsATickEarly => {
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
            Mutant::FirstNoteStays => {
                let mut posted = Vec::new();
                for note in notes {
                    let is_first = self.kept.lock().unwrap().noted.insert((owner, note.lease), ());
                    let Some(told) = ask(vec![*note]).await? else { return Ok(None) };
                    // Told as if left, but the note is not replaced.
                    posted.extend(if is_first.is_none() { told } else { vec![Posted::Left] });
                }
                Ok(self.inner.secret(owner).await?.map(|_| posted))
            }
            Mutant::NeverFull => {
                let posted = ask(notes.to_vec()).await?;
                let full = |posted| if posted == Posted::Full { Posted::Left } else { posted };
                Ok(posted.map(|posted| posted.into_iter().map(full).collect()))
            }
            Mutant::FullOneEarly if notes.len() == NOTES_MAX - 1 => {
                let posted = ask(notes.to_vec()).await?;
                Ok(posted.map(|mut posted| {
                    posted.pop();
                    posted.push(Posted::Full);
                    posted
                }))
            }
            Mutant::ReadsThenWrites => {
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

struct MutantRelay {
    mutant: Mutant,
    clock: ManualClock,
}

impl Relays for MutantRelay {
    type Relay = Spoiled;

    async fn fresh(&self) -> Spoiled {
        let (mutant, clock) = (self.mutant, self.clock.clone());
        let inner = MemoryRelay::new(clock.clone());
        Spoiled { mutant, clock, inner, kept: Mutex::default() }
    }

    async fn set_clock(&self, _relay: &Spoiled, now: Micros) {
        self.clock.set(now);
    }
}

#[test]
fn every_flaw_is_seen() {
    let seen_by = [
        (Mutant::CollectsTwice, Promise::Equals),
        (Mutant::EndsNotRemembered, Promise::Equals),
        (Mutant::EndedUnheard, Promise::Equals),
        (Mutant::ForgetsEndsATickEarly, Promise::Equals),
        (Mutant::LeavesForTheAbsent, Promise::Equals),
        (Mutant::HereATickLonger, Promise::Equals),
        (Mutant::TellsTheSecretOfTheAbsent, Promise::Equals),
        (Mutant::SecretStays, Promise::Equals),
        (Mutant::AgesAreNothing, Promise::Equals),
        (Mutant::FirstNoteStays, Promise::Equals),
        (Mutant::OwnersAreOne, Promise::Equals),
        (Mutant::AnyOrder, Promise::Equals),
        (Mutant::OverloadIsAFinish, Promise::Equals),
        (Mutant::NeverFull, Promise::Bounded),
        (Mutant::FullOneEarly, Promise::Bounded),
        (Mutant::ReadsThenWrites, Promise::Atomic),
    ];
    for (mutant, promise) in seen_by {
        let relays = MutantRelay { mutant, clock: ManualClock::default() };
        let held = block_on(async {
            match promise {
                Promise::Atomic => relays_are_atomic(&relays).await,
                Promise::Bounded => relays_are_bounded(&relays).await,
                _ => relays_equal_memory(&relays).await,
            }
        });
        let departure = held.expect_err(&format!("{mutant:?} is not seen"));
        assert_eq!(departure.promise, promise, "{mutant:?}");
    }
}
