//! Accounts of budgets in the database: the suite that every executor passes, and functions that
//! are nearly right.

use crate::common;

use std::sync::Arc;

use crate::common::budgets::Postgres;
use admittance_testkit::{
    Budgets, Departure, Promise, accounts_are_apart, accounts_are_atomic,
    accounts_charge_all_or_none, accounts_equal_core,
};

async fn hold<B: Budgets>(budgets: &B) -> Result<(), Departure> {
    accounts_are_apart(budgets).await?;
    accounts_charge_all_or_none(budgets).await?;
    accounts_are_atomic(budgets).await?;
    accounts_equal_core(budgets).await
}

#[test]
fn postgres_answers_what_core_answers_in_every_field() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    let budgets = Postgres::new(&server.url(), &runtime, "admittance", common::timelines(400));
    admittance_testkit::block_on(hold(&budgets)).unwrap();
}

/// What a step says, what it says instead, and who must notice.
const MUTANTS: &[(&str, &str, Promise)] = &[
    // Debt that takes many windows takes for ever.
    ("ELSIF windows > 200000 THEN", "ELSIF windows > 2 THEN", Promise::Equals),
    // A window more or less.
    ("+ windows * spec[4], 9007199254740991)", "+ spec[4], 9007199254740991)", Promise::Equals),
    // Forgiven debt is carried.
    ("IF debt = 0 OR spec[6] = 0 THEN", "IF debt = 0 THEN", Promise::Equals),
    // What is reserved at a window's end pays debt.
    ("greatest(spec[2] - spent - reserved, 0)", "greatest(spec[2] - spent, 0)", Promise::Equals),
    // What is charged although one denied.
    (
        "is_admitted := is_admitted AND found[2] = 0;",
        "is_admitted := found[2] = 0;",
        Promise::AllOrNone,
    ),
    ("act IN (1, 2)", "act IN (1, 9)", Promise::AllOrNone),
    // A lease that reserved from an earlier window gives back to this one.
    ("FILTER (WHERE l.in_window = a.in_window AND", "FILTER (WHERE", Promise::Equals),
    // A lease lives a tick too long.
    ("l.phase = 0 AND l.until <= now_us", "l.phase = 0 AND l.until < now_us", Promise::Equals),
    // It is remembered from when somebody noticed its end.
    ("until = l.until + 600000000", "until = now_us + 600000000", Promise::Equals),
    // One that was not heard of is never forgotten, or only with the next.
    ("least(a.forget_from, a.ends_from + 600000000)", "a.forget_from", Promise::Equals),
    ("least(a.forget_from, now_us + 600000000)", "a.forget_from", Promise::Equals),
    // It is remembered a tick too long.
    ("o.phase = 1 AND o.until <= now_us", "o.phase = 1 AND o.until < now_us", Promise::Equals),
    ("o.phase = 2 AND o.until <= now_us", "o.phase = 2 AND o.until < now_us", Promise::Equals),
    // Too many are remembered, or not the last ones; what is not settled goes, or what was just
    // settled.
    ("IF a.ended > spec[7] THEN", "IF false THEN", Promise::Equals),
    ("o.phase = 2 AND o.lease <> whose", "o.phase > 0 AND o.lease <> whose", Promise::Equals),
    ("o.phase = 2 AND o.lease <> whose", "o.phase = 2", Promise::Equals),
    // However many are not settled, others are reserved for; or those that are settled count too.
    ("IF excess = 0 THEN", "IF false THEN", Promise::Equals),
    (
        "t.account = a.number AND t.phase = 1;",
        "t.account = a.number AND t.phase > 0;",
        Promise::Equals,
    ),
    ("OFFSET excess LIMIT 1", "LIMIT 1", Promise::Equals),
    ("ORDER BY o.until, o.lease LIMIT", "ORDER BY o.until DESC, o.lease LIMIT", Promise::Equals),
    ("ORDER BY o.until, o.lease LIMIT", "ORDER BY o.until, o.lease DESC LIMIT", Promise::Equals),
    // A denial looks at one lease less, or at those that outlive the window.
    ("(place = 64 AND a.open > 64)", "(place = 63 AND a.open > 64)", Promise::Equals),
    ("(place = 64 AND a.open > 64)", "place = 64", Promise::Equals),
    ("l.phase = 0 AND l.until < ends\n", "l.phase = 0\n", Promise::Equals),
    // It counts on what was reserved from an earlier window.
    (
        "CASE WHEN l.in_window = a.in_window THEN l.unspent ELSE 0 END AS back",
        "l.unspent AS back",
        Promise::Equals,
    ),
    // Nothing is said of what can never fit.
    ("RETURN ARRAY[2, 0];", "NULL;", Promise::Equals),
    // The wait ends where debt leaves too little, or is the whole debt's.
    ("(held + spec[2] - 1) / spec[2]) - now_us", "held / spec[2]) - now_us", Promise::Equals),
    ("- (spec[2] - needed), 0);", "- 0, 0);", Promise::Equals),
    // Of what was debited too much, the latest is taken for it.
    (
        "units := greatest(l.charged - units, 0);",
        "units := least(greatest(l.debited - units, 0), l.charged);",
        Promise::Equals,
    ),
    // What was charged to an earlier window comes back.
    (
        "beyond + CASE WHEN l.in_window = a.in_window THEN l.charged ELSE 0 END",
        "beyond + l.charged",
        Promise::Equals,
    ),
    ("        l.in_window := a.in_window;\n", "", Promise::Equals),
    // What is debited beyond the reservation is forgotten.
    (
        "l.debited + own + beyond, 4503599627370496",
        "l.debited + own, 4503599627370496",
        Promise::Equals,
    ),
    // A clock that steps back shortens a lease.
    ("l.until := greatest(l.until, now_us", "l.until := greatest(0, now_us", Promise::Equals),
    // An ended lease that is heard of is remembered as long as it would have lived.
    ("CASE WHEN l.phase = 0 THEN l.ttl ELSE 600000000 END", "l.ttl", Promise::Equals),
    // One window too many pays debt, or none of those that passed.
    ("WHEN index - a.in_window - 1 >=", "WHEN index - a.in_window >=", Promise::Equals),
    ("a.debt - (index - a.in_window - 1) * spec[2] END", "a.debt END", Promise::Equals),
    // A clock that steps back opens an earlier window.
    ("IF index > a.in_window THEN", "IF index <> a.in_window THEN", Promise::Equals),
    // A lease begins although nothing is left.
    ("needed := greatest(units, 1);", "needed := units;", Promise::Equals),
    // A debit that crosses the limit is denied; one of the own reservation too.
    ("needed := (beyond > 0)::int;", "needed := beyond;", Promise::Equals),
    ("needed := (beyond > 0)::int;", "needed := 1;", Promise::Equals),
    // A lease that has had its time reserves again, or may not debit any more.
    (" OR (act = 2 AND l.phase > 0)", "", Promise::Equals),
    ("(act = 1 AND l.phase = 2)", "(act = 1 AND l.phase > 0)", Promise::Equals),
    // One lease too many; who waits for a place is not told what else to wait for, or waits for
    // the first place when several are too many.
    ("a.open >= spec[1]", "a.open > spec[1]", Promise::Equals),
    ("greatest(answer[2], t.until - now_us)", "t.until - now_us", Promise::Equals),
    ("OFFSET a.open - spec[1] LIMIT 1", "LIMIT 1", Promise::Equals),
    // An old reservation is drawn from the new window's.
    (
        "IF l.in_window = a.in_window THEN\n                a.reserved",
        "IF true THEN\n                a.reserved",
        Promise::Equals,
    ),
    // A lease ends a tick late, or hides one that ends before it.
    ("now_us + ttl, 0, 0)", "now_us + ttl + 1, 0, 0)", Promise::Equals),
    ("a.ends_from := least(a.ends_from, l.until);", "a.ends_from := l.until;", Promise::Equals),
    // A second settlement is told something else.
    ("ARRAY[2, l.returned, l.owed]", "ARRAY[2, 0, l.owed]", Promise::Equals),
    // A second settlement settles.
    ("ELSIF l.phase = 2 THEN", "ELSIF false THEN", Promise::Equals),
    // More debt than is remembered.
    ("least(beyond - own, 2251799813685247 - a.debt)", "beyond - own", Promise::Equals),
    // What was produced beyond the debits is owed although it was reserved.
    ("own := least(beyond, l.unspent);", "own := 0;", Promise::Equals),
    // Debt is told and not booked.
    ("a.debt := a.debt + settled[3];", "", Promise::Equals),
    // More comes back than was charged to this window, or nothing of what was debited.
    (
        "units := greatest(l.charged - units, 0);",
        "units := greatest(l.debited - units, 0);",
        Promise::Equals,
    ),
    ("settled[2] := l.unspent - own + units;", "settled[2] := l.unspent - own;", Promise::Equals),
    // Nobody counts that a lease has ended.
    ("a.ended := a.ended + 1;", "", Promise::Equals),
];

#[test]
fn every_edited_step_is_noticed() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    let mut unnoticed = Vec::new();
    for (place, (from, to, promise)) in MUTANTS.iter().enumerate() {
        let budgets = Postgres::new(&server.url(), &runtime, &format!("mutant_{place}"), 400);
        let budgets = budgets.edited(&[(from, to)]);
        let seen = admittance_testkit::block_on(async {
            match promise {
                Promise::AllOrNone => accounts_charge_all_or_none(&budgets).await,
                _ => accounts_equal_core(&budgets).await,
            }
        });
        let Err(departure) = seen else {
            unnoticed.push((from, to));
            continue;
        };
        assert_eq!(departure.promise, *promise, "{to:?} for {from:?}");
        let unanswered = ["Refused", "Unavailable", "Timeout", "Unreadable"];
        let runs = unanswered.iter().all(|error| !departure.given.contains(error));
        assert!(runs, "an edit that does not run: {to:?}: {}", departure.given);
    }
    assert!(unnoticed.is_empty(), "nobody noticed {unnoticed:#?}");
}

#[test]
fn an_account_that_is_not_locked_is_noticed() {
    let (server, runtime) = (common::server(), Arc::new(common::runtime()));
    let handle = runtime.handle().clone();
    let _entered = handle.enter();
    // Reads, lets others go ahead, and writes.
    let edits = [
        ("WHERE t.key = wanted FOR NO KEY UPDATE;", "WHERE t.key = wanted;"),
        (
            "        UPDATE {state}_accounts t SET in_window",
            "        PERFORM pg_sleep(0.02);\n        UPDATE {state}_accounts t SET in_window",
        ),
    ];
    let budgets = Postgres::new(&server.url(), &runtime, "mutant", 1).edited(&edits);
    let seen = admittance_testkit::block_on(accounts_are_atomic(&budgets));
    assert_eq!(seen.map_err(|departure| departure.promise), Err(Promise::Atomic));
}
