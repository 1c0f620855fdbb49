//! Accounts of budgets on real servers: equal to the pure step, with scripts that are nearly right
//! and must be noticed, and racing callers of two instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{InOneSlot, Seam, runtime, shared};
use admittance::budget::{Accounts, Act, Budget, Charge, Entry, LeaseKey};
use admittance::{Cadence, Micros, Span};
use admittance_redis::{RedisStore, script_texts};
use admittance_testkit::{
    Budgets, Departure, accounts_are_apart, accounts_are_atomic, accounts_charge_all_or_none,
    accounts_equal_core,
};
use tokio::task::JoinSet;

fn hold<B: Budgets>(budgets: &B) {
    let held: Result<(), Departure> = runtime().block_on(async {
        accounts_are_atomic(budgets).await?;
        accounts_charge_all_or_none(budgets).await?;
        accounts_are_apart(budgets).await?;
        accounts_equal_core(budgets).await
    });
    held.unwrap();
}

#[test]
fn redis_books_as_core_does() {
    hold(&Seam::new(&shared::redis()));
}

#[test]
fn valkey_books_as_core_does() {
    let mut seam = Seam::new(&shared::valkey());
    seam.0.timelines = 300;
    hold(&seam);
}

#[test]
fn a_cluster_books_as_core_does() {
    hold(&InOneSlot::new(&shared::cluster()));
}

/// What a script has in it, and what it is to have instead.
const NEARLY: &[(&str, &str)] = &[
    // What is left: debt, or what is reserved, is not subtracted; a debit must fit as a
    // reservation must, or a reservation need not.
    (
        "local left = a.limit - (a.debt + a.spent + a.reserved)",
        "local left = a.limit - (a.spent + a.reserved)",
    ),
    (
        "local left = a.limit - (a.debt + a.spent + a.reserved)",
        "local left = a.limit - (a.debt + a.spent)",
    ),
    (
        "a.units <= own and ADMIT or if_left(a, 1)",
        "a.units <= own and ADMIT or if_left(a, a.units - own)",
    ),
    ("if_left(a, a.units > 1 and a.units or 1)", "if_left(a, 1)"),
    ("if_left(a, a.units > 1 and a.units or 1)", "if_left(a, a.units)"),
    ("if need > a.limit then return NEVER end", ""),
    // The ordinary case taken for one that it is not.
    ("if debt == 0 and spent + reserved < limit", "if spent + reserved < limit"),
    ("if debt == 0 and spent + reserved < limit", "if debt == 0 and spent < limit"),
    ("if debt == 0 and spent + reserved < limit", "if debt == 0 and spent + reserved <= limit"),
    ("and now < due and index == index_of(p)", "and index == index_of(p)"),
    ("and now < due and index == index_of(p)", "and now < due and index <= index_of(p)"),
    // Waits: of the windows' end only, of a lease that ends with the window, of another window's,
    // that look too far or not far enough, and that leave out who pays the debt.
    ("  if a.open > 0 then\n    local first", "  if false then\n    local first"),
    ("if ends >= a.finish then break end", ""),
    ("      if l and l.window == a.index then\n        left", "      if l then\n        left"),
    ("debt_after(a, reserved), a.limit - need", "debt_after(a, a.reserved), a.limit - need"),
    ("debt_after(a, reserved), a.limit - need", "debt_after(a, reserved), a.limit"),
    // The end of leases: a tick early, a tick late, twice given back, never, to another window;
    // in the order of their digits.
    ("  if now >= a.due and", "  if now > a.due and"),
    ("'-inf', now_text, 'WITHSCORES')", "'-inf', instant(now - 1), 'WITHSCORES')"),
    (
        "if l.window == a.index and ended < finish then a.reserved",
        "if l.window == a.index then a.reserved",
    ),
    (
        "if l.window == a.index and ended < finish then a.reserved",
        "if ended < finish then a.reserved",
    ),
    ("l.phase, l.unspent = EXPIRED, 0\n", "l.phase = EXPIRED\n"),
    ("l.phase, l.unspent = EXPIRED, 0\n", "l.phase, l.unspent, l.charged = EXPIRED, 0, 0\n"),
    ("EXPIRED_FROM + ended + ENDED_KEPT", "EXPIRED_FROM + now + ENDED_KEPT"),
    // One that nobody settled is forgotten early, or a tick late; settled ones by their place.
    ("instant(EXPIRED_FROM + ended + ENDED_KEPT), one", "instant(ended + ENDED_KEPT), one"),
    ("instant(EXPIRED_FROM + now))", "instant(EXPIRED_FROM + now - 1))"),
    ("  if a.ended <= a.ended_max then return end\n", "  if true then return end\n"),
    ("min(a.ended - a.ended_max, FORGOTTEN)", "min(a.ended - a.ended_max + 1, FORGOTTEN)"),
    ("'-inf', BEFORE_EXPIRED, 'LIMIT'", "'-inf', '+inf', 'LIMIT'"),
    ("if one ~= lease and #gone < count then", "if #gone < count then"),
    ("    call('HDEL', a.key, spread(gone))\n", ""),
    ("    a.ended = a.ended - #gone\n", ""),
    ("  forget(a, settled, count)\n", "  forget(a, 0, count)\n"),
    ("a.lease.phase == EXPIRED and EXPIRED_FROM + at or at", "at"),
    ("  call('HDEL', a.key, spread(call('ZRANGE', a.ends, from, from + count - 1)))\n", ""),
    ("min(score_at(a.opens, 0), score_at(a.ends, 0),", "min(score_at(a.ends, 0),"),
    ("first and tonumber(first) - EXPIRED_FROM or EXACT)", "EXACT)"),
    ("if lease ~= '' then a.lease = known(call('HGET', a.key, lease)) end", ""),
    ("if at < a.due then a.due = at end", ""),
    // Hearing: not at all, back in time, without the time that it was given.
    ("list(a, a.opens, now + a.lease.ttl, 'GT')", "list(a, a.opens, now + a.lease.ttl, 'CH')"),
    ("list(a, a.opens, now + a.lease.ttl, 'GT')", ""),
    ("list(a, a.ends, now + ENDED_KEPT, 'GT')", ""),
    ("  if a.lease then return hear(a) end\n", "  if a.lease then return end\n"),
    ("  if a.lease then return hear(a) end\n", ""),
    // Windows: debt that the unused ones do not pay, that is paid twice, forgiven or never.
    ("after > unused and after - unused or 0", "after"),
    ("(index - a.index - 1) * a.limit", "(index - a.index) * a.limit"),
    ("if not a.is_carried then return 0 end", ""),
    ("if spare < 0 then spare = 0 end", ""),
    ("local spare = a.limit - (a.spent + reserved)", "local spare = a.limit - a.spent"),
    ("if index > a.index then\n", "if index ~= a.index then\n"),
    ("elseif windows <= CIVIL_WINDOWS_MAX then", "elseif windows <= 1 then"),
    (
        "a.reset = end_after(a, ceil(debt / a.limit))",
        "a.reset = end_after(a, floor(debt / a.limit))",
    ),
    // Reservations: one more than may be open, of a lease that has ended, for no wait.
    ("if a.open >= a.open_max then", "if a.open > a.open_max then"),
    ("score_at(a.opens, a.open - a.open_max)", "score_at(a.opens, 0)"),
    ("  if wait == NEVER then return wait end\n", ""),
    ("wait = max(wait, wait_until(score_at", "wait = max(0, wait_until(score_at"),
    ("local most = a.open_max + a.ended_max", "local most = a.open_max + a.ended_max + 1"),
    ("if a.open + a.ended >= most then", "if false then"),
    ("local place = a.open + expired - most", "local place = a.open + a.ended - most"),
    ("return ends[place + 1]", "return ends[1]"),
    ("add(a.opens, '-inf', ENDED_KEPT)", "add(a.opens, '-inf', 0)"),
    ("wait = max(wait, wait_until(forgotten_at", "wait = max(0, wait_until(forgotten_at"),
    ("return a.lease.phase == OPEN and ADMIT or NEVER end", "return ADMIT end"),
    // Debits: not from the own reservation, from another window's, after the settlement, of a
    // part only, and whatever others say.
    ("    own = a.lease.unspent\n", ""),
    (
        "if a.lease.phase == SETTLED then return NEVER end",
        "if a.lease.phase == SETTLED then return 0 end",
    ),
    (
        "if l.window == a.index then a.reserved, a.spent = a.reserved - own, a.spent + own end",
        "a.reserved, a.spent = a.reserved - own, a.spent + own",
    ),
    (
        "l.charged = (l.window == a.index and l.charged or 0) + beyond",
        "l.charged = l.charged + beyond",
    ),
    ("    l.window = a.index\n", ""),
    ("elseif is_admitted and act == DEBIT then", "elseif waits[i] == ADMIT and act == DEBIT then"),
    (
        "elseif is_admitted and act == RESERVE then",
        "elseif waits[i] == ADMIT and act == RESERVE then",
    ),
    // Settlements: twice, to another window, of what was not charged there, without debt or with
    // more than is remembered, of what nobody knows.
    ("SETTLED_BEFORE, l.returned, l.owed", "SETTLED_NOW, l.returned, l.owed"),
    ("SETTLED_BEFORE, l.returned, l.owed", "SETTLED_BEFORE, 0, 0"),
    ("  if l.window == a.index then\n    -- Those", "  if true then\n    -- Those"),
    ("local back = l.charged > actual and l.charged - actual or 0", "local back = 0"),
    (
        "local back = l.charged > actual and l.charged - actual or 0",
        "local back = l.debited > actual and l.debited - actual or 0",
    ),
    (
        "local back = l.charged > actual and l.charged - actual or 0",
        "local over = l.debited > actual and l.debited - actual or 0 \
         local back = over < l.charged and over or l.charged",
    ),
    ("local own = more < l.unspent and more or l.unspent", "local own = l.unspent"),
    ("  a.owed = more - own\n", "  a.owed = more\n"),
    ("if a.owed > DEBT_MAX - a.debt then a.owed = DEBT_MAX - a.debt end", ""),
    ("local actual = act == ABANDON and l.debited or a.units", "local actual = a.units"),
    ("    call('ZREM', a.opens, lease)\n", ""),
    ("a.open, a.ended = a.open - 1, a.ended + 1", "a.open = a.open - 1"),
    ("list(a, a.ends, now + ENDED_KEPT, 'CH')", "list(a, a.ends, now + ENDED_KEPT, 'GT')"),
    // What a denial or a look brought an account to is not written.
    ("  write(a)\n", "  if is_admitted then write(a) end\n"),
    ("  write(a)\n", "  if act ~= LOOK then write(a) end\n"),
];

#[test]
fn a_script_that_is_nearly_right_is_caught() {
    // One harness for all: each store has a prefix of its own, and meets nothing of another's.
    let mut seam = Seam::new(&shared::redis());
    let mut unnoticed = Vec::new();
    for &edit in NEARLY {
        let texts = script_texts();
        assert!(texts.iter().any(|(_, text, _)| text.contains(edit.0)), "{:?}", edit.0);
        seam.0.edits = vec![edit];
        match seam.0.run(accounts_equal_core(&seam)) {
            Ok(()) => unnoticed.push((edit, "it was not noticed".to_owned())),
            Err(departure) if departure.given.contains("Refused") => {
                unnoticed.push((edit, format!("it does not run: {departure}")));
            }
            Err(departure) => println!("{edit:?}: {departure}"),
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:#?}");
}

const START: Micros = Micros::saturating_from_epoch_us(1_700_000_000_123_457);
const STREAMS: u64 = 64;
const LIMIT: u64 = 1_000;

/// What streams of two instances served in one window, and the largest debit.
async fn served(url: &str, prefix: &str, grain: u64, estimate: Option<u64>) -> u64 {
    let stores = [0, 1].map(|_| {
        let builder = RedisStore::builder(url).prefix(prefix).manual_clock(START);
        builder.build().unwrap()
    });
    let served = Arc::new(AtomicU64::new(0));
    let mut streams = JoinSet::new();
    for stream in 0..STREAMS {
        let store = stores[usize::from(stream % 2 == 0)].clone();
        let served = Arc::clone(&served);
        streams.spawn(async move {
            let day = Budget::new(LIMIT, Cadence::Day { offset_minutes: 0 }).unwrap();
            let month = Budget::new(2 * LIMIT, Cadence::Month { offset_minutes: 0 }).unwrap();
            let lease = LeaseKey(stream.into());
            let book = async |units, act| {
                let charge = |budget| Charge { policy: "tokens", budget, key: b"ann", units };
                let charges = [charge(&day), charge(&month)];
                let booked = store.book(Entry { charges: &charges, act }).await.unwrap();
                booked.together.decision.is_admit()
            };
            let mut leased = None;
            if let Some(units) = estimate {
                let reserve = Act::Reserve { lease, ttl: Span::from_secs(60) };
                leased = book(units, reserve).await.then_some(lease);
            }
            let mut own = 0;
            while book(grain, Act::Debit(leased)).await {
                own += grain;
            }
            served.fetch_add(own, Ordering::SeqCst);
            if let Some(lease) = leased {
                assert!(book(own, Act::Settle(lease)).await);
            }
        });
    }
    streams.join_all().await;
    served.load(Ordering::SeqCst)
}

fn race(url: &str) {
    runtime().block_on(async {
        for (place, estimate) in [None, Some(0), Some(10), Some(100)].into_iter().enumerate() {
            let exact = served(url, &format!("one{place}"), 1, estimate).await;
            assert_eq!(exact, LIMIT, "token by token, {estimate:?} reserved");
            let coarse = served(url, &format!("some{place}"), 7, estimate).await;
            // What is left of a reservation may be less than seven, and nobody else's.
            let right = LIMIT - 6 * STREAMS..=LIMIT + 6;
            assert!(right.contains(&coarse), "{coarse} by sevens, {estimate:?} reserved");
        }
    });
}

#[test]
fn streams_of_two_instances_serve_exactly_the_limit_on_redis() {
    race(&shared::redis());
}

#[test]
fn streams_of_two_instances_serve_exactly_the_limit_on_valkey() {
    race(&shared::valkey());
}

#[test]
fn streams_of_two_instances_serve_exactly_the_limit_on_a_cluster() {
    race(&shared::cluster());
}
