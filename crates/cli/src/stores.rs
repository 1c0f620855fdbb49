//! Which store the flags choose, and how it is opened.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use admittance::{Coordinator, Fuses, GuardSettings, Relay, Span};
use admittance_postgres::{PostgresStore, TableName};
use admittance_redis::{PolicyOptions, RedisStore};
use admittance_server::{AnyStore, Coded, Config, KeySecret, PolicyConfig};

use crate::args::{MigrateArgs, StoreArgs};
use crate::{Failure, shown};

/// The store that was chosen. Shown, it names hosts, never a user or a password.
pub(crate) enum Chosen {
    Memory,
    Redis(String),
    Postgres(String),
}

impl Chosen {
    /// Reads the flags and `ADMITTANCE_STORE`.
    pub(crate) fn of(args: &StoreArgs) -> Result<Self, Failure> {
        let store = args.store.clone().or_else(|| std::env::var("ADMITTANCE_STORE").ok());
        let chosen = choose(store, args.redis.clone(), args.postgres_url.clone())?;
        let misplaced = match chosen {
            Self::Memory => args.redis_prefix.as_ref().or(args.postgres_prefix.as_ref()),
            Self::Redis(_) => args.postgres_prefix.as_ref(),
            Self::Postgres(_) => args.redis_prefix.as_ref(),
        };
        let foreign = match chosen {
            Self::Memory if args.key_secret_file.is_some() => Some("--key-secret-file"),
            Self::Memory | Self::Redis(_) if args.postgres_table.is_some() => {
                Some("--postgres-table")
            }
            Self::Memory | Self::Postgres(_) if args.allow_eviction => Some("--allow-eviction"),
            _ => None,
        };
        if let Some(flag) = foreign {
            return Err(Failure(format!("{flag} means nothing to {chosen}; leave it out")));
        }
        if misplaced.is_some() {
            return Err(Failure(format!(
                "the prefix is for another store than {chosen}; write --store-prefix"
            )));
        }
        Ok(chosen)
    }

    /// Whether it is the one in this process.
    pub(crate) const fn is_memory(&self) -> bool {
        matches!(self, Self::Memory)
    }

    /// How long a decision waits for it if nobody says otherwise; docs/STORES.md says why.
    pub(crate) const fn deadline(&self) -> Span {
        match self {
            Self::Memory | Self::Redis(_) => GuardSettings::DEADLINE_DEFAULT,
            Self::Postgres(_) => PostgresStore::DEADLINE,
        }
    }

    /// Opens the store; `None` for the one in this process.
    pub(crate) async fn open(
        &self,
        args: &StoreArgs,
        config: &Config,
    ) -> Result<Option<AnyStore>, Failure> {
        let store = match self {
            Self::Memory => return Ok(None),
            Self::Redis(url) => Opened::Redis(redis(url, args, config)?),
            Self::Postgres(url) => {
                agreed(config)?;
                let store = postgres(url, args, config).connect().await.map_err(Failure::new)?;
                // That none is there is told by whoever asks first.
                if store.connected() > 0 && !store.is_connected() {
                    let up = store.connected();
                    tracing::warn!("store {self}: only {up} connections are ready so far");
                }
                Opened::Postgres(store)
            }
        };
        let secret = secret(args.key_secret_file.as_deref())?;
        Ok(Some(match store {
            Opened::Redis(store) => shared(store, secret),
            Opened::Postgres(store) => shared(store, secret),
        }))
    }
}

/// A store in which instances meet. Keys are coded if there is a secret; what instances tell one
/// another has no keys in it.
fn shared<S>(store: S, secret: Option<KeySecret>) -> AnyStore
where
    S: Fuses + Coordinator + Relay + 'static,
{
    let store = Arc::new(store);
    let any = match secret {
        None => AnyStore::fused(Arc::clone(&store)),
        Some(secret) => AnyStore::fused(Coded::new(Arc::clone(&store), secret)),
    };
    any.with_fleet(store)
}

/// Refuses policies that have one name in the store and want different things of it: the keys of
/// one would be where the other does not look.
pub(crate) fn agreed(config: &Config) -> Result<(), Failure> {
    let mut known: HashMap<&str, &PolicyConfig> = HashMap::new();
    for policy in &config.policies {
        let name = policy.store_name();
        let first = *known.entry(name).or_insert(policy);
        let (ours, theirs) = (&policy.store, &first.store);
        let is_same = ours.hash_tag == theirs.hash_tag
            && ours.wait_replicas == theirs.wait_replicas
            && ours.durable == theirs.durable;
        if !is_same {
            return Err(Failure(format!(
                "policies {:?} and {:?} have the prefix {name:?} in common but differ in hashTag, \
                 waitReplicas or durable; give one of them a prefix of its own",
                first.name, policy.name
            )));
        }
    }
    Ok(())
}

enum Opened {
    Redis(RedisStore),
    Postgres(PostgresStore),
}

/// One store out of what the flags say; the words of other systems mean their own flag's URL.
fn choose(
    store: Option<String>,
    redis: Option<String>,
    postgres: Option<String>,
) -> Result<Chosen, Failure> {
    let two = || Failure("two stores are given; choose one of them with --store URL".into());
    match (store.as_deref(), redis, postgres) {
        (None | Some("memory"), None, None) => Ok(Chosen::Memory),
        (None | Some("redis"), Some(url), None) => Ok(Chosen::Redis(url)),
        (None | Some("postgres"), None, Some(url)) => Ok(Chosen::Postgres(url)),
        (Some(word @ ("redis" | "postgres")), None, None) => {
            Err(Failure(format!("--store {word} needs the rest of its URL: {word}://host")))
        }
        (Some(url), None, None) => chosen_by_scheme(url),
        _ => Err(two()),
    }
}

fn chosen_by_scheme(url: &str) -> Result<Chosen, Failure> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let first = scheme.split('+').next().unwrap_or("");
    match first {
        "redis" | "rediss" | "valkey" | "valkeys" => Ok(Chosen::Redis(url.to_owned())),
        "postgres" | "postgresql" => Ok(Chosen::Postgres(url.to_owned())),
        // What was given may be a password in the wrong place: it is not repeated.
        _ => Err(Failure(
            "--store is none that this version knows; write memory, or a URL that begins with \
             redis://, rediss://, valkey://, redis+cluster://, redis+sentinel:// or postgres://"
                .into(),
        )),
    }
}

/// How long a store may take before its connection is given up: longer than anybody waits for an
/// answer, so that it is the policy's deadline that decides.
fn patience(config: &Config) -> Duration {
    let longest = config.policies.iter().map(|policy| policy.store.deadline.us()).max();
    PATIENCE_MIN.max(2 * Duration::from_micros(longest.unwrap_or(0)))
}

const PATIENCE_MIN: Duration = Duration::from_secs(2);

fn redis(url: &str, args: &StoreArgs, config: &Config) -> Result<RedisStore, Failure> {
    agreed(config)?;
    let mut builder = RedisStore::builder(url).patience(patience(config));
    if let Some(prefix) = args.store_prefix.as_ref().or(args.redis_prefix.as_ref()) {
        builder = builder.prefix(prefix);
    }
    if args.allow_eviction {
        builder = builder.allow_eviction();
    }
    for policy in &config.policies {
        let wait_replicas = u32::try_from(policy.store.wait_replicas).unwrap_or(u32::MAX);
        let hash_tag = policy.store.hash_tag.clone();
        let options = PolicyOptions { hash_tag, wait_replicas };
        if options != PolicyOptions::default() {
            builder = builder.policy(policy.store_name(), options);
        }
    }
    builder.build().map_err(Failure::new)
}

fn postgres(url: &str, args: &StoreArgs, config: &Config) -> admittance_postgres::Builder {
    let mut builder = PostgresStore::builder(url).migrates(!args.no_migrate);
    builder = builder.answer_within(patience(config));
    if let Some(prefix) = args.store_prefix.as_ref().or(args.postgres_prefix.as_ref()) {
        builder = builder.prefix(prefix);
    }
    if let Some(table) = &args.postgres_table {
        builder = builder.table(table);
    }
    for policy in config.policies.iter().filter(|policy| !policy.store.durable) {
        builder = builder.unlogged(policy.store_name());
    }
    builder
}

/// The secret that keys are coded with, from a file or the environment.
fn secret(file: Option<&Path>) -> Result<Option<KeySecret>, Failure> {
    let bytes = match (file, std::env::var_os(SECRET_VARIABLE)) {
        (None, None) => return Ok(None),
        (Some(_), Some(_)) => {
            let message =
                format!("--key-secret-file and {SECRET_VARIABLE} are both given; keep one of them");
            return Err(Failure(message));
        }
        (Some(path), None) => std::fs::read(path)
            .map_err(|error| Failure(format!("{}: cannot be read: {error}", path.display())))?,
        (None, Some(value)) => value.into_encoded_bytes(),
    };
    KeySecret::new(&bytes).map(Some).map_err(Failure::new)
}

/// `admittance migrate`: brings a database to the version of this binary.
pub(crate) fn migrate(args: &MigrateArgs) -> Result<ExitCode, Failure> {
    let url = args.store.clone().or_else(|| std::env::var("ADMITTANCE_STORE").ok());
    let url = url.ok_or_else(|| Failure("--store postgres://… says which database".into()))?;
    let chosen = chosen_by_scheme(&url)?;
    let Chosen::Postgres(url) = &chosen else {
        return Err(Failure(format!("{chosen} has nothing to install; only Postgres does")));
    };
    let table = args.postgres_table.as_deref().map_or(Ok(TableName::default()), str::parse);
    let table: TableName = table.map_err(Failure::new)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure(format!("cannot start: {error}")))?;
    let report = runtime.block_on(admittance_postgres::migrate(url, &table));
    let report = report.map_err(Failure::new)?;
    let (applied, version) = (report.applied, report.version);
    shown::print(&format!("{chosen}: {table} is at version {version}, {applied} steps ran now\n"));
    Ok(ExitCode::SUCCESS)
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Redis(url) | Self::Postgres(url) => f.write_str(&without_login(url)),
        }
    }
}

/// A URL's scheme and hosts. What cannot be told apart from a login for certain is left out.
fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("store", ""));
    let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
    let after_login = before.rsplit_once('@').map_or(before, |(_, after)| after);
    let hosts = after_login.split('/').next().unwrap_or("");
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ',' | ':' | '[' | ']');
    let is_clear = !query.contains('@') && !hosts.starts_with(':') && hosts.chars().all(plain);
    format!("{scheme}://{}", if is_clear { hosts } else { "…" })
}

const SECRET_VARIABLE: &str = "ADMITTANCE_KEY_SECRET";

#[cfg(test)]
mod tests {
    use admittance_server::Fail;
    use admittance_testkit::servers::PostgresServer;
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn a_shown_url_has_no_login() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379"),
            ("redis://:secret@cache:6379", "redis://cache:6379"),
            ("rediss://ann:se/cr@et@cache?ca=/x", "rediss://cache"),
            ("redis+cluster://u:secret@a:1,b:2", "redis+cluster://a:1,b:2"),
            ("postgres://ann:secret@[::1]:5432/db?sslmode=require", "postgres://[::1]:5432"),
            ("redis://:sec?ret@cache", "redis://…"),
            ("redis://secret?x@cache", "redis://…"),
            ("redis+sentinel://a:1/m?sentinel_password=se@cret", "redis+sentinel://…"),
            ("redis://:secret", "redis://…"),
        ] {
            assert_eq!(without_login(url), shown);
        }
    }

    #[test]
    fn nothing_is_installed_if_the_flags_say_so() {
        let server = PostgresServer::start_with(&["fsync=off"]).expect("Postgres is installed");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let config = Config::built_in(Fail::Open).expect("the examples");
        let url = server.url();
        for (flags, installed) in [(&["--no-migrate"][..], "f"), (&[], "t")] {
            let words = ["admittance", "serve", "--store", &url];
            let words = words.iter().chain(flags);
            let Command::Serve(args) = Args::parse_from(words).command else { panic!("serve") };
            let store = runtime.block_on(postgres(&url, &args.store, &config).connect());
            drop(store.expect("a store"));
            let there = "SELECT to_regclass('admittance_migrations') IS NOT NULL";
            assert_eq!(server.sql(there).expect("an answer"), installed, "{flags:?}");
        }
    }

    #[test]
    fn one_store_is_chosen_and_two_are_refused() {
        let some = |text: &str| Some(text.to_owned());
        let chosen = |store, redis, postgres| {
            choose(store, redis, postgres).map(|chosen| chosen.to_string()).map_err(|f| f.0)
        };
        assert_eq!(chosen(None, None, None), Ok("memory".into()));
        assert_eq!(chosen(some("memory"), None, None), Ok("memory".into()));
        assert_eq!(chosen(some("valkey://h"), None, None), Ok("valkey://h".into()));
        assert_eq!(chosen(some("postgresql://h/d"), None, None), Ok("postgresql://h".into()));
        assert_eq!(chosen(None, some("redis://h"), None), Ok("redis://h".into()));
        assert_eq!(chosen(some("redis"), some("redis://h"), None), Ok("redis://h".into()));
        assert_eq!(chosen(some("postgres"), None, some("postgres://h")), Ok("postgres://h".into()));
        for (store, redis, postgres) in [
            (some("redis://h"), some("redis://i"), None),
            (some("memory"), some("redis://i"), None),
            (None, some("redis://h"), some("postgres://h")),
            (some("redis"), None, some("postgres://h")),
        ] {
            let refused = chosen(store, redis, postgres).expect_err("two");
            assert!(refused.starts_with("two stores"), "{refused}");
        }
        let refused = chosen(some("mysql://ann:secret@h"), None, None).expect_err("unknown");
        assert!(!refused.contains("secret"), "{refused}");
        assert!(chosen(some("redis"), None, None).is_err());
    }
}
