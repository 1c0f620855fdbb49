//! Who calls, and which accounts pay for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use admittance::budget::{Budget, Budgets, Payer};
use admittance::{Cadence, Invalid, Span};
use axum::http::{HeaderMap, header};

use crate::config::{ConfigError, RawLimits, RawTenant};
use crate::failure::Failure;

/// Everybody who may call, by the key that they call with.
#[derive(Debug)]
pub struct Tenants(HashMap<String, Arc<Tenant>>);

/// One who may call.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub(crate) payer: Payer,
    /// The payer's accounts in their order: whose, and of which window.
    accounts: Vec<(String, &'static str)>,
}

impl Tenant {
    /// Whose account it is, and of which window.
    pub(crate) fn account(&self, place: usize) -> (String, &'static str) {
        self.accounts.get(place).cloned().unwrap_or_else(|| ("an account".into(), "window"))
    }
}

impl Tenants {
    /// The tenants of a configuration: each pays with its own accounts and its team's.
    pub(crate) fn new(
        tenants: BTreeMap<String, RawTenant>,
        teams: &BTreeMap<String, RawLimits>,
    ) -> Result<Self, ConfigError> {
        let mut known = HashMap::with_capacity(tenants.len());
        for (name, RawTenant { key, team, limits }) in tenants {
            let mut accounts = Vec::new();
            let own = budgets("tenant", &name, &limits, &mut accounts)?;
            let mut payer = Payer::new(&own, &name);
            if let Some(team) = team {
                let limits = teams.get(&team).ok_or_else(|| ConfigError::NoSuchTeam {
                    tenant: name.clone(),
                    team: team.clone(),
                })?;
                payer = payer.and(&budgets("team", &team, limits, &mut accounts)?, &team);
            }
            if known.insert(key, Arc::new(Tenant { payer, accounts })).is_some() {
                return Err(ConfigError::SameKey { tenant: name });
            }
        }
        Ok(Self(known))
    }

    /// Who sends these headers.
    pub(crate) fn of(&self, headers: &HeaderMap) -> Result<Arc<Tenant>, Failure> {
        let header = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let key = header.and_then(|value| value.strip_prefix("Bearer ")).map(str::trim);
        key.and_then(|key| self.0.get(key).cloned()).ok_or(Failure::UnknownKey)
    }
}

/// The budgets of a tenant or a team, whose accounts are added to the list.
fn budgets(
    kind: &'static str,
    name: &str,
    limits: &RawLimits,
    accounts: &mut Vec<(String, &'static str)>,
) -> Result<Budgets, ConfigError> {
    let (minute, day) = (Cadence::every(Span::from_secs(60)), Cadence::Day { offset_minutes: 0 });
    let of = |limit: Option<u64>, cadence| limit.map(|limit| Budget::new(limit, cadence));
    let each = [(of(limits.minute, minute), "minute"), (of(limits.day, day), "day")];
    let windows = each.into_iter().filter_map(|(budget, window)| Some((budget?, window)));
    let mut found = Vec::new();
    let invalid = |reason: Invalid| ConfigError::Budget { kind, name: name.to_owned(), reason };
    for (budget, window) in windows {
        found.push(budget.map_err(invalid)?);
        accounts.push((format!("{kind} {name}"), window));
    }
    Budgets::new(kind, found).map_err(invalid)
}
