//! Where the database is, and how to speak to it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::{Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::tls;

/// A database's address. Shown, it names hosts and database, never a password.
#[derive(Clone)]
pub(crate) struct Address {
    config: Config,
    tls: Option<Arc<ClientConfig>>,
}

/// Why a URL cannot be used. It is not repeated here: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidUrl {
    /// It is not a URL of a Postgres database.
    #[error("not a Postgres URL: {0}; it looks like postgres://user:password@host:5432/database")]
    Malformed(String),
    /// An `sslmode` that is not supported.
    #[error("sslmode is one of disable, prefer, require and verify-full")]
    SslMode,
    /// Certificates are to be verified, and nothing says against what.
    #[error("sslmode=verify-full needs sslrootcert=FILE, the certificates to trust, in PEM")]
    NoRoots,
    /// The file of certificates cannot be used.
    #[error("sslrootcert: {0}")]
    Roots(String),
}

impl FromStr for Address {
    type Err = InvalidUrl;

    fn from_str(url: &str) -> Result<Self, InvalidUrl> {
        // The driver knows neither verify-full nor sslrootcert.
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut roots, mut rest) = ("prefer", None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = value,
                Some(("sslrootcert", value)) => roots = Some(tls::decoded(value)),
                _ => rest.push(pair),
            }
        }
        let config = Config::from_str(&format!("{base}?{}", rest.join("&")));
        let mut config = config.map_err(|error| InvalidUrl::Malformed(cause(&error)))?;
        let tls = match (mode, roots) {
            ("disable", _) => None,
            ("prefer" | "require", None) => Some(tls::unverified()),
            ("require" | "verify-full", Some(roots)) => Some(tls::verified(&roots)?),
            ("prefer", Some(roots)) => Some(tls::verified(&roots)?),
            ("verify-full", None) => return Err(InvalidUrl::NoRoots),
            _ => return Err(InvalidUrl::SslMode),
        };
        config.ssl_mode(match mode {
            "disable" => SslMode::Disable,
            "prefer" => SslMode::Prefer,
            _ => SslMode::Require,
        });
        // Of several hosts, the one that can be written to, unless the URL says otherwise.
        if !rest.iter().any(|pair| pair.starts_with("target_session_attrs=")) {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("admittance");
        }
        Ok(Self { config, tls })
    }
}

impl Address {
    /// The same with settings that every session begins with.
    pub(crate) fn with_settings(&self, settings: &str) -> Self {
        let mut config = self.config.clone();
        let written = config.get_options().unwrap_or_default();
        config.options(format!("{written} {settings}").trim().to_owned());
        Self { config, tls: self.tls.clone() }
    }

    pub(crate) async fn connect(&self) -> Result<(Client, Connection), tokio_postgres::Error> {
        match &self.tls {
            Some(tls) => {
                let tls = MakeRustlsConnect::new(ClientConfig::clone(tls));
                let (client, connection) = self.config.connect(tls).await?;
                Ok((client, Connection(Box::pin(async move { drop(connection.await) }))))
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await?;
                Ok((client, Connection(Box::pin(async move { drop(connection.await) }))))
            }
        }
    }
}

/// What moves bytes for a client; it ends with the connection.
pub(crate) struct Connection(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>);

impl Connection {
    pub(crate) async fn run(self) {
        self.0.await;
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut address = f.debug_struct("Address");
        address.field("hosts", &self.config.get_hosts()).field("ports", &self.config.get_ports());
        address.field("database", &self.config.get_dbname()).finish_non_exhaustive()
    }
}

/// What is wrong with a URL, without anything from the URL: what stands where an option should
/// may be a password in the wrong place. Only names that the driver knows are repeated.
fn cause(error: &tokio_postgres::Error) -> String {
    let said = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    if said.starts_with("invalid value for option") {
        said
    } else if said.starts_with("unknown option") {
        "it has an option that is not known".to_owned()
    } else {
        "it cannot be read".to_owned()
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_holds_no_password() {
        let address: Address = "postgres://ann:s3cret@db:5433/limits".parse().unwrap();
        let shown = format!("{address:?}");
        assert!(shown.contains("db") && shown.contains("limits"), "{shown}");
        assert!(!shown.contains("s3cret") && !shown.contains("115, 51"), "{shown}");
        for (bad, said) in [
            ("postgres://ann:s3cret@db:port/limits", "option `port`"),
            ("postgres://ann:s3cret@db/x?s3cret=1", "an option that is not known"),
            ("postgres://ann@db/x?s3cret=", "an option that is not known"),
            ("s3cret=1", "an option that is not known"),
            ("user=ann password='s3cret", "cannot be read"),
        ] {
            let error = bad.parse::<Address>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
            assert!(error.to_string().contains(said), "{bad}: {error}");
        }
    }

    #[test]
    fn a_server_that_can_be_written_to_is_looked_for_unless_the_url_says_otherwise() {
        let wanted = |url: &str| {
            let address: Address = url.parse().unwrap();
            address.config.get_target_session_attrs()
        };
        assert_eq!(wanted("postgres://a,b/x"), TargetSessionAttrs::ReadWrite);
        assert_eq!(wanted("postgres://a,b/x?connect_timeout=1"), TargetSessionAttrs::ReadWrite);
        let any = "postgres://a,b/x?target_session_attrs=any";
        assert_eq!(wanted(any), TargetSessionAttrs::Any);
    }

    #[test]
    fn a_mode_of_tls_is_what_was_asked_for() {
        let parsed = |url: &str| url.parse::<Address>();
        let disabled = parsed("postgres://db/x?sslmode=disable&connect_timeout=7").unwrap();
        assert!(disabled.tls.is_none());
        assert_eq!(disabled.config.get_connect_timeout(), Some(&Duration::from_secs(7)));
        let mode = |url| parsed(url).unwrap().config.get_ssl_mode();
        assert_eq!(mode("postgres://db/x"), SslMode::Prefer);
        assert_eq!(mode("postgres://db/x?sslmode=require"), SslMode::Require);
        let refused = |url| parsed(url).unwrap_err();
        assert_eq!(refused("postgres://db/x?sslmode=verify-full"), InvalidUrl::NoRoots);
        assert_eq!(refused("postgres://db/x?sslmode=verify-ca"), InvalidUrl::SslMode);
        let missing = refused("postgres://db/x?sslmode=verify-full&sslrootcert=/no/such%20file");
        assert!(matches!(missing, InvalidUrl::Roots(_)), "{missing}");
    }
}
