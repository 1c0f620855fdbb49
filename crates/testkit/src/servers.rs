//! Real servers for tests: Redis, Valkey, Postgres, a Redis Cluster, a Sentinel group, and a proxy
//! that makes the network between a client and any of them bad.
//!
//! Each server listens on a free loopback port and keeps its files in a directory of its own, made
//! in the directory that `ADMITTANCE_SERVERS` names, or else where temporary files go. A server
//! that is not installed is a [`Failure`] that says what to run, never a test that passes.
//!
//! # Guarantee
//! A server ends when its value is dropped, and when the process that started it ends in any way,
//! `SIGKILL` included: the kernel kills it then. What a killed process leaves in the temporary
//! directory is removed by the next one that starts a server.
//!
//! # Proven by
//! `tests/it/servers.rs`, which also kills a process that holds servers.
//!
//! # Example
//! ```no_run
//! use admittance_testkit::servers::{Proxy, RedisServer, Reply};
//!
//! let redis = RedisServer::start()?;
//! let proxy = Proxy::start(redis.address())?;
//! proxy.drop_replies(); // Whoever connects to `proxy.address()` is heard and gets no answer.
//! assert_eq!(redis.command(&["DBSIZE"])?, Reply::Integer(0));
//! # Ok::<(), admittance_testkit::servers::Failure>(())
//! ```

mod cluster;
mod directory;
mod failure;
mod postgres;
mod process;
mod proxy;
mod redis;
mod resp;
mod sentinel;
mod traffic;

pub use cluster::{RedisCluster, SLOTS};
pub use failure::Failure;
pub use postgres::PostgresServer;
pub use process::{Launch, Process, alive, free_port};
pub use proxy::Proxy;
pub use redis::{Flavor, RedisServer};
pub use resp::{Connection, Reply};
pub use sentinel::RedisSentinel;
