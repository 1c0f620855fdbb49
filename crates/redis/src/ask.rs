//! What is asked of the scripts, as numbers, and what they answer.

use admittance::{
    Builtin, Cadence, Decision, Micros, Outcome, Retry, Shape, Span, StoreError, Ticks, Weekday,
};
use redis::Value;

use crate::scripts::{Family, Script};

/// A strategy's parameters as its family's `parse` reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Params {
    numbers: [i64; 7],
    length: usize,
    /// How many numbers a key's state has that a script may have to go through.
    pub(crate) cells: usize,
}

impl Params {
    pub(crate) fn of(strategy: &Builtin) -> Result<(Family, Self), StoreError> {
        let family = Family::of(strategy).ok_or_else(unknown)?;
        let params = match strategy {
            Builtin::Tat(tat) => {
                let (unit, span) = (tat.unit(), tat.tolerance());
                Self::from([
                    tat.limit(),
                    unit.denominator,
                    unit.whole,
                    unit.fraction,
                    span.whole,
                    span.fraction,
                    rate(strategy.shape(), unit),
                ])
            }
            Builtin::Window(window) => {
                let [kind, first, second] = cadence(window.cadence()).ok_or_else(unknown)?;
                let limit = window.limit().cast_signed();
                Self { numbers: [limit, kind, first, second, 0, 0, 0], length: 4, cells: 1 }
            }
            Builtin::SlidingWindow(sliding) => {
                let numbers = [sliding.limit(), sliding.window().us(), sliding.buckets()];
                let cells = usize::try_from(sliding.buckets()).map_or(CELLS_MAX, |b| b + 1);
                Self { cells, ..Self::from(numbers) }
            }
            Builtin::SlidingLog(log) => Self::from([log.limit(), log.window().us()]),
            _ => return Err(unknown()),
        };
        Ok((family, params))
    }

    /// The most keys that a script may have.
    pub(crate) const fn keys_max(&self) -> usize {
        CELLS_MAX / self.cells
    }

    pub(crate) fn numbers(&self) -> &[i64] {
        &self.numbers[..self.length]
    }
}

impl<const N: usize> From<[u64; N]> for Params {
    fn from(given: [u64; N]) -> Self {
        let mut numbers = [0; 7];
        for (number, given) in numbers.iter_mut().zip(given) {
            // Every parameter is below 2^53.
            *number = given.cast_signed();
        }
        Self { numbers, length: N, cells: 1 }
    }
}

/// The units that come back in a gcra's period: what says which T a state was written under, since
/// keys are named by the period. Zero for a token bucket, whose name says the whole rate.
fn rate(shape: Shape, unit: Ticks) -> u64 {
    let Shape::Gcra { period } = shape else { return 0 };
    let (whole, denominator) = (u128::from(unit.whole), u128::from(unit.denominator));
    let parts = u128::from(period.us()) * denominator;
    let rate = parts / (whole * denominator + u128::from(unit.fraction)).max(1);
    u64::try_from(rate).unwrap_or(0)
}

/// The kind of windows, and the two numbers that its arithmetic needs.
pub(crate) fn cadence(cadence: Cadence) -> Option<[i64; 3]> {
    let offset = |minutes: i16| i64::from(minutes) * 60_000_000;
    Some(match cadence {
        Cadence::Fixed { period, anchor_us } => {
            let period = period.us().cast_signed();
            [0, period, anchor_us.rem_euclid(period)]
        }
        Cadence::Day { offset_minutes } => [1, offset(offset_minutes), 0],
        Cadence::Week { offset_minutes, starts_on } => {
            let shift = (starts_on as i64 - Weekday::Thursday as i64).rem_euclid(7);
            [2, offset(offset_minutes), shift]
        }
        Cadence::Month { offset_minutes } => [3, offset(offset_minutes), 0],
        _ => return None,
    })
}

pub(crate) fn unknown() -> StoreError {
    let detail = "this version of the Redis store does not know the strategy";
    StoreError::Refused { detail: detail.into() }
}

/// One ask of the lanes.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) what: What,
    /// The instant to decide at; only tests have one.
    pub(crate) now: Option<Micros>,
    /// How many replicas must confirm a charge.
    pub(crate) replicas: u32,
}

/// What is asked.
#[derive(Debug)]
pub(crate) enum What {
    /// One thing of each of many keys. Asks of the same thing travel in one script.
    Keys { script: Script, params: Params, items: Vec<Item> },
    /// A script of its own.
    Whole { script: Script, keys: Vec<Vec<u8>>, args: Vec<Arg> },
}

/// A key's name and what is asked to be spent on it.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) name: Vec<u8>,
    pub(crate) cost: u64,
}

/// An argument of a script.
#[derive(Clone, Debug)]
pub(crate) enum Arg {
    Number(i64),
    Bytes(Vec<u8>),
}

/// What a script answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The instant, and as many numbers per key as [`width`] says.
    Numbers { at: Micros, numbers: Vec<i64> },
    /// The instant, what became of a cell, and what it holds.
    Cell { at: Micros, code: i64, bytes: Option<Vec<u8>> },
}

impl Told {
    pub(crate) const fn at(&self) -> Micros {
        match self {
            Self::Numbers { at, .. } | Self::Cell { at, .. } => *at,
        }
    }
}

/// How many numbers a script answers per key.
pub(crate) const fn width(script: Script) -> usize {
    match script {
        Script::Lease(_) => 4,
        _ => 3,
    }
}

/// How many numbers a script answers that was called with so many keys.
const fn length(script: Script, keys: usize) -> usize {
    match script {
        // The other keys are what is remembered of leases.
        Script::GiveBack(_) => 1,
        Script::Reset if keys > 0 => 1,
        _ => keys * width(script),
    }
}

/// Whether a script's answer is about all its keys together.
pub(crate) const fn is_joint(script: Script) -> bool {
    matches!(script, Script::All | Script::Any | Script::GiveBack(_) | Script::Reset)
        || is_free(script)
}

/// Whether a script's answer is as long as it has something to say.
const fn is_free(script: Script) -> bool {
    matches!(
        script,
        Script::Beat | Script::Leave | Script::Collect | Script::Post | Script::Book | Script::Fuse
    )
}

/// A script's reply; `None` if it is not of the form that the script answers in.
pub(crate) fn told(script: Script, keys: usize, reply: Value) -> Option<Told> {
    let Value::Array(values) = reply else { return None };
    let mut values = values.into_iter();
    let Value::Int(at) = values.next()? else { return None };
    let at = Micros::from_epoch_us(u64::try_from(at).ok()?)?;
    if matches!(script, Script::Load | Script::Swap | Script::Secret) {
        let Value::Int(code) = values.next()? else { return None };
        let bytes = match values.next() {
            Some(Value::BulkString(bytes)) => Some(bytes),
            _ => None,
        };
        return Some(Told::Cell { at, code, bytes });
    }
    let number = |value| if let Value::Int(number) = value { Some(number) } else { None };
    let numbers = values.map(number).collect::<Option<Vec<i64>>>()?;
    // A group that has something unreadable in it answers just that.
    let is_group = matches!(script, Script::All | Script::Any);
    let is_whole = is_free(script) || numbers.len() == length(script, keys);
    (is_whole || (is_group && numbers == [UNREADABLE])).then_some(Told::Numbers { at, numbers })
}

/// An outcome from what a script answers as a wait.
pub(crate) fn outcome(wait: i64) -> Result<Outcome, StoreError> {
    Ok(match wait {
        UNREADABLE => return Err(StoreError::Unreadable),
        ADMIT => Outcome::Admit,
        NEVER => Outcome::Deny(Retry::Never),
        wait => Outcome::Deny(Retry::After(Span::from_us(wait.unsigned_abs()))),
    })
}

/// A decision from a script's three numbers.
pub(crate) fn decision(limit: u64, numbers: &[i64]) -> Result<Decision, StoreError> {
    let &[wait, remaining, reset_at] = numbers else { return Err(StoreError::Unreadable) };
    let outcome = outcome(wait)?;
    let (remaining, reset_at) = (remaining.unsigned_abs(), instant(reset_at));
    Ok(Decision { outcome, limit, remaining, reset_at })
}

/// An instant that results may name, which can lie past the horizon.
pub(crate) fn instant(us: i64) -> Micros {
    Micros::ZERO + Span::from_us(us.unsigned_abs())
}

/// The most cells of one ask: while a server goes through them, everybody else waits.
pub(crate) const CELLS_MAX: usize = 200_000;
/// What the scripts answer in the place of a wait.
pub(crate) const ADMIT: i64 = -1;
const NEVER: i64 = -2;
pub(crate) const UNREADABLE: i64 = -3;
