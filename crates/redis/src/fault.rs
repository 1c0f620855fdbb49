//! What a server's error means for the ask that met it.
//!
//! # Guarantee
//! An error after which an ask may have been charged is [`StoreError::Lost`], and is never sent
//! again. What says that nothing was charged says so because the server refused before running the
//! script, or the script stopped at its first write.
//!
//! # Proven by
//! The tests below, and `tests/it/failures.rs`.

use std::error::Error;
use std::sync::Arc;

use admittance::StoreError;
use redis::{RedisError, ServerError};

/// What to do about an error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server does not know the script: send its text.
    NoScript,
    /// The slot lives elsewhere: send it there, and learn where the slots are.
    Moved { to: String },
    /// The key lives elsewhere by now: ask there, this once.
    Ask { to: String },
    /// The server does not serve now, perhaps because it is not the primary any more.
    Elsewhere,
    /// The server does not serve now.
    Busy,
    /// It stays so until somebody changes something.
    Refused { detail: String },
}

impl Fault {
    pub(crate) fn of(error: &ServerError) -> Self {
        let detail = error.details().unwrap_or_default();
        match error.code() {
            "NOSCRIPT" => Self::NoScript,
            "MOVED" => target(detail).map_or(Self::Elsewhere, |to| Self::Moved { to }),
            "ASK" => target(detail).map_or(Self::Elsewhere, |to| Self::Ask { to }),
            "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" => Self::Elsewhere,
            "LOADING" | "TRYAGAIN" | "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" => Self::Busy,
            // Before version 7 an error of a script's command is wrapped in one of the script.
            "ERR" if detail.contains("-READONLY ") => Self::Elsewhere,
            "ERR" if ["-OOM ", "-MISCONF ", "-NOREPLICAS "].iter().any(|c| detail.contains(c)) => {
                Self::Busy
            }
            code => Self::Refused { detail: format!("{code} {detail}") },
        }
    }

    pub(crate) fn error(&self) -> StoreError {
        match self {
            Self::Refused { detail } => StoreError::Refused { detail: detail.as_str().into() },
            _ => StoreError::Unavailable,
        }
    }
}

/// The address in the detail of a redirection, which is a slot and an address.
fn target(detail: &str) -> Option<String> {
    detail.split_ascii_whitespace().nth(1).map(str::to_owned)
}

/// Why no connection could be made: what an operator must change, or the server is not there.
pub(crate) fn unconnected(error: &RedisError) -> StoreError {
    use std::io::ErrorKind as Io;
    let code = error.code().unwrap_or_default();
    // That is over as soon as one of them leaves.
    if error.detail().is_some_and(|detail| detail.contains("max number of clients")) {
        return StoreError::Unavailable;
    }
    let is_refusal = error.kind() == redis::ErrorKind::AuthenticationFailed
        || ["NOAUTH", "WRONGPASS", "NOPERM", "NOPROTO", "ERR"].contains(&code);
    // A certificate that is not trusted is bad data to the one who reads it.
    let source = error.source();
    let shared = source.and_then(|source| source.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let io = shared.and_then(|shared| shared.downcast_ref::<std::io::Error>());
    let is_tls = io.is_some_and(|io| matches!(io.kind(), Io::InvalidData | Io::InvalidInput));
    if is_refusal || is_tls {
        return StoreError::Refused { detail: error.to_string().into() };
    }
    StoreError::Unavailable
}

#[cfg(test)]
mod tests {
    use admittance::Recovery;

    use super::*;

    fn of(reply: &str) -> Fault {
        match redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()) {
            Ok(redis::Value::ServerError(error)) => Fault::of(&error),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_error_reply_says_what_to_do() {
        let to = "127.0.0.1:7001".to_owned();
        assert_eq!(of("NOSCRIPT No matching script. Please use EVAL."), Fault::NoScript);
        assert_eq!(of("MOVED 3999 127.0.0.1:7001"), Fault::Moved { to: to.clone() });
        assert_eq!(of("ASK 3999 127.0.0.1:7001"), Fault::Ask { to });
        for elsewhere in [
            "READONLY You can't write against a read only replica. script: f00, on @user_script:1.",
            "ERR Error running script (call to f_00): @user_script:1: -READONLY You can't write",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "CLUSTERDOWN The cluster is down",
        ] {
            assert_eq!(of(elsewhere), Fault::Elsewhere, "{elsewhere}");
        }
        for busy in [
            "LOADING Redis is loading the dataset in memory",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "OOM command not allowed when used memory > 'maxmemory'. script: f00",
            "ERR Error running script (call to f_00): @user_script:1: -OOM command not allowed",
            "MISCONF Redis is configured to save RDB snapshots",
            "NOREPLICAS Not enough good replicas to write.",
            "BUSY Redis is busy running a script.",
        ] {
            assert_eq!(of(busy), Fault::Busy, "{busy}");
            assert_eq!(of(busy).error().recovery(), Recovery::Retry);
        }
        for refused in [
            "NOAUTH Authentication required.",
            "NOPERM User poor has no permissions to run the 'evalsha' command",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "ERR unknown command",
        ] {
            assert_eq!(of(refused), Fault::Refused { detail: refused.to_owned() });
            assert_eq!(of(refused).error().recovery(), Recovery::Operator);
        }
    }
}
