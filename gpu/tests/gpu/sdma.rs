// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Each SDMA packet.

use crate::rig::*;
use vkfd_gpu::*;

const TARGET: u64 = VA + SCRATCH;

fn address(header: u32, va: u64, rest: &[u32]) -> Vec<u32> {
    let [low, high] = split(va);
    [&[header, low, high], rest].concat()
}

#[test]
fn copies_any_alignment_and_length() {
    let rig = Rig::new();
    let data = noise(2, 0x10000);
    rig.write(DATA, &data);
    let mut queue = rig.queue(QueueKind::Sdma);
    for (skew, len) in [(0u64, 1u32), (1, 7), (3, 64), (4095, 2), (5, 255), (0, 4096), (4001, 9000), (7, 60000)] {
        rig.write(2 << 20, &vec![0xaa; 0x11000]);
        queue.submit(&copy_packet(VA + (2 << 20) + 100, VA + DATA + skew, len));
        queue.wait();
        let (skew, len) = (usize::try_from(skew).unwrap(), usize::try_from(len).unwrap());
        let result = rig.read(2 << 20, len + 101);
        assert_eq!(result[100..100 + len], data[skew..skew + len]);
        assert!(result[..100].iter().chain(&result[100 + len..]).all(|&byte| byte == 0xaa));
    }
}

#[test]
fn broadcast_copies_twice() {
    let rig = Rig::new();
    rig.write(DATA, b"twice");
    let mut queue = rig.queue(QueueKind::Sdma);
    let mut packet = copy_packet(TARGET, VA + DATA, 5).to_vec();
    packet[0] |= 1 << 27;
    packet.extend(split(TARGET + 0x100));
    queue.submit(&packet);
    queue.wait();
    assert_eq!((rig.read(SCRATCH, 5), rig.read(SCRATCH + 0x100, 5)), (b"twice".to_vec(), b"twice".to_vec()));
}

/// A copy of a box of `size` elements (of 2^`element` bytes) between two places, each with x, y, z,
/// pitch and pitch of slices.
fn sub_window(element: u32, [src, dst]: [u64; 2], from: [u32; 5], to: [u32; 5], size: [u32; 3]) -> Vec<u32> {
    let side = |va: u64, [x, y, z, pitch, slice]: [u32; 5]| {
        let [low, high] = split(va);
        [low, high, x | y << 16, z | pitch.wrapping_sub(1) << 13, slice.wrapping_sub(1) & 0xfff_ffff]
    };
    let [x, y, z] = size.map(|size| size - 1);
    [&[1 | 4 << 8 | element << 29][..], &side(src, from), &side(dst, to), &[x | y << 16, z]].concat()
}

#[test]
fn sub_windows_are_copied_box_to_box() {
    let rig = Rig::new();
    let data = noise(3, 0x8000);
    rig.write(DATA, &data);
    let mut queue = rig.queue(QueueKind::Sdma);
    let (size, from, to) = ([5u32, 4, 3], [2u32, 1, 1, 11, 11 * 7], [3u32, 2, 1, 16, 16 * 9]);
    for element in 0..=4 {
        rig.write(2 << 20, &vec![0xaa; 0x8000]);
        queue.submit(&sub_window(element, [VA + DATA, VA + (2 << 20)], from, to, size));
        queue.wait();
        let mut expected = vec![0xaa; 0x8000];
        let place = |[x, y, z, pitch, slice]: [u32; 5], row: u32, depth: u32| {
            usize::try_from((x + (y + row) * pitch + (z + depth) * slice) << element).unwrap()
        };
        let bytes = 5 << element;
        for (row, depth) in (0..size[1]).flat_map(|row| (0..size[2]).map(move |depth| (row, depth))) {
            let (src, dst) = (place(from, row, depth), place(to, row, depth));
            expected[dst..dst + bytes].copy_from_slice(&data[src..src + bytes]);
        }
        assert!(rig.read(2 << 20, 0x8000) == expected, "elements of {} bytes", 1 << element);
    }
}

#[test]
fn fence_trap_timestamp_and_nops() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&[0, 3 << 16, 0xffff_ffff, 0xffff_ffff, 0xffff_ffff]);
    queue.submit(&address(5, TARGET, &[0xcafe]));
    queue.submit(&address(13 | 2 << 8, TARGET + 8, &[]));
    queue.submit(&address(13 | 1 << 8, TARGET + 16, &[]));
    queue.submit(&[6, 0xf000_002a]);
    assert_eq!(rig.event(), Event::Signal(42));
    queue.wait();
    assert_eq!(rig.read_u64(SCRATCH), 0xcafe);
    let (first, second) = (rig.read_u64(SCRATCH + 8), rig.read_u64(SCRATCH + 16));
    assert!(first != 0 && first <= second && second <= clock());
    assert_eq!(rig.gpu.counters().packets, 6);
}

#[test]
fn write_linear_wraps_with_the_ring() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    // A NOP up to 6 words before the end of the ring.
    let words = u32::try_from(RING_BYTES / 4).unwrap() - 6;
    for _ in 0..words {
        queue.submit(&[0]);
    }
    queue.wait();
    queue.submit(&address(2, TARGET, &[7, 1, 2, 3, 4, 5, 6, 7, 8]));
    queue.wait();
    let expected: Vec<u8> = (1..=8u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(rig.read(SCRATCH, 36), [&expected[..], &[0; 4]].concat());
}

#[test]
fn const_fill_counts_to_the_last_element() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&address(11 | 2 << 30, VA + DATA, &[0x0403_0201, 100_000 - 4]));
    queue.submit(&address(11, VA + DATA + 200_000, &[0x0807_0605, 9]));
    queue.wait();
    let expected: Vec<u8> = [1, 2, 3, 4].repeat(25_000);
    assert_eq!(rig.read(DATA, 100_004), [&expected[..], &[0; 4]].concat());
    assert_eq!(rig.read(DATA + 200_000, 12), [5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 0, 0]);
    queue.submit(&address(11 | 1 << 30, VA + DATA, &[0, 3]));
    assert!(matches!(rig.event(), Event::Error(QueueError::BadPacket { .. })));
}

#[test]
fn poll_waits_for_memory() {
    for (function, reference, before, after) in
        [(1, 5, 5, 4), (2, 5, 6, 5), (3, 5, 4, 5), (4, 5, 5, 6), (5, 5, 4, 5), (6, 5, 5, 6)]
    {
        let rig = Rig::new();
        rig.write_u64(SCRATCH, before | 0xff00);
        let mut queue = rig.queue(QueueKind::Sdma);
        queue.submit(&address(8 | function << 28 | 1 << 31, TARGET, &[reference, 0xff, 0x0fff_0004]));
        queue.submit(&address(5, TARGET + 8, &[1]));
        until("poll looked", || rig.gpu.counters().tlb_hits > 100);
        assert_eq!((queue.rptr(), rig.read_u64(SCRATCH + 8)), (0, 0));
        rig.write_u64(SCRATCH, after | 0xff00);
        queue.wait();
        assert_eq!(rig.read_u64(SCRATCH + 8), 1);
    }
}

#[test]
fn hdp_flushes_pass_and_register_polls_do_not() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&[8, 0, 0x8000_0000, 0, 0, 0]);
    queue.submit(&[8 | 1 << 26 | 3 << 28, 0x100, 0x104, 1, 1, 0x0fff_000a]);
    queue.wait();
    queue.submit(&[8 | 3 << 28, 0x100, 0, 1, 1, 0]);
    assert!(matches!(rig.event(), Event::Error(QueueError::BadPacket { offset: 48, .. })));
}

#[test]
fn atomics() {
    let minus = |value: u64| value.wrapping_neg();
    let low = 0xffff_ffff_0000_0000;
    let cases = [
        (0x2f, 10, minus(3), 0, 7),
        (0x30, 10, 3, 0, 7),
        (0x27, 10, 3, 0, 3),
        (0x28, 10, 3, 10, 3),
        (0x28, 10, 3, 11, 10),
        (0x31, 10, minus(3), 0, minus(3)),
        (0x32, 10, minus(3), 0, 10),
        (0x33, 10, minus(3), 0, 10),
        (0x34, 10, minus(3), 0, minus(3)),
        (0x35, 0b1100, 0b1010, 0, 0b1000),
        (0x36, 0b1100, 0b1010, 0, 0b1110),
        (0x37, 0b1100, 0b1010, 0, 0b0110),
        (0x38, 10, 10, 0, 0),
        (0x38, 9, 10, 0, 10),
        (0x39, 0, 10, 0, 10),
        (0x39, 5, 10, 0, 4),
        (0x0f, low | 0xffff_fffe, 5, 0, low | 3),
        (0x08, low | 7, 5, 7, low | 5),
        (0x08, low | 7, 5, 8, low | 7),
    ];
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    for (operation, before, data, compare, after) in cases {
        rig.write_u64(SCRATCH, before);
        let ([d0, d1], [c0, c1]) = (split(data), split(compare));
        queue.submit(&address(10 | operation << 25, TARGET, &[d0, d1, c0, c1, 0]));
        queue.wait();
        assert_eq!(rig.read_u64(SCRATCH), after, "operation {operation:#x} on {before:#x}");
    }
    // A compare-and-swap that loops is a lock.
    rig.write_u64(SCRATCH, 1);
    queue.submit(&address(10 | 0x28 << 25 | 1 << 16, TARGET, &[9, 0, 0, 0, 0]));
    until("the lock was tried", || rig.gpu.counters().tlb_hits > 1000);
    assert_eq!(rig.read_u64(SCRATCH), 1);
    rig.write_u64(SCRATCH, 0);
    queue.wait();
    assert_eq!(rig.read_u64(SCRATCH), 9);
    queue.submit(&address(10 | 0x2f << 25, TARGET + 4, &[1, 0, 0, 0, 0]));
    assert_eq!(rig.event(), Event::Error(QueueError::Unaligned { va: TARGET + 4, bytes: 8 }));
}

#[test]
fn conditional_execution() {
    let rig = Rig::new();
    rig.write_u64(SCRATCH + 8, 7);
    let mut queue = rig.queue(QueueKind::Sdma);
    for reference in [7, 8] {
        let fence = address(5, TARGET + u64::from(reference) * 16, &[1]);
        let condition = address(9, TARGET + 8, &[reference, 4]);
        queue.submit(&[condition, fence].concat());
    }
    queue.wait();
    assert_eq!((rig.read_u64(SCRATCH + 7 * 16), rig.read_u64(SCRATCH + 8 * 16)), (1, 0));
}

#[test]
fn indirect_buffers_run_and_stay_in_bounds() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    let buffer = [address(5, TARGET, &[1]), vec![0], address(5, TARGET + 4, &[2]), vec![6, 3]].concat();
    let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_le_bytes()).collect();
    rig.write(DATA, &bytes);
    let words = u32::try_from(buffer.len()).unwrap();
    queue.submit(&address(4, VA + DATA, &[words, 0, 0]));
    assert_eq!(rig.event(), Event::Signal(3));
    queue.wait();
    assert_eq!((rig.read_u32(SCRATCH), rig.read_u32(SCRATCH + 4)), (1, 2));
    // One word short: the last packet leaves the buffer.
    queue.submit(&address(4, VA + DATA, &[words - 1, 0, 0]));
    let Event::Error(QueueError::BadPacket { offset, message }) = rig.event() else { panic!() };
    assert_eq!((offset, message.contains("leaves its indirect buffer")), (24, true));
}

#[test]
fn a_packet_is_awaited_in_full() {
    let rig = Rig::new();
    let mut queue = rig.queue(QueueKind::Sdma);
    rig.write(DATA, b"whole");
    let packet = copy_packet(TARGET, VA + DATA, 5);
    queue.submit(&packet[..3]);
    until("header seen", || rig.gpu.counters().tlb_hits > 10);
    assert_eq!(queue.rptr(), 0);
    queue.submit(&packet[3..]);
    queue.wait();
    assert_eq!(rig.read(SCRATCH, 5), b"whole");
}

#[test]
fn bad_packets_halt_with_their_place() {
    let nested = |rig: &Rig| rig.write(DATA, &address(4, VA + DATA, &[6, 0, 0])[0].to_le_bytes());
    for (packet, what) in [
        (vec![0x77], "opcode 0x77"),
        (vec![1 | 1 << 8, 0, 0, 0, 0, 0, 0], "sub-opcode 0x1"),
        (sub_window(5, [0; 2], [0; 5], [0; 5], [1; 3]), "element size 5"),
        (vec![1 | 4 << 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 << 16], "that swaps"),
        (vec![14, 0, 0], "opcode 0xe"),
        (vec![0x11, 0, 0, 0, 0], "opcode 0x11"),
        (address(4, VA + DATA, &[6, 0, 0]), "INDIRECT within"),
        (address(4, VA + DATA + 4, &[6, 0, 0]), "not aligned to 32"),
        (vec![2, 0, 0, 0xf_ffff], "longer than the ring"),
    ] {
        let rig = Rig::new();
        nested(&rig);
        let mut queue = rig.queue(QueueKind::Sdma);
        queue.submit(&[0, 0]);
        queue.submit(&packet);
        let Event::Error(QueueError::BadPacket { offset, message }) = rig.event() else { panic!("{what}") };
        assert_eq!(offset, 8);
        assert!(message.contains(what), "{message}");
        assert_eq!(rig.gpu.counters().queue_errors, 1);
    }
}

#[test]
fn gfx10_has_gcr_req() {
    let rig = Rig::with(Config { family: Family::Gfx10, ..Config::default() }, false);
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&[0x111, 0, 0xc3a1_0000, 0, 0]);
    queue.submit(&address(5 | 3 << 16, TARGET, &[5]));
    queue.wait();
    assert_eq!(rig.read_u64(SCRATCH), 5);
}

#[test]
fn each_generation_spells_a_runtimes_copy_its_way() {
    // What a runtime submits for one copy with a signal: flush or acquire, copy, release, and
    // decrement by ATOMIC ADD64 of -1.
    for family in [Family::Gfx9, Family::Gfx10, Family::Gfx11] {
        let rig = Rig::with(Config { family, ..Config::default() }, false);
        let mut queue = rig.queue(QueueKind::Sdma);
        let data = noise(9, 3 << 20);
        rig.write(DATA, &data);
        rig.write_u64(SCRATCH, 1);
        if family == Family::Gfx9 {
            // The HDP flush: a register poll that is always true.
            queue.submit(&[8 | 1 << 26, 0x0038_0000, 0x0001_0000, 0, 0, 0]);
        } else {
            queue.submit(&[0x111, 0, 0xc3a1_0000, 0, 0]);
        }
        // More bytes than 22 bits of count say, in one packet.
        queue.submit(&copy_packet(VA + (8 << 20), VA + DATA, 3 << 20));
        if family != Family::Gfx9 {
            queue.submit(&[0x11, 0, 0x8060_0000, 0, 0]);
        }
        let [minus_one, _] = split(u64::MAX);
        queue.submit(&address(10 | 0x2f << 25, TARGET, &[minus_one, minus_one, 0, 0, 0]));
        queue.submit(&address(5 | 3 << 16, VA + SCRATCH + 64, &[9]));
        queue.submit(&[6, 9]);
        assert_eq!(rig.event(), Event::Signal(9));
        queue.wait();
        assert_eq!((rig.read_u64(SCRATCH), rig.read_u64(SCRATCH + 64)), (0, 9), "{family:?}");
        assert!(rig.read(8 << 20, data.len()) == data, "{family:?}: the copy differs");
    }
}

#[test]
fn a_copy_of_more_than_four_megabytes_is_one_packet() {
    for family in [Family::Gfx9, Family::Gfx11] {
        let rig = Rig::with(Config { family, ..Config::default() }, false);
        let mut queue = rig.queue(QueueKind::Sdma);
        let data = noise(11, 5 << 20);
        rig.write(DATA, &data);
        queue.submit(&copy_packet(VA + (8 << 20), VA + DATA, 5 << 20));
        queue.wait();
        assert!(rig.read(8 << 20, data.len()) == data, "{family:?}");
    }
}
