// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The server: what outlives device processes.
//!
//! It makes the memory of the BARs and the eventfds, hands them to QEMU and to the device process,
//! and numbers device processes (epochs). It ends a device process for certain: SIGKILL, then wait
//! for the process itself, then DEAD. Only after that the next one gets the memory.
//!
//! One thread, one poll loop, nothing shared. A device process ends when it dies, when a guest's
//! driver asks for it, or when a QEMU that had one of the GPUs has gone. It is started while there
//! is a QEMU.

use crate::interrupts::{new_eventfd, signal, take_signals};
use crate::ivshmem::{self, Offer};
use crate::registers::Registers;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags, Signal};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vkfd_gpu::raw::memory_file;
use vkfd_host::Listening;
use vkfd_wire::layout;

/// Longest that ending a process may take.
const END: Duration = Duration::from_secs(10);
/// From the end of a device process to the next one; doubles while they end soon.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A device process that lived this long had a good start.
const GOOD_LIFE: Duration = Duration::from_secs(1);

/// What the server does not do by itself.
pub struct Options {
    /// Socket of the first GPU; see [`guest_socket`].
    pub socket: PathBuf,
    pub gpus: u32,
    /// Bytes of each BAR, a power of two.
    pub bar_bytes: u64,
    /// Makes the command that starts a device process; `None` if somebody else does.
    pub start: Option<Box<dyn Fn() -> Command>>,
    /// Whether a device process that has ended is followed by another one.
    pub restart: bool,
    /// Ends when all QEMUs have gone.
    pub once: bool,
}

/// Where the GPU number `index` of `gpus` is to be had: the path itself if there is one GPU,
/// otherwise with `.0`, `.1` and so on.
pub fn guest_socket(socket: &Path, index: u32, gpus: u32) -> PathBuf {
    if gpus == 1 {
        return socket.into();
    }
    extended(socket, &index.to_string())
}

/// Where device processes connect.
pub fn device_socket(socket: &Path) -> PathBuf {
    extended(socket, "device")
}

fn extended(socket: &Path, name: &str) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".");
    path.push(name);
    path.into()
}

/// What a GPU has: a BAR and its lines.
struct Slot {
    listener: Arc<Listening>,
    guest: Option<UnixStream>,
    bar: OwnedFd,
    registers: Registers,
    /// Guest to device.
    kick: OwnedFd,
    /// Guest to server.
    reset: OwnedFd,
    /// Device to guest.
    interrupt: OwnedFd,
}

impl Slot {
    fn new(listener: Arc<Listening>, bar_bytes: u64) -> io::Result<Self> {
        let bar = OwnedFd::from(memory_file::sealed(c"vkfd-bar", bar_bytes)?);
        let registers = Registers::map(&bar)?;
        registers.write(layout::VERSION, layout::VERSION_VALUE);
        registers.write(layout::MAGIC, layout::MAGIC_VALUE);
        let [kick, reset, interrupt] = [new_eventfd()?, new_eventfd()?, new_eventfd()?];
        Ok(Self { listener, guest: None, bar, registers, kick, reset, interrupt })
    }

    fn offer_guest(&self, stream: &UnixStream) -> io::Result<()> {
        let peers = [(layout::DEVICE_PEER, self.kick.as_fd()), (layout::SERVER_PEER, self.reset.as_fd())];
        let interrupt = self.interrupt.as_fd();
        ivshmem::offer(stream, &Offer { own: layout::GUEST_PEER, memory: self.bar.as_fd(), interrupt, peers: &peers })
    }

    fn offer_device(&self, stream: &UnixStream) -> io::Result<()> {
        let peers = [(layout::GUEST_PEER, self.interrupt.as_fd())];
        let interrupt = self.kick.as_fd();
        ivshmem::offer(stream, &Offer { own: layout::DEVICE_PEER, memory: self.bar.as_fd(), interrupt, peers: &peers })
    }
}

/// A device process.
struct Process {
    pid: Pid,
    /// Readable when it has ended.
    pidfd: OwnedFd,
    /// If it is ours.
    child: Option<Child>,
    /// Set when it has connected. Closed by the server only after its end, so it sees the server's.
    stream: Option<UnixStream>,
    since: Instant,
}

/// What the poll loop waits for.
#[derive(Clone, Copy)]
enum Source {
    GuestConnects(usize),
    GuestHangsUp(usize),
    GuestResets(usize),
    DeviceConnects,
    DeviceEnds,
    DeviceHangsUp,
}

/// The server.
pub struct Server {
    options: Options,
    slots: Vec<Slot>,
    listener: Listening,
    process: Option<Process>,
    epoch: u64,
    pause: Duration,
    /// Not before this a device process is started. `None`: none is to be.
    next_start: Option<Instant>,
}

impl Server {
    /// Makes the BARs and binds the sockets.
    ///
    /// # Errors
    /// What the calls say; the message names the socket.
    pub fn new(options: Options) -> io::Result<Self> {
        let mut slots = Vec::new();
        for index in 0..options.gpus {
            let listener = Listening::at(&guest_socket(&options.socket, index, options.gpus))?;
            slots.push(Slot::new(Arc::new(listener), options.bar_bytes)?);
        }
        let listener = Listening::at(&device_socket(&options.socket))?;
        let next_start = options.start.is_some().then(Instant::now);
        Ok(Self { options, slots, listener, process: None, epoch: 0, pause: SHORTEST_PAUSE, next_start })
    }

    /// Serves until all QEMUs have gone, with [`Options::once`]; else for ever.
    ///
    /// # Errors
    /// What poll says.
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            self.start_if_due();
            let Some(source) = self.wait()? else { continue };
            match source {
                Source::GuestConnects(index) => self.guest_connects(index),
                Source::GuestHangsUp(index) => {
                    self.guest_hangs_up(index)?;
                    if self.options.once && !self.has_guest() {
                        return Ok(());
                    }
                }
                Source::GuestResets(index) => self.guest_resets(index),
                Source::DeviceConnects => self.device_connects(),
                Source::DeviceEnds => self.end_process("it has ended"),
                Source::DeviceHangsUp => self.end_process("it has hung up"),
            }
        }
    }

    fn has_guest(&self) -> bool {
        self.slots.iter().any(|slot| slot.guest.is_some())
    }

    /// Waits for the next thing to do. `None`: look again.
    fn wait(&self) -> io::Result<Option<Source>> {
        let mut sources: Vec<(Source, BorrowedFd<'_>, PollFlags)> = Vec::new();
        for (index, slot) in self.slots.iter().enumerate() {
            if let Some(stream) = &slot.guest {
                sources.push((Source::GuestHangsUp(index), stream.as_fd(), PollFlags::RDHUP));
            }
            sources.push((Source::GuestConnects(index), slot.listener.as_fd(), PollFlags::IN));
            sources.push((Source::GuestResets(index), slot.reset.as_fd(), PollFlags::IN));
        }
        sources.push((Source::DeviceConnects, self.listener.as_fd(), PollFlags::IN));
        if let Some(process) = &self.process {
            sources.push((Source::DeviceEnds, process.pidfd.as_fd(), PollFlags::IN));
            if let Some(stream) = &process.stream {
                sources.push((Source::DeviceHangsUp, stream.as_fd(), PollFlags::RDHUP));
            }
        }
        let due = self.next_start.filter(|_| self.process.is_none() && self.has_guest());
        let left = due.map(|due| due.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds: Vec<PollFd<'_>> =
            sources.iter().map(|(_, fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        Ok(sources.iter().zip(&fds).find(|(_, fd)| !fd.revents().is_empty()).map(|((source, ..), _)| *source))
    }

    fn guest_connects(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let accepted = slot.listener.accept();
        if slot.guest.is_some() {
            // Dropping the connection refuses it.
            tracing::warn!(gpu = index, "a second QEMU wants this GPU: refused, a GPU is one guest's");
            return;
        }
        match accepted.and_then(|(stream, _)| slot.offer_guest(&stream).map(|()| stream)) {
            Ok(stream) => {
                tracing::info!(gpu = index, "QEMU connected");
                slot.guest = Some(stream);
            }
            Err(error) => tracing::warn!(gpu = index, %error, "QEMU did not connect"),
        }
    }

    /// A guest has gone, with everything that it knew of the GPU: the next one gets another BAR.
    fn guest_hangs_up(&mut self, index: usize) -> io::Result<()> {
        tracing::info!(gpu = index, "QEMU has gone");
        self.end_process("its guest has gone");
        self.soon();
        let slot = &mut self.slots[index];
        let mut fresh = Slot::new(slot.listener.clone(), self.options.bar_bytes)?;
        // The device process that comes must not take an old number.
        fresh.registers.write(layout::EPOCH, self.epoch);
        fresh.registers.write(layout::DEAD, self.epoch);
        std::mem::swap(slot, &mut fresh);
        Ok(())
    }

    fn guest_resets(&mut self, index: usize) {
        let slot = &self.slots[index];
        if let Err(error) = take_signals(&slot.reset) {
            tracing::warn!(gpu = index, %error, "the reset line cannot be read");
        }
        let wanted = slot.registers.read(layout::RESET);
        // One that has not connected yet is of no epoch: with several GPUs the next process may be
        // starting already.
        let connected = self.process.as_ref().is_some_and(|process| process.stream.is_some());
        if wanted == self.epoch && connected {
            self.end_process("the driver wants a reset");
            self.soon();
        }
    }

    /// The next device process need not wait for its predecessor's faults.
    fn soon(&mut self) {
        self.pause = SHORTEST_PAUSE;
        self.next_start = self.options.start.is_some().then(Instant::now);
    }

    /// Ends the device process, if there is one, and tells the guests.
    fn end_process(&mut self, why: &str) {
        let Some(mut process) = self.process.take() else { return };
        let connected = process.stream.is_some();
        end(&mut process);
        let status = process.child.as_mut().and_then(|child| child.wait().ok()).map(|status| status.to_string());
        let status = status.unwrap_or_default();
        tracing::info!(pid = process.pid.as_raw_nonzero(), epoch = self.epoch, status, "device process: {why}");
        if connected {
            for slot in &self.slots {
                slot.registers.write(layout::DEAD, self.epoch);
                signal(&slot.interrupt);
            }
        }
        self.pause =
            if process.since.elapsed() > GOOD_LIFE { SHORTEST_PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
        let again = self.options.start.is_some() && self.options.restart;
        self.next_start = again.then(|| Instant::now() + self.pause);
    }

    fn start_if_due(&mut self) {
        let due = self.next_start.is_some_and(|at| at <= Instant::now());
        if !due || self.process.is_some() || !self.has_guest() {
            return;
        }
        let Some(start) = &self.options.start else { return };
        match start().spawn().and_then(Process::of_child) {
            Ok(process) => {
                tracing::info!(pid = process.pid.as_raw_nonzero(), "device process started");
                self.process = Some(process);
            }
            Err(error) => {
                tracing::error!(%error, "cannot start a device process");
                self.next_start = Some(Instant::now() + LONGEST_PAUSE);
            }
        }
    }

    fn device_connects(&mut self) {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => return tracing::warn!(%error, "a device process did not connect"),
        };
        let pid = match socket_peercred(&stream) {
            Ok(peer) => peer.pid,
            Err(error) => return tracing::warn!(%error, "who connects?"),
        };
        match &self.process {
            Some(process) if process.stream.is_none() && process.pid == pid => {}
            None if self.options.start.is_none() => match Process::of_peer(pid, &stream) {
                Ok(process) => self.process = Some(process),
                Err(error) => return tracing::warn!(%error, "a device process ended while it connected"),
            },
            _ => {
                let pid = pid.as_raw_nonzero();
                // A process that was ended while it connected leaves its connection in the queue.
                // With several GPUs the first guest that goes ends the process, and the next ones
                // start and end further processes.
                if has_hung_up(&stream) {
                    return tracing::debug!(pid, "this connection's process has ended");
                }
                return tracing::warn!(pid, "refused: only the device process that this server started may connect");
            }
        }
        self.epoch += 1;
        for slot in &self.slots {
            slot.registers.write(layout::EPOCH, self.epoch);
        }
        let offered = self.slots.iter().try_for_each(|slot| slot.offer_device(&stream));
        if let Some(process) = &mut self.process {
            process.stream = Some(stream);
        }
        tracing::info!(pid = pid.as_raw_nonzero(), epoch = self.epoch, "device process connected");
        if offered.is_err() {
            self.end_process("it does not listen");
        }
    }
}

impl Process {
    fn of_child(mut child: Child) -> io::Result<Self> {
        // Its number is its own until this process has waited for it.
        let mut this = Self::of_pid(Pid::from_child(&child)).inspect_err(|_| {
            // What cannot be watched must not run.
            let _ = child.kill().and_then(|()| child.wait());
        })?;
        this.child = Some(child);
        Ok(this)
    }

    /// The process at the other end of `stream`, which somebody else has started.
    fn of_peer(pid: Pid, stream: &UnixStream) -> io::Result<Self> {
        let this = Self::of_pid(pid)?;
        // While its end is open the number is still its own; later it may be another's.
        if has_hung_up(stream) {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(this)
    }

    fn of_pid(pid: Pid) -> io::Result<Self> {
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pid, pidfd, child: None, stream: None, since: Instant::now() })
    }
}

/// Whether the other end of `stream` is closed, as it is when its process has ended.
fn has_hung_up(stream: &UnixStream) -> bool {
    let polled = poll(&mut [PollFd::new(stream, PollFlags::RDHUP)], Some(&Timespec::default()));
    polled.is_ok_and(|ready| ready > 0)
}

/// Kills a process and waits until nothing of it runs any more.
fn end(process: &mut Process) {
    // Fails if it has ended already.
    let _ = pidfd_send_signal(&process.pidfd, Signal::KILL);
    let until = Instant::now() + END;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&process.pidfd, PollFlags::IN)], timeout.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(1..) => return,
            _ => {
                tracing::error!(pid = process.pid.as_raw_nonzero(), "device process does not end");
                // DEAD must not be a lie: better no device at all.
                std::process::abort();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_process("the server ends");
    }
}
