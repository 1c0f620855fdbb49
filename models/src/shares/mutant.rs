//! What mutants do to what goes into and comes out of the machines. Without a mistake, nothing.

use std::sync::Arc;

use admittance_core::concurrency::{Beat, FleetRules, Grant, Members, Node, Record, Report};
use admittance_core::lease::lifetime;
use admittance_core::{Micros, Span};

use super::setting::{Mutant, Setting};

/// What goes into the store's step.
pub(super) fn reported(
    setting: &Setting,
    store: Option<&Arc<Members>>,
    report: &mut Report,
) -> Option<Arc<Members>> {
    let mut store = store.cloned()?;
    match setting.mutant {
        Mutant::EpochsMixed => report.epoch = store.epoch,
        Mutant::StaleTaken => {
            if let Some(record) = Arc::make_mut(&mut store).records.get_mut(&report.node) {
                record.sequence = record.sequence.min(report.sequence - 1);
            }
        }
        Mutant::SameIncarnation => {
            let is_former = |node: &&Node| node.id() == report.node.id() && **node != report.node;
            let former = store.records.keys().find(is_former).cloned();
            let store = Arc::make_mut(&mut store);
            if let Some(record) = former.and_then(|node| store.records.remove(&node)) {
                // Sequences began anew.
                let record = Record { sequence: 0, ..record };
                store.records.insert(report.node.clone(), record);
            }
        }
        _ => {}
    }
    Some(store)
}

/// What reaches a node. `made_up` are sequences so far that are not those of reports.
pub(super) fn received(
    setting: &Setting,
    beat: &Beat,
    mut grant: Grant,
    now: Micros,
    made_up: &mut u64,
) -> (Beat, Grant) {
    let mut beat = beat.clone();
    match setting.mutant {
        Mutant::AnswersAsTheyCome => {
            *made_up += 1;
            beat.report.sequence = *made_up;
        }
        Mutant::LifeFromArrival => beat.sent_at = now,
        Mutant::FenceLate => grant.lifetime = grant.lifetime.map(a_tick_more),
        _ => {}
    }
    (beat, grant)
}

/// What comes out of the store's step.
pub(super) fn answered(setting: &Setting, after: &mut Members, grant: &mut Grant) {
    match setting.mutant {
        Mutant::NoUnacked => after.records.values_mut().for_each(|record| record.unacked = 0),
        Mutant::StaleWithLifetime => grant.lifetime = Some(setting.rules.ttl),
        Mutant::NotQuiet => after.quiet_until = after.latest,
        _ => {}
    }
}

/// Starts generations anew when a node was forgotten, for a mutant.
pub(super) fn forgotten(setting: &Setting, after: &mut Members, before: Option<&Members>) {
    let is_gone = |node: &Node| !after.records.contains_key(node);
    let is_any = before.is_some_and(|before| before.records.keys().any(is_gone));
    if is_any && setting.mutant == Mutant::GenerationsReset {
        after.generation = 0;
    }
}

/// The least life that ends a tick later on a node that keeps its margins.
fn a_tick_more(life: Span) -> Span {
    let longer = (life.us()..).map(Span::from_us).find(|longer| lifetime(*longer) > lifetime(life));
    longer.unwrap_or(life)
}

/// The rules as the store has them.
pub(super) fn rules(setting: &Setting) -> FleetRules {
    let mut rules = setting.rules;
    if setting.mutant == Mutant::NoHold {
        rules.max_hold = Span::ZERO;
    }
    rules
}
