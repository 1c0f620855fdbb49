//! The in-process store under the suite. Strategies whose state fits a word live in the slot table,
//! the others in the locked one; the suite has several of both.

use std::sync::Arc;

use admittance::{
    Action, Builtin, Combine, Cost, Gcra, Group, Limit, ManualClock, Memory, Micros, OnFull, Op,
    Recovery, Span, Store, StoreError, Tat, Window,
};
use admittance_testkit::{Behavior, Harness, Scripted, block_on, conformance};

struct InProcess {
    clock: ManualClock,
    max_keys: u64,
    on_full: OnFull,
}

impl InProcess {
    fn new(max_keys: u64, on_full: OnFull) -> Self {
        Self { clock: ManualClock::default(), max_keys, on_full }
    }
}

impl Harness for InProcess {
    type Store = Arc<Memory<ManualClock>>;

    async fn fresh(&self) -> Self::Store {
        let memory = Memory::new(self.clock.clone());
        Arc::new(memory.max_keys(self.max_keys).on_full(self.on_full))
    }

    async fn set_clock(&self, _store: &Self::Store, now: Micros) {
        self.clock.set(now);
    }
}

#[test]
fn memory_holds_every_contract() {
    for (max_keys, on_full) in [(1_000, OnFull::Evict), (5_000, OnFull::Deny)] {
        block_on(conformance(&InProcess::new(max_keys, on_full))).unwrap();
    }
}

fn window(limit: u64) -> Builtin {
    Window::fixed(limit, Span::from_secs(60)).unwrap().into()
}

fn check(store: &impl Store, policy: &str, strategy: &Builtin) -> Result<bool, StoreError> {
    let op = Op { policy, strategy, key: b"ann", action: Action::Check(Cost::ONE) };
    block_on(store.apply(op)).map(|applied| applied.decision().unwrap().is_admit())
}

#[test]
fn a_policy_above_the_bound_is_an_error_that_says_so() {
    let store = Memory::new(ManualClock::default()).policies_max(2).max_keys(10);
    for policy in ["one", "two", "one"] {
        check(&store, policy, &window(5)).unwrap();
    }
    let error = check(&store, "three", &window(5)).unwrap_err();
    assert_eq!(error, StoreError::TooManyPolicies { max: 2 });
    assert_eq!(error.recovery(), Recovery::Operator);
    assert!(check(&store, "two", &window(5)).unwrap(), "those it has go on");
}

#[test]
fn callers_with_the_old_strategy_and_the_new_one_do_not_reset_each_other() {
    let store = Memory::new(ManualClock::default()).max_keys(10);
    let strategies = [window(2), window(3)];
    let admitted = |strategy| (0..20).filter(|_| check(&store, "api", strategy).unwrap()).count();
    for _ in 0..20 {
        assert!(strategies.iter().map(admitted).sum::<usize>() <= 5);
    }
    assert!(!check(&store, "api", &strategies[0]).unwrap());
    assert!(!check(&store, "api", &strategies[1]).unwrap());
    assert_eq!(store.stats("api").keys, 1);
    assert_eq!(store.stats("never asked").keys, 0);
}

#[test]
fn one_state_under_two_limits_is_refused_in_a_group_and_charges_nothing() {
    let store = Memory::new(ManualClock::default()).max_keys(10);
    let strategies = [window(5), window(7)];
    let limit = |strategy| Limit { policy: "api", strategy, key: b"ann", cost: Cost::ONE };
    let limits = [limit(&strategies[0]), limit(&strategies[1])];
    let group = Group { combine: Combine::All, limits: &limits };
    assert_eq!(block_on(store.several(group)), Err(StoreError::TwoLimits));
    let group = Group { combine: Combine::Any, limits: &limits };
    assert!(block_on(store.several(group)).unwrap().several.decision.is_admit());
    let group = Group { combine: Combine::All, limits: &[limits[0]; 2] };
    let twice = block_on(store.several(group)).unwrap().several;
    assert_eq!(twice.decision.remaining, 2, "one by `any`, two by `all`");
}

#[test]
fn nothing_is_charged_by_a_future_that_is_not_polled() {
    let store = Memory::new(ManualClock::default()).max_keys(10);
    let strategy = window(1);
    let op =
        Op { policy: "api", strategy: &strategy, key: b"ann", action: Action::Check(Cost::ONE) };
    for _ in 0..5 {
        drop(store.apply(op));
    }
    assert!(check(&store, "api", &strategy).unwrap());
}

#[test]
fn a_scripted_store_fails_as_its_script_says_and_charges_only_what_reached_it() {
    let timeout = StoreError::Timeout { waited: Span::from_ms(20) };
    let store = Scripted::new(Memory::new(ManualClock::default()).max_keys(10));
    let hour = Span::from_secs(3_600);
    let strategy = Tat::gcra(Gcra { limit: 3, period: hour, burst: 3 }).unwrap().into();
    assert_eq!(check(&store, "api", &strategy), Ok(true));
    store.fails(StoreError::Unavailable);
    assert_eq!(check(&store, "api", &strategy), Err(StoreError::Unavailable));
    for behavior in [Behavior::fail, Behavior::lose_reply] {
        let error = timeout.clone();
        store.behaves(move |_| behavior(error.clone()));
        let error = check(&store, "api", &strategy).unwrap_err();
        assert_eq!(error, timeout);
        assert_eq!(error.recovery(), Recovery::FailMode, "asking again could charge twice");
    }
    store.serves();
    assert_eq!(check(&store, "api", &strategy), Ok(true), "two of three were charged");
    assert_eq!(check(&store, "api", &strategy), Ok(false));
    assert_eq!(check(store.inner(), "api", &strategy), Ok(false));
    assert_eq!(store.asked(), 6);
}
