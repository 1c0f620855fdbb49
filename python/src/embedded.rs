//! The core in this process: checks without anything between Python and the limiter.
//!
//! # Guarantee
//! A check of a plain rate policy allocates nothing but its answer, takes no lock but the
//! interpreter's and meets no runtime. Everything else goes through the service's doors, as it
//! would over the wire.
//!
//! # Proven by
//! `tests/test_one_surface.py`; `bench/python.py` has what it takes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use admittance::{Builtin, Cost, Decision as Decided, Limiter};
use admittance_server::{
    BATCH_MAX, Config, Fail, KEY_MAX, Policy, PolicyConfig, Service, SharedClock, cost,
};
use arc_swap::ArcSwapOption;
use foldhash::fast::RandomState;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::clock::{ManualClock, of_process};
use crate::convert::{self, Units};
use crate::decision::{Decision, Decisions, Forecast};
use crate::door::{Door, options};
use crate::failure::ConfigFailure;
use crate::forks::Visit;
use crate::here::{Doors, Here};
use crate::operations::{Core, Place};
use crate::runtime::{wait, within};

/// The fast half of `admittance.Embedded`.
#[pyclass(frozen, subclass, module = "admittance._native")]
pub(crate) struct Embedded {
    /// Those it was made with, which most keep: they are found without a lock and without counting.
    policies: Policies,
    /// Those that have replaced them.
    reloaded: ArcSwapOption<Policies>,
    is_reloaded: AtomicBool,
    service: Arc<Service>,
    core: Arc<Core>,
    fail: Fail,
}

/// Policies by name.
enum Policies {
    /// So few that to compare their names is faster than to hash one.
    Few(Vec<(Box<str>, Entry)>),
    Many(HashMap<Box<str>, Entry, RandomState>),
}

impl Policies {
    fn of(service: &Service) -> Self {
        let entry = |policy: Arc<Policy>| {
            (policy.name().into(), Entry { policy, limiter: OnceLock::new() })
        };
        let each = service.policies().into_iter().map(entry);
        if each.len() <= FEW { Self::Few(each.collect()) } else { Self::Many(each.collect()) }
    }

    #[inline]
    fn limiter(&self, name: &str) -> Option<&Limiter<Builtin, SharedClock>> {
        let entry = match self {
            Self::Few(few) => few.iter().find(|(own, _)| **own == *name).map(|(_, entry)| entry),
            Self::Many(many) => many.get(name),
        };
        entry?.limiter()
    }
}

/// A policy, and what decides its checks if that is a limiter alone. That is asked when it is first
/// needed: a limiter reserves room for its keys.
struct Entry {
    policy: Arc<Policy>,
    limiter: OnceLock<Option<Arc<Limiter<Builtin, SharedClock>>>>,
}

impl Entry {
    #[inline]
    fn limiter(&self) -> Option<&Limiter<Builtin, SharedClock>> {
        self.limiter.get_or_init(|| self.policy.limiter().cloned()).as_deref()
    }
}

impl Embedded {
    /// Does something with the limiter of a plain rate policy, if the policy is one and what is
    /// asked of it can be decided. If not, the service's door says why not.
    #[inline]
    fn with_limiter<T>(
        &self,
        policy: &str,
        units: Units,
        work: impl FnOnce(&Limiter<Builtin, SharedClock>, Cost) -> Option<T>,
    ) -> Option<T> {
        let cost = cost(units.0).ok()?;
        if self.is_reloaded.load(Ordering::Acquire) {
            work(self.reloaded.load().as_ref()?.limiter(policy)?, cost)
        } else {
            work(self.policies.limiter(policy)?, cost)
        }
    }

    #[inline]
    fn checked(&self, policy: &str, key: &str, units: Units) -> Option<Decision> {
        self.with_limiter(policy, units, |limiter, cost| {
            (key.len() <= KEY_MAX).then(|| limiter.check_cost(key, cost).into())
        })
    }

    /// The decisions of a batch, if its policy is a plain one.
    fn many(&self, py: Python<'_>, asked: &Batch<'_, '_>) -> PyResult<Option<Vec<Decided>>> {
        let Batch { policy, keys, units } = asked;
        let strings = convert::strings(keys)?;
        let texts = convert::texts(&strings)?;
        let longest = texts.iter().fold(0, |longest, key| key.len().max(longest));
        if texts.len() > BATCH_MAX || longest > KEY_MAX {
            return Ok(None);
        }
        let decide = || {
            self.with_limiter(policy, *units, |limiter, cost| {
                let mut decided = Vec::with_capacity(texts.len());
                limiter.check_many(&texts, cost, &mut decided);
                Some(decided)
            })
        };
        // To get the lock back can take milliseconds when others compute: only a long batch is
        // worth that. While somebody forks, the lock is kept: a child must find none of the locks
        // in a table held.
        let visit = (texts.len() >= UNLOCKED_FROM).then(Visit::begin).flatten();
        Ok(if visit.is_some() { py.detach(decide) } else { decide() })
    }

    fn refresh(&self) {
        self.reloaded.store(Some(Arc::new(Policies::of(&self.service))));
        self.is_reloaded.store(true, Ordering::Release);
    }
}

/// What is asked for many keys.
struct Batch<'a, 'py> {
    policy: &'a str,
    keys: Bound<'py, PyTuple>,
    units: Units,
}

#[pymethods]
impl Embedded {
    #[new]
    fn new(
        source: &str,
        text: Option<&str>,
        fail: &str,
        clock: Option<&Bound<'_, ManualClock>>,
    ) -> PyResult<Self> {
        let fail = convert::fail(fail)?;
        let config = decidable(convert::config(source, text, fail.into())?)?;
        let clock = of_process(clock.map(Bound::get));
        let service = match config.policies.iter().any(needs_runtime) {
            true => within(|| Service::new(&config, clock))?,
            false => Service::new(&config, clock),
        };
        let doors = Doors::new(service);
        let service = Arc::clone(&doors.service);
        let place = Place::Here(Arc::new(Here::Kept(Box::new(doors))));
        Ok(Self {
            policies: Policies::of(&service),
            reloaded: ArcSwapOption::empty(),
            is_reloaded: AtomicBool::new(false),
            service,
            core: Core::new(place, options(1_000, 0)),
            fail,
        })
    }

    #[pyo3(
        signature = (policy, key, cost = Units::ONE),
        text_signature = "($self, policy, key, cost=1)",
    )]
    fn check<'py>(
        &self,
        py: Python<'py>,
        policy: &str,
        key: &str,
        cost: Units,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.checked(policy, key, cost) {
            Some(decision) => Ok(Bound::new(py, decision)?.into_any()),
            None => wait(py, Arc::clone(&self.core).check(policy.into(), key.into(), cost.0)),
        }
    }

    /// The decision, if it needs nobody but a limiter.
    #[pyo3(name = "_check_here", signature = (policy, key, cost = Units::ONE))]
    fn check_here(&self, policy: &str, key: &str, cost: Units) -> Option<Decision> {
        self.checked(policy, key, cost)
    }

    #[pyo3(
        signature = (policy, keys, cost = Units::ONE),
        text_signature = "($self, policy, keys, cost=1)",
    )]
    fn check_many<'py>(
        &self,
        py: Python<'py>,
        policy: &str,
        keys: &Bound<'py, PyAny>,
        cost: Units,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batch = Batch { policy, keys: convert::tuple(keys)?, units: cost };
        if let Some(decided) = self.many(py, &batch)? {
            let decided: Vec<Decision> = decided.into_iter().map(Decision::from).collect();
            return decided.into_pyobject(py);
        }
        wait(py, Arc::clone(&self.core).check_many(policy.into(), batch.owned()?, cost.0))
    }

    #[pyo3(
        signature = (policy, keys, cost = Units::ONE),
        text_signature = "($self, policy, keys, cost=1)",
    )]
    fn check_many_columns<'py>(
        &self,
        py: Python<'py>,
        policy: &str,
        keys: &Bound<'py, PyAny>,
        cost: Units,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batch = Batch { policy, keys: convert::tuple(keys)?, units: cost };
        if let Some(decided) = self.many(py, &batch)? {
            return Ok(Bound::new(py, Decisions::of(&decided))?.into_any());
        }
        let asked = Arc::clone(&self.core).check_many(policy.into(), batch.owned()?, cost.0);
        wait(py, async { asked.await.map(|decided| Decisions::of(&decided)) })
    }

    fn peek<'py>(&self, py: Python<'py>, policy: &str, key: &str) -> PyResult<Bound<'py, PyAny>> {
        let seen = self.with_limiter(policy, Units::ONE, |limiter, _| {
            (key.len() <= KEY_MAX).then(|| Decision::from(limiter.peek(key)))
        });
        match seen {
            Some(decision) => Ok(Bound::new(py, decision)?.into_any()),
            None => {
                let asked = Arc::clone(&self.core).peek(policy.into(), key.into());
                wait(py, async { asked.await.map(Decision::from) })
            }
        }
    }

    #[pyo3(
        signature = (policy, key, cost = Units::ONE),
        text_signature = "($self, policy, key, cost=1)",
    )]
    fn forecast<'py>(
        &self,
        py: Python<'py>,
        policy: &str,
        key: &str,
        cost: Units,
    ) -> PyResult<Bound<'py, PyAny>> {
        let seen = self.with_limiter(policy, cost, |limiter, cost| {
            (key.len() <= KEY_MAX).then(|| Forecast::from(limiter.forecast(key, cost)))
        });
        match seen {
            Some(forecast) => Ok(Bound::new(py, forecast)?.into_any()),
            None => {
                let asked = Arc::clone(&self.core).forecast(policy.into(), key.into(), cost.0);
                wait(py, async { asked.await.map(Forecast::from) })
            }
        }
    }

    /// The names of the policies.
    fn policies(&self) -> Vec<String> {
        let policies = self.service.policies();
        policies.iter().map(|policy| policy.name().to_owned()).collect()
    }

    #[pyo3(name = "_reload")]
    fn reload(&self, py: Python<'_>, source: &str, text: Option<&str>) -> PyResult<()> {
        let config = decidable(convert::config(source, text, self.fail.into())?)?;
        let service = Arc::clone(&self.service);
        let reloading = async move {
            let reloaded = service.reload(&config).await;
            reloaded.map(|_| ()).map_err(|error| ConfigFailure(error.to_string()))
        };
        wait(py, reloading)?;
        self.refresh();
        Ok(())
    }

    #[getter(_door)]
    fn door(&self) -> Door {
        Door { core: Arc::clone(&self.core) }
    }
}

impl Batch<'_, '_> {
    fn owned(&self) -> PyResult<Vec<String>> {
        let strings = convert::strings(&self.keys)?;
        Ok(convert::texts(&strings)?.into_iter().map(str::to_owned).collect())
    }
}

/// Refuses what nothing in this process could keep: load is told by the requests of a server.
fn decidable(config: Config) -> Result<Config, ConfigFailure> {
    let shedding = config.policies.iter().filter(|policy| policy.load.is_some());
    let names: Vec<_> = shedding.map(|policy| format!("{:?}", policy.name)).collect();
    if names.is_empty() {
        return Ok(config);
    }
    let names = names.join(", ");
    let why = "how far behind it is is known to a service alone; use ServiceBackend with these \
               policies, or leave the block out";
    Err(ConfigFailure(format!("an Embedded sheds no load, and {names} has a `load` block: {why}")))
}

/// Whether tasks belong to a policy, which must run somewhere from the beginning.
fn needs_runtime(policy: &PolicyConfig) -> bool {
    let is_plain =
        |rate: &admittance_server::RateConfig| rate.tier.is_strict() && rate.escrow.is_none();
    !policy.rate.as_ref().is_none_or(is_plain) || policy.concurrency.is_some()
}

/// How few policies are compared by name one after another.
const FEW: usize = 8;

/// From so many keys on a batch gives the interpreter's lock up while it decides: some hundred
/// microseconds.
const UNLOCKED_FROM: usize = 4_096;
