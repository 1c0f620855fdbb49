//! Certificates that tests make while they run.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

/// An authority, and a directory for what it signs. The directory goes with it.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Where its files are.
    pub directory: PathBuf,
    /// Its own certificate.
    pub certificate: PathBuf,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub struct Signed {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Authority {
    /// Makes an authority of that name.
    ///
    /// # Panics
    /// If the directory cannot be written.
    #[must_use]
    pub fn new(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = format!("admittance-{name}-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir_all(&directory).expect("a directory");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let own = params.self_signed(&key).expect("signed");
        let certificate = directory.join("ca.pem");
        write(&certificate, &own.pem());
        Self { issuer: Issuer::new(params, key), directory, certificate }
    }

    /// Signs a certificate for a host name or an address.
    ///
    /// # Panics
    /// If the files cannot be written.
    #[must_use]
    pub fn sign(&self, file: &str, name: &str) -> Signed {
        self.sign_until(file, name, 2100)
    }

    /// Signs a certificate that expires when `year` begins.
    ///
    /// # Panics
    /// If the files cannot be written.
    #[must_use]
    pub fn sign_until(&self, file: &str, name: &str, year: i32) -> Signed {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        let certificate = self.directory.join(format!("{file}.pem"));
        let private = self.directory.join(format!("{file}.key"));
        write(&certificate, &signed.pem());
        write(&private, &key.serialize_pem());
        Signed { certificate, key: private }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file");
}
