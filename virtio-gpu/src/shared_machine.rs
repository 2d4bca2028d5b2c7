// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One machine for several programs of this computer: each connection is a KFD process of the same
//! driver.
//!
//! The messages are the loopback's ([`crate::socket_server`]), whose other end is
//! [`vkfd_remote::guest::socket`]. What is different:
//!
//! - All memory that the driver gives out is in the machine's one file
//!   ([`vkfd_host::device_file`]). A process maps that file where the driver says; doorbells, too,
//!   so nothing is relayed.
//! - Files that stand for memory (dma-buf) go between processes as files do, and are recognized
//!   here by the file's identity. Memory is also known by a name
//!   ([`vkfd_remote::protocol::forward::sharing::IPC_EXPORT`]).
//! - A process tells what its program does to registered memory before it is done
//!   ([`vkfd_remote::protocol::forward::sharing::Note`]). A thread for each connection does that.
//!
//! A process ends here when its connection does, or when it has ended itself (its pidfd), even if
//! a child has inherited the connection.
//!
//! A connecting program must be of the same user: processes can write all of the machine's memory
//! through its file. The file with a process's memory must be sealed against being cut short,
//! because GPUs and the driver use it from here.
//!
//! Limits: programs in another PID namespace are only noticed by their connections. A GPU that
//! waits in a fault of a process's memory is not told when that memory is there again.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vkfd_client::Machine;
use vkfd_host::HostError;
use vkfd_raw::memory_file;
use vkfd_remote::guest::file_message::{receive, send};
use vkfd_remote::guest::socket::{hello_bytes, sharing_hello, HELLO_BYTES};
use vkfd_remote::protocol::forward::sharing::{Note, NOTED_BYTES, NOTE_BYTES};

use crate::device::ram::RamTable;
use crate::device::{Device, Handles, Options, SharingProcess};
use crate::socket_server::{converse, has_memory};

/// Bytes of a connection's window: the response memory, and some.
const WINDOW: u64 = 16 << 20;
/// Most connections at a time; KFD has fewer address spaces.
const MAX_CONNECTIONS: usize = 256;
/// How long a program that has connected may take to say what it is.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// How long the end waits for connections.
const ENDING: Duration = Duration::from_secs(5);

/// A machine that programs join.
pub struct Host {
    machine: Arc<Machine>,
    handles: Arc<Handles>,
    options: Options,
    connections: Mutex<Connections>,
    one_ended: Condvar,
}

#[derive(Default)]
struct Connections {
    last: u64,
    open: HashMap<u64, UnixStream>,
    ending: bool,
}

impl Host {
    /// Makes the machine.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn new(options: Options) -> Result<Arc<Self>, HostError> {
        let options = Options { window: WINDOW, ..options };
        let mut machine = options.machine.options();
        machine.device_file = true;
        machine.driver.gtt = options.gtt;
        let (connections, handles) = (Mutex::default(), Arc::default());
        let machine = Arc::new(Machine::new(&machine)?);
        Ok(Arc::new(Self { machine, handles, options, connections, one_ended: Condvar::new() }))
    }

    /// The machine, to inspect it.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Names under which memory is offered.
    pub fn names(&self) -> usize {
        self.handles.count()
    }

    /// Connections that there are.
    pub fn connections(&self) -> usize {
        self.lock().open.len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes programs in until `stop` can be read; then ends all connections.
    ///
    /// # Errors
    /// The listener's.
    pub fn serve(self: &Arc<Self>, listener: &UnixListener, stop: BorrowedFd<'_>) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        loop {
            let ready = wait_readable(&[listener.as_raw_fd(), stop.as_raw_fd()])?;
            if ready[1] {
                self.end();
                return Ok(());
            }
            match listener.accept() {
                Ok((stream, _)) => self.take_in(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Such as no more descriptors: programs that end give some back.
                Err(error) => {
                    tracing::error!(%error, "a program cannot be taken in");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Serves a program on a thread of its own.
    pub fn take_in(self: &Arc<Self>, stream: UnixStream) {
        let peer = match credentials(&stream) {
            // SAFETY: asks for a number.
            Ok(peer) if peer.uid == unsafe { libc::geteuid() } => peer,
            Ok(peer) => {
                tracing::warn!(uid = peer.uid, "another user's program is refused");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "a program that cannot be known is refused");
                return;
            }
        };
        let (Ok(again), Ok(())) = (stream.try_clone(), stream.set_nonblocking(false)) else { return };
        let number = {
            let mut connections = self.lock();
            if connections.ending || connections.open.len() >= MAX_CONNECTIONS {
                tracing::warn!("a program is refused: there are {}", connections.open.len());
                return;
            }
            connections.last += 1;
            let number = connections.last;
            connections.open.insert(number, again);
            number
        };
        let host = self.clone();
        let started = std::thread::Builder::new().name(format!("program-{}", peer.pid)).spawn(move || {
            match host.connection(&stream, peer.pid) {
                Ok(()) => tracing::info!(pid = peer.pid, "a program has gone"),
                Err(error) => tracing::warn!(pid = peer.pid, %error, "a program's connection has ended"),
            }
            drop(stream);
            host.forget(number);
        });
        if let Err(error) = started {
            tracing::error!(%error, "a program has no thread");
            self.forget(number);
        }
    }

    fn forget(&self, number: u64) {
        let gone = self.lock().open.remove(&number);
        drop(gone);
        self.one_ended.notify_all();
    }

    /// Ends all connections and waits for them.
    pub fn end(&self) {
        let limit = Instant::now() + ENDING;
        let mut connections = self.lock();
        connections.ending = true;
        for stream in connections.open.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        while !connections.open.is_empty() {
            let left = limit.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::warn!("{} programs' ends are not waited for", connections.open.len());
                return;
            }
            connections = self.one_ended.wait_timeout(connections, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn connection(&self, stream: &UnixStream, pid: i32) -> io::Result<()> {
        stream.set_read_timeout(Some(INTRODUCTION))?;
        let mut first = [0; HELLO_BYTES];
        let memory = receive(stream, &mut first)?;
        stream.set_read_timeout(None)?;
        let bytes = hello_bytes(&first)?;
        if !memory_file::stays_long(&memory) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its memory may be cut short"));
        }
        let (files, their_files) = UnixStream::pair()?;
        let (notes, their_notes) = UnixStream::pair()?;
        files.set_nonblocking(true)?;
        let sharing = SharingProcess { pid: u32::try_from(pid).unwrap_or(0), files, handles: self.handles.clone() };
        let device = Device::on(self.machine.clone(), Some(sharing), self.options).map_err(io::Error::other)?;
        has_memory(&device, &memory, bytes)?;
        let shared = self.machine.device_file().ok_or(io::ErrorKind::NotFound)?.file().as_fd();
        let window = device.window();
        send(stream, &sharing_hello(window.bytes()), window.file().as_fd())?;
        for file in [shared, their_files.as_fd(), their_notes.as_fd()] {
            send(stream, &sharing_hello(0), file)?;
        }
        drop((their_files, their_notes));
        tracing::info!(pid, "a program has joined");
        let ram = device.ram().clone();
        std::thread::scope(|scope| {
            let taking = Taking { ram: &ram, machine: &self.machine, stream, pid };
            let notes = &notes;
            let note_taker = std::thread::Builder::new()
                .name("notes".into())
                .spawn_scoped(scope, move || taking.run(notes))
                .inspect_err(|_| drop(stream.shutdown(Shutdown::Both)))?;
            let ended = converse(stream, device);
            let _ = notes.shutdown(Shutdown::Both);
            let _ = note_taker.join();
            ended
        })
    }
}

/// Takes notes of a process.
struct Taking<'a> {
    ram: &'a RamTable,
    machine: &'a Machine,
    stream: &'a UnixStream,
    pid: i32,
}

impl Taking<'_> {
    /// Until the connection ends, which it does when the process has ended.
    fn run(&self, mut notes: &UnixStream) {
        let process = pidfd(self.pid).ok();
        let none = -1;
        loop {
            let fds = [notes.as_raw_fd(), process.as_ref().map_or(none, AsRawFd::as_raw_fd)];
            let Ok(ready) = wait_readable(&fds) else { break };
            if ready[1] {
                break;
            }
            let mut bytes = [0; NOTE_BYTES];
            if notes.read_exact(&mut bytes).is_err() {
                break;
            }
            let done = match Note::decode(&bytes) {
                Ok(note) => {
                    let done = self.ram.read().note(&note);
                    tracing::debug!(?note, ?done, pid = self.pid, "note");
                    done
                }
                Err(_) => Err(libc::EINVAL),
            };
            // The driver has been told when this returns.
            self.machine.memory().settle();
            let errno = u64::try_from(done.err().unwrap_or(0)).unwrap_or(0);
            let answer: [u8; NOTED_BYTES] = errno.to_le_bytes();
            if notes.write_all(&answer).is_err() {
                break;
            }
        }
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Waits until one of the descriptors can be read or has ended. A negative one is left out.
fn wait_readable(fds: &[RawFd; 2]) -> io::Result<[bool; 2]> {
    let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    loop {
        // SAFETY: two entries, which are alive.
        let got = unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) };
        match got {
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(io::Error::last_os_error()),
            _ => return Ok(polls.map(|poll| poll.revents != 0)),
        }
    }
}

/// The process at the other end.
fn credentials(stream: &UnixStream) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(io::Error::other)?;
    // SAFETY: fills in the local structure, of the length that it says.
    let done = unsafe {
        let fd = stream.as_raw_fd();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut length)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(peer)
}

/// A descriptor that can be read once the process has ended.
fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    if pid <= 0 {
        return Err(io::ErrorKind::NotFound.into());
    }
    // SAFETY: no pointers; the descriptor is checked before it is owned.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        match RawFd::try_from(fd) {
            Ok(fd) if fd >= 0 => Ok(OwnedFd::from(File::from_raw_fd(fd))),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
