//! Batches: many keys of a policy with a tier, each decided by itself, and those of which some are
//! shed.

use std::sync::Arc;

use admittance::{Cost, Decided, Decision, Source, StoreError};
use tokio::task::{JoinError, JoinSet};

use super::rate::Tiered;

/// Decides each key by itself: what is held at once, what must be asked for side by side.
pub(super) async fn each(
    tier: &Arc<Tiered>,
    keys: &[String],
    cost: Cost,
) -> Result<(Vec<Decision>, Source), StoreError> {
    let mut decided: Vec<Option<Decided>> =
        keys.iter().map(|key| tier.spend(key.as_bytes(), cost)).collect();
    let mut asking = JoinSet::new();
    let missing = (0..keys.len()).filter(|&place| decided[place].is_none());
    let missing: Vec<usize> = missing.collect();
    for place in missing {
        if asking.len() >= ASKED_AT_ONCE {
            heard(&mut decided, asking.join_next().await)?;
        }
        let (tier, key) = (Arc::clone(tier), keys[place].clone());
        asking.spawn(async move { (place, tier.check(key.as_bytes(), cost).await) });
    }
    while let Some(answer) = asking.join_next().await {
        heard(&mut decided, Some(answer))?;
    }
    let decided: Option<Vec<Decided>> = decided.into_iter().collect();
    let decided = decided.ok_or(StoreError::Lost)?;
    let source = decided.iter().map(|decided| decided.source).max().unwrap_or(Source::Store);
    Ok((decided.into_iter().map(|decided| decided.decision).collect(), source))
}

/// Which keys of a batch were shed.
pub(super) fn is_denied(denied: &[Option<Decision>]) -> Vec<bool> {
    denied.iter().map(Option::is_some).collect()
}

/// The keys of a batch that were not shed.
pub(super) fn kept(denied: &[Option<Decision>], keys: &[String]) -> impl Iterator<Item = String> {
    let kept = denied.iter().zip(keys).filter(|(denied, _)| denied.is_none());
    kept.map(|(_, key)| key.clone())
}

/// The decisions of a batch: the denials, and in between those of the keys that were not shed.
pub(super) fn merged(denied: Vec<Option<Decision>>, decided: Vec<Decision>) -> Vec<Decision> {
    let mut decided = decided.into_iter();
    denied.into_iter().filter_map(|denied| denied.or_else(|| decided.next())).collect()
}

type Answered = Result<(usize, Result<Decided, StoreError>), JoinError>;

fn heard(decided: &mut [Option<Decided>], answer: Option<Answered>) -> Result<(), StoreError> {
    if let Some(answer) = answer {
        let (place, answer) = answer.map_err(|_| StoreError::Lost)?;
        decided[place] = Some(answer?);
    }
    Ok(())
}

/// Keys of a batch that ask the store side by side.
const ASKED_AT_ONCE: usize = 256;
