//! What a connection costs that says nothing.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::callers::Call;
use super::servers::{POLICIES, Server};

/// Opens so many connections of each kind, and prints what the service holds for them.
pub(super) fn run(connections: usize) {
    println!("\n## {connections} idle connections");
    for (name, call) in [("HTTP/2, settings exchanged", Call::Grpc), ("HTTP/1.1", Call::Http)] {
        let server = Server::ours(call, &[], POLICIES);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let held = runtime.expect("a runtime").block_on(async {
            let before = server.resident_kib();
            let mut open = Vec::with_capacity(connections);
            for _ in 0..connections {
                open.push(greeted(&server, call).await);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            let after = server.resident_kib();
            drop(open);
            (before, after)
        });
        let (before, after) = held;
        let each = (after.saturating_sub(before)) * 1_024 / connections as u64;
        println!("  {name:28} {before} KiB before, {after} KiB after: {each} bytes each");
    }
}

/// A connection that has been served once, or has at least said what it speaks.
async fn greeted(server: &Server, call: Call) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).await.expect("the port is open");
    let hello: &[u8] = match call {
        Call::Grpc => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        Call::Http => b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n",
    };
    stream.write_all(hello).await.expect("sent");
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).await.expect("an answer");
    stream
}
