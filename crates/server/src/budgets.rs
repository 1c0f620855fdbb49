//! The door of budgets: `admittance.v1.Budgets` over the service core.
//!
//! # Guarantee
//! As of the [gRPC door](crate::grpc): a denial is a reply, never an error; an error has charged
//! nothing, but for `UNAVAILABLE`, after which a settlement can be sent again.
//!
//! # Proven by
//! `tests/it/budgets.rs`, over a live door.

use std::sync::Arc;

use admittance::budget::{Flow, Settlement};
use admittance::{Decision, Span};
use admittance_proto::budgets as wire;
use tonic::{Request, Response};

use crate::grpc::{Reply, epoch_ms, shadowed, sourced, status};
use crate::lease_id::{lease_text, parse_held, parse_lease};
use crate::service::{Asked, CostLine, Costs, Expected, Refusal, Service, Terms, units};

/// The door to one service, on a port or called as it is: see
/// [`RateLimiterDoor`](crate::RateLimiterDoor).
#[derive(Clone, Debug)]
pub struct BudgetsDoor {
    service: Arc<Service>,
}

impl BudgetsDoor {
    /// The door to this service.
    #[must_use]
    pub const fn new(service: Arc<Service>) -> Self {
        Self { service }
    }
}

#[tonic::async_trait]
impl wire::budgets_server::Budgets for BudgetsDoor {
    async fn reserve(
        &self,
        request: Request<wire::ReserveRequest>,
    ) -> Reply<wire::ReserveResponse> {
        let request = request.into_inner();
        let asked = asked(&request.charges).map_err(status)?;
        let ttl = match units(request.ttl_ms).map_err(status)? {
            0 => None,
            ms => Some(Span::from_ms(ms)),
        };
        let lease = match request.lease_id.as_str() {
            "" => None,
            lease => Some(parse_lease(lease).map_err(status)?),
        };
        let prediction = prediction(request.prediction).map_err(status)?;
        let expected = Expected { class: &request.class, prediction, is_stopped: false };
        let terms = Terms { lease, ttl };
        let reserved = self.service.reserve(&asked, terms, expected).await.map_err(status)?;
        let source = reserved.costs.source;
        let reply = wire::ReserveResponse {
            answer: Some(answer(&reserved.costs)),
            lease_id: reserved.lease.map(lease_text).unwrap_or_default(),
            ttl_ms: number(reserved.ttl.ms_ceil()),
            reserved: reserved.units.into_iter().map(number).collect(),
        };
        Ok(sourced(reply, source))
    }

    async fn debit(&self, request: Request<wire::DebitRequest>) -> Reply<wire::DebitResponse> {
        let wire::DebitRequest { charges, lease_id } = request.into_inner();
        let asked = asked(&charges).map_err(status)?;
        let costs = self.service.debit_held(&asked, &lease_id).await.map_err(status)?;
        let reply = wire::DebitResponse { answer: Some(answer(&costs)) };
        Ok(shadowed(sourced(reply, costs.source), costs.is_shadow_denied))
    }

    async fn settle(&self, request: Request<wire::SettleRequest>) -> Reply<wire::SettleResponse> {
        let request = request.into_inner();
        let asked = produced(&request.charges, request.unknown).map_err(status)?;
        let lease = parse_held(&request.lease_id).map_err(status)?;
        let prediction = prediction(request.prediction).map_err(status)?;
        let (class, is_stopped) = (request.class.as_str(), request.stopped);
        let expected = Expected { class, prediction, is_stopped };
        let settled = self.service.settle(&asked, lease, !request.unknown, expected).await;
        let costs = settled.map_err(status)?;
        Ok(sourced(wire::SettleResponse { answer: Some(answer(&costs)) }, costs.source))
    }

    async fn look(&self, request: Request<wire::LookRequest>) -> Reply<wire::LookResponse> {
        let charges = request.into_inner().charges;
        let asked = asked(&charges).map_err(status)?;
        let costs = self.service.budget(&asked).await.map_err(status)?;
        Ok(Response::new(wire::LookResponse { answer: Some(answer(&costs)) }))
    }
}

fn asked(charges: &[wire::Charge]) -> Result<Vec<Asked<'_>>, Refusal> {
    let mut asked = Vec::with_capacity(charges.len());
    for wire::Charge { policy, key, units: given } in charges {
        asked.push(Asked { policy, key, units: units(given.unwrap_or(0))? });
    }
    Ok(asked)
}

/// What a settlement says was produced. It must say so, unless nobody knows.
fn produced(charges: &[wire::Charge], is_unknown: bool) -> Result<Vec<Asked<'_>>, Refusal> {
    let missing = |charge: &&wire::Charge| charge.units.is_none() && !is_unknown;
    if let Some(charge) = charges.iter().find(missing) {
        return Err(Refusal::UnitsMissing { policy: charge.policy.clone() });
    }
    asked(charges)
}

pub(crate) fn prediction(given: i64) -> Result<Option<u64>, Refusal> {
    Ok(Some(units(given)?).filter(|prediction| *prediction > 0))
}

pub(crate) fn answer(costs: &Costs) -> wire::Answer {
    let decision = costs.decision;
    wire::Answer {
        allowed: decision.is_admit(),
        flow: flow(costs.flow).into(),
        retry_after_ms: retry(decision),
        remaining: number(decision.remaining),
        binding: costs.binding.and_then(|place| i32::try_from(place).ok()).unwrap_or(-1),
        accounts: costs.lines.iter().map(account).collect(),
        reclaimed: costs.is_reclaimed,
    }
}

fn account(line: &CostLine) -> wire::Account {
    let CostLine { policy, key, window, budget, answered } = line;
    let standing = answered.standing;
    wire::Account {
        policy: policy.clone(),
        key: key.clone(),
        window: window.clone(),
        limit: number(budget.limit()),
        spent: number(standing.spent),
        reserved: number(standing.reserved),
        debt: number(standing.debt),
        left: standing.left(budget),
        open_leases: i64::from(standing.open),
        window_end: epoch_ms(standing.window_end),
        unspent: number(answered.unspent),
        settlement: settlement(answered.settlement),
        allowed: answered.decision.is_admit(),
        retry_after_ms: retry(answered.decision),
    }
}

fn settlement(settlement: Settlement) -> Option<wire::Settlement> {
    let (kind, settled) = match settlement {
        Settlement::None => return None,
        Settlement::Now(settled) => (wire::SettlementKind::Now, settled),
        Settlement::Before(settled) => (wire::SettlementKind::Before, settled),
        Settlement::Unknown => (wire::SettlementKind::Unknown, Default::default()),
    };
    let (returned, debt) = (number(settled.returned), number(settled.debt));
    Some(wire::Settlement { kind: kind.into(), returned, debt })
}

const fn flow(flow: Flow) -> wire::Flow {
    match flow {
        Flow::GoOn => wire::Flow::GoOn,
        Flow::SoftStop => wire::Flow::SoftStop,
        Flow::Stop => wire::Flow::Stop,
    }
}

fn retry(decision: Decision) -> i64 {
    number(decision.retry_after_ms())
}

pub(crate) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
