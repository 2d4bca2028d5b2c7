// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scalar operations and branches.

use super::super::note::{Notes, Rule};
use super::super::seen::Seen;
use super::{conjunction, disjunction, is_equality, upward, Shadow, Work};
use crate::group::Group;
use crate::reference::scalar::{self, Flag, Meaning, Sources};
use crate::reference::{uniform, Kind};
use crate::wave::Wave;
use vkfd_isa::{Format, Inst, Op, Operand};

pub(super) fn before(
    shadow: &mut Shadow,
    seen: &Seen<'_>,
    inst: &Inst,
    wave: &Wave,
    group: &Group,
    work: &mut Work,
    notes: &mut Notes,
) {
    if decides(shadow, inst, wave) {
        notes.add_at(seen, Rule::Branch, (None, None), None);
        return;
    }
    if let Some(meaning) = scalar::meaning(inst.op) {
        return result(shadow, inst, wave, group, &meaning, work);
    }
    if let Some((kind, _)) = scalar::comparison(inst.op) {
        work.scc = Some(comparison(shadow, inst, wave, group, kind));
        return;
    }
    if let Some((kind, function, _)) = scalar::exec_function(inst.op) {
        let [source, ..] = inst.src;
        let (bits, value) = (shadow.scalar(source, kind), uniform(wave, group, source, kind).unwrap_or(0));
        let exec = wave.exec();
        // The lanes that would be others if these bits were.
        let differs = (function(value, exec) ^ function(value ^ bits, exec)) & wave.all() & kind.mask();
        work.set_scalar(Operand::Scalar(Operand::EXEC), kind, differs);
        work.set_scalar(inst.dst, kind, 0);
        work.scc = Some(false);
        return;
    }
    // The others give what hardware supplies.
    work.set_scalar(inst.dst, Kind::B64, 0);
}

/// Whether the instruction goes where bits send it that nothing wrote. They count as written then.
fn decides(shadow: &mut Shadow, inst: &Inst, wave: &Wave) -> bool {
    let vcc = Operand::Scalar(Operand::VCC);
    match inst.op {
        Op::SCbranchScc0 | Op::SCbranchScc1 => std::mem::take(&mut shadow.scc),
        Op::SCbranchVccz | Op::SCbranchVccnz => {
            let bits = shadow.scalar(vcc, Kind::B64) & wave.all();
            if bits == 0 || wave.vcc() & wave.all() & !bits != 0 {
                return false;
            }
            shadow.define_scalar(vcc, 2);
            true
        }
        Op::SSetpcB64 | Op::SSwappcB64 => {
            let [target, ..] = inst.src;
            let bits = shadow.scalar(target, Kind::B64);
            shadow.define_scalar(target, 2);
            bits != 0
        }
        _ => false,
    }
}

fn comparison(shadow: &Shadow, inst: &Inst, wave: &Wave, group: &Group, kind: Kind) -> bool {
    let [first, second, _] = inst.src;
    let immediate = inst.format == Format::Sopk;
    let first = if immediate && first == Operand::None { inst.dst } else { first };
    let bit = matches!(inst.op, Op::SBitcmp0B32 | Op::SBitcmp1B32 | Op::SBitcmp0B64 | Op::SBitcmp1B64);
    let a = shadow.scalar(first, kind);
    let b = if immediate { 0 } else { shadow.scalar(second, if bit { Kind::B32 } else { kind }) };
    if a | b == 0 {
        return false;
    }
    let value = |operand, kind| uniform(wave, group, operand, kind).unwrap_or(0);
    if bit {
        let at = value(second, Kind::B32) & u64::from(kind.bits() - 1);
        return b != 0 || a >> at & 1 == 1;
    }
    let differ = !immediate && is_equality(inst.op) && (value(first, kind) ^ value(second, kind)) & !(a | b) != 0;
    !differ
}

fn result(shadow: &Shadow, inst: &Inst, wave: &Wave, group: &Group, meaning: &Meaning, work: &mut Work) {
    let [first, second, _] = inst.src;
    let [kind_a, kind_b] = meaning.src;
    let immediate = inst.format == Format::Sopk;
    let (ua, ub) = match immediate {
        true => (0, 0),
        false => (shadow.scalar(first, kind_a), shadow.scalar(second, kind_b)),
    };
    let kept = matches!(
        inst.op,
        Op::SCmovB32
            | Op::SCmovB64
            | Op::SCmovkI32
            | Op::SAddkI32
            | Op::SMulkI32
            | Op::SBitset0B32
            | Op::SBitset0B64
            | Op::SBitset1B32
            | Op::SBitset1B64
    );
    let uold = if kept { shadow.scalar(inst.dst, meaning.dst) } else { 0 };
    let flag = shadow.scc && uses_scc(inst.op);
    let mask = meaning.dst.mask();
    if ua | ub | uold == 0 && !flag {
        work.set_scalar(inst.dst, meaning.dst, 0);
        if sets_scc(meaning, inst.op) {
            work.scc = Some(false);
        }
        return;
    }
    let value = |operand, kind| uniform(wave, group, operand, kind).unwrap_or(0);
    let (a, b) = if immediate { (0, 0) } else { (value(first, kind_a), value(second, kind_b)) };
    let sources = Sources { a, b, old: value(inst.dst, meaning.dst), scc: wave.scc };
    // Operations that move bits move these as well.
    let moved = |a: u64, b: u64, old: u64| (meaning.eval)(Sources { a, b, old, scc: wave.scc }).0;
    let bits = match inst.op {
        _ if flag => mask,
        Op::SMovB32 | Op::SMovB64 | Op::SNotB32 | Op::SNotB64 => ua,
        Op::SBrevB32 | Op::SBrevB64 | Op::SSextI32I8 | Op::SSextI32I16 | Op::SBitreplicateB64B32 => moved(ua, 0, 0),
        Op::SCmovB32 | Op::SCmovB64 | Op::SCmovkI32 | Op::SCselectB32 | Op::SCselectB64 => moved(ua, ub, uold),
        Op::SPackLlB32B16 | Op::SPackLhB32B16 | Op::SPackHhB32B16 | Op::SPackHlB32B16 => moved(ua, ub, 0),
        Op::SAndB32 | Op::SAndB64 | Op::SNandB32 | Op::SNandB64 => conjunction((a, ua), (b, ub)),
        Op::SAndn2B32 | Op::SAndn2B64 => conjunction((a, ua), (!b, ub)),
        Op::SOrB32 | Op::SOrB64 | Op::SNorB32 | Op::SNorB64 => disjunction((a, ua), (b, ub)),
        Op::SOrn2B32 | Op::SOrn2B64 => disjunction((a, ua), (!b, ub)),
        Op::SXorB32 | Op::SXorB64 | Op::SXnorB32 | Op::SXnorB64 => ua | ub,
        Op::SLshlB32
        | Op::SLshlB64
        | Op::SLshrB32
        | Op::SLshrB64
        | Op::SAshrI32
        | Op::SAshrI64
        | Op::SBfeU32
        | Op::SBfeI32
        | Op::SBfeU64
        | Op::SBfeI64
            if ub == 0 =>
        {
            moved(ua, b, 0)
        }
        Op::SAddU32 | Op::SAddI32 | Op::SSubU32 | Op::SSubI32 | Op::SAddcU32 | Op::SSubbU32 | Op::SMulI32 => {
            upward(ua | ub, mask)
        }
        _ => mask,
    } & mask;
    work.set_scalar(inst.dst, meaning.dst, bits);
    work.scc = match (meaning.eval)(sources) {
        (_, Flag::Keep) => None,
        (_, Flag::Set(_)) => Some(ua | ub | uold != 0 || flag),
        (value, Flag::NotZero) => Some(bits != 0 && value & mask & !bits == 0),
    };
}

fn uses_scc(op: Op) -> bool {
    matches!(
        op,
        Op::SCmovB32 | Op::SCmovB64 | Op::SCmovkI32 | Op::SCselectB32 | Op::SCselectB64 | Op::SAddcU32 | Op::SSubbU32
    )
}

/// Whether the operation sets SCC, whatever its sources.
fn sets_scc(meaning: &Meaning, _: Op) -> bool {
    !matches!((meaning.eval)(Sources { a: 0, b: 0, old: 0, scc: false }).1, Flag::Keep)
}
