//! A gate in front of an axum server: what would be too much at once is answered 503.

use admittance::gate::{Gate, GateLayer, LimitRules};
use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

static BEGUN: Notify = Notify::const_new();
static GO_ON: Notify = Notify::const_new();

/// Work that goes on until it is told to end.
async fn slow() -> &'static str {
    BEGUN.notify_one();
    GO_ON.notified().await;
    "done"
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // One place, so that the example can fill it; `LimitRules::stable()` infers how many there are.
    let gate = Gate::new(LimitRules::fixed(1))?;
    let app = Router::new().route("/", get(slow)).layer(GateLayer::new(gate.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });

    let ask = async || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    let first = async { ask().await };
    let second = async {
        BEGUN.notified().await;
        let answer = ask().await;
        GO_ON.notify_one();
        answer
    };
    let (first, second) = tokio::join!(first, second);
    let (first, second) = (first?, second?);
    assert!(first.ends_with("done"), "{first}");
    assert!(second.starts_with("HTTP/1.1 503"), "{second}");
    println!("one was served, one was told to come back: {:?}", gate.stats());
    Ok(())
}
