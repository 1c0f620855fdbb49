//! Certificates, made while tests run.
#![allow(dead_code, reason = "each test that includes this uses its own part of it")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

/// An authority, and a directory for what it signs. The directory goes with it.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) directory: PathBuf,
    /// Its own certificate.
    pub(crate) certificate: PathBuf,
}

/// A certificate and its key, in files.
#[derive(Clone, Debug)]
pub(crate) struct Signed {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
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

    /// Signs one for a name, or for an address.
    pub(crate) fn sign(&self, file: &str, name: &str) -> Signed {
        self.sign_until(file, name, 2100)
    }

    /// One that is no longer valid when that year begins.
    pub(crate) fn sign_until(&self, file: &str, name: &str, year: i32) -> Signed {
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
