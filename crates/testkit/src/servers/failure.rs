//! Why a server could not do what a test asked of it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a server could not do what a test asked of it. Its `Debug` form is the message, so that
/// `unwrap` and a test that returns it show the log of the server as it was written.
#[non_exhaustive]
pub enum Failure {
    /// A program is not installed.
    Missing {
        /// The program.
        program: &'static str,
        /// What to run to have it.
        remedy: &'static str,
    },
    /// The operating system refused.
    Io {
        /// What was tried.
        doing: &'static str,
        /// What it said.
        error: io::Error,
    },
    /// A server ended before it was ready.
    Ended {
        /// The server.
        program: PathBuf,
        /// The end of its log.
        log: String,
    },
    /// A server runs and is not ready in time.
    NotReady {
        /// The server.
        program: PathBuf,
        /// The end of its log.
        log: String,
    },
    /// The server does not run: it was killed and not started again.
    NotRunning,
    /// A program that was run to its end failed.
    Program {
        /// The program.
        program: PathBuf,
        /// What it wrote.
        output: String,
    },
    /// The server answered with an error.
    Refused {
        /// The answer.
        answer: String,
    },
    /// The server answered with something else than was asked for.
    Unexpected {
        /// The answer.
        answer: String,
    },
    /// Something did not become true in time.
    Late {
        /// What should have become true.
        what: &'static str,
    },
}

impl Failure {
    /// For `map_err`: what was being done when the operating system refused.
    pub(super) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { doing, error }
    }

    /// Whether a server ended because another program has its port.
    pub(super) fn port_was_taken(&self) -> bool {
        matches!(self, Self::Ended { log, .. } if log.contains("already in use"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { program, remedy } => write!(f, "{program} is missing: {remedy}"),
            Self::Io { doing, error } => write!(f, "{doing}: {error}"),
            Self::Ended { program, log } => {
                write!(f, "{} ended before it was ready; its log:\n{log}", program.display())
            }
            Self::NotReady { program, log } => {
                write!(f, "{} is not ready in time; its log:\n{log}", program.display())
            }
            Self::NotRunning => write!(f, "the server does not run"),
            Self::Program { program, output } => {
                write!(f, "{} failed:\n{output}", program.display())
            }
            Self::Refused { answer } => write!(f, "the server refused: {answer}"),
            Self::Unexpected { answer } => write!(f, "an answer of another kind: {answer}"),
            Self::Late { what } => write!(f, "not in time: {what}"),
        }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Asks again and again until there is an answer. Servers of others tell nobody when they are
/// ready, so this is the one place that sleeps.
pub(super) fn wait_for<T>(
    what: &'static str,
    mut probe: impl FnMut() -> Option<T>,
) -> Result<T, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = probe() {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            return Err(Failure::Late { what });
        }
        std::thread::sleep(PAUSE);
    }
}

/// The end of a log, for a message.
pub(super) fn tail(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// How long several servers may take to agree; only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
pub(super) const PAUSE: Duration = Duration::from_millis(10);
const TAIL_LINES: usize = 30;
