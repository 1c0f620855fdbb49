//! Every operation, through either door: one message, one answer, one set of codes.

use std::sync::Arc;
use std::time::Duration;

use admittance::store::Traffic;
use admittance::{Guarded, Source};
use admittance_proto::admissions::admissions_client::AdmissionsClient;
use admittance_proto::admissions::admissions_server::Admissions;
use admittance_proto::admissions::{AdmissionRequest, AdmissionResponse, ExplanationResponse};
use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::budgets::budgets_server::Budgets;
use admittance_proto::budgets::{self as cost, Charge};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_proto::v1::rate_limiter_server::RateLimiter;
use admittance_server::AnyStore;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use crate::beats::Beats;
use crate::channel::{Dialer, Options, Twice};
use crate::decision::Decision;
use crate::failure::Failure;
use crate::here::Here;
use crate::process::PerProcess;

/// Who is asked, and how.
pub(crate) struct Core {
    pub(crate) place: Place,
    pub(crate) options: Options,
    /// What keeps leases, shared by all that ask at the same place.
    pub(crate) beats: Arc<PerProcess<Arc<Beats>>>,
}

/// Where the answers come from.
#[derive(Clone)]
pub(crate) enum Place {
    Here(Arc<Here>),
    There(Arc<Dialer>),
}

impl Core {
    pub(crate) fn new(place: Place, options: Options) -> Arc<Self> {
        Arc::new(Self { place, options, beats: Arc::new(PerProcess::new()) })
    }

    /// The same with other rules for each call.
    pub(crate) fn with_options(&self, options: Options) -> Arc<Self> {
        let (place, beats) = (self.place.clone(), Arc::clone(&self.beats));
        Arc::new(Self { place, options, beats })
    }
}

impl Core {
    /// Why the store of a service in this process failed last.
    pub(crate) fn store_failure(&self) -> Option<String> {
        let Place::Here(here) = &self.place else { return None };
        let service = here.doors().ok()?.service;
        let of = |guard: &Guarded<AnyStore>, traffic| guard.last_failure_of(traffic);
        let kinds = [Traffic::Single, Traffic::Batch];
        let failure =
            service.guards().find_map(|guard| kinds.into_iter().find_map(|kind| of(&guard, kind)));
        failure.map(|failure| failure.to_string())
    }

    /// Ends the heartbeats, and the connection once nobody waits on it.
    pub(crate) async fn close(&self) {
        if let Some(beats) = self.beats.known() {
            beats.close();
        }
        match &self.place {
            Place::Here(here) => here.close().await,
            Place::There(dialer) => dialer.close(),
        }
    }
}

/// Asks one door or the other, and forgets who decided.
macro_rules! ask {
    ($($given:tt)*) => {
        sourced!($($given)*).map(Response::into_inner)
    };
}

/// Asks one door or the other.
macro_rules! sourced {
    ($core:expr, $twice:expr, $door:ident, $client:ident, $method:ident, $request:expr) => {{
        let (core, request) = ($core, $request);
        match &core.place {
            Place::Here(here) => {
                let doors = here.doors()?;
                Ok(doors.$door.$method(Request::new(request)).await?)
            }
            Place::There(dialer) => {
                let ask = |channel, left: Duration| {
                    let mut request = Request::new(request.clone());
                    request.set_timeout(left);
                    async move { $client::new(channel).$method(request).await }
                };
                dialer.call($twice, core.options, ask).await
            }
        }
    }};
}

type Answer<T> = Result<T, Failure>;

/// What a door answers, with who decided beside it.
type Sourced<T> = Result<Response<T>, Failure>;

/// Who decided, as the reply's metadata says.
fn source<T>(response: &Response<T>) -> Source {
    match response.metadata().get("admittance-source").map(MetadataValue::as_bytes) {
        Some(b"fail-mode") => Source::FailMode,
        Some(b"node") => Source::Node,
        _ => Source::Store,
    }
}

impl Core {
    pub(crate) async fn check(
        self: Arc<Self>,
        policy: String,
        key: String,
        cost: i64,
    ) -> Answer<Decision> {
        let request = v1::CheckRequest { policy, key, cost };
        let answer: Sourced<v1::CheckResponse> =
            sourced!(self, Twice::Charges, limiter, RateLimiterClient, check, request);
        let answer = answer?;
        let source = source(&answer);
        Ok(Decision::from(whole(answer.into_inner().decision)?).by(source))
    }

    pub(crate) async fn check_many(
        self: Arc<Self>,
        policy: String,
        keys: Vec<String>,
        cost: i64,
    ) -> Answer<Vec<Decision>> {
        let asked = keys.len();
        let request = v1::CheckManyRequest { policy, keys, cost };
        let answer: Sourced<v1::CheckManyResponse> =
            sourced!(self, Twice::Charges, limiter, RateLimiterClient, check_many, request);
        let answer = answer?;
        let source = source(&answer);
        let decisions = answer.into_inner().decisions;
        if decisions.len() != asked {
            return Err(Status::internal("the service answered for other keys").into());
        }
        Ok(decisions.into_iter().map(|one| Decision::from(one).by(source)).collect())
    }

    pub(crate) async fn peek(self: Arc<Self>, policy: String, key: String) -> Answer<v1::Decision> {
        let request = v1::PeekRequest { policy, key };
        let answer: Answer<v1::PeekResponse> =
            ask!(self, Twice::Same, limiter, RateLimiterClient, peek, request);
        whole(answer?.decision)
    }

    pub(crate) async fn forecast(
        self: Arc<Self>,
        policy: String,
        key: String,
        cost: i64,
    ) -> Answer<v1::Forecast> {
        let request = v1::ForecastRequest { policy, key, cost };
        let answer: Answer<v1::ForecastResponse> =
            ask!(self, Twice::Same, limiter, RateLimiterClient, forecast, request);
        whole(answer?.forecast)
    }

    pub(crate) async fn debit(
        self: Arc<Self>,
        policy: String,
        key: String,
        tokens: i64,
    ) -> Answer<Decision> {
        let request = v1::DebitRequest { policy, key, tokens };
        let answer: Sourced<v1::DebitResponse> =
            sourced!(self, Twice::Charges, limiter, RateLimiterClient, debit, request);
        let answer = answer?;
        let source = source(&answer);
        Ok(Decision::from(whole(answer.into_inner().decision)?).by(source))
    }

    pub(crate) async fn admit(
        self: Arc<Self>,
        work: AdmissionRequest,
    ) -> Answer<(AdmissionResponse, Source)> {
        let answer: Sourced<AdmissionResponse> =
            sourced!(self, Twice::Charges, admissions, AdmissionsClient, admit, work);
        let answer = answer?;
        let source = source(&answer);
        Ok((answer.into_inner(), source))
    }

    pub(crate) async fn explain(
        self: Arc<Self>,
        work: AdmissionRequest,
    ) -> Answer<ExplanationResponse> {
        ask!(self, Twice::Same, admissions, AdmissionsClient, explain, work)
    }

    /// One that is over stays so.
    pub(crate) async fn release(self: Arc<Self>, lease_id: String, dropped: bool) -> Answer<()> {
        let request = v1::ReleaseRequest { lease_id, dropped };
        let answer: Answer<v1::ReleaseResponse> =
            ask!(self, Twice::Same, limiter, RateLimiterClient, release, request);
        answer.map(|_| ())
    }

    pub(crate) async fn heartbeat(
        self: Arc<Self>,
        lease_ids: Vec<String>,
    ) -> Answer<v1::HeartbeatResponse> {
        let request = v1::HeartbeatRequest { lease_ids };
        ask!(self, Twice::Same, limiter, RateLimiterClient, heartbeat, request)
    }

    pub(crate) async fn reserve(
        self: Arc<Self>,
        request: cost::ReserveRequest,
    ) -> Answer<cost::ReserveResponse> {
        // A lease that the caller has named is reserved once, however often that is asked.
        let twice = if request.lease_id.is_empty() { Twice::Charges } else { Twice::Same };
        ask!(self, twice, budgets, BudgetsClient, reserve, request)
    }

    pub(crate) async fn debit_lease(
        self: Arc<Self>,
        charges: Vec<Charge>,
        lease_id: String,
    ) -> Answer<cost::Answer> {
        let request = cost::DebitRequest { charges, lease_id };
        let answer: Answer<cost::DebitResponse> =
            ask!(self, Twice::Charges, budgets, BudgetsClient, debit, request);
        whole(answer?.answer)
    }

    pub(crate) async fn settle(
        self: Arc<Self>,
        request: cost::SettleRequest,
    ) -> Answer<cost::Answer> {
        let answer: Answer<cost::SettleResponse> =
            ask!(self, Twice::Same, budgets, BudgetsClient, settle, request);
        whole(answer?.answer)
    }

    pub(crate) async fn look(self: Arc<Self>, charges: Vec<Charge>) -> Answer<cost::Answer> {
        let request = cost::LookRequest { charges };
        let answer: Answer<cost::LookResponse> =
            ask!(self, Twice::Same, budgets, BudgetsClient, look, request);
        whole(answer?.answer)
    }
}

fn whole<T>(part: Option<T>) -> Answer<T> {
    part.ok_or_else(|| Status::internal("the service answered without its answer").into())
}
