//! What goes wrong, as the exceptions of `admittance.errors`.

use std::error::Error;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use tonic::{Code, Status};

/// Why a question was not answered.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    /// Who was asked, if it was somebody far away.
    pub(crate) target: Option<Box<str>>,
    /// Nobody was asked: the backend is closed.
    pub(crate) is_closed: bool,
}

impl Failure {
    pub(crate) fn closed() -> Self {
        let status = Status::failed_precondition("the backend is closed; make another");
        Self { status, target: None, is_closed: true }
    }

    /// Whether nobody answered, or only that there is no time to.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self.class(), "ServiceUnavailableError" | "OverloadedError")
    }

    /// The exception that it is.
    fn class(&self) -> &'static str {
        match self.status.code() {
            _ if self.is_closed => "BackendClosedError",
            // What the transport says by itself has a cause, whatever it calls it; the service's
            // own words have none.
            _ if self.status.source().is_some() => "ServiceUnavailableError",
            Code::NotFound if self.status.metadata().contains_key("admittance-unknown") => {
                "LeaseNotFoundError"
            }
            Code::NotFound => "PolicyNotFoundError",
            Code::Unimplemented => "OperationNotSupportedError",
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
                "InvalidRequestError"
            }
            Code::ResourceExhausted => "OverloadedError",
            Code::Unauthenticated | Code::PermissionDenied => "UnauthenticatedError",
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
                "ServiceUnavailableError"
            }
            _ => "AdmittanceError",
        }
    }
}

/// Policies that cannot be used, and why.
#[derive(Debug)]
pub(crate) struct ConfigFailure(pub(crate) String);

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self { status, target: None, is_closed: false }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        let class = failure.class();
        let Failure { status, target, .. } = failure;
        let said = match status.source() {
            // What the transport says by itself is "transport error"; its cause says which.
            Some(cause) if class == "ServiceUnavailableError" => innermost(cause),
            _ => status.message().to_owned(),
        };
        let message = match (target, is_unsent(&status)) {
            (Some(target), true) => format!(
                "{target}: no connection was made: {said}; start the service with `admittance \
                 serve`, or name another target"
            ),
            (Some(target), false) if class == "ServiceUnavailableError" => {
                format!("{target}: {said}")
            }
            _ => said,
        };
        raise(class, message)
    }
}

impl From<ConfigFailure> for PyErr {
    fn from(failure: ConfigFailure) -> Self {
        raise("ConfigError", failure.0)
    }
}

/// Whether the call cannot have reached anybody: no connection was made.
pub(crate) fn is_unsent(status: &Status) -> bool {
    has_cause::<tonic::ConnectError>(status)
}

/// Whether such an error is among the causes.
pub(crate) fn has_cause<E: Error + 'static>(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<E>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn innermost(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// An exception of `admittance.errors`.
pub(crate) fn raise(class: &'static str, message: String) -> PyErr {
    Python::attach(|py| match found(py, class) {
        Ok(class) => PyErr::from_type(class, message),
        Err(error) => error,
    })
}

fn found<'py>(py: Python<'py>, class: &str) -> PyResult<Bound<'py, PyType>> {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let errors = ERRORS.get_or_try_init(py, || py.import("admittance.errors").map(Bound::unbind));
    Ok(errors?.bind(py).getattr(class)?.cast_into::<PyType>()?)
}
