//! What the driver's errors mean to a caller: was anything charged, and who can do something.

use std::error::Error as _;

use admittance::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// What an error of a statement means. A statement is one transaction: if the server says that it
/// failed, nothing was charged.
pub(crate) fn of_statement(error: &Error) -> StoreError {
    match error.code() {
        Some(state) => of_state(state, error),
        // The connection broke, perhaps after the statement was executed.
        None if error.is_closed() || is_broken(error) => StoreError::Lost,
        None => refused(error),
    }
}

/// What an error of connecting means: nothing was sent.
pub(crate) fn of_connecting(error: &Error) -> StoreError {
    match error.code() {
        Some(state) => of_state(state, error),
        // A certificate does not become valid by waiting.
        None if is_tls(error) => refused(error),
        None if is_broken(error) || error.is_closed() => StoreError::Unavailable,
        // A missing password, a name that is none.
        None => refused(error),
    }
}

/// Whether asking once more at once may help: others were in the way, and nothing was charged.
pub(crate) fn is_worth_a_retry(error: &Error) -> bool {
    let retried = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
    error.code().is_some_and(|state| retried.contains(state))
}

/// Whether the server can only be read: it is a standby, or was demoted. Another connection may
/// reach its successor; this one does not become another server's.
pub(crate) fn is_read_only(error: &Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

fn of_state(state: &SqlState, error: &Error) -> StoreError {
    let class = state.code().get(..2).unwrap_or_default();
    match class {
        // Cannot connect, out of resources, being shut down, cancelled by a timeout of ours, in
        // the way of others.
        "08" | "53" | "57" | "40" | "55" => StoreError::Unavailable,
        // Read-only: the server was demoted, its successor is not known yet.
        "25" => StoreError::Unavailable,
        _ => refused(error),
    }
}

fn refused(error: &Error) -> StoreError {
    let said = match error.as_db_error() {
        Some(said) => format!("{} ({})", said.message(), said.code().code()),
        // The driver's own words and what caused them; neither holds a password.
        None => {
            error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
        }
    };
    let needs_migration = error.code().is_some_and(|state| {
        [
            SqlState::UNDEFINED_TABLE,
            SqlState::UNDEFINED_FUNCTION,
            SqlState::INVALID_SCHEMA_NAME,
            SqlState::INSUFFICIENT_PRIVILEGE,
        ]
        .contains(state)
    });
    let advice =
        if needs_migration { "; run `admittance migrate` as the tables' owner" } else { "" };
    StoreError::Refused { detail: format!("{said}{advice}").into() }
}

fn io_cause(error: &Error) -> Option<&std::io::Error> {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref() {
            return Some(io);
        }
        cause = inner.source();
    }
    None
}

fn is_broken(error: &Error) -> bool {
    io_cause(error).is_some() || error.to_string().contains("timed out")
}

fn is_tls(error: &Error) -> bool {
    let inner = io_cause(error).and_then(std::io::Error::get_ref);
    inner.is_some_and(|inner| inner.downcast_ref::<rustls::Error>().is_some())
}
