// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What an unprivileged client does to the kernel, to other users and to its own memory cgroup:
//! nothing that lasts.
//!
//! Clients are processes of their own, of users without any right but to open the device.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vkfd_client::uapi::command;
use vkfd_client::uapi::memory::{AllocMemoryOfGpuArgs, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_MMIO_REMAP};
use vkfd_client::uapi::pod::Pod;
use vkfd_client::uapi::svm::SVM_ATTR_ACCESS_IN_PLACE;
use vkfd_client::uapi::vkfd::{self, SnapshotArgs};
use vkfd_client::{Client, DevKfd, Errno, MmapFile, RegisterOptions, Transport, UserptrRange, PAGE};

use super::cgroup::Cgroup;
use super::client_process::{ClientProcess, Scenario};
use crate::hostile::alloc;
use crate::memory::Memory;
use crate::raw;
use crate::verdict::Stop;
use crate::world::World;

/// From SIGKILL to the end of the process, under emulation on a busy machine. What is not looked at
/// takes minutes, or has no end.
const DEATH: Duration = Duration::from_secs(20);
/// From the beginning of a call to SIGKILL.
const INTO_THE_CALL: Duration = Duration::from_secs(1);
const VA: u64 = 0x60_0000_0000;
/// A user without rights.
const USER: u32 = 1000;

/// Device files that everybody may open, until this is dropped.
struct OpenToAll(Vec<(PathBuf, u32)>);

impl OpenToAll {
    fn new() -> Result<Self, Stop> {
        let mut files = Self(Vec::new());
        let nodes = fs::read_dir("/dev/dri").into_iter().flatten().flatten().map(|entry| entry.path());
        let render = nodes.filter(|path| path.to_string_lossy().contains("renderD"));
        for path in render.chain([PathBuf::from("/dev/kfd")]) {
            let mode = fs::metadata(&path)?.permissions().mode();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
            files.0.push((path, mode));
        }
        Ok(files)
    }
}

impl Drop for OpenToAll {
    fn drop(&mut self) {
        for (path, mode) in &self.0 {
            let _ = fs::set_permissions(path, fs::Permissions::from_mode(*mode));
        }
    }
}

/// From now on this process is user number `user`'s.
fn become_user(user: u32) -> Result<(), Stop> {
    // SAFETY: concerns only this process, which has one thread by now.
    let dropped = unsafe { libc::setgid(user) == 0 && libc::setuid(user) == 0 };
    ensure!(dropped, "become user {user}: {}", std::io::Error::last_os_error());
    Ok(())
}

pub(super) fn device() -> Result<PathBuf, Stop> {
    let path = std::env::var_os("VKFD_DEVICE").ok_or_else(|| Stop::Skip("needs VKFD_DEVICE".into()))?;
    Ok(Path::new(&path).to_owned())
}

/// A client of user number `user`.
fn client_of(user: u32) -> Result<Client, Stop> {
    become_user(user)?;
    Ok(Client::open_apart(&device()?)?)
}

/// Starts `role`, kills it in the middle of its call, and waits for its end. The world, to see what
/// is left.
fn killed_in(role: &str) -> Result<(), Stop> {
    let world = super::world()?;
    let _open = OpenToAll::new()?;
    let room = |world: &World| crate::limits::caps(world.client()).map(|caps| caps.max_bytes);
    let before = room(&world)?;
    let mut client = ClientProcess::start(role, None)?;
    client.expect("calling")?;
    std::thread::sleep(INTO_THE_CALL);
    let start = Instant::now();
    client.kill()?;
    let words = client.killed()?;
    let took = start.elapsed();
    ensure!(took < DEATH, "{role}: alive for {took:?} after SIGKILL");
    ensure!(words.is_empty(), "{role}: its call had ended before: {words:?}");
    let start = Instant::now();
    while room(&world)? != before {
        ensure!(start.elapsed() < DEATH, "{role}: the limit is {} short", before - room(&world)?);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Says how a call that should not have ended did.
fn ended(scenario: &mut Scenario, how: Result<(), Errno>) -> Result<(), Stop> {
    scenario.say(&format!("ended {how:?}"))
}

/// Many terabytes of the zero page, all of which a GPU is to have.
pub(super) fn svm() -> Result<(), Stop> {
    killed_in("hostile_svm")
}

pub(super) fn svm_role(scenario: &mut Scenario) -> Result<(), Stop> {
    const BYTES: usize = 4 << 40;
    let client = client_of(USER)?;
    client.set_xnack(true).map_err(|_| Stop::Skip("the GPUs cannot retry page faults".into()))?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory at a place that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_READ, flags, -1, 0) };
    ensure!(at != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    let range = UserptrRange { start: at as u64, size: BYTES as u64 };
    let gpu = client.gpus()[0].id.0;
    scenario.say("calling")?;
    let result = raw::set_svm(&client, range, SVM_ATTR_ACCESS_IN_PLACE, gpu);
    ended(scenario, result)
}

/// A reservation that nothing may access, as long as addresses go: that is one miss, and no call
/// that lasts.
pub(super) fn reservation() -> Result<(), Stop> {
    let _world = super::world()?;
    let _open = OpenToAll::new()?;
    ClientProcess::start("hostile_reservation", None)?.finish()
}

pub(super) fn reservation_role(_: &mut Scenario) -> Result<(), Stop> {
    const BYTES: usize = 8 << 30;
    let client = client_of(USER)?;
    client.set_xnack(true).map_err(|_| Stop::Skip("the GPUs cannot retry page faults".into()))?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory at a place that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, libc::PROT_NONE, flags, -1, 0) };
    ensure!(at != libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
    let range = UserptrRange { start: at as u64, size: BYTES as u64 };
    let gpu = client.gpus()[0].id.0;
    let start = Instant::now();
    let result = raw::set_svm(&client, range, SVM_ATTR_ACCESS_IN_PLACE, gpu);
    let took = start.elapsed();
    ensure_eq!(result, Err(Errno::PERM));
    ensure!(took < DEATH, "8 GiB that nothing may access took {took:?}");
    // With XNACK off it is charged, as in KFD, and beyond the limit.
    let registered = client.set_xnack(false);
    ensure!(registered.is_err(), "8 GiB of ranges are within the limit");
    Ok(())
}

/// A registration of all that one may register, from many ranges, most of it not there yet.
pub(super) fn registration() -> Result<(), Stop> {
    killed_in("hostile_registration")
}

pub(super) fn registration_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let client = client_of(USER)?;
    let memory = Memory::anonymous(PAGE)?;
    // One page again and again.
    let count = (client.caps().max_bytes / PAGE).min(client.caps().max_ranges) / 2;
    let ranges = vec![memory.whole(); usize::try_from(count)?];
    scenario.say("calling")?;
    loop {
        // Again and again, as one may not take long enough.
        // SAFETY: no reference to the memory is ever made.
        let buffer = unsafe { client.register_ranges(&ranges, &RegisterOptions::default()) };
        if let Err(error) = buffer {
            return scenario.say(&format!("ended {error}"));
        }
    }
}

/// As many page-table entries as one call gives, again and again.
pub(super) fn snapshot() -> Result<(), Stop> {
    killed_in("hostile_snapshot")
}

pub(super) fn snapshot_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let client = client_of(USER)?;
    let mut room = vec![0u64; 1 << 20];
    scenario.say("calling")?;
    loop {
        let (buffer, capacity) = (room.as_mut_ptr() as u64, 1 << 20);
        let mut args =
            SnapshotArgs { op: vkfd::SNAPSHOT_PAGES, handle: VA, buffer, capacity, ..SnapshotArgs::zeroed() };
        if let Err(errno) = raw::ioctl(&client, vkfd::SNAPSHOT, &mut args) {
            return ended(scenario, Err(errno));
        }
    }
}

/// What one user takes of the VMIDs leaves some for others.
pub(super) fn vmids() -> Result<(), Stop> {
    let _world = super::world()?;
    let _open = OpenToAll::new()?;
    let mut greedy = ClientProcess::start("hostile_vmids", None)?;
    let taken = greedy.expect("taken")?;
    ClientProcess::start("hostile_other_user", None)?.finish().map_err(|stop| match stop {
        Stop::Fail(error) => Stop::Fail(error.context(format!("after one user took {taken} VMIDs"))),
        skip @ Stop::Skip(_) => skip,
    })?;
    greedy.tell("end")?;
    greedy.finish()
}

pub(super) fn vmids_role(scenario: &mut Scenario) -> Result<(), Stop> {
    become_user(USER)?;
    let path = device()?;
    let mut clients = Vec::new();
    let refused = loop {
        match Client::open_apart(&path) {
            Ok(client) => clients.push(client),
            Err(error) => break error,
        }
        ensure!(clients.len() < 1000, "there is no end of VMIDs");
    };
    ensure!(!clients.is_empty(), "not even one: {refused}");
    scenario.say(&format!("taken {}", clients.len()))?;
    scenario.await_order("end")
}

pub(super) fn other_user_role(_: &mut Scenario) -> Result<(), Stop> {
    let client = client_of(USER + 1)?;
    let gpu = client.gpus()[0].id;
    alloc(&client, gpu, VA, PAGE, ALLOC_MEM_FLAGS_GTT)?;
    Ok(())
}

/// System memory that a client allocates is in its memory cgroup, also where it comes in pieces of
/// 2 MiB.
pub(super) fn gtt() -> Result<(), Stop> {
    const LIMIT: u64 = 256 << 20;
    let _world = super::world()?;
    let _open = OpenToAll::new()?;
    let cgroup = Cgroup::new(LIMIT)?;
    let mut client = ClientProcess::start("hostile_gtt", Some(&cgroup))?;
    let before: u64 = {
        client.expect("ready")?;
        cgroup.read("memory.current")?
    };
    client.tell("allocate")?;
    let bytes: u64 = client.expect("allocated")?.parse()?;
    let after = cgroup.read("memory.current")?;
    // Less what was in the group and is no more.
    ensure!(
        after >= before + bytes * 3 / 4,
        "{bytes} bytes allocated, in the cgroup {before} before and {after} afterwards"
    );
    client.tell("end")?;
    client.finish()
}

pub(super) fn gtt_role(scenario: &mut Scenario) -> Result<(), Stop> {
    const BYTES: u64 = 64 << 20;
    let client = client_of(USER)?;
    scenario.say("ready")?;
    scenario.await_order("allocate")?;
    alloc(&client, client.gpus()[0].id, VA, BYTES, ALLOC_MEM_FLAGS_GTT)?;
    scenario.say(&format!("allocated {BYTES}"))?;
    scenario.await_order("end")
}

/// What one user writes to its registers another does not read.
pub(super) fn registers() -> Result<(), Stop> {
    let _world = super::world()?;
    let _open = OpenToAll::new()?;
    let mut first = ClientProcess::start("hostile_registers_writer", None)?;
    first.expect("written")?;
    ClientProcess::start("hostile_registers_reader", None)?.finish()?;
    first.tell("end")?;
    first.finish()?;
    // And not what somebody has left behind.
    ClientProcess::start("hostile_registers_reader", None)?.finish()
}

/// The page, mapped by a client of `user`. The client comes with it.
fn registers_of(user: u32) -> Result<(Client, *mut u64), Stop> {
    become_user(user)?;
    let transport = std::sync::Arc::new(DevKfd::open(&device()?)?);
    let client = Client::with_transport(transport.clone())?;
    let flags = ALLOC_MEM_FLAGS_MMIO_REMAP | vkfd_client::uapi::memory::ALLOC_MEM_FLAGS_WRITABLE;
    let gpu_id = client.gpus()[0].id.0;
    let mut args = AllocMemoryOfGpuArgs { va_addr: VA, size: PAGE, handle: 0, mmap_offset: 0, gpu_id, flags };
    raw::ioctl(&client, command::ALLOC_MEMORY_OF_GPU, &mut args)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place that the kernel chooses.
    let at = unsafe {
        transport.mmap(MmapFile::Kfd, std::ptr::null_mut(), 4096, protection, libc::MAP_SHARED, args.mmap_offset)?
    };
    Ok((client, at.cast()))
}

pub(super) fn registers_writer_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let (_client, page) = registers_of(USER)?;
    for word in 0..512 {
        // SAFETY: the page was mapped for writing and stays mapped.
        unsafe { page.add(word).write_volatile(0x5ec4_e700) };
    }
    scenario.say("written")?;
    scenario.await_order("end")
}

pub(super) fn registers_reader_role(_: &mut Scenario) -> Result<(), Stop> {
    let (_client, page) = registers_of(USER + 1)?;
    for word in 0..512 {
        // SAFETY: the page was mapped for reading and stays mapped.
        let found = unsafe { page.add(word).read_volatile() };
        ensure!(found != 0x5ec4_e700, "word {word} has what another user has written");
    }
    Ok(())
}
