// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine of this process, made when a device is opened for the first time. It lives until the process ends.

use crate::setting::{self, Setting};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use vkfd_host::{HostError, KfdFile, Machine};

static MACHINE: OnceLock<Result<Machine, HostError>> = OnceLock::new();
/// As in the kernel, all open files of a process are one process of the driver's.
static PROCESS: Mutex<Weak<KfdFile>> = Mutex::new(Weak::new());

/// The machine. ENODEV, with a message, if it cannot be made.
pub(crate) fn get() -> Result<&'static Machine, i32> {
    let setting = setting::get().ok_or(libc::ENODEV)?;
    let made = MACHINE.get_or_init(|| {
        crate::message::install();
        let made = make(setting);
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

/// Without that feature nothing is broken, whatever the environment says.
#[cfg(not(feature = "sabotage"))]
fn make(setting: &Setting) -> Result<Machine, HostError> {
    Machine::new(&setting.machine.options())
}

/// `VKFD_SABOTAGE` names what is broken.
#[cfg(feature = "sabotage")]
fn make(setting: &Setting) -> Result<Machine, HostError> {
    use std::sync::atomic::Ordering;

    let broken = std::env::var("VKFD_SABOTAGE").unwrap_or_default();
    let mut options = setting.machine.options();
    match broken.as_str() {
        "" | "copy" | "blit" => {}
        "identity" => options.driver.sabotage.identity = true,
        "invalidation" => options.driver.sabotage.invalidation = true,
        other => return Err(HostError::Option(format!("VKFD_SABOTAGE={other}: blit, copy, identity or invalidation"))),
    }
    let machine = Machine::new(&options)?;
    for gpu in machine.gpus() {
        let sabotage = gpu.software().sabotage();
        sabotage.short_copy.store(broken == "copy", Ordering::SeqCst);
        sabotage.short_blit.store(broken == "blit", Ordering::SeqCst);
    }
    Ok(machine)
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
