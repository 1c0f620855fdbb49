//! The tables and functions in the database, installed in numbered steps.
//!
//! # Guarantee
//! - Each step runs once, in one transaction with the note that it ran: after a failure nothing is
//!   half there.
//! - Several instances that start together take turns on an advisory lock; the others find the
//!   work done.
//! - A database that another version has taken further, or whose steps are not the ones in this
//!   binary, is left alone and refused.
//!
//! # Proven by
//! `tests/migrations.rs`.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tokio_postgres::{Client, Transaction};

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
    let (mut client, connection) = address.with_settings(SETTINGS).connect().await?;
    let driver = tokio::spawn(connection.run());
    let done = run(&mut client, table, |_, sql| sql.to_owned()).await;
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
    let (mut client, connection) = address.connect().await?;
    let driver = tokio::spawn(connection.run());
    let done = run(&mut client, table, edit).await;
    driver.abort();
    done
}

async fn run(
    client: &mut Client,
    table: &TableName,
    edit: impl Fn(&str, &str) -> String,
) -> Result<Report, MigrateError> {
    let transaction = client.transaction().await?;
    let lock = lock_number(table);
    // Somebody else's migration may take longer than a check may.
    transaction
        .batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
        .await?;
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&lock]).await?;
    let found = applied(&transaction, table).await?;
    let known = MIGRATIONS.last().map_or(0, |last| last.version);
    for (version, checksum) in &found {
        let Some(own) = MIGRATIONS.iter().find(|own| own.version == *version) else {
            return Err(MigrateError::Newer { found: *version, known });
        };
        if *checksum != own.checksum() {
            return Err(MigrateError::Changed { version: *version });
        }
    }
    let missing = MIGRATIONS.iter().filter(|own| !found.iter().any(|(it, _)| *it == own.version));
    let mut count = 0;
    for own in missing {
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
    transaction: &Transaction<'_>,
    table: &TableName,
) -> Result<Vec<(i32, String)>, tokio_postgres::Error> {
    let create = format!(
        "CREATE TABLE IF NOT EXISTS {table}_migrations (version int PRIMARY KEY, \
         name text NOT NULL, checksum text NOT NULL, applied_at timestamptz DEFAULT now())"
    );
    transaction.batch_execute(&create).await?;
    let rows = format!("SELECT version, checksum FROM {table}_migrations ORDER BY version");
    let rows = transaction.query(&rows, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
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

/// A database that is read-only by default is not taken for a standby.
const SETTINGS: &str = "-c default_transaction_read_only=off";

const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "state", sql: include_str!("../migrations/0001_state.sql") },
    Migration { version: 2, name: "steps", sql: include_str!("../migrations/0002_steps.sql") },
    Migration { version: 3, name: "ops", sql: include_str!("../migrations/0003_ops.sql") },
    Migration { version: 4, name: "several", sql: include_str!("../migrations/0004_several.sql") },
    Migration { version: 5, name: "reap", sql: include_str!("../migrations/0005_reap.sql") },
];
