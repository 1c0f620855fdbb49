//! Where doors lead: to a service far away, or to a store that a service would use.

use std::sync::Arc;

use admittance::{Clock, GuardSettings, Span};
use admittance_redis::{PolicyOptions, RedisStore};
use admittance_server::{AnyStore, Config, Defaults, Service};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::channel::{Dialer, Pem};
use crate::clock::{ManualClock, shared};
use crate::convert;
use crate::door::{Door, options};
use crate::failure::ConfigFailure;
use crate::here::{Doors, Here, Made};
use crate::operations::{Core, Place};
use crate::runtime::within;

/// A service far away.
#[pyfunction]
pub(crate) fn service_door(
    target: &str,
    timeout_ms: u64,
    retries: u32,
    tls_ca: Option<Vec<u8>>,
    tls_cert: Option<Vec<u8>>,
    tls_key: Option<Vec<u8>>,
    tls_name: Option<String>,
) -> PyResult<Door> {
    let pem = Pem { ca: tls_ca, cert: tls_cert, key: tls_key, name: tls_name };
    let dialer = Arc::new(Dialer::new(target, pem)?);
    Ok(Door { core: Core::new(Place::There(dialer), options(timeout_ms, retries)) })
}

/// A store that services share, asked as they do.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "they have names in Python")]
pub(crate) fn redis_door(
    url: String,
    source: &str,
    text: Option<&str>,
    fail: &str,
    prefix: Option<String>,
    deadline_ms: u64,
    allow_eviction: bool,
    clock: Option<&Bound<'_, ManualClock>>,
) -> PyResult<Door> {
    let store_deadline = Span::from_ms(deadline_ms);
    let defaults = Defaults { store_deadline, ..Defaults::from(convert::fail(fail)?) };
    let config = convert::config(source, text, defaults)?;
    let clock = clock.map(|clock| clock.get().0.clone());
    let make = move || {
        let mut builder = RedisStore::builder(&url);
        if let Some(prefix) = &prefix {
            builder = builder.prefix(prefix);
        }
        if allow_eviction {
            builder = builder.allow_eviction();
        }
        if let Some(clock) = &clock {
            builder = builder.manual_clock(clock.now());
        }
        builder = wanted(builder, &config);
        let store = within(|| builder.build())?;
        let store = store.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let settings = GuardSettings { clock: Arc::new(shared(None)), ..GuardSettings::default() };
        let any = AnyStore::fused(Arc::new(store.clone()));
        let service = within(|| Service::on_store(&config, &any, &settings))?;
        let doors = Doors::new(service.map_err(|error| ConfigFailure(error.to_string()))?);
        Ok(match &clock {
            Some(clock) => doors.timed(store, clock.clone()),
            None => doors,
        })
    };
    let here = Here::Made(Box::new(Made::new(make)?));
    Ok(Door { core: Core::new(Place::Here(Arc::new(here)), options(deadline_ms, 0)) })
}

/// What each policy wants of the store.
fn wanted(mut builder: admittance_redis::Builder, config: &Config) -> admittance_redis::Builder {
    for policy in &config.policies {
        let wait_replicas = u32::try_from(policy.store.wait_replicas).unwrap_or(u32::MAX);
        let options = PolicyOptions { hash_tag: policy.store.hash_tag.clone(), wait_replicas };
        if options != PolicyOptions::default() {
            builder = builder.policy(policy.store_name(), options);
        }
    }
    builder
}
