//! The real binary reads its file again under load: nothing is lost, nobody is refused.

use crate::service;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use admittance_proto::budgets::budgets_client::BudgetsClient;
use admittance_proto::budgets::{Charge, LookRequest};
use admittance_proto::v1;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::service::Service;

type Client = RateLimiterClient<Channel>;

/// A file that is removed with its directory.
struct Policies(PathBuf);

impl Policies {
    fn new(name: &str, text: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let policies = Self(directory.join("policies.yaml"));
        policies.write(text);
        policies
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Puts another file in its place, whole.
    fn write(&self, text: &str) {
        let other = self.0.with_extension("new");
        std::fs::write(&other, text).unwrap();
        std::fs::rename(other, &self.0).unwrap();
    }
}

impl Drop for Policies {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap_or(Path::new("")));
    }
}

/// The file of a turn: some policies stay, some change, some come and go. `turn-N` says that it
/// serves.
fn file(turn: u64) -> String {
    let places = 40 + turn % 3;
    let fail = ["open", "closed"][usize::try_from(turn % 2).unwrap()];
    let budget = 1_000_000_000 + turn % 5;
    let extra =
        if turn.is_multiple_of(2) { "" } else { "  extra: { concurrency: { maxLimit: 5 } }\n" };
    format!(
        "limiters:
  api: {{ strategy: fixedWindow, limit: 1000000000, period: 30d, fail: {fail} }}
  kept: {{ strategy: fixedWindow, limit: 1000000000, period: 30d }}
  gate: {{ concurrency: {{ minLimit: {places}, maxLimit: {places} }}, leaseTtl: 60s }}
  tokens: {{ tokenBudget: {{ budget: {budget}, period: 30d }} }}
{extra}  turn-{turn}: {{ strategy: gcra, limit: 5, period: 1h }}
"
    )
}

#[derive(Default)]
struct Counts {
    api: AtomicU64,
    kept: AtomicU64,
    tokens: AtomicU64,
    admitted: AtomicU64,
    over: AtomicBool,
}

async fn connect(service: &Service) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", service.address)).unwrap();
    endpoint.connect().await.unwrap()
}

async fn check(client: &mut Client, policy: &str) -> Result<v1::Decision, Status> {
    let request = v1::CheckRequest { policy: policy.into(), key: "k".into(), cost: 1 };
    let checked = client.check(request).await?.into_inner();
    checked.decision.ok_or_else(|| Status::internal("no decision"))
}

/// Asks for everything, over and over, and counts what was admitted.
async fn call(mut client: Client, counts: Arc<Counts>) -> Result<(), Status> {
    while !counts.over.load(Ordering::Relaxed) {
        for (policy, count) in [("api", &counts.api), ("kept", &counts.kept)] {
            let is_allowed = check(&mut client, policy).await?.allowed;
            count.fetch_add(u64::from(is_allowed), Ordering::Relaxed);
        }
        let debit = v1::DebitRequest { policy: "tokens".into(), key: "k".into(), tokens: 3 };
        client.debit(debit).await?;
        counts.tokens.fetch_add(3, Ordering::Relaxed);
        let admit =
            v1::AdmitRequest { policy: "gate".into(), key: "k".into(), ..Default::default() };
        let admitted = client.admit(admit).await?.into_inner();
        if admitted.lease_id.is_empty() {
            continue;
        }
        counts.admitted.fetch_add(1, Ordering::Relaxed);
        let lease_ids = vec![admitted.lease_id.clone()];
        let heard = client.heartbeat(v1::HeartbeatRequest { lease_ids }).await?.into_inner();
        if heard.live_ids.len() != 1 {
            return Err(Status::internal("a lease was forgotten"));
        }
        let release = v1::ReleaseRequest { lease_id: admitted.lease_id, dropped: false };
        client.release(release).await?;
    }
    Ok(())
}

/// Waits until this policy answers.
async fn served(client: &mut Client, policy: &str) {
    loop {
        match check(client, policy).await {
            Ok(_) => return,
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => panic!("{status}"),
        }
    }
}

#[tokio::test]
async fn hundreds_of_reloads_under_load_lose_nothing_and_answer_everybody() {
    let turns = if std::env::var_os("ADMITTANCE_LONG").is_some() { 2_000 } else { 200 };
    let policies = Policies::new("admittance-reloads", &file(0));
    let quiet = ["--no-watch", "--log-denials", "0"];
    let mut service = Service::start(&[&quiet[..], &["--config", policies.path()]].concat());
    let channel = connect(&service).await;
    let mut client = Client::new(channel.clone());
    let counts = Arc::new(Counts::default());
    let callers: Vec<_> = (0..8)
        .map(|_| tokio::spawn(call(Client::new(channel.clone()), Arc::clone(&counts))))
        .collect();
    for turn in 1..=turns {
        policies.write(&file(turn));
        service.signal("HUP");
        served(&mut client, &format!("turn-{turn}")).await;
        // Each is told, in one line.
        let said = service.complains(": reloaded: ");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    counts.over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap().unwrap();
    }
    let count = |count: &AtomicU64| i64::try_from(count.load(Ordering::Relaxed)).unwrap();
    let least = 10;
    for (policy, spent) in [("api", count(&counts.api)), ("kept", count(&counts.kept))] {
        let peek = v1::PeekRequest { policy: policy.into(), key: "k".into() };
        let peeked = client.peek(peek).await.unwrap().into_inner().decision.unwrap();
        assert_eq!(1_000_000_000 - peeked.remaining, spent, "{policy}");
        assert!(spent > least, "{policy}: {spent}");
    }
    let charges = vec![Charge { policy: "tokens".into(), key: "k".into(), units: None }];
    let look = BudgetsClient::new(channel.clone()).look(LookRequest { charges }).await.unwrap();
    let answer = look.into_inner().answer.unwrap();
    assert_eq!(answer.accounts[0].spent, count(&counts.tokens), "tokens");
    assert!(count(&counts.admitted) > least);
    // As many places as the last file has, and not one more: all others came back.
    let places = 40 + turns % 3;
    for place in 0..=places {
        let admit =
            v1::AdmitRequest { policy: "gate".into(), key: "k".into(), ..Default::default() };
        let admitted = client.admit(admit).await.unwrap().into_inner();
        assert_eq!(!admitted.lease_id.is_empty(), place < places, "place {place} of {places}");
    }
    service.signal("TERM");
    // Aside: the connection must be able to close.
    let (code, complaints) = tokio::task::spawn_blocking(|| service.wait()).await.unwrap();
    assert_eq!((code, complaints.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn a_broken_file_is_told_with_its_line_and_the_old_policies_answer() {
    let policies = Policies::new("admittance-broken", &file(0));
    let mut service = Service::start(&["--no-watch", "--config", policies.path()]);
    let mut client = Client::new(connect(&service).await);
    assert!(check(&mut client, "api").await.unwrap().allowed);
    policies.write("limiters:\n  api: { strategy: gcra, limmit: 5, period: 1h }\n");
    service.signal("HUP");
    let said = service.complains("not reloaded; the old policies stay");
    assert!(said.contains("policies.yaml:2:26: limiters.api.limmit: unknown key"), "{said}");
    assert!(check(&mut client, "turn-0").await.unwrap().allowed);
    // The same for what no store here can serve, and for what only a restart can change.
    policies.write("limiters:\n  d: { distributedConcurrency: { maxLimit: 5 } }\n");
    service.signal("HUP");
    let said = service.complains("not reloaded; the old policies stay");
    assert!(said.contains("needs a store that instances share"), "{said}");
    // A pipe is no file, and nobody waits for what comes out of it.
    std::fs::remove_file(policies.path()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(policies.path()).status();
    assert!(made.unwrap().success());
    service.signal("HUP");
    let said = service.complains("not reloaded; the old policies stay");
    assert!(said.contains("it is no file"), "{said}");
    policies.write(&file(7));
    service.signal("HUP");
    let said = service.complains(": reloaded: ");
    assert!(said.contains("added extra, turn-7; removed turn-0; changed api, gate"), "{said}");
    served(&mut client, "turn-7").await;
    service.signal("TERM");
    assert_eq!(service.wait().0, Some(0));
}

#[tokio::test]
async fn a_file_that_changes_is_read_without_a_signal() {
    let policies = Policies::new("admittance-watched", &file(0));
    let service = Service::start(&["--config", policies.path()]);
    let mut client = Client::new(connect(&service).await);
    policies.write(&file(1));
    served(&mut client, "turn-1").await;
    // A service that serves its own examples has nothing to read, and goes on.
    let built_in = Service::start(&[]);
    built_in.signal("HUP");
    let mut client = Client::new(connect(&built_in).await);
    assert!(check(&mut client, "api").await.unwrap().allowed);
    built_in.signal("TERM");
    assert_eq!(built_in.wait().0, Some(0));
}

#[test]
fn the_schema_is_printed() {
    let printed = service::run(&["policy", "schema"]);
    assert!(printed.status.success());
    let text = String::from_utf8(printed.stdout).unwrap();
    assert!(text.contains("https://json-schema.org/draft/2020-12/schema"), "{text}");
}
