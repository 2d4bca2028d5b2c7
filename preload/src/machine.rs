// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine of this process, made when a device is opened for the first time. It lives until the process ends.

use crate::setting;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use vkfd_host::{HostError, KfdFile, Machine};

static MACHINE: OnceLock<Result<Machine, HostError>> = OnceLock::new();
/// As in the kernel, all open files of a process are one process of the driver's.
static PROCESS: Mutex<Weak<KfdFile>> = Mutex::new(Weak::new());

/// The machine. ENODEV, with a message, if it cannot be made.
pub(crate) fn get() -> Result<&'static Machine, i32> {
    let setting = setting::get().ok_or(libc::ENODEV)?;
    let made = MACHINE.get_or_init(|| {
        let made = Machine::new(&options(setting));
        if let Err(error) = &made {
            eprintln!("vkfd: the machine could not be made: {error}");
        }
        made
    });
    let machine = made.as_ref().map_err(|_| libc::ENODEV)?;
    // A forked child has its parent's machine without its threads.
    if machine.memory().is_current() {
        Ok(machine)
    } else {
        Err(libc::ENODEV)
    }
}

#[cfg(not(feature = "sabotage"))]
fn options(setting: &setting::Setting) -> vkfd_host::MachineOptions {
    setting.machine.options()
}

/// `VKFD_SABOTAGE` names what is broken.
#[cfg(feature = "sabotage")]
fn options(setting: &setting::Setting) -> vkfd_host::MachineOptions {
    let mut options = setting.machine.options();
    if std::env::var_os("VKFD_SABOTAGE").is_some_and(|what| what == "invalidation") {
        options.driver.sabotage.invalidation = true;
    }
    options
}

/// This process's open file.
pub(crate) fn open() -> Result<Arc<KfdFile>, i32> {
    let machine = get()?;
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(file) = process.upgrade() {
        return Ok(file);
    }
    let file = Arc::new(machine.open()?);
    *process = Arc::downgrade(&file);
    Ok(file)
}
