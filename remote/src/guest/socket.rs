// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The way to a device without a virtual machine: virtio-gpu's own messages through a socket.
//!
//! This side does the work of a guest's kernel. It numbers resources, chooses places in the window,
//! keeps the guest's memory (a file that the device maps) and hands out pages of it. It hands them
//! out scattered, [`CHUNK`] at a time, as a kernel that has run for long would.
//!
//! The first message each way carries a file: the guest's memory there, the window back. From then
//! on a message is a length, a tag, and a command of the control queue or its answer. Answers come
//! in any order; a thread that waits reads for all.
//!
//! Locks: `inner` guards the allocations, `answers` what was read; both are leaves. One thread at a
//! time reads from the socket.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vkfd_raw::memory_file;

use super::file_message::{receive, send};
use super::sharing::SharedMachine;
use super::{identity, map_file, size, Blob, FileId, Found, Transport};
use crate::protocol::blob::{Run, FLAG_MAPPABLE, MEM_HOST3D, MEM_HOST3D_GUEST};
use crate::protocol::control::{Command, Header, FLAG_FENCE, FLAG_RING, HEADER_BYTES};
use crate::protocol::forward::BlobKind;
use crate::protocol::{capset, put32, put64, u32_at, u64_at, PAGE};

/// How the first message of each side begins.
pub const HELLO: u64 = u64::from_le_bytes(*b"vkfdloop");
/// The beginning of the answer of a host that shares a machine: three more follow, with the
/// machine's file and the sockets for files and notes.
pub const SHARING_HELLO: u64 = u64::from_le_bytes(*b"vkfdjoin");
/// Bytes of the first message: [`HELLO`], and the size of the file that comes with it.
pub const HELLO_BYTES: usize = 16;
/// Bytes before a command or an answer: its length (32 bits), padding, the tag.
pub const ENVELOPE_BYTES: usize = 16;
/// Where the guest's memory begins for the device.
pub const RAM_AT: u64 = 1 << 32;
/// The guest's memory: addresses, of which as many cost memory as are used.
const RAM_BYTES: u64 = 16 << 30;
/// Bytes that lie together.
pub const CHUNK: u64 = 16 * PAGE;
const CHUNKS: u64 = RAM_BYTES / CHUNK;
/// From one chunk to the next that is handed out; it has no divisor in common with their number.
const STRIDE: u64 = 40_503;
const CONTEXT: u32 = 1;
const OK: std::ops::Range<u32> = 0x1100..0x1200;

/// Again where a signal came.
pub(super) fn retry(mut call: impl FnMut() -> isize) -> isize {
    loop {
        let done = call();
        if done >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return done;
        }
    }
}

/// Writes bytes; a socket that has ended is an error and no signal.
fn send_all(socket: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: as many bytes as there are.
        let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// The first message.
#[must_use]
pub fn hello(bytes: u64) -> [u8; HELLO_BYTES] {
    let mut hello = [0; HELLO_BYTES];
    put64(&mut hello, 0, HELLO);
    put64(&mut hello, 8, bytes);
    hello
}

/// The first message of a host that shares a machine.
#[must_use]
pub fn sharing_hello(bytes: u64) -> [u8; HELLO_BYTES] {
    let mut hello = hello(bytes);
    put64(&mut hello, 0, SHARING_HELLO);
    hello
}

/// The size that a first message says.
///
/// # Errors
/// InvalidData when it is none.
pub fn hello_bytes(hello: &[u8; HELLO_BYTES]) -> io::Result<u64> {
    match (u64_at(hello, 0), u64_at(hello, 8)) {
        (Ok(HELLO | SHARING_HELLO), Ok(bytes)) => Ok(bytes),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A message with its envelope.
#[must_use]
pub fn envelope(tag: u64, bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![0; ENVELOPE_BYTES];
    put32(&mut message, 0, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    put64(&mut message, 8, tag);
    message.extend_from_slice(bytes);
    message
}

/// Reads a message: its tag and bytes.
///
/// # Errors
/// The system's, and InvalidData for more than `most`.
pub fn read_message(mut socket: &UnixStream, most: usize) -> io::Result<(u64, Vec<u8>)> {
    let mut envelope = [0; ENVELOPE_BYTES];
    socket.read_exact(&mut envelope)?;
    let (Ok(length), Ok(tag)) = (u32_at(&envelope, 0), u64_at(&envelope, 8)) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let length = length as usize;
    if length > most {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes)?;
    Ok((tag, bytes))
}

/// Where a blob is.
enum Backing {
    /// In the window.
    Window { offset: u64 },
    /// Chunks of the guest's memory, in order.
    Guest(Vec<u64>),
}

#[derive(Default)]
struct Inner {
    /// By their resources.
    blobs: HashMap<u32, (Blob, Backing)>,
    /// Which blob a chunk is of, and its place there.
    chunks: HashMap<u64, (u32, u64)>,
    next_chunk: u64,
    stride: u64,
    /// Parts of the window that are taken.
    window: BTreeMap<u64, u64>,
    next_resource: u32,
}

#[derive(Default)]
struct Answers {
    got: HashMap<u64, Vec<u8>>,
    reading: bool,
    lost: bool,
}

/// A context of the device at the other end.
pub struct Connection {
    socket: UnixStream,
    sending: Mutex<u64>,
    ram: File,
    ram_id: FileId,
    window: File,
    window_id: FileId,
    window_bytes: u64,
    machine: String,
    shared: Option<Arc<SharedMachine>>,
    inner: Mutex<Inner>,
    answers: Mutex<Answers>,
    answered: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connection {
    /// Connects and makes a context.
    ///
    /// # Errors
    /// The system's, and Unsupported for something else at the other end.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::over(UnixStream::connect(path)?)
    }

    /// As [`open`](Self::open), over a socket that is connected.
    ///
    /// # Errors
    /// As there.
    pub fn over(socket: UnixStream) -> io::Result<Self> {
        let ram = memory_file::sealed(c"vkfd-guest-ram", RAM_BYTES)?;
        send(&socket, &hello(RAM_BYTES), ram.as_fd())?;
        let mut back = [0; HELLO_BYTES];
        let window = receive(&socket, &mut back)?;
        let shared = match u64_at(&back, 0) {
            Ok(SHARING_HELLO) => Some(Arc::new(SharedMachine::receive(&socket, ram.try_clone()?)?)),
            _ => None,
        };
        // A guest without other processes gets scattered pages, for tests.
        let stride = if shared.is_some() { 1 } else { STRIDE };
        let (ram_id, window_id) = (identity(ram.as_raw_fd())?, identity(window.as_raw_fd())?);
        super::fork::add(ram_id);
        let mut connection = Self {
            socket,
            sending: Mutex::new(0),
            ram,
            ram_id,
            window,
            window_id,
            window_bytes: hello_bytes(&back)?,
            machine: String::new(),
            shared,
            inner: Mutex::new(Inner { next_resource: 1, stride, ..Inner::default() }),
            answers: Mutex::default(),
            answered: Condvar::new(),
        };
        let answer = connection.command(0, &Command::Capset { id: capset::KFD })?;
        let machine = capset::machine(answer.get(HEADER_BYTES..).unwrap_or_default());
        connection.machine = machine.map_err(|_| io::ErrorKind::Unsupported)?.into();
        connection.command(CONTEXT, &Command::CreateContext { capset: capset::KFD })?;
        Ok(connection)
    }

    fn command(&self, context: u32, command: &Command<'_>) -> io::Result<Vec<u8>> {
        self.ask(&command.encode(&Header { context, ..Header::default() }), None)
    }

    /// Sends a command and waits for the answer.
    fn ask(&self, bytes: &[u8], patience: Option<Duration>) -> io::Result<Vec<u8>> {
        let tag = {
            let mut last = lock(&self.sending);
            *last += 1;
            send_all(&self.socket, &envelope(*last, bytes))?;
            *last
        };
        let answer = self.answer(tag, patience)?;
        let kind = Header::decode(&answer).map_err(|_| io::ErrorKind::InvalidData)?.kind;
        match OK.contains(&kind) {
            true => Ok(answer),
            false => Err(io::Error::other(format!("the device answers {kind:#x}"))),
        }
    }

    fn answer(&self, tag: u64, patience: Option<Duration>) -> io::Result<Vec<u8>> {
        let limit = patience.map(|patience| Instant::now() + patience);
        let mut answers = lock(&self.answers);
        loop {
            if let Some(answer) = answers.got.remove(&tag) {
                return Ok(answer);
            }
            if answers.lost {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if limit.is_some_and(|limit| Instant::now() > limit) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if answers.reading {
                let slice = Duration::from_millis(100);
                answers = self.answered.wait_timeout(answers, slice).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            answers.reading = true;
            drop(answers);
            let read = self.read_some();
            answers = lock(&self.answers);
            answers.reading = false;
            match read {
                Ok(Some((tag, bytes))) => {
                    answers.got.insert(tag, bytes);
                }
                Ok(None) => {}
                Err(_) => answers.lost = true,
            }
            self.answered.notify_all();
        }
    }

    /// A message, if one comes within a tenth of a second.
    fn read_some(&self) -> io::Result<Option<(u64, Vec<u8>)>> {
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which is alive.
        match unsafe { libc::poll(&raw mut poll, 1, 100) } {
            1.. => read_message(&self.socket, 1 << 16).map(Some),
            _ => Ok(None),
        }
    }

    fn create(&self, blob: Blob, memory: u32, id: u64, runs: Vec<Run>, backing: Backing) -> io::Result<Blob> {
        let Blob { resource, bytes: size, .. } = blob;
        let offset = match &backing {
            Backing::Window { offset } => Some(*offset),
            Backing::Guest(_) => None,
        };
        lock(&self.inner).blobs.insert(resource, (blob, backing));
        let made =
            self.command(CONTEXT, &Command::CreateBlob { resource, memory, flags: FLAG_MAPPABLE, id, size, runs });
        let mapped = made.and_then(|_| match offset {
            Some(offset) => self.command(CONTEXT, &Command::Map { resource, offset }).map(|_| ()),
            None => Ok(()),
        });
        if let Err(error) = mapped {
            self.close(&blob);
            return Err(error);
        }
        Ok(blob)
    }
}

impl Inner {
    fn blob(&mut self, bytes: u64) -> Blob {
        let resource = self.next_resource;
        self.next_resource += 1;
        Blob { resource, bytes, handle: resource }
    }

    fn take_chunk(&mut self, resource: u32, place: u64) -> Option<u64> {
        for _ in 0..CHUNKS {
            let chunk = self.next_chunk;
            self.next_chunk = (self.next_chunk + self.stride) % CHUNKS;
            if let std::collections::hash_map::Entry::Vacant(free) = self.chunks.entry(chunk) {
                free.insert((resource, place));
                return Some(chunk);
            }
        }
        None
    }

    /// A free part of the window: the first that fits.
    fn take_window(&mut self, bytes: u64, all: u64) -> Option<u64> {
        let mut at = 0;
        for (start, length) in &self.window {
            if start - at >= bytes {
                break;
            }
            at = start + length;
        }
        if at.checked_add(bytes)? > all {
            return None;
        }
        self.window.insert(at, bytes);
        Some(at)
    }
}

impl Transport for Connection {
    fn machine(&self) -> &str {
        &self.machine
    }

    fn host_blob(&self, kind: BlobKind, bytes: u64) -> io::Result<Blob> {
        let mut inner = lock(&self.inner);
        let offset = inner.take_window(bytes, self.window_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let blob = inner.blob(bytes);
        drop(inner);
        self.create(blob, MEM_HOST3D, kind.id(), Vec::new(), Backing::Window { offset })
    }

    fn guest_blob(&self, bytes: u64) -> io::Result<Blob> {
        let mut inner = lock(&self.inner);
        let blob = inner.blob(bytes);
        let (mut chunks, mut runs) = (Vec::new(), Vec::new());
        for at in (0..bytes).step_by(size(CHUNK)) {
            let Some(chunk) = inner.take_chunk(blob.resource, at / CHUNK) else {
                inner.chunks.retain(|chunk, _| !chunks.contains(chunk));
                return Err(io::ErrorKind::OutOfMemory.into());
            };
            chunks.push(chunk);
            runs.push(Run { address: RAM_AT + chunk * CHUNK, bytes: (bytes - at).min(CHUNK) });
        }
        drop(inner);
        self.create(blob, MEM_HOST3D_GUEST, 0, runs, Backing::Guest(chunks))
    }

    fn close(&self, blob: &Blob) {
        let resource = blob.resource;
        let in_window = matches!(lock(&self.inner).blobs.get(&resource), Some((_, Backing::Window { .. })));
        if in_window {
            let _ = self.command(CONTEXT, &Command::Unmap { resource });
        }
        let _ = self.command(CONTEXT, &Command::Unref { resource });
        let mut inner = lock(&self.inner);
        match inner.blobs.remove(&resource) {
            Some((_, Backing::Window { offset })) => drop(inner.window.remove(&offset)),
            // A mapping that the program still has shows zeroes from now on, until the pages are
            // another blob's: so blobs are closed when nothing maps them any more.
            Some((_, Backing::Guest(chunks))) => {
                if let Some(shared) = &self.shared {
                    shared.forget(resource);
                }
                for chunk in chunks {
                    inner.chunks.remove(&chunk);
                    let (at, bytes) = (i64::try_from(chunk * CHUNK), i64::try_from(CHUNK));
                    if let (Ok(at), Ok(bytes)) = (at, bytes) {
                        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                        // SAFETY: no pointers.
                        unsafe { libc::syscall(libc::SYS_fallocate, self.ram.as_raw_fd(), mode, at, bytes) };
                    }
                }
            }
            None => {}
        }
    }

    unsafe fn map(&self, blob: &Blob, at: *mut c_void, protection: i32) -> io::Result<*mut c_void> {
        let inner = lock(&self.inner);
        let chunks = match inner.blobs.get(&blob.resource) {
            Some((_, Backing::Window { offset })) => {
                // SAFETY: forwarded to the caller.
                return unsafe { map_file(self.window.as_raw_fd(), *offset, blob.bytes, at, protection) };
            }
            Some((_, Backing::Guest(chunks))) => chunks,
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        let mut base = at;
        if base.is_null() {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a new reservation touches nothing that exists.
            base = unsafe { libc::mmap(base, size(blob.bytes), libc::PROT_NONE, flags, -1, 0) };
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
        }
        let mut place = 0;
        // Neighbours in one mapping.
        for run in chunks.chunk_by(|a, b| a + 1 == *b) {
            let bytes = (blob.bytes - place).min(run.len() as u64 * CHUNK);
            let there = base.wrapping_byte_add(size(place));
            let offset = run[0] * CHUNK;
            // SAFETY: within the blob's size from `at`, which the caller may replace, or within the
            // reservation.
            unsafe { map_file(self.ram.as_raw_fd(), offset, bytes, there, protection)? };
            if let Some(shared) = self.shared.as_ref().filter(|_| !at.is_null()) {
                shared.remember(there.expose_provenance() as u64, offset, bytes, blob.resource);
            }
            place += bytes;
        }
        Ok(base)
    }

    fn find(&self, file: FileId, offset: u64) -> Option<Found> {
        let inner = lock(&self.inner);
        if file == self.window_id {
            let (start, bytes) = inner.window.range(..=offset).next_back()?;
            let within = offset - start;
            let is_there = |backing: &Backing| matches!(backing, Backing::Window { offset } if offset == start);
            let (blob, _) = inner.blobs.values().find(|(_, backing)| is_there(backing))?;
            let bytes = bytes.checked_sub(within).filter(|bytes| *bytes > 0)?;
            return Some(Found { resource: blob.resource, offset: within, bytes, guest: false });
        }
        if file != self.ram_id {
            return None;
        }
        let (resource, place) = *inner.chunks.get(&(offset / CHUNK))?;
        let (blob, _) = inner.blobs.get(&resource)?;
        let within = place * CHUNK + offset % CHUNK;
        let left = blob.bytes.checked_sub(within).filter(|left| *left > 0)?;
        let bytes = (CHUNK - offset % CHUNK).min(left);
        Some(Found { resource, offset: within, bytes, guest: true })
    }

    fn is_private(&self, file: FileId) -> bool {
        super::fork::is_known(file)
    }

    fn shared_machine(&self) -> Option<&Arc<SharedMachine>> {
        self.shared.as_ref()
    }

    fn submit(&self, payload: &[u8], ring: u32, patience: Option<Duration>) -> io::Result<()> {
        let ring = u8::try_from(ring).map_err(|_| io::ErrorKind::InvalidInput)?;
        let header = Header { flags: FLAG_FENCE | FLAG_RING, context: CONTEXT, ring, ..Header::default() };
        self.ask(&Command::Submit { payload }.encode(&header), patience).map(|_| ())
    }
}
