// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine of this process, made when a device is opened for the first time. It lives until the process ends. A forked child that
//! opens a device gets one of its own; what it has of its parent's is refused.

use crate::setting::{self, Setting};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use vkfd_gpu::Profile;
use vkfd_host::per_process::PerProcess;
use vkfd_host::{HostError, KfdFile, Machine, MachineOptions};

static MACHINE: PerProcess<Result<Machine, HostError>> = PerProcess::new();
/// As in the kernel, all open files of a process are one process of the driver's.
static PROCESS: PerProcess<Mutex<Weak<KfdFile>>> = PerProcess::new();

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
    // Not in a child of vfork: what it makes would be its parent's.
    made.and_then(|made| made.as_ref().ok()).ok_or(libc::ENODEV)
}

/// The machine's profile, to be written when the program ends.
static PROFILE: OnceLock<Arc<Profile>> = OnceLock::new();

extern "C" fn write_profile() {
    if let Some(profile) = PROFILE.get() {
        profile.write();
    }
}

fn options(setting: &Setting) -> MachineOptions {
    let mut options = setting.machine.options();
    if let Some(path) = &setting.profile {
        // A child has its parent's path in its environment's copy: what it computes goes beside it.
        let path = path.with_file_name(std::process::id().to_string());
        options.profile = Arc::new(Profile::new(Some(path)));
        if PROFILE.set(options.profile.clone()).is_ok() {
            // SAFETY: the function takes and returns nothing, and this library is never unloaded.
            unsafe { libc::atexit(write_profile) };
        }
    }
    options
}

/// Without that feature nothing is broken, whatever the environment says.
#[cfg(not(feature = "sabotage"))]
fn make(setting: &Setting) -> Result<Machine, HostError> {
    Machine::new(&options(setting))
}

/// `VKFD_SABOTAGE` names what is broken.
#[cfg(feature = "sabotage")]
fn make(setting: &Setting) -> Result<Machine, HostError> {
    use std::sync::atomic::Ordering;

    use vkfd_gpu::isa::Op;

    let broken = std::env::var("VKFD_SABOTAGE").unwrap_or_default();
    let operation = broken.strip_prefix("op:").and_then(|name| Op::ALL.into_iter().find(|op| op.name() == name));
    let mut options = options(setting);
    match broken.as_str() {
        "" | "copy" | "grid" => {}
        _ if operation.is_some() => {}
        "identity" => options.driver.sabotage.identity = true,
        "invalidation" => options.driver.sabotage.invalidation = true,
        other => {
            return Err(HostError::Option(format!(
                "VKFD_SABOTAGE={other}: copy, grid, identity, invalidation or op:NAME"
            )))
        }
    }
    let machine = Machine::new(&options)?;
    for gpu in machine.gpus() {
        let sabotage = gpu.software().sabotage();
        sabotage.short_copy.store(broken == "copy", Ordering::SeqCst);
        sabotage.short_grid.store(broken == "grid", Ordering::SeqCst);
        *sabotage.operation.lock().unwrap_or_else(PoisonError::into_inner) = operation;
    }
    Ok(machine)
}

/// This process's open file.
pub(crate) fn open() -> Result<Arc<KfdFile>, i32> {
    let machine = get()?;
    let process = PROCESS.get_or_init(|| Mutex::new(Weak::new())).ok_or(libc::ENODEV)?;
    let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(file) = process.upgrade() {
        return Ok(file);
    }
    let file = Arc::new(machine.open()?);
    *process = Arc::downgrade(&file);
    Ok(file)
}
