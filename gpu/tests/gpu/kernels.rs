// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Kernels in gfx900's machine code, run through AQL: sizes, barriers, scratch, atomics, groups
//! that wait for each other, errors.

use crate::rig::*;
use std::time::{Duration, Instant};
use vkfd_gpu::memory::pte;
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

/// The kernels of `kernels/gfx900.s`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    Add,
    Reverse,
    Scratch,
    Count,
    Meet,
    Forever,
    Churn,
    Trap,
    Illegal,
    Message,
    Poke,
}

const BYTES: &[u8] = include_bytes!("kernels/gfx900.bin");
pub const SLOT: u64 = 512;
/// Offsets in system memory: code, descriptors behind it, arguments, signals.
pub const CODE: u64 = 0x40000;
const DESCRIPTORS: u64 = CODE + 0x4000;
const KERNARGS: u64 = 0x50000;
const SIGNALS: u64 = 0x58000;

/// COMPUTE_PGM_RSRC2: user SGPRs, the work-group's index, scratch.
const RSRC2: u32 = 2 << 1 | 1 << 7;
const RSRC2_SCRATCH: u32 = 6 << 1 | 1 << 7 | 1;
const KERNARG_PTR: u32 = 1 << 3;
const PRIVATE_BUFFER: u32 = 1;

/// Code whose work-groups each store a word at their place in the list that is the argument. The
/// instruction `word` puts it into s6; the group's number is in s2.
pub const fn storing(word: u32) -> [u32; 10] {
    [
        // s_load_dwordx2 s[4:5], s[0:1], 0x0
        0xc006_0100,
        0,
        word,
        // s_lshl_b32 s3, s2, 2; v_mov_b32 v1, s6; v_mov_b32 v2, s3; s_waitcnt lgkmcnt(0)
        0x8e03_8202,
        0x7e02_0206,
        0x7e04_0203,
        0xbf8c_c07f,
        // global_store_dword v2, v1, s[4:5]; s_endpgm
        0xdc70_8000,
        0x0004_0102,
        0xbf81_0000,
    ]
}

/// Writes other code over a kernel that is in memory.
pub fn replace(rig: &Rig, kernel: Kernel, code: &[u32]) {
    let bytes: Vec<u8> = code.iter().flat_map(|word| word.to_le_bytes()).collect();
    rig.write(CODE + kernel as u64 * SLOT, &bytes);
}

/// Puts all kernels into memory.
pub fn load(rig: &Rig) {
    rig.write(CODE, BYTES);
    for (index, at) in (0..BYTES.len() as u64 / SLOT).zip((DESCRIPTORS..).step_by(64)) {
        let scratch = index == Kernel::Scratch as u64;
        let entry = CODE + index * SLOT;
        let mut descriptor = [0u8; 64];
        descriptor[16..24].copy_from_slice(&entry.wrapping_sub(at).to_le_bytes());
        let rsrc1 = 3 | 3 << 6 | 0xf << 16 | 1 << 21 | 1 << 23;
        let rsrc2 = if scratch { RSRC2_SCRATCH } else { RSRC2 };
        let properties = KERNARG_PTR | if scratch { PRIVATE_BUFFER } else { 0 };
        for (offset, word) in [(48, rsrc1), (52, rsrc2), (56, properties)] {
            descriptor[offset..offset + 4].copy_from_slice(&word.to_le_bytes());
        }
        rig.write(at, &descriptor);
    }
}

/// Where LLVM 19 is installed; without it nothing is compared.
#[test]
fn the_bytes_are_the_sources() {
    let kernels = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu/kernels");
    let object = std::env::temp_dir().join(format!("vkfd-kernels-{}.o", std::process::id()));
    let text = object.with_extension("bin");
    let mut assembler = std::process::Command::new("llvm-mc-19");
    assembler.args(["-triple=amdgcn-amd-amdhsa", "-mcpu=gfx900", "-filetype=obj"]);
    let Ok(status) = assembler.arg(kernels.join("gfx900.s")).arg("-o").arg(&object).status() else {
        println!("there is no llvm-mc-19: not compared");
        return;
    };
    assert!(status.success());
    let mut copy = std::process::Command::new("llvm-objcopy-19");
    let status = copy.args(["-O", "binary", "-j", ".text"]).arg(&object).arg(&text).status().unwrap();
    assert!(status.success());
    assert!(std::fs::read(&text).unwrap() == BYTES, "gfx900.bin is not made of gfx900.s");
    let _ = (std::fs::remove_file(object), std::fs::remove_file(text));
}

/// A dispatch packet.
#[derive(Clone, Copy)]
pub struct Dispatch {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub group: [u16; 3],
    pub lds: u32,
    pub private: u32,
    /// Number of the arguments and of the signal.
    pub number: u64,
}

impl Dispatch {
    pub fn new(kernel: Kernel, grid: u32, group: u16) -> Dispatch {
        Dispatch { kernel, grid: [grid, 1, 1], group: [group, 1, 1], lds: 0, private: 0, number: 0 }
    }

    /// Writes the arguments, sets the signal to 1, and submits.
    pub fn submit(&self, queue: &mut TestQueue, arguments: &[u32]) {
        let rig = queue.rig;
        let bytes: Vec<u8> = arguments.iter().flat_map(|word| word.to_le_bytes()).collect();
        rig.write(self.kernarg(), &bytes);
        rig.write_u64(self.signal() + 8, 1);
        let mut packet = [0; 64];
        packet[..4].copy_from_slice(&[2, 0x14, 3, 0]);
        for (size, at) in self.group.into_iter().zip([4, 6, 8]) {
            packet[at..at + 2].copy_from_slice(&size.to_le_bytes());
        }
        for (size, at) in self.grid.into_iter().zip([12, 16, 20]) {
            packet[at..at + 4].copy_from_slice(&size.to_le_bytes());
        }
        packet[24..28].copy_from_slice(&self.private.to_le_bytes());
        packet[28..32].copy_from_slice(&self.lds.to_le_bytes());
        let object = VA + DESCRIPTORS + self.kernel as u64 * 64;
        for (word, at) in [(object, 32), (VA + self.kernarg(), 40), (VA + self.signal(), 56)] {
            packet[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        queue.dispatch(&packet);
    }

    fn kernarg(&self) -> u64 {
        KERNARGS + self.number * 64
    }

    fn signal(&self) -> u64 {
        SIGNALS + self.number * 64
    }

    pub fn is_done(&self, rig: &Rig) -> bool {
        rig.read_u64(self.signal() + 8) == 0
    }

    /// Waits for the signal.
    pub fn wait(&self, rig: &Rig) {
        let start = Instant::now();
        while !self.is_done(rig) {
            if let Ok(event) = rig.events.try_recv() {
                if let Event::Error(error) = &event {
                    panic!("{:?}: {error}", self.kernel);
                }
                assert!(!matches!(event, Event::Fault(fault) if !fault.retry), "{event:?}");
            }
            assert!(start.elapsed() < HANG, "{:?} does not end", self.kernel);
            std::thread::yield_now();
        }
    }

    pub fn run(&self, queue: &mut TestQueue, arguments: &[u32]) {
        self.submit(queue, arguments);
        self.wait(queue.rig);
    }
}

fn arguments(words: &[u64], tail: &[u32]) -> Vec<u32> {
    words.iter().flat_map(|&word| split(word)).chain(tail.iter().copied()).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|chunk| u32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

/// A GPU with the kernels, and so many threads.
pub fn rig(threads: usize, retry: bool) -> Rig {
    let rig = Rig::with(Config { threads, ..Config::default() }, retry);
    load(&rig);
    rig
}

#[test]
fn vectors_are_added_also_where_the_last_group_is_partial() {
    for threads in [1, 4] {
        let rig = rig(threads, false);
        let mut queue = rig.queue(QueueKind::Aql);
        let (a, b, c) = (DATA, DATA + 0x10_0000, DATA + 0x20_0000);
        for (n, grid, group) in [(1000, 1000, 256), (70, 70, 64), (1, 1, 1), (100_000, 100_352, 1024), (77, 130, 13)] {
            rig.write(a, &noise(n, 0x10_0000));
            rig.write(b, &noise(n + 1, 0x10_0000));
            rig.write(c, &vec![0; 0x10_0000]);
            let tail = [u32::try_from(n).unwrap(), u32::from(group)];
            let add = Dispatch::new(Kernel::Add, grid, group);
            add.run(&mut queue, &arguments(&[VA + a, VA + b, VA + c], &tail));
            let len = usize::try_from(n).unwrap();
            let (a, b) = (words(&rig.read(a, 4 * len)), words(&rig.read(b, 4 * len)));
            let sums: Vec<u32> = a.iter().zip(b).map(|(a, b)| a.wrapping_add(b)).collect();
            assert_eq!(words(&rig.read(c, 4 * len)), sums);
            assert_eq!(rig.read(c + n * 4, 64), [0; 64], "nothing behind it");
        }
        let (start, end) = (rig.read_u64(SIGNALS + 32), rig.read_u64(SIGNALS + 40));
        assert!(0 < start && start <= end && end <= clock());
    }
}

#[test]
fn groups_are_reversed_through_lds() {
    let rig = rig(4, false);
    let mut queue = rig.queue(QueueKind::Aql);
    for (groups, group) in [(1, 64u16), (50, 256), (3, 1024), (7, 100)] {
        let count = groups * u32::from(group);
        let before = noise(count.into(), 4 * count as usize);
        rig.write(DATA, &before);
        let dispatch = Dispatch { lds: 4 * u32::from(group), ..Dispatch::new(Kernel::Reverse, count, group) };
        dispatch.run(&mut queue, &arguments(&[VA + DATA], &[group.into()]));
        let expected: Vec<u32> =
            words(&before).chunks(group.into()).flat_map(|group| group.iter().rev().copied()).collect();
        assert_eq!(words(&rig.read(DATA, 4 * count as usize)), expected, "{groups} of {group}");
    }
}

#[test]
fn atomics_of_all_groups_add_up() {
    let rig = rig(4, false);
    let mut queue = rig.queue(QueueKind::Aql);
    rig.write_u64(DATA, 0);
    Dispatch::new(Kernel::Count, 64 * 1000, 64).run(&mut queue, &arguments(&[VA + DATA], &[]));
    assert_eq!(rig.read_u32(DATA), 1000 * (64 * 65 / 2));
}

#[test]
fn groups_that_wait_for_each_other_get_on() {
    for (threads, sleep) in [(1, 1), (1, 0), (3, 1), (3, 0)] {
        let rig = rig(threads, false);
        let mut queue = rig.queue(QueueKind::Aql);
        let groups = 100;
        rig.write(DATA, &vec![0; 8192]);
        let meet = Dispatch::new(Kernel::Meet, 64 * groups, 64);
        meet.run(
            &mut queue,
            &arguments(&[VA + DATA], &[groups, sleep]).into_iter().chain(split(VA + DATA + 4096)).collect::<Vec<_>>(),
        );
        assert_eq!(words(&rig.read(DATA + 4096, 4 * 101)), [vec![1; 100], vec![0]].concat());
    }
}

#[test]
fn what_a_kernel_does_wrong_ends_the_queue_with_words() {
    let poke = [0, 0x10];
    for (kernel, arguments, expected) in [
        (Kernel::Trap, &[][..], KernelError::Trap { number: 2 }),
        (Kernel::Illegal, &[], KernelError::Illegal(u32::MAX)),
    ] {
        let rig = rig(2, false);
        let mut queue = rig.queue(QueueKind::Aql);
        Dispatch::new(kernel, 6400, 64).submit(&mut queue, arguments);
        let Event::Error(QueueError::Kernel { cause, at, .. }) = rig.event() else { panic!() };
        assert_eq!(cause, expected);
        let first = CODE + kernel as u64 * SLOT;
        assert_eq!(
            (at.pc - VA - first, at.offset, at.wave),
            (if kernel == Kernel::Trap { 8 } else { 4 }, at.pc - VA - first, 0)
        );
        assert!(!Dispatch::new(kernel, 1, 1).is_done(&rig));
        queue.remove();
    }
    let rig = rig(2, false);
    let mut queue = rig.queue(QueueKind::Aql);
    Dispatch::new(Kernel::Poke, 6400, 64).submit(&mut queue, &poke);
    let Event::Fault(fault) = rig.event() else { panic!() };
    assert_eq!((fault.va, fault.access, fault.retry), (0x10_0000_0000, Access::Write, false));
    let Event::Error(error) = rig.event() else { panic!() };
    let text = error.to_string();
    assert!(text.contains("pc 0x") && text.contains("page fault: Write of GPU address 0x1000000000"), "{text}");
    assert_eq!(rig.gpu.counters().faults, 1, "a hundred groups, one report");
}

#[test]
fn launches_that_hardware_refuses_are_refused() {
    let add = Dispatch::new(Kernel::Add, 64, 64);
    for (dispatch, expected) in [
        (Dispatch { grid: [0, 1, 1], ..add }, "has no meaning"),
        (Dispatch { group: [64, 0, 1], ..add }, "has no meaning"),
        (Dispatch { group: [64, 4, 8], ..add }, "2048 work-items"),
        (Dispatch { lds: 65540, ..add }, "65540 bytes of LDS"),
        (Dispatch { kernel: Kernel::Scratch, private: 16, ..add }, "16 bytes of scratch"),
    ] {
        let rig = rig(2, false);
        let mut queue = rig.queue(QueueKind::Aql);
        dispatch.submit(&mut queue, &[]);
        let Event::Error(error) = rig.event() else { panic!() };
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_message_interrupts_the_driver() {
    let rig = rig(1, false);
    let mut queue = rig.queue(QueueKind::Aql);
    let dispatch = Dispatch::new(Kernel::Message, 64, 64);
    dispatch.submit(&mut queue, &[0x99]);
    // Before waiting for the end, which takes what events there are.
    assert_eq!(rig.event(), Event::Signal(0x99));
    dispatch.wait(&rig);
}

/// Where an `amd_queue_t` is, its signal, and scratch memory.
const AMD_QUEUE: u64 = 0x60000;
const INACTIVE: u64 = 0x61000;
const SCRATCH_MEMORY: u64 = 8 << 20;

#[test]
fn scratch_is_asked_for_and_each_wave_has_its_own() {
    for once in [false, true] {
        let rig = rig(4, false);
        rig.write(AMD_QUEUE, &[0; 256]);
        rig.write(AMD_QUEUE + 136, &128u32.to_le_bytes());
        rig.write_u64(AMD_QUEUE + 192, VA + INACTIVE);
        rig.write_u64(INACTIVE + 8, 0);
        let mut queue = rig.queue_with_pointers(QueueKind::Aql, 0, AMD_QUEUE + 128, AMD_QUEUE + 56);
        let count = 256 * 300;
        let scratch = Dispatch { private: 16, ..Dispatch::new(Kernel::Scratch, count, 256) };
        scratch.submit(&mut queue, &arguments(&[VA + DATA], &[256]));
        until("asked for scratch", || rig.read_u64(INACTIVE + 8) == 1);
        assert!(!scratch.is_done(&rig));
        // As the runtime does: ten waves of one KiB.
        let waves = 10;
        let [low, high] = split(VA + SCRATCH_MEMORY);
        let buffer = [low, high | 1 << 31, waves * 1024, 1 << 23 | 3 << 21 | 0xfac | 4 << 12 | 4 << 15];
        for (word, at) in [waves | 1 << 12].iter().chain(&buffer).zip((140..).step_by(4)) {
            rig.write(AMD_QUEUE + at, &word.to_le_bytes());
        }
        rig.write_u64(AMD_QUEUE + 160, VA + SCRATCH_MEMORY);
        rig.write(AMD_QUEUE + 176, &16u32.to_le_bytes());
        rig.write(AMD_QUEUE + 180, &(u32::from(once) << 4).to_le_bytes());
        rig.write_u64(INACTIVE + 8, 0);
        if once {
            until("told that it was used", || rig.read_u64(INACTIVE + 8) == 512);
            assert!(!scratch.is_done(&rig));
            rig.write_u64(INACTIVE + 8, 0);
        }
        scratch.wait(&rig);
        let expected: Vec<u32> = (0..count).map(|i| (0..4).map(|k| (i + 17 * k) << k).sum()).collect();
        assert!(words(&rig.read(DATA, 4 * count as usize)) == expected, "waves share scratch");
        let end = SCRATCH_MEMORY + u64::from(waves) * 1024;
        assert!(rig.read(SCRATCH_MEMORY, 1024).iter().any(|&byte| byte != 0));
        assert_eq!(rig.read(end, 4096), [0; 4096], "nothing behind it");
    }
}

#[test]
fn a_kernel_without_end_is_suspended_disabled_and_removed() {
    for threads in [1, 3] {
        let rig = rig(threads, false);
        let mut queue = rig.queue(QueueKind::Aql);
        Dispatch::new(Kernel::Forever, 64 * 1000, 64).submit(&mut queue, &[]);
        std::thread::sleep(Duration::from_millis(20));
        for _ in 0..100 {
            rig.gpu.suspend(VMID);
            rig.gpu.resume(VMID);
            rig.gpu.flush_tlb(VMID);
        }
        rig.gpu.update_queue(queue.id, VA, RING_BYTES, false).unwrap();
        rig.gpu.update_queue(queue.id, VA, RING_BYTES, true).unwrap();
        rig.gpu.suspend(VMID);
        queue.remove();
        rig.gpu.resume(VMID);
    }
}

/// Long enough for a storm to get at a kernel, also on a processor with nothing else to do.
const ROUNDS: u32 = 5000;
const LCG: (u32, u32) = (1_664_525, 1_013_904_223);

fn churned(before: &[u8], rounds: u32) -> Vec<u32> {
    let churn = |x: u32| (0..rounds).fold(x, |x, _| x.wrapping_mul(LCG.0).wrapping_add(LCG.1));
    words(before).into_iter().map(churn).collect()
}

/// Churns 16,384 words while `storm` goes on. Returns the words in memory afterwards, and the right
/// ones.
fn churn(rig: &Rig, rounds: u32, mut storm: impl FnMut(u64)) -> (Vec<u32>, Vec<u32>) {
    let mut queue = rig.queue(QueueKind::Aql);
    let before = noise(9, 0x10000);
    rig.write(DATA, &before);
    let dispatch = Dispatch::new(Kernel::Churn, 0x4000, 256);
    dispatch.submit(&mut queue, &arguments(&[VA + DATA], &[rounds, 256]));
    let start = Instant::now();
    let mut step = 0;
    while !dispatch.is_done(rig) && start.elapsed() < HANG {
        storm(step);
        step += 1;
    }
    assert!(dispatch.is_done(rig), "{:?}", rig.events.try_iter().last());
    queue.remove();
    (words(&rig.read(DATA, 0x10000)), churned(&before, rounds))
}

/// Moves a page of the churned data to its other place and back: suspends, copies, maps, flushes,
/// resumes.
fn move_page(rig: &Rig, step: u64) {
    let page = step / 2 % 16 * 4096;
    let (home, away) = (DATA + page, DATA + 0x20_0000 + page);
    let (from, to) = if step % 2 == 0 { (home, away) } else { (away, home) };
    rig.gpu.suspend(VMID);
    rig.write(to, &rig.read(from, 4096));
    rig.write(from, &[0xee; 4096]);
    rig.map(VA + home, sys(to), RWX, 0);
    rig.gpu.flush_tlb(VMID);
    rig.gpu.resume(VMID);
}

/// Churns while pages move, and has them all at home in the end.
fn churn_on_moving_pages(rig: &Rig) -> (Vec<u32>, Vec<u32>) {
    let mut steps = 0;
    let (_, expected) = churn(rig, ROUNDS, |step| {
        move_page(rig, step);
        steps = step + 1;
    });
    if steps % 2 == 1 {
        move_page(rig, steps);
    }
    assert!(steps > 2, "{steps}");
    (words(&rig.read(DATA, 0x10000)), expected)
}

#[test]
fn kernels_go_on_while_their_memory_moves() {
    for threads in [1, 4] {
        let (found, expected) = churn_on_moving_pages(&rig(threads, false));
        assert_eq!(found, expected, "{threads} threads");
    }
}

/// Whether something broken has kernels write where nobody reads. A thread has to be stopped
/// between two accesses to a page that moves just then; nearly every time one is.
fn is_noticed(switch: Switch) -> bool {
    (0..20).any(|_| {
        let rig = rig(2, false);
        rig.gpu.sabotage().turn(switch, true);
        let (found, expected) = churn_on_moving_pages(&rig);
        found != expected
    })
}

#[test]
fn a_flush_that_does_nothing_is_noticed_by_kernels() {
    assert!(is_noticed(Switch::SkipTlbFlush), "stale translations wrote where nobody reads");
}

#[test]
fn pages_that_kernels_keep_are_noticed() {
    assert!(is_noticed(Switch::KeptPages), "kept pointers wrote where nobody reads");
}

/// A kernel keeps its pointers over several openings of the gate, if nothing changes.
#[test]
fn kernels_find_each_page_once() {
    let rig = rig(1, false);
    let mut queue = rig.queue(QueueKind::Aql);
    let walks = |rig: &Rig| rig.gpu.counters().tlb_hits + rig.gpu.counters().walks;
    rig.write(DATA, &noise(9, 0x10000));
    let before = walks(&rig);
    // 256 groups of one wave, 16 of them to a page.
    let dispatch = Dispatch::new(Kernel::Churn, 0x4000, 64);
    dispatch.submit(&mut queue, &arguments(&[VA + DATA], &[3000, 64]));
    dispatch.wait(&rig);
    let found = walks(&rig) - before;
    assert!(found < 256, "{found} translations for 256 groups");
    queue.remove();
}

#[test]
fn retry_faults_of_several_threads_are_answered() {
    let rig = rig(4, true);
    let weak = rig.weak();
    // A thread that faults gets its page, of those that the storm takes away.
    let slots: Vec<u64> = (0..16).map(|page| rig.slot(VA + DATA + page * 4096, pte::Level::Ptb)).collect();
    let entries: Vec<u64> = slots.iter().map(|&slot| rig.gpu.vram().read_u64(slot).unwrap()).collect();
    let (given, kept) = (slots.clone(), entries);
    *rig.host.on_fault.lock().unwrap() = Some(Box::new(move |fault: PageFault| {
        let page = usize::try_from((fault.va - VA - DATA) / 4096).unwrap();
        let gpu = weak.upgrade().unwrap();
        gpu.vram().write_u64(given[page], kept[page]).unwrap();
        gpu.fault_done(fault.vmid, fault.va, FaultOutcome::Retry);
    }));
    let (found, expected) = churn(&rig, ROUNDS, |step| {
        let page = usize::try_from(step % 16).unwrap();
        rig.gpu.vram().write_u64(slots[page], 0).unwrap();
        rig.gpu.flush_tlb(VMID);
        std::thread::sleep(Duration::from_micros(50));
    });
    assert_eq!(found, expected);
    // How many there are, the scheduler decides.
    assert!(rig.gpu.counters().retries > 0, "{:?}", rig.gpu.counters());
    assert_eq!(rig.gpu.counters().faults, 0);
}

#[test]
fn several_queues_of_several_address_spaces_run_side_by_side() {
    let rig = rig(3, false);
    let other = Vmid(5);
    rig.gpu.set_root(other, Some(rig.fabric(0)), false);
    let data = |number: u64| DATA + number * 0x2_0000;
    let mut queues: Vec<TestQueue> = (0..6)
        .map(|number| {
            let ring = (9 << 20) + number * 0x4_0000;
            let vmid = if number % 2 == 0 { VMID } else { other };
            rig.queue_in(vmid, QueueKind::Aql, ring, RPTR + ring, WPTR + ring)
        })
        .collect();
    let before: Vec<Vec<u8>> = (0..6).map(|number| noise(number, 0x10000)).collect();
    let mut running = Vec::new();
    for (queue, number) in queues.iter_mut().zip(0..) {
        rig.write(data(number), &before[usize::try_from(number).unwrap()]);
        let dispatch = Dispatch { number, ..Dispatch::new(Kernel::Churn, 0x4000, 256) };
        dispatch.submit(queue, &arguments(&[VA + data(number)], &[100, 256]));
        running.push(dispatch);
    }
    for dispatch in running {
        dispatch.wait(&rig);
        let index = usize::try_from(dispatch.number).unwrap();
        assert_eq!(words(&rig.read(data(dispatch.number), 0x10000)), churned(&before[index], 100), "queue {index}");
    }
}

/// A PM4 packet of type 3.
fn pm4(op: u32, body: &[u32]) -> Vec<u32> {
    let count = u32::try_from(body.len()).unwrap() - 1;
    [&[3 << 30 | count << 16 | op << 8], body].concat()
}

#[test]
fn registers_of_pm4_launch_what_packets_do() {
    let rig = rig(2, false);
    let mut queue = rig.queue(QueueKind::Pm4);
    let (a, b, c) = (DATA, DATA + 0x10_0000, DATA + 0x20_0000);
    rig.write(a, &noise(1, 0x4000));
    rig.write(b, &noise(2, 0x4000));
    let n = 1000;
    let bytes: Vec<u8> =
        arguments(&[VA + a, VA + b, VA + c], &[n, 64]).iter().flat_map(|word| word.to_le_bytes()).collect();
    rig.write(KERNARGS, &bytes);
    let [program, program_high] = split((VA + CODE + Kernel::Add as u64 * SLOT) >> 8);
    let [kernarg, kernarg_high] = split(VA + KERNARGS);
    // COMPUTE_PGM_LO, RSRC1, NUM_THREAD, USER_DATA; START is ignored where the initiator says so.
    for (register, values) in [
        (0x20c, &[program, program_high][..]),
        (0x212, &[3 | 3 << 6 | 0xf << 16 | 1 << 21 | 1 << 23, RSRC2]),
        (0x207, &[64, 1, 1]),
        (0x204, &[100, 0, 0]),
        (0x240, &[kernarg, kernarg_high]),
    ] {
        queue.submit(&pm4(0x76, &[&[register], values].concat()));
    }
    let sums: Vec<u32> =
        words(&rig.read(a, 0x4000)).iter().zip(words(&rig.read(b, 0x4000))).map(|(a, b)| a.wrapping_add(b)).collect();
    rig.write(OUT, &[16, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    let [out, out_high] = split(VA + OUT);
    // Groups; work-items, the last group partial; the sizes in memory.
    for (packet, done) in [
        (pm4(0x15, &[16, 1, 1, 5]), 1000),
        (pm4(0x15, &[130, 1, 1, 5 | 1 << 5]), 130),
        (pm4(0x16, &[out, out_high, 5]), 1000),
        (pm4(0x15, &[0, 1, 1, 5]), 0),
    ] {
        rig.write(c, &[0; 0x4000]);
        queue.submit(&packet);
        queue.wait();
        let found = words(&rig.read(c, 0x4000));
        assert!(found[..done] == sums[..done] && found[done..].iter().all(|&word| word == 0), "{packet:x?}");
    }
    // From another first group on: the hundredth, where nothing is to be done.
    rig.write(c, &[0; 0x4000]);
    queue.submit(&pm4(0x15, &[16, 1, 1, 1]));
    queue.wait();
    assert_eq!(rig.read(c, 0x4000), vec![0; 0x4000]);
    queue.submit(&pm4(0x76, &[0x207, 2048, 1, 1]));
    queue.submit(&pm4(0x15, &[1, 1, 1, 5]));
    assert!(matches!(rig.event(), Event::Error(QueueError::Launch { error: LaunchError::GroupTooLarge(2048), .. })));
}

const OUT: u64 = 0x62000;

#[test]
fn any_code_and_any_descriptor_ends_in_an_error_at_worst() {
    for (seed, target) in (0..60).zip(isa::Target::ALL.into_iter().cycle()) {
        let config = Config { target: Some(target), threads: 2, reference: seed % 2 == 1, ..Config::default() };
        let rig = Rig::with(config, seed % 3 == 0);
        load(&rig);
        let mut code = noise(seed, 0x4000);
        if seed % 4 == 0 {
            // Much of it is scalar: programs get further.
            code.chunks_exact_mut(4).for_each(|word| word[3] = 0x80 | word[3] & 0x3f);
        }
        rig.write(CODE, &code);
        let mut descriptor = noise(seed + 1000, 64);
        let entry = CODE.wrapping_sub(DESCRIPTORS).wrapping_add(256 * (seed % 8));
        descriptor[16..24].copy_from_slice(&entry.to_le_bytes());
        // What compilers make of the rest, in part.
        if seed % 2 == 0 {
            descriptor[44..48].fill(0);
            descriptor[52..56].copy_from_slice(&RSRC2.to_le_bytes());
            descriptor[56..60].copy_from_slice(&KERNARG_PTR.to_le_bytes());
        }
        rig.write(DESCRIPTORS, &descriptor);
        let mut queue = rig.queue(QueueKind::Aql);
        let sizes = noise(seed + 2000, 8);
        let dispatch = Dispatch {
            group: [u16::from(sizes[0]) + 1, u16::from(sizes[1] % 4) + 1, 1],
            lds: u32::from(sizes[2]) * 300,
            ..Dispatch::new(Kernel::Add, u32::from(sizes[3]) * 9 + 1, 1)
        };
        dispatch.submit(&mut queue, &[]);
        let _ = rig.events.recv_timeout(Duration::from_millis(20));
        rig.gpu.suspend(VMID);
        rig.gpu.resume(VMID);
        queue.remove();
        assert_eq!(std::sync::Arc::strong_count(&rig.gpu), 1);
    }
}

#[test]
fn costs_are_added_up_by_kernel() {
    let rig = rig(3, false);
    let mut queue = rig.queue(QueueKind::Aql);
    rig.write_u64(DATA, 0);
    for _ in 0..3 {
        Dispatch::new(Kernel::Count, 64 * 100, 128).run(&mut queue, &arguments(&[VA + DATA], &[]));
    }
    // The signal comes before the next packet is looked at, and the sums before the signal.
    let report = rig.gpu.profile().report();
    let [cost] = report.kernels.values().collect::<Vec<_>>()[..] else { panic!("{report:?}") };
    assert_eq!((cost.launches, cost.groups, cost.waves, cost.instructions), (3, 150, 300, 300 * 6));
    assert_eq!(cost.bytes, 300 * 64 * 4);
    // The fast engine's own loads and stores are counted, too: 100 work-items of two words and
    // their sum.
    let (a, b, c) = (DATA, DATA + 0x1000, DATA + 0x2000);
    Dispatch::new(Kernel::Add, 100, 64).run(&mut queue, &arguments(&[VA + a, VA + b, VA + c], &[100, 64]));
    let more = rig.gpu.profile().report();
    let bytes: u64 = more.kernels.values().map(|cost| cost.bytes).sum();
    assert_eq!(bytes, 300 * 64 * 4 + 100 * 12);
    assert!(cost.nanoseconds > 0 && report.approximate.is_empty() && report.missing.is_empty());
}

#[test]
fn threads_that_compute_are_suspended_again_and_again() {
    let rig = rig(0, false);
    let mut queue = rig.queue(QueueKind::Aql);
    Dispatch::new(Kernel::Forever, 64 * 100, 64).submit(&mut queue, &[]);
    std::thread::sleep(Duration::from_millis(20));
    for _ in 0..2000 {
        std::thread::sleep(Duration::from_micros(100));
        rig.gpu.suspend(VMID);
        rig.gpu.resume(VMID);
    }
    queue.remove();
}
