//! A temporary directory that is removed even if its owner was killed: by the next owner of one.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use tempfile::TempDir;

use super::Failure;

/// A temporary directory, removed when dropped.
#[derive(Debug)]
pub(super) struct Directory {
    inner: TempDir,
    /// Locked for as long as the process lives, which tells the others that it does.
    _lock: File,
}

impl Directory {
    pub(super) fn new() -> Result<Self, Failure> {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        let failed = "make a temporary directory";
        let inner = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base());
        let inner = inner.map_err(Failure::io(failed))?;
        // Another user, as whom Postgres runs, must be able to pass through.
        fs::set_permissions(inner.path(), fs::Permissions::from_mode(0o711))
            .map_err(Failure::io(failed))?;
        // It gets its name once it is locked: a lock that is there and free has a dead owner.
        let unnamed = inner.path().join("unlocked");
        let lock = File::create(&unnamed).map_err(Failure::io(failed))?;
        lock.lock().map_err(Failure::io(failed))?;
        fs::rename(&unnamed, inner.path().join(LOCK)).map_err(Failure::io(failed))?;
        Ok(Self { inner, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.inner.path()
    }

    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

/// Where the directories are made.
fn base() -> PathBuf {
    std::env::var_os("ADMITTANCE_SERVERS").map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Removes the directories of processes that died. Whatever cannot be removed stays: it belongs to
/// somebody else.
fn sweep() {
    for entry in fs::read_dir(base()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && let Ok(lock) = File::open(entry.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

const PREFIX: &str = "admittance-servers-";
const LOCK: &str = "lock";
