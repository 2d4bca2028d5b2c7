// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A process that shares its machine with others: the machine's file, a socket for files, and one
//! for notes about its memory.
//!
//! Registered memory is mapped from a file that the machine's process has mapped, too. The hooks of
//! the mapping calls tell [`SharedMachine::before`] how the program is about to change such memory.
//! It returns when no GPU uses that memory any more. Memory that is remembered stays so until its
//! blob is closed, also when it has been unmapped: a note about memory that the other side has
//! unmapped already does nothing.
//!
//! Lock: `notes`. The hooks take it, perhaps inside an allocator. Nothing is allocated or freed
//! while it is held, and no mapping changes.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::file_message::{receive, send};
use super::socket::{retry, HELLO_BYTES};
use super::{map_file, size};
use crate::protocol::forward::sharing::{Happens, Note, NOTED_BYTES};

/// Where a part of the file of the process's memory is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
    /// In the file.
    offset: u64,
    resource: u32,
}

struct Notes {
    socket: UnixStream,
    /// In no order.
    spans: Vec<Span>,
    /// Nobody reads them any more.
    lost: bool,
}

/// See the module.
pub struct SharedMachine {
    device: File,
    files: Mutex<UnixStream>,
    memory: File,
    notes: Mutex<Notes>,
    /// Whose it is: a forked child has a copy, and memory of its own.
    process: u32,
}

/// What a mapping call is about to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It unmaps, or maps something else.
    Unmap,
    /// It moves or resizes.
    Move,
    /// It empties.
    Discard,
    /// It changes the protection to this.
    Protect(i32),
}

/// Rights that a GPU's use of memory depends on.
const RIGHTS: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn rights(protection: i32) -> Happens {
    Happens::Protect(u32::try_from(protection & RIGHTS).unwrap_or(0))
}

impl Notes {
    /// Tells, and waits for the answer. By system calls that are no hooks', without allocating.
    fn tell(&mut self, note: Note) {
        if self.lost {
            return;
        }
        let fd = self.socket.as_raw_fd();
        let bytes = note.encode();
        let mut answer = [0_u8; NOTED_BYTES];
        // SAFETY: buffers of the lengths that are said.
        let done = unsafe {
            let sent = retry(|| libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL));
            usize::try_from(sent) == Ok(bytes.len()) && {
                let got = retry(|| libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), libc::MSG_WAITALL));
                usize::try_from(got) == Ok(answer.len())
            }
        };
        self.lost = !done;
    }
}

impl SharedMachine {
    /// What comes after the first answer; `memory` is the file of this process's memory.
    ///
    /// # Errors
    /// The socket's.
    pub fn receive(socket: &UnixStream, memory: File) -> io::Result<Self> {
        let next = || receive(socket, &mut [0; HELLO_BYTES]);
        let device = next()?;
        let [files, notes] = [next()?, next()?].map(|file| UnixStream::from(OwnedFd::from(file)));
        let notes = Notes { socket: notes, spans: Vec::new(), lost: false };
        Ok(Self { device, files: Mutex::new(files), memory, notes: Mutex::new(notes), process: std::process::id() })
    }

    /// The machine's file.
    pub fn device(&self) -> &File {
        &self.device
    }

    /// The socket for files. The thread that holds it makes one call about a file.
    pub fn files(&self) -> MutexGuard<'_, UnixStream> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps places of the machine's file one after the other, at `at` if that is not null.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Safety
    /// As for mmap, with MAP_FIXED if there is an `at`.
    pub unsafe fn map(&self, at: *mut c_void, places: &[(u64, u64)], protection: i32) -> io::Result<*mut c_void> {
        let bytes = size(places.iter().map(|(_, bytes)| bytes).sum());
        let mut base = at;
        if base.is_null() {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new reservation touches nothing that exists.
            base = unsafe { libc::mmap(base, bytes, libc::PROT_NONE, flags, -1, 0) };
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        let mut there = base;
        for (offset, bytes) in places {
            // SAFETY: memory of the reservation, or a mapping that the caller may replace.
            let mapped = unsafe { map_file(self.device.as_raw_fd(), *offset, *bytes, there, protection) };
            if let Err(error) = mapped {
                if at.is_null() {
                    // SAFETY: nobody has seen it.
                    unsafe { libc::munmap(base, size(places.iter().map(|(_, bytes)| bytes).sum())) };
                }
                return Err(error);
            }
            there = there.wrapping_byte_add(size(*bytes));
        }
        Ok(base)
    }

    /// `bytes` of the file of the process's memory, from `offset` on, are mapped at `start`. One
    /// thread at a time calls this and `forget`.
    pub(super) fn remember(&self, start: u64, offset: u64, bytes: u64, resource: u32) {
        let span = Span { start, end: start + bytes, offset, resource };
        let room = {
            let mut notes = self.notes();
            if notes.spans.len() < notes.spans.capacity() {
                notes.spans.push(span);
                return;
            }
            notes.spans.len()
        };
        let wider = Vec::with_capacity(room * 2 + 64);
        let narrow = {
            let mut notes = self.notes();
            let narrow = std::mem::replace(&mut notes.spans, wider);
            notes.spans.extend_from_slice(&narrow);
            notes.spans.push(span);
            narrow
        };
        drop(narrow);
    }

    /// The blob is not mapped any more.
    pub(super) fn forget(&self, resource: u32) {
        self.notes().spans.retain(|span| span.resource != resource);
    }

    /// Whether the memory at `address` that is at `offset` of the file is still at its registered
    /// address, and has not been moved there.
    pub(super) fn is_in_place(&self, address: u64, offset: u64) -> bool {
        let is =
            |span: &Span| span.start <= address && address < span.end && span.offset + (address - span.start) == offset;
        self.notes().spans.iter().any(is)
    }

    /// Notifies the machine that `happens` concerns the remembered parts of `[start, end)`. Whether
    /// there were any.
    fn tell(&self, happens: Happens, start: u64, end: u64) -> bool {
        if start >= end || std::process::id() != self.process {
            return false;
        }
        let mut notes = self.notes();
        let mut any = false;
        for number in 0..notes.spans.len() {
            let span = notes.spans[number];
            let (first, last) = (start.max(span.start), end.min(span.end));
            if first < last {
                any = true;
                let offset = span.offset + (first - span.start);
                notes.tell(Note { happens, offset, bytes: last - first });
                if notes.lost && happens == Happens::Discard {
                    self.punch(offset, last - first);
                }
            }
        }
        any
    }

    /// Empties without the machine, of which there is nothing any more.
    fn punch(&self, offset: u64, bytes: u64) {
        let (Ok(offset), Ok(bytes)) = (i64::try_from(offset), i64::try_from(bytes)) else { return };
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no pointers.
        unsafe { libc::syscall(libc::SYS_fallocate, self.memory.as_raw_fd(), mode, offset, bytes) };
    }

    /// Before a mapping call. Whether registered memory is concerned: then [`after`](Self::after)
    /// is to be called.
    pub fn before(&self, change: Change, start: u64, end: u64) -> bool {
        match change {
            Change::Unmap => self.tell(Happens::Unmap, start, end),
            // Until it is known what stays.
            Change::Move => self.tell(rights(libc::PROT_NONE), start, end),
            Change::Discard => self.tell(Happens::Discard, start, end),
            // Rights go before the call, and come after it.
            Change::Protect(protection) if protection & RIGHTS == RIGHTS => true,
            Change::Protect(protection) => self.tell(rights(protection), start, end),
        }
    }

    /// After it. Of moved memory, the part below `kept` has stayed. Memory that was taken away
    /// before a call that failed stays so.
    pub fn after(&self, change: Change, start: u64, end: u64, done: bool, kept: u64) {
        match change {
            Change::Move => {
                let kept = kept.clamp(start, end);
                self.tell(rights(RIGHTS), start, kept);
                self.tell(Happens::Unmap, kept, end);
            }
            Change::Protect(protection) if done && protection & RIGHTS == RIGHTS => {
                self.tell(rights(protection), start, end);
            }
            _ => {}
        }
    }

    /// Sends a file before the call that takes it.
    ///
    /// # Errors
    /// The system's; EBADF for a number that is no descriptor.
    pub fn send_file(files: &UnixStream, fd: i32) -> io::Result<()> {
        // The program's number: it may be closed meanwhile, or never have been open.
        // SAFETY: the call takes and gives numbers; the new descriptor is nobody else's.
        let file = unsafe {
            let again = libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0);
            match i32::try_from(again) {
                Ok(again) if again >= 0 => OwnedFd::from_raw_fd(again),
                _ => return Err(io::Error::last_os_error()),
            }
        };
        send(files, &[0; 8], file.as_fd())
    }

    /// Receives the file that a call has given.
    ///
    /// # Errors
    /// The system's.
    pub fn receive_file(files: &UnixStream) -> io::Result<File> {
        receive(files, &mut [0; 8])
    }
}
