// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A memory cgroup of a scenario's own: it bounds what a client process may keep in memory.
//!
//! Reclaim decides by statistics of the cgroup that are up to two seconds old. That is long for
//! such a small group: if they lack the last thousand pages, reclaim finds nothing to take and
//! kills. Reading `memory.stat` brings them up to date, and a thread reads it all the time. With
//! pauses that grow with the load, a client was killed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use crate::verdict::Stop;

/// How long killed processes may take to leave.
const PATIENCE: Duration = Duration::from_secs(120);

/// How old its statistics may get.
const REFRESH: Duration = Duration::from_millis(20);

/// A cgroup. Processes that are still in it are killed on drop.
pub(crate) struct Cgroup {
    path: PathBuf,
    /// Ends the thread that refreshes when it is dropped.
    _refresh: Sender<()>,
}

impl Cgroup {
    /// A cgroup whose processes have at most `limit` bytes in memory; the rest goes to swap.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] where there is no cgroup v2 with a memory controller, or no swap.
    pub(crate) fn new(limit: u64) -> Result<Self, Stop> {
        if fs::read_to_string("/proc/swaps")?.lines().count() < 2 {
            return Err(Stop::Skip("needs swap, and there is none".into()));
        }
        let root = root()?;
        let needed = |e: io::Error| Stop::Skip(format!("needs the memory controller of {}: {e}", root.display()));
        fs::write(root.join("cgroup.subtree_control"), "+memory").map_err(needed)?;
        let path = root.join(format!("vkfd-scenario-{}", std::process::id()));
        fs::create_dir(&path).map_err(needed)?;
        let statistics = path.join("memory.stat");
        let (refresh, ended) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            while ended.recv_timeout(REFRESH) == Err(RecvTimeoutError::Timeout) {
                let _ = fs::read(&statistics);
            }
        });
        let cgroup = Self { path, _refresh: refresh };
        cgroup.write("memory.max", &limit.to_string())?;
        Ok(cgroup)
    }

    /// Writes one of its files.
    pub(crate) fn write(&self, file: &str, value: &str) -> Result<(), Stop> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(|e| anyhow::anyhow!("write {value:?} to {}: {e}", path.display()))?;
        Ok(())
    }

    /// The number in one of its files.
    pub(crate) fn read(&self, file: &str) -> Result<u64, Stop> {
        let path = self.path.join(file);
        let text = fs::read_to_string(&path).map_err(|e| anyhow::anyhow!("read {}: {e}", path.display()))?;
        Ok(text.trim().parse()?)
    }

    /// How often `event` has happened in it, of those in `memory.events`.
    pub(crate) fn events(&self, event: &str) -> Result<u64, Stop> {
        let text = fs::read_to_string(self.path.join("memory.events"))?;
        let count = text.lines().find_map(|line| line.strip_prefix(event)?.strip_prefix(' '));
        Ok(count.ok_or_else(|| anyhow::anyhow!("memory.events has no {event}"))?.parse()?)
    }

    /// The file to which a process writes 0 to become a member.
    pub(crate) fn members(&self) -> io::Result<File> {
        File::options().write(true).open(self.path.join("cgroup.procs"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        let start = Instant::now();
        // Busy until the last of them has gone.
        while fs::remove_dir(&self.path).is_err() && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Where cgroup v2 is mounted.
fn root() -> Result<PathBuf, Stop> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let place = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then_some(Path::new(place))
    });
    Ok(place.ok_or_else(|| Stop::Skip("needs cgroup v2, which is not mounted".into()))?.into())
}
