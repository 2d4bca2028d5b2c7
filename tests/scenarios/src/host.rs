// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whose KFD it is: a machine's in this process, or the system's. The system's may be AMD's
//! ([`Host::Stock`]), which lacks vkfd's own calls: scenarios that need one are skipped.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vkfd_client::{Client, DevKfd, Embedded, Errno, Machine, Transport};
use vkfd_driver::os::fault_injection;

use crate::verdict::Stop;

/// A KFD.
pub enum Host {
    /// Of a machine in this process.
    InProcess(Machine),
    /// The system's, by the path of its device file.
    Device(PathBuf),
    /// AMD's.
    Stock(Stock),
}

/// AMD's driver, which has one process for an address space, with one VM on each GPU, until the
/// address space ends. So the first clients of all worlds, and all else that is no process beside
/// them, share one open file, and the first clients are one.
///
/// Lock: [`FIRST`] guards the opening; a leaf.
pub struct Stock {
    path: PathBuf,
    /// This world has its first client, or something else uses the open file in its place.
    taken: AtomicBool,
}

/// What all worlds share on AMD's driver.
static FIRST: Mutex<First> = Mutex::new(First { open: None, client: None });

struct First {
    open: Option<Arc<DevKfd>>,
    client: Option<Client>,
}

impl First {
    fn open(&mut self, path: &Path) -> Result<Arc<DevKfd>, Stop> {
        Ok(match &self.open {
            Some(open) => open.clone(),
            None => self.open.insert(Arc::new(DevKfd::open(path)?)).clone(),
        })
    }
}

impl Stock {
    fn new(path: PathBuf) -> Self {
        Self { path, taken: AtomicBool::new(false) }
    }

    /// The open file.
    fn transport(&self) -> Result<Arc<DevKfd>, Stop> {
        self.taken.store(true, Ordering::Relaxed);
        FIRST.lock().unwrap_or_else(PoisonError::into_inner).open(&self.path)
    }

    /// The world's first client, which is that of earlier worlds, or one beside it.
    fn client(&self) -> Result<Client, Stop> {
        // A process beside that of the address space has neither userptr nor SVM there.
        if self.taken.swap(true, Ordering::Relaxed) {
            return Ok(Client::open_apart(&self.path)?);
        }
        let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &first.client {
            return Ok(client.clone());
        }
        let client = Client::with_transport(first.open(&self.path)?)?;
        Ok(first.client.insert(client).clone())
    }

    /// Has the driver retry faults, or not. It has no capabilities to ask for, and refuses what its
    /// GPUs cannot do.
    fn set_xnack(client: &Client, on: bool) -> Result<(), Stop> {
        client.set_xnack(on).map_err(|error| match error.errno() {
            Some(Errno::PERM) => Stop::Skip(NO_RETRY.into()),
            _ => error.into(),
        })
    }
}

const NO_RETRY: &str = "the GPUs cannot retry page faults";

impl Host {
    /// The system's, if `VKFD_DEVICE` names it.
    #[must_use]
    pub fn of_the_system() -> Option<Self> {
        let path = PathBuf::from(std::env::var_os("VKFD_DEVICE")?);
        Some(match Self::is_stock() {
            true => Self::Stock(Stock::new(path)),
            false => Self::Device(path),
        })
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
            Self::Device(path) => Client::open_apart(path)?,
            Self::Stock(stock) => stock.client()?,
        };
        match self {
            // An earlier world may have had the other.
            Self::Stock(_) => Stock::set_xnack(&client, xnack)?,
            Self::InProcess(_) | Self::Device(_) if !xnack => {}
            Self::InProcess(_) | Self::Device(_) if !client.caps().xnack => return Err(Stop::Skip(NO_RETRY.into())),
            Self::InProcess(_) | Self::Device(_) => client.set_xnack(true)?,
        }
        Ok(client)
    }

    /// A way to it without a client: nothing has been called yet. AMD's is the one that the first
    /// client has.
    pub(crate) fn transport(&self) -> Result<Arc<dyn Transport>, Stop> {
        Ok(match self {
            Self::InProcess(machine) => Arc::new(Embedded::open(machine)?),
            Self::Device(path) => Arc::new(DevKfd::open_apart(path)?),
            Self::Stock(stock) => stock.transport()?,
        })
    }

    /// As [`Host::transport`], of another process object.
    pub(crate) fn transport_beside(&self) -> Result<Arc<dyn Transport>, Stop> {
        match self {
            Self::Stock(stock) => Ok(Arc::new(DevKfd::open_apart(&stock.path)?)),
            Self::InProcess(_) | Self::Device(_) => self.transport(),
        }
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
            Self::Device(_) | Self::Stock(_) => kernel_fail_nth(n, call),
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
