//! The relay: each call is one script over the three keys of an owner.
//!
//! # Guarantee
//! - Answers are those of [`MemoryRelay`](admittance::MemoryRelay), in every field.
//! - Everything of an owner goes by itself a second after it is not here any more.
//!
//! # Proven by
//! `tests/it/relays.rs`, with scripts that are nearly right.

use admittance::relay::{
    Collect, Collected, ENDED_KEPT, ENDED_MAX, NOTES_MAX, Note, Posted, Secret, Told as Said,
};
use admittance::{EXACT_MAX, Relay, Span, StoreError};

use crate::ask::{Arg, Told};
use crate::scripts::Script;
use crate::store::RedisStore;

impl Relay for RedisStore {
    async fn collect(&self, collect: Collect<'_>) -> Result<Vec<Collected>, StoreError> {
        let ttl = collect.ttl.us().min(EXACT_MAX).cast_signed();
        let mut args = vec![Arg::Bytes(collect.secret.to_vec()), Arg::Number(ttl)];
        args.extend(collect.ended.iter().map(|&ended| lease(ended)));
        let told = self.whole(Script::Collect, self.owner_names(collect.owner), args, 0).await?;
        let numbers = numbers(&told)?;
        let (notes, []) = numbers.as_chunks() else { return Err(StoreError::Unreadable) };
        let notes: Option<Vec<Collected>> = notes.iter().map(collected).collect();
        let mut notes = notes.ok_or(StoreError::Unreadable)?;
        notes.sort_unstable_by_key(|collected| collected.note.lease);
        Ok(notes)
    }

    async fn secret(&self, owner: u64) -> Result<Option<Secret>, StoreError> {
        let [here, ..] = self.names_of_owner(owner);
        match self.whole(Script::Secret, vec![here], Vec::new(), 0).await? {
            Told::Cell { code: 0, .. } => Ok(None),
            Told::Cell { code: 1, bytes: Some(bytes), .. } => {
                let secret = Secret::try_from(bytes).map_err(|_| StoreError::Unreadable)?;
                Ok(Some(secret))
            }
            _ => Err(StoreError::Unreadable),
        }
    }

    async fn post(&self, owner: u64, notes: &[Note]) -> Result<Option<Vec<Posted>>, StoreError> {
        let mut args = Vec::with_capacity(2 * notes.len());
        for note in notes {
            args.extend([lease(note.lease), Arg::Number(said_number(note.told))]);
        }
        let told = self.whole(Script::Post, self.owner_names(owner), args, 0).await?;
        let numbers = numbers(&told)?;
        if numbers == [ABSENT] {
            return Ok(None);
        }
        if numbers.len() != notes.len() {
            return Err(StoreError::Unreadable);
        }
        let posted: Option<Vec<Posted>> = numbers.iter().map(|&number| posted(number)).collect();
        posted.map(Some).ok_or(StoreError::Unreadable)
    }
}

impl RedisStore {
    /// What is kept of an owner, all in the owner's slot. No shape begins so.
    fn names_of_owner(&self, owner: u64) -> [Vec<u8>; 3] {
        let owner = owner.to_string();
        ["~here", "~notes", "~ended"].map(|part| self.name_of(part, "", owner.as_bytes()))
    }

    fn owner_names(&self, owner: u64) -> Vec<Vec<u8>> {
        self.names_of_owner(owner).into()
    }
}

/// A lease as the scripts know it.
fn lease(lease: u64) -> Arg {
    Arg::Bytes(format!("{:016}", lease.min(EXACT_MAX)).into_bytes())
}

fn numbers(told: &Told) -> Result<&[i64], StoreError> {
    match told {
        Told::Numbers { numbers, .. } => Ok(numbers),
        Told::Cell { .. } => Err(StoreError::Unreadable),
    }
}

fn collected(numbers: &[i64; 3]) -> Option<Collected> {
    let &[lease, said, age] = numbers;
    let note = Note { lease: u64::try_from(lease).ok()?, told: said_of(said)? };
    Some(Collected { note, age: Span::from_us(u64::try_from(age).ok()?) })
}

const fn said_number(said: Said) -> i64 {
    match said {
        Said::Beat => 0,
        Said::Finish => 1,
        Said::Overload => 2,
    }
}

fn said_of(number: i64) -> Option<Said> {
    [Said::Beat, Said::Finish, Said::Overload].into_iter().find(|&said| said_number(said) == number)
}

const fn posted(number: i64) -> Option<Posted> {
    match number {
        0 => Some(Posted::Left),
        1 => Some(Posted::Ended),
        2 => Some(Posted::Full),
        _ => None,
    }
}

/// What `post.lua` answers if the owner is not here.
const ABSENT: i64 = -4;

const _: () = {
    assert!(NOTES_MAX == 10_000 && ENDED_MAX == 10_000, "as relay.lua has them");
    assert!(ENDED_KEPT.us() == 30_000_000, "as relay.lua has it");
};
