//! What accounts of budgets leave in the server, for how long, and what becomes of them when a
//! server restarts, forgets, moves slots or does not answer.

use std::time::{Duration, Instant};

use crate::support::{fresh, runtime, shared};
use admittance::budget::{
    Account, Accounts, Act, Answered, Booked, Budget, Charge, Entry, LeaseKey, Settlement,
};
use admittance::store::lanes::Size;
use admittance::{Cadence, Micros, Span, StoreError};
use admittance_redis::{PolicyOptions, RedisStore, script_texts};
use admittance_testkit::servers::{Proxy, RedisServer, Reply};

const START: Micros = Micros::saturating_from_epoch_us(1_700_000_000_123_457);
const LEASE: LeaseKey = LeaseKey(7);

fn every(limit: u64, secs: u64) -> Budget {
    Budget::new(limit, Cadence::every(Span::from_secs(secs))).unwrap()
}

/// A window that does not end while anybody looks.
fn long() -> Budget {
    Budget::new(1_000, Cadence::every(Span::from_us(1 << 51))).unwrap()
}

fn reserve(lease: LeaseKey, secs: u64) -> Act {
    Act::Reserve { lease, ttl: Span::from_secs(secs) }
}

async fn try_book(
    store: &RedisStore,
    budget: &Budget,
    key: &str,
    units: u64,
    act: Act,
) -> Result<Booked, StoreError> {
    let charges = [Charge { policy: "tokens", budget, key: key.as_bytes(), units }];
    store.book(Entry { charges: &charges, act }).await
}

async fn book(store: &RedisStore, budget: &Budget, key: &str, units: u64, act: Act) -> Answered {
    try_book(store, budget, key, units, act).await.unwrap().together.each[0]
}

/// The same by core.
fn step(account: &mut Account, budget: &Budget, units: u64, act: Act, now: Micros) -> Answered {
    use admittance::budget::Reserve;
    match act {
        Act::Look => account.look(budget, now),
        Act::Debit(lease) => account.debit(budget, lease, units, now),
        Act::Reserve { lease, ttl } => account.reserve(budget, Reserve { lease, units, ttl }, now),
        Act::Settle(lease) => account.settle(budget, lease, Some(units), now),
        Act::Abandon(lease) => account.settle(budget, lease, None, now),
        other => panic!("{other:?}"),
    }
}

fn names(store: &RedisStore, budget: &Budget, key: &str) -> [String; 3] {
    let names = store.stored_account("tokens", budget, key.as_bytes());
    names.map(|name| String::from_utf8(name).unwrap())
}

fn integer(server: &RedisServer, command: &[&str]) -> i64 {
    match server.command(command).unwrap() {
        Reply::Integer(number) => number,
        other => panic!("{other:?}"),
    }
}

/// A key, its budget, and what is done to it.
type Case = (&'static str, Budget, Vec<(u64, Act)>);

/// Everything that is done to accounts by the real clock.
fn cases() -> Vec<Case> {
    let month = Budget::new(100, Cadence::Month { offset_minutes: -30 }).unwrap();
    let (hour, day) = (every(100, 3_600), every(100, 86_400));
    vec![
        ("debit", day, vec![(1, Act::Debit(None)), (1, Act::Debit(None)), (200, Act::Debit(None))]),
        ("month", month, vec![(1, Act::Debit(None)), (0, Act::Look)]),
        ("empty", hour, vec![(0, reserve(LEASE, 7_200)), (0, Act::Abandon(LEASE))]),
        ("leased", hour, vec![(5, reserve(LEASE, 3_600)), (9, Act::Debit(Some(LEASE)))]),
        ("short", hour, vec![(5, reserve(LEASE, 30)), (5, reserve(LeaseKey(8), 3_000))]),
        ("settled", hour, vec![(5, reserve(LEASE, 60)), (3, Act::Settle(LEASE))]),
        // Debt of more than two days, which a look alone does not shorten.
        ("debt", day, vec![(5, reserve(LEASE, 60)), (333, Act::Settle(LEASE)), (0, Act::Look)]),
        // Nothing was used that is not given back.
        ("back", hour, vec![(5, reserve(LEASE, 60)), (0, Act::Settle(LEASE)), (0, Act::Look)]),
        // By a lease at first, and then by what was spent.
        ("later", long(), vec![(0, reserve(LEASE, 1)), (1, Act::Debit(None))]),
        (
            "again",
            hour,
            vec![(0, reserve(LEASE, 1)), (0, Act::Settle(LEASE)), (0, reserve(LeaseKey(9), 1))],
        ),
    ]
}

/// Whether a key goes before its account is the same as none, or never, in any of the cases.
fn departs(server: &RedisServer, edit: Option<(&str, &str)>) -> Option<String> {
    let builder = fresh(&server.url());
    let builder = edit.into_iter().fold(builder, |b, (from, to)| b.edit_scripts(from, to));
    runtime().block_on(async {
        let store = builder.build().unwrap();
        for (key, budget, steps) in &cases() {
            let (mut account, mut latest) = (Account::default(), 0);
            for &(units, act) in steps {
                let booked = try_book(&store, budget, key, units, act).await.unwrap();
                let _ = step(&mut account, budget, units, act, booked.at);
                let idle_at = account.idle_at(budget).epoch_us();
                latest = idle_at.max(latest);
                for name in names(&store, budget, key) {
                    let expires_us = match integer(server, &["PEXPIRETIME", &name]) {
                        -2 => continue,
                        -1 => return Some(format!("{name} stays for good after {act:?}")),
                        at => u64::try_from(at).unwrap() * 1_000,
                    };
                    if expires_us < idle_at + KEPT_US {
                        return Some(format!("{name} goes early after {act:?}"));
                    }
                    // Nor does it stay much longer than it once had to.
                    let most = latest + KEPT_US + SLACK_US + 1_000;
                    assert!(expires_us < most, "{name} after {act:?}");
                }
            }
        }
        // A look at nothing leaves nothing.
        let before = integer(server, &["DBSIZE"]);
        let answered = book(&store, &every(100, 3_600), "nobody", 0, Act::Look).await;
        assert_eq!(answered.decision.remaining, 100);
        let settled = book(&store, &every(100, 3_600), "nobody", 5, Act::Settle(LEASE)).await;
        assert_eq!(settled.settlement, Settlement::Unknown);
        assert_eq!(integer(server, &["DBSIZE"]), before);
        None
    })
}

const KEPT_US: u64 = 1_000_000;
const SLACK_US: u64 = 60_000_000;

#[test]
fn no_key_of_an_account_goes_before_it_is_the_same_as_none_or_stays_for_good() {
    let server = RedisServer::start().unwrap();
    assert_eq!(departs(&server, None), None);
}

#[test]
fn a_key_that_goes_early_or_never_is_caught() {
    let edits = [
        ("ceil(a.kept / 1000) + KEPT", "floor(a.kept / 1000) + KEPT - 1"),
        ("local idle = used > 0 and a.reset or 0", "local idle = used > 0 and a.finish or 0"),
        ("local idle = used > 0 and a.reset or 0", "local idle = 0"),
        ("if is_by_lease then idle = a.last end", ""),
        ("if key == a.opens then at = at + ENDED_KEPT end", ""),
        ("if at > a.last then a.last = at end", ""),
        (
            "local is_longer = is_real and idle > a.kept",
            "local is_longer = is_real and not a.is_there",
        ),
        ("if is_longer then expire(a, a.key) end", ""),
        ("if kept >= finish or not is_real then", "if true then"),
        (
            "if a.open > 0 and (is_longer or a.open_before == 0) then",
            "if a.open > 0 and is_longer then",
        ),
        ("if a.open > 0 and (is_longer or a.open_before == 0) then", "if a.open_before == 0 then"),
        (
            "if a.ended > 0 and (is_longer or a.ended_before == 0) then",
            "if a.ended > 0 and is_longer then",
        ),
    ];
    let server = RedisServer::start().unwrap();
    for edit in edits {
        let texts = script_texts();
        assert!(texts.iter().any(|(_, text, _)| text.contains(edit.0)), "{:?}", edit.0);
        let departed =
            departs(&server, Some(edit)).unwrap_or_else(|| panic!("{edit:?} was not noticed"));
        println!("{edit:?}: {departed}");
    }
}

/// Whether a key stays for good when leases have ended by the server's own clock.
fn stays_for_good(edit: Option<(&str, &str)>) -> bool {
    let server = shared::server();
    let builder = fresh(&server.url());
    let builder = edit.into_iter().fold(builder, |b, (from, to)| b.edit_scripts(from, to));
    runtime().block_on(async {
        let store = builder.build().unwrap();
        let budget = every(100, 1);
        let short = Act::Reserve { lease: LEASE, ttl: Span::from_ms(5) };
        assert!(book(&store, &budget, "ann", 1, short).await.decision.is_admit());
        let began = Instant::now();
        while book(&store, &budget, "ann", 0, Act::Look).await.standing.open > 0 {
            assert!(began.elapsed() < Duration::from_secs(30), "it never ends");
        }
        let settled = book(&store, &budget, "ann", 3, Act::Settle(LEASE)).await;
        assert!(matches!(settled.settlement, Settlement::Now(_)), "it is remembered: {settled:?}");
        let left = names(&store, &budget, "ann").map(|name| integer(server, &["PTTL", &name]));
        let is_right = |left: i64| [-1, -2].contains(&left) || (570_000..700_000).contains(&left);
        assert!(left.into_iter().all(is_right), "{left:?}");
        left.contains(&-1)
    })
}

#[test]
fn a_lease_is_over_by_the_servers_clock_and_everything_goes() {
    assert!(!stays_for_good(None));
    let edit = ("  if a.ended > 0 then expire(a, a.ends) end\n", "");
    assert!(script_texts().iter().any(|(_, text, _)| text.contains(edit.0)));
    assert!(stays_for_good(Some(edit)), "what is seen above");
}

/// Whether anything is answered otherwise than by core.
fn differs(edit: Option<(&str, &str)>, budget: &Budget, steps: &[(u64, Act)]) -> bool {
    let builder = fresh(&shared::redis()).manual_clock(START);
    let builder = edit.into_iter().fold(builder, |b, (from, to)| b.edit_scripts(from, to));
    runtime().block_on(async {
        let (store, mut account) = (builder.build().unwrap(), Account::default());
        for &(units, act) in steps {
            let expected = step(&mut account, budget, units, act, START);
            if book(&store, budget, "ann", units, act).await != expected {
                return true;
            }
        }
        false
    })
}

#[test]
fn a_denial_looks_at_as_many_leases_as_core_does() {
    let budget = every(100, 864_000);
    let mut steps = vec![(100 - 70, Act::Debit(None))];
    for place in 0..70_u32 {
        let lease = LeaseKey(place.into());
        steps.push((1, reserve(lease, 60 + u64::from(place))));
    }
    for lease in [LeaseKey(99), LeaseKey(0), LeaseKey(33), LeaseKey(69)] {
        steps.extend((1..=70_u32).map(|units| (units.into(), reserve(LeaseKey(99), 60))));
        steps.extend([(1, Act::Settle(lease)), (1, Act::Debit(None)), (1, Act::Debit(None))]);
    }
    // Just as many as one looks at, and fewer.
    for place in 40..44_u32 {
        steps.push((1, Act::Settle(LeaseKey(place.into()))));
        steps.extend((1..=70_u32).map(|units| (units.into(), reserve(LeaseKey(99), 60))));
    }
    assert!(!differs(None, &budget, &steps));
    for edit in [
        ("if left >= need or is_last then", "if left >= need then"),
        ("LOOK_AHEAD = 600000000, 64", "LOOK_AHEAD = 600000000, 65"),
        ("LOOK_AHEAD = 600000000, 64", "LOOK_AHEAD = 600000000, 63"),
        ("i == LOOK_AHEAD and a.open > LOOK_AHEAD", "i == LOOK_AHEAD"),
    ] {
        assert!(script_texts().iter().any(|(_, text, _)| text.contains(edit.0)), "{edit:?}");
        assert!(differs(Some(edit), &budget, &steps), "{edit:?} was not noticed");
    }
}

#[test]
fn a_lease_that_ends_with_its_window_pays_no_debt_of_it() {
    let budget = every(10, 60);
    let ttl = Account::default().look(&budget, START).standing.window_end.since(START);
    let steps = [
        (3, Act::Reserve { lease: LEASE, ttl }),
        (1, reserve(LeaseKey(8), 1)),
        (28, Act::Settle(LeaseKey(8))),
        (1, Act::Debit(None)),
    ];
    assert!(!differs(None, &budget, &steps));
    let edit = ("if ends >= a.finish then break end", "if ends > a.finish then break end");
    assert!(script_texts().iter().any(|(_, text, _)| text.contains(edit.0)));
    assert!(differs(Some(edit), &budget, &steps), "what is seen above");
}

#[test]
fn thousands_of_leases_end_in_one_step_and_are_forgotten_some_at_a_time() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let patient = RedisStore::builder(&server.url()).patience(Duration::from_secs(20));
        let store = patient.manual_clock(START).build().unwrap();
        let budget = every(1 << 40, 86_400);
        let mut account = Account::default();
        let (mut now, mut lease) = (START, 0_u128);
        // So many that those of four times are remembered, and of a fifth one too many.
        for round in 0..5_u64 {
            for chunk in 0..u64::from(Budget::OPEN_MAX) / 512 {
                let mut steps = Vec::new();
                for place in 0..512 {
                    lease += 1;
                    let at = now + Span::from_us(chunk * 512 + place);
                    // In another order than they were made in.
                    let name = LeaseKey(lease.reverse_bits());
                    steps.push((at, 1 + place, reserve(name, 60)));
                }
                let charge =
                    |units| [Charge { policy: "tokens", budget: &budget, key: b"ann", units }];
                let charges: Vec<_> = steps.iter().map(|&(_, units, _)| charge(units)).collect();
                let entries = steps.iter().zip(&charges);
                let entries = entries.map(|(&(at, _, act), charges)| (at, Entry { charges, act }));
                let booked = store.book_in_order(&entries.collect::<Vec<_>>()).await.unwrap();
                for ((at, units, act), booked) in steps.into_iter().zip(booked) {
                    let expected = step(&mut account, &budget, units, act, at);
                    assert_eq!(booked.together.each, [expected], "round {round}");
                }
            }
            now = now + Span::from_secs(61);
            store.set_now(now);
            let expected = step(&mut account, &budget, 1, Act::Debit(None), now);
            assert_eq!(book(&store, &budget, "ann", 1, Act::Debit(None)).await, expected);
            let [hash, open, ended] = names(&store, &budget, "ann");
            let kept = i64::try_from(account.remembered()).unwrap();
            assert_eq!(integer(&server, &["ZCARD", &open]), 0);
            assert_eq!(integer(&server, &["ZCARD", &ended]), kept);
            assert_eq!(integer(&server, &["HLEN", &hash]), kept + 1);
        }
        now = now + Budget::ENDED_KEPT;
        store.set_now(now);
        let [hash, _, ended] = names(&store, &budget, "ann");
        while account.remembered() > 0 {
            let expected = step(&mut account, &budget, 0, Act::Look, now);
            assert_eq!(book(&store, &budget, "ann", 0, Act::Look).await, expected);
            let kept = i64::try_from(account.remembered()).unwrap();
            assert_eq!(integer(&server, &["HLEN", &hash]), kept + 1);
        }
        assert_eq!(integer(&server, &["HLEN", &hash]), 1, "all are forgotten");
        assert_eq!(integer(&server, &["EXISTS", &ended]), 0);
    });
}

#[test]
fn a_plain_debit_touches_one_field_of_one_key() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).build().unwrap();
        let budget = long();
        let _ = book(&store, &budget, "ann", 1, Act::Debit(None)).await;
        server.command(&["CONFIG", "RESETSTAT"]).unwrap();
        for _ in 0..100 {
            let _ = book(&store, &budget, "ann", 1, Act::Debit(None)).await;
        }
        let told = server.command(&["INFO", "commandstats"]).unwrap();
        let calls = |name: &str| {
            let told = told.field(&format!("cmdstat_{name}"))?;
            told.split(',').next()?.strip_prefix("calls=")?.parse::<u64>().ok()
        };
        assert_eq!((calls("hget"), calls("hset")), (Some(100), Some(100)));
        for other in ["hmget", "zrange", "zrangebyscore", "zcard", "zadd", "pexpireat", "del"] {
            assert_eq!(calls(other), None, "{other}");
        }
    });
}

/// Books until it is answered, for at most half a minute.
async fn insist(store: &RedisStore, budget: &Budget, units: u64, act: Act) -> Answered {
    let began = Instant::now();
    loop {
        match try_book(store, budget, "ann", units, act).await {
            Ok(booked) => return booked.together.each[0],
            Err(StoreError::Unavailable) => assert!(began.elapsed() < Duration::from_secs(30)),
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What an account has after a server was killed and came back.
fn after_a_restart(arguments: &[&str]) -> (Answered, Settlement) {
    let server = RedisServer::start_with(arguments).unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).manual_clock(START).build().unwrap();
        let budget = every(100, 86_400);
        let _ = book(&store, &budget, "ann", 30, Act::Debit(None)).await;
        let _ = book(&store, &budget, "ann", 20, reserve(LEASE, 60)).await;
        let _ = book(&store, &budget, "ann", 5, Act::Debit(Some(LEASE))).await;
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let _ = book(&store, &budget, "ann", 5, Act::Debit(Some(LEASE))).await;
        server.kill();
        server.restart().unwrap();
        let looked = insist(&store, &budget, 0, Act::Look).await;
        (looked, insist(&store, &budget, 12, Act::Settle(LEASE)).await.settlement)
    })
}

#[test]
fn a_server_with_an_append_only_file_keeps_accounts_over_a_restart_and_one_without_does_not() {
    let (looked, settlement) = after_a_restart(&["--appendonly", "yes", "--appendfsync", "always"]);
    let standing = looked.standing;
    assert_eq!((standing.spent, standing.reserved, standing.open), (40, 10, 1));
    let Settlement::Now(settled) = settlement else { panic!("{settlement:?}") };
    assert_eq!((settled.returned, settled.debt), (8, 0));
    // What was booked is lost, and what is reserved is nobody's: as `src/budget.rs` says.
    let (looked, settlement) = after_a_restart(&["--save", ""]);
    assert_eq!(looked.decision.remaining, 100);
    assert_eq!(settlement, Settlement::Unknown);
}

#[test]
fn a_server_that_forgets_the_scripts_is_told_them_again_and_books_once() {
    let server = RedisServer::start().unwrap();
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).manual_clock(START).build().unwrap();
        let budget = every(100, 60);
        for spent in 1..=20 {
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            let answered = book(&store, &budget, "ann", 1, Act::Debit(None)).await;
            assert_eq!(answered.standing.spent, spent);
        }
    });
}

#[test]
fn an_entry_whose_answer_is_lost_is_not_sent_again() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    runtime().block_on(async {
        let budget = every(100, 60);
        let near = RedisStore::builder(&server.url()).manual_clock(START).build().unwrap();
        let far = RedisStore::builder(&format!("redis://{}", proxy.address()));
        // One connection, which is there before replies are lost.
        let size = Size { lanes: 1, batch_max: 16, queue_max: 16 };
        let far = far.lanes(size).patience(Duration::from_millis(500)).manual_clock(START);
        let far = far.build().unwrap();
        let _ = book(&far, &budget, "ann", 1, Act::Debit(None)).await;
        proxy.drop_replies();
        let lost = try_book(&far, &budget, "ann", 10, Act::Debit(None)).await;
        assert_eq!(lost, Err(StoreError::Lost));
        let looked = book(&near, &budget, "ann", 0, Act::Look).await;
        assert_eq!(looked.standing.spent, 11, "it was booked once");
    });
}

#[test]
fn a_booking_that_no_replica_confirms_says_so_and_a_look_or_a_denial_does_not_wait() {
    runtime().block_on(async {
        let options = PolicyOptions { wait_replicas: 1, ..PolicyOptions::default() };
        let builder = fresh(&shared::redis()).policy("tokens", options);
        let patience = Duration::from_millis(1);
        let store = builder.replica_patience(patience).manual_clock(START).build().unwrap();
        let budget = every(10, 60);
        let unconfirmed = Err(StoreError::NotReplicated { confirmed: 0 });
        let debit = Act::Debit(None);
        assert_eq!(try_book(&store, &budget, "ann", 3, reserve(LEASE, 9)).await, unconfirmed);
        assert_eq!(try_book(&store, &budget, "ann", 7, debit).await, unconfirmed);
        assert_eq!(book(&store, &budget, "ann", 0, Act::Look).await.standing.spent, 7);
        assert!(!book(&store, &budget, "ann", 1, debit).await.decision.is_admit());
        assert_eq!(try_book(&store, &budget, "ann", 3, Act::Settle(LEASE)).await, unconfirmed);
        let again = book(&store, &budget, "ann", 3, Act::Settle(LEASE)).await;
        assert!(matches!(again.settlement, Settlement::Before(_)), "{again:?}");
    });
}

#[test]
fn accounts_of_one_slot_are_booked_together_and_of_two_are_refused() {
    runtime().block_on(async {
        let tag = |tag: &str| PolicyOptions { hash_tag: Some(tag.into()), ..Default::default() };
        let builder = fresh(&shared::cluster()).manual_clock(START);
        let builder = builder.policy("team", tag("org")).policy("user", tag("org"));
        let store = builder.policy("other", tag("elsewhere")).build().unwrap();
        let (minute, day) = (every(100, 60), every(150, 86_400));
        let charge = |policy, budget, key| Charge { policy, budget, key, units: 40 };
        let book = async |charges: &[Charge<'_>], act| {
            let booked = store.book(Entry { charges, act }).await?;
            Ok(booked.together.each.iter().map(|each| each.standing.spent).collect::<Vec<_>>())
        };
        let debit = Act::Debit(None);
        let tagged = [charge("team", &day, b"red"), charge("user", &minute, b"ann")];
        assert_eq!(book(&tagged, debit).await, Ok(vec![40, 40]));
        let same_key =
            [charge("a", &day, b"ann"), charge("b", &day, b"ann"), charge("a", &minute, b"ann")];
        assert_eq!(book(&same_key, debit).await, Ok(vec![40, 40, 40]));
        for other in [charge("other", &day, b"red"), charge("a", &day, b"red")] {
            let apart = [tagged[0], other];
            assert_eq!(book(&apart, debit).await, Err(StoreError::AcrossSlots));
        }
        assert_eq!(book(&tagged, Act::Look).await, Ok(vec![40, 40]), "nothing was booked");
    });
}

#[test]
fn what_is_no_account_is_unreadable_and_stays() {
    let server = shared::server();
    runtime().block_on(async {
        let store = fresh(&server.url()).manual_clock(START).build().unwrap();
        let budget = every(100, 60);
        let [hash, open, _] = names(&store, &budget, "ann");
        let acts = [Act::Look, Act::Debit(None), Act::Debit(Some(LEASE)), reserve(LEASE, 9)];
        for command in
            [vec!["SET", &hash, "x"], vec!["HSET", &hash, "a", "x"], vec!["RPUSH", &hash, "x"]]
        {
            server.command(&["DEL", &hash]).unwrap();
            server.command(&command).unwrap();
            let dump = server.command(&["DUMP", &hash]).unwrap();
            for act in acts {
                let unread = try_book(&store, &budget, "ann", 1, act).await;
                assert_eq!(unread, Err(StoreError::Unreadable), "{command:?} {act:?}");
            }
            assert_eq!(server.command(&["DUMP", &hash]).unwrap(), dump);
        }
        server.command(&["DEL", &hash]).unwrap();
        let _ = book(&store, &budget, "ann", 1, reserve(LEASE, 9)).await;
        server.command(&["SET", &open, "x"]).unwrap();
        store.set_now(START + Span::from_secs(9));
        let unread = try_book(&store, &budget, "ann", 1, Act::Debit(None)).await;
        assert_eq!(unread, Err(StoreError::Unreadable), "its leases cannot be found");
        // A hash that is gone takes what was listed with it.
        server.command(&["DEL", &hash, &open]).unwrap();
        server.command(&["ZADD", &open, "1", "not a lease"]).unwrap();
        let answered = book(&store, &budget, "ann", 1, reserve(LEASE, 9)).await;
        assert_eq!(answered.standing.open, 1);
        assert_eq!(integer(server, &["ZCARD", &open]), 1);
    });
}

/// The most bytes that an account with a key of 24 bytes takes of the server, and each lease of it.
const BYTES_MAX: u64 = 290;
const LEASE_BYTES_MAX: u64 = 300;

#[test]
fn an_account_and_a_lease_take_less_than_the_documented_bytes() {
    let server = RedisServer::start().unwrap();
    let used = || -> u64 {
        let info = server.command(&["INFO", "memory"]).unwrap();
        info.field("used_memory").unwrap().parse().unwrap()
    };
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).prefix("a").build().unwrap();
        let budget = every(1 << 40, 86_400);
        let (before, count) = (used(), 20_000_u64);
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..100 {
            let store = store.clone();
            tasks.spawn(async move {
                for key in (task..count).step_by(100) {
                    let _ = book(&store, &budget, &format!("user-{key:019}"), 1, Act::Debit(None))
                        .await;
                }
            });
        }
        tasks.join_all().await;
        let each = (used() - before) / count;
        println!("{each} bytes per account");
        assert!(each <= BYTES_MAX, "{each} bytes per account");
        let (before, leases) = (used(), u64::from(Budget::OPEN_MAX));
        for lease in 0..leases {
            let lease = LeaseKey(u128::from(lease) << 64);
            let _ = book(&store, &budget, "leases", 1, reserve(lease, 3_600)).await;
        }
        let each = (used() - before) / leases;
        println!("{each} bytes per lease");
        assert!(each <= LEASE_BYTES_MAX, "{each} bytes per lease");
    });
}
