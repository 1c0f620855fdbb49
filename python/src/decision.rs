//! Decisions as Python sees them: one, or columns of many.

use admittance::{Decided, Decision as Core, EXACT_MAX, Forecast as CoreForecast, Source};
use admittance_proto::v1;
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

/// The answer to one request.
#[pyclass(frozen, eq, hash, module = "admittance")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Decision {
    /// The most that can pass at one instant.
    #[pyo3(get)]
    limit: i64,
    /// Whole units that would still pass.
    #[pyo3(get)]
    remaining: i64,
    /// When everything is replenished, in epoch milliseconds.
    #[pyo3(get)]
    reset_at: i64,
    /// How long to wait: 0 when allowed, `NEVER_MS` when waiting does not help.
    #[pyo3(get)]
    retry_after_ms: i64,
    /// Whether the work may start.
    #[pyo3(get)]
    allowed: bool,
    source: Source,
}

#[pymethods]
impl Decision {
    #[new]
    #[pyo3(signature = (allowed, limit, remaining, reset_at, retry_after_ms = 0, source = "store"))]
    fn new(
        allowed: bool,
        limit: i64,
        remaining: i64,
        reset_at: i64,
        retry_after_ms: i64,
        source: &str,
    ) -> PyResult<Self> {
        let known = [Source::Store, Source::Node, Source::FailMode];
        let source = known.into_iter().find(|known| name(*known) == source);
        let wrong = || PyValueError::new_err("source is \"store\", \"node\" or \"fail-mode\"");
        let source = source.ok_or_else(wrong)?;
        Ok(Self { limit, remaining, reset_at, retry_after_ms, allowed, source })
    }

    /// Who decided: "store"; "node" with what it had borrowed; "fail-mode" if nobody could.
    #[getter]
    const fn source(&self) -> &'static str {
        name(self.source)
    }

    /// Whether a limit stands behind it. Not so if `fail: open` admits while the store is away.
    #[getter]
    const fn counted(&self) -> bool {
        !(matches!(self.source, Source::FailMode) && self.allowed && self.reset_at == 0)
    }

    fn __repr__(&self) -> String {
        let Self { limit, remaining, reset_at, retry_after_ms, allowed, source } = self;
        let allowed = if *allowed { "True" } else { "False" };
        let source = match source {
            Source::Store => String::new(),
            source => format!(", source={:?}", name(*source)),
        };
        format!(
            "Decision(allowed={allowed}, limit={limit}, remaining={remaining}, \
             reset_at={reset_at}, retry_after_ms={retry_after_ms}{source})"
        )
    }

    /// For copies and for other processes.
    fn __getnewargs__(&self) -> (bool, i64, i64, i64, i64, &'static str) {
        let Self { limit, remaining, reset_at, retry_after_ms, allowed, source } = *self;
        (allowed, limit, remaining, reset_at, retry_after_ms, name(source))
    }
}

/// As `admittance-source` has it, and the store's by its name.
const fn name(source: Source) -> &'static str {
    match source {
        Source::Store => "store",
        Source::Node => "node",
        Source::FailMode => "fail-mode",
    }
}

impl Decision {
    /// By a fail mode that has no limit to tell; a denial is worth asking again after `wait_ms`.
    pub(crate) const fn of_unknown_limit(allowed: bool, wait_ms: i64) -> Self {
        let retry_after_ms = if allowed { 0 } else { wait_ms };
        let source = Source::FailMode;
        Self { limit: 0, remaining: 0, reset_at: 0, retry_after_ms, allowed, source }
    }

    /// The same by another.
    pub(crate) const fn by(self, source: Source) -> Self {
        Self { source, ..self }
    }
}

impl From<Decided> for Decision {
    fn from(decided: Decided) -> Self {
        Self::from(decided.decision).by(decided.source)
    }
}

/// As the wire rounds it.
impl From<Core> for Decision {
    #[inline]
    fn from(core: Core) -> Self {
        Self {
            limit: wire(core.limit),
            remaining: wire(core.remaining),
            reset_at: wire(core.reset_at.epoch_ms_ceil()),
            retry_after_ms: wire(core.retry_after_ms()),
            allowed: core.is_admit(),
            source: Source::Store,
        }
    }
}

impl From<v1::Decision> for Decision {
    fn from(wire: v1::Decision) -> Self {
        let v1::Decision { allowed, limit, remaining, reset_at, retry_after_ms } = wire;
        Self { limit, remaining, reset_at, retry_after_ms, allowed, source: Source::Store }
    }
}

/// What is spendable, and when that changes if nobody spends.
#[pyclass(frozen, eq, hash, get_all, module = "admittance")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Forecast {
    /// How many requests of the asked cost would pass now.
    spendable_now: i64,
    /// When more can pass, in epoch milliseconds.
    next_replenish_at: i64,
    /// When everything can pass, in epoch milliseconds.
    full_at: i64,
}

#[pymethods]
impl Forecast {
    #[new]
    const fn new(spendable_now: i64, next_replenish_at: i64, full_at: i64) -> Self {
        Self { spendable_now, next_replenish_at, full_at }
    }

    fn __repr__(&self) -> String {
        let Self { spendable_now, next_replenish_at, full_at } = self;
        format!(
            "Forecast(spendable_now={spendable_now}, next_replenish_at={next_replenish_at}, \
             full_at={full_at})"
        )
    }

    /// For copies and for other processes.
    const fn __getnewargs__(&self) -> (i64, i64, i64) {
        (self.spendable_now, self.next_replenish_at, self.full_at)
    }
}

impl From<CoreForecast> for Forecast {
    fn from(core: CoreForecast) -> Self {
        v1::Forecast::from(core).into()
    }
}

impl From<v1::Forecast> for Forecast {
    fn from(wire: v1::Forecast) -> Self {
        let v1::Forecast { spendable_now, next_replenish_at, full_at } = wire;
        Self { spendable_now, next_replenish_at, full_at }
    }
}

/// Many decisions as columns, in the order of the keys. Each is a read-only view that `numpy` and
/// others take as it is.
#[pyclass(frozen, module = "admittance")]
pub(crate) struct Decisions {
    allowed: Box<[u8]>,
    /// Limits, what remains, resets, waits, in this machine's order of bytes.
    numbers: [Box<[[u8; 8]]>; 4],
    /// Of all of them.
    source: Source,
}

impl Decisions {
    pub(crate) fn of<D: Into<Decision> + Copy>(decided: &[D]) -> Self {
        // Column by column: each loop computes what its column needs, and writes it once.
        Self {
            allowed: decided.iter().map(|&one| u8::from(one.into().allowed)).collect(),
            numbers: [
                column(decided, |one| one.limit),
                column(decided, |one| one.remaining),
                column(decided, |one| one.reset_at),
                column(decided, |one| one.retry_after_ms),
            ],
            source: decided.first().map_or(Source::Store, |&one| one.into().source),
        }
    }

    fn numbers<'py>(&self, py: Python<'py>, column: usize) -> PyResult<Bound<'py, PyAny>> {
        view(py, self.numbers[column].as_flattened(), "q")
    }

    fn number(&self, column: usize, place: usize) -> i64 {
        i64::from_ne_bytes(self.numbers[column][place])
    }
}

#[inline]
fn column<D: Into<Decision> + Copy>(
    decided: &[D],
    number: impl Fn(Decision) -> i64,
) -> Box<[[u8; 8]]> {
    decided.iter().map(|&one| number(one.into()).to_ne_bytes()).collect()
}

#[pymethods]
impl Decisions {
    /// Who decided all of them, as a `Decision` has it.
    #[getter]
    const fn source(&self) -> &'static str {
        name(self.source)
    }

    /// Whether each may start.
    #[getter]
    fn allowed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        view(py, &self.allowed, "?")
    }

    /// The most that can pass at one instant.
    #[getter]
    fn limit<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numbers(py, 0)
    }

    /// Whole units that would still pass.
    #[getter]
    fn remaining<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numbers(py, 1)
    }

    /// When everything is replenished, in epoch milliseconds.
    #[getter]
    fn reset_at<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numbers(py, 2)
    }

    /// How long to wait: 0 when allowed, `NEVER_MS` when waiting does not help.
    #[getter]
    fn retry_after_ms<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.numbers(py, 3)
    }

    fn __len__(&self) -> usize {
        self.allowed.len()
    }

    /// One of them; iteration goes by this too.
    fn __getitem__(&self, place: isize) -> PyResult<Decision> {
        let length = self.allowed.len();
        let from_end =
            || place.checked_add_unsigned(length).and_then(|it| usize::try_from(it).ok());
        let place = usize::try_from(place).ok().or_else(from_end).filter(|it| *it < length);
        let place = place.ok_or_else(|| PyIndexError::new_err("there are not that many"))?;
        Ok(Decision {
            limit: self.number(0, place),
            remaining: self.number(1, place),
            reset_at: self.number(2, place),
            retry_after_ms: self.number(3, place),
            allowed: self.allowed[place] != 0,
            source: self.source,
        })
    }

    fn __repr__(&self) -> String {
        let allowed = self.allowed.iter().filter(|one| **one != 0).count();
        format!("<Decisions of {} keys, {allowed} allowed>", self.allowed.len())
    }
}

/// A view of a copy: the buffer protocol itself is not part of the stable interface of 3.10.
fn view<'py>(py: Python<'py>, bytes: &[u8], format: &str) -> PyResult<Bound<'py, PyAny>> {
    let bytes = PyBytes::new(py, bytes);
    PyMemoryView::from(bytes.as_any())?.call_method1("cast", (format,))
}

/// Everything that is decided is at most 2^53 − 1.
#[inline]
fn wire(value: u64) -> i64 {
    value.min(EXACT_MAX).cast_signed()
}
