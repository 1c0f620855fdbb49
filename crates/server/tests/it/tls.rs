//! Who gets an answer when TLS is asked for, and who does not.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use admittance::{ManualClock, Micros};
use admittance_proto::v1::PeekRequest;
use admittance_proto::v1::rate_limiter_client::RateLimiterClient;
use admittance_server::{Doors, Fail, Service, Tls, TlsError};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::live::{self, Live, START_US};
use admittance_testkit::certificates::{Authority, Signed};

const POLICY: &str = "limiters: { api: { strategy: fixedWindow, limit: 9, period: 1h } }";

async fn serving(tls: Tls, connections: Option<u32>) -> Live {
    let config = live::config(POLICY, Fail::Open);
    let clock = ManualClock::at(Micros::from_epoch_us(START_US).expect("in range"));
    let service = Arc::new(Service::new(&config, Arc::new(clock.clone())));
    let connections_max = connections.and_then(NonZero::new);
    let doors = Doors { tls: Some(tls), connections_max, ..Doors::default() };
    Live::serving(service, clock, doors).await
}

fn loaded(own: &Signed, clients: Option<&Authority>) -> Tls {
    let authority = clients.map(|authority| authority.certificate.as_path());
    Tls::load(&own.certificate, &own.key, authority).expect("they go together")
}

/// How a client connects.
struct Client<'a> {
    trusts: &'a Authority,
    own: Option<&'a Signed>,
    version: &'static SupportedProtocolVersion,
    protocol: &'a [u8],
}

impl<'a> Client<'a> {
    fn of(trusts: &'a Authority) -> Self {
        Self { trusts, own: None, version: &version::TLS13, protocol: b"h2" }
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        let trusted = CertificateDer::from_pem_file(&self.trusts.certificate).expect("PEM");
        roots.add(trusted).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[self.version])
            .expect("supported")
            .with_root_certificates(roots);
        let mut config = match self.own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let chain = CertificateDer::from_pem_file(&own.certificate).expect("PEM");
                let key = PrivateKeyDer::from_pem_file(&own.key).expect("PEM");
                builder.with_client_auth_cert(vec![chain], key).expect("they go together")
            }
        };
        config.alpn_protocols = vec![self.protocol.to_vec()];
        let stream = TcpStream::connect(address).await?;
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// What is left of the limit, asked over HTTP/2.
    async fn peek(&self, address: SocketAddr) -> Result<i64, String> {
        let stream = self.connect(address).await.map_err(|error| error.to_string())?;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = endpoint.connect_with_connector(Once(Some(stream))).await;
        let channel = channel.map_err(|error| format!("{error:?}"))?;
        peek(channel).await
    }

    /// What a health check over HTTP/1 is answered.
    async fn health(&self, address: SocketAddr) -> io::Result<String> {
        let mut stream = self.connect(address).await?;
        let ask = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(ask).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

async fn peek(channel: Channel) -> Result<i64, String> {
    let request = PeekRequest { policy: "api".into(), key: "k".into() };
    let answer = RateLimiterClient::new(channel).peek(request).await;
    let answer = answer.map_err(|status| format!("{status:?}"))?;
    Ok(answer.into_inner().decision.expect("a decision").remaining)
}

/// A connection that is already there.
struct Once(Option<TlsStream<TcpStream>>);

type Connecting = Pin<Box<dyn Future<Output = io::Result<TokioIo<TlsStream<TcpStream>>>> + Send>>;

impl tower_service::Service<Uri> for Once {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Connecting {
        let stream = self.0.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        Box::pin(async move { stream.map(TokioIo::new) })
    }
}

/// What comes back for bytes that are sent in the clear.
async fn in_the_clear(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.expect("the port is open");
    stream.write_all(bytes).await.expect("sent");
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    answer
}

#[tokio::test]
async fn the_right_client_is_served_over_both_versions_of_tls_and_http() {
    let authority = Authority::new("right");
    let (own, ann) = (authority.sign("server", "localhost"), authority.sign("ann", "ann"));
    for clients in [None, Some(&authority)] {
        let live = serving(loaded(&own, clients), None).await;
        for version in [&version::TLS12, &version::TLS13] {
            let client = Client { version, own: Some(&ann), ..Client::of(&authority) };
            assert_eq!(client.peek(live.address).await, Ok(9));
            let client = Client { protocol: b"http/1.1", ..client };
            let answer = client.health(live.address).await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }
}

#[tokio::test]
async fn what_is_not_tls_gets_no_answer() {
    let authority = Authority::new("plain");
    let own = authority.sign("server", "localhost");
    let live = serving(loaded(&own, None), None).await;
    let requests: [&[u8]; 3] = [
        b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        b"\x16\x03\x01\xff\xffgarbage",
    ];
    for request in requests {
        let answer = in_the_clear(live.address, request).await;
        // An alert of TLS at most, never a word of HTTP.
        assert!(answer.is_empty() || (answer[0] == 21 && answer.len() <= 7), "{answer:?}");
    }
    let channel = Channel::from_shared(live.url()).expect("a uri").connect().await;
    match channel {
        Err(_) => {}
        Ok(channel) => assert!(peek(channel).await.is_err()),
    }
}

#[tokio::test]
async fn who_has_no_certificate_of_the_authority_gets_no_answer() {
    let (authority, stranger) = (Authority::new("known"), Authority::new("stranger"));
    let own = authority.sign("server", "localhost");
    let live = serving(loaded(&own, Some(&authority)), None).await;
    let unknown = stranger.sign("mallory", "mallory");
    let expired = authority.sign_until("expired", "ann", 2001);
    for version in [&version::TLS12, &version::TLS13] {
        for own in [None, Some(&unknown), Some(&expired)] {
            let client = Client { own, version, ..Client::of(&authority) };
            assert!(client.peek(live.address).await.is_err(), "{own:?}");
            let client = Client { protocol: b"http/1.1", ..client };
            // In TLS 1.3 the client hears of it only after it has sent its request.
            let answer = client.health(live.address).await;
            assert!(!answer.is_ok_and(|answer| answer.contains("HTTP")), "{own:?}");
        }
    }
}

#[tokio::test]
async fn a_client_that_trusts_another_authority_or_finds_it_expired_sends_nothing() {
    let (authority, other) = (Authority::new("trusted"), Authority::new("other"));
    let own = authority.sign("server", "localhost");
    let live = serving(loaded(&own, None), None).await;
    assert!(Client::of(&other).connect(live.address).await.is_err());
    let expired = authority.sign_until("expired", "localhost", 2001);
    let live = serving(loaded(&expired, None), None).await;
    assert!(Client::of(&authority).connect(live.address).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_stalls_gives_its_place_back() {
    let authority = Authority::new("stall");
    let own = authority.sign("server", "localhost");
    let live = serving(loaded(&own, None), Some(1)).await;
    for begin in [&b""[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"] {
        let mut first = TcpStream::connect(live.address).await.expect("the port is open");
        first.write_all(begin).await.expect("sent");
        // The only place is taken: this one waits until the first is given up.
        assert_eq!(Client::of(&authority).peek(live.address).await, Ok(9));
        assert_eq!(first.read(&mut [0; 64]).await.unwrap_or(0), 0, "it was disconnected");
    }
}

/// What is wrong with a way to read the files again, if anything is.
async fn rereads(reload: impl Fn(&Tls) -> Result<(), TlsError>) -> Result<(), &'static str> {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let own = old.sign("server", "localhost");
    let tls = loaded(&own, None);
    let live = serving(tls.clone(), None).await;
    assert_eq!(Client::of(&old).peek(live.address).await, Ok(9));
    let next = new.sign("server", "localhost");
    // Half of it: certificate and key do not go together.
    std::fs::copy(&next.certificate, &own.certificate).expect("copied");
    if !matches!(reload(&tls), Err(TlsError::Unusable(_))) {
        return Err("half of it was taken, or not told of");
    }
    if Client::of(&old).peek(live.address).await != Ok(9) {
        return Err("the old one did not stay");
    }
    std::fs::copy(&next.key, &own.key).expect("copied");
    if reload(&tls).is_err() || Client::of(&new).peek(live.address).await != Ok(9) {
        return Err("the new one was not taken");
    }
    if Client::of(&old).connect(live.address).await.is_ok() {
        return Err("the old one is still served");
    }
    std::fs::write(&own.certificate, "nothing").expect("written");
    let Err(error) = reload(&tls) else { return Err("no certificate was taken for one") };
    assert!(error.to_string().contains("server.pem: none is there"), "{error}");
    match Client::of(&new).peek(live.address).await {
        Ok(9) => Ok(()),
        _ => Err("the last good one did not stay"),
    }
}

#[tokio::test]
async fn new_files_are_taken_and_wrong_ones_change_nothing() {
    assert_eq!(rereads(Tls::reload).await, Ok(()));
}

#[tokio::test]
async fn a_reload_that_keeps_the_old_files_or_hides_what_is_wrong_is_caught() {
    // It reads them, and what it has read serves nobody.
    let keeps = |tls: &Tls| {
        let files: Vec<_> = tls.files().collect();
        Tls::load(files[0], files[1], files.get(2).copied()).map(drop)
    };
    assert_eq!(rereads(keeps).await, Err("the new one was not taken"));
    let hides = |tls: &Tls| {
        let _ = tls.reload();
        Ok(())
    };
    assert_eq!(rereads(hides).await, Err("half of it was taken, or not told of"));
}

#[test]
fn what_cannot_be_used_is_named_and_no_key_is_shown() {
    let (one, other) = (Authority::new("one"), Authority::new("another"));
    let (own, stranger) = (one.sign("server", "localhost"), other.sign("server", "localhost"));
    let none = one.directory.join("none.pem");
    let cases = [
        (&none, &own.key, None, "none.pem"),
        (&own.certificate, &none, None, "it must hold a private key"),
        (&own.key, &own.key, None, "it must hold a certificate"),
        (&own.certificate, &own.certificate, None, "it must hold a private key"),
        (&own.certificate, &stranger.key, None, "certificate and key cannot be used"),
        (&own.certificate, &own.key, Some(&own.key), "it must hold a certificate"),
    ];
    let secret = std::fs::read_to_string(&own.key).expect("text");
    let secret = secret.lines().nth(1).expect("a line");
    for (certificate, key, authority, part) in cases {
        let error = Tls::load(certificate, key, authority.map(|path| path.as_path()));
        let error = error.expect_err(part);
        assert!(error.to_string().contains(part), "{error}");
        assert!(!format!("{error} {error:?}").contains(secret));
    }
    let tls = loaded(&own, Some(&one));
    assert!(tls.is_mutual());
    assert_eq!(format!("{tls:?}"), "Tls { is_mutual: true, .. }");
    assert_eq!(tls.files().count(), 3);
}
