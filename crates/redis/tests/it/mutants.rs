//! Scripts that are nearly right. Each is caught by the contract that is named.

use std::future::Future;

use crate::support::{OnServer, shared};
use admittance_redis::script_texts;
use admittance_testkit::{
    Violation, custom_strategies_decide_exactly, equals_core, groups_equal_core,
    keeps_what_was_spent_when_a_limit_changes, leases_equal_core, many_keys_at_one_instant,
    resets_forget_what_was_lent, retry_is_the_truth, steps_back_never_over_admit,
};

/// Runs a contract over scripts with one text replaced; it must not hold.
fn caught<'h, F>(
    harness: &'h mut OnServer,
    edit: (&'static str, &'static str),
    contract: impl Fn(&'h OnServer) -> F,
) where
    F: Future<Output = Result<(), Violation>>,
{
    let is_there = script_texts().iter().any(|(_, text, _)| text.contains(edit.0));
    assert!(is_there, "no script has {:?} in it", edit.0);
    harness.edits = vec![edit];
    harness.timelines = 300;
    let harness: &OnServer = harness;
    assert!(harness.run(contract(harness)).is_err(), "{edit:?} was not noticed");
}

fn on_a_server(test: impl FnOnce(&mut OnServer)) {
    test(&mut OnServer::new(&shared::redis()));
}

#[test]
fn a_wait_rounded_down_is_caught_by_retry_is_the_truth() {
    let edit = ("wait = ceil((more - room) / d)", "wait = floor((more - room) / d)");
    on_a_server(|harness| caught(harness, edit, retry_is_the_truth));
}

#[test]
fn a_wait_rounded_down_where_numbers_are_large_is_caught_by_equals_core() {
    let edit = ("return next_part > p.span_part and wait + 1 or wait", "return wait");
    on_a_server(|harness| caught(harness, edit, equals_core));
}

#[test]
fn a_burst_that_ends_one_unit_early_is_caught_by_equals_core() {
    let edit = ("if more <= room then", "if more < room then");
    on_a_server(|harness| caught(harness, edit, equals_core));
    let edit = ("next_part <= p.span_part) then", "next_part < p.span_part) then");
    on_a_server(|harness| caught(harness, edit, equals_core));
}

#[test]
fn a_key_that_saves_up_while_idle_is_caught_by_equals_core() {
    let edit = ("    if whole < now then whole, part = now, 0 end\n", "");
    on_a_server(|harness| caught(harness, edit, equals_core));
    let edit = ("if not whole or whole < now then", "if not whole then");
    on_a_server(|harness| caught(harness, edit, equals_core));
}

#[test]
fn a_carry_forgotten_is_caught_by_equals_core() {
    let edit = ("move, next_part = move + 1, part", "move, next_part = move, part");
    on_a_server(|harness| caught(harness, edit, equals_core));
}

#[test]
fn doubles_alone_are_caught_by_equals_core() {
    // Without the correction that follows the division.
    let edit = ("while left < p.limit and fits(left + 1)", "while false and fits(left + 1)");
    on_a_server(|harness| caught(harness, edit, equals_core));
}

#[test]
fn a_product_that_is_not_exact_is_caught_by_equals_core() {
    let edit = ("if product <= EXACT then", "if product then");
    on_a_server(|harness| caught(harness, edit, equals_core));
}

#[test]
fn a_changed_rate_that_keeps_the_instant_is_caught() {
    let kept = "if d ~= p.rate then part, d = part, d * (p.d / p.rate) end";
    let edit = ("if d ~= p.rate then return true, whole, other(p, d, part) end", kept);
    on_a_server(|harness| caught(harness, edit, keeps_what_was_spent_when_a_limit_changes));
    // Nor may what is lent be rounded down, or its wait.
    let edit = ("while not covers(units) do units = units + 1 end", "");
    on_a_server(|harness| caught(harness, edit, keeps_what_was_spent_when_a_limit_changes));
    let edit = ("return o.part > low and ticks + 1 or ticks", "return ticks");
    on_a_server(|harness| caught(harness, edit, keeps_what_was_spent_when_a_limit_changes));
    // The ordinary check takes another rate's state for its own.
    let edit = ("if over and over == rate then", "if over then");
    on_a_server(|harness| caught(harness, edit, keeps_what_was_spent_when_a_limit_changes));
    // What another rate has counted is given back.
    let edit = (
        "if not whole or whole < now or type(part) == 'table' then return 0 end",
        "\
        if not whole or whole < now then return 0 end \
        if type(part) == 'table' then part = 0 end",
    );
    on_a_server(|harness| caught(harness, edit, keeps_what_was_spent_when_a_limit_changes));
}

#[test]
fn a_reset_that_leaves_no_instant_is_caught() {
    let edit = ("if not reset_at or granted_at <= reset_at then", "if not reset_at then");
    on_a_server(|harness| caught(harness, edit, resets_forget_what_was_lent));
    let edit = ("if KEYS[2] then\n  local before", "if false then\n  local before");
    on_a_server(|harness| caught(harness, edit, resets_forget_what_was_lent));
    // A clock that was set back makes the instant an earlier one.
    let edit = ("before and before > now and before or now", "now");
    on_a_server(|harness| caught(harness, edit, resets_forget_what_was_lent));
}

#[test]
fn a_window_opened_by_stepping_back_is_caught_by_steps_back_never_over_admit() {
    let edit = ("if not index or index < p.index then", "if index ~= p.index then");
    on_a_server(|harness| caught(harness, edit, steps_back_never_over_admit));
}

#[test]
fn a_bucket_aged_too_far_is_caught_by_equals_core() {
    let edit = ("if rest > 0 then room = room - 1 end", "");
    on_a_server(|harness| caught(harness, edit, equals_core));
}

#[test]
fn a_log_pruned_by_a_denial_is_caught_by_equals_core() {
    let edit = (
        "local frees = frees_at(",
        "if s.gone > 0 then \
           call('LSET', s.key, s.gone, (s.base + s.gone_units) % WRAP) \
           call('LTRIM', s.key, s.gone, -1) \
         end \
         local frees = frees_at(",
    );
    on_a_server(|harness| caught(harness, edit, equals_core));
}

#[test]
fn keys_that_do_not_count_in_order_are_caught_by_many_keys_at_one_instant() {
    // Each key is read before any is written.
    let edit = (
        "local is_state, one, two = read(p, key)",
        "local is_state, one, two = read(p, key)\n  \
         for j = 1, i - 1 do if KEYS[j] == key then one = nil end end",
    );
    on_a_server(|harness| caught(harness, edit, many_keys_at_one_instant));
}

#[test]
fn a_group_that_charges_what_it_denies_is_caught_by_groups_equal_core() {
    let edit = ("if is_admitted then", "if l.wait == ADMIT then");
    on_a_server(|harness| caught(harness, edit, groups_equal_core));
}

#[test]
fn an_any_that_charges_twice_is_caught_by_groups_equal_core() {
    let edit = ("    is_charged = true\n", "");
    on_a_server(|harness| caught(harness, edit, groups_equal_core));
}

#[test]
fn a_swap_that_does_not_compare_is_caught_by_custom_strategies_decide_exactly() {
    let edit = ("if bytes ~= expected then", "if false then");
    on_a_server(|harness| caught(harness, edit, custom_strategies_decide_exactly));
}

#[test]
fn a_lease_given_back_in_full_is_caught_by_leases_equal_core() {
    let edit = ("(units < p.limit and units or p.limit) - came", "units");
    on_a_server(|harness| caught(harness, edit, leases_equal_core));
    // Nor may what came back meanwhile be rounded down.
    let edit = ("if high < since or low > 0 then came = came + 1 end", "");
    on_a_server(|harness| caught(harness, edit, leases_equal_core));
}

#[test]
fn a_lease_given_back_to_another_window_is_caught_by_leases_equal_core() {
    let edit = ("if finish ~= paid_until then return 0 end", "");
    on_a_server(|harness| caught(harness, edit, leases_equal_core));
}

#[test]
fn a_lease_given_back_twice_is_caught_by_leases_equal_core() {
    let edit = ("is_first = call('SET', KEYS[2], 1, 'NX')", "is_first = true");
    on_a_server(|harness| caught(harness, edit, leases_equal_core));
}

#[test]
fn a_lease_given_back_too_late_is_caught_by_leases_equal_core() {
    let edit = ("if not is_first or since > GIVE_BACK_MAX then", "if not is_first then");
    on_a_server(|harness| caught(harness, edit, leases_equal_core));
}

#[test]
fn a_grant_that_helps_nobody_is_caught_by_leases_equal_core() {
    let edit = ("if left < least then give = 0 end", "");
    on_a_server(|harness| caught(harness, edit, leases_equal_core));
}

#[test]
fn a_grant_that_is_not_charged_is_caught_by_leases_equal_core() {
    let edit = ("  write(p, key, one, two)\n", "");
    on_a_server(|harness| caught(harness, edit, leases_equal_core));
}

#[test]
fn a_grant_with_no_time_to_use_it_is_caught_by_leases_equal_core() {
    let edit = ("reset - now < 4 * trip", "false");
    on_a_server(|harness| caught(harness, edit, leases_equal_core));
}
