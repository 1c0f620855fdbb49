//! The statements of one connection, prepared once.

use futures_util::future::try_join_all;
use tokio_postgres::{Client, Error, Statement};

use crate::TableName;

/// Where a policy's state lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// Survives a crash of the server.
    Logged = 0,
    /// Is emptied by one, and is written without waiting for the disk.
    Unlogged = 1,
}

/// The statements of one connection.
#[derive(Debug)]
pub(crate) struct Statements {
    of: [OfTable; 2],
    pub(crate) several: Statement,
    /// An entry over several accounts.
    pub(crate) book: Statement,
    /// Limits, and an entry in accounts.
    pub(crate) fuse: Statement,
    pub(crate) fleets: OfFleets,
}

/// The statements over fleets, and over what instances leave for one another.
#[derive(Debug)]
pub(crate) struct OfFleets {
    pub(crate) beat: Statement,
    pub(crate) leave: Statement,
    pub(crate) collect: Statement,
    pub(crate) secret: Statement,
    pub(crate) post: Statement,
    pub(crate) reap_fleets: Statement,
    pub(crate) reap_boxes: Statement,
}

/// The statements over one kind of table.
#[derive(Debug)]
pub(crate) struct OfTable {
    pub(crate) one: Statement,
    pub(crate) quick: Statement,
    pub(crate) batch: Statement,
    pub(crate) reset: Statement,
    pub(crate) load: Statement,
    pub(crate) swap: Statement,
    pub(crate) lease: Statement,
    pub(crate) give_back: Statement,
    pub(crate) reap: Statement,
    pub(crate) forget: Statement,
    /// An entry in one account.
    pub(crate) book: Statement,
    pub(crate) reap_accounts: Statement,
}

impl Statements {
    /// Prepares all of them, on their way together.
    pub(crate) async fn prepare(client: &Client, table: &TableName) -> Result<Self, Error> {
        let several = format!("SELECT {table}_several($1, $2, $3, $4, $5, $6)");
        let book = format!("SELECT {table}_book($1, $2, $3, $4, $5, $6, $7, $8)");
        let fuse = (1..=13).map(|place| format!("${place}")).collect::<Vec<_>>().join(", ");
        let fuse = format!("SELECT {table}_fuse({fuse})");
        let both = [format!("{table}_logged"), format!("{table}_unlogged")];
        let both = both.iter().map(|table| OfTable::prepare(client, table));
        let (several, book) = (client.prepare(&several), client.prepare(&book));
        let fuse = client.prepare(&fuse);
        let fleets = OfFleets::prepare(client, table);
        let (both, several, book, fuse, fleets) =
            tokio::try_join!(try_join_all(both), several, book, fuse, fleets)?;
        let mut both = both.into_iter();
        match (both.next(), both.next()) {
            (Some(logged), Some(unlogged)) => {
                Ok(Self { of: [logged, unlogged], several, book, fuse, fleets })
            }
            _ => unreachable!("both were prepared"),
        }
    }

    pub(crate) fn of(&self, durability: Durability) -> &OfTable {
        &self.of[durability as usize]
    }
}

impl OfTable {
    async fn prepare(client: &Client, table: &str) -> Result<Self, Error> {
        let texts = [
            format!("SELECT {table}_one($1, $2, $3, $4, $5)"),
            format!("SELECT {table}_quick($1, $2, $3, $4, $5, $6, $7, $8, $9)"),
            format!("SELECT {table}_batch($1, $2, $3, $4, $5, $6, $7)"),
            format!("SELECT {table}_reset($1, $2, $3)"),
            format!("SELECT at, held FROM {table}_load($1, $2)"),
            format!("SELECT done, at, held FROM {table}_swap($1, $2, $3, $4, $5)"),
            format!("SELECT {table}_lease($1, $2, $3, $4, $5, $6, $7)"),
            format!("SELECT {table}_give_back($1, $2, $3, $4, $5, $6, $7, $8)"),
            format!("SELECT {table}_reap($1, $2, $3, $4, $5)"),
            format!("SELECT {table}_forget($1, $2, $3, $4)"),
            format!("SELECT {table}_book($1, $2, $3, $4, $5, $6, 0, $7)"),
            format!("SELECT {table}_reap_accounts($1, $2, $3, $4, $5)"),
        ];
        let prepared = try_join_all(texts.iter().map(|text| client.prepare(text))).await?;
        let Ok(prepared) = <[Statement; 12]>::try_from(prepared) else {
            unreachable!("each text was prepared")
        };
        let [one, quick, batch, reset, load, swap, lease, give_back, reap, forget, book, accounts] =
            prepared;
        let reap_accounts = accounts;
        Ok(Self {
            one,
            quick,
            batch,
            reset,
            load,
            swap,
            lease,
            give_back,
            reap,
            forget,
            book,
            reap_accounts,
        })
    }
}

impl OfFleets {
    async fn prepare(client: &Client, table: &TableName) -> Result<Self, Error> {
        let texts = [
            format!("SELECT {table}_beat($1, $2, $3, $4, $5, $6, $7)"),
            format!("SELECT {table}_leave($1, $2, $3, $4, $5, $6)"),
            format!("SELECT {table}_collect($1, $2, $3, $4, $5)"),
            format!("SELECT at, held FROM {table}_secret($1, $2)"),
            format!("SELECT {table}_post($1, $2, $3, $4)"),
            format!("SELECT {table}_reap_fleets($1, $2, $3)"),
            format!("SELECT {table}_reap_boxes($1, $2, $3)"),
        ];
        let [beat, leave, collect, secret, post, reap_fleets, reap_boxes] =
            texts.each_ref().map(|text| client.prepare(text));
        let (beat, leave, collect, secret, post, reap_fleets, reap_boxes) =
            tokio::try_join!(beat, leave, collect, secret, post, reap_fleets, reap_boxes)?;
        Ok(Self { beat, leave, collect, secret, post, reap_fleets, reap_boxes })
    }
}
