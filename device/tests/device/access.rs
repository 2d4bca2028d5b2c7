// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the GPU reaches, and when it does not: copies, barriers, stale entries, faults that are
//! retried.

use crate::guest::{until, Report, Stop};
use crate::machine::{model, Machine};
use crate::queue::{noise, Space, RW};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use vkfd_device::device::Model;
use vkfd_driver::base::addr::{FabricAddr, GpuVa, PhysAddr, VramOffset, PAGE};
use vkfd_driver::base::pte::{Target, READABLE};
use vkfd_driver::seams::gpu::{FaultReason, Gpu, QueueKind, Vmid};
use vkfd_sabotage::Switch;
use vkfd_wire::command::Command;
use vkfd_wire::vmid::VmidState;
use vkfd_wire::{layout, Bar};

const RAM_VA: u64 = 0x10_0000_0000;
const VRAM_VA: u64 = 0x20_0000_0000;
const BACK_VA: u64 = 0x30_0000_0000;

#[test]
fn a_gpu_has_as_many_units_as_its_process_was_told() {
    for (units, shown) in [(None, 64), (Some(3), 3), (Some(64), 64)] {
        let machine = Machine::local(Model { units, ..model() });
        assert_eq!(machine.remote().properties().model.units, shown);
    }
}

#[test]
fn the_gpu_is_what_its_process_was_told_and_its_vram_is_empty() {
    Machine::each(|machine| {
        let remote = machine.remote();
        let properties = remote.properties();
        assert_eq!((properties.gpu_id, properties.vram_bytes), (0x4b01, crate::machine::VRAM));
        assert_eq!((properties.gfx_target_version, properties.vmids, properties.xnack_capable), (90_000, 16, true));
        assert_eq!(properties.vram_base, FabricAddr(0));
        assert_eq!(remote.bar_offset(VramOffset(8)), layout::VRAM_ALIGN + 8);
        let (first, second) = (remote.clock(), remote.clock());
        assert!(first != 0 && second >= first);
        // Entries go up and down, small clears and large ones.
        remote.write_entries(VramOffset(0x1000), 7, 0x1000, 600);
        assert_eq!((remote.read_entry(VramOffset(0x1000)), remote.read_entry(VramOffset(0x1008))), (7, 0x1007));
        let last = VramOffset(0x1000 + 599 * 8);
        assert_eq!(remote.read_entry(last), 7 + 599 * 0x1000);
        remote.clear(VramOffset(0x1008), 8);
        assert_eq!((remote.read_entry(VramOffset(0x1008)), remote.read_entry(VramOffset(0x1010))), (0, 0x2007));
        for bytes in [4096, 1 << 20, crate::machine::VRAM - 0x1000] {
            remote.write_entries(VramOffset(0x1000), 9, 0, 512);
            let end = VramOffset(0x1000 + bytes - 8);
            remote.write_entries(end, 9, 0, 1);
            remote.clear(VramOffset(0x1000), bytes);
            assert_eq!((remote.read_entry(VramOffset(0x1000)), remote.read_entry(end)), (0, 0), "{bytes:#x}");
        }
    });
}

#[test]
fn copies_between_guest_ram_and_vram_arrive_byte_for_byte() {
    Machine::each(|machine| {
        let space = Space::new(machine, 3, false);
        let pages = 1024;
        let source = space.map_ram(RAM_VA, pages);
        let vram = space.map_vram(VRAM_VA, pages);
        // Pages one by one, in no order, from both sides of the hole.
        let back = space.reserve(BACK_VA, pages);
        let mut scattered: Vec<PhysAddr> = (0..pages).map(|_| space.ram.pages(1)).collect();
        scattered.reverse();
        back.write(&*space.remote, 0, pages, |page| (Target::System(scattered[usize::try_from(page).unwrap()]), RW));
        let data = noise(1, pages * PAGE);
        space.ram.write(source, &data);
        let mut queue = space.queue(QueueKind::Sdma, 0);
        for (skew, bytes) in [(0, 1), (1, 7), (4095, 2), (5, 4096), (4001, 9000), (0, pages * PAGE)] {
            queue.copy(VRAM_VA + skew, RAM_VA + skew, bytes);
            queue.copy(BACK_VA + skew, VRAM_VA + skew, bytes);
        }
        queue.wait();
        for (page, at) in scattered.iter().enumerate() {
            assert_eq!(space.ram.read(*at, PAGE), data[page * 4096..(page + 1) * 4096], "page {page}");
        }
        // The guest sees the VRAM in the BAR.
        for word in [0, 8, pages * PAGE - 8] {
            let at = usize::try_from(word).unwrap();
            let expected = u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
            assert_eq!(machine.remote().bar().read(machine.remote().bar_offset(vram) + word), expected);
        }
    });
}

/// The queue writes the same page again and again; `f` runs meanwhile, and hears whether a write
/// came since.
fn while_writing(space: &Space, dst: PhysAddr, f: impl FnOnce(&dyn Fn() -> bool)) {
    let stop = AtomicBool::new(false);
    let source = space.map_ram(BACK_VA, 16);
    space.ram.write(source, &noise(7, 16 * PAGE));
    std::thread::scope(|scope| {
        let end = Stop(&stop);
        scope.spawn(|| {
            let mut queue = space.queue(QueueKind::Sdma, 9);
            while !stop.load(SeqCst) {
                if queue.wptr - queue.rptr() < 0x1000 {
                    queue.copy(RAM_VA, BACK_VA, 16 * PAGE);
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let wrote = || {
            space.ram.store(dst, 0);
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(30) {
                if space.ram.load(dst) != 0 {
                    return true;
                }
                std::thread::yield_now();
            }
            false
        };
        until("it writes", wrote);
        f(&wrote);
        drop(end);
    });
}

#[test]
fn suspending_stops_accesses_and_resuming_lets_them_go_on() {
    Machine::each(|machine| {
        let space = Space::new(machine, 3, false);
        let dst = space.map_ram(RAM_VA, 16);
        let others = Space::with_vram(machine, 4, false, space.vram.clone());
        while_writing(&space, dst, |wrote| {
            for _ in 0..5 {
                space.remote.suspend(Vmid(3));
                assert!(!wrote(), "an access after suspend returned");
                // Twice is as good as once, and another VMID is another matter.
                space.remote.suspend(Vmid(3));
                space.remote.resume(others.vmid);
                assert!(!wrote());
                space.remote.resume(Vmid(3));
                until("it goes on", wrote);
            }
        });
    });
}

#[test]
fn a_state_that_was_overtaken_by_a_newer_one_is_not_applied() {
    Machine::each(|machine| {
        let space = Space::new(machine, 3, false);
        let dst = space.map_ram(RAM_VA, 16);
        // As a thread sends it that was held up on the way: the last mailbox, which nothing else
        // reaches for.
        let bar = machine.remote().bar();
        let send = |number, state: VmidState| {
            let at = layout::mailbox(layout::MAILBOXES - 1);
            for (i, word) in (0..).zip(Command::SetVmid { vmid: Vmid(3), state }.encode()) {
                bar.write(at + layout::COMMAND + 8 * i, word);
            }
            bar.write(at + layout::FOR_EPOCH, bar.read(layout::EPOCH));
            bar.write(at + layout::NUMBER, number);
            bar.doorbell(layout::KICK);
            until("an answer", || bar.read(at + layout::DONE) == number);
            assert_eq!(bar.read(at + layout::STATUS), 0, "overtaken is no error");
        };
        let root = FabricAddr(space.root().0);
        let state =
            |version| (0..version).fold(VmidState::default().with_root(Some(root), false), |state, _| state.next());
        while_writing(&space, dst, |wrote| {
            space.remote.suspend(Vmid(3));
            send(1 << 40, state(1));
            assert!(!wrote(), "resumed by a state older than the suspension");
            // The same, newer: it is that which is looked at.
            send((1 << 40) + 1, state(100));
            until("it goes on", wrote);
            send((1 << 40) + 2, state(100).with_suspended(true).next());
            assert!(!wrote());
            // The driver's own are old by now, so that the queue ends suspended.
        });
    });
}

/// Takes a page away from the GPU, gives it to somebody else, and says whether the GPU still wrote
/// there.
fn reuses(machine: &Machine, flush: bool) -> bool {
    let space = Space::new(machine, 3, false);
    let page = space.ram.pages(1);
    let leaves = space.map(RAM_VA, 1, Target::System(page), RW);
    let mut queue = space.queue(QueueKind::Sdma, 0);
    queue.fence(RAM_VA, 1);
    queue.wait();
    assert_eq!(space.ram.load(page), 1);
    leaves.clear(&*space.remote, 0, 1);
    if flush {
        space.remote.flush_tlb(space.vmid);
    }
    // Now it is somebody else's.
    let canary = noise(5, PAGE);
    space.ram.write(page, &canary);
    queue.fence(RAM_VA, 2);
    until("the write or a fault", || {
        queue.is_done() || space.ram.read(page, PAGE) != canary || {
            matches!(machine.reports.try_recv(), Ok(Report::Fault(fault)) if fault.reason == FaultReason::NotPresent)
        }
    });
    space.ram.read(page, PAGE) != canary
}

#[test]
fn a_flushed_page_can_be_reused_and_one_that_is_not_flushed_is_corrupted() {
    Machine::each(|machine| {
        assert!(!reuses(machine, true), "a write through an entry that was cleared and flushed");
        assert!(reuses(machine, false), "the TLB does not cache: a driver that forgets to flush would not be caught");
    });
}

#[test]
fn a_device_that_does_not_flush_is_noticed() {
    let broken = Machine::local(Model { sabotage: Switch::SkipTlbFlush.into(), ..model() });
    assert!(reuses(&broken, true));
    drop(broken);
    assert!(reuses(&Machine::processes(&["--sabotage", Switch::SkipTlbFlush.name()]), true));
}

#[test]
fn flushing_while_the_queue_runs_leaves_no_access_behind() {
    Machine::each(|machine| {
        let space = Space::new(machine, 3, true);
        let pages: Vec<PhysAddr> = (0..2).map(|_| space.ram.pages(16)).collect();
        let leaves = space.map(RAM_VA, 16, Target::System(pages[0]), RW);
        let flips = AtomicU64::new(0);
        while_writing(&space, pages[0], |_| {
            let end = Instant::now() + Duration::from_millis(500);
            while Instant::now() < end {
                let turn = usize::try_from(flips.fetch_add(1, SeqCst)).unwrap();
                let (old, new) = (pages[turn % 2], pages[(turn + 1) % 2]);
                leaves.write(&*space.remote, 0, 16, |page| (Target::System(PhysAddr(new.0 + page * PAGE)), RW));
                space.remote.flush_tlb(space.vmid);
                space.ram.write(old, &[0; 16 * 4096]);
                assert!(
                    space.ram.read(old, 16 * PAGE).iter().all(|byte| *byte == 0),
                    "written after the flush, {turn}"
                );
            }
            if flips.load(SeqCst) % 2 == 1 {
                leaves.write(&*space.remote, 0, 16, |page| (Target::System(PhysAddr(pages[0].0 + page * PAGE)), RW));
                space.remote.flush_tlb(space.vmid);
            }
        });
        assert!(flips.load(SeqCst) > 20, "{flips:?}");
    });
}

#[test]
fn a_fault_is_retried_when_it_was_served_and_halts_when_not() {
    Machine::each(|machine| {
        let space = Space::new(machine, 5, true);
        let leaves = space.reserve(RAM_VA, 2);
        let mut queue = space.queue(QueueKind::Sdma, 0);
        queue.fence(RAM_VA + 8, 77);
        let Report::Fault(fault) = machine.report() else { panic!() };
        assert_eq!((fault.vmid, fault.queue, fault.va), (Vmid(5), queue.hw, GpuVa(RAM_VA)));
        assert_eq!((fault.write, fault.reason, fault.retry), (true, FaultReason::NotPresent, true));
        // The device waits as long as it takes.
        std::thread::sleep(Duration::from_millis(20));
        assert!(!queue.is_done());
        let page = space.ram.pages(1);
        leaves.write(&*space.remote, 0, 1, |_| (Target::System(page), RW));
        space.remote.fault_done(space.vmid, fault.va, true);
        queue.wait();
        assert_eq!(space.ram.load(PhysAddr(page.0 + 8)), 77);

        leaves.write(&*space.remote, 1, 1, |_| (Target::System(page), READABLE));
        queue.fence(RAM_VA + PAGE, 78);
        let Report::Fault(fault) = machine.report() else { panic!() };
        assert_eq!((fault.va, fault.reason), (GpuVa(RAM_VA + PAGE), FaultReason::Permission));
        space.remote.fault_done(space.vmid, fault.va, false);
        let Report::Fault(last) = machine.report() else { panic!() };
        assert!(!last.retry && last.va == fault.va);
        let Report::Error(hw, message) = machine.report() else { panic!() };
        assert_eq!(hw, queue.hw);
        assert!(message.contains("page fault"), "{message}");
    });
}

#[test]
fn addresses_that_are_no_ram_fault_and_do_no_harm() {
    Machine::each(|machine| {
        for target in [Target::System(PhysAddr(crate::ram::BELOW)), Target::System(PhysAddr(0xffff_ffff_f000))] {
            let space = Space::new(machine, 3, false);
            space.map(RAM_VA, 1, target, RW);
            let mut queue = space.queue(QueueKind::Sdma, 0);
            queue.fence(RAM_VA, 1);
            let Report::Fault(fault) = machine.report() else { panic!() };
            assert_eq!((fault.reason, fault.retry), (FaultReason::NoMemory, false));
            assert!(matches!(machine.report(), Report::Error(..)));
        }
    });
}

#[test]
fn a_doorbell_written_by_a_client_wakes_a_device_that_sleeps() {
    Machine::each(|machine| {
        let space = Space::new(machine, 3, false);
        space.map_ram(RAM_VA, 1);
        let mut queue = space.queue(QueueKind::Sdma, 0);
        for round in 0..20 {
            // Long enough for it to sleep.
            std::thread::sleep(Duration::from_millis(5));
            let start = Instant::now();
            queue.fence(RAM_VA, round);
            while !queue.is_done() {
                std::hint::spin_loop();
                assert!(start.elapsed() < crate::guest::HANG, "round {round}");
            }
        }
    });
}

#[test]
fn commands_go_there_and_back_and_wake_only_who_sleeps() {
    Machine::each(|machine| {
        let space = Space::new(machine, 3, false);
        let bar = machine.remote().bar();
        let flush = || space.remote.flush_tlb(space.vmid);
        let kicks = bar.kicks.load(SeqCst);
        (0..2000).for_each(|_| flush());
        let kicks = bar.kicks.load(SeqCst) - kicks;
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(2));
            flush();
        }
        assert!(kicks < 2000, "each command kicks: the device's announcements of its sleep are not seen");
    });
}

/// Processor time that a process has used.
fn processor_time(pid: i32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the name, which may hold anything: user and system time are fields 14 and 15, in
    // hundredths of a second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

#[test]
fn a_device_with_nothing_to_do_sleeps() {
    let machine = Machine::processes(&[]);
    let space = Space::new(&machine, 3, false);
    let pid = machine.program().device_pid().unwrap();
    let used = |time: Duration| {
        let before = processor_time(pid);
        std::thread::sleep(time);
        (processor_time(pid) - before).as_secs_f64() / time.as_secs_f64() * 100.0
    };
    let alone = used(Duration::from_secs(2));
    let queues: Vec<_> = (0..32).map(|number| space.queue(QueueKind::Sdma, number)).collect();
    let with_queues = used(Duration::from_secs(2));
    eprintln!("processor of an idle device: {alone:.1} %, with {} queues {with_queues:.1} %", queues.len());
    assert!(alone < 10.0);
    // Each looks at its doorbell once a millisecond.
    assert!(with_queues < 100.0);
}
