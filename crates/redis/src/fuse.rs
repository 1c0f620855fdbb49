//! Limits and budgets in one step: one script over the keys of all of them.
//!
//! The script is that of several limits and that of accounts put together. It reads the limits,
//! books the budgets only if all of them admit, and writes the limits only then: nothing is charged
//! that would have to be given back.
//!
//! # Guarantee
//! - Answers are those of core's `fused`, in every field and in both modes, at one instant of the
//!   server's clock.
//! - All keys must share a slot of a cluster, or it is [`StoreError::AcrossSlots`]: they do if all
//!   limits and accounts have one key, or policies with one
//!   [`hash_tag`](crate::PolicyOptions::hash_tag).
//! - If a key or an account is [`StoreError::Unreadable`], nothing was charged.
//! - A policy that waits for replicas waits if anything was charged, by the most that any of the
//!   policies asks for.
//!
//! # Proven by
//! `tests/it/fused.rs`, with scripts that are nearly right.

use admittance::{AppliedFused, Atomicity, FuseAsk, Fused, Fuses, Several, StoreError};

use crate::ask::{Arg, Told, UNREADABLE};
use crate::budget::together;
use crate::scripts::Script;
use crate::store::{RedisStore, decisions, limit_args};

impl Fuses for RedisStore {
    async fn fuse(&self, ask: FuseAsk<'_>) -> Result<AppliedFused, StoreError> {
        let (merged, _) = ask.checked()?;
        let (limits, charges) = (&merged.limits, ask.entry.charges);
        let (mut keys, mut args) = self.account_args(&ask.entry)?;
        keys.extend(self.names(limits));
        self.in_one_slot(&keys)?;
        args.extend(limit_args(limits)?);
        let is_per_axis = i64::from(ask.atomicity == Atomicity::PerAxis);
        args.extend([is_per_axis, charges.len() as i64].map(Arg::Number));
        let policies = limits.iter().map(|limit| limit.policy);
        let policies = policies.chain(charges.iter().map(|charge| charge.policy));
        let replicas = policies.map(|policy| self.replicas(policy)).max().unwrap_or(0);
        let told = self.whole(Script::Fuse, keys, args, replicas).await?;
        let Told::Numbers { at, numbers } = told else { return Err(StoreError::Unreadable) };
        let (_, numbers) = match numbers.split_first() {
            None | Some((&UNREADABLE, _)) => return Err(StoreError::Unreadable),
            Some(split) => split,
        };
        let told = numbers.split_at_checked(3 * limits.len());
        let (rate, cost) = told.ok_or(StoreError::Unreadable)?;
        let rate = merged.spread(Several::of_all(decisions(limits, rate)?));
        let cost = match cost.is_empty() {
            true => None,
            false => Some(together(&ask.entry, cost)?),
        };
        Ok(AppliedFused { fused: Fused { rate, cost }, at })
    }
}
