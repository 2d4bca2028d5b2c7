// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The device process dies, stops, or loses its server; the guest starts over.

use crate::guest::{limits, until, Report, Stop, TestBar};
use crate::machine::{Machine, Place};
use crate::queue::{noise, Queue, Space};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use vkfd_driver::base::addr::{GpuVa, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::errno::Errno;
use vkfd_driver::seams::gpu::{Gpu, QueueKind};
use vkfd_wire::{layout, Bar, Condition, Limits, Remote};

const RAM_VA: u64 = 0x10_0000_0000;
const BACK_VA: u64 = 0x30_0000_0000;
const VRAM_VA: u64 = 0x20_0000_0000;

/// Limits here are for a machine that is very busy: what they are to show is that there is one.
fn timed<R>(what: &str, limit: Duration, f: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = f();
    let took = start.elapsed();
    assert!(took < limit, "{what} took {took:?}");
    result
}

fn errno<T>(result: vkfd_driver::base::errno::Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno)
}

fn wait_for(machine: &Machine, condition: Condition) {
    until("the driver notices", || machine.remote().condition() == condition);
}

/// Copies without end until `stop`.
fn copy_on(queue: &mut Queue<'_>, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        if queue.wptr - queue.rptr() < 0x1000 {
            queue.copy(RAM_VA, BACK_VA, 64 * PAGE);
        } else {
            std::thread::yield_now();
        }
    }
}

/// Every call that the driver makes, each in time, on a device that is gone.
fn calls_fail_quickly(space: &Space, queue: &Queue<'_>, ring_va: u64, ring: PhysAddr) {
    let remote = &space.remote;
    // Less than a driver of any patience here waits for an answer.
    let quick = Duration::from_secs(10);
    timed("suspend", quick, || remote.suspend(space.vmid));
    timed("resume", quick, || remote.resume(space.vmid));
    timed("flush_tlb", quick, || remote.flush_tlb(space.vmid));
    timed("fault_done", quick, || remote.fault_done(space.vmid, GpuVa(0), true));
    timed("clear", quick, || remote.clear(VramOffset(60 << 20), 1 << 20));
    timed("ring", quick, || remote.ring());
    timed("check", quick, || remote.check());
    assert_eq!(timed("clock", quick, || remote.clock()), 0);
    assert_eq!(errno(timed("alloc_dma", quick, || remote.alloc_dma(PAGE))), Some(Errno::ENODEV));
    let update = || remote.update_queue(queue.hw, GpuVa(ring_va), 0x1000, true);
    assert_eq!(errno(timed("update_queue", quick, update)), Some(Errno::ENODEV));
    let add = || space.queue_on(QueueKind::Sdma, ring_va, ring);
    assert_eq!(errno(timed("add_queue", quick, add)), Some(Errno::ENODEV));
}

#[test]
fn a_device_killed_in_the_middle_of_copies_is_lost_and_touches_nothing_more() {
    let machine = Machine::processes(&["--no-restart"]);
    let space = Space::new(&machine, 3, false);
    let dst = space.map_ram(RAM_VA, 64);
    let src = space.map_ram(BACK_VA, 64);
    space.ram.write(src, &noise(1, 64 * PAGE));
    let mut queue = space.queue(QueueKind::Sdma, 0);
    let (hw, at, ring) = (queue.hw, queue.at, queue.ring);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = Stop(&stop);
        let copier = scope.spawn(|| {
            copy_on(&mut queue, &stop);
            queue
        });
        // Calls are under way at the moment of its death, of many threads.
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    timed("flush_tlb", Duration::from_secs(30), || space.remote.flush_tlb(space.vmid));
                }
            });
        }
        until("it copies", || space.ram.load(dst) != 0);
        machine.program().signal_device(libc::SIGKILL);
        assert_eq!(machine.report(), Report::Error(hw, "the device was lost".into()));
        wait_for(&machine, Condition::Lost);
        space.ram.write(dst, &[0; 64 * 4096]);
        std::thread::sleep(Duration::from_millis(50));
        assert!(space.ram.read(dst, 64 * PAGE).iter().all(|byte| *byte == 0), "an access of a dead device");
        drop(end);
        let queue = copier.join().unwrap();
        calls_fail_quickly(&space, &queue, at, ring);
        timed("remove_queue", Duration::from_secs(10), || drop(queue));
    });
    assert!(machine.reports.try_recv().is_err(), "reported twice");
    assert_eq!(space.remote.bar().resets.load(SeqCst), 0, "the server knew");
}

#[test]
fn a_new_device_process_finds_address_spaces_and_vram_as_they_were() {
    let machine = Machine::processes(&[]);
    let space = Space::new(&machine, 3, false);
    let held = Space::with_vram(&machine, 4, false, space.vram.clone());
    let data = noise(3, 16 * PAGE);
    let src = space.map_ram(RAM_VA, 16);
    space.ram.write(src, &data);
    space.map_vram(VRAM_VA, 16);
    let dst = space.map_ram(BACK_VA, 16);
    let held_dst = held.map_ram(RAM_VA, 1);
    let mut queue = space.queue(QueueKind::Sdma, 0);
    queue.copy(VRAM_VA, RAM_VA, 16 * PAGE);
    queue.wait();
    held.remote.suspend(held.vmid);
    for round in 0..4 {
        let epoch = space.remote.bar().read(layout::EPOCH);
        machine.program().signal_device(libc::SIGKILL);
        until("another process", || {
            space.remote.bar().read(layout::READY) > epoch && space.remote.condition() == Condition::Live
        });
        // The queue is gone, and only it.
        assert_eq!(errno(space.remote.update_queue(queue.hw, GpuVa(queue.at), 0x1000, true)), Some(Errno::ENODEV));
        let (at, ring) = (queue.at, queue.ring);
        drop(queue);
        queue = space.queue_on(QueueKind::Sdma, at, ring).unwrap();
        space.ram.write(dst, &[0; 16 * 4096]);
        queue.copy(BACK_VA, VRAM_VA, 16 * PAGE);
        queue.wait();
        assert_eq!(space.ram.read(dst, 16 * PAGE), data, "round {round}");
        // What was suspended is so for every process.
        let mut other = held.queue(QueueKind::Sdma, round);
        other.fence(RAM_VA, 5);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!((other.rptr(), held.ram.load(held_dst)), (0, 0), "a queue of a suspended VMID ran");
        held.remote.resume(held.vmid);
        other.wait();
        assert_eq!(held.ram.load(held_dst), 5);
        held.ram.store(held_dst, 0);
        held.remote.suspend(held.vmid);
    }
    held.remote.resume(held.vmid);
}

#[test]
fn a_device_that_stands_still_is_killed_before_anybody_relies_on_it() {
    let limits = Limits { silence: Duration::from_secs(1), ..limits() };
    let machine = Machine::processes_with(&[], limits);
    let space = Space::new(&machine, 3, false);
    let dst = space.map_ram(RAM_VA, 64);
    space.ram.write(space.map_ram(BACK_VA, 64), &noise(1, 64 * PAGE));
    let mut queue = space.queue(QueueKind::Sdma, 0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = Stop(&stop);
        scope.spawn(|| copy_on(&mut queue, &stop));
        until("it copies", || space.ram.load(dst) != 0);
        let pid = machine.program().device_pid().unwrap();
        machine.program().signal_device(libc::SIGSTOP);
        // An access may be in the middle. Suspending must end it for good.
        timed("suspend", limits.silence + limits.reset + Duration::from_secs(10), || space.remote.suspend(space.vmid));
        assert!(space.remote.bar().resets.load(SeqCst) > 0);
        assert!(space.remote.bar().read(layout::DEAD) > 0, "confirmed");
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "the process is there still");
        space.ram.write(dst, &[0; 64 * 4096]);
        std::thread::sleep(Duration::from_millis(50));
        assert!(space.ram.read(dst, 64 * PAGE).iter().all(|byte| *byte == 0));
        drop(end);
    });
    assert!(matches!(machine.report(), Report::Error(..)));
    wait_for(&machine, Condition::Live);
}

#[test]
fn without_a_server_the_device_ends_in_order_and_the_guest_knows() {
    let mut machine = Machine::processes(&[]);
    let space = Space::new(&machine, 3, false);
    let queue = space.queue(QueueKind::Sdma, 0);
    let device = machine.program().device_pid().unwrap();
    let Place::Processes { program, .. } = &mut machine.place else { panic!() };
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    wait_for(&machine, Condition::Lost);
    assert_eq!(machine.report(), Report::Error(queue.hw, "the device was lost".into()));
    calls_fail_quickly(&space, &queue, queue.at, queue.ring);
    until("the device process ends", || !std::path::Path::new(&format!("/proc/{device}")).exists());
    // It said so itself; there was nobody to give it up to.
    assert_eq!(space.remote.bar().resets.load(SeqCst), 0);
    drop(queue);
    drop(space);
}

#[test]
fn with_nobody_left_every_call_still_ends_in_time() {
    let bound = Duration::from_secs(10);
    // A driver of little patience.
    let limits = Limits { silence: Duration::from_millis(300), reset: Duration::from_millis(300), ..limits() };
    let mut machine = Machine::processes_with(&[], limits);
    let space = Space::new(&machine, 3, false);
    let queue = space.queue(QueueKind::Sdma, 0);
    let device = machine.program().device_pid().unwrap();
    machine.program().signal_device(libc::SIGSTOP);
    let Place::Processes { program, .. } = &mut machine.place else { panic!() };
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    timed("the first call", bound, || space.remote.flush_tlb(space.vmid));
    wait_for(&machine, Condition::Lost);
    calls_fail_quickly(&space, &queue, queue.at, queue.ring);
    // SAFETY: the test's own process, an orphan by now.
    assert_eq!(unsafe { libc::kill(device, libc::SIGKILL) }, 0);
    drop(queue);
    drop(space);
}

#[test]
fn a_driver_that_starts_over_gets_a_device_without_a_past() {
    let mut machine = Machine::processes(&[]);
    let space = Space::new(&machine, 3, false);
    let dst = space.map_ram(RAM_VA, 64);
    space.ram.write(space.map_ram(BACK_VA, 64), &noise(1, 64 * PAGE));
    let mut queue = space.queue(QueueKind::Sdma, 0);
    space.remote.write_entries(VramOffset(50 << 20), 1, 0, 512);
    for _ in 0..500 {
        queue.copy(RAM_VA, BACK_VA, 64 * PAGE);
    }
    // The guest has crashed and boots again: nothing was told to end.
    machine.guest.halt();
    let again = Remote::new(machine.remote().bar().again(), limits()).unwrap();
    assert_eq!(again.read_entry(VramOffset(50 << 20)), 0, "VRAM has contents");
    space.ram.write(dst, &[0; 64 * 4096]);
    std::thread::sleep(Duration::from_millis(50));
    assert!(space.ram.read(dst, 64 * PAGE).iter().all(|byte| *byte == 0), "a queue of the old driver's runs");
    assert!(again.clock() > 0);
    // And when the driver goes, the device process does.
    let pid = machine.program().device_pid().unwrap();
    drop(again);
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn another_memory_than_the_guests_is_noticed() {
    let other = crate::ram::Ram::new();
    let program = crate::machine::Program::start(other.path(), &[]);
    let (_connection, setup) = program.connect("gpu");
    let result = Remote::new(TestBar::map(&setup, crate::ram::Ram::new()), limits());
    assert_eq!(errno(result), Some(Errno::EFAULT));
    let program = crate::machine::Program::start(std::path::Path::new("/nowhere/ram"), &[]);
    let (_connection, setup) = program.connect("gpu");
    let result = Remote::new(TestBar::map(&setup, other), limits());
    assert_eq!(errno(result), Some(Errno::ENOENT));
}

#[test]
fn vram_that_the_guests_kernel_has_as_ram_is_refused() {
    let ram = crate::ram::Ram::new();
    let program = crate::machine::Program::start(ram.path(), &["--vram-in-ram", &crate::ram::VRAM_IN_RAM.to_string()]);
    let (_connection, setup) = program.connect("gpu");
    let mut bar = TestBar::map(&setup, ram.clone());
    bar.all_is_ram = true;
    let before = ram.load(PhysAddr(crate::ram::VRAM_IN_RAM));
    assert_eq!(errno(Remote::new(bar, limits())), Some(Errno::EBUSY));
    assert_eq!(ram.load(PhysAddr(crate::ram::VRAM_IN_RAM)), before);
    // The same device is used when that has been put right.
    assert!(Remote::new(TestBar::map(&setup, ram), limits()).is_ok());
}

#[test]
fn many_deaths_under_load_leave_a_driver_that_works() {
    let machine = Machine::processes(&[]);
    let space = Space::new(&machine, 3, true);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(SeqCst) {
                space.remote.suspend(space.vmid);
                space.remote.flush_tlb(space.vmid);
                space.remote.resume(space.vmid);
            }
        });
        scope.spawn(|| {
            let ring = space.ram.pages(5);
            space.map(0x7100_0000_0000, 5, vkfd_driver::base::pte::Target::System(ring), crate::queue::RW);
            while !stop.load(SeqCst) {
                // Faults without end: nothing is mapped there.
                if let Ok(mut queue) = space.queue_on(QueueKind::Sdma, 0x7100_0000_0000, ring) {
                    queue.fence(0x1000, 1);
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(100));
            let epoch = space.remote.bar().read(layout::EPOCH);
            if let Some(pid) = machine.program().device_pid() {
                // SAFETY: as in `Program::signal_device`; it may have ended meanwhile.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            until("the next one", || {
                space.remote.bar().read(layout::READY) > epoch && space.remote.condition() == Condition::Live
            });
        }
        drop(end);
    });
    let dst = space.map_ram(RAM_VA, 1);
    let mut queue = space.queue(QueueKind::Sdma, 1);
    queue.fence(RAM_VA, 9);
    queue.wait();
    assert_eq!(space.ram.load(dst), 9);
}
