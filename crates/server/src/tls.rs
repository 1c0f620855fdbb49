//! TLS on the doors: whom a client talks to, and which clients may talk at all.
//!
//! # Guarantee
//! - With a certificate, what is not TLS gets no answer.
//! - With an authority for clients too, neither does who has no certificate of it.
//! - A handshake has [`CALL_MAX`](crate::CALL_MAX) and then its place is free again.
//! - [`Tls::reload`] takes what its files hold now for connections that come from then on; files
//!   that are not right change nothing.
//!
//! # Proven by
//! `tests/it/tls.rs`, with reloads that keep the old files or hide what is wrong; the tests below,
//! with handshakes that have no end.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::deadline::{Deadline, InCallMax, in_time};

/// A certificate and its key, and who may connect. Clones are handles to the same.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: Files,
    current: ArcSwap<ServerConfig>,
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_authority: Option<PathBuf>,
}

/// Why TLS cannot be had from what was given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or has not in it what it should.
    #[error("{}: {why}; it must hold {what} in PEM form", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
        /// What belongs there.
        what: &'static str,
    },
    /// Certificate, key and authority do not go together.
    #[error("certificate and key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// The authority of clients cannot be one.
    #[error("the authority for clients cannot be used: {0}")]
    Authority(#[from] rustls::server::VerifierBuilderError),
}

impl Tls {
    /// From files in PEM form: a chain of certificates, its key and, if only known clients may
    /// connect, the authorities that know them.
    ///
    /// # Errors
    /// Files that cannot be read, and what does not go together.
    pub fn load(
        certificate: &Path,
        key: &Path,
        client_authority: Option<&Path>,
    ) -> Result<Self, TlsError> {
        let files = Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            client_authority: client_authority.map(Path::to_owned),
        };
        let current = ArcSwap::from_pointee(files.read()?);
        Ok(Self(Arc::new(Inner { files, current })))
    }

    /// Reads the files again. Connections that are open stay as they are; no session of before is
    /// resumed after, so whom a new authority does not know is asked again.
    ///
    /// # Errors
    /// As [`load`](Self::load); then nothing has changed.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = self.0.files.read()?;
        self.0.current.store(Arc::new(config));
        Ok(())
    }

    /// The files it is read from, for those who look whether they have changed.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let Files { certificate, key, client_authority } = &self.0.files;
        [certificate, key].into_iter().chain(client_authority).map(PathBuf::as_path)
    }

    /// Whether clients must have a certificate too.
    #[must_use]
    pub fn is_mutual(&self) -> bool {
        self.0.files.client_authority.is_some()
    }

    /// Shakes hands with whoever has connected; `None` if that cannot be, or takes too long.
    pub(crate) async fn shake<S>(&self, stream: S) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.shake_in::<InCallMax, S>(stream).await
    }

    async fn shake_in<D, S>(&self, stream: S) -> Option<TlsStream<S>>
    where
        D: Deadline,
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.0.current.load_full());
        in_time::<D, _>(acceptor.accept(stream)).await?.ok()
    }
}

impl Files {
    fn read(&self) -> Result<ServerConfig, TlsError> {
        let chain = certificates(&self.certificate)?;
        let private = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| unread(&self.key, error, "a private key"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let builder = match &self.client_authority {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority)?;
                }
                let roots = Arc::new(roots);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build()?)
            }
        };
        let mut config = builder.with_single_cert(chain, private)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let what = "a certificate";
    let read = CertificateDer::pem_file_iter(path).map_err(|error| unread(path, error, what))?;
    let all: Result<Vec<_>, _> = read.collect();
    let all = all.map_err(|error| unread(path, error, what))?;
    if all.is_empty() {
        let (path, why) = (path.to_owned(), "none is there".to_owned());
        return Err(TlsError::File { path, why, what });
    }
    Ok(all)
}

fn unread(path: &Path, error: rustls::pki_types::pem::Error, what: &'static str) -> TlsError {
    TlsError::File { path: path.to_owned(), why: error.to_string(), what }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("is_mutual", &self.is_mutual()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::ClientConfig;
    use rustls::pki_types::ServerName;
    use tokio::io::{AsyncWriteExt, duplex};
    use tokio::time::sleep;
    use tokio_rustls::TlsConnector;

    use admittance_testkit::certificates::Authority;

    use super::*;
    use crate::deadline::mutants::{Anew, AtOnce, Never, is_given_up_in_time};

    /// Whether a handshake is given up in time that is not begun, stays half done, or goes on byte
    /// by byte.
    async fn a_handshake_that_stalls_is_given_up<D: Deadline>(tls: &Tls) -> bool {
        // The head of a greeting of 512 bytes.
        let head = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
        for (said, every) in [(0, 0), (head.len(), 0), (head.len(), 1_u32)] {
            let (ours, mut theirs) = duplex(64);
            let saying = async {
                for byte in head[..said]
                    .iter()
                    .chain(std::iter::repeat_n(&0, if every > 0 { 100 } else { 0 }))
                {
                    if theirs.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                    sleep(Duration::from_secs(every.into())).await;
                }
                std::future::pending::<()>().await;
            };
            let shaking = async {
                tokio::select! {
                    shaken = tls.shake_in::<D, _>(ours) => shaken.is_none(),
                    () = saying => false,
                }
            };
            if !is_given_up_in_time(shaking).await {
                return false;
            }
        }
        true
    }

    /// Whether an honest client is served.
    async fn an_honest_client_is_served<D: Deadline>(tls: &Tls, authority: &Authority) -> bool {
        let mut roots = RootCertStore::empty();
        for known in certificates(&authority.certificate).expect("it was written") {
            roots.add(known).expect("an authority");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().expect("supported");
        let config = builder.with_root_certificates(roots).with_no_client_auth();
        let (ours, theirs) = duplex(1 << 16);
        let name = ServerName::try_from("localhost").expect("a name");
        let connector = TlsConnector::from(Arc::new(config));
        let connecting = connector.connect(name, theirs);
        let (shaken, connected) = tokio::join!(tls.shake_in::<D, _>(ours), connecting);
        shaken.is_some() && connected.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_has_an_end() {
        let authority = Authority::new("shake");
        let own = authority.sign("server", "localhost");
        let tls = Tls::load(&own.certificate, &own.key, None).expect("they go together");
        assert!(a_handshake_that_stalls_is_given_up::<InCallMax>(&tls).await);
        assert!(an_honest_client_is_served::<InCallMax>(&tls, &authority).await);
        // One that has none, one that begins anew, and one that is over before it began.
        assert!(!a_handshake_that_stalls_is_given_up::<Never>(&tls).await);
        assert!(!a_handshake_that_stalls_is_given_up::<Anew>(&tls).await);
        assert!(!a_handshake_that_stalls_is_given_up::<AtOnce>(&tls).await);
        assert!(!an_honest_client_is_served::<AtOnce>(&tls, &authority).await);
    }
}
