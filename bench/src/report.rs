//! Medians, spreads and ratios, as a table and as JSON.

use std::fmt::Write as _;

use crate::bound;
use crate::memory::Footprint;

/// The measurements of one contender in one scenario, a number per round.
pub(crate) struct Row {
    pub(crate) contender: &'static str,
    pub(crate) nanos: Vec<f64>,
}

/// One scenario's rows; round n of each was run next to round n of the others.
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) rows: Vec<Row>,
}

/// The middle one, and the quartiles around it.
#[derive(Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

pub(crate) fn spread(values: &[f64]) -> Spread {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |quarter: usize| sorted[(sorted.len() - 1) * quarter / 4];
    Spread { median: at(2), low: at(1), high: at(3) }
}

impl Scenario {
    pub(crate) fn row(&self, contender: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.contender == contender)
    }

    /// Ours over theirs, round by round.
    pub(crate) fn ratio(&self, ours: &str, theirs: &str) -> Option<Spread> {
        let (ours, theirs) = (self.row(ours)?, self.row(theirs)?);
        Some(paired(&ours.nanos, &theirs.nanos))
    }
}

pub(crate) fn paired(ours: &[f64], theirs: &[f64]) -> Spread {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
    spread(&ratios)
}

/// A table of medians with quartiles, nanoseconds per check and thread.
pub(crate) fn print(scenario: &Scenario) {
    println!("\n{}", scenario.name);
    let [contender, nanos, quartiles] = ["contender", "ns/check", "quartiles"];
    println!("  {contender:24} {nanos:>9}  {quartiles:>19}  {:>8}  bound", "ours/it");
    for row in &scenario.rows {
        let Spread { median, low, high } = spread(&row.nanos);
        let ratio = scenario.ratio("admittance", row.contender).map_or(f64::NAN, |r| r.median);
        let quartiles = format!("{low:.1} – {high:.1}");
        let (contender, bound) = (row.contender, bound::verdict(row.contender));
        println!("  {contender:24} {median:>9.1}  {quartiles:>19}  {ratio:>8.2}  {bound}");
    }
}

/// A claim about a ratio, and what was measured.
pub(crate) struct Target {
    pub(crate) claim: &'static str,
    pub(crate) at_most: f64,
    pub(crate) measured: Spread,
}

pub(crate) fn print_targets(targets: &[Target]) {
    println!("\nTargets, as medians of paired ratios (quartiles)");
    for target in targets {
        let Spread { median, low, high } = target.measured;
        let verdict = if median <= target.at_most { "reached" } else { "MISSED" };
        let claim = target.claim;
        println!(
            "  {verdict:8} {median:.2} ({low:.2} – {high:.2}) of {:.2}  {claim}",
            target.at_most
        );
    }
}

pub(crate) fn json(scenarios: &[Scenario], memory: &Footprint, targets: &[Target]) -> String {
    let mut text = String::from("{\n  \"scenarios\": [\n");
    for (place, scenario) in scenarios.iter().enumerate() {
        let rows: Vec<String> = scenario.rows.iter().map(json_row).collect();
        let comma = if place + 1 < scenarios.len() { "," } else { "" };
        let (name, rows) = (&scenario.name, rows.join(", "));
        let _ = writeln!(text, "    {{\"name\": \"{name}\", \"rows\": [{rows}]}}{comma}");
    }
    text.push_str("  ],\n  \"bytes\": [\n");
    for (place, (contender, keys, bytes)) in memory.rows.iter().enumerate() {
        let comma = if place + 1 < memory.rows.len() { "," } else { "" };
        let _ = writeln!(
            text,
            "    {{\"contender\": \"{contender}\", \"keys\": {keys}, \"bytes\": {bytes}}}{comma}"
        );
    }
    text.push_str("  ],\n  \"targets\": [\n");
    for (place, target) in targets.iter().enumerate() {
        let comma = if place + 1 < targets.len() { "," } else { "" };
        let (claim, at_most) = (target.claim, target.at_most);
        let Spread { median, low, high } = target.measured;
        let _ = writeln!(
            text,
            "    {{\"claim\": \"{claim}\", \"at_most\": {at_most}, \"median\": {median:.4}, \
             \"low\": {low:.4}, \"high\": {high:.4}}}{comma}"
        );
    }
    text.push_str("  ]\n}\n");
    text
}

fn json_row(row: &Row) -> String {
    let nanos: Vec<String> = row.nanos.iter().map(|n| format!("{n:.2}")).collect();
    let (contender, nanos) = (row.contender, nanos.join(", "));
    let bound = bound::verdict(contender);
    format!("{{\"contender\": \"{contender}\", \"bound\": \"{bound}\", \"ns\": [{nanos}]}}")
}
