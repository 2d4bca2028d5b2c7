// SPDX-License-Identifier: GPL-2.0 OR MIT
//! PM4: compute queues, indirect buffers, and what a dispatch that cannot run says.

use crate::rig::*;
use vkfd_gpu::*;

const OUT: u64 = SCRATCH + 0x5000;
/// Where a code object is loaded.
const OBJECT: u64 = 4 << 20;
const ALL: [Family; 3] = [Family::Gfx9, Family::Gfx10, Family::Gfx11];

/// A type-3 packet.
fn packet(op: u32, body: &[u32]) -> Vec<u32> {
    let count = u32::try_from(body.len()).unwrap() - 1;
    [&[3 << 30 | count << 16 | op << 8], body].concat()
}

fn with_address(op: u32, control: u32, va: u64, rest: &[u32]) -> Vec<u32> {
    let [low, high] = split(va);
    packet(op, &[&[control, low, high], rest].concat())
}

fn put(rig: &Rig, offset: u64, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    rig.write(offset, &bytes);
}

fn indirect(offset: u64, words: usize, flags: u32) -> Vec<u32> {
    let [low, high] = split(VA + offset);
    packet(0x3f, &[low, high, u32::try_from(words).unwrap() | flags])
}

/// A GPU that executes no machine code.
fn gpu(family: Family) -> Rig {
    Rig::with(Config { family, target: None, ..Config::default() }, false)
}

fn acquire(family: Family) -> Vec<u32> {
    packet(0x58, &vec![0; if family == Family::Gfx9 { 6 } else { 7 }])
}

#[test]
fn a_timeline_as_a_client_builds_it() {
    for family in ALL {
        let rig = gpu(family);
        let mut queue = rig.queue(QueueKind::Pm4);
        // Wait for one signal, invalidate, write another with a time stamp, and raise an event.
        rig.write_u64(OUT, 4);
        queue.submit(&with_address(0x3c, 5 | 1 << 4, VA + OUT, &[5, u32::MAX, 4]));
        queue.submit(&acquire(family));
        queue.submit(&packet(0x46, &[7 | 4 << 8]));
        let hits = rig.gpu.counters().tlb_hits;
        until("polling", || rig.gpu.counters().tlb_hits > hits + 20);
        assert_eq!(queue.rptr(), 0);
        rig.write_u64(OUT, 5);
        queue.wait();
        let [low, high] = split(VA + OUT + 16);
        queue.submit(&packet(0x49, &[0x514, 3 << 29, low, high, 0, 0, 0]));
        queue.submit(&packet(0x49, &[0x514, 1 << 29 | 2 << 24, low + 8, high, 77, 88, 42]));
        assert_eq!(rig.event(), Event::Signal(42));
        queue.wait();
        assert_eq!(rig.read_u64(OUT + 24), 77, "{family:?}");
        assert!(rig.read_u64(OUT + 16) > 0 && rig.read_u64(OUT + 16) <= clock());
    }
}

#[test]
fn the_ring_wraps_in_words() {
    let rig = gpu(Family::Gfx9);
    let mut queue = rig.queue(QueueKind::Pm4);
    let ring_words = u32::try_from(RING_BYTES / 4).unwrap();
    // A body that fills the ring up to its last three words; the next packet wraps, its data with
    // it.
    queue.submit(&[3 << 30 | (ring_words - 5) << 16 | 0x10 << 8]);
    queue.submit(&vec![0; usize::try_from(ring_words).unwrap() - 4]);
    queue.wait();
    assert_eq!(queue.rptr(), u64::from(ring_words) - 3);
    let data: Vec<u32> = (100..140).collect();
    queue.submit(&with_address(0x37, 5 << 8, VA + OUT, &data));
    queue.wait();
    assert_eq!(queue.rptr(), 41, "the place in the ring");
    let written = rig.read(OUT, 160);
    assert!(written.chunks_exact(4).map(|w| u32::from_le_bytes(w.try_into().unwrap())).eq(100..140));
    // Half a packet is not executed, and not an error.
    let half = with_address(0x37, 5 << 8, VA + OUT, &[7]);
    let hits = rig.gpu.counters().tlb_hits;
    queue.submit(&half[..3]);
    until("header seen", || rig.gpu.counters().tlb_hits > hits + 5);
    assert_eq!(rig.read_u32(OUT), 100);
    queue.submit(&half[3..]);
    queue.wait();
    assert_eq!(rig.read_u32(OUT), 7);
}

#[test]
fn indirect_buffers_call_and_chain() {
    let rig = gpu(Family::Gfx11);
    let mut queue = rig.queue(QueueKind::Pm4);
    let (outer, inner, last) = (DATA, DATA + 0x1000, DATA + 0x2000);
    let write = |at: u64, value: u32| with_address(0x37, 5 << 8, VA + OUT + at, &[value]);
    put(&rig, inner, &write(0, 1));
    put(&rig, last, &write(8, 3));
    let chain = indirect(last, write(0, 0).len(), 1 << 20 | 1 << 23);
    let after = write(16, 4);
    let calls = [indirect(inner, write(0, 0).len(), 1 << 23), write(4, 2), chain, after].concat();
    put(&rig, outer, &calls);
    queue.submit(&indirect(outer, calls.len(), 1 << 23));
    queue.submit(&indirect(outer, 0, 1 << 23));
    queue.wait();
    let words: Vec<u32> = (0..5).map(|i| rig.read_u32(OUT + 4 * i)).collect();
    assert_eq!(words, [1, 2, 3, 0, 0], "what follows a chain is not executed");
    // A buffer that calls itself ends, one that chains to itself goes on until it is removed.
    put(&rig, outer, &indirect(outer, 4, 1 << 20));
    queue.submit(&indirect(outer, 4, 0));
    let walked = rig.gpu.counters().tlb_hits;
    until("going round", || rig.gpu.counters().tlb_hits > walked + 1000);
    queue.remove();
    put(&rig, outer, &indirect(outer, 4, 0));
    let mut queue = rig.queue(QueueKind::Pm4);
    queue.submit(&indirect(outer, 4, 0));
    let Event::Error(QueueError::BadPacket { message, .. }) = rig.event() else { panic!() };
    assert!(message.contains("nested more than 2 deep"), "{message}");
}

#[test]
fn registers_are_written_down_and_data_copied() {
    let rig = gpu(Family::Gfx10);
    let mut queue = rig.queue(QueueKind::Pm4);
    rig.write_u64(OUT, 0x1111_2222_3333_4444);
    let [out, high] = split(VA + OUT);
    queue.submit(&packet(0x76, &[0x20c, 0xabcd, 0x12, 3]));
    queue.submit(&packet(0x79, &[0x10, 99]));
    // Registers, memory of 32 and 64 bits, an immediate value, the clock.
    for (source, from, to, wide) in
        [(0, 0x2e0e, 8, 0), (0, 0xc010, 12, 0), (1, out, 16, 0), (2, out, 24, 1), (5, 7, 32, 0), (9, 0, 40, 1)]
    {
        let from_high = if matches!(source, 1 | 2) { high } else { 0 };
        queue.submit(&packet(0x40, &[source | 5 << 8 | wide << 16, from, from_high, out + to, high]));
    }
    // Registers by data: WRITE_DATA and COPY_DATA can set them, too.
    queue.submit(&packet(0x37, &[0, 0xc011, 0, 55]));
    queue.submit(&packet(0x40, &[1, out, high, 0xc012, 0]));
    for (register, to) in [(0xc011, 48), (0xc012, 52)] {
        queue.submit(&packet(0x40, &[5 << 8, register, 0, out + to, high]));
    }
    // A wait for a register's present value; and the HDP flush, a write between two waits.
    queue.submit(&packet(0x3c, &[3, 0xc010, 0, 99, u32::MAX, 4]));
    queue.submit(&packet(0x3c, &[3 | 1 << 6, 0x3f, 0x40, 1, 1, 4]));
    queue.wait();
    let word = |at| rig.read_u32(OUT + at);
    assert_eq!([word(8), word(12), word(16), word(20), word(32)], [3, 99, 0x3333_4444, 0, 7]);
    assert_eq!(rig.read_u64(OUT + 24), 0x1111_2222_3333_4444);
    assert!(rig.read_u64(OUT + 40) > 0 && rig.read_u64(OUT + 40) <= clock());
    assert_eq!([word(48), word(52)], [55, 0x3333_4444]);
}

/// A code object as a loader leaves it in memory: ELF header, one program header, dynamic entries,
/// two symbols.
fn code_object(hash: bool) -> Vec<u8> {
    let mut image = vec![0u8; 0x3000];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    put(18, &224u16.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(56, &1u16.to_le_bytes());
    // PT_DYNAMIC at 0x200.
    put(64, &2u32.to_le_bytes());
    put(64 + 16, &0x200u64.to_le_bytes());
    let tags: [[u64; 2]; 3] = [[5, 0x448], [6, 0x400], [if hash { 4 } else { 0x6fff_fef5 }, 0x300]];
    for (index, tag) in tags.into_iter().enumerate() {
        put(0x200 + 16 * index, &tag[0].to_le_bytes());
        put(0x208 + 16 * index, &tag[1].to_le_bytes());
    }
    put(0x304, &3u32.to_le_bytes());
    // Three symbols: none, the descriptor, and the code. The strings follow.
    for (index, (name, value)) in [(0u32, 0u64), (1, 0x1040), (11, 0x2100)].into_iter().enumerate() {
        put(0x400 + 24 * index, &name.to_le_bytes());
        put(0x408 + 24 * index, &value.to_le_bytes());
    }
    put(0x448, b"\0vecadd.kd\0vecadd_code\0");
    image
}

#[test]
fn a_dispatch_halts_and_names_its_kernel() {
    for (family, hash) in [(Family::Gfx9, true), (Family::Gfx10, false), (Family::Gfx11, true)] {
        let rig = gpu(family);
        rig.write(OBJECT, &code_object(hash));
        let program = VA + OBJECT + 0x2100;
        let [low, high] = split(program >> 8);
        let mut queue = rig.queue(QueueKind::Pm4);
        queue.submit(&packet(0x76, &[0x20c, low, high]));
        queue.submit(&packet(0x15, &[1, 1, 1, 1]));
        let Event::Error(error) = rig.event() else { panic!() };
        let name = Some("vecadd_code".to_owned());
        assert_eq!(error, QueueError::UnknownKernel { kernel: KernelName { object: program, name } });
        assert!(error.to_string().contains("cannot run kernel vecadd_code at GPU address 0x"), "{error}");
        queue.remove();

        // By AQL a kernel is its descriptor, whose symbol has an ending.
        let mut queue = rig.queue(QueueKind::Aql);
        let mut dispatch = [0; 64];
        dispatch[..2].copy_from_slice(&2u16.to_le_bytes());
        dispatch[32..40].copy_from_slice(&(VA + OBJECT + 0x1040).to_le_bytes());
        queue.dispatch(&dispatch);
        let Event::Error(QueueError::UnknownKernel { kernel }) = rig.event() else { panic!() };
        assert_eq!(kernel.name.as_deref(), Some("vecadd"));
    }
}

#[test]
fn code_without_readable_symbols_is_named_by_its_address() {
    let spoil: [(usize, &[u8]); 6] =
        [(0, b"none"), (18, &[0, 0]), (64, &[9]), (0x208, &[0xff; 8]), (0x449, &[0xfe]), (0x408 + 24 * 2, &[1])];
    for (at, bytes) in spoil {
        let rig = gpu(Family::Gfx9);
        let mut image = code_object(true);
        image[at..at + bytes.len()].copy_from_slice(bytes);
        rig.write(OBJECT, &image);
        // Nothing is mapped below it.
        rig.unmap(VA + OBJECT - 4096);
        let mut queue = rig.queue(QueueKind::Aql);
        let mut dispatch = [0; 64];
        dispatch[..2].copy_from_slice(&2u16.to_le_bytes());
        let object = VA + OBJECT + if at == 0x449 { 0x1040 } else { 0x2100 };
        dispatch[32..40].copy_from_slice(&object.to_le_bytes());
        queue.dispatch(&dispatch);
        let Event::Error(error) = rig.event() else { panic!("a fault, with {at:#x} spoilt") };
        assert_eq!(error, QueueError::UnknownKernel { kernel: KernelName { object, name: None } }, "{at:#x}");
        assert!(error.to_string().contains("(of unknown name)"));
        queue.remove();
    }
}

#[test]
fn what_cannot_be_done_halts_with_its_place() {
    let [out, high] = split(VA + OUT);
    let cases = [
        (vec![7], "not of type 3"),
        (packet(0x21, &[0, 0]), "opcode 0x21 is not supported"),
        (packet(0x15, &[1, 1, 1, 1]), "a dispatch without a program"),
        (packet(0x37, &[5 << 8 | 1 << 16, out, high, 1]), "opcode 0x37 is not supported"),
        (packet(0x37, &[0, 0x100, 0, 1]), "opcode 0x37 is not supported"),
        (packet(0x40, &[3 | 5 << 8, 0, 0, out, high]), "opcode 0x40 is not supported"),
        (packet(0x40, &[5 | 3 << 8, 0, 0, out, high]), "opcode 0x40 is not supported"),
        (packet(0x46, &[1 << 8, out, high]), "opcode 0x46 is not supported"),
        (packet(0x49, &[0; 6]), "6 words instead of 7"),
        (packet(0x49, &[0, 7 << 29, out, high, 0, 0, 0]), "opcode 0x49 is not supported"),
        (packet(0x58, &[0; 5]), "5 words instead of 6"),
        (packet(0x3c, &[7 | 1 << 4, out, high, 0, 0, 0]), "function 7"),
        (packet(0x3c, &[3, 0xc000, 0, 1, 1, 0]), "a register that stays 0x0"),
        (packet(0x3c, &[3, 0x100, 0, 1, 1, 0]), "opcode 0x3c is not supported"),
        (packet(0x76, &[0x3ff, 1, 2]), "there is no register 0x3000"),
        (packet(0x79, &[0xffff, 1]), "there is no register 0x1bfff"),
    ];
    for (words, what) in cases {
        let rig = gpu(Family::Gfx9);
        let mut queue = rig.queue(QueueKind::Pm4);
        queue.submit(&[0x8000_0000, 0xffff_1000]);
        queue.submit(&words);
        let event = rig.event();
        let Event::Error(QueueError::BadPacket { offset: 8, message }) = event else { panic!("{what}: {event:?}") };
        assert!(message.contains(what), "{message}");
        assert_eq!(queue.rptr(), 2);
    }
    let rig = gpu(Family::Gfx9);
    let queue = rig.queue(QueueKind::Pm4);
    queue.slot.store(RING_BYTES / 4 + 1, std::sync::atomic::Ordering::SeqCst);
    rig.gpu.ring();
    assert!(matches!(rig.event(), Event::Error(QueueError::BadDoorbell { rptr: 0, .. })));
}
