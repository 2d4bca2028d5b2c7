// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Registers by themselves.

use crate::rig::*;
use vkfd_asic::pci::bar;
use vkfd_asic::registers::hub::{gfxhub, mmhub};
use vkfd_asic::registers::system::{athub, mp0, nbio};
use vkfd_asic::registers::{gc, sdma};

#[test]
fn a_fresh_card_is_set_up_and_says_how_large_it_is() {
    let rig = Rig::new();
    assert_eq!(rig.get(nbio::RCC_CONFIG_MEMSIZE), 64);
    assert_eq!(rig.get(mp0::MP0_SMN_C2PMSG_33) >> 31, 1);
    assert_eq!((rig.get(mp0::MP0_SMN_C2PMSG_81), rig.get(nbio::RCC_IOV_FUNC_IDENTIFIER)), (0, 0));
    assert_eq!(rig.get(nbio::BIOS_SCRATCH_7), 0x200);
    let (first, last) = (rig.get(gfxhub::MC_VM_FB_LOCATION_BASE), rig.get(gfxhub::MC_VM_FB_LOCATION_TOP));
    assert_eq!(u64::from(last - first + 1) << 24, 64 << 20);
    assert_eq!(rig.get(mmhub::MC_VM_FB_LOCATION_BASE), first);
    assert_eq!(rig.get(athub::ATC_VMID_PASID_MAPPING_UPDATE_STATUS), u32::MAX);
    for base in sdma::ENGINES {
        assert_eq!(rig.get(base + sdma::RLC_CONTEXT_STATUS + 7 * sdma::QUEUE_STRIDE) & 4, 4);
    }
}

#[test]
fn windows_lead_to_vram_and_to_registers() {
    let rig = Rig::new();
    rig.set(nbio::MM_INDEX_HI, 0);
    rig.set(nbio::MM_INDEX, 0x8000_0000 | 0x1234);
    rig.set(nbio::MM_DATA, 0x5566_7788);
    assert_eq!(rig.get(nbio::MM_DATA), 0x5566_7788);
    let mut bytes = [0; 4];
    rig.asic.read(bar::VRAM, 0x1234, &mut bytes);
    assert_eq!(bytes, 0x5566_7788u32.to_le_bytes());
    rig.set(nbio::MM_INDEX, 0xffff_fffc);
    rig.set(nbio::MM_DATA, 1);
    assert_eq!(rig.get(nbio::MM_DATA), 0, "outside of the VRAM");
    rig.set(nbio::PCIE_INDEX2, gc::SCRATCH_REG0 * 4);
    rig.set(nbio::PCIE_DATA2, 7);
    assert_eq!((rig.get(gc::SCRATCH_REG0), rig.get(nbio::PCIE_DATA2)), (7, 7));
    // What is not in the BAR; the window itself.
    rig.set(nbio::PCIE_INDEX2, 0x1140_0000);
    rig.set(nbio::PCIE_DATA2, 9);
    assert_eq!(rig.get(nbio::PCIE_DATA2), 9);
    rig.set(nbio::PCIE_INDEX2, nbio::PCIE_DATA2 * 4);
    rig.set(nbio::PCIE_DATA2, 9);
    assert_eq!(rig.get(nbio::PCIE_DATA2), 0);
}

#[test]
fn banks_keep_their_values_apart() {
    let rig = Rig::new();
    let select = |me: u32, pipe: u32, queue: u32, vmid: u32| {
        rig.set(gc::GRBM_GFX_CNTL, queue << 8 | vmid << 4 | me << 2 | pipe);
    };
    for queue in 0..8 {
        select(1, 3, queue, 0);
        rig.set(gc::CP_HQD_QUANTUM, 100 + queue);
    }
    for vmid in 0..16 {
        select(0, 0, 0, vmid);
        rig.set(gc::SH_MEM_BASES, vmid);
    }
    for queue in 0..8 {
        select(1, 3, queue, 0);
        assert_eq!(rig.get(gc::CP_HQD_QUANTUM), 100 + queue);
    }
    select(0, 0, 0, 11);
    assert_eq!(rig.get(gc::SH_MEM_BASES), 11);
}

#[test]
fn the_drivers_count_of_units_is_the_shapes() {
    let rig = Rig::new();
    let mut units = 0;
    for engine in 0..8 {
        rig.set(gc::GRBM_GFX_INDEX, 1 << 30 | engine << 16);
        let missing = rig.get(gc::CC_GC_SHADER_ARRAY_CONFIG) >> 16 | rig.get(gc::GC_USER_SHADER_ARRAY_CONFIG) >> 16;
        units += (0x1fff & !missing).count_ones();
    }
    assert_eq!(units, 104);
}

#[test]
fn requests_are_acknowledged() {
    let rig = Rig::new();
    rig.set(gfxhub::VM_INVALIDATE_REQ + 17, 1 << 3 | 1 << 20);
    assert_eq!((rig.get(gfxhub::VM_INVALIDATE_ACK + 17), rig.get(gfxhub::VM_INVALIDATE_SEM + 17)), (1 << 3, 1));
    rig.set(nbio::GPU_HDP_FLUSH_REQ, 1 << 5);
    assert_eq!(rig.get(nbio::GPU_HDP_FLUSH_DONE), 1 << 5);
    rig.set(gc::RLC_SAFE_MODE, 3);
    assert_eq!(rig.get(gc::RLC_SAFE_MODE), 2, "the command is taken");
}

#[test]
fn accesses_of_any_size_and_place_are_answered() {
    let rig = Rig::new();
    for bar in 0..9 {
        for offset in [0, 1, 3, 0x7_fffc, 0x7_ffff, 0x8_0000, 1 << 40, u64::MAX] {
            for len in [0, 1, 2, 4, 7, 8, 64] {
                let mut bytes = vec![0xaa; len];
                rig.asic.write(bar, offset, &bytes);
                rig.asic.read(bar, offset, &mut bytes);
            }
        }
    }
    // A reset makes all of it new.
    rig.set(gc::SCRATCH_REG0, 5);
    rig.asic.reset();
    assert_eq!((rig.get(gc::SCRATCH_REG0), rig.get(nbio::RCC_CONFIG_MEMSIZE)), (0, 64));
}

/// The list of gaps agrees with a probe. A line may go when its register has a model, and a
/// register that loses its model is noticed.
#[test]
fn a_probe_reads_no_register_without_a_model_but_those_that_are_listed() {
    let lines = |text: &'static str| text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let rig = Rig::up();
    let mut count = 0;
    for line in lines(include_str!("probe.txt")) {
        let (offset, name) = line.split_once(' ').unwrap_or((line, line));
        let at = u64::from_str_radix(offset.trim_start_matches("0x"), 16).unwrap();
        assert_eq!(vkfd_asic::Asic::register_name(at), name);
        rig.get(u32::try_from(at / 4).unwrap());
        count += 1;
    }
    let listed: std::collections::BTreeSet<&str> = lines(include_str!("../../unmodelled.txt")).collect();
    let found = rig.asic.summary().unmodelled;
    assert_eq!(found.iter().map(String::as_str).collect::<std::collections::BTreeSet<_>>(), listed);
    assert!(count > 180 && listed.len() < 20, "{count} reads, {} gaps", listed.len());
}

/// The account of a driver that hangs has the steps that led there, and what it waits for.
#[test]
fn the_last_accesses_are_in_the_account() {
    let rig = Rig::up();
    rig.set(gc::SCRATCH_REG0, 0xcafe_dead);
    rig.doorbell(0x77, 5);
    for _ in 0..3 {
        rig.get(gc::SCRATCH_REG0);
    }
    let last = rig.asic.summary().last;
    let steps: Vec<&str> = last.iter().rev().take(3).rev().map(|line| line.split_once(": ").unwrap().1).collect();
    let expected =
        ["write GC.SCRATCH_REG0 = 0xcafedead", "doorbell 0x77 = 0x5", "read GC.SCRATCH_REG0 = 0xcafedead, 3 times"];
    assert_eq!(steps, expected);
}
