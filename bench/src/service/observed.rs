//! What watching adds to a check: the same calls to services that differ in who looks on.

use super::callers::{self, Call, Measured, Shape};
use super::servers::{POLICIES, Server};
use super::{Effort, line};
use crate::report::spread;

/// A policy with another beside it on its live traffic.
const BESIDE: &str = "
load: { target: 10s, waitMax: 10s }
limiters:
  api: { strategy: gcra, limit: 1000000000, period: 1s, shadow: [next] }
  next: { strategy: fixedWindow, limit: 1000000000, period: 1s }
";

/// Prints what a check costs the processor with nothing on, and with each thing that watches it.
pub(super) fn run(effort: Effort) {
    println!("\n## what watching adds: Check over gRPC, spans to a collector that takes them");
    let collector = Server::collector();
    let endpoint = format!("http://{}", collector.address);
    let traced = ["--otlp-endpoint", &endpoint];
    let quiet = ["--monitor", "off", "--log-level", "off"];
    let services = [
        ("nothing watches", Server::ours(Call::Grpc, &quiet, POLICIES)),
        ("as it comes", Server::ours(Call::Grpc, &[], POLICIES)),
        ("and a candidate", Server::ours(Call::Grpc, &[], BESIDE)),
        ("and a span each", Server::ours(Call::Grpc, &traced, POLICIES)),
        ("all of it", Server::ours(Call::Grpc, &traced, BESIDE)),
    ];
    let shape = Shape::of(4, 16);
    let mut rounds: Vec<Vec<Measured>> = vec![Vec::new(); services.len()];
    for round in 0..=effort.rounds {
        for ((_, server), measured) in services.iter().zip(&mut rounds) {
            let one = callers::round(server, Call::Grpc, shape, effort.round);
            if round > 0 {
                measured.push(one);
            }
        }
    }
    println!("\n{shape}");
    super::head("it/nothing watches, and what it adds");
    for ((name, _), measured) in services.iter().zip(&rounds) {
        line(name, measured, (measured, &rounds[0]));
        let added = measured.iter().zip(&rounds[0]);
        let added: Vec<_> = added.map(|(it, none)| it.processor_us - none.processor_us).collect();
        let added = spread(&added);
        println!("  {:+.2} µs ({:+.2} – {:+.2})", added.median, added.low, added.high);
    }
}
