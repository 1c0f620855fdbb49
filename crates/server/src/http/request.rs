//! What is asked over HTTP: the messages of the gRPC contract as JSON.
//!
//! Names are those of the .proto files; lowerCamelCase is understood too. Text is borrowed from the
//! body where it has no escapes.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use admittance::EXACT_MAX;
use admittance::budget::{Budget, Entry};
use schemars::JsonSchema;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::service::{BATCH_MAX, KEY_MAX};

/// Charges a key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckRequest<'a> {
    /// The policy's name.
    #[serde(borrow)]
    pub(super) policy: Cow<'a, str>,
    /// Whom or what the limit is for; at most 4096 bytes.
    #[serde(borrow)]
    #[schemars(length(max = KEY_MAX))]
    pub(super) key: Cow<'a, str>,
    /// What the request costs; 0 means 1.
    #[serde(default)]
    #[schemars(range(min = 0, max = EXACT_MAX))]
    pub(super) cost: i64,
}

/// Charges several keys at one instant.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckManyRequest<'a> {
    /// The policy's name.
    #[serde(borrow)]
    pub(super) policy: Cow<'a, str>,
    /// Whom or what the limit is for, each at most 4096 bytes. Repeated keys are charged in order.
    #[serde(deserialize_with = "at_most_a_batch")]
    #[schemars(length(max = BATCH_MAX))]
    pub(super) keys: Vec<String>,
    /// What each request costs; 0 means 1.
    #[serde(default)]
    #[schemars(range(min = 0, max = EXACT_MAX))]
    pub(super) cost: i64,
}

/// Looks at a key without charging it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PeekRequest<'a> {
    /// The policy's name.
    #[serde(borrow)]
    pub(super) policy: Cow<'a, str>,
    /// Whom or what the limit is for; at most 4096 bytes.
    #[serde(borrow)]
    #[schemars(length(max = KEY_MAX))]
    pub(super) key: Cow<'a, str>,
}

/// Counts units of a budget that are about to be served.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DebitRequest<'a> {
    /// The policy's name.
    #[serde(borrow)]
    pub(super) policy: Cow<'a, str>,
    /// Whom or what the budget is for; at most 4096 bytes.
    #[serde(borrow)]
    #[schemars(length(max = KEY_MAX))]
    pub(super) key: Cow<'a, str>,
    /// How many units; 0 means 1, or with a lease that it is only kept.
    #[serde(default)]
    #[schemars(range(min = 0, max = EXACT_MAX))]
    pub(super) tokens: Option<i64>,
    /// The lease of a reservation or an admission to draw on first.
    #[serde(borrow, default, alias = "leaseId")]
    pub(super) lease_id: Cow<'a, str>,
}

/// Asks to start work, or what the answer would be.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdmitRequest<'a> {
    /// The policy's name.
    #[serde(borrow)]
    pub(super) policy: Cow<'a, str>,
    /// Whom or what the limits are for; at most 4096 bytes.
    #[serde(borrow)]
    #[schemars(length(max = KEY_MAX))]
    pub(super) key: Cow<'a, str>,
    /// What the work is expected to cost; 0 means 1.
    #[serde(default)]
    #[schemars(range(min = 0, max = EXACT_MAX))]
    pub(super) cost: i64,
    /// For how many milliseconds the work is expected to hold its permit.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub(super) hold: f64,
    /// What the work is worth; absent means 1.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub(super) value: Option<f64>,
}

/// Ends a lease.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReleaseRequest<'a> {
    /// The lease.
    #[serde(borrow, alias = "leaseId")]
    pub(super) lease_id: Cow<'a, str>,
    /// Whether the work failed or timed out.
    #[serde(default)]
    pub(super) dropped: bool,
}

/// Keeps leases that are still in use.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct HeartbeatRequest {
    /// The leases.
    #[serde(alias = "leaseIds", deserialize_with = "at_most_a_batch")]
    #[schemars(length(max = BATCH_MAX))]
    pub(super) lease_ids: Vec<String>,
}

/// The accounts that a key has with a policy, one for each of its windows.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Charge<'a> {
    /// The policy's name.
    #[serde(borrow)]
    pub(super) policy: Cow<'a, str>,
    /// Whom or what the budget is for; at most 4096 bytes.
    #[serde(borrow)]
    #[schemars(length(max = KEY_MAX))]
    pub(super) key: Cow<'a, str>,
    /// To be reserved or debited, or produced. A settlement needs it unless `unknown` is set;
    /// elsewhere absent means 0.
    #[serde(default)]
    #[schemars(range(min = 0, max = Budget::UNITS_MAX))]
    pub(super) units: Option<i64>,
}

/// Takes an estimate out of what is left: of every account, or of none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReserveRequest<'a> {
    /// With units 0, as much as the policy says.
    #[serde(borrow, deserialize_with = "at_most_a_batch")]
    #[schemars(length(min = 1, max = Entry::CHARGES_MAX))]
    pub(super) charges: Vec<Charge<'a>>,
    /// How long the lease lives without being heard of; 0 for what the policies say, which is the
    /// most.
    #[serde(default, alias = "ttlMs")]
    #[schemars(range(min = 0, max = Budget::UNITS_MAX))]
    pub(super) ttl_ms: i64,
    /// What kind of work it is, for policies that learn how much to reserve.
    #[serde(borrow, default)]
    pub(super) class: Cow<'a, str>,
    /// What the work is expected to cost, for those policies; 0 if nobody knows.
    #[serde(default)]
    #[schemars(range(min = 0, max = Budget::UNITS_MAX))]
    pub(super) prediction: i64,
    /// The caller's own name for the lease, so that asking again reserves nothing more: 32
    /// hexadecimal digits that nobody can guess. Empty for one that the service draws.
    #[serde(borrow, default, alias = "leaseId")]
    pub(super) lease_id: Cow<'a, str>,
}

/// Counts what is about to be served, in every account or in none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DebitAccountsRequest<'a> {
    /// What, of whom.
    #[serde(borrow, deserialize_with = "at_most_a_batch")]
    #[schemars(length(min = 1, max = Entry::CHARGES_MAX))]
    pub(super) charges: Vec<Charge<'a>>,
    /// Empty for a debit without a reservation. With units 0 the lease is only kept.
    #[serde(borrow, default, alias = "leaseId")]
    pub(super) lease_id: Cow<'a, str>,
}

/// Ends a lease with what was produced. Safe to repeat.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleRequest<'a> {
    /// Each charge's units are what was produced, which may be 0.
    #[serde(borrow, deserialize_with = "at_most_a_batch")]
    #[schemars(length(min = 1, max = Entry::CHARGES_MAX))]
    pub(super) charges: Vec<Charge<'a>>,
    /// The lease.
    #[serde(borrow, alias = "leaseId")]
    pub(super) lease_id: Cow<'a, str>,
    /// Nobody knows what was produced: settle with what was debited.
    #[serde(default)]
    pub(super) unknown: bool,
    /// As it was given when it was reserved.
    #[serde(borrow, default)]
    pub(super) class: Cow<'a, str>,
    /// As it was given when it was reserved.
    #[serde(default)]
    #[schemars(range(min = 0, max = Budget::UNITS_MAX))]
    pub(super) prediction: i64,
    /// The work was stopped before it was done: it would have cost at least as much.
    #[serde(default)]
    pub(super) stopped: bool,
}

/// Looks at accounts without charging them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetRequest<'a> {
    /// Their units do not matter.
    #[serde(borrow, deserialize_with = "at_most_a_batch")]
    #[schemars(length(min = 1, max = Entry::CHARGES_MAX))]
    pub(super) charges: Vec<Charge<'a>>,
}

/// A list that is given up as soon as it is longer than a batch may be: two bytes of a body become
/// dozens in a list.
fn at_most_a_batch<'de, D, T>(list: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Batch<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Batch<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {BATCH_MAX}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut read = Vec::new();
            while let Some(one) = list.next_element()? {
                if read.len() == BATCH_MAX {
                    let why =
                        format!("the list is longer than {BATCH_MAX}; ask in several requests");
                    return Err(A::Error::custom(why));
                }
                read.push(one);
            }
            Ok(read)
        }
    }

    list.deserialize_seq(Batch(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a list is read before it is given up, which leaves the rest of the text unread.
    fn read_of(list: &str) -> Result<usize, usize> {
        let body = format!(r#"{{"lease_ids":{list}}}"#);
        let read = serde_json::from_str::<HeartbeatRequest>(&body);
        read.map(|request| request.lease_ids.len()).map_err(|error| error.column())
    }

    #[test]
    fn a_list_longer_than_a_batch_is_not_read_to_its_end() {
        let list = |length: usize| format!("[{}]", vec!["\"\""; length].join(","));
        assert_eq!(read_of(&list(0)), Ok(0));
        assert_eq!(read_of(&list(BATCH_MAX)), Ok(BATCH_MAX));
        let given_up = read_of(&list(BATCH_MAX + 1)).expect_err("too long");
        assert_eq!(read_of(&list(1_000_000)), Err(given_up), "at the same place");
        assert!(given_up < 4 * BATCH_MAX);
    }
}
