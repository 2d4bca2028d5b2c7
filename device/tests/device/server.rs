// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The server's side: permission to connect, a guest's leftovers, several GPUs, parts run by hand.

use crate::guest::{limits, until, TestBar};
use crate::machine::{model, Machine, Place, Program};
use crate::queue::{noise, Space};
use crate::ram::Ram;
use rustix::pipe::PipeFlags;
use std::cell::RefCell;
use std::fs::File;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use vkfd_device::ivshmem;
use vkfd_device::server::{device_socket, Options, Server};
use vkfd_driver::base::addr::{FabricAddr, VramOffset, PAGE};
use vkfd_driver::base::pte::Target;
use vkfd_driver::seams::gpu::{Gpu, QueueKind};
use vkfd_wire::{layout, Bar, Remote};

#[test]
fn with_once_the_server_ends_with_its_guest() {
    let mut machine = Machine::processes(&["--once"]);
    let device = machine.program().device_pid().unwrap();
    let Place::Processes { program, connection } = &mut machine.place else { panic!() };
    drop(connection.take());
    assert!(program.wait_exit().success());
    assert!(!program.socket("gpu").exists() && !program.socket("gpu.device").exists(), "sockets stay behind");
    assert!(!std::path::Path::new(&format!("/proc/{device}")).exists(), "the device process stays behind");
}

#[test]
fn a_gpu_is_one_guests_and_the_next_finds_it_new() {
    let ram = Ram::new();
    let program = Program::start(ram.path(), &[]);
    let mut last_epoch = 0;
    for round in 0..3 {
        let (connection, setup) = program.connect("gpu");
        let second = UnixStream::connect(program.socket("gpu")).unwrap();
        assert!(ivshmem::accept_offer(&second).is_err(), "two guests on one GPU");
        let remote = Remote::new(TestBar::map(&setup, ram.clone()), limits()).unwrap();
        let epoch = remote.bar().read(layout::EPOCH);
        assert!(epoch > last_epoch);
        last_epoch = epoch;
        assert_eq!(remote.read_entry(VramOffset(4096)), 0, "round {round}: VRAM of another guest");
        remote.write_entries(VramOffset(4096), 1, 0, 1);
        // The machine is switched off: its driver says nothing.
        std::mem::forget(remote);
        drop(connection);
    }
}

#[test]
fn gpus_of_one_server_reach_each_others_vram() {
    let ram = Ram::new();
    let program = Program::start(ram.path(), &["--gpus", "2"]);
    let (_first, first) = program.connect("gpu.0");
    let (_second, second) = program.connect("gpu.1");
    let remotes = [&first, &second].map(|setup| Remote::new(TestBar::map(setup, ram.clone()), limits()).unwrap());
    let [near, far] = remotes.map(Arc::new);
    assert_eq!((near.properties().gpu_id, far.properties().gpu_id), (0x4b01, 0x4b02));
    let base = far.properties().vram_base;
    assert_eq!(base, FabricAddr(64 << 20));
    far.write_entries(VramOffset(8192), 0x1234, 1, 512);
    let space = Space::of(&near, &ram, 1, false);
    space.map(0x10_0000_0000, 1, Target::Vram(FabricAddr(base.0 + 8192)), crate::queue::RW);
    let copy = space.map_ram(0x20_0000_0000, 1);
    let mut queue = space.queue(QueueKind::Sdma, 0);
    queue.copy(0x20_0000_0000, 0x10_0000_0000, PAGE);
    queue.fence(0x10_0000_0000, 7);
    queue.wait();
    assert_eq!((ram.load(copy), ram.load(vkfd_driver::base::addr::PhysAddr(copy.0 + 8))), (0x1234, 0x1235));
    assert_eq!(far.read_entry(VramOffset(8192)) & 0xffff_ffff, 7);
    // They live in one process, and end with it.
    program.signal_device(libc::SIGKILL);
    until("both know", || [&near, &far].iter().all(|gpu| gpu.bar().read(layout::DEAD) > 0));
    drop(queue);
}

#[test]
fn server_and_device_can_be_run_by_hand() {
    let ram = Ram::new();
    let program = Program::start(ram.path(), &["--part", "server"]);
    let (_connection, setup) = program.connect("gpu");
    let device = || {
        let mut command = Program::command(program.directory.path(), ram.path(), &["--part", "device"]);
        command.stderr(Stdio::inherit()).spawn().unwrap()
    };
    let mut first = device();
    let remote = Arc::new(Remote::new(TestBar::map(&setup, ram.clone()), limits()).unwrap());
    assert!(remote.clock() > 0);
    // One at a time.
    let mut second = device();
    assert!(!second.wait().unwrap().success());
    assert!(remote.clock() > 0);
    // Ended by the driver, and only then another one.
    drop(remote);
    assert!(!first.wait().unwrap().success());
    let mut third = device();
    let remote = Arc::new(Remote::new(TestBar::map(&setup, ram.clone()), limits()).unwrap());
    let space = Space::of(&remote, &ram, 1, false);
    let data = noise(1, PAGE);
    ram.write(space.map_ram(0x10_0000_0000, 1), &data);
    let to = space.map_ram(0x20_0000_0000, 1);
    let mut queue = space.queue(QueueKind::Sdma, 0);
    queue.copy(0x20_0000_0000, 0x10_0000_0000, PAGE);
    queue.wait();
    assert_eq!(ram.read(to, PAGE), data);
    drop(queue);
    drop(space);
    drop(remote);
    third.wait().unwrap();
}

/// Starts a server on a thread of this process, which ends with it, with its log in a file.
fn server_here(options: impl FnOnce() -> Options + Send + 'static, log: &Path) {
    let writer = Arc::new(File::create(log).unwrap());
    let (bound, is_bound) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        tracing::subscriber::with_default(subscriber, || {
            let mut server = Server::new(options()).unwrap();
            bound.send(()).unwrap();
            server.run().unwrap();
        });
    });
    is_bound.recv().unwrap();
}

/// Has `command`'s process connect to `socket` before its exec, write a byte into `connected`, and
/// then wait for one from `go`. A thread that spawns it waits as long.
fn connect_first(command: &mut Command, socket: PathBuf, connected: OwnedFd, go: OwnedFd) {
    // SAFETY: between fork and exec the closure makes system calls only: it allocates nothing and
    // takes no lock.
    unsafe {
        command.pre_exec(move || {
            let stream = UnixStream::connect(&socket)?;
            rustix::io::fcntl_setfd(&stream, rustix::io::FdFlags::empty())?;
            std::mem::forget(stream);
            rustix::io::write(&connected, &[1])?;
            rustix::io::read(&go, &mut [0])?;
            Ok(())
        });
    }
}

#[test]
fn a_device_process_ended_while_it_connects_is_no_stranger_and_a_stranger_is() {
    let ram = Ram::new();
    let directory = tempfile::TempDir::new().unwrap();
    let socket = directory.path().join("gpu");
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    let ((connected, says_connected), (hears_go, go)) = (pipe(), pipe());
    let first = RefCell::new(Some((says_connected, hears_go)));
    let (sockets, ram_path) = (directory.path().to_owned(), ram.path().to_owned());
    let start = move || match first.take() {
        Some((connected, go)) => {
            let mut command = Command::new("sleep");
            connect_first(command.arg("60"), device_socket(&sockets.join("gpu")), connected, go);
            command
        }
        None => Program::command(&sockets, &ram_path, &["--part", "device"]),
    };
    let bound = socket.clone();
    let options = move || Options {
        socket: bound,
        gpus: 1,
        bar_bytes: model().bar_bytes(),
        start: Some(Box::new(start)),
        restart: true,
        once: false,
    };
    let log = directory.path().join("log");
    server_here(options, &log);
    let log = || std::fs::read_to_string(&log).unwrap();

    // The guest goes while the first process waits to be let in: when the server looks, both are to
    // be seen.
    let guest = UnixStream::connect(&socket).unwrap();
    rustix::io::read(&connected, &mut [0]).unwrap();
    guest.shutdown(Shutdown::Both).unwrap();
    rustix::io::write(&go, &[1]).unwrap();

    // The next guest has a GPU.
    let next = UnixStream::connect(&socket).unwrap();
    let setup = ivshmem::accept_offer(&next).unwrap();
    let remote = Remote::new(TestBar::map(&setup, ram.clone()), limits()).unwrap();
    assert!(remote.clock() > 0);
    // It was never of an epoch, so this is the first one.
    assert_eq!(remote.bar().read(layout::EPOCH), 1, "the process that was ended was let in:\n{}", log());
    assert!(log().contains("its guest has gone") && !log().contains("WARN"), "{}", log());

    // This process is nobody's device.
    let stranger = UnixStream::connect(device_socket(&socket)).unwrap();
    assert!(ivshmem::accept_offer(&stranger).is_err());
    until("the server says so", || log().contains("WARN") && log().contains("refused"));
    assert!(remote.clock() > 0);
}

#[test]
fn a_socket_is_taken_over_from_the_dead_and_not_from_the_living() {
    let ram = Ram::new();
    let mut program = Program::start(ram.path(), &[]);
    until("the sockets are there", || program.socket("gpu.device").exists());
    let run = |arguments: &[&str]| {
        let mut command = Program::command(program.directory.path(), ram.path(), arguments);
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let refused = run(&[]).wait_with_output().unwrap();
    let message = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(message.contains("another server listens there"), "{message}");
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    // The first server took the refused one's look at the socket for a guest. It may have been
    // killed while it started a device process for that guest. Such a process listens from its fork
    // to its exec.
    let listens = |name| UnixStream::connect(program.socket(name)).is_ok();
    until("nobody listens", || !listens("gpu") && !listens("gpu.device"));
    let mut next = Program::command(program.directory.path(), ram.path(), &["--once"]).spawn().unwrap();
    let (connection, setup) = program.connect("gpu");
    let remote = Remote::new(TestBar::map(&setup, ram.clone()), limits()).unwrap();
    assert!(remote.clock() > 0);
    drop((remote, connection));
    assert!(next.wait().unwrap().success());
}

#[test]
fn wrong_usage_is_explained() {
    let directory = tempfile::TempDir::new().unwrap();
    for (arguments, expected) in [
        (&["--vram", "3M"][..], "not a multiple of 2M"),
        (&["--vram", "lots"], "write for instance 512M"),
        (&["--target", "gfx803"], "gfx900, gfx90a, gfx942, gfx1030, gfx1100"),
        (&["--gpus", "0"], "0 is not in 1..=32"),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vkfd-gpu"));
        command.arg("--socket").arg(directory.path().join("s")).args(["--ram", "/nowhere"]).args(arguments);
        let output = command.output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(message.contains(expected), "{arguments:?}: {message}");
    }
}
