//! The coordinator: each beat and each leave is one script over one string per fleet.
//!
//! # Guarantee
//! - Answers are those of [`Members`](admittance::concurrency::Members), in every field.
//! - A server that was restarted or promoted is in another life: it may have forgotten what it
//!   granted, and grants nothing until that has ended. So does one that has forgotten the fleet.
//! - A fleet is remembered for a day after it was last heard, or for as long as its own rules keep
//!   a node or it must be quiet, if that is more.
//! - Numbers of a report are exact below 2^53. The sequences of a process do not get there; of a
//!   new epoch's number the lower 53 bits are kept.
//!
//! # Proven by
//! `tests/it/fleets.rs`, with scripts that are nearly right.

use admittance::concurrency::{
    Aggregate, FleetRules, Grant, Leave, PERMITS_MAX, Report, Split, Unheard,
};
use admittance::{Coordinator, CoordinatorError, EXACT_MAX, Span, StoreError};

use crate::ask::{Arg, Told, UNREADABLE};
use crate::scripts::Script;
use crate::store::RedisStore;

impl Coordinator for RedisStore {
    async fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> Result<Grant, CoordinatorError> {
        let Report { node, sequence, local_limit, is_sampled, in_flight, .. } = report;
        let mut args = vec![
            Arg::Bytes(self.life().into_bytes()),
            Arg::Bytes(node.id().into()),
            number(node.incarnation()),
            number(*sequence),
            number((*local_limit).min(PERMITS_MAX).into()),
            number((*is_sampled).into()),
            number((*in_flight).min(PERMITS_MAX).into()),
        ];
        // Cut off, not bounded: two numbers drawn at random must not become one.
        let new_epoch = (report.new_epoch & EXACT_MAX).max(1);
        args.extend([report.epoch, report.applied, new_epoch].map(number));
        args.extend(rule_numbers(rules).map(number));
        // A promoted server is in another life: nothing hangs on what replicas have confirmed.
        let told = self.whole(Script::Beat, vec![self.fleet_name(fleet)], args, 0).await?;
        granted(rules, &told)
    }

    async fn leave(&self, fleet: &str, leave: &Leave) -> Result<(), StoreError> {
        let args = vec![
            Arg::Bytes(leave.node.id().into()),
            number(leave.node.incarnation()),
            number(leave.sequence),
            number(leave.in_flight.min(PERMITS_MAX).into()),
        ];
        match self.whole(Script::Leave, vec![self.fleet_name(fleet)], args, 0).await? {
            Told::Numbers { numbers, .. } if matches!(numbers[..], [0 | 1]) => Ok(()),
            _ => Err(StoreError::Unreadable),
        }
    }
}

impl RedisStore {
    /// A fleet has a name of its own in the server. No shape begins so, and the fleet decides the
    /// slot, unless it is a policy with a hash tag.
    fn fleet_name(&self, fleet: &str) -> Vec<u8> {
        self.name_of("~fleet", fleet, fleet.as_bytes())
    }
}

fn number(number: u64) -> Arg {
    Arg::Number(number.min(EXACT_MAX).cast_signed())
}

fn rule_numbers(rules: &FleetRules) -> [u64; 5] {
    let aggregate = match rules.aggregate {
        Aggregate::Median => 0,
        Aggregate::Min => 1,
    };
    let split = match rules.split {
        Split::Equal => 0,
        Split::Demand => 1,
    };
    [aggregate, split, rules.handoff.into(), rules.ttl.us(), rules.max_hold.us()]
}

fn granted(rules: &FleetRules, told: &Told) -> Result<Grant, CoordinatorError> {
    let Told::Numbers { numbers, .. } = told else { return Err(StoreError::Unreadable.into()) };
    let &[code, first, second, third, fourth, fifth, sixth, seventh] = numbers.as_slice() else {
        return Err(StoreError::Unreadable.into());
    };
    match code {
        STALE | TAKEN => Ok(Grant {
            share: small(first)?,
            generation: second.unsigned_abs(),
            epoch: third.unsigned_abs(),
            lifetime: (code == TAKEN).then_some(rules.ttl),
            limit: small(fourth)?,
            nodes: small(fifth)?,
            fair: small(sixth)?,
            withheld: small(seventh)?,
        }),
        OTHER_RULES => {
            let stored = FleetRules {
                aggregate: if first == 0 { Aggregate::Median } else { Aggregate::Min },
                split: if second == 0 { Split::Equal } else { Split::Demand },
                handoff: third == 1,
                ttl: Span::from_us(fourth.unsigned_abs()),
                max_hold: Span::from_us(fifth.unsigned_abs()),
            };
            Err(Unheard::OtherRules { stored, brought: *rules }.into())
        }
        FULL => Err(Unheard::Full.into()),
        _ => Err(StoreError::Unreadable.into()),
    }
}

fn small(number: i64) -> Result<u32, StoreError> {
    u32::try_from(number).map_err(|_| StoreError::Unreadable)
}

/// What `beat.lua` answers first.
const STALE: i64 = 0;
const TAKEN: i64 = 1;
const OTHER_RULES: i64 = -4;
const FULL: i64 = -5;

const _: () = {
    use admittance::REMEMBERED;
    use admittance::concurrency::{NODE_ID_MAX, NODES_MAX};
    assert!(NODES_MAX == 1_024 && REMEMBERED.us() == 86_400_000_000, "as the scripts have them");
    assert!(NODE_ID_MAX < 256 && PERMITS_MAX < u32::MAX, "they fit where the scripts keep them");
    assert!(UNREADABLE == -3, "no other code is the same");
};
