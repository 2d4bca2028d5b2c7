// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The host's machine: this process is in a guest, and its calls go through a virtio-gpu to a
//! process of its own of the host's driver ([`vkfd_remote::guest`]).
//!
//! The context is opened with the first device and ends with the last, and a forked child has one
//! of its own. Descriptors are of a file without contents: a mapping that a program makes past this
//! library shows nothing.
//!
//! The machine may also be one that processes of this computer share (`vkfd serve`). Descriptors
//! are of that machine's file then, and the mapping calls are told to it before they change
//! registered memory.

use crate::backend::{Backend, Process, Render};
use crate::device::ask;
use libc::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use vkfd_host::device_file::DeviceFile;
use vkfd_host::interpose::{self, set_witness};
use vkfd_host::per_process::PerProcess;
use vkfd_host::{Description, KfdFile};
use vkfd_remote::guest::sharing::{Change, SharedMachine};
use vkfd_remote::guest::{self, forward, FileId};
use vkfd_uapi::command::GET_VERSION;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::GetVersionArgs;

/// See the module.
pub(crate) struct Forwarded {
    way: PathBuf,
    machine: Description,
    file: DeviceFile,
    process: Mutex<Weak<forward::Process>>,
    /// The same, once somebody has asked about the machine: each new one takes descriptors that
    /// stay.
    asking: Mutex<Option<Arc<forward::Process>>>,
}

impl Forwarded {
    /// By the render node or socket `way` to a machine like this.
    pub(crate) fn new(way: PathBuf, machine: Description) -> io::Result<Self> {
        Ok(Self { way, machine, file: DeviceFile::new()?, process: Mutex::default(), asking: Mutex::default() })
    }

    fn context(&self) -> Result<Arc<forward::Process>, c_int> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = process.upgrade() {
            return Ok(process);
        }
        let opened = guest::open(&self.way).and_then(forward::Process::new).map_err(|error| {
            vkfd_rt::message::write(format_args!(
                "vkfd: the host's machine cannot be reached through {}: {error}",
                self.way.display()
            ));
            libc::ENODEV
        })?;
        if let Some(machine) = opened.shared_machine() {
            watch(machine);
        }
        let opened = Arc::new(opened);
        *process = Arc::downgrade(&opened);
        Ok(opened)
    }

    /// The one that questions about the machine go through.
    fn asking(&self) -> Result<Arc<forward::Process>, c_int> {
        if let Some(process) = &*self.asking.lock().unwrap_or_else(PoisonError::into_inner) {
            return Ok(process.clone());
        }
        let process = self.context()?;
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(asking.get_or_insert(process).clone())
    }
}

/// `AMDGPU_INFO_ACCEL_WORKING`.
const INFO_ACCEL_WORKING: u32 = 0;

/// What this process shares with others, of each context that it has had: memory that was
/// registered stays in its file.
static MACHINES: PerProcess<RwLock<Vec<Arc<SharedMachine>>>> = PerProcess::new();

struct Watcher;

fn told(change: interpose::Change) -> Change {
    match change {
        interpose::Change::Unmap => Change::Unmap,
        interpose::Change::Move => Change::Move,
        interpose::Change::Discard => Change::Discard,
        interpose::Change::Protect(protection) => Change::Protect(protection),
    }
}

impl interpose::Witness for Watcher {
    fn before(&self, change: interpose::Change, start: u64, end: u64) -> bool {
        let Some(all) = MACHINES.get() else { return false };
        let all = all.read().unwrap_or_else(PoisonError::into_inner);
        // All of them are told.
        let mut any = false;
        for machine in all.iter() {
            any |= machine.before(told(change), start, end);
        }
        any
    }

    fn after(&self, change: interpose::Change, start: u64, end: u64, done: bool, kept: u64) {
        let Some(all) = MACHINES.get() else { return };
        let all = all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().for_each(|machine| machine.after(told(change), start, end, done, kept));
    }
}

/// One thread at a time.
fn watch(machine: &Arc<SharedMachine>) {
    let Some(all) = MACHINES.get_or_init(RwLock::default) else { return };
    // Nothing is allocated or freed with the lock held: an allocator may change mappings.
    let mut more = all.read().unwrap_or_else(PoisonError::into_inner).clone();
    more.push(machine.clone());
    let before = std::mem::replace(&mut *all.write().unwrap_or_else(PoisonError::into_inner), more);
    drop(before);
    set_witness(&Watcher);
    guest::fork::install();
}

impl Backend for Forwarded {
    fn open(&self) -> Result<Arc<dyn Process>, c_int> {
        let process = self.context()?;
        // By its first call the other side knows a program that has opened more than render nodes.
        let mut version = GetVersionArgs::zeroed();
        // SAFETY: the argument is the call's own.
        unsafe { process.ioctl(forward::File::Kfd, GET_VERSION.0, (&raw mut version).cast())? };
        Ok(process)
    }

    fn open_render(&self, index: usize) -> Result<Arc<dyn Render>, c_int> {
        let number = u32::try_from(index).map_err(|_| libc::ENODEV)?;
        let node = Node { process: self.context()?, number };
        // The other side has the node open from its first call on.
        ask(&node, None, INFO_ACCEL_WORKING, [0; 4], 4)?;
        Ok(Arc::new(node))
    }

    fn question(&self, index: usize) -> Result<Arc<dyn Render>, c_int> {
        let number = u32::try_from(index).map_err(|_| libc::ENODEV)?;
        Ok(Arc::new(Node { process: self.asking()?, number }))
    }

    fn forget_questions(&self) {
        let before = self.asking.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(before);
    }

    fn descriptor(&self, flags: c_int, mark: u32) -> io::Result<OwnedFd> {
        match self.context() {
            Ok(context) => match context.shared_machine() {
                Some(machine) => DeviceFile::of_another(machine.device().try_clone()?).open(flags, mark),
                None => self.file.open(flags, mark),
            },
            Err(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }

    fn shared_file(&self) -> Option<FileId> {
        let context = self.asking().ok()?;
        guest::identity(context.shared_machine()?.device().as_raw_fd()).ok()
    }

    fn gpu(&self, gpu_id: u32) -> Option<usize> {
        let options = self.machine.options();
        let index = (0..self.machine.gpus).find(|index| options.gpu_properties(*index).gpu_id == gpu_id)?;
        usize::try_from(index).ok()
    }

    fn read(&self, from: *const c_void, to: &mut [u8]) -> Result<(), c_int> {
        // SAFETY: what is written to is this library's own.
        unsafe { forward::read(from, to) }
    }
}

impl Process for forward::Process {
    unsafe fn ioctl(&self, command: u32, argument: *mut c_void) -> Result<(), c_int> {
        // SAFETY: forwarded to the caller.
        unsafe { self.ioctl(forward::File::Kfd, command, argument) }
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
        None
    }
}

struct Node {
    process: Arc<forward::Process>,
    number: u32,
}

impl Render for Node {
    unsafe fn ioctl(&self, _bound: Option<&dyn Process>, command: u32, argument: *mut c_void) -> Result<(), c_int> {
        // SAFETY: forwarded to the caller.
        unsafe { self.process.ioctl(forward::File::Render(self.number), command, argument) }
    }

    unsafe fn mmap(
        &self,
        _at: *mut c_void,
        _bytes: usize,
        _prot: c_int,
        _flags: c_int,
        _offset: u64,
    ) -> Option<Result<*mut c_void, c_int>> {
        // It has no objects of its own: what it shows is the process's.
        None
    }
}
