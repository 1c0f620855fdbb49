//! One connection: its bytes, in the clear or not, its greeting, and since when it has had
//! something to read.
//!
//! # Guarantee
//! - A peer has [`CALL_MAX`](crate::CALL_MAX) to say which HTTP it speaks, however many bytes it
//!   takes for that, and as long to take something of what is written to it.
//! - One that has done both is waited for.
//!
//! # Proven by
//! The tests below, with deadlines that are none or count wrongly; `tests/it/stall.rs`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::deadline::{Deadline, InCallMax};
use crate::load::{Peer, Ready};

/// What is read and written.
pub(crate) enum Stream {
    /// In the clear.
    Plain(TcpStream),
    /// After a handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection that notes when it had something to read.
pub(crate) struct Connection<S = Stream, D = InCallMax> {
    stream: S,
    ready: Arc<Ready>,
    /// Wakes the task of the connection, and notes when.
    waker: Waker,
    /// Until when the peer must have said which HTTP it speaks; `None` once it has.
    greeting: Option<Greeting<D>>,
    /// Until when the peer must take something; `None` while nothing waits for it.
    blocked: Option<D>,
}

#[derive(Debug)]
struct Greeting<D> {
    /// How much of the preface of HTTP/2 has come.
    matched: usize,
    until: D,
}

impl<D> Greeting<D> {
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
        Self::over(stream, peer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, D: Deadline> Connection<S, D> {
    fn over(stream: S, peer: &Peer) -> Self {
        let greeting = Some(Greeting { matched: 0, until: D::begin() });
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
        let blocked = self.blocked.get_or_insert_with(D::begin);
        if blocked.poll_over(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, D: Deadline> AsyncRead for Connection<S, D> {
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
        } else if polled.is_pending() && greeting.until.poll_over(context).is_ready() {
            // Who connects and says nothing must not keep a place.
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, D: Deadline> AsyncWrite for Connection<S, D> {
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::deadline::mutants::{Anew, AtOnce, Never, is_given_up_in_time};
    use crate::serve::CALL_MAX;

    fn connected<D: Deadline>() -> (Connection<DuplexStream, D>, DuplexStream) {
        let (ours, theirs) = duplex(64);
        let peer = Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)), None);
        (Connection::over(ours, &peer), theirs)
    }

    /// Reads until there is no more to read, or it is given up.
    async fn read_all<D: Deadline>(connection: &mut Connection<DuplexStream, D>) -> io::Result<()> {
        let mut bytes = [0; 16];
        while AsyncReadExt::read(connection, &mut bytes).await? > 0 {}
        Ok(())
    }

    /// Whether a peer is given up that says nothing, or half of it, at once or byte by byte.
    async fn half_a_greeting_is_given_up<D: Deadline>() -> bool {
        for (said, every) in [(0, 0), (20, 0), (20, 1)] {
            let (mut connection, mut theirs) = connected::<D>();
            let saying = async {
                for byte in &PREFACE[..said] {
                    theirs.write_all(&[*byte]).await?;
                    sleep(Duration::from_secs(every)).await;
                }
                std::future::pending::<io::Result<()>>().await
            };
            let reading = async {
                tokio::select! {
                    read = read_all(&mut connection) => read,
                    broken = saying => broken,
                }
            };
            if !is_given_up_in_time(reading).await {
                return false;
            }
        }
        true
    }

    /// Whether a peer is given up that takes nothing, also if we look again and again.
    async fn who_takes_nothing_is_given_up<D: Deadline>() -> bool {
        let (mut connection, theirs) = connected::<D>();
        let mut writing = std::pin::pin!(connection.write_all(&[0; 65]));
        let is_given_up = is_given_up_in_time(async {
            // It is looked at once a second.
            while timeout(Duration::from_secs(1), writing.as_mut()).await.is_err() {}
        });
        let is_given_up = is_given_up.await;
        drop(theirs);
        is_given_up
    }

    /// Whether a peer is waited for that has said what it speaks, says no more for an hour and
    /// takes what it is told slowly.
    async fn who_does_its_part_is_waited_for<D: Deadline>() -> bool {
        for greeting in [&PREFACE[..], b"GET /", b"PRINT"] {
            let (mut connection, mut theirs) = connected::<D>();
            theirs.write_all(greeting).await.expect("there is room");
            let silence = timeout(Duration::from_secs(3_600), read_all(&mut connection)).await;
            if silence.is_ok() {
                return false;
            }
            let taking = async {
                let mut taken = [0; 16];
                loop {
                    sleep(CALL_MAX - Duration::from_secs(1)).await;
                    theirs.read_exact(&mut taken).await.expect("it is still written to");
                }
            };
            tokio::select! {
                written = connection.write_all(&[0; 1_024]) => if written.is_err() {
                    return false;
                },
                () = taking => return false,
            }
        }
        true
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_do_its_part_in_time_is_given_up_and_nobody_else() {
        assert!(half_a_greeting_is_given_up::<InCallMax>().await);
        assert!(who_takes_nothing_is_given_up::<InCallMax>().await);
        assert!(who_does_its_part_is_waited_for::<InCallMax>().await);
    }

    #[tokio::test(start_paused = true)]
    async fn deadlines_that_are_none_or_count_wrongly_are_caught() {
        assert!(!half_a_greeting_is_given_up::<Never>().await);
        assert!(!who_takes_nothing_is_given_up::<Never>().await);
        assert!(!half_a_greeting_is_given_up::<Anew>().await);
        assert!(!who_takes_nothing_is_given_up::<Anew>().await);
        assert!(!half_a_greeting_is_given_up::<AtOnce>().await);
        assert!(!who_takes_nothing_is_given_up::<AtOnce>().await);
        assert!(!who_does_its_part_is_waited_for::<AtOnce>().await);
    }
}
