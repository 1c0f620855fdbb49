//! The contract, pinned: names and numbers that existing clients depend on.
//!
//! The tables below are written from the public contract, not from our .proto file. A change
//! there that a client could notice fails here.

use std::collections::BTreeMap;

use admittance_proto::DESCRIPTORS;
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// `method request response`, a `stream` before the response where it is one.
const SERVICES: &[(&str, &[&str])] = &[
    (
        "RateLimiter",
        &[
            "Check CheckRequest CheckResponse",
            "CheckMany CheckManyRequest CheckManyResponse",
            "Peek PeekRequest PeekResponse",
            "Forecast ForecastRequest ForecastResponse",
            "Debit DebitRequest DebitResponse",
            "Admit AdmitRequest AdmitResponse",
            "Release ReleaseRequest ReleaseResponse",
            "Heartbeat HeartbeatRequest HeartbeatResponse",
        ],
    ),
    (
        "Monitor",
        &[
            "GetSnapshot GetSnapshotRequest GetSnapshotResponse",
            "Watch WatchRequest stream WatchResponse",
        ],
    ),
    ("Fleet", &["Reserve ReserveRequest ReserveResponse"]),
];

/// `number name type`, a `repeated` before the type where it is.
const MESSAGES: &[(&str, &[&str])] = &[
    (
        "Decision",
        &[
            "1 allowed bool",
            "2 limit int64",
            "3 remaining int64",
            "4 reset_at int64",
            "5 retry_after_ms int64",
        ],
    ),
    ("CheckRequest", &["1 policy string", "2 key string", "3 cost int64"]),
    ("CheckResponse", &["1 decision Decision"]),
    ("CheckManyRequest", &["1 policy string", "2 keys repeated string", "3 cost int64"]),
    ("CheckManyResponse", &["1 decisions repeated Decision"]),
    ("PeekRequest", &["1 policy string", "2 key string"]),
    ("PeekResponse", &["1 decision Decision"]),
    ("ForecastRequest", &["1 policy string", "2 key string", "3 cost int64"]),
    ("Forecast", &["1 spendable_now int64", "2 next_replenish_at int64", "3 full_at int64"]),
    ("ForecastResponse", &["1 forecast Forecast"]),
    ("DebitRequest", &["1 policy string", "2 key string", "3 tokens int64"]),
    ("DebitResponse", &["1 decision Decision"]),
    (
        "AdmitRequest",
        &["1 policy string", "2 key string", "3 cost int64", "4 hold int64", "5 value int64"],
    ),
    (
        "AdmitResponse",
        &[
            "1 decision Decision",
            "2 lease_id string",
            "3 lease_expires_at int64",
            "4 binding_axis string",
            "5 policy_denied bool",
        ],
    ),
    ("ReleaseRequest", &["1 lease_id string", "2 dropped bool"]),
    ("ReleaseResponse", &[]),
    ("HeartbeatRequest", &["1 lease_ids repeated string"]),
    (
        "HeartbeatResponse",
        &["1 live_ids repeated string", "2 reclaimed_ids repeated string", "3 next_deadline int64"],
    ),
    ("GetSnapshotRequest", &[]),
    (
        "MonitorMeta",
        &[
            "1 generated_at int64",
            "2 window_ms int64",
            "3 mode string",
            "4 lens_version string",
            "5 node_id string",
        ],
    ),
    ("KeyCount", &["1 key string", "2 count int64"]),
    (
        "LatencySummary",
        &["1 avg_ms double", "2 p50_ms double", "3 p99_ms double", "4 max_ms double", "5 n int64"],
    ),
    (
        "PolicySummary",
        &[
            "1 name string",
            "2 kind string",
            "3 strategy string",
            "4 allowed int64",
            "5 denied int64",
            "6 limit int64",
            "7 latency LatencySummary",
            "8 top_denied repeated KeyCount",
            "9 top_requested repeated KeyCount",
        ],
    ),
    (
        "GuardSummary",
        &[
            "1 name string",
            "2 limit int64",
            "3 inflight int64",
            "4 share double",
            "5 l_global int64",
            "6 nodes int64",
            "7 fenced bool",
        ],
    ),
    (
        "DenialEvent",
        &[
            "1 at int64",
            "2 policy string",
            "3 key string",
            "4 axis string",
            "5 limit int64",
            "6 remaining int64",
            "7 retry_after_ms int64",
        ],
    ),
    (
        "Snapshot",
        &[
            "1 meta MonitorMeta",
            "2 policies repeated PolicySummary",
            "3 guards repeated GuardSummary",
            "4 recent_denials repeated DenialEvent",
            "5 raw_json string",
        ],
    ),
    ("GetSnapshotResponse", &["1 snapshot Snapshot"]),
    ("WatchRequest", &["1 policy string"]),
    ("WatchResponse", &["1 denial DenialEvent"]),
    ("Caller", &["1 domain string", "2 client_id string", "3 region string", "4 priority int64"]),
    (
        "ReserveRequest",
        &[
            "1 policy string",
            "2 caller Caller",
            "3 wants int64",
            "4 has int64",
            "5 used int64",
            "6 axis Axis",
        ],
    ),
    (
        "Lease",
        &[
            "1 capacity int64",
            "2 expiry_ms int64",
            "3 refresh_interval_ms int64",
            "4 safe_capacity int64",
            "5 retry_after_ms int64",
            "6 limit int64",
        ],
    ),
    ("ReserveResponse", &["1 lease Lease"]),
];

const AXES: &[(&str, i32)] =
    &[("AXIS_UNSPECIFIED", 0), ("AXIS_RATE", 1), ("AXIS_CONCURRENCY", 2), ("AXIS_TOKEN_BUDGET", 3)];

/// What is ours: it may grow, and nothing in it may change.
const OWN: &[(&str, &[&str])] = &[
    ("Charge", &["1 policy string", "2 key string", "3 units int64"]),
    (
        "ReserveRequest",
        &[
            "1 charges repeated Charge",
            "2 ttl_ms int64",
            "3 class string",
            "4 prediction int64",
            "5 lease_id string",
        ],
    ),
    (
        "ReserveResponse",
        &["1 answer Answer", "2 lease_id string", "3 ttl_ms int64", "4 reserved repeated int64"],
    ),
    ("DebitRequest", &["1 charges repeated Charge", "2 lease_id string"]),
    ("DebitResponse", &["1 answer Answer"]),
    (
        "SettleRequest",
        &[
            "1 charges repeated Charge",
            "2 lease_id string",
            "3 unknown bool",
            "4 class string",
            "5 prediction int64",
            "6 stopped bool",
        ],
    ),
    ("SettleResponse", &["1 answer Answer"]),
    ("LookRequest", &["1 charges repeated Charge"]),
    ("LookResponse", &["1 answer Answer"]),
    (
        "Answer",
        &[
            "1 allowed bool",
            "2 flow Flow",
            "3 retry_after_ms int64",
            "4 remaining int64",
            "5 binding int32",
            "6 accounts repeated Account",
            "7 reclaimed bool",
        ],
    ),
    (
        "Account",
        &[
            "1 policy string",
            "2 key string",
            "3 window string",
            "4 limit int64",
            "5 spent int64",
            "6 reserved int64",
            "7 debt int64",
            "8 left int64",
            "9 open_leases int64",
            "10 window_end int64",
            "11 unspent int64",
            "12 settlement Settlement",
            "13 allowed bool",
            "14 retry_after_ms int64",
        ],
    ),
    ("Settlement", &["1 kind SettlementKind", "2 returned int64", "3 debt int64"]),
];

const OWN_VALUES: &[&str] = &[
    "0 FLOW_UNSPECIFIED",
    "1 FLOW_GO_ON",
    "2 FLOW_SOFT_STOP",
    "3 FLOW_STOP",
    "0 SETTLEMENT_KIND_UNSPECIFIED",
    "1 SETTLEMENT_KIND_NOW",
    "2 SETTLEMENT_KIND_BEFORE",
    "3 SETTLEMENT_KIND_UNKNOWN",
];

fn contract() -> FileDescriptorProto {
    file("throttlekit.v1")
}

const ADMISSIONS: &[(&str, &[&str])] = &[
    (
        "AdmissionRequest",
        &["1 policy string", "2 key string", "3 cost int64", "4 hold double", "5 value double"],
    ),
    (
        "AdmissionResponse",
        &[
            "1 decision AxisDecision",
            "2 axes repeated AxisDecision",
            "3 binding_axis string",
            "4 policy_denied bool",
            "5 lease_id string",
            "6 lease_expires_at int64",
            "7 lease_ttl_ms int64",
        ],
    ),
    (
        "AxisDecision",
        &[
            "1 axis string",
            "2 allowed bool",
            "3 limit int64",
            "4 remaining int64",
            "5 reset_at int64",
            "6 retry_after_ms int64",
        ],
    ),
    (
        "ExplanationResponse",
        &[
            "1 decision AxisDecision",
            "2 axes repeated AxisDecision",
            "3 binding_axis string",
            "4 policy_denied bool",
            "5 worth Worth",
            "6 wait_ms int64",
            "7 cost_max int64",
        ],
    ),
    ("Worth", &["1 value double", "2 price double"]),
];

const LOAD: &[(&str, &[&str])] = &[
    ("LoadStatusRequest", &[]),
    (
        "LoadStatusResponse",
        &[
            "1 enabled bool",
            "2 percent uint32",
            "3 allowed uint64",
            "4 rejected uint64",
            "5 classes repeated LoadClass",
            "6 step int64",
            "7 average_us uint64",
            "8 spread_us uint64",
            "9 waiting uint64",
            "10 room uint64",
            "11 probes_sent uint64",
            "12 probes_finished uint64",
            "13 probes_lost uint64",
            "14 adjustments uint64",
            "15 moves uint64",
            "16 stuck_workers uint64",
        ],
    ),
    ("LoadClass", &["1 name string", "2 rejected uint64"]),
];

fn file(package: &str) -> FileDescriptorProto {
    let files = FileDescriptorSet::decode(DESCRIPTORS).expect("our own descriptors").file;
    assert_eq!(files.len(), 4, "the public contract and our own three, no imports");
    files.into_iter().find(|file| file.package() == package).expect(package)
}

/// A type's own name, without its package.
fn last(name: &str) -> String {
    name.rsplit('.').next().unwrap_or(name).to_owned()
}

fn shown(field: &FieldDescriptorProto) -> String {
    let kind = match field.r#type() {
        Type::Message | Type::Enum => last(field.type_name()),
        Type::Bool => "bool".into(),
        Type::Int64 => "int64".into(),
        Type::Int32 => "int32".into(),
        Type::Uint64 => "uint64".into(),
        Type::Uint32 => "uint32".into(),
        Type::String => "string".into(),
        Type::Double => "double".into(),
        other => format!("{other:?}"),
    };
    let repeated = if field.label() == Label::Repeated { "repeated " } else { "" };
    format!("{} {} {repeated}{kind}", field.number(), field.name())
}

fn message<'a>(file: &'a FileDescriptorProto, name: &str) -> &'a DescriptorProto {
    file.message_type.iter().find(|message| message.name() == name).expect(name)
}

#[test]
fn the_package_is_the_public_one() {
    let file = contract();
    assert_eq!((file.package(), file.syntax()), ("throttlekit.v1", "proto3"));
}

#[test]
fn every_message_has_the_fields_of_the_contract_and_no_others() {
    assert_eq!(messages(&contract()), written(MESSAGES));
}

#[test]
fn what_is_said_about_load_stays_as_it_was_given_out() {
    let files = FileDescriptorSet::decode(DESCRIPTORS).expect("a descriptor set").file;
    let name = "admittance/v1/load.proto";
    let file = files.into_iter().find(|file| file.name() == name).expect(name);
    assert_eq!(messages(&file), written(LOAD));
    let service = &file.service[0];
    let methods: Vec<&str> = service.method.iter().map(|method| method.name()).collect();
    assert_eq!((service.name(), methods), ("Load", vec!["Status"]));
}

#[test]
fn admissions_stay_as_they_were_given_out() {
    let files = FileDescriptorSet::decode(DESCRIPTORS).expect("a descriptor set").file;
    let name = "admittance/v1/admissions.proto";
    let file = files.into_iter().find(|file| file.name() == name).expect(name);
    assert_eq!(messages(&file), written(ADMISSIONS));
    let service = &file.service[0];
    let methods: Vec<&str> = service.method.iter().map(|method| method.name()).collect();
    assert_eq!((service.name(), methods), ("Admissions", vec!["Admit", "Explain"]));
}

#[test]
fn our_own_messages_stay_as_they_were_given_out() {
    let file = file("admittance.v1");
    assert_eq!(messages(&file), written(OWN));
    let service = &file.service[0];
    let methods: Vec<&str> = service.method.iter().map(|method| method.name()).collect();
    assert_eq!((service.name(), methods), ("Budgets", vec!["Reserve", "Debit", "Settle", "Look"]));
    let values = file.enum_type.iter().flat_map(|numbers| &numbers.value);
    let values: Vec<String> =
        values.map(|value| format!("{} {}", value.number(), value.name())).collect();
    assert_eq!(values, OWN_VALUES);
}

fn messages(file: &FileDescriptorProto) -> BTreeMap<String, Vec<String>> {
    let each = file.message_type.iter();
    let fields =
        |message: &DescriptorProto| -> Vec<String> { message.field.iter().map(shown).collect() };
    each.map(|message| (message.name().to_owned(), fields(message))).collect()
}

fn written(messages: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
    let fields = |fields: &[&str]| fields.iter().map(|&field| field.to_owned()).collect();
    messages.iter().map(|(name, named)| ((*name).to_owned(), fields(named))).collect()
}

/// The bound on fields counts those of the message itself.
#[test]
fn no_request_has_a_list_in_a_deeper_message() {
    let files = FileDescriptorSet::decode(DESCRIPTORS).expect("our own descriptors").file;
    for file in files {
        let asked = file.service.iter().flat_map(|service| &service.method);
        for name in asked.map(|method| last(method.input_type())) {
            let deeper = message(&file, &name).field.iter();
            for field in deeper.filter(|field| field.r#type() == Type::Message) {
                let deeper = message(&file, &last(field.type_name()));
                let flat = |field: &FieldDescriptorProto| {
                    field.label() != Label::Repeated && field.r#type() != Type::Message
                };
                assert!(deeper.field.iter().all(flat), "{name}.{}", field.name());
            }
        }
    }
}

#[test]
fn no_field_is_optional_or_in_a_oneof() {
    for message in contract().message_type {
        assert!(message.oneof_decl.is_empty(), "{}", message.name());
    }
}

#[test]
fn every_service_has_the_methods_of_the_contract() {
    let ours: Vec<(String, Vec<String>)> = contract()
        .service
        .iter()
        .map(|service| {
            let methods = service.method.iter().map(|method| {
                assert!(!method.client_streaming());
                let stream = if method.server_streaming() { "stream " } else { "" };
                let (asked, answered) = (last(method.input_type()), last(method.output_type()));
                format!("{} {asked} {stream}{answered}", method.name())
            });
            (service.name().to_owned(), methods.collect())
        })
        .collect();
    let theirs: Vec<(String, Vec<String>)> = SERVICES
        .iter()
        .map(|(name, methods)| {
            ((*name).to_owned(), methods.iter().map(|&method| method.to_owned()).collect())
        })
        .collect();
    assert_eq!(ours, theirs);
}

#[test]
fn numbers_that_are_not_ours_to_use_stay_reserved() {
    let file = contract();
    // The end of a reserved range is not part of it.
    let ranges = |name| -> Vec<(i32, i32)> {
        let ranges = &message(&file, name).reserved_range;
        ranges.iter().map(|range| (range.start(), range.end())).collect()
    };
    assert_eq!(ranges("Decision"), [(6, 16)]);
    assert_eq!(ranges("ReserveResponse"), [(2, 16)]);
    assert_eq!(message(&file, "ReserveResponse").reserved_name, ["owner_redirect"]);
}

#[test]
fn the_axes_have_their_numbers() {
    let file = contract();
    let axes = &file.enum_type[0];
    assert_eq!((axes.name(), file.enum_type.len()), ("Axis", 1));
    let ours: Vec<(&str, i32)> =
        axes.value.iter().map(|value| (value.name(), value.number())).collect();
    assert_eq!(ours, AXES);
}
