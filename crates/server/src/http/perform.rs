//! The operations: JSON in, the service core, JSON and fields out.

use std::borrow::Cow;
use std::sync::Arc;

use admittance::http::Told;
use admittance::{Axis, Decision, EXACT_MAX, Source, Span};
use admittance_proto::v1;
use http::{HeaderName, HeaderValue, Response};
use tonic::body::Body;

use super::HttpDoor;
use super::answer::{Answered, Failure, Ruling, SHADOW, json, source};
use super::body::parse;
use super::reply::{
    AdmitReply, AnswerReply, CheckManyReply, CheckReply, DebitReply, ExplainReply, ForecastReply,
    HeartbeatReply, PoliciesReply, PolicyShown, ReleaseReply, ReserveReply,
};
use super::request::{
    AdmitRequest, BudgetRequest, Charge, CheckManyRequest, CheckRequest, DebitAccountsRequest,
    DebitRequest, HeartbeatRequest, PeekRequest, ReleaseRequest, ReserveRequest, SettleRequest,
};
use super::table::{Operation, Route};
use crate::grpc::epoch_ms;
use crate::lease_id::{lease_text, parse_held, parse_lease};
use crate::service::{Answer, Asked, Costs, Expected, Policy, Refusal, Terms, Work, cost, units};
use crate::{admissions, budgets};

/// What a request asks.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) operation: &'static Operation,
    pub(super) body: &'a [u8],
    /// Whether a denial is to be 200 too.
    pub(super) always_200: bool,
}

impl HttpDoor {
    pub(super) async fn check(&self, ask: Ask<'_>) -> Answered {
        let asked: CheckRequest<'_> = parse(ask.operation, ask.body)?;
        let cost = cost(asked.cost)?;
        // A reload may take it away while it is asked.
        let policy = self.service().policy(&asked.policy)?;
        let answer = self.service().check_answer(&asked.policy, &asked.key, cost).await?;
        let Answer { decided: decision, source, is_shadow_denied } = answer;
        let axis = denying(&policy, &decision, source, Axis::Rate);
        let limit = policy.quotas().of(Axis::Rate);
        // One that was shed has not been asked.
        let said = (axis != Some(Axis::Load)).then_some(decision);
        let told = limit.and_then(|limit| limit.told(said));
        let violated = [limit.map_or(&*asked.policy, |limit| limit.name())];
        let ruling = Ruling {
            decision,
            axis,
            told: told.as_slice(),
            violated: &violated,
            source,
            is_shadow_denied,
        };
        let reply = CheckReply { decision: decision.into(), binding_axis: axis.map(Axis::name) };
        Ok(self.ruled(&ruling, &reply, ask.always_200))
    }

    /// Everything that is asked with a body and is not a check.
    pub(super) async fn perform(&self, ask: Ask<'_>) -> Answered {
        match ask.operation.route {
            Route::Check => self.check(ask).await,
            Route::CheckMany => self.check_many(ask).await,
            Route::Peek => self.peek(ask).await,
            Route::Forecast => self.forecast(ask).await,
            Route::Debit => self.debit(ask).await,
            Route::Admit => self.admit(ask).await,
            Route::Release => self.release(ask).await,
            Route::Heartbeat => self.heartbeat(ask).await,
            Route::Explain => self.explain(ask).await,
            Route::Reserve => self.reserve(ask).await,
            Route::DebitAccounts => self.debit_accounts(ask).await,
            Route::Settle => self.settle(ask).await,
            Route::Budget => self.budget(ask).await,
            Route::Policies
            | Route::Load
            | Route::Snapshot
            | Route::Metrics
            | Route::OpenApi
            | Route::Healthz
            | Route::Readyz => Err(Failure::bad("it has no body")),
        }
    }

    async fn check_many(&self, ask: Ask<'_>) -> Answered {
        let asked: CheckManyRequest<'_> = parse(ask.operation, ask.body)?;
        let cost = cost(asked.cost)?;
        let answer = self.service().check_many_answer(&asked.policy, &asked.keys, cost).await;
        let Answer { decided, source, is_shadow_denied } = answer?;
        let decisions = decided.into_iter().map(Into::into).collect();
        let mut response = with_source(json(&CheckManyReply { decisions }), source);
        if is_shadow_denied {
            response.headers_mut().insert(SHADOW, HeaderValue::from_static("denied"));
        }
        Ok(response)
    }

    async fn peek(&self, ask: Ask<'_>) -> Answered {
        let asked: PeekRequest<'_> = parse(ask.operation, ask.body)?;
        let policy = self.service().policy(&asked.policy)?;
        let decision = self.service().peek(&asked.policy, &asked.key).await?;
        let axis = (!decision.is_admit()).then_some(Axis::Rate);
        let told = policy.quotas().of(Axis::Rate).and_then(|limit| limit.told(Some(decision)));
        let (told, source) = (told.as_slice(), Source::Store);
        let is_shadow_denied = false;
        let ruling = Ruling { decision, axis, told, violated: &[], source, is_shadow_denied };
        let reply = CheckReply { decision: decision.into(), binding_axis: axis.map(Axis::name) };
        Ok(self.ruled(&ruling, &reply, true))
    }

    async fn forecast(&self, ask: Ask<'_>) -> Answered {
        let asked: CheckRequest<'_> = parse(ask.operation, ask.body)?;
        let cost = cost(asked.cost)?;
        let forecast = self.service().forecast(&asked.policy, &asked.key, cost).await?;
        Ok(json(&ForecastReply::from(v1::Forecast::from(forecast))))
    }

    async fn debit(&self, ask: Ask<'_>) -> Answered {
        let asked: DebitRequest<'_> = parse(ask.operation, ask.body)?;
        let (policy, key) = (&*asked.policy, &*asked.key);
        let units = units(asked.tokens.unwrap_or(1))?;
        let (answer, costs) = match &*asked.lease_id {
            "" => self.service().debit_costs(policy, key, units).await?,
            lease => {
                let charges = [Asked { policy, key, units }];
                let costs = self.service().debit_held(&charges, lease).await?;
                (costs.answer(), Some(costs))
            }
        };
        let Answer { decided: decision, source, is_shadow_denied } = answer;
        let axis = (!decision.is_admit()).then_some(match &costs {
            Some(_) => Axis::Cost,
            None => Axis::Load,
        });
        let held = costs.as_ref().filter(|_| !asked.lease_id.is_empty());
        let flow = held.map(|costs| costs.flow.into());
        let reclaimed = held.map(|costs| costs.is_reclaimed);
        let binding_axis = axis.map(Axis::name);
        let reply = DebitReply { decision: decision.into(), binding_axis, flow, reclaimed };
        let Some(costs) = costs else {
            let violated = [policy];
            let told = &[][..];
            let violated = &violated;
            let ruling = Ruling { decision, axis, told, violated, source, is_shadow_denied };
            return Ok(self.ruled(&ruling, &reply, ask.always_200));
        };
        Ok(self.accounted(&costs, &reply, ask.always_200))
    }

    async fn admit(&self, ask: Ask<'_>) -> Answered {
        let asked: AdmitRequest<'_> = parse(ask.operation, ask.body)?;
        let admitted = self.service().admit_work(&work(&asked)?).await?;
        let (verdicts, source) = (admitted.verdicts, admitted.source);
        let (decision, axis) = (admitted.decision, admitted.binding);
        let is_shadow_denied = admitted.is_shadow_denied;
        let reply = AdmitReply::from(admissions::reply(admitted));
        let policy = self.service().policy(&asked.policy).ok();
        let quotas = policy.as_ref().map(|policy| policy.quotas());
        let limit = |axis| quotas.and_then(|quotas| quotas.of(axis));
        let told: Vec<Told<'_>> =
            verdicts.iter().filter_map(|(axis, said)| limit(axis)?.told(Some(said))).collect();
        let violated = [axis.and_then(limit).map_or(&*asked.policy, |limit| limit.name())];
        let (told, violated) = (&*told, &violated[..]);
        let ruling = Ruling { decision, axis, told, violated, source, is_shadow_denied };
        Ok(self.ruled(&ruling, &reply, ask.always_200))
    }

    async fn explain(&self, ask: Ask<'_>) -> Answered {
        let asked: AdmitRequest<'_> = parse(ask.operation, ask.body)?;
        let explained = self.service().explain(&work(&asked)?).await?;
        let reply = ExplainReply::from(admissions::explained(&explained));
        Ok(with_source(json(&reply), explained.source))
    }

    async fn release(&self, ask: Ask<'_>) -> Answered {
        let asked: ReleaseRequest<'_> = parse(ask.operation, ask.body)?;
        self.service().release(&asked.lease_id, asked.dropped).await?;
        Ok(json(&ReleaseReply {}))
    }

    async fn heartbeat(&self, ask: Ask<'_>) -> Answered {
        let asked: HeartbeatRequest = parse(ask.operation, ask.body)?;
        let heard = self.service().heartbeat(asked.lease_ids).await?;
        Ok(json(&HeartbeatReply {
            live_ids: heard.live,
            reclaimed_ids: heard.reclaimed,
            next_deadline: epoch_ms(heard.next_deadline),
        }))
    }

    async fn reserve(&self, ask: Ask<'_>) -> Answered {
        let asked: ReserveRequest<'_> = parse(ask.operation, ask.body)?;
        let charges = charged(&asked.charges)?;
        let ttl = Some(units(asked.ttl_ms)?).filter(|ms| *ms > 0).map(Span::from_ms);
        let lease = match &*asked.lease_id {
            "" => None,
            lease => Some(parse_lease(lease)?),
        };
        let prediction = budgets::prediction(asked.prediction)?;
        let expected = Expected { class: &asked.class, prediction, is_stopped: false };
        let reserved = self.service().reserve(&charges, Terms { lease, ttl }, expected).await?;
        let reply = ReserveReply {
            answer: budgets::answer(&reserved.costs).into(),
            lease_id: reserved.lease.map(lease_text).unwrap_or_default(),
            ttl_ms: budgets::number(reserved.ttl.ms_ceil()),
            reserved: reserved.units.into_iter().map(budgets::number).collect(),
        };
        Ok(self.accounted(&reserved.costs, &reply, ask.always_200))
    }

    async fn debit_accounts(&self, ask: Ask<'_>) -> Answered {
        let asked: DebitAccountsRequest<'_> = parse(ask.operation, ask.body)?;
        let charges = charged(&asked.charges)?;
        let costs = self.service().debit_held(&charges, &asked.lease_id).await?;
        Ok(self.answered(&costs, ask.always_200))
    }

    async fn settle(&self, ask: Ask<'_>) -> Answered {
        let asked: SettleRequest<'_> = parse(ask.operation, ask.body)?;
        let missing = |charge: &&Charge<'_>| charge.units.is_none() && !asked.unknown;
        if let Some(charge) = asked.charges.iter().find(missing) {
            return Err(Refusal::UnitsMissing { policy: charge.policy.to_string() }.into());
        }
        let charges = charged(&asked.charges)?;
        let lease = parse_held(&asked.lease_id)?;
        let prediction = budgets::prediction(asked.prediction)?;
        let expected = Expected { class: &asked.class, prediction, is_stopped: asked.stopped };
        let settled = self.service().settle(&charges, lease, !asked.unknown, expected).await;
        Ok(self.answered(&settled?, true))
    }

    async fn budget(&self, ask: Ask<'_>) -> Answered {
        let asked: BudgetRequest<'_> = parse(ask.operation, ask.body)?;
        let costs = self.service().budget(&charged(&asked.charges)?).await?;
        Ok(self.answered(&costs, true))
    }

    fn answered(&self, costs: &Costs, always_200: bool) -> Response<Body> {
        let reply = AnswerReply { answer: budgets::answer(costs).into() };
        self.accounted(costs, &reply, always_200)
    }

    /// Answers with what accounts said: each of them is a limit.
    fn accounted<T: serde::Serialize>(
        &self,
        costs: &Costs,
        reply: &T,
        always_200: bool,
    ) -> Response<Body> {
        let policies: Vec<Option<Arc<Policy>>> =
            costs.lines.iter().map(|line| self.service().policy(&line.policy).ok()).collect();
        let mut told = Vec::with_capacity(policies.len());
        let mut violated = Vec::new();
        for (line, policy) in costs.lines.iter().zip(&policies) {
            let quotas = policy.as_ref().map(|policy| policy.quotas());
            let limit = quotas.and_then(|quotas| quotas.window(&line.window));
            let said = line.answered.decision;
            told.extend(limit.and_then(|limit| limit.told(Some(said))));
            if !said.is_admit() {
                violated.push(limit.map_or(&*line.policy, |limit| limit.name()));
            }
        }
        let Answer { decided: decision, source, is_shadow_denied } = costs.answer();
        let axis = (!decision.is_admit()).then_some(Axis::Cost);
        let (told, violated) = (&*told, &*violated);
        let ruling = Ruling { decision, axis, told, violated, source, is_shadow_denied };
        self.ruled(&ruling, reply, always_200)
    }

    pub(super) fn policies(&self) -> Response<Body> {
        let policies = self.service().policies();
        let shown = policies.iter().map(|policy| PolicyShown {
            name: policy.name().to_owned(),
            asked_with: policy.config().asked_with(),
            limits: policy.quotas().iter().map(|limit| limit.shown()).collect(),
        });
        json(&PoliciesReply { policies: shown.collect() })
    }
}

/// Which axis denied a request to a policy that has this one and perhaps a say about load.
fn denying(policy: &Policy, decision: &Decision, source: Source, own: Axis) -> Option<Axis> {
    if decision.is_admit() {
        return None;
    }
    // What is shed is told no limit: nobody has one that large.
    let is_shed = policy.config().load.is_some() && source == Source::Node;
    Some(if is_shed && decision.limit == EXACT_MAX { Axis::Load } else { own })
}

fn work<'a>(asked: &'a AdmitRequest<'_>) -> Result<Work<'a>, Refusal> {
    let AdmitRequest { policy, key, cost: given, hold, value } = asked;
    Ok(Work { policy, key, cost: cost(*given)?, value: *value, hold_ms: Some(*hold) })
}

fn charged<'a>(charges: &'a [Charge<'_>]) -> Result<Vec<Asked<'a>>, Refusal> {
    let of = |text: &'a Cow<'_, str>| -> &'a str { text };
    let charge = |Charge { policy, key, units: given }: &'a Charge<'_>| {
        Ok(Asked { policy: of(policy), key: of(key), units: units(given.unwrap_or(0))? })
    };
    charges.iter().map(charge).collect()
}

fn with_source(mut response: Response<Body>, by: Source) -> Response<Body> {
    if let Some(value) = source(by) {
        response.headers_mut().insert(HeaderName::from_static("admittance-source"), value);
    }
    response
}
