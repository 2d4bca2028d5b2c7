// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The driver's own rings, as its ring tests and its fences use them.

use crate::rig::*;
use vkfd_asic::interrupts::{client, source};
use vkfd_asic::registers::hub::gfxhub;
use vkfd_asic::registers::{gc, sdma};
use vkfd_gpu::memory::pte::{Entry, Target};
use vkfd_gpu::sabotage::Switch;
use vkfd_gpu::PhysAddr;

const NOP: u32 = 0xffff_1000;

#[test]
fn the_kiq_passes_its_ring_test_and_reports_how_far_it_is() {
    let (rig, mut done) = (Rig::up(), 0);
    rig.set(gc::SCRATCH_REG0, 0xcafe_dead);
    rig.kiq(&mut done, &[pm4(0x79, 2), gc::SCRATCH_REG0 - 0xc000, 0xdead_beef, NOP, NOP, 0x8000_0000]);
    assert_eq!(rig.get(gc::SCRATCH_REG0), 0xdead_beef);
    assert_eq!(rig.word(RPTRS), 6);
    assert!(rig.asic.summary().halted.is_empty());
}

#[test]
fn a_ring_that_kiq_maps_runs_buffers_and_its_fence_comes_before_its_interrupt() {
    let (rig, mut done) = (Rig::up(), 0);
    let [mqd, ring, buffer, fence] = [0, 0x1000, 0x2000, 0x3000].map(|at| SCRATCH + at);
    // The registers of a queue from word 128 on.
    let register =
        |at: u32, value: u32| rig.write_words(mqd + 4 * (128 + u64::from(at - gc::CP_MQD_BASE_ADDR)), &[value]);
    register(gc::CP_HQD_PQ_BASE, halves((GART + ring) >> 8)[0]);
    register(gc::CP_HQD_PQ_BASE_HI, halves((GART + ring) >> 8)[1]);
    register(gc::CP_HQD_PQ_CONTROL, 7);
    let [mqd_low, mqd_high] = halves(GART + mqd);
    let [wptr_low, wptr_high] = halves(GART + SCRATCH + 0x4000);
    // Micro engine 1, pipe 2, queue 3; doorbell 6.
    rig.kiq(&mut done, &[pm4(0xa2, 6), 1 << 29 | 2 << 16 | 3 << 13, 6 << 2, mqd_low, mqd_high, wptr_low, wptr_high]);
    let [data_low, data_high] = halves(GART + fence + 8);
    rig.write_words(buffer, &[pm4(0x37, 4), 5 << 8 | 1 << 20, data_low, data_high, 0x1234]);
    let [buffer_low, buffer_high] = halves(GART + buffer);
    let [fence_low, fence_high] = halves(GART + fence);
    let mut words = vec![pm4(0x3f, 3), buffer_low, buffer_high, 5 | 1 << 23];
    words.extend([pm4(0x49, 7), 5 << 8, 2 << 29 | 2 << 24, fence_low, fence_high, 77, 88, 0x99]);
    rig.write_words(ring, &words);
    rig.doorbell(6, words.len() as u64);
    rig.settle();
    assert_eq!((rig.word(fence + 8), rig.wide(fence)), (0x1234, 88 << 32 | 77));
    let entry = rig.entry(0);
    assert_eq!(entry[0], u32::from(client::GRBM_CP) | u32::from(source::END_OF_PIPE) << 8 | 0x36 << 16);
    assert_eq!((entry[4], rig.word(IH_WPTR), rig.interrupts()), (0x99, 32, 1));
    // Unmapped by its doorbell, it hears no more.
    rig.kiq(&mut done, &[pm4(0xa3, 5), 1 << 29, 6 << 2, 0, 0, 0]);
    rig.write_words(ring + 4 * words.len() as u64, &[pm4(0x79, 2), gc::SCRATCH_REG0 - 0xc000, 1]);
    rig.doorbell(6, words.len() as u64 + 3);
    rig.settle();
    assert_eq!(rig.get(gc::SCRATCH_REG0), 0);
}

#[test]
fn a_ring_that_waits_lets_others_go_on() {
    let (rig, mut done, mut copied) = (Rig::up(), 0, 0);
    rig.start_copy_ring();
    let [low, high] = halves(GART + SCRATCH);
    // KIQ waits for a word that the copy ring writes.
    rig.write_words(KIQ_RING, &[pm4(0x3c, 6), 3 | 1 << 4, low, high, 5, 0xff, 4]);
    rig.doorbell(KIQ_DOORBELL, 7);
    done += 7;
    rig.copy_ring(&mut copied, &[2, low, high, 0, 0x105]);
    rig.until("KIQ goes on", || rig.word(RPTRS) == 7);
    // The form that writes a register and waits for another.
    let (request, ack) = (gfxhub::VM_INVALIDATE_REQ + 4, gfxhub::VM_INVALIDATE_ACK + 4);
    rig.kiq(&mut done, &[pm4(0x3c, 6), 3 | 1 << 6, request, ack, 1 << 5 | 1 << 16, 1 << 5, 4]);
    assert_eq!((rig.get(ack), rig.word(RPTRS)), (1 << 5, 14));
}

#[test]
fn the_copy_ring_has_registers_page_tables_and_traps() {
    let (rig, mut done) = (Rig::up(), 0);
    rig.start_copy_ring();
    let [low, high] = halves(GART + SCRATCH);
    let [table_low, table_high] = halves(0x80_0000_0000 + (40 << 20));
    rig.write(SCRATCH + 0x100, b"moved by the driver");
    let (from, to) = (halves(GART + SCRATCH + 0x100), halves(GART + SCRATCH + 0x200));
    rig.copy_ring(&mut done, &[14, gc::SCRATCH_REG0, 0x77]);
    // Five entries of a table in VRAM, 4 KiB apart.
    rig.copy_ring(&mut done, &[12, table_low, table_high, 0x73, 0, 0x10_0000, 0, 0x1000, 0, 4]);
    rig.copy_ring(&mut done, &[1, 18, 0, from[0], from[1], to[0], to[1]]);
    rig.copy_ring(&mut done, &[11 | 2 << 30, low, high, 0xaabb_ccdd, 11]);
    rig.copy_ring(&mut done, &[5, low + 16, high, 0x55, 6, 0]);
    rig.settle();
    assert_eq!(rig.get(gc::SCRATCH_REG0), 0x77);
    let vram = rig.asic.gpu().vram();
    assert_eq!(vram.read_u64((40 << 20) + 32).unwrap(), 0x10_4000 | 0x73);
    assert_eq!(vram.read_u64((40 << 20) + 40).unwrap(), 0);
    assert_eq!(rig.read(SCRATCH + 0x200, 19), b"moved by the driver");
    assert_eq!((rig.word(SCRATCH + 8), rig.word(SCRATCH + 12), rig.word(SCRATCH + 16)), (0xaabb_ccdd, 0, 0x55));
    assert_eq!(rig.entry(0)[0], u32::from(client::SDMA[1]) | u32::from(source::TRAP) << 8);
    assert_eq!(rig.wide(RPTRS + 64), done * 4);
    assert_eq!(rig.get(sdma::ENGINES[1] + sdma::GFX_DOORBELL_OFFSET), COPY_DOORBELL << 2);
}

/// What KIQ reads at the start of [`SCRATCH`] through the GART, after its page has moved.
fn moved(rig: &Rig, flush: bool) -> u32 {
    let mut done = 0;
    rig.write_words(SCRATCH, &[111]);
    rig.write_words(SCRATCH + 0x1000, &[222]);
    let [from, to] = [SCRATCH, SCRATCH + 0x2000].map(|at| halves(GART + at));
    // COPY_DATA from memory to memory.
    let copy = [pm4(0x40, 5), 1 | 5 << 8, from[0], from[1], to[0], to[1]];
    rig.kiq(&mut done, &copy);
    assert_eq!(rig.word(SCRATCH + 0x2000), 111);
    let slot = 0x10_0000 + SCRATCH / 4096 * 8;
    let entry = Entry::page(Target::System(PhysAddr(SCRATCH + 0x1000)), READ_WRITE, 0);
    rig.asic.gpu().vram().write_u64(slot, entry.0).unwrap();
    if flush {
        rig.set(gfxhub::VM_INVALIDATE_REQ, 1);
    }
    rig.kiq(&mut done, &copy);
    rig.word(SCRATCH + 0x2000)
}

#[test]
fn an_invalidation_makes_a_new_entry_visible_and_without_one_the_old_is_used() {
    assert_eq!(moved(&Rig::up(), true), 222);
    assert_eq!(moved(&Rig::up(), false), 111);
    let rig = Rig::up();
    rig.asic.gpu().sabotage().turn(Switch::SkipTlbFlush, true);
    assert_eq!(moved(&rig, true), 111, "a flush that does nothing is noticed");
}

#[test]
fn a_ring_halts_by_name_and_the_others_go_on() {
    for words in [
        // A dispatch; memory that is not there; a header that is none; a copy to nowhere.
        &[pm4(0x15, 4), 1, 1, 1, 0][..],
        &[pm4(0x37, 4), 5 << 8, 0x1000, 0, 1],
        &[0x1234_5678],
        &[pm4(0x3f, 3), 0x1000, 0, 5],
    ] {
        let (rig, mut done, mut copied) = (Rig::up(), 0, 0);
        rig.start_copy_ring();
        rig.kiq(&mut done, words);
        assert_eq!(rig.asic.summary().halted, ["compute ring 2.1.0"], "{words:x?}");
        let [low, high] = halves(GART + SCRATCH);
        rig.copy_ring(&mut copied, &[5, low, high, 3]);
        rig.settle();
        assert_eq!(rig.word(SCRATCH), 3);
    }
    // More than the ring has.
    let rig = Rig::up();
    rig.doorbell(KIQ_DOORBELL, 1 << 40);
    rig.settle();
    assert_eq!(rig.asic.summary().halted.len(), 1);
}
