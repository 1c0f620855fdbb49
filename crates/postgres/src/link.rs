//! One connection, kept up: connected again whenever it breaks, with growing pauses.
//!
//! # Guarantee
//! - Nothing waits for a connection that is not there: whoever asks meanwhile is told at once.
//! - A pause between attempts is at most [`PAUSE_MAX`].
//! - A connection that is given up is closed, so nothing sent on it can be answered to another.
//!
//! # Proven by
//! `tests/it/outages.rs`.

use std::sync::Arc;
use std::time::Duration;

use admittance::StoreError;
use tokio::sync::{Notify, OnceCell, watch};
use tokio_postgres::{Client, Error};

use crate::address::Address;
use crate::migrate::{MigrateError, migrate_at};
use crate::statements::Statements;
use crate::store::Names;
use crate::warm::warm;
use crate::{TableName, failure};

/// What every connection of a store has in common.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) address: Address,
    pub(crate) table: TableName,
    pub(crate) migrates: bool,
    /// How long an answer may take before its connection is given up.
    pub(crate) answer_within: Duration,
    /// The first connection that gets through migrates for all.
    pub(crate) migrated: Arc<OnceCell<()>>,
    /// For whom a connection is warmed up before it counts as up; one that nobody waits for is not.
    pub(crate) rehearsed: Option<Arc<Names>>,
}

/// A connection that can be asked.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) client: Client,
    pub(crate) statements: Statements,
    given_up: Notify,
}

/// A connection as the task that keeps it up reports it.
#[derive(Clone, Debug)]
pub(crate) struct Link(watch::Receiver<State>);

#[derive(Clone, Debug)]
enum State {
    /// Not tried yet.
    New,
    Up(Arc<Ready>),
    Down(StoreError),
}

impl Link {
    /// Starts to connect, and goes on until every copy of this is dropped.
    pub(crate) fn start(plan: Arc<Plan>) -> Self {
        let (sender, receiver) = watch::channel(State::New);
        tokio::spawn(keep_up(plan, sender));
        Self(receiver)
    }

    /// The connection, or why there is none.
    pub(crate) fn ready(&self) -> Result<Arc<Ready>, StoreError> {
        match &*self.0.borrow() {
            State::Up(ready) if !ready.client.is_closed() => Ok(Arc::clone(ready)),
            State::Up(_) | State::New => Err(StoreError::Unavailable),
            State::Down(error) => Err(error.clone()),
        }
    }

    /// Waits for the first attempt to succeed or fail.
    pub(crate) async fn tried(&self) {
        let mut state = self.0.clone();
        // An error means that the task is gone, and with it the wait.
        let _ = state.wait_for(|state| !matches!(state, State::New)).await;
    }
}

impl Ready {
    /// Closes the connection: what was sent on it will not be waited for.
    pub(crate) fn give_up(&self) {
        self.given_up.notify_one();
    }
}

async fn keep_up(plan: Arc<Plan>, state: watch::Sender<State>) {
    let mut pause = PAUSE_MIN;
    loop {
        let attempt = tokio::select! {
            attempt = attempt(&plan, &state) => attempt,
            () = state.closed() => return,
        };
        match attempt {
            // It was up; the server may be back at once.
            Ok(()) => pause = PAUSE_MIN,
            Err(error) => {
                state.send_replace(State::Down(error));
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = state.closed() => return,
        }
    }
}

/// Connects, and stays until the connection ends.
async fn attempt(plan: &Plan, state: &watch::Sender<State>) -> Result<(), StoreError> {
    if plan.migrates {
        let migrate = || migrate_at(&plan.address, &plan.table);
        let migrated = plan.migrated.get_or_try_init(async || migrate().await.map(drop));
        migrated.await.map_err(|error| of_migrating(&error))?;
    }
    let settled = plan.address.with_settings(&settings(plan.answer_within));
    let connected = settled.connect().await;
    let (client, connection) = connected.map_err(|error| failure::of_connecting(&error))?;
    let mut connection = std::pin::pin!(connection.run());
    let prepare_within = PREPARE_TIMEOUT.max(plan.answer_within);
    let ready = tokio::select! {
        ready = prepared(plan, client) => ready,
        () = &mut connection => return Err(StoreError::Unavailable),
        () = tokio::time::sleep(prepare_within) => return Err(StoreError::Unavailable),
    };
    let ready = Arc::new(ready.map_err(|error| failure::of_connecting(&error))?);
    state.send_replace(State::Up(Arc::clone(&ready)));
    tokio::select! {
        () = connection => {}
        () = ready.given_up.notified() => {}
    }
    state.send_replace(State::Down(StoreError::Unavailable));
    Ok(())
}

/// A connection whose statements are prepared and have run.
async fn prepared(plan: &Plan, client: Client) -> Result<Ready, Error> {
    let statements = Statements::prepare(&client, &plan.table).await?;
    let ready = Ready { client, statements, given_up: Notify::new() };
    if let Some(names) = &plan.rehearsed {
        warm(&ready, names).await?;
    }
    Ok(ready)
}

fn of_migrating(error: &MigrateError) -> StoreError {
    match error {
        MigrateError::Database(error) => failure::of_connecting(error),
        other => StoreError::Refused { detail: other.to_string().into() },
    }
}

/// What every session begins with. An op is one transaction that must see what was committed while
/// it waited for its row, whatever the database's default is. Plans are made once, and from what
/// the tables will become: keys are looked up, never searched for.
///
/// The server stops a statement, and sooner one that waits for a row, well before its caller gives
/// the connection up: an answer that late is of no use, and a connection is dear.
fn settings(answer_within: Duration) -> String {
    let statement = (answer_within / 2).as_millis().clamp(2, 2_147_483_647);
    let lock = statement / 2;
    format!(
        "-c default_transaction_isolation=read\\ committed \
         -c default_transaction_read_only=off \
         -c statement_timeout={statement} -c lock_timeout={lock} \
         -c idle_in_transaction_session_timeout=5000 \
         -c plan_cache_mode=force_generic_plan -c jit=off \
         -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    )
}

const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long it may take until a connection has run what it will be asked, on a busy machine.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(5);
