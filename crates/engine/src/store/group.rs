//! Several limits in one ask of a store.

use admittance_core::{Builtin, Cost, Decision, Several};

use super::StoreError;

/// Several limits that decide together, in one atomic step of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// How they decide together.
    pub combine: Combine,
    /// At most [`LIMITS_MAX`](Self::LIMITS_MAX) limits, in written order.
    pub limits: &'a [Limit<'a>],
}

impl Group<'_> {
    /// The most limits of one group.
    pub const LIMITS_MAX: usize = 64;
}

/// How several limits decide together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Combine {
    /// Admit only if every limit admits, and charge all of them or none. A policy and key that
    /// occur twice are charged the sum. No limits at all admit.
    All,
    /// Admit if one limit admits, and charge the first in written order that does. No limits at
    /// all admit nothing.
    Any,
}

/// One limit of a [`Group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// How it decides.
    pub strategy: &'a Builtin,
    /// Whom or what is counted.
    pub key: &'a [u8],
    /// What the request costs here.
    pub cost: Cost,
}

/// A group in which no policy and key occur twice, for stores to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged<'a> {
    /// The limits, with the costs of repeated ones added together.
    pub limits: Vec<Limit<'a>>,
    /// Which merged limit each written one became.
    place_of: Vec<usize>,
}

impl<'a> Merged<'a> {
    /// The group's limits, those that occur twice merged if all are charged.
    ///
    /// # Errors
    /// [`StoreError::TooMany`], [`StoreError::CostTooLarge`], [`StoreError::TwoLimits`].
    pub fn of(group: &Group<'a>) -> Result<Self, StoreError> {
        let (asked, max) = (group.limits.len(), Group::LIMITS_MAX);
        if asked > max {
            return Err(StoreError::TooMany { asked, max });
        }
        let mut merged = Self { limits: Vec::with_capacity(asked), place_of: Vec::new() };
        for limit in group.limits {
            let is_same = |other: &Limit<'_>| {
                other.policy == limit.policy
                    && other.key == limit.key
                    && other.strategy == limit.strategy
            };
            let shares_state = |other: &Limit<'_>| {
                other.policy == limit.policy
                    && other.strategy != limit.strategy
                    && other.strategy.shape() == limit.strategy.shape()
            };
            if group.combine == Combine::All && merged.limits.iter().any(shares_state) {
                return Err(StoreError::TwoLimits);
            }
            // Of `any`, one is charged at most: there is nothing to add up.
            let found = match group.combine {
                Combine::All => merged.limits.iter().position(is_same),
                Combine::Any => None,
            };
            merged.place_of.push(found.unwrap_or(merged.limits.len()));
            match found {
                Some(place) => {
                    let sum = merged.limits[place].cost.checked_add(limit.cost);
                    merged.limits[place].cost = sum.ok_or(StoreError::CostTooLarge)?;
                }
                None => merged.limits.push(*limit),
            }
        }
        Ok(merged)
    }

    /// The answer for the group as it was written.
    pub fn spread(&self, several: Several) -> Several {
        if self.place_of.len() == several.each.len() {
            return several;
        }
        let each: Vec<Decision> = self.place_of.iter().map(|&place| several.each[place]).collect();
        let first = |place| self.place_of.iter().position(|&at| at == place);
        Several { binding: several.binding.and_then(first), each, ..several }
    }
}
