// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Vector operations.

use super::{conjunction, disjunction, is_equality, upward, whole, Shadow, Work};
use crate::group::Group;
use crate::reference::lanes::{placed, Sources};
use crate::reference::{
    compare, cross, dpp, is_wmma, kinds, matrix_shape, operand, packed, sdwa, uniform, Kind, Kinds,
};
use crate::wave::{Wave, LANES};
use vkfd_isa::{Extension, Format, Inst, Op, Operand};

type Values = [u64; LANES];

pub(super) fn before(shadow: &Shadow, inst: &Inst, wave: &Wave, group: &Group, work: &mut Work) {
    if inst.format == Format::Vopd {
        one(shadow, inst, wave, group, work);
        if let Some(second) = inst.second() {
            one(shadow, &second, wave, group, work);
        }
        return;
    }
    if cross::knows(inst.op) {
        return across(shadow, inst, wave, group, work);
    }
    if let Some(shape) = matrix_shape(inst.op) {
        return written(inst, wave, shape.results() * 2, work);
    }
    if is_wmma(inst.op) {
        return written(inst, wave, 256 / usize::from(wave.lanes.max(1)), work);
    }
    one(shadow, inst, wave, group, work);
}

/// The instruction's result counts as written.
fn written(inst: &Inst, wave: &Wave, words: usize, work: &mut Work) {
    let Ok(row) = operand::row(wave, inst.dst, 1) else { return };
    work.defined = (row, words);
}

fn broadcast(bits: u64) -> Values {
    [bits; LANES]
}

impl Shadow {
    /// Bits of a source in each lane that nothing wrote.
    fn source(&self, wave: &Wave, operand: Operand, kind: Kind) -> Values {
        if !matches!(operand, Operand::Vgpr(_) | Operand::Agpr(_)) {
            return broadcast(self.scalar(operand, kind));
        }
        let Ok(row) = operand::row(wave, operand, kind.words()) else { return broadcast(0) };
        std::array::from_fn(|lane| {
            let high = if kind.words() > 1 { u64::from(self.word(row + 1, lane)) << 32 } else { 0 };
            u64::from(self.word(row, lane)) | high
        })
    }

    /// Whether a source has such bits.
    fn is_dirty(&self, wave: &Wave, operand: Operand, kind: Kind) -> bool {
        if !matches!(operand, Operand::Vgpr(_) | Operand::Agpr(_)) {
            return self.scalar(operand, kind) != 0;
        }
        let Ok(row) = operand::row(wave, operand, kind.words()) else { return false };
        self.dirty.iter().skip(row).take(kind.words().into()).any(|lanes| *lanes != 0)
    }

    /// A source's bits as the encoding makes them.
    fn modified(&self, inst: &Inst, wave: &Wave, n: usize, operand: Operand, kind: Kind) -> Values {
        let mut values = self.source(wave, operand, kind);
        if let (Extension::Dpp(dpp), 0) = (&inst.extension, n) {
            values = dpp::permutation(dpp, wave).apply(&values);
        }
        values.map(|value| {
            let value = match &inst.extension {
                Extension::Sdwa(words) if n < 2 => sdwa::select(value, words.src[n], words.sext[n]),
                _ if kind.bits() == 16 && inst.mods.op_sel >> n & 1 == 1 => value >> 16,
                _ => value,
            };
            value & kind.mask()
        })
    }
}

/// A source that is a lane mask, for selection and carries.
fn mask_source(inst: &Inst) -> Option<Operand> {
    match inst.op {
        Op::VCndmaskB32 if inst.format == Format::Vopd => Some(Operand::Scalar(Operand::VCC)),
        Op::VCndmaskB32 | Op::VCndmaskB16 | Op::VAddcCoU32 | Op::VSubbCoU32 | Op::VSubbrevCoU32 => Some(inst.src[2]),
        Op::VDivFmasF32 | Op::VDivFmasF64 => Some(Operand::Scalar(Operand::VCC)),
        _ => None,
    }
}

/// An operation that is a function of a lane.
fn one(shadow: &Shadow, inst: &Inst, wave: &Wave, group: &Group, work: &mut Work) {
    if packed::knows(inst.op) && kinds(inst.op).is_none() {
        return halves(shadow, inst, wave, work);
    }
    let Some(kinds) = kinds(inst.op) else { return written(inst, wave, 1, work) };
    let mask = mask_source(inst);
    let source = |n: usize| match n {
        2 if kinds.tied => inst.dst,
        2 if mask == Some(inst.src[2]) => Operand::None,
        n => inst.src[n],
    };
    let wave_mask = if wave.lanes == 32 { Kind::B32 } else { Kind::B64 };
    let umask = mask.map_or(0, |operand| shadow.scalar(operand, wave_mask));
    let active = wave.exec();
    let is_dirty = umask & active != 0 || (0..3).any(|n| shadow.is_dirty(wave, source(n), kinds.src[n]));
    let compares = compare::question(inst.op);
    if !is_dirty {
        match compares {
            Some(_) => give_mask(inst, wave, 0, work),
            None => {
                keep_or_clear(shadow, inst, wave, &kinds, work);
                work.set_scalar(inst.sdst, wave_mask, 0);
            }
        }
        return;
    }
    let bits: [Values; 3] = std::array::from_fn(|n| shadow.modified(inst, wave, n, source(n), kinds.src[n]));
    let count = if mask == Some(inst.src[2]) { 2 } else { 3 };
    let Ok(values) = Sources::read(inst, wave, group, &kinds.src, count, kinds.tied) else { return };
    let active = active & values.write;
    let chosen = mask.map_or(0, |operand| uniform(wave, group, operand, wave_mask).unwrap_or(0));
    let (mut given, mut computed) = (0, 0);
    let mut out = [0; LANES];
    let row = operand::row(wave, inst.dst, 1).ok();
    for (lane, out) in out.iter_mut().enumerate() {
        if active >> lane & 1 == 0 {
            continue;
        }
        let u = [0, 1, 2].map(|n: usize| bits[n][lane]);
        let any = u[0] | u[1] | u[2];
        let (flag, uflag) = (chosen >> lane & 1 == 1, umask >> lane & 1 == 1);
        let [a, b, c] = values.lane(lane);
        if compares.is_some() {
            let decided = is_equality(inst.op) && (a ^ b) & !(u[0] | u[1]) != 0;
            given |= u64::from(u[0] | u[1] != 0 && !decided) << lane;
            continue;
        }
        let (result, is_moved) = rule(inst.op, kinds.dst.mask(), [a, b, c], u, (flag, uflag));
        let old = row.map_or(0, |row| shadow.word(row, lane));
        *out = placed(inst, wave, kinds.dst, kinds.clears, old, result & kinds.dst.mask());
        given |= u64::from(any != 0 || uflag) << lane;
        // What was moved was computed if its source was.
        let inherited = (0..3).any(|n| is_computed(shadow, wave, source(n), lane));
        computed |= u64::from(result != 0 && (!is_moved || inherited)) << lane;
    }
    if compares.is_some() {
        return give_mask(inst, wave, given, work);
    }
    if let Some(row) = row {
        work.set_rows(row, kinds.dst, &out, active, computed);
    }
    work.set_scalar(inst.sdst, wave_mask, given);
}

fn is_computed(shadow: &Shadow, wave: &Wave, operand: Operand, lane: usize) -> bool {
    match operand {
        Operand::Vgpr(_) | Operand::Agpr(_) => operand::row(wave, operand, 1)
            .ok()
            .and_then(|row| shadow.computed.get(row))
            .is_some_and(|lanes| lanes >> lane & 1 == 1),
        _ => false,
    }
}

/// A clean result: a part of the register stays as it was.
fn keep_or_clear(shadow: &Shadow, inst: &Inst, wave: &Wave, kinds: &Kinds, work: &mut Work) {
    let Ok(row) = operand::row(wave, inst.dst, 1) else { return };
    let write = match &inst.extension {
        Extension::Dpp(dpp) => dpp::permutation(dpp, wave).write,
        _ => u64::MAX,
    };
    let old = |lane| placed(inst, wave, kinds.dst, kinds.clears, shadow.word(row, lane), 0);
    let values: Values = std::array::from_fn(old);
    work.set_rows(row, kinds.dst, &values, wave.exec() & write, 0);
}

/// Where a comparison's answer goes.
fn give_mask(inst: &Inst, wave: &Wave, bits: u64, work: &mut Work) {
    let kind = if wave.lanes == 32 { Kind::B32 } else { Kind::B64 };
    let exec = compare::question(inst.op).is_some_and(|question| question.exec);
    if !exec || wave.target.is_gfx9() {
        work.set_scalar(inst.dst, kind, bits);
    }
    if exec {
        work.set_scalar(Operand::Scalar(Operand::EXEC), kind, bits);
    }
}

/// The bits of a result that depend on unwritten ones, and whether they were only moved.
fn rule(op: Op, mask: u64, [a, b, c]: [u64; 3], [ua, ub, uc]: [u64; 3], (flag, uflag): (bool, bool)) -> (u64, bool) {
    let any = ua | ub | uc;
    let amount = |value: u64, bits: u64| value & (bits - 1);
    let word = |bits: u64| bits & 0xffff_ffff;
    let moved = |bits| (bits, true);
    // Parts are moved to their places by shifts; a whole word that is shifted is computed with.
    let shifted = |bits: u64, from: u64, whole: u64| (bits, from != whole);
    // As the operation does it, the highest bit stays.
    let signed = |bits: u64, by: u64| {
        let above = if bits >> 31 & 1 == 1 { u64::MAX << 32 } else { 0 };
        word((bits | above) >> by)
    };
    match op {
        Op::VMovB32 | Op::VNotB32 => moved(ua),
        Op::VBfrevB32 => moved(u64::from(super::low(ua).reverse_bits())),
        Op::VCndmaskB32 | Op::VCndmaskB16 => match (uflag, flag) {
            (true, _) if a == b && ua | ub == 0 => moved(0),
            (true, _) => (mask, false),
            (false, true) => moved(ub),
            (false, false) => moved(ua),
        },
        _ if uflag => (mask, false),
        Op::VAndB32 => moved(conjunction((a, ua), (b, ub))),
        Op::VOrB32 => moved(disjunction((a, ua), (b, ub))),
        Op::VXorB32 | Op::VXnorB32 => moved(ua | ub),
        Op::VXor3B32 => moved(any),
        Op::VOr3B32 => moved(disjunction((a | b, disjunction((a, ua), (b, ub))), (c, uc))),
        Op::VAndOrB32 => moved(disjunction((a & b, conjunction((a, ua), (b, ub))), (c, uc))),
        Op::VBfiB32 if ua == 0 => moved(a & ub | !a & uc),
        Op::VLshlrevB32 if ua == 0 => shifted(word(ub << amount(a, 32)), ub, mask),
        Op::VLshrrevB32 if ua == 0 => shifted(ub >> amount(a, 32), ub, mask),
        Op::VAshrrevI32 if ua == 0 => shifted(signed(ub, amount(a, 32)), ub, mask),
        Op::VLshlrevB64 if ua == 0 => shifted(ub << amount(a, 64), ub, mask),
        Op::VLshrrevB64 if ua == 0 => shifted(ub >> amount(a, 64), ub, mask),
        Op::VLshlrevB16 if ua == 0 => moved(ub << amount(a, 16) & 0xffff),
        Op::VLshrrevB16 if ua == 0 => moved(ub >> amount(a, 16)),
        Op::VLshlOrB32 if ub == 0 => {
            let by = amount(b, 32);
            moved(disjunction((word(a << by), word(ua << by)), (c, uc)))
        }
        Op::VBfeU32 | Op::VBfeI32 if ub | uc == 0 => {
            let (from, width) = (amount(b, 32), amount(c, 32));
            let field = ua >> from & ((1 << width) - 1);
            let top = op == Op::VBfeI32 && width > 0 && field >> (width - 1) & 1 == 1;
            moved(if top { word(field | u64::MAX << width) } else { field })
        }
        Op::VAlignbitB32 if uc == 0 => moved(word((ua << 32 | ub) >> amount(c, 32))),
        Op::VAlignbyteB32 if uc == 0 => moved(word((ua << 32 | ub) >> (8 * amount(c, 4)))),
        Op::VPermB32 if uc == 0 => moved((0..4).fold(0, |all, byte| {
            let select = c >> (8 * byte) & 0xff;
            let from = if select < 8 { (ua << 32 | ub) >> (8 * select) & 0xff } else { 0 };
            all | from << (8 * byte)
        })),
        Op::VCvtF32Ubyte0 => (whole(ua & 0xff, mask), false),
        Op::VCvtF32Ubyte1 => (whole(ua & 0xff00, mask), false),
        Op::VCvtF32Ubyte2 => (whole(ua & 0xff_0000, mask), false),
        Op::VCvtF32Ubyte3 => (whole(ua & 0xff00_0000, mask), false),
        Op::VAddU32 | Op::VSubU32 | Op::VSubrevU32 | Op::VAddCoU32 | Op::VSubCoU32 | Op::VSubrevCoU32 => {
            (upward(any, mask), false)
        }
        // The low word knows nothing of the sum's high word.
        Op::VMadU64U32 | Op::VMadI64I32 => (upward(any, mask), false),
        Op::VLshlAddU64 if ub == 0 => (upward(ua << amount(b, 64) | uc, mask), false),
        Op::VAddcCoU32 | Op::VSubbCoU32 | Op::VSubbrevCoU32 => (upward(ua | ub, mask), false),
        Op::VAdd3U32 | Op::VMulLoU32 | Op::VAddU16 | Op::VSubU16 | Op::VMulLoU16 => (upward(any, mask), false),
        Op::VLshlAddU32 if ub == 0 => (upward(word(ua << amount(b, 32)) | uc, mask), false),
        Op::VAddLshlU32 if uc == 0 => (word(upward(ua | ub, mask) << amount(c, 32)), false),
        Op::VMulU32U24 | Op::VMulI32I24 => (whole((ua | ub) & 0xff_ffff, mask), false),
        Op::VMadU32U24 | Op::VMadI32I24 => (whole((ua | ub) & 0xff_ffff | uc, mask), false),
        _ => (whole(any, mask), false),
    }
}

/// Packed operations, half by half.
fn halves(shadow: &Shadow, inst: &Inst, wave: &Wave, work: &mut Work) {
    let Ok(row) = operand::row(wave, inst.dst, 1) else { return };
    if !inst.src.iter().any(|src| shadow.is_dirty(wave, *src, Kind::B32)) {
        return written(inst, wave, 2, work);
    }
    // Operations on pairs of words have other halves.
    if !packed::of_halves(inst.op) {
        return written(inst, wave, 2, work);
    }
    let sources = inst.src.map(|src| shadow.source(wave, src, Kind::B32));
    let (mut out, mut computed) = ([0; LANES], 0);
    for (lane, out) in out.iter_mut().enumerate() {
        let half = |select: u8| {
            let part = |(n, source): (usize, &Values)| source[lane] >> (16 * (select >> n & 1)) & 0xffff;
            whole(sources.iter().enumerate().map(part).fold(0, |all, bits| all | bits), 0xffff)
        };
        *out = half(inst.mods.op_sel) | half(inst.mods.op_sel_hi) << 16;
        computed |= u64::from(*out != 0) << lane;
    }
    work.set_rows(row, Kind::B32, &out, wave.exec(), computed);
}

/// Operations that take a lane's value to another place.
fn across(shadow: &Shadow, inst: &Inst, wave: &Wave, group: &Group, work: &mut Work) {
    let [src, select, _] = inst.src;
    let lane_of = |lane: usize| match src {
        Operand::Vgpr(_) | Operand::Agpr(_) => {
            operand::row(wave, src, 1).map_or(0, |row| u64::from(shadow.word(row, lane)))
        }
        _ => shadow.scalar(src, Kind::B32),
    };
    let selected = || {
        let at = uniform(wave, group, select, Kind::B32).unwrap_or(0) % u64::from(wave.lanes.max(1));
        usize::try_from(at).unwrap_or(0)
    };
    match inst.op {
        Op::VNop => {}
        Op::VReadfirstlaneB32 => {
            let exec = wave.exec();
            let first = if exec == 0 { 0 } else { exec.trailing_zeros() as usize };
            work.set_scalar(inst.dst, Kind::B32, lane_of(first));
        }
        Op::VReadlaneB32 => work.set_scalar(inst.dst, Kind::B32, lane_of(selected())),
        Op::VWritelaneB32 => {
            let Ok(row) = operand::row(wave, inst.dst, 1) else { return };
            work.set_rows(row, Kind::B32, &broadcast(shadow.scalar(src, Kind::B32)), 1 << selected(), 0);
        }
        Op::VAccvgprReadB32 | Op::VAccvgprWriteB32 | Op::VAccvgprMovB32 => {
            let Ok(row) = operand::row(wave, inst.dst, 1) else { return };
            let inherited = (0..LANES).filter(|lane| is_computed(shadow, wave, src, *lane));
            let computed = inherited.fold(0, |all, lane| all | 1 << lane);
            work.set_rows(row, Kind::B32, &shadow.source(wave, src, Kind::B32), wave.exec(), computed);
        }
        Op::VSwapB32 => {
            for (to, from) in [(inst.dst, src), (src, inst.dst)] {
                let Ok(row) = operand::row(wave, to, 1) else { return };
                work.set_rows(row, Kind::B32, &shadow.source(wave, from, Kind::B32), wave.exec(), 0);
            }
        }
        _ => written(inst, wave, 4, work),
    }
}
