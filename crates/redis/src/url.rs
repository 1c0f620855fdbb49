//! Where the servers are, from a URL.
//!
//! # Guarantee
//! No text that this module makes, for an error or for debugging, has a user's password in it.
//!
//! # Proven by
//! The tests below.
//!
//! | URL | what it means |
//! |---|---|
//! | `redis://[user[:password]@]host[:port][/db]` | one server |
//! | `redis+cluster://host[:port],host[:port]` | a cluster; any of its nodes |
//! | `redis+sentinel://host[:port],host[:port]/name[/db]` | the primary that the sentinels name |
//!
//! `valkey` is the same as `redis`; `rediss` and `valkeys` speak TLS. After a `?`: `ca` is a file
//! with the certificates to trust instead of the system's, `sentinel_user` and `sentinel_password`
//! are the sentinels' own. What is not plain in a name or password is written as `%XX`.

use std::fmt;

/// What a URL says.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) hosts: Vec<Host>,
    pub(crate) is_tls: bool,
    pub(crate) login: Login,
    pub(crate) sentinel_login: Login,
    pub(crate) db: i64,
    pub(crate) ca: Option<String>,
}

/// How the servers work together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    One,
    Cluster,
    Sentinel { name: String },
}

/// A host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) port: u16,
}

/// Who we are to the server.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// What is wrong with a URL. It has nothing in it that could be a password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UrlError {
    /// It does not begin with one of the schemes.
    Scheme,
    /// It names no host, or one that is empty.
    NoHost,
    /// A port is not a number from 1 to 65,535.
    Port,
    /// A kind of server that has just one address was given several.
    SeveralHosts,
    /// A sentinel URL does not say which primary, after the hosts.
    NoName,
    /// The part after the hosts is not a database number.
    Database,
    /// A cluster has no databases.
    ClusterDatabase,
    /// An option after `?` that there is not.
    Option(String),
    /// A `%` without two hexadecimal digits, or what they spell is not UTF-8.
    Escape,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store's URL ")?;
        match self {
            Self::Scheme => f.write_str(
                "must begin with redis://, rediss://, redis+cluster://, rediss+cluster://, \
                 redis+sentinel:// or rediss+sentinel://, or the same with valkey",
            ),
            Self::NoHost => f.write_str("names no host"),
            Self::Port => f.write_str("has a port that is not a number from 1 to 65535"),
            Self::SeveralHosts => f.write_str(
                "names several hosts; that is for redis+cluster:// and redis+sentinel://",
            ),
            Self::NoName => f.write_str(
                "must name the primary that the sentinels watch: redis+sentinel://hosts/name",
            ),
            Self::Database => f.write_str("has something after the host that is no database"),
            Self::ClusterDatabase => f.write_str("has a database; a cluster has only one"),
            Self::Option(name) => write!(
                f,
                "has the option {name:?}; there are ca, sentinel_user and sentinel_password",
            ),
            Self::Escape => f.write_str("has a % that two hexadecimal digits do not follow"),
        }
    }
}

impl std::error::Error for UrlError {}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = url.split_once("://").ok_or(UrlError::Scheme)?;
        let (base, form) = scheme.split_once('+').unwrap_or((scheme, ""));
        let is_tls = match base {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(UrlError::Scheme),
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may have a slash or a comma in it: the last @ ends it.
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (Login::parse(login)?, rest),
            None => (Login::default(), rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_sentinel = form == "sentinel";
        let port = if is_sentinel { SENTINEL_PORT } else { PORT };
        let hosts = hosts.split(',').map(|host| Host::parse(host, port));
        let hosts = hosts.collect::<Result<Vec<_>, _>>()?;
        let (kind, db) = match form {
            "" if hosts.len() > 1 => return Err(UrlError::SeveralHosts),
            "" => (Kind::One, database(path)?),
            "cluster" if path.is_empty() => (Kind::Cluster, 0),
            "cluster" => return Err(UrlError::ClusterDatabase),
            "sentinel" => {
                let (name, db) = path.split_once('/').unwrap_or((path, ""));
                let name = unescape(name)?;
                if name.is_empty() {
                    return Err(UrlError::NoName);
                }
                (Kind::Sentinel { name }, database(db)?)
            }
            _ => return Err(UrlError::Scheme),
        };
        let sentinel_login = Login::default();
        let mut target = Self { kind, hosts, is_tls, login, sentinel_login, db, ca: None };
        target.options(options)?;
        Ok(target)
    }

    fn options(&mut self, options: &str) -> Result<(), UrlError> {
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = Some(unescape(value)?);
            match name {
                "ca" => self.ca = value,
                "sentinel_user" => self.sentinel_login.user = value,
                "sentinel_password" => self.sentinel_login.password = value,
                _ => return Err(UrlError::Option(name.to_owned())),
            }
        }
        Ok(())
    }
}

impl Login {
    fn parse(text: &str) -> Result<Self, UrlError> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let given = |text: &str| {
            let text = unescape(text)?;
            Ok(Some(text).filter(|text| !text.is_empty()))
        };
        Ok(Self { user: given(user)?, password: given(password)? })
    }
}

impl Host {
    /// A host with a port, perhaps; an IPv6 address is in brackets if it has a port.
    pub(crate) fn parse(text: &str, port: u16) -> Result<Self, UrlError> {
        let (name, port) = match text.rsplit_once(':') {
            Some((name, _)) if name.contains(':') && !name.ends_with(']') => (text, port),
            Some((name, number)) => {
                let number = number.parse().ok().filter(|&number: &u16| number > 0);
                (name, number.ok_or(UrlError::Port)?)
            }
            None => (text, port),
        };
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if bare.is_empty() {
            return Err(UrlError::NoHost);
        }
        Ok(Self { name: bare.to_owned(), port })
    }
}

fn database(text: &str) -> Result<i64, UrlError> {
    match text {
        "" => Ok(0),
        text => text.parse::<u32>().map(i64::from).map_err(|_| UrlError::Database),
    }
}

fn unescape(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let both = digit(rest.next()).zip(digit(rest.next()));
        let byte = both.and_then(|(high, low)| u8::try_from(high * 16 + low).ok());
        bytes.push(byte.ok_or(UrlError::Escape)?);
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Escape)
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut target = f.debug_struct("Target");
        target.field("kind", &self.kind).field("hosts", &self.hosts).field("tls", &self.is_tls);
        target.field("login", &self.login).field("db", &self.db).finish_non_exhaustive()
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.password.is_some() { "with a password" } else { "without a password" })
    }
}

const PORT: u16 = 6_379;
const SENTINEL_PORT: u16 = 26_379;

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16) -> Host {
        Host { name: name.to_owned(), port }
    }

    #[test]
    fn a_url_says_where_and_who() {
        let target = Target::parse("redis://ann:p%40ss,w/@example.org:7000/3").expect("valid");
        assert_eq!(target.hosts, [host("example.org", 7_000)]);
        assert_eq!(target.login.user.as_deref(), Some("ann"));
        assert_eq!(target.login.password.as_deref(), Some("p@ss,w/"));
        assert_eq!((target.kind, target.db, target.is_tls), (Kind::One, 3, false));
        let target = Target::parse("valkeys+cluster://:pw@[::1]:7000,h2?ca=/a%20b").expect("valid");
        assert_eq!(target.hosts, [host("::1", 7_000), host("h2", 6_379)]);
        assert_eq!((target.login.user.as_deref(), target.is_tls), (None, true));
        assert_eq!((target.kind, target.ca.as_deref()), (Kind::Cluster, Some("/a b")));
        let target = Target::parse("redis+sentinel://a,b:1/main/2?sentinel_password=x");
        let target = target.expect("valid");
        assert_eq!(target.hosts, [host("a", 26_379), host("b", 1)]);
        assert_eq!((target.kind, target.db), (Kind::Sentinel { name: "main".to_owned() }, 2));
        assert_eq!(target.sentinel_login.password.as_deref(), Some("x"));
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_is_wrong_and_no_password() {
        for (url, error) in [
            ("http://secret@h", UrlError::Scheme),
            ("redis+ring://:secret@h", UrlError::Scheme),
            ("h:6379", UrlError::Scheme),
            ("redis://:secret@", UrlError::NoHost),
            ("redis+cluster://:secret@a,,b", UrlError::NoHost),
            ("redis://:secret@h:x", UrlError::Port),
            ("redis://:secret@h:0", UrlError::Port),
            ("redis://:secret@h:70000", UrlError::Port),
            ("redis://:secret@a,b", UrlError::SeveralHosts),
            ("redis+sentinel://:secret@a,b", UrlError::NoName),
            ("redis://:secret@h/x", UrlError::Database),
            ("redis+cluster://:secret@h/1", UrlError::ClusterDatabase),
            ("redis://h?sekret=secret", UrlError::Option("sekret".to_owned())),
            ("redis://:secret%zz@h", UrlError::Escape),
        ] {
            let given = Target::parse(url).expect_err(url);
            assert_eq!(given, error, "{url}");
            assert!(!format!("{given} {given:?}").contains("secret"), "{url}");
        }
        let target = Target::parse("redis+sentinel://u:secret@h/n?sentinel_password=secret");
        assert!(!format!("{:?}", target.expect("valid")).contains("secret"));
    }
}
