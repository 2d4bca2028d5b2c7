// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The whole machine, through ioctls: a GPU that copies from and to memory which changes under it.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)] // the unsafe blocks are accesses to the tests' own memory

mod common;
#[path = "common/rig.rs"]
mod rig;

use common::{serial, Area, RW};
use rig::{fill, ioctl, remap, Rig, MIB, USER, VRAM};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::PAGE;
use vkfd_driver::machine::kfd::Options;
use vkfd_driver::sabotage::{Switch, Switches};
use vkfd_driver::seams::gpu::Gpu;
use vkfd_host::{Machine, MachineOptions};
use vkfd_uapi::command as c;
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::pod::Pod;
use vkfd_uapi::process as p;

/// No thread allocates while the event reader waits for it.
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<std::alloc::System> = vkfd_rt::section::Checked(std::alloc::System);

#[test]
fn a_copy_from_user_memory_arrives_in_vram_and_back() {
    let _one = serial();
    let mut rig = Rig::new();
    let area = Area::new(512);
    fill(&area, 1000);
    rig.register(&area);
    rig.copy(USER, VRAM, 2 * MIB);
    assert!((0..2 * MIB / 8).all(|i| rig.vram.get(i) == 1000 + i));
    rig.vram.set(3, 42);
    rig.copy(VRAM, USER + PAGE, PAGE);
    let word: *const u64 = area.byte(PAGE + 24).cast();
    assert_eq!(unsafe { word.read_volatile() }, 42);
}

#[test]
fn memory_mapped_anew_is_what_the_gpu_sees() {
    let _one = serial();
    let mut rig = Rig::new();
    let area = Area::new(512);
    rig.register(&area);
    for round in 0..20 {
        remap(&area);
        fill(&area, round * 1_000_000);
        rig.copy(USER, VRAM, 2 * MIB);
        assert!((0..2 * MIB / 8).all(|i| rig.vram.get(i) == round * 1_000_000 + i), "round {round}");
    }
    let counters = rig.machine.counters()[0];
    assert_eq!((counters.stale, counters.faults), (0, 0));
    if rig.machine.capabilities().unmap {
        assert!(counters.suspends > 0, "the driver evicted");
    }
}

/// Maps memory anew under the GPU and has it copied. Whether a stale access was caught.
fn is_caught(mut rig: Rig) -> bool {
    let area = Area::new(16);
    rig.register(&area);
    rig.copy(USER, VRAM, area.bytes);
    remap(&area);
    rig.machine.memory().settle();
    let fence = rig.submit(USER, VRAM, area.bytes);
    rig.wait("the end of the copy", |rig| rig.is_done(fence) || rig.machine.counters()[0].faults != 0);
    rig.machine.counters()[0].stale != 0
}

#[test]
fn a_lost_invalidation_and_a_lost_flush_are_caught() {
    let _one = serial();
    if !Rig::new().machine.capabilities().unmap {
        eprintln!("SKIPPED: no notification source");
        return;
    }
    assert!(!is_caught(Rig::new()), "control: nothing is broken");
    let driver = Options { sabotage: Switches::from(Switch::Invalidation), ..Options::default() };
    assert!(is_caught(Rig::with(&MachineOptions { driver, ..MachineOptions::default() })));
    let rig = Rig::new();
    rig.machine.gpus()[0].software().sabotage().turn(Switch::SkipTlbFlush, true);
    assert!(is_caught(rig));
}

#[test]
fn a_change_that_nobody_announced_ends_in_a_reported_fault() {
    let _one = serial();
    let mut rig = Rig::new();
    let area = Area::new(16);
    rig.register(&area);
    rig.copy(USER, VRAM, area.bytes);
    assert_eq!(unsafe { libc::syscall(libc::SYS_mprotect, area.at, area.bytes, libc::PROT_NONE) }, 0);
    let fence = rig.submit(USER, VRAM, area.bytes);
    rig.wait("the fault", |rig| rig.machine.counters()[0].faults == 1);
    let counters = rig.machine.counters()[0];
    assert!(counters.lost > 0 && counters.stale == 0 && !rig.is_done(fence), "{counters:?}");
}

#[test]
fn a_gpu_that_copies_while_its_memory_changes() {
    let _one = serial();
    let mut rig = Rig::new();
    let area = Area::new(256);
    rig.register(&area);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut copies = 0;
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut i = 0u64;
            while !stop.load(Ordering::Relaxed) {
                i += 1;
                let part = area.pages(i * 37 % 200, 1 + i % 50);
                // Never without a mapping for long: the copies must all end.
                match i % 3 {
                    0 => common::advise(part, libc::MADV_DONTNEED),
                    1 => common::protect(part, RW),
                    _ => {
                        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                        std::mem::forget(Area::map(part.start().0, part.pages(), RW, flags, -1));
                    }
                }
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(1) || copies < 3 {
            rig.copy(USER, VRAM, area.bytes);
            rig.copy(VRAM, USER, area.bytes);
            copies += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    let counters = rig.machine.counters()[0];
    assert_eq!((counters.stale, counters.faults), (0, 0), "{counters:?} after {copies} copies");
}

#[test]
fn bad_calls_are_errors() {
    let _one = serial();
    let rig = Rig::new();
    let call =
        |command: Command, at: usize| unsafe { rig.file.ioctl(command.0, std::ptr::with_exposed_provenance_mut(at)) };
    assert_eq!(call(c::GET_VERSION, 0), Err(libc::EFAULT));
    assert_eq!(call(c::GET_VERSION, usize::MAX - 3), Err(libc::EFAULT));
    assert_eq!(call(Command(0x1234), 0), Err(libc::ENOTTY));
    let refused = |bytes, prot, flags, offset| unsafe {
        rig.file.mmap(std::ptr::null_mut(), bytes, prot, flags, offset).unwrap_err()
    };
    assert_eq!(refused(4096, RW, libc::MAP_SHARED, 1 << 45), libc::EINVAL);
    assert_eq!(refused(0, RW, libc::MAP_SHARED, 0), libc::EINVAL);
    assert_eq!(refused(usize::MAX, RW, libc::MAP_SHARED, 0), libc::ENOMEM);
    assert!(Machine::new(&MachineOptions { gpus: 0, ..MachineOptions::default() }).is_err());
    assert!(Machine::new(&MachineOptions { vram_bytes: 12345, ..MachineOptions::default() }).is_err());
}

#[test]
fn a_forked_child_has_a_bad_file_and_can_drop_it() {
    let _one = serial();
    let rig = Rig::new();
    let area = Area::new(16);
    rig.register(&area);
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = ioctl(&rig.file, c::GET_VERSION, &mut p::GetVersionArgs::zeroed()) == Err(libc::EBADF)
            && rig.machine.open().err() == Some(libc::EBADF);
        drop(rig);
        drop(area);
        unsafe { libc::_exit(if refused { 7 } else { 1 }) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
    ioctl(&rig.file, c::GET_VERSION, &mut p::GetVersionArgs::zeroed()).unwrap();
}

/// A child's machine works beside its parent's, on memory that its parent's watches too, and is
/// notified of its own changes.
#[test]
fn a_forked_child_can_have_a_machine_of_its_own() {
    let _one = serial();
    let mut rig = Rig::new();
    let area = Area::new(512);
    fill(&area, 77);
    rig.register(&area);
    let child = unsafe { libc::fork() };
    if child == 0 {
        let works = std::panic::catch_unwind(|| {
            let mut own = Rig::new();
            own.register(&area);
            for round in 0..20 {
                if round > 0 {
                    remap(&area);
                    fill(&area, round * 1_000_000);
                }
                own.copy(USER, VRAM, 2 * MIB);
                let first = if round == 0 { 77 } else { round * 1_000_000 };
                assert!((0..2 * MIB / 8).all(|i| own.vram.get(i) == first + i), "round {round}");
            }
            let counters = own.machine.counters()[0];
            assert_eq!((counters.stale, counters.faults), (0, 0));
        });
        unsafe { libc::_exit(if works.is_ok() { 7 } else { 1 }) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
    rig.copy(USER, VRAM, 2 * MIB);
    assert!((0..2 * MIB / 8).all(|i| rig.vram.get(i) == 77 + i), "the parent's memory is as it was");
}

#[test]
fn machines_come_and_go_and_leave_nothing() {
    let _one = serial();
    let area = Area::new(64);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    drop(Rig::new());
    let before = (threads(), vkfd_host::mm::Mm::get(vkfd_host::Source::Auto).unwrap().frames().live());
    for _ in 0..100 {
        let mut rig = Rig::with(&MachineOptions { gpus: 2, vram_bytes: 64 << 20, ..MachineOptions::default() });
        rig.register(&area);
        rig.copy(USER, VRAM, area.bytes);
    }
    let after = (threads(), vkfd_host::mm::Mm::get(vkfd_host::Source::Auto).unwrap().frames().live());
    assert_eq!(before, after, "threads, frames");
}

/// All that a client maps is in one file, at the offsets that the driver gives out, and shows there
/// without the driver.
#[test]
fn a_device_file_has_what_clients_map() {
    let _one = serial();
    use vkfd_uapi::memory::{
        AllocMemoryOfGpuArgs, ALLOC_MEM_FLAGS_DOORBELL, ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_VRAM,
    };
    use vkfd_uapi::memory::{ALLOC_MEM_FLAGS_PUBLIC, ALLOC_MEM_FLAGS_WRITABLE};
    let options = MachineOptions { gpus: 2, vram_bytes: 64 << 20, device_file: true, ..MachineOptions::default() };
    let machine = Machine::new(&options).unwrap();
    let descriptor = machine.device_file().unwrap().open(libc::O_CLOEXEC, 0).unwrap();
    let kfd = machine.open().unwrap();
    let call = |command: u32, argument: *mut std::ffi::c_void| {
        // SAFETY: the arguments below are the command's structures.
        unsafe { kfd.ioctl(command, argument) }
    };
    let mut offsets = Vec::new();
    for (number, gpu) in (0..).zip(machine.gpus()) {
        let gpu_id = gpu.properties().gpu_id;
        let mut acquire = vkfd_uapi::process::AcquireVmArgs { drm_fd: 0, gpu_id };
        call(vkfd_uapi::command::ACQUIRE_VM.0, std::ptr::from_mut(&mut acquire).cast()).unwrap();
        let kinds = [
            (ALLOC_MEM_FLAGS_VRAM | ALLOC_MEM_FLAGS_PUBLIC, 1 << 20),
            (ALLOC_MEM_FLAGS_GTT, 64 << 10),
            (ALLOC_MEM_FLAGS_DOORBELL, 8192),
        ];
        for (kind, (flags, size)) in (0..).zip(kinds) {
            let va_addr = (1 + number * 8 + kind) << 32;
            let flags = flags | ALLOC_MEM_FLAGS_WRITABLE;
            let mut args = AllocMemoryOfGpuArgs { va_addr, size, handle: 0, mmap_offset: 0, gpu_id, flags };
            call(vkfd_uapi::command::ALLOC_MEMORY_OF_GPU.0, std::ptr::from_mut(&mut args).cast()).unwrap();
            offsets.push(args.mmap_offset);
            assert!(args.mmap_offset < 1 << 46, "{:#x} names a GPU", args.mmap_offset);
            let (bytes, prot) = (usize::try_from(size).unwrap(), libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: both mappings are new, at places of the kernel's choice, and accessed by raw
            // pointers inside their sizes only.
            unsafe {
                let offset = i64::try_from(args.mmap_offset).unwrap();
                let fd = std::os::fd::AsRawFd::as_raw_fd(&descriptor);
                let raw = libc::syscall(libc::SYS_mmap, 0, bytes, prot, libc::MAP_SHARED, fd, offset);
                let past: *mut u64 = std::ptr::with_exposed_provenance_mut(usize::try_from(raw).unwrap());
                let through = kfd.mmap(std::ptr::null_mut(), bytes, prot, libc::MAP_SHARED, args.mmap_offset).unwrap();
                let last = bytes / 8 - 1;
                through.cast::<u64>().add(last).write_volatile(0x1234_5678 + args.mmap_offset);
                assert_eq!(past.add(last).read_volatile(), 0x1234_5678 + args.mmap_offset);
                libc::munmap(past.cast(), bytes);
                libc::munmap(through, bytes);
            }
        }
        assert_eq!(offsets.last().unwrap() % (1 << 32), 0, "doorbells have the lower half to themselves");
    }
    offsets.sort_unstable();
    offsets.dedup();
    assert_eq!(offsets.len(), 6);
}
