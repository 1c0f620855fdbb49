//! One admission in front of an axum server: how often, how many at once, how much. Each client is
//! known by its address, which a proxy of ours tells.

use std::net::SocketAddr;

use admittance::admission::{Admitter, Local};
use admittance::budget::{Budget, Budgets};
use admittance::gate::{Gate, LimitRules};
use admittance::http::{
    AdmissionLayer, Admitted, AskFor, Asked, ByClient, ClientAddress, Quota, Trust,
};
use admittance::{Axis, Builtin, Cadence, Limiter, Span, Window};
use axum::extract::ConnectInfo;
use axum::http::{Extensions, Request, StatusCode};
use axum::routing::get;
use axum::{Extension, Router};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Produces some tokens, and says in the end how many they were.
async fn generate(Extension(admitted): Extension<Admitted>) -> Result<&'static str, StatusCode> {
    let unavailable = |_| StatusCode::SERVICE_UNAVAILABLE;
    let _ = admitted.settle(30).await.map_err(unavailable)?;
    Ok("thirty tokens")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // For each client three requests an hour and a hundred tokens a day; for all, eight at once.
    let (hour, day) = (Span::from_secs(3_600), Span::from_secs(86_400));
    let requests = Limiter::new(Builtin::from(Window::fixed(3, hour)?));
    let tokens = Budgets::new("tokens", [Budget::new(100, Cadence::every(day))?])?;
    let gate = Gate::new(LimitRules::fixed(8))?;
    let charges = Local::new().rate(requests).cost(&tokens);
    let admitter = Admitter::new(charges).concurrency(gate.clone()).build()?;

    // Our proxies are on this machine; who calls from elsewhere is taken for who it is.
    let clients = ClientAddress::new(Trust::Networks(vec!["127.0.0.0/8".parse()?]))?;
    let by_client = ByClient::new(clients, |extensions: &Extensions| {
        extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())
    });
    let ask = move |request: &Request<_>| match request.uri().path() {
        "/healthz" => Asked::exempt(),
        _ => by_client.ask(request).cost(60),
    };
    let layer = AdmissionLayer::new(admitter.clone(), ask)
        .quota(Axis::Rate, Quota::new("requests", 3)?.window(hour)?)
        .quota(Axis::Cost, Quota::new("tokens", 100)?.window(day)?);
    let app = Router::new().route("/", get(generate)).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let ask = async |told: &str| -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        let head = "GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\nx-forwarded-for:";
        stream.write_all(format!("{head} {told}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    let mut last = String::new();
    // Sixty are reserved, thirty were produced: after two of them a third has too little left.
    for (told, status) in [
        ("192.0.2.7", 200),
        ("6.6.6.6, 192.0.2.7", 200),
        ("7.7.7.7, 192.0.2.7", 429),
        ("192.0.2.8", 200),
    ] {
        let answer = ask(told).await?;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{told}: {answer}");
        if status == 429 {
            last = answer;
        }
    }
    println!("whatever a client writes, it has one budget:\n{last}");
    while gate.stats().in_flight > 0 {
        tokio::task::yield_now().await;
    }
    println!("{:?}", admitter.stats());
    Ok(())
}
