//! Answers with more in them than a decision, as the rows that `admittance.results` reads.

use admittance_proto::admissions::ExplanationResponse;
use admittance_proto::budgets as cost;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;

use crate::decision::Decision;
use crate::lease::named;

/// What accounts say together.
pub(crate) struct Costs(pub(crate) cost::Answer);

/// A reservation.
pub(crate) struct Reserved(pub(crate) cost::ReserveResponse);

/// What an admission would be told.
pub(crate) struct Explained(pub(crate) ExplanationResponse);

/// Names, numbers, settlement, decision.
type AccountRow =
    ((String, String, String), [i64; 8], Option<(&'static str, i64, i64)>, (bool, i64));

impl<'py> IntoPyObject<'py> for Costs {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let flow = match self.0.flow() {
            cost::Flow::Unspecified => "",
            cost::Flow::GoOn => "go_on",
            cost::Flow::SoftStop => "soft_stop",
            cost::Flow::Stop => "stop",
        };
        let cost::Answer { allowed, retry_after_ms, remaining, binding, reclaimed, .. } = self.0;
        let accounts: Vec<AccountRow> = self.0.accounts.into_iter().map(account).collect();
        (allowed, flow, retry_after_ms, remaining, binding, accounts, reclaimed)
            .into_bound_py_any(py)
    }
}

impl<'py> IntoPyObject<'py> for Reserved {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let cost::ReserveResponse { answer, lease_id, ttl_ms, reserved } = self.0;
        let costs = Costs(answer.unwrap_or_default());
        (costs, lease_id, ttl_ms, reserved).into_bound_py_any(py)
    }
}

impl<'py> IntoPyObject<'py> for Explained {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ExplanationResponse {
            decision,
            axes,
            binding_axis,
            policy_denied,
            worth,
            wait_ms,
            cost_max,
        } = self.0;
        let decision: Decision = decision.unwrap_or_default().into();
        let axes: Vec<_> = axes.into_iter().map(named).collect();
        let worth = worth.map(|worth| (worth.value, worth.price));
        let row = (decision, axes, binding_axis, policy_denied, worth, wait_ms, cost_max);
        row.into_bound_py_any(py)
    }
}

fn account(account: cost::Account) -> AccountRow {
    let settlement = account.settlement.map(|settled| {
        let kind = match settled.kind() {
            cost::SettlementKind::Unspecified => "",
            cost::SettlementKind::Now => "now",
            cost::SettlementKind::Before => "before",
            cost::SettlementKind::Unknown => "unknown",
        };
        (kind, settled.returned, settled.debt)
    });
    let numbers = [
        account.limit,
        account.spent,
        account.reserved,
        account.debt,
        account.left,
        account.open_leases,
        account.window_end,
        account.unspent,
    ];
    let names = (account.policy, account.key, account.window);
    (names, numbers, settlement, (account.allowed, account.retry_after_ms))
}
