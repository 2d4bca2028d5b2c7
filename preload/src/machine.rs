// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine of this process, made when a device is opened for the first time. It lives until the
//! process ends. A forked child that opens a device gets one of its own; what it has of its parent
//! is refused. If `vkfd run` said so, it is the host's.

use crate::backend::{Backend, Process, Render};
use crate::forwarded::Forwarded;
use crate::own_stack;
use crate::setting::{self, Setting};
use libc::{c_int, c_void};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError, Weak};
use vkfd_driver::base::addr::CpuVa;
use vkfd_driver::seams::address_space::AddressSpace;
use vkfd_driver::seams::gpu::Gpu;
use vkfd_gpu::check::Ledger;
use vkfd_gpu::raw::memory_file;
use vkfd_gpu::{Checking, Profile, Timeline};
use vkfd_host::address_space::ProcessMemory;
use vkfd_host::per_process::PerProcess;
use vkfd_host::{HostError, KfdFile, Machine, MachineOptions, RenderFile};
use vkfd_remote::guest::FileId;

static MACHINE: PerProcess<Option<Box<dyn Backend>>> = PerProcess::new();

/// The machine in this process.
struct Local {
    machine: Machine,
    /// Its open file.
    process: Mutex<Weak<KfdFile>>,
}

/// The machine. ENODEV, with a message, if it cannot be made.
pub(crate) fn get() -> Result<&'static dyn Backend, i32> {
    let setting = setting::get().ok_or(libc::ENODEV)?;
    crate::reach::check()?;
    let make = || {
        let made = match &setting.forward {
            Some(way) => forwarded(way.clone(), setting),
            None => {
                crate::message::install();
                make(setting).map(|machine| Box::new(Local { machine, process: Mutex::default() }) as Box<dyn Backend>)
            }
        };
        made.inspect_err(|error| vkfd_rt::message::write(format_args!("vkfd: the machine could not be made: {error}")))
            .ok()
    };
    let made = MACHINE.get_or_init(|| own_stack::call(make));
    // Not in a child of vfork: what it makes would be its parent's.
    made.and_then(Option::as_deref).ok_or(libc::ENODEV)
}

/// The machine, if this process has one already.
pub(crate) fn made() -> Option<&'static dyn Backend> {
    MACHINE.get().and_then(Option::as_deref)
}

fn forwarded(way: std::path::PathBuf, setting: &Setting) -> Result<Box<dyn Backend>, HostError> {
    let made = Forwarded::new(way, setting.machine);
    made.map(|made| Box::new(made) as Box<dyn Backend>).map_err(|error| HostError::DeviceFile(error.to_string()))
}

/// The machine's profile, to be written when the program ends.
static PROFILE: OnceLock<Arc<Profile>> = OnceLock::new();
/// Its timeline, to be ended then.
static TIMELINE: OnceLock<Arc<Timeline>> = OnceLock::new();

extern "C" fn write_profile() {
    if let Some(profile) = PROFILE.get() {
        memory_file::without_size_signal(|| profile.write());
    }
}

extern "C" fn end_timeline() {
    if let Some(timeline) = TIMELINE.get() {
        timeline.end();
    }
}

/// The file of this process in a directory for the files of all.
fn own_file(directory: &Path) -> PathBuf {
    directory.join(std::process::id().to_string())
}

/// What checks know, of the machine of this process.
static LEDGER: PerProcess<Arc<Ledger>> = PerProcess::new();

/// What checks know; nothing where there are none.
pub(crate) fn ledger() -> Option<&'static Arc<Ledger>> {
    let setting = setting::get().filter(|setting| setting.machine.checks.any())?;
    LEDGER.get_or_init(|| {
        let path = setting.findings.as_deref().map(own_file);
        // A child has its parent's list of these functions.
        static LISTED: Once = Once::new();
        if path.is_some() {
            LISTED.call_once(|| {
                // SAFETY: the function takes and returns nothing; this library is never unloaded.
                unsafe { libc::atexit(write_findings) };
            });
        }
        Arc::new(Ledger::new(setting.machine.checks.init, path))
    })
}

extern "C" fn write_findings() {
    if let Some(ledger) = LEDGER.get() {
        memory_file::without_size_signal(|| ledger.write());
    }
}

fn options(setting: &Setting) -> MachineOptions {
    let mut options = setting.machine.options();
    if let Some(ledger) = ledger() {
        options.checking = Some(Checking { checks: setting.machine.checks, ledger: ledger.clone() });
    }
    if let Some(path) = &setting.profile {
        options.profile = Arc::new(Profile::new(Some(own_file(path))));
        if PROFILE.set(options.profile.clone()).is_ok() {
            // SAFETY: the function takes and returns nothing, and this library is never unloaded.
            unsafe { libc::atexit(write_profile) };
        }
    }
    if let Some(path) = &setting.timeline {
        let made = Timeline::create(&own_file(path)).map(Arc::new);
        match made {
            // SAFETY: as above.
            Ok(timeline) if TIMELINE.set(timeline.clone()).is_ok() => unsafe {
                options.timeline = Some(timeline);
                libc::atexit(end_timeline);
            },
            Ok(timeline) => options.timeline = Some(timeline),
            Err(error) => vkfd_rt::message::write(format_args!("vkfd: no timeline: {error}")),
        }
    }
    options
}

fn make(setting: &Setting) -> Result<Machine, HostError> {
    let mut options = options(setting);
    options.driver.sabotage = vkfd_host::description::sabotage_from_environment()?;
    Machine::new(&options)
}

impl Backend for Local {
    fn open(&self) -> Result<Arc<dyn Process>, c_int> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = process.upgrade() {
            return Ok(file);
        }
        let file = Arc::new(self.machine.open()?);
        *process = Arc::downgrade(&file);
        Ok(file)
    }

    fn open_render(&self, index: usize) -> Result<Arc<dyn Render>, c_int> {
        Ok(Arc::new(self.machine.open_render(index)?))
    }

    fn question(&self, index: usize) -> Result<Arc<dyn Render>, c_int> {
        self.open_render(index)
    }

    fn forget_questions(&self) {}

    fn descriptor(&self, flags: c_int, mark: u32) -> io::Result<OwnedFd> {
        let file = self.machine.device_file().ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?;
        file.open(flags, mark)
    }

    fn shared_file(&self) -> Option<FileId> {
        None
    }

    fn gpu(&self, gpu_id: u32) -> Option<usize> {
        self.machine.gpus().iter().position(|gpu| gpu.properties().gpu_id == gpu_id)
    }

    fn read(&self, from: *const c_void, to: &mut [u8]) -> Result<(), c_int> {
        let memory = ProcessMemory::new(self.machine.memory());
        memory.read(CpuVa(from.expose_provenance() as u64), to).map_err(|e| e.errno.0)
    }
}

impl Process for KfdFile {
    unsafe fn ioctl(&self, command: u32, argument: *mut c_void) -> Result<(), c_int> {
        // SAFETY: forwarded to the caller.
        unsafe { self.ioctl(command, argument) }
    }

    unsafe fn mmap(
        &self,
        at: *mut c_void,
        bytes: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Result<*mut c_void, c_int> {
        // SAFETY: forwarded to the caller.
        unsafe { self.mmap(at, bytes, prot, flags, offset) }
    }

    fn local(&self) -> Option<&KfdFile> {
        Some(self)
    }
}

impl Render for RenderFile {
    unsafe fn ioctl(&self, bound: Option<&dyn Process>, command: u32, argument: *mut c_void) -> Result<(), c_int> {
        // SAFETY: forwarded to the caller.
        unsafe { self.ioctl(bound.and_then(|process| process.local()), command, argument) }
    }

    unsafe fn mmap(
        &self,
        at: *mut c_void,
        bytes: usize,
        prot: c_int,
        flags: c_int,
        offset: u64,
    ) -> Option<Result<*mut c_void, c_int>> {
        // SAFETY: forwarded to the caller.
        unsafe { self.mmap(at, bytes, prot, flags, offset) }
    }
}
