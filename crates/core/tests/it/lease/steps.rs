//! One rule of the holder or the grantor at a time.

use admittance_core::lease::{ATTEMPTS_MAX, Answer, Ask, GiveBack, LeaseId, Request};
use admittance_core::{Cost, Decision, Micros, Outcome, Retry, Span, Strategy, Window};

use crate::lease::pair::{Checked, Pair, at, ms};

#[test]
fn concurrent_misses_send_one_request_and_the_rest_is_spent_locally() {
    let mut pair = Pair::windowed(4);
    assert_eq!(pair.check(1), Checked::Waits(0));
    let request = pair.request().unwrap();
    assert_eq!(request.ask, Ask { need: 1, least: 1, want: 4, round_trip: Span::ZERO });
    assert_eq!(pair.check(1), Checked::Waits(1));
    assert_eq!(pair.check(1), Checked::Waits(2));
    assert_eq!(pair.request(), None, "one request is outstanding at most");
    let grant = pair.grant(request);
    pair.reply(request.id, grant);
    assert_eq!(pair.admitted(), [0, 1, 2]);
    assert_eq!(pair.check(1), Checked::Local);
    assert_eq!((pair.credits(), pair.holder.held()), (0, 1), "the holder hears of it later");
    assert_eq!(pair.request(), None);
}

#[test]
fn misses_that_one_grant_does_not_pay_join_the_next() {
    let mut pair = Pair::windowed(1);
    let _ = pair.check(1);
    let request = pair.request().unwrap();
    let _ = (pair.check(2), pair.check(3));
    let grant = pair.grant(request);
    pair.reply(request.id, grant);
    assert_eq!(pair.admitted(), [0]);
    let next = pair.request().unwrap();
    assert_eq!((next.ask.need, next.ask.least, next.ask.want), (5, 2, 5));
}

#[test]
fn own_credits_are_set_aside_and_only_the_rest_is_needed() {
    let mut pair = Pair::windowed(3);
    let _ = (pair.check(1), pair.trip());
    assert_eq!(pair.credits(), 2);
    assert_eq!(pair.check(5), Checked::Waits(1));
    let request = pair.request().unwrap();
    assert_eq!((request.ask.need, request.ask.want), (3, 3));
    assert_eq!(pair.credits(), 0, "what is set aside cannot be spent by others");
    let grant = pair.grant(request);
    pair.reply(request.id, grant);
    assert_eq!(pair.admitted(), [0, 1]);
    assert_eq!(pair.holder.held(), 0);
}

#[test]
fn a_grant_counts_once_and_only_for_an_open_attempt() {
    let mut pair = Pair::windowed(4);
    let _ = pair.check(1);
    let request = pair.request().unwrap();
    let grant = pair.grant(request);
    let stranger = LeaseId { incarnation: 8, ..request.id };
    pair.reply(stranger, grant);
    assert_eq!((pair.answers(), pair.credits()), (vec![], 0));
    pair.reply(request.id, grant);
    pair.reply(request.id, grant);
    assert_eq!((pair.admitted(), pair.credits()), (vec![0], 3));
    assert_eq!(pair.returns(), [], "it cannot be told from the same answer twice");
}

#[test]
fn a_late_grant_is_used_and_its_request_was_left_to_the_fail_mode() {
    let mut pair = Pair::windowed(4);
    let _ = pair.check(1);
    let request = pair.request().unwrap();
    let grant = pair.grant(request);
    pair.wait(ms(20));
    pair.deadline();
    assert_eq!(pair.answers(), [(0, Answer::Unanswered)]);
    pair.wait(ms(100));
    pair.reply(request.id, grant);
    assert_eq!(pair.credits(), 4);
    assert_eq!(pair.check(4), Checked::Local);
}

#[test]
fn a_late_grant_pays_a_request_that_waits_for_a_later_attempt() {
    let mut pair = Pair::windowed(4);
    let _ = pair.check(1);
    let late = pair.request().unwrap();
    let grant = pair.grant(late);
    pair.wait(ms(20));
    pair.deadline();
    pair.wait(ms(20));
    let Checked::Waits(waiter) = pair.check(1) else { panic!("nothing is held") };
    let _ = pair.request().expect("the back-off is over");
    pair.reply(late.id, grant);
    assert_eq!(pair.admitted(), [waiter]);
}

#[test]
fn attempts_back_off_by_doubling_and_four_are_open_at_most() {
    let mut pair = Pair::windowed(1);
    let mut sent = Vec::new();
    for _ in 0..200 {
        pair.deadline();
        let _ = (pair.check(1), pair.answers());
        if pair.request().is_some() {
            sent.push(pair.now.since(at(5_000)).us() / 20_000);
        }
        pair.wait(ms(20));
        if pair.now.since(at(5_000)) >= ms(990) {
            break;
        }
    }
    // Each is late after one deadline, and the next waits 1, 2, 4 more.
    assert_eq!(sent, [0, 2, 5, 10]);
    assert_eq!(sent.len(), ATTEMPTS_MAX);
    // An answer could be of use for a window: after that there is room again.
    pair.wait(ms(10));
    pair.deadline();
    let _ = pair.check(1);
    assert!(pair.request().is_some());
}

#[test]
fn an_answer_in_time_ends_the_back_off() {
    let mut pair = Pair::windowed(1);
    let _ = (pair.check(1), pair.request());
    pair.wait(ms(20));
    pair.deadline();
    pair.wait(ms(20));
    let _ = (pair.check(1), pair.trip(), pair.check(1));
    assert!(pair.request().is_some());
}

#[test]
fn a_failure_is_known_at_once_and_backs_off_too() {
    let mut pair = Pair::windowed(1);
    let Checked::Waits(waiter) = pair.check(1) else { panic!("nothing is held") };
    let request = pair.request().unwrap();
    pair.holder.handle_failure(&pair.rules, &pair.cell, pair.now, request.id);
    assert_eq!(pair.answers(), [(waiter, Answer::Unanswered)]);
    let _ = pair.check(1);
    assert_eq!(pair.request(), None);
    assert_eq!(pair.holder.poll_deadline(&pair.rules), Some(pair.now + ms(20)));
    pair.wait(ms(20));
    assert!(pair.request().is_some());
}

#[test]
fn waiters_are_bounded_and_the_rest_is_left_to_the_fail_mode() {
    let mut pair = Pair::windowed(1);
    pair.rules.waiters_max = 2;
    assert_eq!((pair.check(1), pair.check(1)), (Checked::Waits(0), Checked::Waits(1)));
    assert_eq!(pair.check(1), Checked::Busy);
    pair.holder.abandon(0);
    assert_eq!(pair.check(1), Checked::Waits(3));
}

#[test]
fn a_cost_above_the_limit_is_never_admitted_and_asks_nobody() {
    let mut pair = Pair::windowed(1);
    assert_eq!((pair.check(11), pair.request()), (Checked::Never, None));
}

#[test]
fn what_is_needed_is_admitted_by_the_store_however_late_it_arrives() {
    let mut pair = Pair::windowed(4);
    pair.wait(ms(995));
    let _ = pair.check(1);
    let request = pair.request().unwrap();
    let grant = pair.grant(request);
    assert_eq!(grant.granted, 4);
    pair.wait(ms(10));
    pair.reply(request.id, grant);
    let [(0, Answer::Admitted(paid))] = pair.answers()[..] else { panic!("admitted") };
    assert_eq!(paid.until, at(1_001_000), "by the window in which the store said so");
    assert_eq!((pair.credits(), pair.returns()[0].units), (0, 3), "the lease was dead");
}

#[test]
fn near_the_end_of_a_window_only_what_is_needed_is_granted() {
    let mut pair = Pair::windowed(4);
    let _ = pair.check(1);
    let request = pair.request().unwrap();
    pair.wait(ms(10));
    let grant = pair.grant(request);
    pair.reply(request.id, grant);
    for (before_end, granted) in [(ms(40), 4), (Span::from_us(39_999), 1)] {
        let window = (1_000_000 - before_end.us()) - pair.store.epoch_us() % 1_000_000;
        pair.wait(Span::from_us(window));
        pair.deadline();
        while pair.check(1) == Checked::Local {}
        assert_eq!(pair.request().map(|request| pair.grant(request).granted), Some(granted));
        pair = {
            let mut next = Pair::windowed(4);
            let _ = next.check(1);
            let request = next.request().unwrap();
            next.wait(ms(10));
            let grant = next.grant(request);
            next.reply(request.id, grant);
            next
        };
    }
}

#[test]
fn credits_die_a_tick_and_the_drift_before_their_window_counted_from_the_send() {
    let mut pair = Pair::windowed(4);
    let _ = pair.check(1);
    let request = pair.request().unwrap();
    let sent = pair.now;
    pair.wait(ms(5));
    let grant = pair.grant(request);
    pair.wait(ms(5));
    pair.reply(request.id, grant);
    // 995 ms are left at the grant; a thousandth and a tick less, from the send.
    let life = Span::from_us(995_000 - 995 - 1);
    assert!(pair.cell.0.get().0.spend(sent + life - Span::TICK, Cost::ONE).is_some());
    assert!(pair.cell.0.get().0.spend(sent + life, Cost::ONE).is_none());
    assert_eq!(pair.holder.poll_deadline(&pair.rules), Some(sent + life));
}

#[test]
fn credits_of_two_windows_do_not_pay_for_one_request_and_it_asks_again_once() {
    let mut pair = Pair::windowed(3);
    let _ = (pair.check(1), pair.trip(), pair.answers());
    pair.wait(ms(990));
    assert_eq!(pair.check(5), Checked::Waits(1));
    let request = pair.request().unwrap();
    assert_eq!(request.ask.need, 3);
    pair.wait(ms(15));
    let grant = pair.grant(request);
    assert_eq!(grant.granted, 3, "of the next window");
    pair.reply(request.id, grant);
    assert_eq!(pair.answers(), []);
    let again = pair.request().unwrap();
    assert_eq!(again.ask.need, 2, "those three are its credits now");
    let grant = pair.grant(again);
    pair.reply(again.id, grant);
    assert_eq!(pair.admitted(), [1]);
}

#[test]
fn nothing_is_denied_because_credits_died_after_the_store_counted_on_them() {
    let mut pair = Pair::windowed(4);
    let _ = (pair.check(1), pair.trip(), pair.answers());
    pair.wait(ms(990));
    pair.drain_store(3);
    let _ = (pair.check(4), pair.check(4));
    let request = pair.request().unwrap();
    assert_eq!(request.ask.need, 5);
    let grant = pair.grant(request);
    assert_eq!(grant.granted, 3, "with three of its own that is enough for the first");
    pair.wait(ms(9));
    pair.wait(Span::from_us(500));
    pair.reply(request.id, grant);
    assert_eq!(pair.answers(), [], "own credits died on the way: neither is denied");
    pair.wait(ms(1));
    assert!(pair.request().is_some());
}

#[test]
fn a_denial_consumes_nothing_and_says_when() {
    let mut pair = Pair::windowed(4);
    pair.drain_store(3);
    let before = pair.state.clone();
    let _ = pair.check(4);
    assert_eq!(pair.trip().granted, 0);
    let [(0, Answer::Denied(denied))] = pair.answers()[..] else { panic!("denied") };
    assert_eq!(denied.outcome, Outcome::Deny(Retry::After(ms(1_000))));
    assert_eq!(pair.state, before);
    let _ = pair.check(3);
    assert_eq!((pair.trip().granted, pair.admitted()), (3, vec![1]), "no stranded remainder");
}

#[test]
fn of_several_requests_those_are_admitted_that_the_rest_is_enough_for() {
    let mut pair = Pair::windowed(1);
    pair.drain_store(3);
    let _ = (pair.check(5), pair.check(2), pair.check(2));
    assert_eq!(pair.trip().granted, 3);
    let answers = pair.answers();
    assert!(matches!(answers[0], (0, Answer::Denied(_))));
    assert!(matches!(answers[1], (1, Answer::Admitted(_))));
    assert!(matches!(answers[2], (2, Answer::Denied(_))));
    assert_eq!(pair.credits(), 1);
}

#[test]
fn a_lone_request_is_told_the_exact_wait() {
    for own in [0, 2] {
        for (early, is_admitted) in [(Span::ZERO, true), (Span::TICK, false)] {
            let mut pair = Pair::continuous(3);
            if own > 0 {
                let _ = (pair.check(1), pair.trip(), pair.answers());
            }
            pair.drain_store(0);
            let _ = pair.check(4);
            let _ = pair.trip();
            let [(_, Answer::Denied(denied))] = pair.answers()[..] else { panic!("denied") };
            let wait = denied.retry_after().unwrap();
            assert_eq!(wait, ms(100 * (4 - own)), "one unit per 100 ms, with {own} of its own");
            pair.wait(Span::from_us(wait.us() - early.us()));
            pair.deadline();
            let _ = pair.check(4);
            let _ = pair.trip();
            assert_eq!(!pair.admitted().is_empty(), is_admitted, "own {own}, early {early:?}");
        }
    }
}

#[test]
fn a_wait_that_own_credits_do_not_live_for_does_not_count_on_them() {
    let mut pair = Pair::continuous(3);
    let _ = (pair.check(1), pair.trip(), pair.answers());
    pair.drain_store(0);
    let _ = (pair.check(9), pair.trip());
    let [(_, Answer::Denied(denied))] = pair.answers()[..] else { panic!("denied") };
    assert_eq!(denied.retry_after(), Some(ms(900)), "not 700: the two die after 500");
}

#[test]
fn closing_zeroes_the_word_first_and_gives_back_once_and_what_comes_later_too() {
    let mut pair = Pair::windowed(4);
    let _ = (pair.check(1), pair.trip(), pair.answers());
    let _ = pair.check(5);
    let request = pair.request().unwrap();
    let grant = pair.grant(request);
    pair.holder.close(&pair.rules, &pair.cell, pair.now);
    assert_eq!(pair.credits(), 0);
    assert_eq!(pair.answers(), [(1, Answer::Unanswered)]);
    let returns = pair.returns();
    assert_eq!(returns.iter().map(|back| back.units).collect::<Vec<_>>(), [3]);
    pair.holder.close(&pair.rules, &pair.cell, pair.now);
    assert_eq!(pair.returns(), []);
    pair.reply(request.id, grant);
    assert_eq!(pair.credits(), 0);
    let late = pair.returns();
    assert_eq!((late.len(), late[0].units, late[0].id), (1, grant.granted, request.id));
    assert_eq!((pair.check(1), pair.request()), (Checked::Busy, None));
    assert!(pair.holder.is_idle());
    let restored: u64 = returns.iter().chain(&late).map(|back| pair.take_back(back)).sum();
    assert_eq!(restored, 3 + grant.granted);
}

#[test]
fn idle_credits_go_back_and_busy_ones_do_not() {
    let mut pair = Pair::windowed(4);
    pair.rules.idle_after = Some(ms(100));
    let _ = (pair.check(1), pair.trip());
    pair.wait(ms(60));
    assert_eq!(pair.check(1), Checked::Local);
    pair.wait(ms(40));
    pair.deadline();
    assert_eq!((pair.returns(), pair.credits()), (vec![], 2), "one was spent meanwhile");
    assert_eq!(pair.holder.poll_deadline(&pair.rules), Some(pair.now + ms(100)));
    pair.wait(ms(100));
    pair.deadline();
    let returns = pair.returns();
    assert_eq!((returns[0].units, pair.credits()), (2, 0));
    assert_eq!(pair.take_back(&returns[0]), 2);
}

#[test]
fn a_lease_that_dies_in_a_long_window_gives_its_credits_back() {
    let hour = Window::fixed(10, Span::from_secs(3_600)).unwrap();
    let mut pair = Pair::new(hour, Span::ZERO, 4);
    let _ = (pair.check(1), pair.trip());
    pair.wait(Span::from_secs(60));
    assert!(matches!(pair.check(1), Checked::Waits(_)), "no lease lives for longer than a minute");
    let returns = pair.returns();
    assert_eq!(returns[0].units, 3);
    assert_eq!(pair.take_back(&returns[0]), 3);
}

#[test]
fn a_refill_is_asked_for_at_low_water_and_never_on_top_of_a_batch() {
    let mut pair = Pair::windowed(4);
    pair.rules.low_water = 1;
    let _ = pair.check(1);
    let request = pair.request().unwrap();
    pair.holder.refill();
    let grant = pair.grant(request);
    pair.reply(request.id, grant);
    assert_eq!((pair.credits(), pair.request()), (3, None), "it has a batch by now");
    let _ = (pair.check(1), pair.check(1));
    pair.holder.refill();
    let refill = pair.request().unwrap();
    assert_eq!((refill.ask.need, refill.ask.want), (0, 4));
    assert_eq!(pair.check(1), Checked::Local, "nobody waits for it");
    let grant = pair.grant(refill);
    pair.reply(refill.id, grant);
    assert_eq!(pair.holder.held(), 4);
}

#[test]
fn a_refill_that_got_nothing_is_not_repeated_before_there_is_something() {
    let mut pair = Pair::windowed(4);
    pair.rules.low_water = 1;
    pair.drain_store(0);
    pair.holder.refill();
    assert_eq!(pair.trip().granted, 0);
    pair.holder.refill();
    assert_eq!(pair.request(), None);
    pair.wait(ms(1_000));
    assert!(pair.request().is_some());
}

#[test]
fn carried_credits_survive_the_window_and_late_grants_go_back() {
    let mut pair = Pair::windowed(4);
    pair.rules = pair.rules.carry_over();
    let _ = (pair.check(1), pair.trip(), pair.answers());
    pair.wait(ms(5_000));
    pair.deadline();
    assert_eq!(pair.check(3), Checked::Local);
    let _ = pair.check(1);
    let late = pair.request().unwrap();
    let grant = pair.grant(late);
    pair.wait(ms(20));
    pair.deadline();
    pair.reply(late.id, grant);
    assert_eq!((pair.credits(), pair.returns()[0].units), (0, 4));
}

#[test]
fn the_demand_of_a_window_is_what_was_served_in_it() {
    let mut pair = Pair::windowed(4);
    let _ = (pair.check(1), pair.trip());
    let _ = (pair.check(1), pair.check(2));
    let _ = (pair.check(2), pair.trip());
    assert_eq!(pair.holder.poll_demand(), None);
    let _ = pair.check(1);
    pair.wait(ms(1_000));
    let _ = (pair.check(1), pair.trip());
    assert_eq!(pair.holder.poll_demand(), Some(7));
    pair.wait(ms(1_000));
    let _ = (pair.check(1), pair.trip());
    assert_eq!(pair.holder.poll_demand(), Some(1));
}

#[test]
fn what_is_forgotten_is_gone_without_a_word() {
    let mut pair = Pair::windowed(4);
    let _ = (pair.check(1), pair.trip(), pair.answers());
    let _ = pair.check(5);
    let request = pair.request().unwrap();
    let grant = pair.grant(request);
    pair.holder.forget(&pair.cell);
    assert_eq!((pair.credits(), pair.holder.held(), pair.returns()), (0, 0, vec![]));
    assert_eq!(pair.answers(), [(1, Answer::Unanswered)]);
    pair.reply(request.id, grant);
    assert_eq!(pair.credits(), 0);
}

#[test]
fn a_caller_is_not_woken_before_it_can_do_anything() {
    let mut pair = Pair::windowed(4);
    pair.rules.idle_after = Some(ms(5));
    let _ = pair.check(1);
    let _ = pair.request().unwrap();
    let _ = pair.check(1);
    let next = pair.holder.poll_deadline(&pair.rules).unwrap();
    assert_eq!(next, pair.now + ms(20), "the second waits for the answer to the first");
}

#[test]
fn a_continuous_give_back_restores_what_had_not_come_back_by_itself() {
    for (waited, restored) in [(0, 6), (1, 5), (100, 5), (101, 4), (550, 0), (600, 0), (900, 0)] {
        let mut pair = Pair::continuous(7);
        let _ = (pair.check(1), pair.trip());
        pair.drain_store(0);
        pair.holder.close(&pair.rules, &pair.cell, pair.now);
        let back = pair.returns()[0];
        assert_eq!(back.units, 6);
        pair.wait(ms(waited));
        assert_eq!(pair.take_back(&back), restored, "after {waited} ms");
        let strategy = pair.rules.strategy();
        let decision: Decision = strategy.peek(pair.state.as_ref(), pair.store);
        assert_eq!(decision.remaining, restored + waited / 100);
    }
}

/// Leases that are never spent and always renewed: how many units are out after twenty lease times.
fn renewed(refund: impl Fn(&GiveBack, Micros) -> GiveBack) -> u64 {
    let mut pair = Pair::continuous(1);
    let all = Ask { need: 0, least: 0, want: 100, round_trip: Span::ZERO };
    let mut out: Vec<GiveBack> = Vec::new();
    for count in 0..20 {
        let old = std::mem::take(&mut out);
        // First whatever has come back by itself; then each old lease for a new one.
        for back in std::iter::once(None).chain(old.iter().map(Some)) {
            if let Some(back) = back {
                let _ = pair.take_back(&refund(back, pair.store));
            }
            let id = LeaseId { incarnation: 7, count };
            let grant = pair.grant(Request { id, ask: all });
            let (units, paid_until) = (grant.granted, grant.decision.reset_at);
            out.push(GiveBack { id, units, granted_at: grant.at, paid_until });
        }
        out.retain(|lease| lease.units > 0);
        pair.wait(ms(500));
    }
    out.iter().map(|lease| lease.units).sum()
}

#[test]
fn leases_that_are_renewed_for_ever_do_not_add_up_and_refunded_in_full_they_would() {
    assert!(renewed(|back, _| *back) <= 15, "burst and what comes back in a lease time");
    assert!(renewed(|back, now| GiveBack { granted_at: now, ..*back }) > 15);
}

#[test]
fn a_store_whose_clock_steps_back_opens_no_window_twice() {
    let mut pair = Pair::windowed(4);
    let _ = (pair.check(1), pair.trip());
    let paid_until = pair.store + ms(1_000);
    pair.store = pair.store - ms(10_000);
    while pair.check(1) == Checked::Local {}
    let grant = pair.trip();
    assert_eq!((grant.granted, grant.decision.reset_at), (4, paid_until), "the later one pays");
    // Until the store's clock has come back to the end of that window: eleven seconds.
    let life = Span::from_us(11_000_000 - 11_000 - 1);
    assert_eq!(pair.holder.poll_deadline(&pair.rules), Some(pair.now + life));
    while pair.check(1) == Checked::Local {}
    assert_eq!(pair.trip().granted, 2, "ten in all");
}

#[test]
fn a_windowed_give_back_restores_nothing_to_another_window() {
    let mut pair = Pair::windowed(4);
    let _ = (pair.check(1), pair.trip());
    pair.holder.close(&pair.rules, &pair.cell, pair.now);
    let back = pair.returns()[0];
    pair.wait(ms(1_000));
    pair.drain_store(2);
    assert_eq!(pair.take_back(&back), 0);
}
