// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loading and unloading kernel modules.

use std::ffi::CString;
use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::system::{delete_module, finit_module};
use vkfd_guest::Module;

/// A file closed by a process that was just killed is released a little later, in a work item.
const STILL_IN_USE: Duration = Duration::from_secs(30);

/// `O_NONBLOCK`: fail at once while the module is in use (the only mode the kernel has had since
/// 3.13).
const NOT_WAITING: i32 = 0o4000;

/// Loads `module`.
pub fn load(module: &Module) -> Result<()> {
    let file = File::open(&module.file).with_context(|| format!("open {}", module.file.display()))?;
    let parameters = CString::new(module.parameters.as_str()).context("a parameter with a NUL")?;
    finit_module(file, &parameters, 0).with_context(|| format!("load {} (the kernel's log says more)", module.name))
}

/// Unloads `module`, waiting a little for its last user to go.
pub fn unload(module: &Module) -> Result<()> {
    let name = CString::new(module.name.as_str()).context("a name with a NUL")?;
    let deadline = Instant::now() + STILL_IN_USE;
    loop {
        match delete_module(&name, NOT_WAITING) {
            Err(Errno::AGAIN) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            Err(Errno::AGAIN) => {
                return Err(Errno::AGAIN).with_context(|| {
                    format!("unload {}: something still holds it after {} s", module.name, STILL_IN_USE.as_secs())
                });
            }
            done => return done.with_context(|| format!("unload {}", module.name)),
        }
    }
}
