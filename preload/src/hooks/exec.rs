// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The functions that run a program. `vkfd run` lives in the environment. A program may be run with
//! another environment (`env -i`, `LD_PRELOAD=other`, a build tool that cleans it). It would lose
//! the GPU without a word, although a real machine keeps it. So missing variables are put back, as
//! other tools do that are loaded this way. Existing ones stay: another run's directory, and other
//! preloaded libraries.
//!
//! These may be called in a child of vfork, which shares its parent's memory, and in signal
//! handlers: nothing is allocated by malloc. A list that has no room on the stack has a mapping,
//! which a child of vfork leaves in its parent.
//!
//! Limits: execl and its kin, system and popen pass libc the program's own environment. A program
//! that has cleared it (clearenv) runs others without a GPU, and so do raw system calls.

use crate::real::{self, Words};
use crate::setting::{self, Setting};
use libc::{c_char, c_int, c_void, pid_t};
use vkfd_gpu::raw;
use vkfd_host::description::DIRECTORY_VARIABLE;
use vkfd_host::hooks;
use vkfd_host::preload_list;
use vkfd_host::sabotage;
use vkfd_sabotage::Switch;

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Room on the stack: bytes of LD_PRELOAD, and pointers.
const TEXT: usize = 1024;
const POINTERS: usize = 384;
/// More than the kernel takes for one string.
const LONGEST: usize = 256 << 10;

extern "C" {
    static environ: Words;
}

/// The caller's memory, which may be anything: `None` where it cannot be read.
fn word(list: Words, at: usize) -> Option<*const u8> {
    // SAFETY: read by a routine that may fault; no Rust object is there.
    let word = unsafe { raw::load_u64(list.wrapping_add(at).cast()) }.ok()?;
    Some(std::ptr::with_exposed_provenance(usize::try_from(word).ok()?))
}

/// As much of the string as `room` has, without its end, and whether that is all.
fn read(from: *const u8, room: &mut [u8]) -> (usize, bool) {
    // SAFETY: `room` is the caller's; the other side may be anything.
    let copied = unsafe { raw::copy(room.as_mut_ptr(), from, room.len()) };
    let there = copied.map_or_else(|faulted| faulted.done, |()| room.len());
    match room[..there].iter().position(|byte| *byte == 0) {
        Some(end) => (end, true),
        None => (there, false),
    }
}

/// What an environment has.
struct Found {
    entries: usize,
    directory: bool,
    preload: Option<usize>,
}

fn look(list: Words) -> Option<Found> {
    let mut found = Found { entries: 0, directory: false, preload: None };
    if list.is_null() {
        return Some(found);
    }
    loop {
        let entry = word(list, found.entries)?;
        if entry.is_null() {
            return Some(found);
        }
        let mut start = [0; 24];
        let (length, _) = read(entry, &mut start);
        let start = &start[..length];
        found.directory |=
            start.strip_prefix(DIRECTORY_VARIABLE.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='));
        if start.starts_with(PRELOAD) {
            found.preload = found.preload.or(Some(found.entries));
        }
        found.entries += 1;
    }
}

/// A mapping, until it is dropped.
struct Mapping(*mut c_void, usize);

impl Mapping {
    fn new(bytes: usize) -> Option<Self> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping. By the system call: a hook would take it for the program's.
        let at = unsafe { libc::syscall(libc::SYS_mmap, 0, bytes, prot, flags, -1, 0) };
        usize::try_from(at).ok().map(|at| Self(std::ptr::with_exposed_provenance_mut(at), bytes))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: its own mapping.
        unsafe { libc::syscall(libc::SYS_munmap, self.0, self.1) };
    }
}

impl Mapping {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: its own mapping, of zeros or what was written there.
        unsafe { std::slice::from_raw_parts_mut(self.0.cast(), self.1) }
    }
}

/// What becomes of LD_PRELOAD.
enum Preload {
    /// The library is in it.
    Good,
    /// The room has the whole entry, with the library.
    Changed,
    NoRoom,
}

/// The entry for LD_PRELOAD in place of `entry`, in `room`.
fn preload(setting: &Setting, entry: Option<*const u8>, room: &mut [u8]) -> Preload {
    let library = setting.library.to_bytes();
    // Two colons, and the end.
    let Some(readable) = room.len().checked_sub(library.len() + 3).filter(|room| *room >= PRELOAD.len()) else {
        return Preload::NoRoom;
    };
    let length = match entry.map(|entry| read(entry, &mut room[..readable])) {
        None => 0,
        Some((_, false)) => return Preload::NoRoom,
        Some((length, true)) => length,
    };
    let value = room.get(PRELOAD.len()..length).unwrap_or_default();
    let Some(place) = preload_list::place(value, library) else { return Preload::Good };
    let before = u8::from(place > 0);
    let after = value.get(place).is_some_and(|byte| !preload_list::is_separator(*byte));
    let at = PRELOAD.len() + place;
    let behind = at + usize::from(before) + library.len();
    let (from, end) = (at.min(length), behind + usize::from(after));
    room.copy_within(from..length, end);
    room[end + (length - from)] = 0;
    room[..PRELOAD.len()].copy_from_slice(PRELOAD);
    if before != 0 {
        room[at] = b':';
    }
    room[behind - library.len()..behind].copy_from_slice(library);
    if after {
        room[behind] = b':';
    }
    Preload::Changed
}

/// Calls `run` with the environment that a program is to have.
fn with_ours(list: Words, run: impl FnOnce(Words) -> c_int) -> c_int {
    // The kernel says what is wrong with a list that cannot be read.
    let ours = setting::get().filter(|_| !sabotage::has(Switch::LostEnvironment));
    let Some((setting, found)) = ours.zip(look(list)) else { return run(list) };
    let entry = found.preload.and_then(|at| word(list, at));
    let (mut text, mut long) = ([0; TEXT], None);
    let mut text = &mut text[..];
    let mut state = preload(setting, entry, text);
    if matches!(state, Preload::NoRoom) {
        let Some(mapping) = Mapping::new(LONGEST) else { return run(list) };
        text = long.insert(mapping).bytes();
        state = preload(setting, entry, text);
    }
    if found.directory && !matches!(state, Preload::Changed) {
        return run(list);
    }
    let most = found.entries + setting.variables.len() + 2;
    let (mut pointers, mut many) = ([std::ptr::null(); POINTERS], None);
    let room: &mut [*const c_char] = if most <= POINTERS {
        &mut pointers
    } else {
        let Some(mapping) = Mapping::new(most * size_of::<*const c_char>()) else { return run(list) };
        let at = many.insert(mapping).0.cast();
        // SAFETY: a mapping of that size, of zeros, which are null pointers.
        unsafe { std::slice::from_raw_parts_mut(at, most) }
    };
    let kept = (0..found.entries).filter(|at| !matches!(state, Preload::Changed) || found.preload != Some(*at));
    let mut places = room.iter_mut();
    for at in kept {
        // The list may have changed since it was counted.
        let (Some(place), Some(entry)) = (places.next(), word(list, at)) else { return run(list) };
        *place = entry.cast();
    }
    let preload = matches!(state, Preload::Changed).then_some(text.as_ptr().cast());
    let variables = setting.variables.iter().filter(|_| !found.directory).map(|entry| entry.as_ptr());
    for (place, entry) in places.zip(preload.into_iter().chain(variables)) {
        *place = entry;
    }
    run(room.as_ptr())
}

hooks! {
    HOOKS;

    /// execve(2).
    [] fn execve(path: *const c_char, arguments: Words, environment: Words) -> c_int {
        // SAFETY: forwarded to the caller.
        with_ours(environment, |environment| unsafe { real::execve()(path, arguments, environment) })
    }

    /// execv(3).
    [] fn execv(path: *const c_char, arguments: Words) -> c_int {
        // SAFETY: forwarded to the caller; `environ` is libc's.
        unsafe { execve(path, arguments, environ) }
    }

    /// execvpe(3).
    [] fn execvpe(file: *const c_char, arguments: Words, environment: Words) -> c_int {
        // SAFETY: forwarded to the caller.
        with_ours(environment, |environment| unsafe { real::execvpe()(file, arguments, environment) })
    }

    /// execvp(3).
    [] fn execvp(file: *const c_char, arguments: Words) -> c_int {
        // SAFETY: forwarded to the caller; `environ` is libc's.
        unsafe { execvpe(file, arguments, environ) }
    }

    /// execveat(2).
    [] fn execveat(
        directory: c_int,
        path: *const c_char,
        arguments: Words,
        environment: Words,
        flags: c_int,
    ) -> c_int {
        // SAFETY: forwarded to the caller.
        let run = |environment| unsafe { real::execveat()(directory, path, arguments, environment, flags) };
        with_ours(environment, run)
    }

    /// fexecve(3).
    [] fn fexecve(fd: c_int, arguments: Words, environment: Words) -> c_int {
        // SAFETY: forwarded to the caller.
        with_ours(environment, |environment| unsafe { real::fexecve()(fd, arguments, environment) })
    }

    /// posix_spawn(3).
    [] fn posix_spawn(
        child: *mut pid_t,
        path: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: Words,
        environment: Words,
    ) -> c_int {
        // SAFETY: forwarded to the caller.
        let run = |environment| unsafe { real::posix_spawn()(child, path, actions, attributes, arguments, environment) };
        with_ours(environment, run)
    }

    /// posix_spawnp(3).
    [] fn posix_spawnp(
        child: *mut pid_t,
        file: *const c_char,
        actions: *const c_void,
        attributes: *const c_void,
        arguments: Words,
        environment: Words,
    ) -> c_int {
        // SAFETY: forwarded to the caller.
        let run = |environment| unsafe { real::posix_spawnp()(child, file, actions, attributes, arguments, environment) };
        with_ours(environment, run)
    }
}
