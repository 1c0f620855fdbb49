//! Bytes as a whole connection, with the greeting of HTTP/2 before them or not.
//!
//! # Guarantee
//! Whatever is sent and then broken off: the service hangs up, no task of it panics, and an honest
//! caller is answered afterwards.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Input;
use crate::live::{Live, live};

/// Feeds a connection: the first byte says how it begins.
pub fn target(bytes: &[u8]) {
    feed(live(), bytes);
}

/// The same of any service.
///
/// # Panics
/// If a property does not hold.
pub fn feed(live: &Live, bytes: &[u8]) {
    let input = &mut Input::new(bytes);
    let greeting: &[u8] = match input.byte() % 4 {
        0 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        1 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        2 => b"POST /v1/check HTTP/1.1\r\nhost: f\r\n",
        _ => b"",
    };
    live.runtime.block_on(async {
        let mut stream = live.connect().await;
        // A service that has hung up already takes no more: that is its right.
        let sent = async {
            stream.write_all(greeting).await?;
            stream.write_all(input.rest()).await?;
            stream.shutdown().await
        };
        let _ = sent.await;
        let mut answer = vec![0; 16 << 10];
        while let Ok(1..) = live.in_time(stream.read(&mut answer)).await {}
        drop(stream);
        live.unharmed().await;
    });
}

/// What stands in connections.
pub const WORDS: &[&str] = &[
    "GET ",
    "POST ",
    "PUT ",
    "HEAD ",
    "OPTIONS * ",
    "CONNECT ",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "\r\n",
    "\r\n\r\n",
    "Host: a\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Transfer-Encoding: chunked\r\n",
    "0\r\n\r\n",
    "5\r\nabcde\r\n",
    "ffffffffffffffff\r\n",
    "Expect: 100-continue\r\n",
    "Connection: upgrade\r\n",
    "Upgrade: h2c\r\n",
    "HTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    "/v1/check",
    "/healthz",
    "/metrics",
    "/openapi.json",
    "/throttlekit.v1.RateLimiter/Check",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\0\0\0\x04\0\0\0\0\0",
    "\0\0\0\x04\x01\0\0\0\0",
    "\0\0\x08\x06\0\0\0\0\0abcdefgh",
    "\0\0\x04\x08\0\0\0\0\0\x7f",
    "\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08",
    "\0\0\x01\x01\x05\0\0\0\x01",
    "\0\0\0\0\x01\0\0\0\x01",
    "\x7f",
    "{\"policy\":\"gcra\",\"key\":\"k\"}",
];
