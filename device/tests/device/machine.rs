// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Machines to test: the device in this process, or `vkfd-gpu` in two of its own.

use crate::guest::{limits, until, Guest, Report, Sink, TestBar};
use crate::ram::{Ram, BELOW, VRAM_IN_RAM};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use vkfd_device::device::{Device, Model};
use vkfd_device::ivshmem::{self, Setup};
use vkfd_device::ram::{BelowFourGib, GuestRam};
use vkfd_device::registers::Registers;
use vkfd_driver::os;
use vkfd_driver::seams::gpu::Interrupts;
use vkfd_wire::{layout, Limits, Remote};

pub const VRAM: u64 = 62 << 20;

pub fn model() -> Model {
    Model { vram_bytes: VRAM, ..Model::default() }
}

/// The server's part, on a thread of this process, for devices of this process.
pub struct Local {
    memory: OwnedFd,
    lines: BTreeMap<u16, OwnedFd>,
    pub registers: Registers,
    pub device: Mutex<Option<Device>>,
    model: Model,
    ram: Arc<Ram>,
}

fn copy_of(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().unwrap()
}

impl Local {
    pub fn new(model: Model, ram: &Arc<Ram>) -> Arc<Self> {
        let memory = memfd_create(c"bar", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, model.bar_bytes()).unwrap();
        let registers = Registers::map(&memory).unwrap();
        registers.write(layout::VERSION, layout::VERSION_VALUE);
        registers.write(layout::MAGIC, layout::MAGIC_VALUE);
        let line = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let lines = [layout::GUEST_PEER, layout::DEVICE_PEER, layout::SERVER_PEER].map(|peer| (peer, line())).into();
        let device = Mutex::default();
        Arc::new(Self { memory, lines, registers, device, model, ram: ram.clone() })
    }

    pub fn setup(&self, own: u16) -> Setup {
        let peers =
            self.lines.iter().filter(|(peer, _)| **peer != own).map(|(peer, fd)| (*peer, copy_of(fd))).collect();
        Setup { own, memory: copy_of(&self.memory), interrupt: copy_of(&self.lines[&own]), peers }
    }

    /// A device of the next epoch.
    pub fn start(&self) {
        let ram = Arc::new(GuestRam::new(self.ram.path().into(), BelowFourGib::Bytes(BELOW)));
        let mut device = self.device.lock().unwrap();
        assert!(device.is_none());
        self.registers.write(layout::EPOCH, self.registers.read(layout::EPOCH) + 1);
        *device = Some(Device::start(vec![self.setup(layout::DEVICE_PEER)], &self.model, &ram).unwrap());
    }

    pub fn end(&self) {
        drop(self.device.lock().unwrap().take());
    }

    /// Does what the guest wants: ends the device and starts another one.
    fn serve(&self, stop: &AtomicBool) {
        let reset = &self.lines[&layout::SERVER_PEER];
        let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        while !stop.load(SeqCst) {
            if poll(&mut [PollFd::new(reset, PollFlags::IN)], Some(&pause)).unwrap() == 0 {
                continue;
            }
            rustix::io::read(reset, &mut [0; 8]).unwrap();
            if self.registers.read(layout::RESET) == self.registers.read(layout::EPOCH) {
                self.end();
                self.start();
            }
        }
    }
}

/// QEMU's end of a connection: the machine is switched off when it is dropped. Closing would not be
/// enough, since other tests' processes have a copy of the descriptor from their fork to their
/// exec.
pub struct Connection(UnixStream);

impl Drop for Connection {
    fn drop(&mut self) {
        // Fails if the server has gone.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// `vkfd-gpu`, and the directory with its sockets.
pub struct Program {
    pub directory: TempDir,
    pub child: Child,
}

impl Program {
    pub fn start(ram: &Path, arguments: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let child = Self::command(directory.path(), ram, arguments).spawn().unwrap();
        Self { directory, child }
    }

    pub fn command(directory: &Path, ram: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vkfd-gpu"));
        command.arg("--socket").arg(directory.join("gpu")).arg("--ram").arg(ram);
        command.args(["--vram", "62M", "--below-4g", "32M"]).args(arguments).stdin(Stdio::null());
        if std::env::var_os("RUST_LOG").is_none() {
            command.env("RUST_LOG", "off").stderr(Stdio::null());
        }
        command
    }

    pub fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Connects as QEMU does.
    pub fn connect(&self, name: &str) -> (Connection, Setup) {
        let mut connected = None;
        until("the server listens", || {
            let Ok(stream) = UnixStream::connect(self.socket(name)) else { return false };
            connected = match ivshmem::accept_offer(&stream) {
                // A server that was killed while it started a device process: that listens from its
                // fork to its exec.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
                offered => Some((Connection(stream), offered.unwrap())),
            };
            connected.is_some()
        });
        connected.unwrap()
    }

    /// The device process: the only child of the server.
    pub fn device_pid(&self) -> Option<i32> {
        let server = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{server}/task/{server}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// Sends the device process a signal.
    pub fn signal_device(&self, signal: i32) {
        let pid = self.device_pid().expect("no device process");
        // SAFETY: a signal to a child of our child, which the server has not reaped while it is
        // listed.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        if signal == libc::SIGSTOP {
            until("all its threads stand still", || all_stopped(pid));
        }
    }

    pub fn wait_exit(&mut self) -> ExitStatus {
        let mut status = None;
        until("the server ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

/// Whether each thread of a process has stopped, which a signal only asks for.
fn all_stopped(pid: i32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|thread| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    })
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails if it has ended; its device process sees that and ends, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where the device is.
pub enum Place {
    Local { local: Arc<Local>, stop: Arc<AtomicBool>, thread: Option<JoinHandle<()>> },
    Processes { program: Program, connection: Option<Connection> },
}

/// A guest with a GPU.
pub struct Machine {
    pub guest: Guest,
    pub sink: Arc<Sink>,
    pub reports: Receiver<Report>,
    pub ram: Arc<Ram>,
    pub place: Place,
}

impl Machine {
    pub fn local(model: Model) -> Self {
        let (sink, reports) = Sink::new();
        let (ram, place, setup) = Self::local_place(model);
        let guest = Self::guest(setup, &ram, limits(), sink.clone());
        Self { guest, sink, reports, ram, place }
    }

    fn local_place(model: Model) -> (Arc<Ram>, Place, Setup) {
        let ram = Ram::new();
        let local = Local::new(model, &ram);
        local.start();
        let stop = Arc::new(AtomicBool::new(false));
        let (server, ended) = (local.clone(), stop.clone());
        let thread = Some(std::thread::spawn(move || server.serve(&ended)));
        let setup = local.setup(layout::GUEST_PEER);
        (ram, Place::Local { local, stop, thread }, setup)
    }

    pub fn processes(arguments: &[&str]) -> Self {
        Self::processes_with(arguments, limits())
    }

    pub fn processes_with(arguments: &[&str], limits: Limits) -> Self {
        let (sink, reports) = Sink::new();
        let (ram, place, setup) = Self::processes_place(arguments);
        let guest = Self::guest(setup, &ram, limits, sink.clone());
        Self { guest, sink, reports, ram, place }
    }

    fn processes_place(arguments: &[&str]) -> (Arc<Ram>, Place, Setup) {
        let ram = Ram::new();
        let program = Program::start(ram.path(), arguments);
        let (connection, setup) = program.connect("gpu");
        (ram, Place::Processes { program, connection: Some(connection) }, setup)
    }

    fn guest(setup: Setup, ram: &Arc<Ram>, limits: Limits, driver: Arc<dyn Interrupts>) -> Guest {
        os::set_log(|message| eprintln!("{message}"));
        let remote = Arc::new(Remote::new(TestBar::map(&setup, ram.clone()), limits).unwrap());
        Guest::new(remote, setup.interrupt, driver)
    }

    /// A machine in both places, and with its VRAM in the guest's RAM, for `test` each.
    pub fn each(test: impl Fn(&Self)) {
        test(&Self::local(model()));
        test(&Self::local(Model { vram_in_ram: Some(vkfd_gpu::PhysAddr(VRAM_IN_RAM)), ..model() }));
        test(&Self::processes(&[]));
        test(&Self::processes(&["--vram-in-ram", &VRAM_IN_RAM.to_string()]));
    }

    pub fn remote(&self) -> &Arc<Remote<TestBar>> {
        &self.guest.remote
    }

    pub fn report(&self) -> Report {
        self.reports.recv_timeout(Duration::from_secs(30)).expect("no interrupt")
    }

    pub fn program(&self) -> &Program {
        match &self.place {
            Place::Processes { program, .. } => program,
            Place::Local { .. } => panic!("the device is in this process"),
        }
    }

    pub fn in_this_process(&self) -> &Arc<Local> {
        match &self.place {
            Place::Local { local, .. } => local,
            Place::Processes { .. } => panic!("the device is another process"),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Self::Local { local, stop, thread } = self {
            stop.store(true, SeqCst);
            let result = thread.take().map(JoinHandle::join);
            assert!(matches!(result, Some(Ok(()))) || std::thread::panicking(), "the server thread panicked");
            local.end();
        }
    }
}

/// A place without a driver: for a KFD, which makes its own.
pub struct Bare {
    pub ram: Arc<Ram>,
    pub place: Place,
    pub setup: Setup,
}

impl Bare {
    pub fn local() -> Self {
        let (ram, place, setup) = Machine::local_place(model());
        Self { ram, place, setup }
    }

    pub fn processes() -> Self {
        Self::processes_with(&[])
    }

    pub fn processes_with(arguments: &[&str]) -> Self {
        let (ram, place, setup) = Machine::processes_place(arguments);
        Self { ram, place, setup }
    }
}
