//! An axum server that sheds load: while it is behind, health checks pass, logged-in users are kept
//! longest, and whoever is refused is told 503.

use std::sync::Arc;

use admittance::load::{Class, LoadLayer, LoadRules, Probe, Shedder, Sorted, Tasks, on_pool};
use admittance::{ManualClock, Micros, Span};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Health checks always pass; users stand by their name; whoever has none is shed first,
/// page by page.
fn sort(request: &Request<Body>, shedder: &Shedder) -> Sorted {
    match request.headers().get("x-user") {
        _ if request.uri().path() == "/healthz" => Sorted::exempt(),
        Some(user) => Sorted::key(Class::Default, shedder.hashed(user.as_bytes())),
        None => Sorted::key(Class::Sheddable, shedder.hashed(request.uri().path())),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A server starts its shedder with `shedder.start(TokioExecutor::current())`. The example has
    // time in hand instead, and an executor that is stuck: no probe ever runs.
    let clock = ManualClock::at(Micros::ZERO);
    let shedder = Shedder::with_clock(LoadRules::default(), Arc::new(clock.clone()))?;
    let mut stuck = Vec::new();
    let executor =
        on_pool(move |probe: Probe| stuck.push(probe), || Tasks { tasks: 9, workers: 1 });
    let mut driver = shedder.drive(executor, Arc::new(clock.clone()))?;

    let app = Router::new()
        .route("/", get(|| async { "done" }))
        .route("/healthz", get(|| async { "alive" }))
        .layer(LoadLayer::new(shedder.clone()).sort_with(sort));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    let ask = async |path: &str| -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };

    assert!(ask("/").await?.ends_with("done"), "nothing is wrong yet");
    // Ten seconds behind.
    for _ in 0..1_000 {
        driver.step();
        clock.advance(Span::from_ms(10));
    }
    let shed = ask("/").await?;
    assert!(shed.starts_with("HTTP/1.1 503"), "{shed}");
    assert!(ask("/healthz").await?.ends_with("alive"));
    println!("at {} % anonymous work is shed: {:?}", shedder.percent(), shedder.status());
    Ok(())
}
