//! What is told here about leases that another instance holds, on its way there through the relay.

use admittance::relay::{Note, Posted, Relay, Told};
use admittance::{Clock, Span, StoreError};

use super::{ELSEWHERE_MAX_MS, Leases, lock};
use crate::lease_id::{LeaseId, Signer};
use crate::store::AnyFleet;

impl Leases {
    /// Whether the instance that holds a lease should hear of it again. A stream debits many times
    /// a second, and three words in the life of the shortest lease are enough.
    pub(super) fn is_due_elsewhere(&self, id: &LeaseId) -> bool {
        let now = self.clock.precise();
        let every = Span::from_us(self.ttl_min().us() / 3);
        let mut heard = lock(&self.heard_elsewhere);
        if heard.len() >= HEARD_MAX {
            heard.retain(|_, at| now.since(*at) < every);
        }
        let is_due = heard.get(&id.code()).is_none_or(|at| now.since(*at) >= every);
        if is_due && heard.len() < HEARD_MAX {
            heard.insert(id.code(), now);
        }
        is_due
    }

    pub(super) async fn pass_on_until(
        &self,
        until: tokio::time::Instant,
        owner: u64,
        named: &[(LeaseId, Told)],
    ) -> Result<Vec<Posted>, StoreError> {
        let passed = tokio::time::timeout_at(until, self.pass_on(owner, named)).await;
        passed.unwrap_or(Err(StoreError::Timeout { waited: Span::from_ms(ELSEWHERE_MAX_MS) }))
    }

    /// What came of each note. An owner that is not there holds nothing.
    async fn pass_on(
        &self,
        owner: u64,
        named: &[(LeaseId, Told)],
    ) -> Result<Vec<Posted>, StoreError> {
        let all_ended = || vec![Posted::Ended; named.len()];
        let Some(relay) = &self.relay else { return Ok(all_ended()) };
        let Some(signer) = self.signer_of(relay, owner).await? else { return Ok(all_ended()) };
        let known: Vec<bool> = named.iter().map(|(id, _)| signer.knows(id)).collect();
        let notes: Vec<Note> = named
            .iter()
            .zip(&known)
            .filter(|(_, known)| **known)
            .map(|((id, told), _)| Note { lease: id.lease, told: *told })
            .collect();
        if notes.is_empty() {
            return Ok(all_ended());
        }
        let mut posted = Vec::with_capacity(notes.len());
        // A few at a time: a store does nothing else meanwhile.
        for some in notes.chunks(NOTES_AT_ONCE) {
            let Some(came) = relay.post(owner, some).await? else {
                // It was here a moment ago. If it still is, it says so before it is asked again.
                lock(&self.others).remove(&owner);
                return Err(StoreError::Unavailable);
            };
            posted.extend(came);
        }
        let mut posted = posted.into_iter();
        let of = |known: &bool| if *known { posted.next() } else { None };
        Ok(known.iter().map(of).map(|posted| posted.unwrap_or(Posted::Ended)).collect())
    }

    async fn signer_of(&self, relay: &AnyFleet, owner: u64) -> Result<Option<Signer>, StoreError> {
        let known = lock(&self.others).get(&owner).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let now = self.clock.precise();
        if lock(&self.absent).get(&owner).is_some_and(|at| now.since(*at) < ABSENT_KEPT) {
            return Ok(None);
        }
        let Some(secret) = relay.secret(owner).await? else {
            let mut absent = lock(&self.absent);
            absent.retain(|_, at| now.since(*at) < ABSENT_KEPT);
            if absent.len() < OTHERS_MAX {
                absent.insert(owner, now);
            }
            return Ok(None);
        };
        let signer = Signer::new(secret);
        let mut others = lock(&self.others);
        if others.len() >= OTHERS_MAX {
            others.pop_first();
        }
        others.insert(owner, signer.clone());
        Ok(Some(signer))
    }
}

/// How long it is remembered that an instance is not here.
const ABSENT_KEPT: Span = Span::from_ms(500);
const NOTES_AT_ONCE: usize = 500;
const OTHERS_MAX: usize = 1_024;
/// So many leases of others are known to have been heard of; more are passed on each time.
const HEARD_MAX: usize = 10_000;
