//! Reservation policies side by side, with two that are here to be compared with.

use std::fmt;

use admittance_core::Span;
use admittance_core::budget::Debt;

use super::report::Report;
use super::setup::{Estimate, Faults, Serving, Setup};
use super::steps::Shipped;
use super::world::run;
use crate::setup::InvalidSetup;

/// One policy's run.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it does.
    pub name: &'static str,
    /// Whether a bound is claimed.
    pub is_bounded: bool,
    /// What was found.
    pub report: Report,
}

/// What the columns of a row are.
pub const HEADING: &str = "policy                      debit  used %  idle %  refused  stopped     \
                           over   over %  debited      owed  checks";

impl Row {
    /// Whether every check held; of what only counts afterwards, nothing is claimed but that the
    /// account is right.
    #[must_use]
    pub const fn held(&self) -> bool {
        self.report.held()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (it, setup) = (&self.report.figures, &self.report.setup);
        let parts = |parts: u64| format!("{}.{:02}", parts / 100, parts % 100);
        let checks = match &self.report.violation {
            Some(violation) => violation.to_string(),
            None if self.is_bounded => "held".to_owned(),
            None => "held; no bound is claimed".to_owned(),
        };
        let debit = match setup.serving {
            Serving::Debited => setup.chunk.to_string(),
            Serving::Afterwards => "-".to_owned(),
        };
        write!(
            f,
            "{:27} {:>5} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}  {checks}",
            self.name,
            debit,
            parts(self.report.utilisation()),
            parts(self.report.stranded()),
            it.refused,
            it.stopped,
            it.overshoot,
            it.overshoot_percent,
            it.overshoot_served,
            it.owed,
        )
    }
}

/// The tables: a heading and rows for each.
///
/// # Errors
/// A setup is out of range.
pub fn tables(seed: u64, seconds: u64) -> Result<Vec<(&'static str, Vec<Row>)>, InvalidSetup> {
    let calm = Setup { seconds, ..Setup::calm(seed) };
    let hostile = Setup { faults: Faults::MANY, ..calm.clone() };
    let forgets = Faults { losses: 5, ..Faults::MANY };
    let forgetful = Setup { faults: forgets, ..calm.clone() };
    let mut lost = vec![row("80 % quantile", true, &forgetful)?];
    lost.push(row("nothing", true, &Setup { estimate: Estimate::Nothing, ..forgetful })?);
    Ok(vec![
        ("nothing goes wrong", rows(&calm)?),
        ("clients die, messages are lost and doubled, instances crash, the store restarts", {
            rows(&hostile)?
        }),
        ("the same, and the store forgets everything five times: used once more", lost),
    ])
}

fn rows(setup: &Setup) -> Result<Vec<Row>, InvalidSetup> {
    let with = |estimate| Setup { estimate, ..setup.clone() };
    let token = Setup { chunk: 1, pace: Span::from_ms(20), ..with(Estimate::Quantile(80)) };
    let foil = |serving, debt, estimate| Setup { serving, debt, ..with(estimate) };
    Ok(vec![
        row("80 % quantile", true, &token)?,
        row("80 % quantile", true, &with(Estimate::Quantile(80)))?,
        row("50 % quantile", true, &with(Estimate::Quantile(50)))?,
        row("nothing", true, &with(Estimate::Nothing))?,
        row("always 256", true, &with(Estimate::Fixed(256)))?,
        row("adversarial", true, &with(Estimate::Adversarial))?,
        row("foil: reserve max_tokens", true, &with(Estimate::Most))?,
        row("foil: count afterwards", false, &{
            foil(Serving::Afterwards, Debt::Forgive, Estimate::Nothing)
        })?,
    ])
}

fn row(name: &'static str, is_bounded: bool, setup: &Setup) -> Result<Row, InvalidSetup> {
    Ok(Row { name, is_bounded, report: run(setup, Shipped)? })
}
