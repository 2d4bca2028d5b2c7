// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask cache`: what ~/.cache/vkfd keeps between runs, and making room there.
//!
//! Mechanism: an entry is a directory that is made as a whole and can be made again. Entries are a
//! kernel, its source, a root with packages, a Python environment, a suite's compiled programs, and
//! cargo's output.
//! Each user of an entry leaves the time in it. The user also locks it, together with other users,
//! until the process ends ([`used`]). Pruning removes the entries that were used longest ago, until
//! the rest is below the limit and the disk has some room. It leaves out an entry that somebody
//! uses, and one whose maker has its lock ([`crate::lock`]).
//!
//! Lock: `USES`, for a moment each time.
//!
//! Limits: one that was used in the last hour is not removed, whatever the limit says.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rustix::fs::statvfs;

use crate::{lock, Verdict};

/// List what is kept between runs in ~/.cache/vkfd, or make room there
///
/// Kernels, roots with packages, wheels, compiled programs and cargo's output of `.ci/run`, each
/// with its size and when it was last used. VKFD_CACHE names another place. With --prune those that
/// were used longest ago are removed until the rest is below the limit. An entry that was used in
/// the last hour stays. Everything is made or fetched again when it is needed.
///
/// Exit status: 0 listed or pruned, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    /// Remove what was used longest ago
    #[arg(long)]
    prune: bool,
    /// GiB that may stay, besides builds of hours
    #[arg(long, value_name = "GIB", default_value_t = 25)]
    limit: u64,
}

/// A file in each entry: its time is when the entry was last used.
const USED: &str = ".used";
/// A shelf's directory with the files that users of its entries lock.
const USING: &str = ".using";
/// KiB that stay free on the disk.
const FREE: u64 = 15 << 20;
/// Cargo never removes what it has built of older sources: its output goes first where it has more
/// than this part of the limit.
const OUTPUT: (&str, u64) = ("target", 2);
/// What may be in use.
const RECENT: Duration = Duration::from_secs(3600);
/// Where builds of hours are, which go on from run to run (`xtask-programs`).
const BUILDS: &str = "programs/builds";
/// So long such a build is worth more than entries that can be fetched again.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
/// Directories whose directories are entries.
const SHELVES: [&str; 9] = [
    "vm",
    "vm/tools",
    "vm/native",
    "programs/roots",
    "programs/python",
    "programs/built",
    "programs/unpacked",
    "programs/debian",
    BUILDS,
];
/// Entries of the cache's own.
const SINGLE: [&str; 2] = ["target", "tools"];

/// Where the cache is: VKFD_CACHE, or ~/.cache/vkfd.
pub fn root() -> Result<PathBuf> {
    match (std::env::var_os("VKFD_CACHE"), std::env::var_os("HOME")) {
        (Some(cache), _) => std::path::absolute(cache).context("make VKFD_CACHE absolute"),
        (None, Some(home)) => Ok(PathBuf::from(home).join(".cache/vkfd")),
        (None, None) => {
            anyhow::bail!("neither HOME nor VKFD_CACHE is set: set VKFD_CACHE to a directory with 25 GB of room")
        }
    }
}

/// The entries that this process uses, with their locks.
static USES: Mutex<BTreeMap<PathBuf, File>> = Mutex::new(BTreeMap::new());

/// Notes that an entry is used now, and keeps it until this process ends. A user calls this first,
/// and then looks whether the entry is there and whole.
pub fn used(entry: &Path) {
    // Only pruning goes by both; a cache that cannot be written is used all the same.
    if root().is_ok_and(|root| entry.starts_with(root)) {
        let mut uses = USES.lock().unwrap_or_else(PoisonError::into_inner);
        if !uses.contains_key(entry) {
            if let Ok(lock) = lock_of(entry).and_then(|path| lock::share(&path)) {
                uses.insert(entry.into(), lock);
            }
        }
    }
    if entry.is_dir() {
        let _ = fs::write(entry.join(USED), "");
    }
}

/// What an entry's users lock: a file beside it, which stays when the entry goes.
fn lock_of(entry: &Path) -> Result<PathBuf> {
    let shelf = entry.parent().context("an entry without a shelf")?.join(USING);
    fs::create_dir_all(&shelf).with_context(|| format!("create {}", shelf.display()))?;
    Ok(shelf.join(entry.file_name().context("an entry without a name")?))
}

/// Something that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Below the cache's root.
    name: String,
    kib: u64,
    used: SystemTime,
}

impl Entry {
    /// Whether it is a build of hours that somebody may go on with.
    fn is_kept(&self, now: SystemTime) -> bool {
        self.name.starts_with(BUILDS) && now.duration_since(self.used).map_or(true, |ago| ago < KEPT)
    }
}

pub fn run(args: &Args) -> Result<Verdict> {
    let root = root()?;
    let mut entries = entries(&root)?;
    entries.sort_by_key(|entry| entry.used);
    for Entry { name, kib, used } in &entries {
        println!("{:>8.2} GiB  {:>9}  {name}", gib(*kib), ago(*used));
    }
    let all: u64 = entries.iter().map(|entry| entry.kib).sum();
    let mut summary = format!("{}: {:.2} GiB in {} entries", root.display(), gib(all), entries.len());
    if args.prune {
        let mut removed = 0;
        let state = statvfs(&root).with_context(|| format!("ask for the room at {}", root.display()))?;
        let free = (state.f_bavail * state.f_frsize) >> 10;
        let now = SystemTime::now();
        let builds: u64 = entries.iter().filter(|entry| entry.is_kept(now)).map(|entry| entry.kib).sum();
        let limit = ((args.limit << 20) + builds).min((all + free).saturating_sub(FREE));
        for entry in to_remove(&entries, limit, now) {
            if remove(&root, &entry.name)? {
                println!("removed {}", entry.name);
                removed += entry.kib;
            }
        }
        summary += &format!("; {:.2} GiB removed", gib(removed));
    }
    Ok(Verdict::Clean(summary))
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn gib(kib: u64) -> f64 {
    kib as f64 / f64::from(1 << 20)
}

fn ago(time: SystemTime) -> String {
    let hours = time.elapsed().unwrap_or_default().as_secs() / 3600;
    match hours {
        0 => "now".into(),
        1..48 => format!("{hours} h ago"),
        _ => format!("{} d ago", hours / 24),
    }
}

/// What is there.
fn entries(root: &Path) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let single = SINGLE.iter().map(|name| (*name).to_owned());
    let on_shelves = SHELVES.iter().flat_map(|shelf| {
        let inside = fs::read_dir(root.join(shelf)).into_iter().flatten().flatten();
        inside.map(move |entry| format!("{shelf}/{}", entry.file_name().to_string_lossy()))
    });
    for name in single.chain(on_shelves) {
        let path = root.join(&name);
        let is_hidden = path.file_name().is_none_or(|name| name.to_string_lossy().starts_with('.'));
        if !path.is_dir() || path.is_symlink() || is_hidden || SHELVES.contains(&name.as_str()) {
            continue;
        }
        let time = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
        let used = time(&path.join(USED)).or_else(|_| time(&path)).with_context(|| format!("read {name}"))?;
        entries.push(Entry { kib: size(&path)?, name, used });
    }
    Ok(entries)
}

/// What a directory takes on disk, in KiB.
fn size(path: &Path) -> Result<u64> {
    // Files may vanish meanwhile; du says so, and sums up what is there.
    let output = Command::new("du").arg("-skx").arg(path).output().context("run du (coreutils)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let size = text.split_whitespace().next().and_then(|word| word.parse().ok());
    size.with_context(|| format!("du says nothing of {}", path.display()))
}

/// Which entries have to go, those first that were used longest ago.
fn to_remove(entries: &[Entry], limit_kib: u64, now: SystemTime) -> Vec<&Entry> {
    let is_large = |entry: &Entry| entry.name == OUTPUT.0 && entry.kib > limit_kib / OUTPUT.1;
    let mut entries: Vec<&Entry> = entries.iter().collect();
    entries.sort_by_key(|entry| (entry.is_kept(now), !is_large(entry), entry.used));
    let mut left: u64 = entries.iter().map(|entry| entry.kib).sum();
    entries.retain(|entry| {
        let is_recent = now.duration_since(entry.used).map_or(true, |ago| ago < RECENT);
        if left <= limit_kib || is_recent {
            return false;
        }
        left -= entry.kib;
        true
    });
    entries
}

/// Removes an entry unless somebody uses it or makes it, or makes one on the same shelf.
fn remove(root: &Path, name: &str) -> Result<bool> {
    let path = root.join(name);
    let shelf = path.parent().context("an entry without a shelf")?;
    // Another run may have removed it meanwhile. A new user waits for the lock.
    let alone = lock::try_alone(&lock_of(&path)?)?;
    if alone.is_none() || !path.is_dir() {
        println!("{name}: somebody uses it");
        return Ok(false);
    }
    let locks = [lock::try_hold(&path)?, lock::try_hold(shelf)?];
    if locks.iter().any(Option::is_none) {
        println!("{name}: somebody is making it");
        return Ok(false);
    }
    // Under another name first: what is there under its own is whole.
    let going = path.with_extension(format!("removed-{}", std::process::id()));
    fs::rename(&path, &going).with_context(|| format!("rename {}", path.display()))?;
    fs::remove_dir_all(&going).with_context(|| format!("remove {}", going.display()))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, kib: u64, hours: u64, now: SystemTime) -> Entry {
        Entry { name: name.into(), kib, used: now - Duration::from_secs(3600 * hours) }
    }

    #[test]
    fn what_was_used_longest_ago_goes_until_the_rest_fits() {
        let now = SystemTime::now();
        let entries = [entry("a", 10, 2, now), entry("b", 20, 50, now), entry("c", 30, 5, now), entry("d", 40, 0, now)];
        let names = |limit| to_remove(&entries, limit, now).iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(100), [""; 0]);
        assert_eq!(names(99), ["b"]);
        assert_eq!(names(79), ["b", "c"]);
        assert_eq!(names(0), ["b", "c", "a"], "what was just used stays");
        let entries = [entry("a", 10, 9, now), entry("target", 60, 2, now), entry("b", 10, 5, now)];
        let names = |limit| to_remove(&entries, limit, now).iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names(79), ["target"], "cargo's output has more than half");
        assert_eq!(names(70), ["target"]);
        assert_eq!(names(120), [""; 0]);
    }

    #[test]
    fn a_build_of_hours_goes_last_unless_it_is_forgotten() {
        let now = SystemTime::now();
        let with = |hours| {
            let entries = [entry("programs/builds/a", 60, hours, now), entry("b", 10, 5, now), entry("c", 10, 2, now)];
            let names =
                |limit| to_remove(&entries, limit, now).iter().map(|entry| entry.name.clone()).collect::<Vec<_>>();
            [names(70), names(50)]
        };
        assert_eq!(with(100), [vec!["b"], vec!["b", "c", "programs/builds/a"]], "a few days are nothing");
        assert_eq!(with(40 * 24), [vec!["programs/builds/a"], vec!["programs/builds/a"]]);
    }

    #[test]
    fn an_entry_that_somebody_makes_stays() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("programs/roots/trixie");
        fs::create_dir_all(path.join("tree")).expect("an entry");
        used(&path);
        assert_eq!(entries(root.path()).expect("a list").len(), 1);
        let held = lock::hold(&path, "test").expect("a lock");
        assert!(!remove(root.path(), "programs/roots/trixie").expect("looked"));
        drop(held);
        assert!(remove(root.path(), "programs/roots/trixie").expect("removed"));
        assert!(!path.exists());
    }

    /// What a process of the test below is: `make` or `prune`.
    const ROLE: &str = "VKFD_TEST_OF_CACHE";
    const ENTRIES: usize = 40;

    /// An entry, and where its making is counted.
    fn place(root: &Path, number: usize) -> (String, PathBuf) {
        (format!("programs/unpacked/entry-{number}"), root.join(format!("made-{number}")))
    }

    /// Uses each entry, which is made if need be, and looks whether it is whole, also later.
    fn make_all(root: &Path) {
        let is_whole = |at: &Path| {
            (0..8).all(|part| fs::read_to_string(at.join(format!("{part}"))).is_ok_and(|text| text == "whole"))
        };
        for number in 0..ENTRIES {
            let (name, made) = place(root, number);
            let at = root.join(name);
            used(&at);
            let make = || {
                let mut count = File::options().append(true).create(true).open(&made)?;
                std::io::Write::write_all(&mut count, b"x")?;
                for part in 0..8 {
                    fs::write(at.join(format!("{part}")), "whole")?;
                    std::thread::yield_now();
                }
                Ok(())
            };
            crate::made::once(&at, "now", make).expect("made");
            assert!(is_whole(&at), "{} is not whole", at.display());
        }
        for number in 0..ENTRIES {
            let at = root.join(place(root, number).0);
            assert!(is_whole(&at), "{} went away while it was used", at.display());
        }
    }

    #[test]
    fn two_processes_and_a_pruning_make_each_entry_once_and_whole() {
        if let Ok(role) = std::env::var(ROLE) {
            let root = root().expect("VKFD_CACHE");
            if role == "make" {
                return make_all(&root);
            }
            // Until the others have used all.
            while !root.join("done").exists() {
                for number in 0..ENTRIES {
                    let name = place(&root, number).0;
                    if root.join(&name).is_dir() {
                        let _ = remove(&root, &name);
                    }
                }
            }
            return;
        }
        let root = tempfile::tempdir().expect("a directory");
        // What an older run left, which may be pruned as long as nobody uses it.
        for number in 0..ENTRIES {
            crate::made::once(&root.path().join(place(root.path(), number).0), "then", || Ok(())).expect("made");
        }
        let start = |role: &str| {
            let mut test = Command::new(std::env::current_exe().expect("the test"));
            test.args([
                "--exact",
                "cache::tests::two_processes_and_a_pruning_make_each_entry_once_and_whole",
                "--nocapture",
            ]);
            test.env(ROLE, role).env("VKFD_CACHE", root.path()).stdout(std::process::Stdio::null());
            test.spawn().expect("started")
        };
        let mut pruning = start("prune");
        let mut makers = [start("make"), start("make")];
        let ended = makers.each_mut().map(|maker| maker.wait().expect("ended").success());
        fs::write(root.path().join("done"), "").expect("written");
        assert!(pruning.wait().expect("ended").success());
        assert_eq!(ended, [true, true]);
        for number in 0..ENTRIES {
            let made = fs::read_to_string(place(root.path(), number).1).expect("made");
            // By the first user; and again by the second if it was pruned between them.
            assert!(made.len() <= 2, "entry {number} was made {} times", made.len());
        }
    }
}
