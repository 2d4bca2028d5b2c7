// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whose KFD it is: a machine's in this process, or the system's. The system's may be AMD's
//! ([`Host::is_stock`]), which lacks vkfd's own calls: scenarios that need one are skipped.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vkfd_client::{Client, Embedded, Machine, Transport};
use vkfd_driver::os::fault_injection;

use crate::verdict::Stop;

/// A KFD.
pub enum Host {
    /// Of a machine in this process.
    InProcess(Machine),
    /// The system's, by the path of its device file.
    Device(PathBuf),
}

impl Host {
    /// The system's, if `VKFD_DEVICE` names it.
    #[must_use]
    pub fn of_the_system() -> Option<Self> {
        std::env::var_os("VKFD_DEVICE").map(|path| Self::Device(path.into()))
    }

    /// Whether the system's is AMD's.
    #[must_use]
    pub fn is_stock() -> bool {
        Path::new("/sys/module/amdgpu").exists() && std::env::var_os("VKFD_DEVICE").is_some()
    }

    /// Opens it: a process of the driver.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] if `xnack` is wanted and the GPUs do not have it; else what the calls failed
    /// with.
    pub fn open(&self, xnack: bool) -> Result<Client, Stop> {
        let client = match self {
            Self::InProcess(machine) => Client::on(machine)?,
            // A process beside that of the address space has neither userptr nor SVM there.
            Self::Device(path) if Self::is_stock() => Client::open_at(path)?,
            Self::Device(path) => Client::open_apart(path)?,
        };
        if xnack {
            if !client.caps().xnack {
                return Err(Stop::Skip("the GPUs cannot retry page faults".into()));
            }
            client.set_xnack(true)?;
        }
        Ok(client)
    }

    /// A way to it without a client: nothing has been called yet.
    pub(crate) fn transport(&self) -> Result<Arc<dyn Transport>, Stop> {
        Ok(match self {
            Self::InProcess(machine) => Arc::new(Embedded::open(machine)?),
            Self::Device(path) if Self::is_stock() => Arc::new(vkfd_client::DevKfd::open(path)?),
            Self::Device(path) => Arc::new(vkfd_client::DevKfd::open_apart(path)?),
        })
    }

    /// Waits until the driver has been notified of every change that was made by calls which have
    /// returned. A kernel's is told before the change is made.
    pub fn told(&self) {
        if let Self::InProcess(machine) = self {
            machine.memory().settle();
        }
    }

    /// Runs `call` with the driver's n-th fail point on its way (from 0) failing. Returns what it
    /// returned, and whether the point was reached.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] when the kernel was built without fault injection.
    pub fn fail_nth<R>(&self, n: u64, call: impl FnOnce() -> R) -> Result<(R, bool), Stop> {
        match self {
            Self::InProcess(_) => Ok(fault_injection::fail_nth(n, call)),
            Self::Device(_) => kernel_fail_nth(n, call),
        }
    }
}

/// The kernel counts the places of this thread's calls that can be made to fail.
fn kernel_fail_nth<R>(n: u64, call: impl FnOnce() -> R) -> Result<(R, bool), Stop> {
    const PATH: &str = "/proc/thread-self/fail-nth";
    let file = std::fs::OpenOptions::new().read(true).write(true).open(PATH);
    let file = file.map_err(|e| Stop::Skip(format!("{PATH}: {e}: a kernel without CONFIG_FAULT_INJECTION?")))?;
    let mut left = [0; 16];
    file.write_at((n + 1).to_string().as_bytes(), 0)?;
    let result = call();
    // Opening it only now would be a place as well.
    let length = file.read_at(&mut left, 0)?;
    file.write_at(b"0", 0)?;
    Ok((result, left[..length].trim_ascii() == b"0"))
}
