//! Asks that mean nothing, by which a guard finds out whether its store serves.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use admittance_core::{Builtin, Cost, Decision, EXACT_MAX, Span, Window};

use super::circuit::Due;
use super::{Guarded, Inner, Traffic};
use crate::store::patience::within;
use crate::store::{Action, Many, Op, Store, StoreError};

impl<S: Store> Inner<S> {
    /// One probe: a charge that is always admitted, and so always written, of as many keys as such
    /// asks have.
    pub(super) async fn probe(&self, traffic: Traffic, patience: Span) -> Result<(), StoreError> {
        let number = self.probes.fetch_add(1, Ordering::Relaxed);
        // The largest limit there is, anew each second: state that is gone soon and never denies.
        let window = Window::fixed(EXACT_MAX, Span::from_secs(1));
        let strategy = &Builtin::from(window.map_err(|_| StoreError::Unreadable)?);
        let policy = Guarded::<S>::PROBE_POLICY;
        let is_admitted = async {
            // Several keys, so that in a cluster several nodes are probed.
            let key = |number: u64| [u8::try_from(number % PROBE_KEYS).unwrap_or(0)];
            if traffic == Traffic::Batch {
                let keys: Vec<[u8; 1]> = (0..Guarded::<S>::KEYS_AT_ONCE as u64).map(key).collect();
                let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                let many = Many { policy, strategy, keys: &keys, cost: Cost::ONE };
                let decisions = self.store.check_many(many).await?.decisions;
                return Ok(decisions.iter().all(Decision::is_admit));
            }
            let action = Action::Check(Cost::ONE);
            let op = Op { policy, strategy, key: &key(number), action };
            let applied = self.store.apply(op).await?;
            Ok(applied.decision().is_some_and(|decision| decision.is_admit()))
        };
        let probed = within(patience, is_admitted).await;
        match probed.unwrap_or(Err(StoreError::Timeout { waited: patience }))? {
            true => Ok(()),
            false => Err(StoreError::Unreadable),
        }
    }

    /// Finds out whether the store is at fault: probes until it answers or the breaker opens.
    async fn probe_if_suspect(&self, traffic: Traffic) {
        let circuit = self.circuit(traffic);
        while circuit.take_suspicion() {
            let Some(pass) = circuit.pass() else { return };
            let probed = self.probe(traffic, self.settings.deadline).await;
            let has_failed = probed.is_err();
            circuit.judge(pass, probed.err());
            match has_failed {
                true => circuit.suspect(),
                // Callers that only are impatient must not make it a load.
                false => tokio::time::sleep(self.settings.rules.probe_every.into()).await,
            }
        }
    }
}

/// Probes whenever the breaker wants it, for as long as the guard lives.
pub(super) async fn probe_when_due<S: Store>(inner: Arc<Inner<S>>, traffic: Traffic) {
    let circuit = inner.circuit(traffic);
    loop {
        match circuit.due() {
            Due::Nothing => {
                circuit.woken().await;
                inner.probe_if_suspect(traffic).await;
            }
            Due::At(due) => {
                tokio::time::sleep_until(due).await;
                circuit.judge_probe(inner.probe(traffic, inner.settings.deadline).await);
            }
        }
    }
}

/// Over how many keys probes are spread.
const PROBE_KEYS: u64 = 16;
