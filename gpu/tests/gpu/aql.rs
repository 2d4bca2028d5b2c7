// SPDX-License-Identifier: GPL-2.0 OR MIT
//! AQL packets. Kernels are in `kernels` and `code_objects`.

use crate::rig::*;
use vkfd_gpu::*;

const CODE: u64 = SCRATCH + 0x1000;
const KERNARG: u64 = SCRATCH + 0x2000;
const SIGNAL: u64 = SCRATCH + 0x3000;
const MAILBOX: u64 = SCRATCH + 0x4000;
const OUT: u64 = SCRATCH + 0x5000;

fn packet(kind: u16, words: &[(usize, u64)]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..2].copy_from_slice(&kind.to_le_bytes());
    for &(offset, word) in words {
        bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[test]
fn completion_writes_times_the_mailbox_and_the_event() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Aql);
    rig.write_u64(SIGNAL + 8, 5);
    rig.write_u64(SIGNAL + 16, VA + MAILBOX);
    rig.write_u64(SIGNAL + 24, 77);
    let before = clock();
    queue.dispatch(&packet(3, &[(56, VA + SIGNAL)]));
    assert_eq!(rig.event(), Event::Signal(77));
    assert_eq!((rig.read_u64(SIGNAL + 8), rig.read_u64(MAILBOX)), (4, 77));
    let (start, end) = (rig.read_u64(SIGNAL + 32), rig.read_u64(SIGNAL + 40));
    assert!(before <= start && start <= end && end <= clock());
    assert_eq!(queue.rptr(), 1);
    assert_eq!(rig.read(0, 2), [1, 0], "the packet is INVALID afterwards");
}

#[test]
fn barriers_wait_for_all_or_any() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Aql);
    let signals: [u64; 3] = std::array::from_fn(|index| SCRATCH + 64 * index as u64);
    let mut barrier = |kind: u16, done: &[usize], last: usize| {
        for (index, signal) in signals.into_iter().enumerate() {
            rig.write_u64(signal + 8, u64::from(!done.contains(&index)));
        }
        let [a, b, c] = signals.map(|signal| VA + signal);
        let hits = rig.gpu.counters().tlb_hits;
        queue.dispatch(&packet(kind, &[(8, a), (24, b), (40, c)]));
        until("barrier looked", || rig.gpu.counters().tlb_hits > hits + 100);
        assert_eq!(queue.rptr(), queue.wptr - 1);
        rig.write_u64(signals[last] + 8, 0);
        queue.wait();
    };
    barrier(3, &[0, 1], 2);
    barrier(3, &[1, 2], 0);
    barrier(5, &[], 1);
    // Nothing to wait for.
    queue.dispatch(&packet(3, &[]));
    queue.dispatch(&packet(5, &[]));
    queue.wait();
    // Barrier-value: (value & mask) >= 4.
    let mut value = packet(0, &[(8, VA + SCRATCH), (16, 4), (24, 0xf), (32, 3)]);
    value[2] = 2;
    rig.write_u64(SCRATCH + 8, 0xf3);
    queue.dispatch(&value);
    let hits = rig.gpu.counters().tlb_hits;
    until("barrier looked", || rig.gpu.counters().tlb_hits > hits + 100);
    assert_eq!(queue.rptr(), queue.wptr - 1);
    rig.write_u64(SCRATCH + 8, 0xf4);
    queue.wait();
    // No signal: nothing to wait for, whatever is compared. HIP 5.7.1 sends such markers to gfx90a.
    value[8..16].fill(0);
    queue.dispatch(&value);
    queue.wait();
}

#[test]
fn a_packet_counts_once_its_header_is_written() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Aql);
    // The second packet is complete before the first; a zeroed ring holds vendor packets, so the
    // first is marked.
    rig.write(0, &1u16.to_le_bytes());
    queue.wptr = 1;
    queue.dispatch(&packet(3, &[]));
    until("header seen", || rig.gpu.counters().tlb_hits > 10);
    assert_eq!(queue.rptr(), 0);
    rig.write(0, &packet(3, &[]));
    queue.wait();
    assert_eq!(rig.gpu.counters().packets, 2);
}

#[test]
fn doorbells_may_step_back() {
    use std::sync::atomic::Ordering::SeqCst;
    let rig = Rig::new();
    let queue = rig.queue(QueueKind::Aql);
    for index in 0..3 {
        rig.write(index * 64, &packet(3, &[]));
    }
    rig.write_u64(WPTR, 3);
    queue.slot.store(1, SeqCst);
    until("all three", || queue.rptr() == 3);
    queue.slot.store(0, SeqCst);
    rig.gpu.ring();
    until("doorbell seen", || rig.gpu.counters().tlb_hits > 10);
    assert_eq!(queue.rptr(), 3);
}

#[test]
fn what_is_not_a_kernel_halts_the_queue() {
    // Zeros, and an entry that no code can have.
    let mut odd = [0; 64];
    odd[16] = 4;
    for code in [[0; 64], odd] {
        let rig = Rig::new();
        rig.write(CODE, &code);
        let mut queue = rig.queue(QueueKind::Aql);
        queue.dispatch(&packet(2, &[(32, VA + CODE), (40, VA + KERNARG), (56, VA + SIGNAL)]));
        let Event::Error(QueueError::Launch { kernel, .. }) = rig.event() else { panic!() };
        assert_eq!(kernel, KernelName { object: VA + CODE, name: None });
        assert_eq!((queue.rptr(), rig.read_u64(SIGNAL + 8)), (0, 0), "not completed");
    }
}

#[test]
fn a_packet_without_a_kernel_is_refused_and_no_page_fault() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Aql);
    queue.dispatch(&packet(2, &[(40, VA + KERNARG), (56, VA + SIGNAL)]));
    let Event::Error(QueueError::Launch { kernel, error }) = rig.event() else { panic!() };
    assert_eq!((kernel.object, error), (0, LaunchError::Code("the packet names no kernel")));
    assert_eq!((queue.rptr(), rig.read_u64(SIGNAL + 8)), (0, 0), "not completed");
}

#[test]
fn kernels_need_executable_memory() {
    let rig = Rig::new();
    rig.write(CODE, &[1; 64]);
    rig.map(VA + CODE, sys(CODE), RW, 0);
    let mut queue = rig.queue(QueueKind::Aql);
    queue.dispatch(&packet(2, &[(32, VA + CODE), (40, VA + KERNARG)]));
    let Event::Fault(fault) = rig.event() else { panic!() };
    assert_eq!((fault.access, fault.reason), (Access::Execute, FaultReason::Permission));
}

#[test]
fn bad_packets_halt_the_queue() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Aql);
    queue.dispatch(&packet(4, &[]));
    assert!(matches!(rig.event(), Event::Error(QueueError::BadPacket { offset: 0, .. })));
    queue.remove();
}

/// A vendor packet that runs `words` of PM4 at [`DATA`].
fn pm4(rig: &Rig, words: &[u32]) -> [u8; 64] {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    rig.write(DATA, &bytes);
    let mut packet = packet(0, &[(8, VA + DATA), (16, words.len() as u64 | 1 << 23 | 10 << 32), (56, VA + SIGNAL)]);
    packet[2] = 1;
    packet[4..8].copy_from_slice(&0xc002_3f00u32.to_le_bytes());
    packet
}

#[test]
fn pm4_in_vendor_packets() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Aql);
    rig.write_u64(SIGNAL + 8, 1);
    let header = |op: u32, body: u32| 3 << 30 | (body - 1) << 16 | op << 8;
    let at = |offset| split(VA + OUT + offset);
    let [[a0, a1], [b0, b1], [c0, c1], [d0, d1]] = [at(0), at(16), at(24), at(32)];
    queue.dispatch(&pm4(
        &rig,
        &[
            &[0x8000_0000, 0xffff_1000, header(0x10, 2), 5, 6][..],
            &[header(0x58, 6), 0, 0, 0, 0, 0, 0],
            &[header(0x37, 6), 5 << 8 | 1 << 20, a0, a1, 11, 12, 13],
            &[header(0x3c, 6), 3 | 1 << 4, a0, a1, 11, 0xff, 4],
            &[header(0x49, 7), 0x514, 2 << 29 | 2 << 24, b0, b1, 21, 22, 33],
            &[header(0x49, 7), 0x514, 1 << 29, c0, c1, 23, 24, 0],
            &[header(0x49, 7), 0x514, 3 << 29, d0, d1, 0, 0, 0],
        ]
        .concat(),
    ));
    assert_eq!(rig.event(), Event::Signal(33));
    queue.wait();
    until("signal", || rig.read_u64(SIGNAL + 8) == 0);
    assert_eq!((rig.read_u64(OUT), rig.read_u64(OUT + 8)), (11 | 12 << 32, 13));
    assert_eq!((rig.read_u64(OUT + 16), rig.read_u64(OUT + 24)), (21 | 22 << 32, 23));
    assert!(rig.read_u64(OUT + 32) > 0 && rig.read_u64(OUT + 32) <= clock());
    queue.remove();
    for (words, what) in [
        (vec![header(0x15, 4), 1, 1, 1, 1], "a dispatch without a program"),
        (vec![header(0x37, 4), 3 << 8, a0, a1, 1], "opcode 0x37 is not supported"),
        (vec![header(0x10, 4), 0, 0, 0], "leaves its indirect buffer"),
        (vec![header(0x49, 6), 0, 0, a0, a1, 0, 0], "6 words instead of 7"),
        (vec![7], "not of type 3"),
    ] {
        let mut queue = rig.queue(QueueKind::Aql);
        queue.dispatch(&pm4(&rig, &words));
        let Event::Error(QueueError::BadPacket { message, .. }) = rig.event() else { panic!("{what}") };
        assert!(message.contains(what), "{message}");
        queue.remove();
    }
}

/// Where an `amd_queue_t` would be for a queue whose pointers are in it.
const AMD_QUEUE: u64 = SCRATCH + 0x6000;

/// A queue whose two indices are in an `amd_queue_t`, with an error signal that names event 55.
fn runtime_queue(rig: &Rig, own_offset: u32) -> TestQueue<'_> {
    rig.write(AMD_QUEUE, &[0; 256]);
    rig.write(AMD_QUEUE + 136, &own_offset.to_le_bytes());
    rig.write_u64(AMD_QUEUE + 192, VA + SIGNAL);
    rig.write(SIGNAL, &[0; 64]);
    rig.write_u64(SIGNAL + 16, VA + MAILBOX);
    rig.write_u64(SIGNAL + 24, 55);
    rig.queue_with_pointers(QueueKind::Aql, 0, AMD_QUEUE + 128, AMD_QUEUE + 56)
}

#[test]
fn a_halted_queue_tells_the_runtime_that_made_it() {
    let not_code = packet(2, &[(32, VA + CODE), (40, VA + KERNARG)]);
    for (packet, code) in [(not_code, 8), (packet(4, &[]), 32)] {
        let rig = Rig::new();
        let mut queue = runtime_queue(&rig, 128);
        // Code that is not aligned.
        rig.write(CODE + 16, &[1]);
        queue.dispatch(&packet);
        let Event::Error(_) = rig.event() else { panic!() };
        assert_eq!(rig.event(), Event::Signal(55));
        assert_eq!((rig.read_u64(SIGNAL + 8), rig.read_u64(MAILBOX)), (code, 55));
    }
}

#[test]
fn a_halted_queue_touches_nothing_that_is_no_runtimes() {
    for (own_offset, signal) in
        [(0, VA + SIGNAL), (127, VA + SIGNAL), (u32::MAX, VA + SIGNAL), (128, 0), (128, 0x1234_5000_0000)]
    {
        let rig = Rig::new();
        let mut queue = runtime_queue(&rig, own_offset);
        rig.write_u64(AMD_QUEUE + 192, signal);
        queue.dispatch(&packet(4, &[]));
        let Event::Error(QueueError::BadPacket { .. }) = rig.event() else { panic!() };
        // Removed, so it has done all that it does.
        queue.remove();
        assert_eq!((rig.read_u64(SIGNAL + 8), rig.read_u64(MAILBOX)), (0, 0));
        assert!(rig.events.try_recv().is_err(), "neither an event nor a fault");
    }
}
