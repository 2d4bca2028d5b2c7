// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `/dev/kfd` and render nodes of the host's machine, for a program in a guest: each ioctl becomes
//! a message to the host's context, each mmap a mapping of a blob.
//!
//! | module | what |
//! | --- | --- |
//! | `access` | the program's memory, with EFAULT for other addresses |
//! | `maps` | `/proc/self/maps` |
//! | `memory` | allocations, and the program's memory as blobs |
//! | `slots` | places for answers, and rings |
//!
//! A call has a slot of the response memory and the ring of the same number to itself, so no call
//! waits for another one's answer. WAIT_EVENTS has most of them; when all are taken, a wait asks
//! again and again instead.
//!
//! Locks: that of `memory`, held while memory is replaced and while an allocation is made; those of
//! the transport below it.

mod access;
pub(super) mod maps;
mod memory;
mod shared;
mod slots;

use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vkfd_rt::message;
use vkfd_uapi::batch::ALLOC_MEMORY_OF_GPU_BATCH;
use vkfd_uapi::command as c;
use vkfd_uapi::event::{WaitEventsArgs, WAIT_RESULT_TIMEOUT};
use vkfd_uapi::ioctl::{Command, Direction};
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process::GetClockCountersArgs;

use self::memory::Memory;
use self::slots::{Slot, Slots};
use super::sharing::SharedMachine;
use super::{size, Blob, Transport};
pub use crate::protocol::forward::File;
use crate::protocol::forward::{calls, sharing};
use crate::protocol::forward::{BlobKind, Piece, Request, SLOTS, SLOT_BYTES};
use crate::protocol::index;

/// How long the host may take for a call that does not wait.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often a wait without a ring of its own asks.
const ASKING: Duration = Duration::from_millis(1);
const FOREVER: u32 = u32::MAX;

/// The response memory: a mapping that goes with it.
struct Responses {
    at: NonNull<c_void>,
    blob: Blob,
}

// SAFETY: the mapping is accessed by atomic operations and copies only.
unsafe impl Send for Responses {}
// SAFETY: as above.
unsafe impl Sync for Responses {}

impl Responses {
    /// The answer in a slot, if it is there.
    fn read(&self, slot: u32, sequence: u64, bytes: usize) -> Option<Vec<u8>> {
        let at = self.at.as_ptr().wrapping_byte_add(index(slot) * SLOT_BYTES);
        // SAFETY: a slot is inside of the mapping and aligned; the host writes it, too, so it is
        // read atomically and then copied.
        let word = unsafe { AtomicU64::from_ptr(at.cast()) };
        if word.load(Ordering::Acquire) != sequence {
            return None;
        }
        let mut answer = vec![0; bytes.min(SLOT_BYTES)];
        // SAFETY: as above; no reference to the mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), answer.as_mut_ptr(), answer.len()) };
        Some(answer)
    }
}

/// A KFD process on the host: that of this process of the guest.
pub struct Process {
    responses: Responses,
    slots: Slots,
    sequence: AtomicU64,
    memory: Mutex<Memory>,
    transport: Arc<dyn Transport>,
}

impl Process {
    /// A new one.
    ///
    /// # Errors
    /// The transport's.
    pub fn new(transport: Arc<dyn Transport>) -> io::Result<Self> {
        vkfd_raw::install();
        let blob = transport.host_blob(BlobKind::Responses, (SLOTS * SLOT_BYTES) as u64)?;
        // SAFETY: at an address of the kernel's choice.
        let at = unsafe { transport.map(&blob, std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE)? };
        let at = NonNull::new(at).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            responses: Responses { at, blob },
            slots: Slots::default(),
            sequence: AtomicU64::new(1),
            memory: Mutex::default(),
            transport,
        })
    }

    /// What it has besides where the machine is shared.
    #[must_use]
    pub fn shared_machine(&self) -> Option<&Arc<SharedMachine>> {
        self.transport.shared_machine()
    }

    /// The machine in words.
    #[must_use]
    pub fn machine(&self) -> &str {
        self.transport.machine()
    }

    /// An ioctl.
    ///
    /// # Errors
    /// The errno: the host's driver's; ENOTTY or EOPNOTSUPP for a call that is not forwarded, EPERM
    /// for SVM, EIO when there is no answer.
    ///
    /// # Safety
    /// As for ioctl: the host may write where the argument's pointers point, and a registration
    /// replaces the pages of its memory.
    pub unsafe fn ioctl(&self, file: File, command: u32, argument: *mut c_void) -> Result<(), i32> {
        let command = Command(command);
        // As a KFD that was built without it.
        if file == File::Kfd && command.same_call(c::SVM) {
            return Err(libc::EPERM);
        }
        if let Some(machine) = self.transport.shared_machine().filter(|_| file == File::Kfd && sharing::is_one(command))
        {
            // SAFETY: forwarded to the caller.
            return unsafe { self.shared_call(machine, command, argument) };
        }
        let known = calls::size(file, command).map_err(|refused| refused.0)?;
        let theirs = command.size();
        let mut bytes = vec![0; theirs];
        // SAFETY: promised by the caller.
        unsafe { access::read(argument, &mut bytes)? };
        bytes.resize(known, 0);
        let kfd = file == File::Kfd;
        let (done, bytes) = if kfd
            && (command.same_call(c::ALLOC_MEMORY_OF_GPU) || command == ALLOC_MEMORY_OF_GPU_BATCH)
        {
            // SAFETY: as above.
            unsafe { self.alloc(command, bytes)? }
        } else {
            let mut request = self.request(file, command, bytes)?;
            let done = if kfd && command.same_call(c::WAIT_EVENTS) {
                self.wait(&mut request)
            } else {
                self.call(&mut request, self.slots.take(), Some(PATIENCE))
            };
            if done.is_ok() && kfd && command.same_call(c::FREE_MEMORY_OF_GPU) {
                self.lock().freed(&*self.transport, &request.argument);
            }
            if kfd && command.same_call(c::GET_CLOCK_COUNTERS) {
                own_clocks(&mut request.argument);
            }
            for (array, content) in request.arrays.iter().zip(&request.contents).filter(|(array, _)| array.way.writes())
            {
                let pointer = crate::protocol::u64_at(&request.argument, array.pointer).unwrap_or(0);
                // SAFETY: as above.
                unsafe { access::write(address(pointer), content)? };
            }
            (done, request.argument)
        };
        if matches!(command.direction(), Direction::Read | Direction::ReadWrite) {
            // SAFETY: as above.
            unsafe { access::write(argument, &bytes[..theirs.min(bytes.len())])? };
        }
        done
    }

    /// A call with the arrays that the program has for it.
    fn request(&self, file: File, command: Command, argument: Vec<u8>) -> Result<Request, i32> {
        let arrays = calls::arrays(file, command, &argument).map_err(|refused| refused.0)?;
        let mut contents = Vec::with_capacity(arrays.len());
        for array in &arrays {
            let mut content = vec![0; array.bytes];
            if array.way.reads() {
                let pointer = crate::protocol::u64_at(&argument, array.pointer).unwrap_or(0);
                // SAFETY: reading what is not there is an error.
                unsafe { access::read(address(pointer), &mut content)? };
            }
            contents.push(content);
        }
        Request::new(file, command, argument, contents, Vec::new()).map_err(|refused| refused.0)
    }

    /// Asks the host. EIO, with a message, when there is no answer.
    fn call(&self, request: &mut Request, slot: Slot<'_>, patience: Option<Duration>) -> Result<(), i32> {
        let bytes = request.answer_bytes();
        if bytes > SLOT_BYTES {
            return Err(libc::ENOMEM);
        }
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        let number = slot.number();
        // Below 1 MiB.
        let [at, room] = [index(number) * SLOT_BYTES, SLOT_BYTES].map(|n| u32::try_from(n).unwrap_or(0));
        let payload = request.encode(sequence, at, room);
        if let Err(error) = self.transport.submit(&payload, number, patience) {
            if self.transport.shared_machine().is_some() && error.kind() != io::ErrorKind::TimedOut {
                return Err(self.machine_has_gone());
            }
            message::write(format_args!("vkfd: the host does not answer {}: {error}", request.head.command));
            if error.kind() == io::ErrorKind::TimedOut {
                // The answer may still come.
                slot.leave();
            }
            return Err(libc::EIO);
        }
        let Some(answer) = self.responses.read(number, sequence, bytes) else {
            message::write(format_args!(
                "vkfd: the host says that {} is done, and there is no answer",
                request.head.command
            ));
            slot.leave();
            return Err(libc::EIO);
        };
        match request.take_answer(&answer) {
            Ok(0) => Ok(()),
            Ok(errno) => Err(errno),
            Err(error) => {
                message::write(format_args!("vkfd: the host's answer to {}: {error}", request.head.command));
                Err(libc::EIO)
            }
        }
    }

    /// WAIT_EVENTS: on a ring of its own, or, when there is none, again and again.
    fn wait(&self, request: &mut Request) -> Result<(), i32> {
        if let Some(slot) = self.slots.take_for_wait() {
            return self.call(request, slot, None);
        }
        let mut asked = WaitEventsArgs::zeroed();
        asked.as_bytes_mut().copy_from_slice(&request.argument);
        let began = Instant::now();
        loop {
            let now = WaitEventsArgs { timeout: 0, ..asked };
            request.argument.copy_from_slice(now.as_bytes());
            let done = self.call(request, self.slots.take(), Some(PATIENCE));
            let mut result = WaitEventsArgs::zeroed();
            result.as_bytes_mut().copy_from_slice(&request.argument);
            let over = asked.timeout != FOREVER && began.elapsed() >= Duration::from_millis(asked.timeout.into());
            if done.is_err() || over || result.wait_result != WAIT_RESULT_TIMEOUT {
                return done;
            }
            std::thread::sleep(ASKING);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A mapping of a device file.
    ///
    /// # Errors
    /// EINVAL for an offset of nothing, EPERM for memory that the processors do not reach, the
    /// kernel's.
    ///
    /// # Safety
    /// As for mmap.
    pub unsafe fn mmap(
        &self,
        at: *mut c_void,
        bytes: usize,
        protection: i32,
        flags: i32,
        offset: u64,
    ) -> Result<*mut c_void, i32> {
        let fixed = flags & libc::MAP_FIXED != 0;
        let at = if fixed { at } else { std::ptr::null_mut() };
        if let Some(machine) = self.transport.shared_machine() {
            let places = self.places(offset, bytes as u64)?;
            // SAFETY: forwarded to the caller.
            return unsafe { machine.map(at, &places, protection) }.map_err(|error| errno(&error));
        }
        let mut memory = self.lock();
        match memory.shown(&*self.transport, offset, bytes as u64)? {
            // SAFETY: forwarded to the caller.
            Some(blob) => unsafe { self.transport.map(&blob, at, protection) }.map_err(|error| errno(&error)),
            None if protection != libc::PROT_NONE => Err(libc::EPERM),
            None => {
                let fixed = if fixed { libc::MAP_FIXED } else { 0 };
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
                // SAFETY: forwarded to the caller.
                let mapped = unsafe { libc::mmap(at, bytes, protection, flags, -1, 0) };
                if mapped == libc::MAP_FAILED {
                    return Err(errno(&io::Error::last_os_error()));
                }
                Ok(mapped)
            }
        }
    }

    /// An allocation by message, with the memory that it brings.
    fn ask_for_memory(&self, argument: &[u8], pieces: Vec<Piece>) -> Result<Vec<u8>, (i32, Vec<u8>)> {
        let request = Request::new(File::Kfd, c::ALLOC_MEMORY_OF_GPU, argument.to_vec(), Vec::new(), pieces);
        let mut request = request.map_err(|refused| (refused.0, argument.to_vec()))?;
        match self.call(&mut request, self.slots.take(), Some(PATIENCE)) {
            Ok(()) => Ok(request.argument),
            Err(errno) => Err((errno, request.argument)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.lock().clear(&*self.transport);
        self.transport.close(&self.responses.blob);
        // SAFETY: the mapping is this object's own.
        unsafe { libc::munmap(self.responses.at.as_ptr(), size(self.responses.blob.bytes)) };
    }
}

/// Reads the program's memory.
///
/// # Errors
/// EFAULT for other memory.
///
/// # Safety
/// `to` is no part of it. What others write there gives racy contents.
pub unsafe fn read(from: *const c_void, to: &mut [u8]) -> Result<(), i32> {
    // SAFETY: promised by the caller.
    unsafe { access::read(from, to) }
}

/// An address of the program.
fn address(value: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(size(value))
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        _ => libc::EIO,
    })
}

/// The processor's clocks are the guest's, and the program compares them with others of the guest.
fn own_clocks(argument: &mut [u8]) {
    let nanoseconds = |clock| {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills in the local structure.
        unsafe { libc::clock_gettime(clock, &raw mut now) };
        let part = |n: i64| u64::try_from(n).unwrap_or(0);
        part(now.tv_sec).wrapping_mul(1_000_000_000).wrapping_add(part(now.tv_nsec))
    };
    let mut args = GetClockCountersArgs::zeroed();
    let length = args.as_bytes().len().min(argument.len());
    args.as_bytes_mut()[..length].copy_from_slice(&argument[..length]);
    args.cpu_clock_counter = nanoseconds(libc::CLOCK_MONOTONIC_RAW);
    args.system_clock_counter = nanoseconds(libc::CLOCK_BOOTTIME);
    argument[..length].copy_from_slice(&args.as_bytes()[..length]);
}
