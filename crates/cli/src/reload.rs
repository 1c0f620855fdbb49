//! `serve --config` reads its file again: on SIGHUP, and when it has changed.
//!
//! # Guarantee
//! - A file that has changed is read when two looks, a second apart, found the same text: one that
//!   is being written is left alone. SIGHUP reads it at once.
//! - What is looked at is the text, not the name: a link that is pointed elsewhere is seen too.
//! - What cannot be read or served is told in full, and the policies that answer stay.
//!
//! # Proven by
//! The tests below; `tests/it/reload.rs`.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use admittance_server::{Config, Defaults, Report, Service, Shedding};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{Failure, shown};

/// What is read again, and how.
pub(crate) struct Rereading {
    /// The file; nothing if the built-in policies are served.
    pub(crate) path: Option<PathBuf>,
    /// What it was before it was first read: what is written meanwhile is another text.
    pub(crate) seen: Option<Seen>,
    pub(crate) defaults: Defaults,
    /// Whether load is never shed, whatever the file says.
    pub(crate) no_load_shedding: bool,
    /// Whether the file is looked at without a signal.
    pub(crate) is_watched: bool,
    /// What the store that was chosen cannot serve.
    pub(crate) fits: Box<Fits>,
    /// Told after every reload that changed something.
    pub(crate) after: Box<dyn Fn() + Send + Sync>,
}

/// Says why a configuration cannot be served.
type Fits = dyn Fn(&Config) -> Result<(), Failure> + Send + Sync;

impl Rereading {
    /// The file as it is now.
    pub(crate) fn read(&self) -> Result<Config, Report> {
        let mut config = crate::args::policies(self.path.as_ref(), self.defaults)?;
        if self.no_load_shedding {
            config.load = Shedding(None);
        }
        Ok(config)
    }

    /// The file as it is now, if it is one: to open a pipe would wait for somebody to write.
    fn read_again(&self) -> Result<Config, Failure> {
        let metadata = self.path.as_ref().and_then(|path| std::fs::metadata(path).ok());
        if metadata.is_some_and(|metadata| !metadata.is_file()) {
            return Err(Failure("it is no file; put one in its place".into()));
        }
        self.read().map_err(Failure::new)
    }

    /// Reads the file again for as long as it is polled.
    ///
    /// # Errors
    /// Signals cannot be heard.
    pub(crate) fn start(self, service: Arc<Service>) -> Result<(), Failure> {
        let no_signal = |error| Failure(format!("cannot listen for signals: {error}"));
        let hang_up = signal(SignalKind::hangup()).map_err(no_signal)?;
        tokio::spawn(self.run(service, hang_up));
        Ok(())
    }

    async fn run(mut self, service: Arc<Service>, mut hang_up: Signal) {
        let mut seen = self.seen.take();
        let rereading = Arc::new(self);
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_due = tokio::select! {
                heard = hang_up.recv() => match heard {
                    Some(()) => {
                        // Seen now, so that it is not read once more when it is looked at. Disks
                        // may be slow, or hang: no worker waits for them.
                        let path = rereading.path.clone();
                        let seeing = move || path.as_deref().map(Seen::new);
                        let Ok(again) = tokio::task::spawn_blocking(seeing).await else { return };
                        seen = again;
                        true
                    }
                    None => return,
                },
                _ = looks.tick(), if rereading.is_watched && seen.is_some() => {
                    // As above.
                    let looked = tokio::task::spawn_blocking(move || {
                        let is_new = seen.as_mut().is_some_and(Seen::look);
                        (seen, is_new)
                    });
                    match looked.await {
                        Ok((again, is_new)) => {
                            seen = again;
                            is_new
                        }
                        Err(_) => return,
                    }
                }
            };
            if is_due {
                rereading.reload(&service).await;
            }
        }
    }

    async fn reload(self: &Arc<Self>, service: &Service) {
        let Some(path) = &self.path else {
            tracing::warn!("nothing to read again: the built-in policies are served");
            return;
        };
        let file = shown::printable(&path.display().to_string());
        let reading = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || reading.read_again()).await;
        let read = read.unwrap_or_else(|error| Err(Failure(format!("cannot be read: {error}"))));
        let fitting = read.and_then(|config| (self.fits)(&config).map(|()| config));
        let config = match fitting {
            Ok(config) => config,
            Err(failure) => {
                service.reload_failed();
                tracing::error!("{failure}\n{file}: not reloaded; {STAYS}");
                return;
            }
        };
        match service.reload(&config).await {
            Ok(reloaded) => {
                if !config.warnings.is_empty() {
                    let warnings = config.warnings.to_string();
                    tracing::warn!("warning: {}", warnings.trim_end());
                }
                let reloaded = shown::printable(&reloaded.to_string());
                tracing::info!("{file}: reloaded: {reloaded}");
                (self.after)();
            }
            Err(why) => tracing::error!("{file}: not reloaded: {why}\n{file}: {STAYS}"),
        }
    }
}

/// What was seen of a file.
pub(crate) struct Seen {
    path: PathBuf,
    /// What is known of it without reading it, as of the last look.
    known: Option<Known>,
    /// The text that was last read to be served.
    text: Vec<u8>,
    /// Another one, at the last look.
    other: Option<Vec<u8>>,
}

/// What is known of a file without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    length: u64,
    changed: Option<SystemTime>,
    node: (u64, u64),
}

impl Known {
    fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let node = (metadata.dev(), metadata.ino());
        Self { length: metadata.len(), changed: metadata.modified().ok(), node }
    }

    /// Whether a change would be seen: clocks of file systems are coarse.
    fn is_certain(&self) -> bool {
        let age = self.changed.and_then(|changed| changed.elapsed().ok());
        age.is_some_and(|age| age > CERTAIN_AFTER)
    }
}

impl Seen {
    pub(crate) fn new(path: &Path) -> Self {
        let text = content(path).unwrap_or_default();
        Self { path: path.to_owned(), known: None, text, other: None }
    }

    /// Looks; says whether there is another text than the last that was read, whole.
    pub(crate) fn look(&mut self) -> bool {
        let Ok(metadata) = std::fs::metadata(&self.path) else {
            // It is being put in its place, or gone: then what serves stays.
            (self.known, self.other) = (None, None);
            return false;
        };
        let known = Known::of(&metadata);
        let is_known = known.is_certain() && self.known.as_ref() == Some(&known);
        self.known = Some(known);
        if is_known && self.other.is_none() {
            return false;
        }
        let Some(text) = content(&self.path) else { return false };
        if text == self.text {
            self.other = None;
            return false;
        }
        if self.other.as_ref() != Some(&text) {
            self.other = Some(text);
            return false;
        }
        (self.text, self.other) = (text, None);
        true
    }
}

/// A file's text; of one that is too long, enough to know that.
fn content(path: &Path) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    // To open a pipe would wait for somebody to write.
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let most = u64::try_from(Config::FILE_MAX).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path).ok()?.take(most).read_to_end(&mut text).ok()?;
    Some(text)
}

const STAYS: &str = "the old policies stay";
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A file that was changed longer ago than this would show another instant if it were again.
const CERTAIN_AFTER: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        directory
    }

    #[test]
    fn another_text_is_read_when_two_looks_have_found_it() {
        let directory = directory("admittance-seen");
        let path = directory.join("policies.yaml");
        std::fs::write(&path, "a").expect("written");
        let mut seen = Seen::new(&path);
        assert!(!seen.look() && !seen.look(), "nothing has changed");
        std::fs::write(&path, "ab").expect("written");
        assert!(!seen.look(), "it may be half of it");
        std::fs::write(&path, "abc").expect("written");
        assert!(!seen.look(), "it was");
        assert!(seen.look(), "two looks have found it");
        assert!(!seen.look(), "it has been read");
        std::fs::write(&path, "x").expect("written");
        assert!(!seen.look());
        std::fs::write(&path, "abc").expect("written");
        assert!(!seen.look() && !seen.look(), "it is as it was read");
        std::fs::remove_dir_all(directory).expect("removed");
    }

    #[test]
    fn a_link_that_is_pointed_elsewhere_is_seen_and_a_file_that_is_gone_is_not_read() {
        let directory = directory("admittance-links");
        let (one, two, link) = (directory.join("1"), directory.join("2"), directory.join("now"));
        std::fs::write(&one, "one").expect("written");
        std::fs::write(&two, "two").expect("written");
        std::os::unix::fs::symlink(&one, &link).expect("linked");
        let mut seen = Seen::new(&link);
        assert!(!seen.look());
        std::fs::remove_file(&link).expect("removed");
        assert!(!seen.look() && !seen.look(), "there is nothing to read");
        std::os::unix::fs::symlink(&two, &link).expect("linked");
        assert!(!seen.look());
        assert!(seen.look());
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
