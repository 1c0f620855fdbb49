//! One connection: its bytes, in the clear or not, its greeting, and since when it has had
//! something to read.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;

use crate::load::{Peer, Ready};
use crate::serve::CALL_MAX;

/// What is read and written.
pub(crate) enum Stream {
    /// In the clear.
    Plain(TcpStream),
    /// After a handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection that notes when it had something to read.
pub(crate) struct Connection {
    stream: Stream,
    ready: Arc<Ready>,
    /// Wakes the task of the connection, and notes when.
    waker: Waker,
    /// Until when the peer must have said which HTTP it speaks; `None` once it has.
    greeting: Option<Greeting>,
    /// Until when the peer must take something; `None` while nothing waits for it.
    blocked: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
struct Greeting {
    /// How much of the preface of HTTP/2 has come.
    matched: usize,
    until: Pin<Box<Sleep>>,
}

impl Greeting {
    /// Whether it is known now what is spoken.
    fn is_over(&mut self, arrived: &[u8]) -> bool {
        let wanted = &PREFACE[self.matched..];
        let compared = arrived.len().min(wanted.len());
        self.matched += compared;
        arrived[..compared] != wanted[..compared] || self.matched == PREFACE.len()
    }
}

impl Connection {
    pub(crate) fn new(stream: Stream, peer: &Peer) -> Self {
        let until = Box::pin(tokio::time::sleep(CALL_MAX));
        let greeting = Some(Greeting { matched: 0, until });
        let ready = Arc::clone(&peer.ready);
        let waker = Waker::from(Arc::clone(&ready));
        Self { stream, ready, waker, greeting, blocked: None }
    }

    /// Reads, and notes since when there was something to read.
    fn read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ready.is_wanted() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        self.ready.looks(context.waker());
        let mut noting = Context::from_waker(&self.waker);
        let polled = Pin::new(&mut self.stream).poll_read(&mut noting, buffer);
        self.ready.has_looked(polled.is_ready());
        polled
    }

    /// Gives up on a peer that takes nothing: its window may stay closed for ever, and it answers
    /// the kernel all the same.
    fn wrote<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.blocked = None;
            return polled;
        }
        let sleep = || Box::pin(tokio::time::sleep(CALL_MAX));
        let blocked = self.blocked.get_or_insert_with(sleep);
        if blocked.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
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
        let Some(greeting) = &mut self.greeting else { return polled };
        if greeting.is_over(&buffer.filled()[before..]) {
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
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.wrote(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.wrote(context, polled)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// The bytes that every HTTP/2 connection begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
