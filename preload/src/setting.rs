// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What `vkfd run` said, read once from the environment. Without its variables every hook passes
//! everything on.
//!
//! A hook may be called before libc has an environment (from an earlier library's constructor);
//! then nothing is decided yet. Reading allocates; a hook that malloc calls meanwhile passes on.

use crate::real;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};
use vkfd_gpu::raw::memory_file;
use vkfd_host::description::{
    Description, ACQUIRED_FILE, DIRECTORY_VARIABLE, FINDINGS_VARIABLE, FORWARD_VARIABLE, MACHINE_VARIABLE, OPENED_FILE,
    PROFILE_VARIABLE, SPIN_VARIABLE, TIMELINE_VARIABLE, TOOLS_VARIABLE, TRACE_JSON_VARIABLE, TRACE_VARIABLE, USED_FILE,
};

/// The setting.
pub(crate) struct Setting {
    /// The private directory.
    pub(crate) directory: PathBuf,
    /// The files in it that show which parts of the machine were used.
    marks: [CString; 3],
    /// The machine to make.
    pub(crate) machine: Description,
    /// The PCI slots of its GPUs.
    pub(crate) slots: Vec<String>,
    /// This library, as LD_PRELOAD names it.
    pub(crate) library: CString,
    /// What `vkfd run` has put into the environment, as `NAME=VALUE`.
    pub(crate) variables: Vec<CString>,
    /// The way to the host's machine, if that is the one.
    pub(crate) forward: Option<PathBuf>,
    /// Where kernels' costs are written.
    pub(crate) profile: Option<PathBuf>,
    pub(crate) timeline: Option<PathBuf>,
    /// Where findings of checks are written.
    pub(crate) findings: Option<PathBuf>,
    /// Where calls are recorded, and whether as JSON.
    pub(crate) trace: Option<(PathBuf, bool)>,
    /// Whether AMD's runtime waits for the GPU as it wants to.
    pub(crate) spins: bool,
}

/// How far a run has come in using its machine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mark {
    /// A path was looked at.
    Used,
    /// KFD's device was opened.
    Opened,
    /// A GPU was taken (ACQUIRE_VM).
    Acquired,
}

const UNKNOWN: u8 = 0;
const READING: u8 = 1;
const KNOWN: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static SETTING: AtomicPtr<Setting> = AtomicPtr::new(std::ptr::null_mut());

extern "C" {
    static environ: *const *const libc::c_char;
}

/// The setting, if this program runs under `vkfd run`.
pub(crate) fn get() -> Option<&'static Setting> {
    if STATE.load(Ordering::Acquire) != KNOWN {
        read();
    }
    // SAFETY: null, or a leaked box.
    unsafe { SETTING.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn read() {
    // SAFETY: libc's variable, set before anything can change it.
    if unsafe { environ }.is_null() {
        return;
    }
    if STATE.compare_exchange(UNKNOWN, READING, Ordering::Acquire, Ordering::Acquire).is_err() {
        return;
    }
    if let Some(setting) = from_environment() {
        SETTING.store(Box::into_raw(Box::new(setting)), Ordering::Release);
    }
    STATE.store(KNOWN, Ordering::Release);
}

fn from_environment() -> Option<Setting> {
    let directory = variable(DIRECTORY_VARIABLE)?;
    let machine = variable(MACHINE_VARIABLE)?;
    let machine: Description = match machine.to_string_lossy().parse() {
        Ok(machine) => machine,
        Err(error) => {
            vkfd_rt::message::write(format_args!("vkfd: {MACHINE_VARIABLE}: {error}: run the program with `vkfd run`"));
            return None;
        }
    };
    // What is no switch is said when the machine is made.
    let _ = vkfd_host::description::sabotage_from_environment();
    let directory = PathBuf::from(directory);
    let file = |name| CString::new(directory.join(name).into_os_string().into_vec()).ok();
    let marks = [file(USED_FILE)?, file(OPENED_FILE)?, file(ACQUIRED_FILE)?];
    let trace = variable(TRACE_VARIABLE).map(|path| (path.into(), variable(TRACE_JSON_VARIABLE).is_some()));
    // Directories: each process has its own file there.
    let [profile, timeline, findings] =
        [PROFILE_VARIABLE, TIMELINE_VARIABLE, FINDINGS_VARIABLE].map(|name| variable(name).map(PathBuf::from));
    let forward = variable(FORWARD_VARIABLE).map(PathBuf::from);
    let slots = (0..machine.gpus).map(crate::redirect::slot_name).collect();
    let (library, variables) = (own_path()?, variables());
    let spins = variable(SPIN_VARIABLE).is_some();
    Some(Setting {
        directory,
        marks,
        machine,
        slots,
        library,
        variables,
        forward,
        profile,
        timeline,
        findings,
        trace,
        spins,
    })
}

/// The path that this library was loaded by.
fn own_path() -> Option<CString> {
    static ANYTHING: u8 = 0;
    // SAFETY: zeros are a valid structure; the loader fills it in, with strings that stay.
    unsafe {
        let mut found: libc::Dl_info = std::mem::zeroed();
        let known = libc::dladdr((&raw const ANYTHING).cast(), &raw mut found) != 0 && !found.dli_fname.is_null();
        known.then(|| CStr::from_ptr(found.dli_fname).to_owned())
    }
}

fn variables() -> Vec<CString> {
    let names = [
        DIRECTORY_VARIABLE,
        MACHINE_VARIABLE,
        FORWARD_VARIABLE,
        TRACE_VARIABLE,
        TRACE_JSON_VARIABLE,
        PROFILE_VARIABLE,
        TIMELINE_VARIABLE,
        FINDINGS_VARIABLE,
        TOOLS_VARIABLE,
        SPIN_VARIABLE,
    ];
    let entry = |name: &str| {
        let mut entry = [name.as_bytes(), b"="].concat();
        entry.extend_from_slice(variable(name)?.as_bytes());
        CString::new(entry).ok()
    };
    names.into_iter().filter_map(entry).collect()
}

/// Notes something for `vkfd run`, which finds a file. Once a process; leaves errno alone.
pub(crate) fn mark(what: Mark) {
    if let Some(setting) = get() {
        setting.mark(what);
    }
}

impl Setting {
    /// As [`mark`].
    pub(crate) fn mark(&self, what: Mark) {
        static MARKED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];
        let number = what as usize;
        if MARKED[number].swap(true, Ordering::Relaxed) {
            return;
        }
        // SAFETY: a C string; all of it is async-signal-safe. Without the file there is a hint too
        // many.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_CLOEXEC;
            let fd = real::open()(self.marks[number].as_ptr(), flags, 0o600 as libc::mode_t);
            if fd >= 0 {
                memory_file::without_size_signal(|| real::write()(fd, c"1".as_ptr().cast(), 1));
                real::close()(fd);
            }
            *errno = before;
        }
    }
}

/// As `std::env::var_os`, without the standard library's lock: another thread may have been forked
/// away with it.
fn variable(name: &str) -> Option<OsString> {
    let name = CString::new(name).ok()?;
    // SAFETY: a C string; the value is copied at once.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| OsStr::from_bytes(CStr::from_ptr(value).to_bytes()).to_owned())
    }
}
