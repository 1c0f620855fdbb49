//! Whose weight is what: the weights of the rules as whole numbers over one denominator.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::EscrowRules;
use crate::{Decimal, EXACT_MAX, Invalid, Parameter};

/// The weights of a set of rules. Tenants of one weight form a class.
#[derive(Clone, Debug)]
pub(super) struct Tiers {
    /// Each weight once, in units of the finest decimal place that any of them has.
    weights: Vec<u64>,
    named: BTreeMap<Box<[u8]>, u32>,
    /// The class of those whom the rules do not name: weight 1.
    plain: u32,
    plain_max: usize,
}

impl Tiers {
    pub(super) fn new(rules: &EscrowRules) -> Result<Self, Invalid> {
        let places = rules.weights.values().map(|weight| weight.denominator()).max();
        let denominator = places.unwrap_or(1);
        let mut tiers = Self {
            weights: Vec::from([denominator]),
            named: BTreeMap::new(),
            plain: 0,
            plain_max: max_keys(rules)? - rules.weights.len(),
        };
        let mut classes = BTreeMap::from([(denominator, 0)]);
        for (tenant, &weight) in &rules.weights {
            let weight = scaled(weight, denominator)?;
            let next = u32::try_from(classes.len()).unwrap_or(u32::MAX);
            let class = *classes.entry(weight).or_insert_with(|| {
                tiers.weights.push(weight);
                next
            });
            tiers.named.insert(tenant.clone(), class);
        }
        let (parameter, given) = (Parameter::DifferentWeights, tiers.weights.len());
        let max = EscrowRules::WEIGHTS_MAX;
        if given > max {
            return Err(Invalid::TooMany { parameter, given, max });
        }
        Ok(tiers)
    }

    pub(super) fn weights(&self) -> &[u64] {
        &self.weights
    }

    /// The tenant's class, and whether the rules name the tenant.
    pub(super) fn class(&self, tenant: &[u8]) -> (u32, bool) {
        self.named.get(tenant).map_or((self.plain, false), |&class| (class, true))
    }

    /// How many tenants that the rules do not name have a place.
    pub(super) fn plain_max(&self) -> usize {
        self.plain_max
    }
}

fn max_keys(rules: &EscrowRules) -> Result<usize, Invalid> {
    let (parameter, given) = (Parameter::MaxKeys, rules.max_keys);
    if given > EscrowRules::MAX_KEYS_MAX {
        return Err(Invalid::TooMany { parameter, given, max: EscrowRules::MAX_KEYS_MAX });
    }
    let min = rules.weights.len().max(1);
    if given < min {
        let counted = |count| u64::try_from(count).unwrap_or(u64::MAX);
        return Err(Invalid::TooSmall { parameter, given: counted(given), min: counted(min) });
    }
    Ok(given)
}

fn scaled(weight: Decimal, denominator: u64) -> Result<u64, Invalid> {
    let parameter = Parameter::Weight;
    if weight.is_zero() {
        return Err(Invalid::Zero(parameter));
    }
    let factor = denominator / weight.denominator();
    let whole = weight.numerator().checked_mul(factor).filter(|&whole| whole <= EXACT_MAX);
    let (given, max) = (weight.floor(), EXACT_MAX / denominator);
    whole.ok_or(Invalid::TooLarge { parameter, given, max })
}

// W is at most this, and a product of a weight and a budget is below 2^106: both fit 128 bits.
const _: () = assert!(EscrowRules::MAX_KEYS_MAX <= 1 << 20, "W stays below 2^73");
