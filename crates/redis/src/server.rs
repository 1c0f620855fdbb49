//! One server: how to connect to it, and whether it may be used at all.
//!
//! # Guarantee
//! A server that may evict keys is refused: an evicted key comes back as an admission. So is one
//! that does not know absolute expiry, which came with version 6.2.
//!
//! # Proven by
//! `tests/it/failures.rs::a_server_that_may_evict_keys_is_refused`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use admittance::StoreError;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, Pipeline, ProtocolVersion,
    PushInfo, PushKind, RedisConnectionInfo, RedisError, TlsCertificates, Value,
};

use crate::fault::{Fault, unconnected};
use crate::url::{Host, Kind, Login, Target};

/// How to connect to any of the servers.
pub(crate) struct Connector {
    pub(crate) target: Target,
    /// The certificates to trust instead of the system's.
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) may_evict: bool,
    /// How long a connection may take, and how long an answer.
    pub(crate) patience: Duration,
}

/// A connection that knows when it has ended.
#[derive(Clone)]
pub(crate) struct Connection {
    inner: MultiplexedConnection,
    has_ended: Arc<AtomicBool>,
}

impl Connection {
    /// Sends commands in one write; `Err` means that they may or may not have been run.
    pub(crate) async fn send(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.inner.send_packed_commands(pipeline, 0, pipeline.len()).await
    }

    /// Whether nothing that is sent from now on can arrive.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.has_ended, &other.has_ended)
    }
}

impl Connector {
    /// The primary, wherever it is now.
    pub(crate) async fn primary(&self) -> Result<Connection, StoreError> {
        let Kind::Sentinel { name } = &self.target.kind else {
            return self.open(&self.target.hosts[0]).await;
        };
        let mut error = StoreError::Unavailable;
        for sentinel in &self.target.hosts {
            let found = match self.named(sentinel, name).await {
                Ok(host) => self.open_primary(&host).await,
                Err(error) => Err(error),
            };
            match found {
                Ok(connection) => return Ok(connection),
                // What an operator must change is worth more than that one is not there.
                Err(StoreError::Unavailable) => {}
                Err(other) => error = other,
            }
        }
        Err(error)
    }

    /// Where a sentinel says that the primary is.
    async fn named(&self, sentinel: &Host, name: &str) -> Result<Host, StoreError> {
        let mut connection = self.bare(sentinel, &self.target.sentinel_login, 0).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(name);
        let reply = connection.send_packed_command(&command).await;
        let reply = reply.map_err(|error| unconnected(&error))?;
        let host = texts(&reply);
        match (host.as_slice(), reply) {
            ([name, port], _) => {
                let port = port.parse().map_err(|_| StoreError::Unavailable)?;
                Ok(Host { name: name.clone(), port })
            }
            (_, Value::ServerError(error)) => Err(Fault::of(&error).error()),
            _ => {
                let detail = format!("the sentinels know no primary of the name {name:?}");
                Err(StoreError::Refused { detail: detail.into() })
            }
        }
    }

    /// Connects, unless the server is not what the sentinels took it for.
    async fn open_primary(&self, host: &Host) -> Result<Connection, StoreError> {
        let mut connection = self.open(host).await?;
        let reply = connection.inner.send_packed_command(&redis::cmd("ROLE")).await;
        let role = texts(&reply.map_err(|error| unconnected(&error))?);
        let is_primary = role.first().is_some_and(|role| role == "master");
        if is_primary { Ok(connection) } else { Err(StoreError::Unavailable) }
    }

    /// Connects to a server for good.
    pub(crate) async fn open(&self, host: &Host) -> Result<Connection, StoreError> {
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        let notice = move |push: PushInfo| -> Result<(), ()> {
            if push.kind == PushKind::Disconnection {
                ended.store(true, Ordering::Release);
            }
            Ok(())
        };
        let config = self.config().set_push_sender(notice);
        let client = self.client(host, &self.target.login, self.target.db, ProtocolVersion::RESP3);
        let inner = client?.get_multiplexed_async_connection_with_config(&config).await;
        let mut inner = inner.map_err(|error| unconnected(&error))?;
        if !self.may_evict {
            self.examine(&mut inner).await?;
        }
        Ok(Connection { inner, has_ended })
    }

    /// Connects to ask one question.
    pub(crate) async fn bare(
        &self,
        host: &Host,
        login: &Login,
        db: i64,
    ) -> Result<MultiplexedConnection, StoreError> {
        let client = self.client(host, login, db, ProtocolVersion::RESP2)?;
        let made = client.get_multiplexed_async_connection_with_config(&self.config()).await;
        made.map_err(|error| unconnected(&error))
    }

    fn config(&self) -> AsyncConnectionConfig {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(self.patience));
        config.set_response_timeout(Some(self.patience))
    }

    fn client(
        &self,
        host: &Host,
        login: &Login,
        db: i64,
        protocol: ProtocolVersion,
    ) -> Result<Client, StoreError> {
        let (name, port) = (host.name.clone(), host.port);
        let address = if self.target.is_tls {
            // There may be one already that the process chose; it serves as well.
            let _ = rustls::crypto::ring::default_provider().install_default();
            ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(name, port)
        };
        let mut settings = RedisConnectionInfo::default().set_db(db).set_protocol(protocol);
        settings = settings.set_lib_name("admittance", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &login.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &login.password {
            settings = settings.set_password(password);
        }
        let tcp = TcpSettings::default().set_nodelay(true);
        let made = address.into_connection_info().and_then(|info| {
            let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
            match &self.ca {
                Some(ca) => {
                    let certificates =
                        TlsCertificates { client_tls: None, root_cert: Some(ca.clone()) };
                    Client::build_with_tls(info, certificates)
                }
                None => Client::open(info),
            }
        });
        made.map_err(|error| StoreError::Refused { detail: error.to_string().into() })
    }

    /// Refuses a server that cannot keep what it is told.
    async fn examine(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let mut info = redis::pipe();
        info.cmd("INFO").arg("memory").cmd("INFO").arg("server");
        let replies = connection.send_packed_commands(&info, 0, 2).await;
        let replies = replies.map_err(|error| unconnected(&error))?;
        let mut told = String::new();
        for reply in replies {
            match reply {
                Value::ServerError(error) => return Err(uninformed(&error)),
                Value::BulkString(bytes) => told += &String::from_utf8_lossy(&bytes),
                Value::VerbatimString { text, .. } | Value::SimpleString(text) => told += &text,
                _ => {}
            }
        }
        let field = |name: &str| {
            let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.unwrap_or_default().trim().to_owned()
        };
        let (maxmemory, policy) = (field("maxmemory"), field("maxmemory_policy"));
        if maxmemory != "0" && policy != "noeviction" {
            return Err(refused(format!(
                "the server may evict keys, and what a key has spent with them: set \
                 maxmemory-policy to noeviction (it is {policy}), or maxmemory to 0 (it is \
                 {maxmemory}), or allow eviction for this store",
            )));
        }
        let version = field("redis_version");
        let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let version_number = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version_number < (6, 2) {
            return Err(refused(format!(
                "the server is version {version}; version 6.2 or later is needed",
            )));
        }
        Ok(())
    }
}

fn uninformed(error: &redis::ServerError) -> StoreError {
    match Fault::of(error) {
        Fault::Refused { detail } => refused(format!(
            "the server does not say whether it may evict keys ({detail}): allow the user INFO, \
             or allow eviction for this store",
        )),
        fault => fault.error(),
    }
}

fn refused(detail: String) -> StoreError {
    StoreError::Refused { detail: detail.into() }
}

/// The texts of an array, without whatever else is in it.
pub(crate) fn texts(reply: &Value) -> Vec<String> {
    let Value::Array(values) = reply else { return Vec::new() };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    };
    values.iter().filter_map(text).collect()
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("target", &self.target).finish_non_exhaustive()
    }
}
