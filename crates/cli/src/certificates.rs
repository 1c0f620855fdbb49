//! Certificates, their keys and authorities, read again on SIGHUP and when they change.
//!
//! # Guarantee
//! - What has changed is read when two looks, a second apart, found the same: a certificate whose
//!   key has not come yet does not go with the old one, and what serves stays until it has.
//! - What cannot be used is told, and the old certificates stay.
//!
//! # Proven by
//! `tests/it/secure.rs`.

use std::path::Path;

use admittance_server::Tls;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Failure;
use crate::args::TlsArgs;
use crate::reload::{LOOK_EVERY, Seen};

/// Their files as they are now. To be asked before they are first read: what is written meanwhile
/// is then another text.
pub(crate) fn seen(args: &TlsArgs) -> Vec<Seen> {
    [&args.cert, &args.key, &args.ca].into_iter().flatten().map(|file| Seen::new(file)).collect()
}

/// Reads them again for as long as the runtime is there; without a signal only if `is_watched`.
///
/// # Errors
/// Signals cannot be heard.
pub(crate) fn reread(tls: Tls, seen: Vec<Seen>, is_watched: bool) -> Result<(), Failure> {
    let no_signal = |error| Failure(format!("cannot listen for signals: {error}"));
    let hang_up = signal(SignalKind::hangup()).map_err(no_signal)?;
    tokio::spawn(run(tls, seen, is_watched, hang_up));
    Ok(())
}

async fn run(tls: Tls, mut seen: Vec<Seen>, is_watched: bool, mut hang_up: Signal) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let is_told = tokio::select! {
            heard = hang_up.recv() => match heard {
                Some(()) => true,
                None => return,
            },
            _ = looks.tick(), if is_watched => false,
        };
        let reading = tls.clone();
        // Disks may be slow: no worker waits for them.
        let read = tokio::task::spawn_blocking(move || {
            if is_told {
                seen = reading.files().map(Seen::new).collect();
                return (seen, Some(reading.reload()));
            }
            // Every one is looked at, also after one that has changed.
            let changed = seen.iter_mut().filter_map(|one| one.look().then_some(())).count();
            (seen, (changed > 0).then(|| reading.reload()))
        });
        let Ok((again, done)) = read.await else { return };
        seen = again;
        let file = tls.files().next().map(Path::display).map(|file| file.to_string());
        let file = crate::shown::printable(&file.unwrap_or_default());
        match done {
            None => {}
            Some(Ok(())) => tracing::info!("{file}: certificates read again"),
            Some(Err(why)) => tracing::error!("{why}; the old certificates stay"),
        }
    }
}
