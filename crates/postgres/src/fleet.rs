//! A fleet's coordinator: reports and grants as asks of the database.
//!
//! # Guarantee
//! - What every [`Coordinator`] promises; one round trip per beat or leave.
//! - The fleet's row is locked before the clock is read: the order of its steps is the order of
//!   their instants.
//! - A restart, a crash, a failover or a restored dump starts a new epoch, which grants nothing for
//!   the time to live plus the longest hold. `migrations/0008_fleets.sql` says what is not noticed.
//! - A node that has reported is told its grant before the disk has it: nothing here is to survive
//!   a crash.
//!
//! # Proven by
//! `tests/it/fleets.rs`: the suite of `admittance-testkit`, edited functions that it must notice,
//! races, restarts, and rows that are reaped.

use admittance::concurrency::{
    Aggregate, FleetRules, Grant, Leave, NODES_MAX, Node, PERMITS_MAX, Report, Split, Unheard,
};
use admittance::{Coordinator, CoordinatorError, Span, StoreError};

use crate::PostgresStore;
use crate::carry::Ask;
use crate::key::Kind;
use crate::spec::number;
use crate::store::unsigned;

impl Coordinator for PostgresStore {
    async fn beat(
        &self,
        fleet: &str,
        rules: &FleetRules,
        report: &Report,
    ) -> Result<Grant, CoordinatorError> {
        let fleet = self.stored_name(Kind::Fleet, fleet.as_bytes());
        let (node, said) = (named(&report.node), said(report));
        let ask = Ask::Beat { fleet, rules: ruled(rules), node, said, life: self.life() };
        granted(rules, &self.numbers(ask).await?)
    }

    async fn leave(&self, fleet: &str, leave: &Leave) -> Result<(), StoreError> {
        let fleet = self.stored_name(Kind::Fleet, fleet.as_bytes());
        let said = [number(leave.sequence), i64::from(leave.in_flight.min(PERMITS_MAX))];
        self.numbers(Ask::Leave { fleet, node: named(&leave.node), said }).await.map(drop)
    }
}

/// Bytes are compared as core compares names, whatever the database's encoding and collation.
fn named(node: &Node) -> (Vec<u8>, i64) {
    (node.id().as_bytes().to_vec(), number(node.incarnation()))
}

fn ruled(rules: &FleetRules) -> [i64; 5] {
    let FleetRules { aggregate, split, handoff, ttl, max_hold } = rules;
    let aggregate = match aggregate {
        Aggregate::Median => MEDIAN,
        Aggregate::Min => MIN,
    };
    let split = match split {
        Split::Equal => EQUAL,
        Split::Demand => DEMAND,
    };
    [aggregate, split, i64::from(*handoff), number(ttl.us()), number(max_hold.us())]
}

fn said(report: &Report) -> [i64; 7] {
    // An epoch is a name, not a number: any of its bits may be set.
    [
        number(report.sequence),
        i64::from(report.local_limit.min(PERMITS_MAX)),
        i64::from(report.is_sampled),
        i64::from(report.in_flight.min(PERMITS_MAX)),
        report.epoch.cast_signed(),
        number(report.applied),
        report.new_epoch.cast_signed(),
    ]
}

/// What the numbers that the function gave mean.
fn granted(rules: &FleetRules, numbers: &[i64]) -> Result<Grant, CoordinatorError> {
    let [_, kind, rest @ ..] = numbers else { return Err(StoreError::Unreadable.into()) };
    match (*kind, rest) {
        (0 | 1, &[share, generation, epoch, limit, nodes, fair, withheld]) => {
            let small = |value| u32::try_from(value).map_err(|_| StoreError::Unreadable);
            Ok(Grant {
                share: small(share)?,
                generation: unsigned(generation),
                epoch: epoch.cast_unsigned(),
                // Who is granted anything has brought the fleet's own rules.
                lifetime: (*kind == 0).then_some(rules.ttl),
                limit: small(limit)?,
                nodes: small(nodes)?,
                fair: small(fair)?,
                withheld: small(withheld)?,
            })
        }
        (2, stored) => {
            Err(Unheard::OtherRules { stored: rules_of(stored)?, brought: *rules }.into())
        }
        (3, []) => Err(Unheard::Full.into()),
        _ => Err(StoreError::Unreadable.into()),
    }
}

fn rules_of(numbers: &[i64]) -> Result<FleetRules, StoreError> {
    let &[aggregate, split, handoff, ttl, max_hold] = numbers else {
        return Err(StoreError::Unreadable);
    };
    let aggregate = match aggregate {
        MEDIAN => Aggregate::Median,
        MIN => Aggregate::Min,
        _ => return Err(StoreError::Unreadable),
    };
    let split = match split {
        EQUAL => Split::Equal,
        DEMAND => Split::Demand,
        _ => return Err(StoreError::Unreadable),
    };
    let [ttl, max_hold] = [ttl, max_hold].map(|span| Span::from_us(unsigned(span)));
    Ok(FleetRules { aggregate, split, handoff: handoff == 1, ttl, max_hold })
}

const MEDIAN: i64 = 0;
const MIN: i64 = 1;
const EQUAL: i64 = 0;
const DEMAND: i64 = 1;

const _: () = assert!(NODES_MAX == 1_024, "as 0008_fleets.sql has it");
