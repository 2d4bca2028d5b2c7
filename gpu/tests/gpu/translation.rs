// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Page tables and the TLB.

use crate::rig::*;
use std::os::fd::AsFd;
use vkfd_gpu::memory::pte::{Entry, EntryFlags, Level, Target, HUGE_BYTES};
use vkfd_gpu::*;
use vkfd_sabotage::Switch;

const AREA: u64 = 0x1234_5000_0000;

#[test]
fn walks_pages_fragments_and_huge_pages() {
    let rig = Rig::new();
    rig.map(AREA, sys(0x5000), RW, 0);
    let found = rig.gpu.translate(VMID, AREA + 0x123).unwrap();
    assert_eq!((found.base, found.span, found.target), (AREA, 4096, sys(0x5000)));
    assert!(found.permits(Access::Read) && found.permits(Access::Write) && !found.permits(Access::Execute));

    // 16 pages; the entry of the fifth speaks for all.
    rig.map(AREA + 0x15000, sys(0x35000), EntryFlags::READABLE, 4);
    let found = rig.gpu.translate(VMID, AREA + 0x15000).unwrap();
    assert_eq!((found.base, found.span, found.target), (AREA + 0x10000, 0x10000, sys(0x30000)));
    assert!(!found.permits(Access::Write));

    let huge = AREA + 4 * HUGE_BYTES;
    rig.map_huge(huge, Target::Vram(rig.fabric(HUGE_BYTES)), RWX);
    let found = rig.gpu.translate(VMID, huge + 0x12_3456).unwrap();
    assert_eq!((found.base, found.span, found.level), (huge, HUGE_BYTES, Level::Pdb0));
    assert_eq!(found.target, Target::Vram(rig.fabric(HUGE_BYTES)));
}

#[test]
fn below_a_directory_with_a_block_fragment_pages_are_the_rule() {
    let rig = Rig::new();
    rig.map(AREA, sys(0x5000), RW, 0);
    let table = Entry(rig.gpu.vram().read_u64(rig.slot(AREA, Level::Pdb1)).unwrap()).table_addr().unwrap();
    let leaf = Entry(rig.gpu.vram().read_u64(rig.slot(AREA, Level::Pdb0)).unwrap()).table_addr().unwrap();
    rig.set_entry(AREA, Level::Pdb1, Entry::block_table(table, 9));
    // An entry without FURTHER is a page of 2 MiB, whose memory begins at any page.
    let page = Entry::page(Target::Vram(rig.fabric(4 * HUGE_BYTES + 0x3000)), RW, 9);
    rig.set_entry(AREA + HUGE_BYTES, Level::Pdb0, page);
    let found = rig.gpu.translate(VMID, AREA + HUGE_BYTES + 0x12_3456).unwrap();
    assert_eq!((found.base, found.span, found.level), (AREA + HUGE_BYTES, HUGE_BYTES, Level::Pdb0));
    assert_eq!(found.target, Target::Vram(rig.fabric(4 * HUGE_BYTES + 0x3000)));
    // One with it is a table.
    rig.set_entry(AREA, Level::Pdb0, Entry(Entry::table(leaf).0 | EntryFlags::FURTHER.bits()));
    let found = rig.gpu.translate(VMID, AREA + 0x123).unwrap();
    assert_eq!((found.base, found.span, found.target), (AREA, 4096, sys(0x5000)));
    // Bits written out, from amdgpu_vm.h.
    assert_eq!(Entry::block_table(FabricAddr(0x2000), 9).0, 9 << 59 | 0x2001);
    assert_eq!(EntryFlags::FURTHER.bits(), 1 << 56);
}

#[test]
fn the_drivers_own_space_is_an_aperture_and_a_flat_table() {
    let rig = Rig::with(Config { vram_bytes: 64 << 20, ..Config::default() }, false);
    // GPU 1 of the fabric: its own VRAM is not at 0. The aperture shows that of GPU 0.
    let first = 0x7fff_0000_0000;
    let gart = Gart {
        frame_buffer: 0x80_0000_0000,
        frame_buffer_bytes: 64 << 20,
        first,
        last: first + 0x1fff,
        table: FabricAddr(0x3000),
    };
    let vram = rig.gpu.fabric().vram(0).unwrap();
    vram.write_u64(0x3000, Entry::page(sys(DATA), RW, 0).0).unwrap();
    rig.gpu.set_gart(Vmid(0), Some(gart));
    let mut view = rig.gpu.view(Vmid(0)).unwrap();
    view.store_u64(first + 8, 0x1122_3344_5566_7788).unwrap();
    assert_eq!(rig.read_u64(DATA + 8), 0x1122_3344_5566_7788);
    view.store_u32(0x80_0000_0000 + 0x20_0004, 77).unwrap();
    assert_eq!(vram.read_u64(0x20_0000).unwrap(), 77 << 32);
    assert_eq!(view.load_u32(0x80_0020_0004), Ok(77));
    // Across a page's end, into an entry that is not there; outside of all.
    assert_eq!(view.load_u64(first + 0xffc), Err(ViewError::Absent { va: first + 0xffc }));
    for va in [first + 0x2000, first - 1, 0x80_0000_0000 - 1, 0x80_0000_0000 + (64 << 20), 0, u64::MAX] {
        assert!(view.load_u32(va).is_err(), "{va:#x}");
    }
    // A cached translation stays until the flush.
    vram.write_u64(0x3000, Entry::page(sys(DATA + 0x1000), RW, 0).0).unwrap();
    rig.write_u64(DATA + 0x1008, 5);
    assert_eq!(view.load_u64(first + 8), Ok(0x1122_3344_5566_7788));
    rig.gpu.flush_tlb(Vmid(0));
    assert_eq!(view.load_u64(first + 8), Ok(5));
    // A view of another VMID walks its directories.
    let mut other = rig.gpu.view(VMID).unwrap();
    assert_eq!(other.load_u64(VA + DATA + 0x1008), Ok(5));
    assert!(matches!(rig.gpu.view(Vmid(999)), Err(GpuError::BadVmid(_))));
}

#[test]
fn failed_walks_say_where() {
    let rig = Rig::new();
    let error = |va| rig.gpu.translate(VMID, va).unwrap_err();
    assert_eq!((error(AREA).level, error(AREA).reason), (Level::Pdb2, FaultReason::NotPresent));
    rig.map(AREA, sys(0), RW, 0);
    assert_eq!(error(AREA + 0x1000).level, Level::Ptb);
    assert_eq!(error(AREA + (1 << 21)).level, Level::Pdb0);
    assert_eq!(error(AREA + (1 << 30)).level, Level::Pdb1);
    assert_eq!(error(AREA | 1 << 48).reason, FaultReason::NotPresent);
    // A table outside VRAM, in the fabric and in system memory; a 1 GiB page.
    rig.set_entry(AREA + (1 << 30), Level::Pdb1, Entry::table(FabricAddr(0xffff_ffff_f000)));
    assert_eq!(error(AREA + (1 << 30)).reason, FaultReason::NoMemory);
    rig.set_entry(AREA + (1 << 30), Level::Pdb1, Entry(PA | EntryFlags::VALID.bits() | EntryFlags::SYSTEM.bits()));
    assert_eq!(error(AREA + (1 << 30)).reason, FaultReason::NoMemory);
    rig.set_entry(AREA + (1 << 30), Level::Pdb1, Entry::huge_page(sys(0), RW));
    assert_eq!(error(AREA + (1 << 30)).reason, FaultReason::NotPresent);
    rig.gpu.set_root(VMID, None, false);
    assert_eq!(error(VA).level, Level::Pdb2);
    assert!(rig.gpu.translate(Vmid(999), VA).is_err());
}

#[test]
fn entry_bits_are_those_of_gfx9() {
    // From amdgpu_vm.h, written out.
    assert_eq!(Entry::page(Target::System(PhysAddr(0xabc_d000)), RWX, 9).0, 0xabc_d4f3);
    assert_eq!(Entry::page(Target::Vram(FabricAddr(0x1000)), EntryFlags::READABLE, 0).0, 0x1021);
    assert_eq!(Entry::table(FabricAddr(0x2000)).0, 0x2001);
    assert_eq!(Entry::huge_page(Target::Vram(FabricAddr(0)), RW).0, 1 << 54 | 9 << 7 | 0x61);
}

#[test]
fn copies_between_system_memory_both_vrams_and_fragments() {
    let rig = Rig::new();
    let data = noise(1, 3 << 20);
    rig.write(DATA, &data);
    // A huge page in the own VRAM, a page run in the neighbour's, a fragment whose other entries
    // are not even present.
    let own = AREA;
    rig.map_huge(own, Target::Vram(rig.fabric(4 << 20)), RW);
    rig.map_huge(own + HUGE_BYTES, Target::Vram(rig.fabric(6 << 20)), RW);
    let far = AREA + (1 << 30);
    for page in (0..3u64 << 20).step_by(4096) {
        rig.map(far + page, Target::Vram(FabricAddr(page)), RW, 0);
    }
    let mut queue = rig.queue(QueueKind::Sdma);
    let back = 8 << 20;
    queue.submit(&copy_packet(own + 5, VA + DATA, 3 << 20));
    queue.submit(&copy_packet(far, own + 5, 3 << 20));
    queue.submit(&copy_packet(VA + back, far, 3 << 20));
    queue.wait();
    assert_eq!(rig.read(back, 3 << 20), data);
    let mut vram = vec![0; 1 << 20];
    rig.gpu.vram().copy_out((4 << 20) + 5, &mut vram).unwrap();
    assert_eq!(vram, data[..1 << 20]);
    rig.gpu.fabric().vram(0).unwrap().copy_out(0, &mut vram).unwrap();
    assert_eq!(vram, data[..1 << 20]);
    assert_eq!(rig.gpu.counters().bytes_copied, 9 << 20);

    let fragment = AREA + (2 << 30);
    rig.map(fragment, sys(DATA), RW, 8);
    queue.submit(&copy_packet(VA + back + (4 << 20), fragment, 4096));
    queue.submit(&copy_packet(VA + back + (4 << 20), fragment + 100, 4096));
    queue.wait();
    assert_eq!(rig.read(back + (4 << 20), 4096), data[100..4196]);
}

#[test]
fn pages_side_by_side_cost_one_walk_and_end_where_their_entries_do() {
    let rig = Rig::new();
    let data = noise(3, 9 * 4096);
    rig.write(DATA, &data);
    // Not aligned for any fragment. The fifth page lies elsewhere; the last but one may not be
    // written.
    let frame = |page: u64| if page == 4 { DATA + 8 * 4096 } else { DATA + page * 4096 };
    for page in 0..8 {
        let flags = if page == 6 { EntryFlags::READABLE } else { RW };
        rig.map(AREA + 0x1000 + page * 4096, sys(frame(page)), flags, 0);
    }
    let mut queue = rig.queue(QueueKind::Sdma);
    // The other side and the ring are walked before.
    queue.submit(&copy_packet(VA + SCRATCH, AREA + 0x1000, 4));
    queue.wait();
    rig.gpu.flush_tlb(VMID);
    queue.submit(&copy_packet(VA + SCRATCH + 64, VA + SCRATCH, 4));
    queue.wait();
    let before = rig.gpu.counters().walks;
    queue.submit(&copy_packet(VA + SCRATCH, AREA + 0x1000, 8 * 4096));
    queue.wait();
    let expected: Vec<u8> = (0..8).flat_map(|page| rig.read(frame(page), 4096)).collect();
    assert!(rig.read(SCRATCH, 8 * 4096) == expected);
    // Four pages, one, one, one, one. The target has been walked for the first page before.
    assert_eq!(rig.gpu.counters().walks - before, 5);
}

/// Copies a page's first word, and returns it; the page moves from one frame to another in between.
fn moved_page(rig: &Rig, flush: bool) -> (u64, u64) {
    rig.write_u64(DATA, 111);
    rig.write_u64(DATA + 0x1000, 222);
    rig.map(AREA, sys(DATA), RW, 0);
    let mut queue = rig.queue(QueueKind::Sdma);
    let mut look = || {
        queue.submit(&copy_packet(VA + SCRATCH, AREA, 8));
        queue.wait();
        rig.read_u64(SCRATCH)
    };
    let before = look();
    rig.map(AREA, sys(DATA + 0x1000), RW, 0);
    if flush {
        rig.gpu.flush_tlb(VMID);
    }
    (before, look())
}

#[test]
fn a_flush_makes_a_new_entry_visible() {
    let rig = Rig::new();
    assert_eq!(moved_page(&rig, true), (111, 222));
    assert_eq!(rig.gpu.counters().flushes, 1);
}

#[test]
fn without_a_flush_the_old_page_is_used() {
    assert_eq!(moved_page(&Rig::new(), false), (111, 111));
}

#[test]
fn a_sabotaged_flush_is_noticed() {
    let rig = Rig::new();
    rig.gpu.sabotage().turn(Switch::SkipTlbFlush, true);
    assert_eq!(moved_page(&rig, true), (111, 111));
}

#[test]
fn an_unmapped_page_stays_reachable_until_the_flush() {
    let rig = Rig::new();
    rig.map(AREA, sys(DATA), RW, 0);
    let mut queue = rig.queue(QueueKind::Sdma);
    queue.submit(&copy_packet(VA + SCRATCH, AREA, 8));
    queue.wait();
    rig.unmap(AREA);
    queue.submit(&copy_packet(VA + SCRATCH, AREA, 8));
    queue.wait();
    rig.gpu.flush_tlb(VMID);
    queue.submit(&copy_packet(VA + SCRATCH, AREA, 8));
    assert!(matches!(rig.event(), Event::Fault(PageFault { va: AREA, reason: FaultReason::NotPresent, .. })));
}

#[test]
fn vram_and_fabric_check_bounds() {
    let fabric = Fabric::new(&[2 << 20, 6 << 20]).unwrap();
    assert_eq!((fabric.segment_bytes(), fabric.base(1)), (8 << 20, FabricAddr(8 << 20)));
    assert!(fabric.resolve(FabricAddr((2 << 20) - 1)).is_some());
    assert!(fabric.resolve(FabricAddr(2 << 20)).is_none());
    assert!(fabric.resolve(FabricAddr(14 << 20)).is_none());
    assert!(fabric.resolve(FabricAddr(u64::MAX)).is_none());
    let vram = fabric.vram(0).unwrap();
    vram.write_entries(0x1ff8 + 0x1000, 1, 1, 2).unwrap();
    assert_eq!((vram.read_u64(0x2ff8).unwrap(), vram.read_u64(0x3000).unwrap()), (1, 2));
    vram.fill(0x2ff8, 9, 0xee).unwrap();
    assert_eq!((vram.read_u64(0x2ff8).unwrap(), vram.read_u64(0x3000).unwrap()), (0xeeee_eeee_eeee_eeee, 0xee));
    assert!(matches!(vram.read_u64(4), Err(VramError::Unaligned(4))));
    assert!(matches!(vram.read_u64(2 << 20), Err(VramError::OutOfRange { .. })));
    assert!(matches!(vram.write_entries((2 << 20) - 8, 1, 1, 2), Err(VramError::OutOfRange { .. })));
    assert_eq!(vram.read_u64((2 << 20) - 8).unwrap(), 0);
    assert!(matches!(vram.fill(u64::MAX, 2, 0), Err(VramError::OutOfRange { .. })));
    assert!(matches!(vram.copy_in(1, &vec![0; 2 << 20]), Err(VramError::OutOfRange { .. })));
    assert!(matches!(Vram::create(1 << 20), Err(VramError::Size(_))));
}

/// Of VRAM's file.
fn memory_of(vram: &Vram) -> u64 {
    let file = std::fs::File::from(vram.as_fd().try_clone_to_owned().unwrap());
    std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512
}

#[test]
fn clearing_vram_takes_no_memory_for_what_nobody_has_touched() {
    let file = vkfd_gpu::raw::memory_file::sealed(c"test", 66 << 20).unwrap();
    // It begins within its file.
    let vram = Vram::from_fd_at(file.into(), 2 << 20, 64 << 20).unwrap();
    let words = [0x1000, (5 << 20) + 8, (5 << 20) + 0x1000, 40 << 20, (64 << 20) - 8];
    words.iter().for_each(|at| vram.write_u64(*at, 7).unwrap());
    let before = memory_of(&vram);
    assert!((5 * 4096..1 << 20).contains(&before), "{before}");
    vram.clear(5 << 20, 35 << 20).unwrap();
    let now = words.map(|at| vram.read_u64(at).unwrap());
    assert_eq!(now, [7, 0, 0, 7, 7], "as far as it goes");
    vram.clear(0, 64 << 20).unwrap();
    assert_eq!(words.map(|at| vram.read_u64(at).unwrap()), [0; 5]);
    assert_eq!(memory_of(&vram), before);
    assert!(matches!(vram.clear(1 << 20, 64 << 20), Err(VramError::OutOfRange { .. })));
    assert!(matches!(vram.clear(u64::MAX, 2 << 20), Err(VramError::OutOfRange { .. })));
    // Writing zeros takes it all.
    vram.fill(0, 64 << 20, 0).unwrap();
    assert_eq!(memory_of(&vram), 64 << 20);
}
