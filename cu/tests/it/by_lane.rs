// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which operations the fast engine does lane by lane, by the reference engine's function: a
//! hundred times slower than vectors.
#![allow(clippy::cast_possible_truncation, reason = "encodings are of 32 bits")]

use crate::support;

use std::collections::BTreeSet;
use support::{group, wave, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::{Detour, Flat};
use vkfd_isa::{decode, Format, Target};

/// Operations that are done so, of all on registers that the plain encodings have.
fn by_lane(target: Target) -> BTreeSet<String> {
    let (v1, v2, v5) = (256 + 1, 2, 256 + 5);
    let vop3 = if target.is_rdna() { 0b11_0101 << 26 } else { 0b11_0100 << 26 };
    let short = (0..256).map(|op| vec![0x3f << 25 | 8 << 17 | op << 9 | v1]);
    let long = (0..1024).map(|op| vec![vop3 | op << 16 | 8, v5 << 18 | (256 + v2) << 9 | v1]);
    let end = if target == Target::Gfx1100 { 0xbfb0_0000 } else { 0xbf81_0000 };
    let mut found = BTreeSet::new();
    for mut code in short.chain(long) {
        let words = code.len();
        code.push(end);
        let Ok(inst) = decode(target, &code) else { continue };
        let is_vector = matches!(inst.format, Format::Vop1 | Format::Vop2 | Format::Vopc | Format::Vop3);
        if !is_vector || usize::from(inst.bytes) != 4 * words {
            continue;
        }
        let mut world = Flat::new(BASE, 1);
        world.write_words(BASE, &code);
        let mut wave = wave(target);
        wave.pc = BASE;
        for (row, bits) in [(1, 0x3fc0_0000), (2, 0x4000_0000), (5, 3)] {
            wave.rows[row].0 = [bits; 64];
        }
        // An engine keeps the blocks that it has decoded.
        Engine::new(target).run(&mut wave, &mut group(0), &mut world, 100);
        found.extend(world.detours.keys().filter(|(_, why)| *why == Detour::Lanes).map(|(op, _)| format!("{op:?}")));
    }
    found
}

#[test]
fn few_operations_are_done_lane_by_lane() {
    let everywhere = "VCubeidF32 VCubemaF32 VCubescF32 VCubetcF32 VCvtNormI16F16 VCvtNormU16F16 VCvtOffF32I4 \
                      VCvtPkU8F32 VDivFixupF16 VSatPkU8I16";
    for target in Target::ALL {
        let here = match target {
            Target::Gfx900 | Target::Gfx90a => "VDivFixupLegacyF16",
            Target::Gfx942 => "VDivFixupLegacyF16 VCvtF32Bf8 VCvtF32Fp8 VCvtPkF32Bf8 VCvtPkF32Fp8",
            Target::Gfx1030 => "VFmaLegacyF32 VMullitF32",
            Target::Gfx1100 => "VFmaLegacyF32 VMullitF32 VDot2Bf16Bf16 VDot2F16F16",
        };
        let expected = everywhere.split_whitespace().chain(here.split_whitespace()).map(str::to_owned);
        assert_eq!(by_lane(target), expected.collect(), "{target}");
    }
}
