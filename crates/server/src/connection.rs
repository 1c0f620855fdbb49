//! One connection: its place among those allowed, its greeting, and since when it has had something
//! to read.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use admittance::load::Shedder;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tonic::transport::server::Connected;

use crate::load::{Peer, Ready};
use crate::serve::CALL_MAX;

/// A connection and its place among those allowed at once.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// As it was accepted: of one that is gone already the stream says nothing.
    peer: Peer,
    /// Wakes the task of the connection, and notes when.
    waker: Waker,
    _place: OwnedSemaphorePermit,
    /// Until when the peer must have said that it speaks HTTP/2; `None` once it has.
    greeting: Option<Greeting>,
}

#[derive(Debug)]
struct Greeting {
    /// How many bytes of it are still to come.
    missing: usize,
    until: Pin<Box<Sleep>>,
}

impl Connection {
    pub(crate) fn new(
        stream: TcpStream,
        address: SocketAddr,
        place: OwnedSemaphorePermit,
        shedder: Option<Shedder>,
    ) -> Self {
        let until = Box::pin(tokio::time::sleep(CALL_MAX));
        let greeting = Some(Greeting { missing: PREFACE, until });
        let ready = Ready::new(shedder);
        let waker = Waker::from(Arc::clone(&ready));
        Self { stream, peer: Peer { address, ready }, waker, _place: place, greeting }
    }

    /// Reads, and notes since when there was something to read.
    fn read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.peer.ready.is_wanted() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        self.peer.ready.looks(context.waker());
        let mut noting = Context::from_waker(&self.waker);
        let polled = Pin::new(&mut self.stream).poll_read(&mut noting, buffer);
        self.peer.ready.has_looked(polled.is_ready());
        polled
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = self.read(context, buffer);
        let arrived = buffer.filled().len() - before;
        let Some(greeting) = &mut self.greeting else { return polled };
        greeting.missing = greeting.missing.saturating_sub(arrived);
        if greeting.missing == 0 {
            self.greeting = None;
        } else if polled.is_pending() && greeting.until.as_mut().poll(context).is_ready() {
            // Who connects and says nothing must not keep a place.
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The bytes that every HTTP/2 connection begins with.
const PREFACE: usize = 24;
