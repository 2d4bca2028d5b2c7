// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Exchanges between lanes that are DS instructions, within 64 lanes on gfx9, within 32 on
//! later targets.

use super::{both, merge};
use crate::fast::builder::Builder;
use crate::fast::operation::vectors;
use crate::fast::prepare::Lanes;
use crate::fast::simd::Simd;
use crate::fast::step::{Cx, Flow, Place, Run, Source, Step, ROW};
use crate::reference::memory::swizzle;
use vkfd_isa::{Inst, Op};

/// Writes the active lanes of a row.
#[inline(always)]
unsafe fn write(step: &Step, cx: &Cx, exec: u64, result: &[u32; 64]) {
    // SAFETY: the step's row exists.
    unsafe {
        let to = cx.row_mut(step.dst);
        for (lane, value) in result.iter().enumerate() {
            let mask = ((exec >> lane) as u32 & 1).wrapping_neg();
            let old = to.add(lane).read();
            to.add(lane).write(old ^ (old ^ value) & mask);
        }
    }
}

/// The lanes' words, zero where they are not active.
#[inline(always)]
unsafe fn words(cx: &Cx, source: Source, exec: u64) -> [u32; 64] {
    // SAFETY: the step's row exists.
    let mut words = unsafe { cx.row(source).cast::<[u32; 64]>().read() };
    if exec != u64::MAX {
        for (lane, word) in words.iter_mut().enumerate() {
            *word &= ((exec >> lane) as u32 & 1).wrapping_neg();
        }
    }
    words
}

/// Each lane takes from the lane that it names.
#[inline(always)]
unsafe fn bpermute<S: Simd>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows exist.
    unsafe {
        let from = words(cx, step.src[1], exec);
        let address = cx.row(step.src[0]);
        let mut result = [0; 64];
        let within = u32::from(step.scalar[0]) - 1;
        let (imm, inside, two) = (S::splat(step.imm as u32), S::splat(within), S::splat(2));
        for group in 0..vectors(cx.all) {
            // Lanes take within 32 or 64 of them, to which their own numbers belong.
            let first = S::splat((8 * group as u32) & !within);
            let index = S::shr(S::add(S::load(address.add(8 * group)), imm), two);
            let places = S::to_array(S::or(first, S::and(index, inside)));
            for (lane, place) in places.into_iter().enumerate() {
                result[8 * group + lane] = from[place as usize % 64];
            }
        }
        merge::<S>(cx, step.dst, &result, exec);
    }
    step.done(cx)
}

/// The same, where the processor has AVX-512: a row is four of its registers, and an instruction
/// takes from two of them.
#[cfg(target_arch = "x86_64")]
unsafe fn bpermute_wide(step: &Step, cx: &mut Cx) -> Flow {
    // Bit 5 of a place says which two: a place within 32 lanes has none, and its lane's number
    // says it.
    let (bit, upper) = if step.scalar[0] == 64 { (32, 0) } else { (0, u32::MAX) };
    /// 16 lanes of the row: their place in it, the mask of those that are active, and what else
    /// says that the upper two registers are meant.
    macro_rules! take {
        ($at:literal, $mask:literal, $upper:literal) => {
            concat!(
                "vpaddd zmm22, zmm20, [{address} + ",
                $at,
                "]\n",
                "vpsrld zmm22, zmm22, 2\n",
                "vptestmd k5, zmm22, zmm21\n",
                $upper,
                "\n",
                "vmovdqa32 zmm23, zmm22\n",
                "vpermi2d zmm22, zmm16, zmm17\n",
                "vpermi2d zmm23, zmm18, zmm19\n",
                "vmovdqa32 zmm22{{k5}}, zmm23\n",
                "vmovdqu32 [{to} + ",
                $at,
                "]{{",
                $mask,
                "}}, zmm22"
            )
        };
    }
    /// 16 lanes of the source, by halves: most handlers store a row by vectors of eight lanes, and
    /// the processor hands no two stores on to one load.
    macro_rules! source {
        ($at:literal, $half:literal, $all:literal, $low:literal, $mask:literal) => {
            concat!(
                "vmovdqu32 ",
                $low,
                ", [{from} + ",
                $at,
                "]\n",
                "vinserti64x4 ",
                $all,
                ", ",
                $all,
                ", [{from} + ",
                $half,
                "], 1\n",
                "vmovdqa32 ",
                $all,
                "{{",
                $mask,
                "}}{{z}}, ",
                $all
            )
        };
    }
    // SAFETY: the step's rows exist, and nothing refers to them; the processor has AVX-512 F. All
    // of the source is read before anything is written, and each lane's place before its result.
    unsafe {
        std::arch::asm!(
            "kmovw k1, {exec:e}",
            source!("0", "32", "zmm16", "ymm16", "k1"),
            "shr {exec}, 16",
            "kmovw k2, {exec:e}",
            source!("64", "96", "zmm17", "ymm17", "k2"),
            "shr {exec}, 16",
            "kmovw k3, {exec:e}",
            source!("128", "160", "zmm18", "ymm18", "k3"),
            "shr {exec}, 16",
            "kmovw k4, {exec:e}",
            source!("192", "224", "zmm19", "ymm19", "k4"),
            "vpbroadcastd zmm20, {offset:e}",
            "vpbroadcastd zmm21, {bit:e}",
            "kmovw k6, {upper:e}",
            take!("0", "k1", ""),
            take!("64", "k2", ""),
            take!("128", "k3", "korw k5, k5, k6"),
            take!("192", "k4", "korw k5, k5, k6"),
            exec = inout(reg) cx.exec() => _,
            from = in(reg) cx.row(step.src[1]),
            address = in(reg) cx.row(step.src[0]),
            to = in(reg) cx.row_mut(step.dst),
            offset = in(reg) step.imm as u32,
            bit = in(reg) bit,
            upper = in(reg) upper,
            out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
            out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
            out("k1") _, out("k2") _, out("k3") _, out("k4") _, out("k5") _, out("k6") _,
            options(nostack)
        );
    }
    step.done(cx)
}

/// The handler of an exchange by which each lane takes.
fn bpermute_handler(builder: &Builder) -> Run {
    #[cfg(target_arch = "x86_64")]
    if builder.avx512 {
        return bpermute_wide;
    }
    both!(builder.avx2, bpermute)
}

/// Each lane gives to the lane that it names.
unsafe fn permute(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's rows exist.
    unsafe {
        let (address, from) = (cx.row(step.src[0]), cx.row(step.src[1]));
        let mut result = [0; 64];
        let within = u32::from(step.scalar[0]) - 1;
        for lane in 0..64 {
            if exec >> lane & 1 != 0 {
                let index = address.add(lane).read().wrapping_add(step.imm as u32) / 4;
                let to = lane as u32 & !within | index & within;
                result[to as usize % 64] = from.add(lane).read();
            }
        }
        write(step, cx, exec, &result);
    }
    step.done(cx)
}

/// Each lane takes from the lane in the table at `src[1]`.
unsafe fn fixed(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    // SAFETY: the step's row exists; the table is a constant.
    unsafe {
        let table = &*cx.row(step.src[1]).cast::<Lanes>();
        let from = words(cx, step.src[0], exec);
        let mut result = [0; 64];
        for lane in 0..64 {
            result[lane] = from[usize::from(table.from[lane]) % 64];
        }
        write(step, cx, exec, &result);
    }
    step.done(cx)
}

/// Makes a step of an exchange.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let layout = builder.layout;
    let run: Run = match inst.op {
        Op::DsBpermuteB32 => bpermute_handler(builder),
        Op::DsPermuteB32 => permute,
        Op::DsSwizzleB32 => fixed,
        _ => return None,
    };
    if inst.memory.gds {
        return None;
    }
    let mut step = place.step(run);
    step.scalar[0] = layout.exchange_lanes();
    step.imm = i64::from(inst.memory.offset);
    step.src[0] = Source::register(layout.row(inst.memory.vaddr, 1)? * ROW);
    if inst.op == Op::DsSwizzleB32 {
        let from = std::array::from_fn(|lane| swizzle(inst.memory.offset as u32, lane) as u8);
        let table = Lanes { from, valid: u64::MAX, open: u64::MAX, zero: true, inactive: false };
        step.src[1] = builder.constants.lanes(table);
    } else {
        step.src[1] = Source::register(layout.row(inst.memory.data, 1)? * ROW);
    }
    step.dst = layout.row(inst.dst, 1)? * ROW;
    steps.push(step);
    Some(())
}
