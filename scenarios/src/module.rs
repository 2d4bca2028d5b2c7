// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loading the kernel module with other options, for scenarios that need a driver of their own.
//!
//! `VKFD_MODULE` names the module's file, `VKFD_MODULE_OPTIONS` what it was loaded with. Lock: `LOADED` guards the module's being
//! reloaded, and remembers with what.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::verdict::Stop;

/// The options beyond those of the environment.
static LOADED: Mutex<String> = Mutex::new(String::new());

/// Sees to it that the module has `options` (`name=value`, with spaces between) besides those of the environment, and no others.
///
/// # Errors
///
/// [`Stop::Skip`] when it has not and cannot be reloaded.
pub(crate) fn with_options(options: &str) -> Result<(), Stop> {
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if *loaded == options {
        return Ok(());
    }
    let Some(path) = std::env::var_os("VKFD_MODULE") else {
        return Err(Stop::Skip("needs a driver with options of its own: set VKFD_MODULE to the module's file".into()));
    };
    let always = std::env::var("VKFD_MODULE_OPTIONS").unwrap_or_default();
    let name = |option: &str| option.split('=').next().map(str::to_owned);
    // An option can be given once.
    let kept = always.split_whitespace().filter(|kept| options.split_whitespace().all(|o| name(o) != name(kept)));
    let all = CString::new(kept.chain([options]).collect::<Vec<_>>().join(" "))?;
    reload(PathBuf::from(path), &all)
        .map_err(|e| Stop::Skip(format!("cannot reload the module with {options:?}: {e}")))?;
    options.clone_into(&mut loaded);
    Ok(())
}

fn reload(path: PathBuf, options: &CStr) -> io::Result<()> {
    let file = File::open(path)?;
    let check = |result: libc::c_long| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: the name is a C string.
    check(unsafe { libc::syscall(libc::SYS_delete_module, c"vkfd".as_ptr(), libc::O_NONBLOCK) })?;
    // SAFETY: an open file, and the options are a C string.
    check(unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), options.as_ptr(), 0) })
}
