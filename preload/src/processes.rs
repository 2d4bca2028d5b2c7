// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The list of processes, `/sys/class/kfd/kfd/proc`: a directory for each process that uses the
//! machine, with its memory, its queues and its statistics.
//!
//! Mechanism: it is a directory of files in the private one, of each program by itself: another
//! program of the same run may have another machine. Whenever a path at or below it is looked at,
//! the driver is asked ([`INFO_PROCESSES`]), and the files that have changed are written anew. So
//! opendir, stat and relative opens see real files.
//!
//! The lock guards what has been written. It is held while files are written, and not while the
//! driver is asked. Nothing that a hook of this library waits for takes it.
//!
//! Limits: a file that is opened relative to a directory is as the directory's last look has made
//! it. The directory that was opened relative to `/sys/class/kfd/kfd` is empty. A program that may
//! not write to the private directory sees an empty list, too. Each program's directory stays until
//! the next one's or the run's end.

use crate::backend::Backend;
use crate::redirect::LONGEST;
use crate::setting::Setting;
use crate::{device, machine, own_stack};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use vkfd_gpu::raw::memory_file;
use vkfd_host::per_process::PerProcess;
use vkfd_host::sabotage;
use vkfd_sabotage::Switch;
use vkfd_uapi::drm::{ListHead, INFO_PROCESSES};
use vkfd_uapi::pod::Pod;

/// The list's path, and the one that the link `/sys/class/kfd/kfd` makes of it.
const PATHS: [&[u8]; 2] = [b"/sys/class/kfd/kfd/proc", b"/sys/devices/virtual/kfd/kfd/proc"];
/// In the private directory: a directory for each program, by its number.
const LISTS: &str = "/.lists/";
/// Bytes of an answer.
const ROOM: usize = 8 << 10;

/// Texts by paths; a directory's ends with a slash.
type Entries = BTreeMap<String, String>;

struct List {
    /// Where it is.
    at: PathBuf,
    written: Mutex<Entries>,
}

static LIST: PerProcess<Option<List>> = PerProcess::new();

/// What a tidy path has behind the list's own; nothing if it is not at or below it.
pub(crate) fn rest(path: &[u8]) -> Option<&[u8]> {
    let below = |list: &&[u8]| path.strip_prefix(*list).filter(|rest| matches!(rest.first(), None | Some(b'/')));
    PATHS.iter().find_map(below)
}

/// Brings the list up to date, and replaces the path that ends at `end` of `text` by one in it:
/// the last `rest` bytes stay. Where it ends; nothing where there is no list.
pub(crate) fn moved(setting: &Setting, text: &mut [u8; LONGEST], end: usize, rest: usize) -> Option<usize> {
    if sabotage::has(Switch::ListsAtStart) {
        return None;
    }
    // A machine of this process's own that is not there has nobody.
    let at = own_stack::if_needed(|| {
        let machine = if setting.forward.is_some() { machine::get().ok()? } else { machine::made()? };
        let list = LIST.get_or_init(|| List::new(setting))?.as_ref()?;
        list.write(ask(machine)?).ok()?;
        Some(&list.at)
    })?;
    let place = at.as_os_str().as_bytes();
    let new_end = place.len().checked_add(rest)?;
    if new_end >= LONGEST {
        return None;
    }
    text.copy_within(end.checked_sub(rest)?..end, place.len());
    text.get_mut(..place.len())?.copy_from_slice(place);
    *text.get_mut(new_end)? = 0;
    Some(new_end)
}

/// What the program knows a path of its list by: `path` without the private directory.
pub(crate) fn shown(path: &[u8]) -> Option<&[u8]> {
    let own = path.strip_prefix(LISTS.as_bytes())?;
    own.iter().position(|byte| *byte == b'/').map(|slash| &own[slash..])
}

/// All entries.
fn ask(machine: &dyn Backend) -> Option<Entries> {
    let (mut all, mut next) = (Entries::new(), ListHead { process: 1, ..ListHead::zeroed() });
    while next.process != 0 {
        let half = |value: u64| u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
        let from = [half(next.process), half(next.process >> 32), next.entry, 0];
        let answer = device::ask_machine(machine, 0, INFO_PROCESSES, from, ROOM)?;
        let (head, entries) = answer.split_at_checked(size_of::<ListHead>())?;
        next.as_bytes_mut().copy_from_slice(head);
        let entries = std::str::from_utf8(entries.get(..usize::try_from(next.bytes).ok()?)?).ok()?;
        let mut parts = entries.split_terminator('\0');
        while let (Some(path), Some(text)) = (parts.next(), parts.next()) {
            all.insert(path.to_owned(), text.to_owned());
        }
    }
    Some(all)
}

impl List {
    fn new(setting: &Setting) -> Option<Self> {
        let lists = setting.directory.join(LISTS.trim_matches('/'));
        forget_ended(&lists);
        let root = lists.join(std::process::id().to_string());
        let at = root.join("sys/devices/virtual/kfd/kfd/proc");
        // One of an earlier process with this number.
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&at).ok()?;
        Some(Self { at, written: Mutex::default() })
    }

    /// Writes what has changed, and removes what has gone.
    fn write(&self, entries: Entries) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for (path, text) in entries.iter().filter(|(path, text)| written.get(*path) != Some(*text)) {
            let to = self.at.join(path);
            if path.ends_with('/') {
                fs::create_dir_all(&to)?;
            } else {
                fs::create_dir_all(to.parent().unwrap_or(&self.at))?;
                write_whole(&self.at, &to, text)?;
            }
        }
        // From the last on: a directory's entries before it.
        for path in written.keys().rev().filter(|path| !entries.contains_key(*path)) {
            let gone = self.at.join(path);
            let _ = if path.ends_with('/') { fs::remove_dir(&gone) } else { fs::remove_file(&gone) };
            let around = gone.ancestors().skip(1).take_while(|around| **around != *self.at);
            for directory in around {
                // One that has more stays.
                if fs::remove_dir(directory).is_err() {
                    break;
                }
            }
        }
        *written = entries;
        Ok(())
    }
}

/// Makes a file that is never seen half written.
fn write_whole(beside: &Path, to: &Path, text: &str) -> io::Result<()> {
    let new = beside.with_file_name("new");
    let _ = fs::remove_file(&new);
    let written = memory_file::without_size_signal(|| {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o444).open(&new)?;
        file.write_all(text.as_bytes())
    });
    written.and_then(|()| fs::rename(&new, to))
}

/// Removes the lists of programs that have ended.
fn forget_ended(lists: &Path) {
    let Ok(entries) = fs::read_dir(lists) else { return };
    for entry in entries.flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        // SAFETY: asks whether there is a process.
        let ended = |pid: i32| unsafe { libc::kill(pid, 0) } != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        if number.is_some_and(ended) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
