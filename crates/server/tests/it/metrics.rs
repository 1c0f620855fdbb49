//! The metrics of a service with every kind of policy: what `docs/METRICS.md` lists and nothing
//! else, bounded whatever keys come.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use admittance::{Cost, GuardSettings, ManualClock, Memory, Micros};
use admittance_proto::v1;
use admittance_server::{
    AnyStore, Asked, Config, Expected, Fail, MetricForm, MetricSource, Service, Terms,
    exposition_of,
};

use crate::live::{self, Live, START_US};

const POLICIES: &str = "
load: { law: delay }
limiters:
  api: { strategy: gcra, limit: 5, period: 1h }
  leased: { strategy: gcra, limit: 100, period: 1h, twoTier: { mode: leased, batch: 5 } }
  remembered: { strategy: fixedWindow, limit: 2, period: 1h, twoTier: { mode: cached-deny } }
  global: { strategy: fixedWindow, limit: 1000, period: 1h, federated: { batch: 16 } }
  tenants: { fairEscrow: { limit: 10, period: 1h } }
  gate: { concurrency: { minLimit: 2, maxLimit: 2 } }
  fleet: { distributedConcurrency: { minLimit: 2, maxLimit: 2 } }
  both: { strategy: gcra, limit: 5, period: 1h, concurrency: { minLimit: 2, maxLimit: 2 } }
  budget: { tokenBudget: { budget: 5, windowMs: 3600000 } }
  priced: { strategy: fixedWindow, limit: 5, period: 1h, joint: { prices: { rate: 2 } } }
  spend: { strategy: fixedWindow, limit: 9, period: 1h, cost: { budget: 9, period: 1h } }
  classed: { load: { class: sheddable } }
  tried: { strategy: gcra, limit: 5, period: 1h, shadow: true }
  beside: { strategy: gcra, limit: 5, period: 1h, shadow: [next] }
  next: { strategy: gcra, limit: 1, period: 1h }
";

const PAGE: &str = include_str!("../../../../docs/METRICS.md");

/// Families by the names that they are listed under: their type, and the labels of their samples.
type Families = BTreeMap<String, (String, BTreeSet<String>)>;

fn config() -> Config {
    Config::parse("test", POLICIES, Fail::Open).expect("valid policies")
}

fn clock() -> ManualClock {
    ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"))
}

/// Services on both kinds of store, over one of which requests came.
async fn services(config: &Config) -> (Live, Arc<Service>) {
    let clock = clock();
    let here = Service::new(config, Arc::new(clock.clone()));
    let here = Live::of(Arc::new(here), clock.clone()).await;
    let store = AnyStore::new(Memory::new(Arc::new(clock.clone())));
    let settings = GuardSettings { clock: Arc::new(clock), ..GuardSettings::default() };
    // Memory has accounts and fleets for this process alone.
    let is_shared =
        |line: &&str| !line.contains("distributedConcurrency") && !line.contains("cost:");
    let policies: Vec<&str> = POLICIES.lines().filter(is_shared).collect();
    let policies = policies.join("\n");
    let config = live::config(&policies, Fail::Open);
    let there = Service::on_store(&config, &store, &settings).expect("servable");
    (here, Arc::new(there))
}

/// Asks for everything once that is counted, for this key.
async fn ask(service: &Service, key: &str) {
    for policy in ["api", "leased", "remembered", "global", "tenants", "classed", "tried", "beside"]
    {
        let _ = service.check(policy, key, Cost::ONE).await;
    }
    let _ = service.check_many("api", &[key.to_owned()], Cost::ONE).await;
    let _ = service.debit("budget", key, Cost::ONE).await;
    let asked = [Asked { policy: "budget", key, units: 1 }];
    let reserved = service.reserve(&asked, Terms::default(), Expected::default()).await.unwrap();
    if let Some(lease) = reserved.lease {
        let _ = service.settle(&asked, lease, true, Expected::default()).await;
    }
    for policy in ["gate", "fleet", "both", "priced", "spend"] {
        if let Ok(admitted) = service.admit(policy, key).await
            && let Some(lease) = admitted.lease
        {
            service.release(&lease.id, false).await.unwrap();
        }
    }
}

/// What a text of OpenMetrics has.
fn exposed(text: &str) -> Families {
    let mut families = Families::new();
    let mut family = (String::new(), String::new());
    for line in text.lines() {
        if let Some(line) = line.strip_prefix("# TYPE ") {
            let (name, kind) = line.split_once(' ').expect("a name and a type");
            let ending = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            family = (format!("{name}{ending}"), kind.to_owned());
            assert!(!families.contains_key(&family.0), "{name} stands twice");
            families.insert(family.0.clone(), (family.1.clone(), BTreeSet::new()));
        } else if !line.starts_with('#') {
            let (name, labels) = sample(line);
            let ending = name.strip_prefix(&*family.0).expect("under its own family");
            let is_histogram = family.1 == "histogram";
            assert!(ending.is_empty() || is_histogram, "{line}");
            families.get_mut(&family.0).unwrap().1.extend(labels);
        }
    }
    families
}

/// The name of a sample, and those of its labels.
fn sample(line: &str) -> (String, Vec<String>) {
    let name: String = line.chars().take_while(|c| !matches!(c, '{' | ' ')).collect();
    let mut labels = Vec::new();
    let mut rest = line[name.len()..].strip_prefix('{').unwrap_or_default();
    while let Some((label, behind)) = rest.split_once("=\"") {
        labels.push(label.trim_start_matches(',').to_owned());
        let end = behind.find('"').expect("no policy here has a quotation mark");
        rest = &behind[end + 1..];
    }
    (name, labels)
}

/// What the page lists.
fn listed(page: &str) -> Families {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let labels = cells[3].split(',').map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        (cells[1].trim_matches('`').to_owned(), (cells[2].to_owned(), labels))
    };
    rows.map(row).collect()
}

/// Where two differ.
fn differences(listed: &Families, exposed: &Families) -> Vec<String> {
    let names: BTreeSet<_> = listed.keys().chain(exposed.keys()).collect();
    let differs = names.into_iter().filter(|name| listed.get(*name) != exposed.get(*name));
    differs.map(|name| format!("{name}: {:?} {:?}", listed.get(name), exposed.get(name))).collect()
}

async fn both() -> Families {
    let (live, there) = services(&config()).await;
    ask(&live.service, "ann").await;
    ask(&there, "ann").await;
    let request = v1::PeekRequest { policy: "api".into(), key: "ann".into() };
    live.client().await.peek(request).await.expect("a reply");
    let mut all = exposed(&exposition_of(&live.service, MetricForm::OpenMetrics));
    for (name, (kind, labels)) in exposed(&exposition_of(&there, MetricForm::OpenMetrics)) {
        let known = all.entry(name).or_insert_with(|| (kind.clone(), BTreeSet::new()));
        assert_eq!(known.0, kind);
        known.1.extend(labels);
    }
    all
}

#[tokio::test]
async fn the_page_lists_every_family_with_its_type_and_labels() {
    let mut listed = listed(PAGE);
    let exposed = both().await;
    // There is room only while somebody is behind.
    listed.remove("admittance_load_room").expect("it is listed");
    assert_eq!(differences(&listed, &exposed), Vec::<String>::new());
}

/// The comparison above finds what it is there for.
#[tokio::test]
async fn a_page_that_says_otherwise_is_found() {
    let exposed = both().await;
    let row = "| `admittance_leases` | gauge | | leases that clients hold here |\n";
    for (what, by) in [
        (row, ""),
        (row, "| `admittance_leases` | counter | | leases that clients hold here |\n"),
        (row, "| `admittance_leases` | gauge | `key` | leases that clients hold here |\n"),
        (row, &format!("{row}| `admittance_more` | gauge | | more |\n")),
    ] {
        assert!(PAGE.contains(what));
        let mut listed = listed(&PAGE.replace(what, by));
        listed.remove("admittance_load_room");
        assert_eq!(differences(&listed, &exposed).len(), 1, "{by}");
    }
}

#[test]
fn names_and_labels_keep_the_rules() {
    let units = ["seconds", "bytes", "ratio"];
    let prefixes = ["millis", "micro", "kilo", "mega", "percent", "minutes", "_ms", "_us"];
    let labels: BTreeSet<&str> = [
        "axis",
        "candidate",
        "class",
        "code",
        "deadline_seconds",
        "door",
        "le",
        "operation",
        "outcome",
        "policy",
        "result",
        "source",
        "state",
        "version",
    ]
    .into();
    for (name, (kind, given)) in listed(PAGE) {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        assert_eq!(name.ends_with("_info"), kind == "info", "{name}");
        assert!(prefixes.iter().all(|prefix| !name.contains(prefix)), "{name}");
        let is_time = ["delay", "duration", "time", "cpu"]
            .iter()
            .any(|word| name.trim_end_matches("_total").split('_').any(|part| part == *word));
        let unit = name.trim_end_matches("_total").rsplit('_').next().unwrap().to_owned();
        assert!(!is_time || units.contains(&unit.as_str()), "{name} is in no base unit");
        assert!(given.iter().all(|label| labels.contains(label.as_str())), "{name}: {given:?}");
    }
}

#[tokio::test]
async fn no_sample_has_a_key_and_their_number_does_not_grow_with_keys() {
    // On a busy machine some would be shed after the first key, and be counted as that.
    let (live, there) = services(&live::config(POLICIES, Fail::Open)).await;
    for service in [&live.service, &there] {
        // Everything that can be counted is, once.
        for _ in 0..12 {
            ask(service, "the-first-key").await;
        }
        let samples = |service: &Service| {
            let text = exposition_of(service, MetricForm::OpenMetrics);
            text.lines().filter(|line| !line.starts_with('#')).count()
        };
        let before = samples(service);
        for key in 0..1_000 {
            ask(service, &format!("needle-{key}")).await;
        }
        for form in [MetricForm::OpenMetrics, MetricForm::Prometheus] {
            let text = exposition_of(service, form);
            assert!(!text.contains("needle") && !text.contains("the-first-key"), "{text}");
        }
        let grown = samples(service) - before;
        // Of all that is counted by source, a denial here and there came first.
        assert!(grown <= 10, "{grown} more after a thousand keys");
        let policies = service.policies().len();
        assert!(before <= 200 + policies * PER_POLICY, "{before} samples");
    }
}

/// The most samples of one policy: results and sources of five operations, five axes twice and one
/// more, and one of each other family.
const PER_POLICY: usize = 5 * 7 + 11 + 20;

#[tokio::test]
async fn decisions_and_denials_are_counted_as_they_were_answered() {
    let clock = clock();
    let service = Service::new(&config(), Arc::new(clock));
    for _ in 0..7 {
        let _ = service.check("api", "ann", Cost::ONE).await.unwrap();
    }
    service.check_many("api", &["ann".into(), "bob".into()], Cost::ONE).await.unwrap();
    assert!(service.check("budget", "ann", Cost::ONE).await.is_err());
    let text = exposition_of(&service, MetricForm::OpenMetrics);
    let line = |labels: &str, count: u64| {
        let line = format!("admittance_decisions_total{{{labels}}} {count}\n");
        assert!(text.contains(&line), "{line} is not in {text}");
    };
    line(r#"policy="api",operation="check",result="allowed",source="store""#, 5);
    line(r#"policy="api",operation="check",result="denied",source="store""#, 2);
    line(r#"policy="api",operation="checkMany",result="allowed",source="store""#, 1);
    line(r#"policy="api",operation="checkMany",result="denied",source="store""#, 1);
    line(r#"policy="budget",operation="check",result="undecided""#, 1);
    assert!(text.contains("admittance_denials_total{policy=\"api\",axis=\"rate\"} 3\n"), "{text}");
    let count = "admittance_decision_duration_seconds_count{operation=\"check\"} 7\n";
    assert!(text.contains(count), "{text}");
    assert!(text.ends_with("# EOF\n"));
    assert!(service.families().iter().any(|family| family.name == "admittance_keys"));
}

#[tokio::test]
async fn requests_are_counted_by_door_and_code() {
    let live = Live::with("limiters: { api: { strategy: gcra, limit: 1, period: 1h } }").await;
    let mut client = live.client().await;
    let request = |policy: &str| v1::CheckRequest {
        policy: policy.into(),
        key: "ann".into(),
        ..v1::CheckRequest::default()
    };
    for _ in 0..3 {
        client.check(request("api")).await.expect("a denial is a reply");
    }
    client.check(request("nope")).await.expect_err("there is none");
    let text = exposition_of(&live.service, MetricForm::Prometheus);
    for line in [
        "admittance_requests_total{door=\"grpc\",operation=\"check\",code=\"OK\"} 3\n",
        "admittance_requests_total{door=\"grpc\",operation=\"check\",code=\"NOT_FOUND\"} 1\n",
        "admittance_connections 1\n",
        "admittance_connections_accepted_total 1\n",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}
