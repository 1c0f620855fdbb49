//! However a request ends: what it cost is settled, and nothing stays reserved or in flight.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::common::{Accounts, Said, Stand, ask, stand, stand_with, until};
use admittance::budget::{Payer, Together};
use admittance::{Span, StoreError};
use axum::http::StatusCode;
use llm_gateway::fake::Fake;
use llm_gateway::{Began, Metering, OnSoftStop, Work};
use serde_json::{Value, json};

/// One tenant with so many tokens a minute, whose prompts cost nothing.
fn config(minute: u64) -> String {
    format!("size = 20\ncharge_prompt = false\n{}", tenants(minute))
}

fn tenants(minute: u64) -> String {
    format!("[tenants.ann]\nkey = \"ann\"\nminute = {minute}\n")
}

fn fake() -> Fake {
    Fake::new(1, 100)
}

/// Spent, reserved and debt, when all is quiet.
async fn books(stand: &Stand<Accounts>) -> (u64, u64, u64) {
    stand.quiet().await;
    let account = stand.account("ann", 0).await;
    assert_eq!(account["open"], 0, "no lease is left behind");
    let number = |name: &str| account[name].as_u64().unwrap();
    (number("spent"), number("reserved"), number("debt"))
}

fn count(count: &AtomicU64) -> u64 {
    count.load(Relaxed)
}

#[tokio::test]
async fn an_answer_that_ends_is_charged_by_the_upstreams_usage() {
    let stand = stand(&format!("size = 20\n{}", tenants(1_000)), fake()).await;
    let request = ask(json!({ "fake": { "tokens": 30, "prompt": 4 } }));
    let said = stand.post("ann", &request).await.said().await;
    assert_eq!((said.count(), said.finish_reason.as_deref()), (30, Some("stop")));
    assert!(said.is_done);
    assert_eq!(said.usage, None, "nobody asked for it");
    assert_eq!(books(&stand).await, (34, 0, 0), "not by the estimate of its prompt");
    let sent = &stand.fake.served()[0].request;
    assert_eq!(sent["stream_options"], json!({ "include_usage": true }));
    assert_eq!(sent["model"], "fake-1", "what the caller sends is passed on");

    let request = ask(json!({ "fake": { "tokens": 3, "prompt": 4 },
        "stream_options": { "include_usage": true } }));
    let said = stand.post("ann", &request).await.said().await;
    assert_eq!(said.usage.unwrap()["total_tokens"], 7);
    assert_eq!(books(&stand).await, (41, 0, 0));
}

#[tokio::test]
async fn without_usage_an_answer_is_charged_by_what_was_debited() {
    let stand = stand(&config(1_000), fake()).await;
    let request = ask(json!({ "fake": { "tokens": 33, "usage": false } }));
    assert_eq!(stand.post("ann", &request).await.said().await.count(), 33);
    assert_eq!(books(&stand).await, (33, 0, 0));
}

#[tokio::test]
async fn what_an_upstream_counts_beyond_what_it_streams_is_owed() {
    let stand = stand(&format!("size = 20\n{}", tenants(100)), fake()).await;
    let request = ask(json!({ "fake": { "tokens": 10, "prompt": 150 } }));
    assert_eq!(stand.post("ann", &request).await.said().await.count(), 10);
    let (spent, reserved, debt) = books(&stand).await;
    assert_eq!((spent + debt, reserved), (160, 0));
    assert!(debt > 0);
    let denied = stand.post("ann", &request).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(denied.json().await["error"]["message"].as_str().unwrap().contains("0 of 100"));
}

#[tokio::test]
async fn at_the_boundary_a_stream_ends_as_if_it_had_been_asked_for_no_more() {
    let stand = stand(&config(50), fake()).await;
    let request = ask(json!({ "fake": { "tokens": 90, "stall_after": 80 },
        "stream_options": { "include_usage": true } }));
    let said = stand.post("ann", &request).await.said().await;
    assert_eq!((said.count(), said.finish_reason.as_deref()), (50, Some("length")));
    assert!(said.is_done);
    assert_eq!(said.usage.unwrap()["completion_tokens"], 50);
    assert_eq!(books(&stand).await, (50, 0, 0));
    assert!(stand.fake.served()[0].is_cancelled, "the upstream need not go on");
    assert_eq!(count(&stand.gateway.notes().stops), 1);
    assert_eq!(count(&stand.gateway.notes().soft_stops), 1, "it was told before");
}

#[tokio::test]
async fn a_soft_stop_is_only_noted_or_ends_the_sentence() {
    // A twentieth of 400 is little: it begins to be said when 380 are spent.
    let request = ask(json!({ "fake": { "tokens": 393 } }));
    for (then, tokens, reason) in
        [(OnSoftStop::Finish, 393, "stop"), (OnSoftStop::Sentence, 380, "length")]
    {
        let change = |config: &mut llm_gateway::Config| config.options.on_soft_stop = then;
        let stand = stand_with(&config(400), fake(), |meter| meter, change).await;
        let said = stand.post("ann", &request).await.said().await;
        assert_eq!((said.count(), said.finish_reason.as_deref()), (tokens, Some(reason)));
        assert!(said.is_done && said.tokens.iter().any(|token| token.ends_with('.')));
        assert_eq!(books(&stand).await, (tokens, 0, 0));
        assert_eq!(count(&stand.gateway.notes().soft_stops), 1);
    }
}

#[tokio::test]
async fn callers_that_hang_up_pay_for_what_they_were_sent() {
    let stand = stand(&config(1_000), fake()).await;
    let mut spent = 0;
    for tokens in [1, 7, 19, 20, 21, 60] {
        let request = ask(json!({ "fake": { "tokens": 90, "stall_after": tokens } }));
        let mut answer = stand.post("ann", &request).await;
        let mut said = Said::default();
        while said.count() < tokens {
            assert!(answer.hear(&mut said).await);
        }
        assert_eq!(stand.gateway.gate_stats().in_flight, 1);
        drop(answer);
        spent += tokens;
        assert_eq!(books(&stand).await, (spent, 0, 0), "after {tokens}");
        assert!(stand.fake.served().last().unwrap().is_cancelled);
    }
    assert_eq!(count(&stand.gateway.notes().hung_up), 6);
}

#[tokio::test]
async fn a_caller_that_hangs_up_before_an_answer_in_one_piece_pays_for_all_that_may_have_been_made()
{
    let stand = stand(&config(1_000), fake()).await;
    let request = ask(json!({ "stream": false, "max_tokens": 40, "fake": { "stall_after": 0 } }));
    tokio::select! {
        _ = stand.post("ann", &request) => panic!("there is no answer"),
        () = until(|| stand.fake.served().len() == 1) => {}
    }
    assert_eq!(books(&stand).await, (40, 0, 0));
    assert!(stand.fake.served()[0].is_cancelled);
}

#[tokio::test]
async fn an_upstream_that_fails_before_the_first_byte_costs_nothing_and_its_error_is_passed_on() {
    let stand = stand(&format!("size = 20\n{}", tenants(1_000)), fake()).await;
    for (status, stream) in [(500, true), (429, true), (400, true), (503, false)] {
        let request = ask(json!({ "stream": stream, "fake": { "status": status } }));
        let answer = stand.post("ann", &request).await;
        assert_eq!(answer.status.as_u16(), status);
        assert_eq!(answer.headers["retry-after"], "7");
        assert_eq!(answer.json().await["error"]["message"], "as you asked");
        assert_eq!(books(&stand).await, (0, 0, 0));
    }
    assert_eq!(stand.gateway.gate_stats().overloaded, 3, "a request that is wrong is no overload");
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_costs_nothing() {
    // A port that was just free, and that nobody listens on.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let change = |config: &mut llm_gateway::Config| config.upstream = format!("http://{free}/v1");
    let stand = stand_with(&config(1_000), fake(), |meter| meter, change).await;
    let answer = stand.post("ann", &ask(json!({}))).await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY);
    assert_eq!(answer.json().await["error"]["code"], "upstream_unreachable");
    assert_eq!(books(&stand).await, (0, 0, 0));
}

#[tokio::test]
async fn an_upstream_that_breaks_off_or_stalls_is_charged_for_what_came() {
    // The wait is short so that the test is; how much came within it is not the test's business.
    let change =
        |config: &mut llm_gateway::Config| config.options.idle = Duration::from_millis(200);
    let stand = stand_with(&config(1_000), fake(), |meter| meter, change).await;
    let mut spent = 0;
    for (trouble, code) in [
        (json!({ "tokens": 90, "break_after": 30 }), "upstream_broken"),
        (json!({ "tokens": 90, "stall_after": 30 }), "upstream_timeout"),
    ] {
        let said = stand.post("ann", &ask(json!({ "fake": trouble }))).await.said().await;
        assert_eq!(said.error.as_ref().unwrap()["code"], code);
        assert!(!said.is_done, "an answer that broke off does not look whole");
        spent += said.count();
        assert_eq!(books(&stand).await, (spent, 0, 0));
    }
    assert_eq!(count(&stand.gateway.notes().failed), 2);
}

#[tokio::test]
async fn an_upstream_that_gives_no_answer_in_time_costs_nothing() {
    let change = |config: &mut llm_gateway::Config| {
        config.options.answer = Duration::from_millis(200);
    };
    let stand = stand_with(&config(1_000), fake(), |meter| meter, change).await;
    let request = ask(json!({ "stream": false, "fake": { "stall_after": 0 } }));
    let answer = stand.post("ann", &request).await;
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(answer.json().await["error"]["code"], "upstream_timeout");
    assert_eq!(books(&stand).await, (0, 0, 0));
}

#[tokio::test]
async fn an_answer_in_one_piece_is_no_longer_than_what_was_reserved_for_it() {
    let stand = stand(&config(1_000), fake()).await;
    let request =
        ask(json!({ "stream": false, "fake": { "tokens": 90 }, "logit_bias": { "1": 2 } }));
    let answer = stand.post("ann", &request).await;
    assert_eq!(answer.status, StatusCode::OK);
    let whole = answer.json().await;
    assert_eq!(whole["usage"]["completion_tokens"], 20, "nobody said how long it may be");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(books(&stand).await, (20, 0, 0));
    let sent = &stand.fake.served()[0].request;
    assert_eq!((&sent["max_tokens"], &sent["logit_bias"]), (&json!(20), &json!({ "1": 2 })));

    let with = |max_tokens: u64, fake: Value| {
        ask(json!({ "stream": false, "max_tokens": max_tokens, "fake": fake }))
    };
    stand.post("ann", &with(500, json!({ "tokens": 90 }))).await.json().await;
    assert_eq!(books(&stand).await, (110, 0, 0), "what it did not need came back");
    stand.post("ann", &with(50, json!({ "tokens": 9, "usage": false }))).await.json().await;
    assert_eq!(books(&stand).await, (160, 0, 0), "nobody knows, so all that it may have been");
    let denied = stand.post("ann", &with(900, json!({}))).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(stand.fake.served().len(), 3);
}

#[tokio::test]
async fn what_cannot_be_debited_is_not_passed_on() {
    let wrap = |meter| FailsAfter { meter, debits: 9 };
    let stand = stand_with(&config(1_000), fake(), wrap, |_| {}).await;
    let said = stand.post("ann", &ask(json!({ "fake": { "tokens": 90 } }))).await.said().await;
    // Of the debits, one was for the prompt and one for the chunk that tells the role.
    assert_eq!(said.count(), 7);
    assert_eq!(said.error.unwrap()["code"], "budgets_unavailable");
    stand.quiet().await;
    let account = stand.account("ann", 0).await;
    assert_eq!((&account["spent"], &account["reserved"]), (&json!(7), &json!(0)));
}

/// A store that is gone after so many debits, and back for the settlement.
struct FailsAfter {
    meter: Accounts,
    debits: u64,
}

struct Failing<W> {
    work: W,
    debits: u64,
}

impl Metering for FailsAfter {
    type Work = Failing<<Accounts as Metering>::Work>;

    async fn reserve(&self, payer: Payer, tokens: u64) -> Result<Began<Self::Work>, StoreError> {
        Ok(match Metering::reserve(&self.meter, payer, tokens).await? {
            Began::Held(work) => Began::Held(Failing { work, debits: self.debits }),
            Began::Denied(together) => Began::Denied(together),
        })
    }

    async fn look(&self, payer: &Payer) -> Result<Together, StoreError> {
        self.meter.look(payer).await
    }
}

impl<W: Work> Work for Failing<W> {
    async fn debit(&mut self, tokens: u64) -> Result<Together, StoreError> {
        self.debits = self.debits.checked_sub(1).ok_or(StoreError::Unavailable)?;
        self.work.debit(tokens).await
    }

    async fn settle(self, actual: u64) -> Result<(), StoreError> {
        self.work.settle(actual).await
    }
}

#[tokio::test]
async fn a_key_that_nobody_has_is_told_so() {
    let stand = stand(&config(1_000), fake()).await;
    for path in ["/v1/chat/completions", "/v1/budget"] {
        let method = if path == "/v1/budget" { "GET" } else { "POST" };
        let answer = stand.send(method, path, "eve", ask(json!({})).to_string()).await;
        assert_eq!(answer.status, StatusCode::UNAUTHORIZED);
        let error = answer.json().await["error"].clone();
        assert_eq!(error["code"], "invalid_api_key");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["param"].is_null() && error["message"].is_string());
    }
}

#[tokio::test]
async fn a_request_that_is_none_is_told_what_is_wrong() {
    let stand = stand(&config(1_000), fake()).await;
    for (body, says) in [
        ("{", "JSON"),
        ("[]", "JSON"),
        ("{\"messages\": 1}", "`messages`"),
        ("{\"messages\": [], \"max_tokens\": -1}", "`max_tokens`"),
        ("{\"messages\": [], \"n\": 1000}", "`n`"),
    ] {
        let answer = stand.send("POST", "/v1/chat/completions", "ann", body.into()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        let message = answer.json().await["error"]["message"].to_string();
        assert!(message.contains(says), "{message}");
    }
    assert_eq!(books(&stand).await, (0, 0, 0));
}

#[tokio::test]
async fn a_refusal_says_whose_budget_which_window_and_how_long_to_wait() {
    let config = "size = 20\ncharge_prompt = false
        [tenants.ann]\nkey = \"ann\"\nteam = \"blue\"\nminute = 100\nday = 1000
        [tenants.bob]\nkey = \"bob\"\nteam = \"blue\"\nminute = 60
        [teams.blue]\nday = 120";
    let stand = stand(config, fake()).await;
    stand.clock.advance(Span::from_secs(5));
    let request = ask(json!({ "fake": { "tokens": 90 } }));
    let said = stand.post("ann", &request).await.said().await;
    assert_eq!(said.count(), 90);

    let denied = stand.post("ann", &request).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.headers["retry-after"], "55");
    let error = denied.json().await["error"].clone();
    assert_eq!((&error["type"], &error["code"]), (&json!("tokens"), &json!("rate_limit_exceeded")));
    assert_eq!((&error["account"], &error["window"]), (&json!("tenant ann"), &json!("minute")));

    // Waiting exactly so long is enough for the minute; then the team's day ends it.
    stand.clock.advance(Span::from_secs(55));
    let said = stand.post("ann", &request).await.said().await;
    assert_eq!((said.count(), said.finish_reason.as_deref()), (30, Some("length")));
    let denied = stand.post("bob", &request).await;
    assert_eq!(denied.headers["retry-after"], (86_400 - 60).to_string().as_str());
    let error = denied.json().await["error"].clone();
    assert_eq!((&error["account"], &error["window"]), (&json!("team blue"), &json!("day")));

    // What never fits is not to be tried again.
    let denied = stand.post("bob", &ask(json!({ "stream": false, "max_tokens": 61 }))).await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(!denied.headers.contains_key("retry-after"));
    assert_eq!(denied.headers["x-should-retry"], "false");
    assert_eq!(
        stand.account("bob", 1).await,
        json!({
            "account": "team blue", "window": "day", "limit": 120, "left": 0, "spent": 120,
            "reserved": 0, "debt": 0, "open": 0, "window_end": 86_400,
        })
    );
}

#[tokio::test]
async fn when_all_places_are_taken_a_caller_is_told_to_come_back() {
    let stand = stand(&format!("at_once = 1\n{}", config(1_000)), fake()).await;
    let slow = ask(json!({ "fake": { "tokens": 90, "stall_after": 2 } }));
    let running = stand.post("ann", &slow).await;
    let denied = stand.post("ann", &ask(json!({}))).await;
    assert_eq!(denied.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(denied.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(denied.json().await["error"]["code"], "overloaded");
    let health = stand.send("GET", "/healthz", "", String::new()).await.json().await;
    assert_eq!((&health["in_flight"], &health["refused"]), (&json!(1), &json!(1)));
    drop(running);
    stand.quiet().await;
    let said = stand.post("ann", &ask(json!({ "fake": { "tokens": 3 } }))).await.said().await;
    assert_eq!(said.count(), 3);
    stand.quiet().await;
}
