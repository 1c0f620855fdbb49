//! The service over a socket: its doors beside bare echoes of the libraries under them, and beside
//! a peer's server.
//!
//! The server has one core, the callers another. Servers are asked in turn, round by round; each
//! is the program that ships, except for the echoes, which answer a constant. Its load axis
//! measures and does not shed: callers that never pause keep any core busy, and a refusal is no
//! check.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod callers;
mod echo;
mod hostile;
mod idle;
mod observed;
mod servers;

use std::time::Duration;

use self::callers::{Call, Measured, Shape};
use self::servers::{Kind, Server};
use crate::report::{Spread, paired, spread};

pub(crate) use self::echo::serve as echo;

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    rounds: usize,
    round: Duration,
    connections: usize,
}

pub(crate) const FULL: Effort =
    Effort { rounds: 15, round: Duration::from_secs(2), connections: 10_000 };
pub(crate) const QUICK: Effort =
    Effort { rounds: 3, round: Duration::from_millis(700), connections: 1_000 };

/// Measures and prints the part that is named; everything if none is.
pub(crate) fn run(effort: Effort, only: &str) {
    servers::pin_callers();
    if only.is_empty() || only == "grpc" {
        let shapes = [Shape::of(1, 1), Shape::of(50, 1), Shape::of(4, 16)];
        doors("Check over gRPC", Call::Grpc, &shapes, effort);
    }
    if only.is_empty() || only == "http" {
        let shapes = [Shape::of(1, 1), Shape::of(50, 1), Shape::of(64, 1)];
        doors("Check over HTTP/1.1", Call::Http, &shapes, effort);
    }
    if only.is_empty() || only == "observed" {
        observed::run(effort);
    }
    if only.is_empty() || only == "hostile" {
        hostile::run(effort);
    }
    if only.is_empty() || only == "idle" {
        idle::run(effort.connections);
    }
}

/// One protocol: every server, every shape, in turn.
fn doors(name: &str, call: Call, shapes: &[Shape], effort: Effort) {
    println!("\n## {name}: one core for the server, one for the callers");
    let kinds = [Kind::Ours, Kind::Echo, Kind::Peer];
    let servers: Vec<_> = kinds.iter().filter_map(|kind| Server::start(*kind, call)).collect();
    for shape in shapes {
        let mut rounds: Vec<Vec<Measured>> = vec![Vec::new(); servers.len()];
        for round in 0..=effort.rounds {
            for (server, measured) in servers.iter().zip(&mut rounds) {
                let one = callers::round(server, call, *shape, effort.round);
                // The first warms up.
                if round > 0 {
                    measured.push(one);
                }
            }
        }
        println!("\n{shape}");
        head("ours/it");
        for (server, measured) in servers.iter().zip(&rounds) {
            let ratio = line(server.name(), measured, (&rounds[0], measured));
            println!("{}", server.kind().verdict(ratio));
        }
    }
    drop(servers);
}

fn head(ratio: &str) {
    let headings = ["server", "checks/s", "quartiles", "p50 µs", "p99 µs", "CPU µs"];
    let [server, rate, quartiles, p50, p99, processor] = headings;
    print!("  {server:19} {rate:>9} {quartiles:>19} {p50:>8} {p99:>8} {processor:>7}");
    println!("  {ratio}");
}

/// One server's numbers, and the ratio of two rounds by round, without the end of the line.
fn line(name: &str, measured: &[Measured], (over, under): (&[Measured], &[Measured])) -> f64 {
    let of = |number: fn(&Measured) -> f64| -> Vec<f64> { measured.iter().map(number).collect() };
    let rates = of(|one| one.per_second);
    let Spread { median, low, high } = spread(&rates);
    let quartiles = format!("{low:.0} – {high:.0}");
    let rates_of =
        |rounds: &[Measured]| -> Vec<f64> { rounds.iter().map(|one| one.per_second).collect() };
    let ratio = paired(&rates_of(over), &rates_of(under));
    let (p50, p99) = (spread(&of(|one| one.p50_us)).median, spread(&of(|one| one.p99_us)).median);
    let processor = spread(&of(|one| one.processor_us)).median;
    let Spread { median: ratio, low, high } = ratio;
    print!("  {name:19} {median:>9.0} {quartiles:>19} {p50:>8.0} {p99:>8.0} {processor:>7.2}");
    print!("  {ratio:.2} ({low:.2} – {high:.2})");
    ratio
}
