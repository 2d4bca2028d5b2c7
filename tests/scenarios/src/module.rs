// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loading and unloading the kernel module, for scenarios that need a driver with options of its
//! own, or none.
//!
//! `VKFD_MODULE` names the module's file, `VKFD_MODULE_OPTIONS` the options that it was loaded
//! with. Lock: `LOADED` guards reloading of the module, and remembers the options.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::verdict::Stop;

/// The options beyond those of the environment.
static LOADED: Mutex<String> = Mutex::new(String::new());

/// Files of processes that were killed are closed, and delayed work is done, a little later.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sees to it that the module has `options` (`name=value`, with spaces between) besides those of
/// the environment, and no others.
///
/// # Errors
///
/// [`Stop::Skip`] when it has not and there is no module to load.
pub(crate) fn with_options(options: &str) -> Result<(), Stop> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if *loaded == options {
        return Ok(());
    }
    let file = file()?;
    unload()?;
    load(&file, options).map_err(|e| anyhow::anyhow!("load the module with {options:?}: {e}"))?;
    options.clone_into(&mut loaded);
    Ok(())
}

/// Loads the module with the environment's options alone again, if scenarios have loaded it with
/// others: programs after this process expect that.
///
/// # Errors
///
/// Why it cannot be unloaded or loaded.
pub fn leave_as_found() -> anyhow::Result<()> {
    match with_options("") {
        Ok(()) | Err(Stop::Skip(_)) => Ok(()),
        Err(Stop::Fail(error)) => Err(error.context("the module keeps a scenario's options")),
    }
}

/// Tries once to unload the module, with nothing waited for. If that has worked, `without_it` is
/// called before it is loaded again.
///
/// # Errors
///
/// [`Stop::Skip`] when there is no module to load again.
pub(crate) fn try_unload<R>(without_it: impl FnOnce() -> R) -> Result<io::Result<R>, Stop> {
    let loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let file = file()?;
    if let Err(error) = unload_at_once() {
        return Ok(Err(error));
    }
    let seen = without_it();
    load(&file, &loaded).map_err(|e| anyhow::anyhow!("load the module again: {e}"))?;
    Ok(Ok(seen))
}

fn file() -> Result<File, Stop> {
    let Some(path) = std::env::var_os("VKFD_MODULE").map(PathBuf::from) else {
        return Err(Stop::Skip("loads the driver: set VKFD_MODULE to the module's file".into()));
    };
    Ok(File::open(&path).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?)
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// EAGAIN: it is in use.
fn unload_at_once() -> io::Result<()> {
    // SAFETY: the name is a C string.
    check(unsafe { libc::syscall(libc::SYS_delete_module, c"vkfd".as_ptr(), libc::O_NONBLOCK) })
}

fn unload() -> Result<(), Stop> {
    let start = Instant::now();
    while let Err(error) = unload_at_once() {
        let in_use = error.raw_os_error() == Some(libc::EAGAIN);
        ensure!(in_use && start.elapsed() < PATIENCE, "unload the module: {error}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn load(file: &File, options: &str) -> io::Result<()> {
    let always = std::env::var("VKFD_MODULE_OPTIONS").unwrap_or_default();
    let name = |option: &str| option.split('=').next().map(str::to_owned);
    // An option can be given once.
    let kept = always.split_whitespace().filter(|kept| options.split_whitespace().all(|o| name(o) != name(kept)));
    let all = CString::new(kept.chain([options]).collect::<Vec<_>>().join(" "))?;
    // SAFETY: an open file, and the options are a C string.
    check(unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), all.as_ptr(), 0) })
}
