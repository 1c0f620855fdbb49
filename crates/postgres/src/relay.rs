//! What instances leave for one another, as asks of the database.
//!
//! # Guarantee
//! What every [`Relay`] promises; one round trip per call. The owner's row is locked before the
//! clock is read. A crash of the server loses what waited: leases then end by time.
//!
//! # Proven by
//! `tests/it/relay.rs`: the suite of `admittance-testkit`, edited functions that it must notice,
//! races, and rows that are reaped.

use admittance::relay::{
    Collect, Collected, ENDED_KEPT, ENDED_MAX, NOTES_MAX, Note, Posted, Secret, Told,
};
use admittance::{Relay, Span, StoreError};

use crate::PostgresStore;
use crate::carry::Ask;
use crate::key::Kind;
use crate::spec::number;
use crate::store::unsigned;

impl Relay for PostgresStore {
    async fn collect(&self, collect: Collect<'_>) -> Result<Vec<Collected>, StoreError> {
        let ask = Ask::Collect {
            owner: self.owner(collect.owner),
            secret: collect.secret.to_vec(),
            ttl: number(collect.ttl.us()),
            ended: collect.ended.iter().copied().map(number).collect(),
        };
        collected(&self.numbers(ask).await?)
    }

    async fn secret(&self, owner: u64) -> Result<Option<Secret>, StoreError> {
        let (_, held) = self.cell(Ask::Secret { owner: self.owner(owner) }).await?;
        let secret = held.bytes.map(|bytes| bytes.as_slice().try_into());
        secret.transpose().map_err(|_| StoreError::Unreadable)
    }

    async fn post(&self, owner: u64, notes: &[Note]) -> Result<Option<Vec<Posted>>, StoreError> {
        let ask = Ask::Post {
            owner: self.owner(owner),
            leases: notes.iter().map(|note| number(note.lease)).collect(),
            tolds: notes.iter().map(|note| told(note.told)).collect(),
        };
        posted(&self.numbers(ask).await?)
    }
}

impl PostgresStore {
    fn owner(&self, owner: u64) -> Vec<u8> {
        self.stored_name(Kind::Owner, &owner.to_be_bytes())
    }
}

fn told(told: Told) -> i64 {
    match told {
        Told::Beat => BEAT,
        Told::Finish => FINISH,
        Told::Overload => OVERLOAD,
    }
}

fn collected(numbers: &[i64]) -> Result<Vec<Collected>, StoreError> {
    let (_, notes) = numbers.split_first().ok_or(StoreError::Unreadable)?;
    let one = |three: &[i64]| {
        let &[lease, told, age] = three else { return Err(StoreError::Unreadable) };
        let told = match told {
            BEAT => Told::Beat,
            FINISH => Told::Finish,
            OVERLOAD => Told::Overload,
            _ => return Err(StoreError::Unreadable),
        };
        let note = Note { lease: unsigned(lease), told };
        Ok(Collected { note, age: Span::from_us(unsigned(age)) })
    };
    notes.chunks(3).map(one).collect()
}

fn posted(numbers: &[i64]) -> Result<Option<Vec<Posted>>, StoreError> {
    let one = |posted: &i64| {
        Ok(match posted {
            0 => Posted::Left,
            1 => Posted::Ended,
            2 => Posted::Full,
            _ => return Err(StoreError::Unreadable),
        })
    };
    match numbers {
        [_, 0] => Ok(None),
        [_, 1, each @ ..] => each.iter().map(one).collect::<Result<_, _>>().map(Some),
        _ => Err(StoreError::Unreadable),
    }
}

const BEAT: i64 = 0;
const FINISH: i64 = 1;
const OVERLOAD: i64 = 2;

const _: () = assert!(NOTES_MAX == 10_000 && ENDED_MAX == 10_000, "as 0009_relay.sql has it");
const _: () = assert!(ENDED_KEPT.us() == 30_000_000, "as 0009_relay.sql has it");
