//! The tables and functions in the database, installed in numbered steps.
//!
//! # Guarantee
//! - Each step runs once, in one transaction with the note that it ran: after a failure nothing is
//!   half there.
//! - Several instances that start together take turns on an advisory lock; the others find the
//!   work done, whatever the database's default isolation is.
//! - A database that is at this version is only read: a role that may not change it can use it.
//! - A database that another version has taken further, or whose steps are not the ones in this
//!   binary, is left alone and refused.
//!
//! # Proven by
//! `tests/it/migrations.rs`.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tokio_postgres::{Client, GenericClient, IsolationLevel};

use crate::TableName;
use crate::address::{Address, InvalidUrl};

/// What [`migrate`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How many steps ran now.
    pub applied: usize,
    /// The version that the database has.
    pub version: i32,
}

/// Why the database is not ready for this binary. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The URL cannot be used.
    #[error(transparent)]
    Url(#[from] InvalidUrl),
    /// A newer binary was here.
    #[error(
        "the database is at version {found}, this binary knows version {known}; \
         run the newer binary, or use another table name"
    )]
    Newer {
        /// The version it has.
        found: i32,
        /// The newest version this binary has.
        known: i32,
    },
    /// A step that ran is not the one that this binary has under its number.
    #[error(
        "step {version} of the database is not this binary's; \
         use the binary that installed it, or another table name"
    )]
    Changed {
        /// The step's number.
        version: i32,
    },
    /// The server said no, or could not be reached.
    #[error("the database could not be migrated: {0}")]
    Database(#[from] tokio_postgres::Error),
}

/// One numbered step.
#[derive(Clone, Copy, Debug)]
struct Migration {
    version: i32,
    name: &'static str,
    sql: &'static str,
}

/// Brings a database to the version of this binary. Doing it again does nothing.
///
/// # Errors
/// The database cannot be reached, refuses, or belongs to another version.
pub async fn migrate(url: &str, table: &TableName) -> Result<Report, MigrateError> {
    let address: Address = url.parse()?;
    migrate_at(&address, table).await
}

pub(crate) async fn migrate_at(
    address: &Address,
    table: &TableName,
) -> Result<Report, MigrateError> {
    migrate_with(address, table, |_, sql| sql.to_owned()).await
}

async fn migrate_with(
    address: &Address,
    table: &TableName,
    edit: impl Fn(&str, &str) -> String,
) -> Result<Report, MigrateError> {
    let (mut client, connection) = address.with_settings(SETTINGS).connect().await?;
    let driver = tokio::spawn(connection.run());
    let done = run(&mut client, table, edit).await;
    driver.abort();
    done
}

/// Installs migrations that were edited, to see that a test notices.
///
/// # Errors
/// As [`migrate`].
#[cfg(feature = "testing")]
#[doc(hidden)]
pub async fn migrate_edited(
    url: &str,
    table: &TableName,
    edit: impl Fn(&str, &str) -> String,
) -> Result<Report, MigrateError> {
    let address: Address = url.parse()?;
    migrate_with(&address, table, edit).await
}

async fn run(
    client: &mut Client,
    table: &TableName,
    edit: impl Fn(&str, &str) -> String,
) -> Result<Report, MigrateError> {
    // A role that may not create anything is enough for a database that is ready.
    let there = client.query_one(THERE, &[&format!("{table}_migrations")]).await?;
    let known = MIGRATIONS.last().map_or(0, |last| last.version);
    if there.try_get(0)? && missing(&applied(client, table).await?)?.is_empty() {
        return Ok(Report { applied: 0, version: known });
    }
    // Each statement must see what was committed while the lock was waited for.
    let transaction = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    let transaction = transaction.read_only(false).start().await?;
    let lock = lock_number(table);
    // Somebody else's migration may take longer than a check may.
    transaction
        .batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
        .await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&lock]).await?;
    // Somebody may have made it meanwhile, which `to_regclass` need not know: it trusts what this
    // session has remembered.
    transaction.batch_execute(&NOTES.replace("{name}", table.as_str())).await?;
    let found = applied(&transaction, table).await?;
    let mut count = 0;
    for own in missing(&found)? {
        for sql in instances(&edit(own.name, own.sql), table) {
            transaction.batch_execute(&sql).await?;
        }
        let note = format!("INSERT INTO {table}_migrations VALUES ($1, $2, $3)");
        transaction.execute(&note, &[&own.version, &own.name, &own.checksum()]).await?;
        count += 1;
    }
    transaction.commit().await?;
    Ok(Report { applied: count, version: known })
}

/// The steps that ran, with their checksums.
async fn applied(
    client: &impl GenericClient,
    table: &TableName,
) -> Result<Vec<(i32, String)>, tokio_postgres::Error> {
    let rows = format!("SELECT version, checksum FROM {table}_migrations ORDER BY version");
    let rows = client.query(&rows, &[]).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// The steps that have not run, if those that have are this binary's.
fn missing(found: &[(i32, String)]) -> Result<Vec<&'static Migration>, MigrateError> {
    let known = MIGRATIONS.last().map_or(0, |last| last.version);
    for (version, checksum) in found {
        let Some(own) = MIGRATIONS.iter().find(|own| own.version == *version) else {
            return Err(MigrateError::Newer { found: *version, known });
        };
        if *checksum != own.checksum() {
            return Err(MigrateError::Changed { version: *version });
        }
    }
    let ran = |own: &Migration| found.iter().any(|(version, _)| *version == own.version);
    Ok(MIGRATIONS.iter().filter(|own| !ran(own)).collect())
}

/// A step with its names filled in: once, or once for each kind of table.
fn instances(sql: &str, table: &TableName) -> Vec<String> {
    let filled = |kind: &str, word: &str| {
        let sql = sql.replace("{state}", &format!("{table}_{kind}"));
        sql.replace("{unlogged}", word).replace("{name}", table.as_str())
    };
    if sql.contains("{state}") {
        vec![filled("logged", ""), filled("unlogged", "UNLOGGED")]
    } else {
        vec![filled("", "")]
    }
}

impl Migration {
    fn checksum(&self) -> String {
        let mut shown = String::with_capacity(64);
        for byte in Sha256::digest(self.sql.as_bytes()) {
            // Writing to a string does not fail.
            let _ = write!(shown, "{byte:02x}");
        }
        shown
    }
}

/// One lock per table name.
fn lock_number(table: &TableName) -> i64 {
    let digest = Sha256::digest(format!("admittance migrations of {table}").as_bytes());
    digest.iter().take(8).fold(0, |number, byte| (number << 8) | i64::from(*byte))
}

/// Whether there is a table of that name.
const THERE: &str = "SELECT to_regclass($1) IS NOT NULL";

/// Which steps ran.
const NOTES: &str = "CREATE TABLE IF NOT EXISTS {name}_migrations (version int PRIMARY KEY, \
    name text NOT NULL, checksum text NOT NULL, applied_at timestamptz DEFAULT now())";

/// A database that is read-only by default is not taken for a standby.
const SETTINGS: &str = "-c default_transaction_read_only=off";

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "state", sql: include_str!("../migrations/0001_state.sql") },
    Migration { version: 2, name: "steps", sql: include_str!("../migrations/0002_steps.sql") },
    Migration { version: 3, name: "ops", sql: include_str!("../migrations/0003_ops.sql") },
    Migration { version: 4, name: "several", sql: include_str!("../migrations/0004_several.sql") },
    Migration { version: 5, name: "reap", sql: include_str!("../migrations/0005_reap.sql") },
    Migration { version: 6, name: "lend", sql: include_str!("../migrations/0006_lend.sql") },
    Migration { version: 7, name: "leases", sql: include_str!("../migrations/0007_leases.sql") },
    Migration { version: 8, name: "fleets", sql: include_str!("../migrations/0008_fleets.sql") },
    Migration { version: 9, name: "relay", sql: include_str!("../migrations/0009_relay.sql") },
    Migration { version: 10, name: "budgets", sql: include_str!("../migrations/0010_budgets.sql") },
    Migration {
        version: 11,
        name: "accounts",
        sql: include_str!("../migrations/0011_accounts.sql"),
    },
    Migration { version: 12, name: "fuse", sql: include_str!("../migrations/0012_fuse.sql") },
    Migration { version: 13, name: "units", sql: include_str!("../migrations/0013_units.sql") },
    Migration { version: 14, name: "states", sql: include_str!("../migrations/0014_states.sql") },
    Migration {
        version: 15,
        name: "unsettled",
        sql: include_str!("../migrations/0015_unsettled.sql"),
    },
];
