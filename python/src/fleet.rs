//! Limits borrowed from a service far away and spent in this process, by the holder that services
//! use themselves.
//!
//! # Guarantee
//! That of `admittance_client`: every admission is paid by the coordinator's window, whatever the
//! wall clock of this machine says. What is held is spent without a round trip and without waiting.
//!
//! # Proven by
//! `tests/test_service.py`, `tests/test_close.py`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use admittance::two_tier::{Batch, Leasing, TwoTier};
use admittance::{
    Applied, AppliedMany, AppliedSeveral, Builtin, Cost, Decided, EXACT_MAX, FailMode, Group,
    GuardSettings, Guarded, Many, Op, SharedLimiter, Source, Span, Store, StoreError, Window,
};
use admittance_client::FleetStore;
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_server::{KEY_MAX, cost};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::channel::{Dialer, Options, Pem, Twice};
use crate::convert::Units;
use crate::decision::Decision;
use crate::door::options;
use crate::failure::Failure;
use crate::process::PerProcess;
use crate::runtime::{awaited, wait, within};

/// A limit that is borrowed from.
#[pyclass(frozen, module = "admittance._native")]
pub(crate) struct Leased {
    inner: Arc<Inner>,
}

struct Inner {
    dialer: Arc<Dialer>,
    secret: Option<String>,
    policy: String,
    leasing: Leasing,
    fail: Fail,
    options: Options,
    holder: PerProcess<Arc<Holder>>,
}

/// What to answer when nobody lends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fail {
    /// An error.
    Raise,
    Mode(FailMode),
}

/// What this process holds.
struct Holder {
    tier: TwoTier<Told>,
    last: Arc<Mutex<Option<StoreError>>>,
}

/// The lending door, and what it last refused with: a fail mode does not say why it was needed.
struct Told {
    store: FleetStore,
    last: Arc<Mutex<Option<StoreError>>>,
}

impl Told {
    fn note<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        let error = answer.as_ref().err().cloned();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = error;
        answer
    }
}

impl Store for Told {
    async fn apply(&self, op: Op<'_>) -> Result<Applied, StoreError> {
        self.note(self.store.apply(op).await)
    }

    async fn check_many(&self, many: Many<'_>) -> Result<AppliedMany, StoreError> {
        self.note(self.store.check_many(many).await)
    }

    async fn several(&self, group: Group<'_>) -> Result<AppliedSeveral, StoreError> {
        self.note(self.store.several(group).await)
    }
}

impl Holder {
    /// A decision; or why nobody lends, and what the fail mode says to that.
    async fn check(
        &self,
        key: &str,
        cost: Cost,
    ) -> Result<Decision, (StoreError, Option<Decision>)> {
        let decided = self.tier.check(key.as_bytes(), cost).await;
        let decided: Decided = decided.map_err(|error| (error, None))?;
        if decided.source == Source::FailMode {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return Err((last.unwrap_or(StoreError::Unavailable), Some(decided.into())));
        }
        Ok(decided.into())
    }
}

impl Inner {
    async fn check(self: Arc<Self>, key: String, units: i64) -> Result<Decision, Failure> {
        match (self.decided(&key, units).await, self.fail) {
            // Not even the limit is known here: whoever asked first must not be told otherwise than
            // those who ask later.
            (Err(failure), Fail::Mode(mode)) if failure.is_unanswered() => {
                let timeout = i64::try_from(self.options.timeout.as_millis()).unwrap_or(i64::MAX);
                Ok(Decision::of_unknown_limit(mode == FailMode::Open, timeout))
            }
            (decided, _) => decided,
        }
    }

    async fn decided(&self, key: &str, units: i64) -> Result<Decision, Failure> {
        let cost = asked(key, units)?;
        let mut holder = match self.known() {
            Some(holder) => holder,
            None => self.borrowing(key).await?,
        };
        let mut decided = holder.check(self.key(key), cost).await;
        if matches!(&decided, Err((StoreError::OtherLimit { .. }, _))) {
            // The policies were reloaded there: what is lent now is of another limit. It is learned
            // again, once.
            self.holder.forget_if(|known| Arc::ptr_eq(known, &holder));
            holder = self.borrowing(key).await?;
            decided = holder.check(self.key(key), cost).await;
        }
        match decided {
            Ok(decision) => Ok(decision),
            Err((_, Some(decision))) if self.fail != Fail::Raise => Ok(decision),
            Err((error, _)) => Err(self.refused(&error)),
        }
    }

    /// What this process holds; nothing once the backend is closed.
    fn known(&self) -> Option<Arc<Holder>> {
        self.holder.known().filter(|_| !self.dialer.is_closed())
    }

    /// What is held here, if that is enough.
    fn spent(&self, key: &str, units: i64) -> Option<Decision> {
        let cost = asked(key, units).ok()?;
        let decided = self.known()?.tier.spend(self.key(key).as_bytes(), cost);
        decided.map(Decision::from)
    }

    /// The budget that nobody's key is for is the policy's own, as the door has it.
    fn key<'a>(&'a self, key: &'a str) -> &'a str {
        if key.is_empty() { &self.policy } else { key }
    }

    /// Learns the policy's limit, and begins to borrow.
    async fn borrowing(&self, key: &str) -> Result<Arc<Holder>, Failure> {
        let decision = match self.looked(key).await {
            // As the public contract has it: there is no look at a policy that lends.
            Err(failure) if failure.status.code() == Code::Unimplemented => self.denied(key).await,
            looked => looked,
        };
        let limit = decision?.and_then(|decision| u64::try_from(decision.limit).ok());
        let limit = limit.ok_or_else(|| Status::internal("the service did not say the limit"))?;
        // Another may have been made meanwhile, also one that is closed by now.
        let channel = self.dialer.channel()?;
        let holder = self.holder.get(|| self.hold(channel, limit).map(Arc::new));
        holder.map_err(|error| self.dialer.failed(error))
    }

    /// A look: it charges nothing, and is nobody's decision in what operators count.
    async fn looked(&self, key: &str) -> Result<Option<v1::Decision>, Failure> {
        let asked = v1::PeekRequest { policy: self.policy.clone(), key: self.key(key).to_owned() };
        let ask = |channel, left| {
            let mut request = Request::new(asked.clone());
            request.set_timeout(left);
            request.metadata_mut().insert("admittance-look", MetadataValue::from_static("store"));
            async move { RateLimiterClient::new(channel).peek(request).await }
        };
        Ok(self.dialer.call(Twice::Same, self.options, ask).await?.into_inner().decision)
    }

    /// More than any limit: it is denied, charges nothing, and its answer has the limit. Operators
    /// see a denial.
    async fn denied(&self, key: &str) -> Result<Option<v1::Decision>, Failure> {
        let cost = i64::try_from(EXACT_MAX).unwrap_or(i64::MAX);
        let (policy, key) = (self.policy.clone(), self.key(key).to_owned());
        let asked = v1::CheckRequest { policy, key, cost };
        let ask = |channel, left| {
            let mut request = Request::new(asked.clone());
            request.set_timeout(left);
            async move { RateLimiterClient::new(channel).check(request).await }
        };
        Ok(self.dialer.call(Twice::Same, self.options, ask).await?.into_inner().decision)
    }

    fn hold(&self, channel: Channel, limit: u64) -> Result<Holder, Status> {
        let wrong = |error: &dyn std::fmt::Display| Status::failed_precondition(error.to_string());
        let store = FleetStore::over(channel, self.secret.as_deref());
        let last: Arc<Mutex<Option<StoreError>>> = Arc::default();
        let store = Told { store: store.map_err(|error| wrong(&error))?, last: Arc::clone(&last) };
        // Only its limit matters here: how long a window lasts is told with each grant.
        let strategy = Window::fixed(limit, WINDOW_ANY).map_err(|error| wrong(&error))?;
        let deadline = Span::from_us(u64::try_from(self.options.timeout.as_micros()).unwrap_or(0));
        let settings = GuardSettings { deadline, ..GuardSettings::default() };
        let mode = match self.fail {
            Fail::Raise => FailMode::Closed,
            Fail::Mode(mode) => mode,
        };
        let made = within(|| {
            let store = Arc::new(Guarded::start(store, settings));
            let shared = SharedLimiter::new(&*self.policy, Builtin::from(strategy), store, mode);
            let shared = shared.map_err(|error| wrong(&error))?;
            TwoTier::leased(shared, self.leasing).map_err(|error| wrong(&error))
        });
        let tier = made.map_err(|error| wrong(&error))??;
        Ok(Holder { tier, last })
    }

    fn refused(&self, error: &StoreError) -> Failure {
        let text = error.to_string();
        let code = match error {
            StoreError::Refused { detail } => code(detail),
            _ => Code::Unavailable,
        };
        self.dialer.failed(Status::new(code, text))
    }
}

fn asked(key: &str, units: i64) -> Result<Cost, Failure> {
    let cost = cost(units).map_err(|error| Status::invalid_argument(error.to_string()))?;
    if key.len() > KEY_MAX {
        let message = format!("the key has {} bytes; the most is {KEY_MAX}", key.len());
        return Err(Status::invalid_argument(message).into());
    }
    Ok(cost)
}

/// Which code a refusal had, by the word that it begins with.
fn code(detail: &str) -> Code {
    let known = [Code::NotFound, Code::Unauthenticated, Code::Unimplemented, Code::InvalidArgument];
    let is_said = |code: &Code| detail.starts_with(&format!("{code:?}:"));
    known.into_iter().find(is_said).unwrap_or(Code::Unavailable)
}

#[pymethods]
impl Leased {
    fn check<'py>(&self, py: Python<'py>, key: &str, cost: Units) -> PyResult<Bound<'py, PyAny>> {
        match self.inner.spent(key, cost.0) {
            Some(decision) => Ok(Bound::new(py, decision)?.into_any()),
            None => wait(py, Arc::clone(&self.inner).check(key.to_owned(), cost.0)),
        }
    }

    /// What can be decided with what is held here.
    fn spend(&self, key: &str, cost: Units) -> Option<Decision> {
        self.inner.spent(key, cost.0)
    }

    fn check_async<'py>(
        &self,
        py: Python<'py>,
        key: String,
        cost: Units,
    ) -> PyResult<Bound<'py, PyAny>> {
        awaited(py, Arc::clone(&self.inner).check(key, cost.0))
    }
}

/// A service that lends.
#[pyclass(frozen, module = "admittance._native")]
pub(crate) struct Fleet {
    dialer: Arc<Dialer>,
    secret: Option<String>,
    fail: Fail,
    options: Options,
    /// What was lent out, to be closed with it.
    lent: Mutex<Vec<Weak<Inner>>>,
}

#[pymethods]
impl Fleet {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they have names in Python")]
    fn new(
        target: &str,
        secret: Option<String>,
        fail: &str,
        timeout_ms: u64,
        tls_ca: Option<Vec<u8>>,
        tls_cert: Option<Vec<u8>>,
        tls_key: Option<Vec<u8>>,
        tls_name: Option<String>,
    ) -> PyResult<Self> {
        let pem = Pem { ca: tls_ca, cert: tls_cert, key: tls_key, name: tls_name };
        let dialer = Arc::new(Dialer::new(target, pem)?);
        let fail = match fail {
            "raise" => Fail::Raise,
            "open" => Fail::Mode(FailMode::Open),
            "closed" => Fail::Mode(FailMode::Closed),
            _ => {
                let message = format!("fail is {fail:?}; write \"raise\", \"open\" or \"closed\"");
                return Err(PyValueError::new_err(message));
            }
        };
        let (options, lent) = (options(timeout_ms, 2), Mutex::default());
        Ok(Self { dialer, secret, fail, options, lent })
    }

    /// A limit to borrow from: so many units at a time, or "learned", or "predictive".
    fn leased(&self, policy: String, batch: Asked, low_water: u64) -> PyResult<Leased> {
        let batch = match batch {
            Asked::Units(0) => return Err(PyValueError::new_err("a batch must be at least 1")),
            Asked::Units(units) => Batch::Fixed(units),
            Asked::Word(word) if word == "learned" => Batch::Learned,
            Asked::Word(word) if word == "predictive" => Batch::Predictive,
            Asked::Word(word) => {
                let message = format!("batch is {word:?}; write a number, learned or predictive");
                return Err(PyValueError::new_err(message));
            }
        };
        let inner = Inner {
            dialer: Arc::clone(&self.dialer),
            secret: self.secret.clone(),
            policy,
            leasing: Leasing { batch, low_water, ..Leasing::default() },
            fail: self.fail,
            options: self.options,
            holder: PerProcess::new(),
        };
        let inner = Arc::new(inner);
        let mut lent = self.lent();
        lent.retain(|inner| inner.strong_count() > 0);
        lent.push(Arc::downgrade(&inner));
        Ok(Leased { inner })
    }

    fn close(&self) {
        self.dialer.close();
        let lent = std::mem::take(&mut *self.lent());
        for inner in lent.iter().filter_map(Weak::upgrade) {
            inner.holder.forget();
        }
    }
}

impl Fleet {
    fn lent(&self) -> MutexGuard<'_, Vec<Weak<Inner>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much is borrowed at a time.
#[derive(FromPyObject)]
enum Asked {
    Units(u64),
    Word(String),
}

/// Longer than any deadline is patient for.
const WINDOW_ANY: Span = Span::from_secs(86_400);
