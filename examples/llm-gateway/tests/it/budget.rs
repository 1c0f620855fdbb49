//! Fifty streams at once against one budget: not one token more, and at least 95 % of it.
//!
//! `ADMITTANCE_SEED=n` replays the lengths of the answers; which stream meets the boundary first is
//! the system's to decide. `ADMITTANCE_LONG=1` tries ten times as many seeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Accounts, Said, Stand, ask, cases, seed, stand_with};
use admittance::ManualClock;
use admittance::StoreError;
use admittance::budget::{MemoryAccounts, Payer, Reservation, Together};
use axum::http::StatusCode;
use llm_gateway::fake::Fake;
use llm_gateway::{Began, Metering, Work};
use serde_json::json;

const BUDGET: u64 = 5_000;
const AT_ONCE: usize = 50;
const TENANTS: usize = 5;

/// How requests are made.
#[derive(Clone, Copy, Debug)]
struct Setting {
    seed: u64,
    /// The longest answer.
    longest: u64,
    /// What callers say.
    max_tokens: Option<u64>,
    /// What is reserved at most.
    size: u64,
    /// Whether that is only where learning begins.
    learns: bool,
}

/// What was seen from outside.
#[derive(Debug, Default)]
struct Seen {
    /// Tokens that callers received.
    received: u64,
    /// Streams that were served, and those of them that were ended at the boundary.
    streams: u64,
    cut: u64,
    /// How the team's account stands when all is over.
    spent: u64,
    reserved: u64,
    debt: u64,
    in_flight: u32,
}

impl Seen {
    /// What must hold: the budget to the token, hardly anything stranded, nothing left behind.
    fn judge(&self) -> Result<(), String> {
        let Self { received, spent, reserved, debt, in_flight, .. } = *self;
        if received > BUDGET {
            return Err(format!("{received} tokens were received of {BUDGET}"));
        }
        if received * 100 < BUDGET * 95 {
            return Err(format!("only {received} tokens were received of {BUDGET}"));
        }
        if (spent, reserved, debt, in_flight) != (received, 0, 0, 0) {
            return Err(format!("the books are wrong: {self:?}"));
        }
        Ok(())
    }
}

/// Callers of one team, each of whom asks until it is refused.
async fn run<M: Metering>(setting: Setting, wrap: impl FnOnce(Accounts) -> M) -> Seen {
    let Setting { seed, longest, max_tokens, size, learns } = setting;
    let mut config = format!("size = {size}\nat_once = {AT_ONCE}\ncharge_prompt = false\n");
    if learns {
        config += "learn_up_to = 250\n";
    }
    for tenant in 0..TENANTS {
        config +=
            &format!("[tenants.t{tenant}]\nkey = \"k{tenant}\"\nteam = \"all\"\nday = 99999\n");
    }
    config += &format!("[teams.all]\nminute = {BUDGET}\nday = 99999\n");
    let fake = Fake::new(seed, longest);
    let stand = Arc::new(stand_with(&config, fake, wrap, |_| {}).await);
    let next = Arc::new(AtomicU64::new(0));
    let callers = (0..AT_ONCE).map(|caller| {
        let (stand, next) = (Arc::clone(&stand), Arc::clone(&next));
        tokio::spawn(async move { call(&stand, caller % TENANTS, &next, max_tokens).await })
    });
    let callers: Vec<_> = callers.collect();
    let mut seen = Seen::default();
    for caller in callers {
        for (number, received, is_cut) in caller.await.unwrap() {
            seen.received += received;
            seen.streams += 1;
            seen.cut += u64::from(is_cut);
            let most = max_tokens.unwrap_or(u64::MAX);
            let length = stand.fake.length(number).min(most);
            assert!(received == length || is_cut && received < length, "{received} of {length}");
        }
    }
    stand.quiet().await;
    compare_with_upstream(&stand, &seen);
    let team = stand.account("k0", 1).await;
    assert_eq!((&team["account"], &team["window"]), (&json!("team all"), &json!("minute")));
    let number = |name: &str| team[name].as_u64().unwrap();
    (seen.spent, seen.reserved, seen.debt) = (number("spent"), number("reserved"), number("debt"));
    seen.in_flight = stand.gateway.gate_stats().in_flight;
    seen
}

/// One caller: the number of each of its requests, how many tokens it received, and whether it was
/// ended at the boundary.
async fn call<M: Metering>(
    stand: &Stand<M>,
    tenant: usize,
    next: &AtomicU64,
    max_tokens: Option<u64>,
) -> Vec<(u64, u64, bool)> {
    let mut streams = Vec::new();
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let request = ask(json!({ "seed": number, "max_tokens": max_tokens }));
        let answer = stand.post(&format!("k{tenant}"), &request).await;
        if answer.status != StatusCode::OK {
            assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
            return streams;
        }
        let said = answer.said().await;
        assert!(said.is_done && said.error.is_none(), "{said:?}");
        let length = stand.fake.length(number).min(max_tokens.unwrap_or(u64::MAX));
        let is_cut = said.finish_reason.as_deref() == Some("length") && said.count() < length;
        streams.push((number, said.count(), is_cut));
    }
}

/// The upstream's own record says the same.
fn compare_with_upstream<M>(stand: &Stand<M>, seen: &Seen) {
    let served = stand.fake.served();
    assert_eq!(served.len() as u64, seen.streams);
    let made: u64 = served.iter().map(|one| one.made).sum();
    assert!(seen.received <= made, "nobody receives what was not made");
    let whole = served.iter().filter(|one| one.made == one.tokens).count() as u64;
    assert!(whole >= seen.streams - seen.cut, "whoever was not cut off had all that was made");
}

fn settings(cases: u64) -> impl Iterator<Item = Setting> {
    let kinds = [(200, None, 64), (200, Some(4_096), 1), (200, Some(32), 64), (400, None, 240)];
    let seeds = seed()..seed() + cases;
    seeds.flat_map(move |seed| {
        let fixed = kinds.map(|(longest, max_tokens, size)| Setting {
            seed,
            longest,
            max_tokens,
            size,
            learns: false,
        });
        let learned = Setting { learns: true, ..fixed[0] };
        fixed.into_iter().chain([learned])
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_streams_hold_one_budget_to_the_token_and_use_nearly_all_of_it() {
    for setting in settings(cases(3)) {
        let seen = run(setting, |meter| meter).await;
        let share = seen.received * 1_000 / BUDGET;
        println!("{setting:?}: {seen:?}: {}.{} % of the budget", share / 10, share % 10);
        seen.judge().unwrap_or_else(|reason| panic!("{setting:?}: {reason}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_that_end_badly_leave_nothing_behind_and_get_no_more_either() {
    for seed in seed()..seed() + cases(2) {
        let config = format!(
            "size = 64\ncharge_prompt = false\nat_once = {AT_ONCE}
            [tenants.t]\nkey = \"k\"\nminute = {BUDGET}"
        );
        let fake = Fake::new(seed, 200);
        let stand = Arc::new(stand_with(&config, fake, |meter| meter, |_| {}).await);
        let callers = (0..AT_ONCE as u64).map(|caller| {
            let stand = Arc::clone(&stand);
            tokio::spawn(async move { trouble(&stand, seed * 1_000 + caller).await })
        });
        let mut received = 0;
        for caller in callers.collect::<Vec<_>>() {
            received += caller.await.unwrap();
        }
        stand.quiet().await;
        let account = stand.account("k", 0).await;
        let spent = account["spent"].as_u64().unwrap();
        println!("seed {seed}: received {received}, spent {spent} of {BUDGET}");
        // Whoever hangs up pays for what was on its way.
        assert!(received <= spent && spent <= BUDGET, "seed {seed}: {received}, {spent}");
        for name in ["reserved", "debt", "open"] {
            assert_eq!(account[name], 0, "seed {seed}: {account}");
        }
        let notes = stand.gateway.notes();
        assert!(notes.hung_up.load(Ordering::Relaxed) > 0, "{notes:?}");
        assert!(notes.failed.load(Ordering::Relaxed) > 0, "{notes:?}");
    }
}

/// A caller that hangs up and whose upstream fails now and then, until it is refused; how many
/// tokens it received.
async fn trouble<M: Metering>(stand: &Stand<M>, seed: u64) -> u64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut received = 0;
    loop {
        let after = rng.u64(1..60);
        let (fake, hangs_up_after) = match rng.u8(..5) {
            0 => (json!({ "break_after": after }), None),
            1 => (json!({ "status": 500 }), None),
            2 => (json!({ "usage": false }), None),
            3 => (json!({}), Some(after)),
            _ => (json!({}), None),
        };
        let request = ask(json!({ "seed": rng.u32(..), "fake": fake }));
        let mut answer = stand.post("k", &request).await;
        match answer.status {
            StatusCode::OK => {}
            StatusCode::INTERNAL_SERVER_ERROR => continue,
            // A place is free a moment after its caller has hung up.
            StatusCode::SERVICE_UNAVAILABLE => {
                tokio::task::yield_now().await;
                continue;
            }
            StatusCode::TOO_MANY_REQUESTS => return received,
            other => panic!("{other}"),
        }
        let mut said = Said::default();
        while said.count() < hangs_up_after.unwrap_or(u64::MAX) && answer.hear(&mut said).await {}
        received += said.count();
    }
}

/// Answers that are all longer than what is left for each: every stream meets the boundary.
fn crowded() -> Setting {
    Setting { seed: seed(), longest: 100_000, max_tokens: Some(300), size: 50, learns: false }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn streams_that_all_meet_the_boundary_get_exactly_the_budget() {
    let seen = run(crowded(), |meter| meter).await;
    seen.judge().unwrap();
    assert_eq!(seen.received, BUDGET, "whoever is ended at the boundary has left nothing");
    assert!(seen.cut > 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_proxy_that_debits_after_it_served_is_caught() {
    let seen = run(crowded(), Late).await;
    let reason = seen.judge().unwrap_err();
    assert!(reason.contains("were received"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_proxy_that_counts_at_the_end_is_caught() {
    let seen = run(crowded(), AtTheEnd).await;
    let reason = seen.judge().unwrap_err();
    assert!(reason.contains("were received"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_proxy_that_reserves_all_that_may_come_is_caught_stranding_the_budget() {
    // What some do instead of metering: nothing is exceeded, and much is refused that would fit.
    let setting =
        Setting { seed: seed(), longest: 20, max_tokens: None, size: 2_000, learns: false };
    let reason = run(setting, |meter| meter).await.judge().unwrap_err();
    assert!(reason.contains("only"), "{reason}");
}

type Held = Reservation<MemoryAccounts<ManualClock>>;

/// A broken meter: what was served is debited with the next chunk.
struct Late(Accounts);

struct LateWork {
    held: Held,
    served: u64,
}

impl Metering for Late {
    type Work = LateWork;

    async fn reserve(&self, payer: Payer, tokens: u64) -> Result<Began<LateWork>, StoreError> {
        Ok(match Metering::reserve(&self.0, payer, tokens).await? {
            Began::Held(held) => Began::Held(LateWork { held, served: 0 }),
            Began::Denied(together) => Began::Denied(together),
        })
    }

    async fn look(&self, payer: &Payer) -> Result<Together, StoreError> {
        self.0.look(payer).await
    }
}

impl Work for LateWork {
    async fn debit(&mut self, tokens: u64) -> Result<Together, StoreError> {
        let served = std::mem::replace(&mut self.served, tokens);
        self.held.debit(served).await
    }

    async fn settle(self, actual: u64) -> Result<(), StoreError> {
        Work::settle(self.held, actual).await
    }
}

/// A broken meter: nothing is debited, all is told at the end.
struct AtTheEnd(Accounts);

struct AtTheEndWork(Held);

impl Metering for AtTheEnd {
    type Work = AtTheEndWork;

    async fn reserve(&self, payer: Payer, tokens: u64) -> Result<Began<Self::Work>, StoreError> {
        Ok(match Metering::reserve(&self.0, payer, tokens).await? {
            Began::Held(held) => Began::Held(AtTheEndWork(held)),
            Began::Denied(together) => Began::Denied(together),
        })
    }

    async fn look(&self, payer: &Payer) -> Result<Together, StoreError> {
        self.0.look(payer).await
    }
}

impl Work for AtTheEndWork {
    async fn debit(&mut self, _: u64) -> Result<Together, StoreError> {
        self.0.debit(0).await
    }

    async fn settle(self, actual: u64) -> Result<(), StoreError> {
        Work::settle(self.0, actual).await
    }
}
