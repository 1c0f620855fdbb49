//! The command: what it prints, and what it exits with.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_admittance-sim")).args(arguments).output().unwrap()
}

#[test]
fn a_run_prints_its_figures_and_exits_with_success() {
    let run = sim(&["lease", "--nodes", "20", "--windows", "2", "--limit", "100", "--seed", "5"]);
    let said = String::from_utf8(run.stdout).unwrap();
    assert_eq!(run.status.code(), Some(0), "{said}");
    for figure in ["seed 5", "admitted per window", "utilisation", "round trips", "all held"] {
        assert!(said.contains(figure), "no {figure} in\n{said}");
    }
}

#[test]
fn a_fleet_that_shares_a_limit_prints_its_figures_and_many_a_table() {
    let fleet = ["concurrency", "--nodes", "10", "--limit", "50", "--seconds", "20", "--seed", "5"];
    let one = sim(&fleet);
    let said = String::from_utf8(one.stdout).unwrap();
    assert_eq!(one.status.code(), Some(0), "{said}");
    for figure in ["seed 5", "in flight", "utilisation", "reports", "all held"] {
        assert!(said.contains(figure), "no {figure} in\n{said}");
    }
    let many = sim(&[&fleet[..], &["--runs", "3"]].concat());
    let said = String::from_utf8(many.stdout).unwrap();
    assert_eq!(said.lines().count(), 5, "a heading, three runs and what they found\n{said}");
    assert!(said.contains("3 runs, 3 held"), "{said}");
    let refused = sim(&["concurrency", "--heartbeat", "3000"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn what_is_out_of_range_is_refused_with_the_range() {
    let run = sim(&["lease", "--nodes", "513"]);
    assert_eq!(run.status.code(), Some(2));
    assert!(String::from_utf8(run.stderr).unwrap().contains("from 1 to 512"));
    let run = sim(&["lease", "--drift-ppm", "1001"]);
    assert_eq!(run.status.code(), Some(2));
}

#[test]
fn a_table_has_both_presets_and_a_missed_knee_is_a_failure() {
    // Too short to find anything.
    let run = sim(&["knee", "--samples", "300", "--seed", "5"]);
    let said = String::from_utf8(run.stdout).unwrap();
    assert_eq!(run.status.code(), Some(1), "{said}");
    for figure in ["seed 5, 300 requests", "stable /knee", "seed /knee", "missed"] {
        assert!(said.contains(figure), "no {figure} in\n{said}");
    }
    let run = sim(&["knee", "--samples", "299"]);
    assert_eq!(run.status.code(), Some(2));
}

#[test]
fn budgets_are_compared_in_tables_and_every_check_holds() {
    let run = sim(&["cost", "--seed", "5", "--seconds", "70"]);
    let said = String::from_utf8(run.stdout).unwrap();
    assert_eq!(run.status.code(), Some(0), "{said}");
    for figure in ["seed 5", "80 % quantile", "foil: count afterwards", "store forgets", "held"] {
        assert!(said.contains(figure), "no {figure} in\n{said}");
    }
    let refused = sim(&["cost", "--seconds", "0"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn laws_are_compared_in_a_table_and_the_foil_does_not_count() {
    let run = sim(&["load", "--seed", "5"]);
    let said = String::from_utf8(run.stdout).unwrap();
    assert_eq!(run.status.code(), Some(0), "{said}");
    for figure in ["seed 5, law delay", "law jitter, the foil", "goodput", "never", "held"] {
        assert!(said.contains(figure), "no {figure} in\n{said}");
    }
}
