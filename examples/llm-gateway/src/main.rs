//! The proxy as a program, and the fake upstream as another.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use admittance::budget::{MemoryAccounts, Meter};
use admittance::{GuardSettings, Guarded, SystemClock};
use admittance_postgres::PostgresStore;
use admittance_redis::RedisStore;
use axum::Router;
use clap::Parser;
use llm_gateway::fake::Fake;
use llm_gateway::{Config, Gateway, Metering, RawConfig, StoreUrl, router};
use tokio::net::TcpListener;

/// An OpenAI-compatible streaming proxy that holds token budgets to the token.
#[derive(Debug, Parser)]
struct Flags {
    /// The configuration: see gateway.toml beside this example.
    #[arg(long, default_value = "examples/llm-gateway/gateway.toml")]
    config: PathBuf,
    /// Where to listen, instead of what the configuration says.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// The upstream up to `/chat/completions`, instead of what the configuration says.
    #[arg(long)]
    upstream: Option<String>,
    /// Where the accounts live, instead of what the configuration says: memory,
    /// `redis://…` or `postgres://…`.
    #[arg(long)]
    store: Option<String>,
    /// Be a fake upstream at this address, and nothing else.
    #[arg(long, value_name = "ADDRESS")]
    fake: Option<SocketAddr>,
    /// What the fake upstream draws the lengths of its answers from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The most tokens of a fake answer.
    #[arg(long, default_value_t = 300)]
    longest: u64,
    /// The fake upstream's pause before each token.
    #[arg(long, default_value_t = 10)]
    pace_ms: u64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    if let Some(address) = flags.fake {
        let pace = Duration::from_millis(flags.pace_ms);
        return serve(address, Fake::new(flags.seed, flags.longest).pace(pace).router()).await;
    }
    let text = std::fs::read_to_string(&flags.config)
        .map_err(|error| format!("{}: {error}", flags.config.display()))?;
    let mut raw = RawConfig::parse(&text)?;
    raw.listen = flags.listen.unwrap_or(raw.listen);
    raw.upstream = flags.upstream.unwrap_or(raw.upstream);
    raw.store = flags.store.unwrap_or(raw.store);
    let config = raw.resolve()?;
    let ttl = config.options.ttl();
    // A shared store that cannot answer refuses: what cannot be counted is not served.
    match config.store.clone() {
        StoreUrl::Memory => {
            let accounts = MemoryAccounts::new(SystemClock::new());
            proxy(config, Meter::new(accounts).ttl(ttl)).await
        }
        StoreUrl::Redis(url) => {
            let accounts = RedisStore::builder(&url).prefix("llm-gateway").build()?;
            let guarded = Guarded::start(accounts, GuardSettings::default());
            proxy(config, Meter::new(guarded).ttl(ttl)).await
        }
        StoreUrl::Postgres(url) => {
            let accounts = PostgresStore::builder(&url).migrates(true).connect().await?;
            let guarded = Guarded::start(accounts, GuardSettings::default());
            proxy(config, Meter::new(guarded).ttl(ttl)).await
        }
    }
}

async fn proxy(config: Config, meter: impl Metering) -> Result<(), Box<dyn Error>> {
    let listen = config.listen;
    let key = std::env::var(&config.upstream_key_env).ok();
    let gateway = Gateway::new(config, key.as_deref(), meter)?;
    serve(listen, router(Arc::new(gateway))).await
}

/// Serves until it is interrupted; streams come to their end.
async fn serve(address: SocketAddr, app: Router) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let interrupted = async {
        let _ = tokio::signal::ctrl_c().await;
    };
    Ok(axum::serve(listener, app).with_graceful_shutdown(interrupted).await?)
}
