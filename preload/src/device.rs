// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The open files behind descriptors of devices.
//!
//! A file counts its descriptors; when the last is closed the driver's process goes, unless a call
//! is still in the driver with it. A render node shows memory after ACQUIRE_VM has bound it to the
//! process, as the kernel has it.
//!
//! The lock of a file guards what it has of the driver, and is never held during a call.

use crate::backend::{Backend, Process, Render};
use crate::redirect::Device;
use crate::setting::{self, Mark};
use crate::trace::Trace;
use crate::{event_wait, machine, own_stack, table};
use libc::{c_int, c_void};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::drm::binding::{self, Binding};
use vkfd_host::device_file::SHOWN_NAME;
use vkfd_host::per_process::Identity;
use vkfd_uapi::command::{ACQUIRE_VM, WAIT_EVENTS};
use vkfd_uapi::drm::{Info, INFO, INFO_FDINFO};
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::AcquireVmArgs;

/// An open device.
pub(crate) struct OpenFile {
    device: Device,
    /// The process that opened it.
    opener: Identity,
    descriptors: AtomicUsize,
    driver: Mutex<Driver>,
}

/// The driver's side of an open device.
#[derive(Clone, Default)]
struct Driver {
    /// KFD's file: of a render node, once it is bound.
    process: Option<Arc<dyn Process>>,
    /// DRM's file, of a render node.
    render: Option<Arc<dyn Render>>,
}

/// Opens a device: the descriptor.
pub(crate) fn open(device: Device, flags: c_int) -> Result<c_int, c_int> {
    if flags & libc::O_DIRECTORY != 0 {
        return Err(libc::ENOTDIR);
    }
    let trace = Trace::begin();
    let result = own_stack::if_needed(|| open_new(device, flags));
    trace.open(device, &result);
    result
}

fn open_new(device: Device, flags: c_int) -> Result<c_int, c_int> {
    let driver = match device {
        Device::Kfd => {
            setting::mark(Mark::Opened);
            Driver { process: Some(machine::get()?.open()?), render: None }
        }
        Device::Render(index) | Device::Card(index) => {
            let render = machine::get()?.open_render(index as usize)?;
            Driver { process: None, render: Some(render) }
        }
    };
    let fd = machine::get()?.descriptor(flags, device.mark()).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
    // Lives as long as the process: see `table`.
    let file = Box::leak(Box::new(OpenFile::new(device, Identity::current(), driver)));
    let fd = fd.into_raw_fd();
    if let Err(errno) = table::set(fd, file) {
        drop(std::mem::take(&mut *file.lock()));
        // SAFETY: the descriptor is this function's own.
        unsafe { libc::close(fd) };
        return Err(errno);
    }
    Ok(fd)
}

/// Descriptors that another process opened and left to this program, such as a shell for
/// `< /dev/kfd`: KFD refuses their calls (EBADF), and what lies behind them is the other process's.
/// Which device it was is not known.
pub(crate) fn find_inherited() {
    if setting::get().is_none() {
        return;
    }
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<c_int>().ok());
    for fd in numbers {
        let shown = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
        if shown.as_os_str().as_bytes() == SHOWN_NAME && table::get(fd).is_none() {
            let _ = table::set(fd, Box::leak(Box::new(OpenFile::new(Device::Kfd, Identity::NONE, Driver::default()))));
        }
    }
}

impl OpenFile {
    fn new(device: Device, opener: Identity, driver: Driver) -> Self {
        Self { device, opener, descriptors: AtomicUsize::new(0), driver: Mutex::new(driver) }
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// Whether this process opened it, and not the one that this was forked from.
    pub(crate) fn is_ours(&self) -> bool {
        self.opener.is_current()
    }

    pub(crate) fn add_descriptor(&self) {
        self.descriptors.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove_descriptor(&self) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
            let driver = std::mem::take(&mut *self.lock());
            Trace::begin().close(self.device);
            // Without the lock: this may be the driver's release, which waits for its threads.
            own_stack::if_needed(|| drop(driver));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver's side as it is now. EBADF in another process.
    fn driver(&self) -> Result<Driver, c_int> {
        if self.is_ours() {
            Ok(self.lock().clone())
        } else {
            Err(libc::EBADF)
        }
    }

    fn process(&self) -> Result<Arc<dyn Process>, c_int> {
        self.driver()?.process.ok_or(match self.device {
            Device::Kfd => libc::EBADF,
            Device::Render(_) | Device::Card(_) => libc::EINVAL,
        })
    }

    /// What DRM says of an open render node; nothing for another device, and in another process.
    pub(crate) fn fdinfo(&self) -> Option<Vec<u8>> {
        let driver = self.driver().ok()?;
        own_stack::if_needed(|| {
            ask(&*driver.render?, driver.process.as_deref(), INFO_FDINFO, [0; 4], FDINFO_BYTES).ok()
        })
    }

    /// An ioctl.
    ///
    /// # Safety
    /// As for ioctl.
    pub(crate) unsafe fn ioctl(&self, command: u32, argument: *mut c_void) -> Result<c_int, c_int> {
        let trace = Trace::begin_ioctl(command, argument);
        let result = own_stack::if_needed(|| match self.device {
            // SAFETY: forwarded to the caller.
            Device::Kfd => unsafe { self.kfd_ioctl(command, argument) },
            Device::Render(_) | Device::Card(_) => self.driver().and_then(|driver| {
                let render = driver.render.ok_or(libc::EBADF)?;
                // SAFETY: forwarded to the caller.
                unsafe { render.ioctl(driver.process.as_deref(), command, argument) }
            }),
        });
        trace.ioctl(self.device, command, argument, result);
        result.map(|()| 0)
    }

    unsafe fn kfd_ioctl(&self, command: u32, argument: *mut c_void) -> Result<(), c_int> {
        let process = self.process()?;
        // SAFETY: forwarded to the caller.
        let call = || unsafe { process.ioctl(command, argument) };
        if Command(command).same_call(WAIT_EVENTS) && !setting::get().is_some_and(|setting| setting.spins) {
            let read = |from, to: &mut [u8]| machine::get()?.read(from, to);
            // SAFETY: the caller's argument, or one of the module's own.
            return event_wait::wait(argument, read, |argument| unsafe { process.ioctl(command, argument) });
        }
        if !Command(command).same_call(ACQUIRE_VM) {
            return call();
        }
        let render = render_file(argument)?;
        setting::mark(Mark::Acquired);
        match render {
            Some(render) => binding::acquire_vm(render, &process, || call().map_err(Errno)).map_err(|errno| errno.0),
            None => call(),
        }
    }

    /// A mapping.
    ///
    /// # Safety
    /// As for mmap.
    pub(crate) unsafe fn mmap(
        &self,
        at: *mut c_void,
        bytes: usize,
        prot: c_int,
        flags: c_int,
        offset: i64,
    ) -> Result<*mut c_void, c_int> {
        let trace = Trace::begin();
        // The driver's encoded offsets have their highest bit set: the same bits.
        let offset = u64::from_ne_bytes(offset.to_ne_bytes());
        let map = |driver: Driver| {
            // A private mapping would not show the device what is written to it.
            if flags & libc::MAP_TYPE == libc::MAP_PRIVATE && prot & libc::PROT_WRITE != 0 {
                return Err(libc::EINVAL);
            }
            if let Some(render) = &driver.render {
                // SAFETY: forwarded to the caller.
                if let Some(mapped) = unsafe { render.mmap(at, bytes, prot, flags, offset) } {
                    return mapped;
                }
            }
            let process = self.process()?;
            // SAFETY: forwarded to the caller.
            unsafe { process.mmap(at, bytes, prot, flags, offset) }
        };
        let result = own_stack::if_needed(|| self.driver().and_then(map));
        trace.mmap(self.device, [at.expose_provenance() as u64, bytes as u64, offset], &result);
        result
    }
}

/// Bytes that are enough for all that DRM says of an open render node.
pub(crate) const FDINFO_BYTES: usize = 2048;

/// A question of INFO to a render node: the answer, of `bytes` at most.
pub(crate) fn ask(
    render: &dyn Render,
    bound: Option<&dyn Process>,
    query: u32,
    arguments: [u32; 4],
    bytes: usize,
) -> Result<Vec<u8>, c_int> {
    let mut answer = vec![0; bytes];
    let mut info = Info::zeroed();
    info.return_ptr = answer.as_mut_ptr().expose_provenance() as u64;
    info.return_size = u32::try_from(bytes).map_err(|_| libc::EINVAL)?;
    (info.query, info.arguments) = (query, arguments);
    // SAFETY: the structure and the room for the answer are this function's own.
    unsafe { render.ioctl(bound, INFO.0, (&raw mut info).cast()) }.map(|()| answer)
}

/// A question about the machine, to a node of GPU number `gpu`. None where no machine answers, or
/// it has no answer.
pub(crate) fn ask_machine(
    machine: &dyn Backend,
    gpu: usize,
    query: u32,
    arguments: [u32; 4],
    bytes: usize,
) -> Option<Vec<u8>> {
    let answer = ask(&*machine.question(gpu).ok()?, None, query, arguments, bytes);
    if matches!(answer, Err(libc::ENODEV | libc::EIO)) {
        machine.forget_questions();
    }
    answer.ok()
}

/// Whether both are one process of the driver.
fn is_same(a: &Arc<dyn Process>, b: &Arc<dyn Process>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

impl Binding for OpenFile {
    type Process = Arc<dyn Process>;

    fn is_anothers(&self, process: &Arc<dyn Process>) -> bool {
        self.lock().process.as_ref().is_some_and(|bound| !is_same(bound, process))
    }

    fn bind(&self, process: &Arc<dyn Process>) -> bool {
        is_same(self.lock().process.get_or_insert_with(|| process.clone()), process)
    }
}

/// The render node that an ACQUIRE_VM brings, through which memory of the process on that GPU is
/// mapped. EINVAL if it is none; nothing if there is no such GPU, which the driver refuses.
fn render_file(argument: *mut c_void) -> Result<Option<&'static OpenFile>, c_int> {
    let mut args = AcquireVmArgs::zeroed();
    let machine = machine::get()?;
    machine.read(argument, args.as_bytes_mut())?;
    let Some(index) = machine.gpu(args.gpu_id) else { return Ok(None) };
    let render = c_int::try_from(args.drm_fd).ok().and_then(table::get).ok_or(libc::EINVAL)?;
    if render.device.drm() != Some(u32::try_from(index).unwrap_or(u32::MAX)) {
        return Err(libc::EINVAL);
    }
    Ok(Some(render))
}

/// As [`vkfd_host::interpose::Mapper`].
///
/// # Safety
/// As for mmap.
pub(crate) unsafe fn map(
    at: *mut c_void,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Option<Result<*mut c_void, c_int>> {
    // SAFETY: forwarded to the caller.
    table::get(fd).map(|file| unsafe { file.mmap(at, bytes, prot, flags, offset) })
}
