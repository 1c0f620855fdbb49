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
//! `tests/tls.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

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

    /// For the next connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.current.load_full())
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
