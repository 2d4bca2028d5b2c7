// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `init`: bits that nothing wrote, in vector and scalar registers, LDS, scratch and memory, and
//! the places where they decide something.
//!
//! Every register has a second one here, whose bits are set where nothing wrote. Values are moved
//! with these bits, and nothing is reported. An operation gives bits that depend on such bits:
//! logic and shifts exactly, sums from the lowest one up, all others as a whole. Such bits are
//! reported at branches, at the choice of lanes, in addresses, and in stores: of computed values
//! anywhere, of moved ones to the host's memory. After a report the bits count as written.
//!
//! Memory has a bit a byte ([`super::bits`]). A byte of which a bit is written is written. The
//! processors' writes to device memory that they have mapped cannot be seen. Such memory is
//! therefore filled with garbage when it is allocated. Where any of sixteen bytes has changed, the
//! processors have written all of them.
//!
//! Limits: results of matrix operations, of exchanges of lanes through LDS, and of formatted
//! buffers count as written. So does the host's memory. No bits are kept beyond the first 64 MiB of
//! an allocation, 512 MiB of all allocations, and 1 MiB of a wave's scratch.

mod memory;
mod scalar;
mod vector;

use super::map::Map;
use super::note::{Notes, Rule};
use super::scratch::Scratch;
use super::seen::Seen;
use crate::fast::Piece;
use crate::few::Few;
use crate::group::Group;
use crate::launch::Launch;
use crate::reference::{operand, Kind};
use crate::wave::{Wave, LANES};
use crate::world::{Reach, World};
use vkfd_isa::{Format, Inst, Op, Operand};
use vkfd_lint::live::{ACCUMULATION, VECTOR};
use vkfd_sabotage::{process, Switch};

/// Bytes of a wave's scratch that are kept.
const MOST_SCRATCH: u64 = 1 << 20;

/// A bit for each byte that nothing wrote.
type Bytes = Vec<u64>;

/// The registers' second ones.
#[derive(Clone, Debug)]
struct Shadow {
    rows: Vec<[u32; LANES]>,
    /// Lanes of a row with such bits.
    dirty: Vec<u64>,
    /// Lanes of a row whose value was computed from such bits.
    computed: Vec<u64>,
    scalar: [u32; 128],
    scc: bool,
    scratch: Bytes,
}

/// A row that an instruction is to leave.
#[derive(Clone, Copy)]
struct NewRow {
    row: usize,
    values: [u32; LANES],
    lanes: u64,
    computed: u64,
}

/// What an instruction changes, found before it runs, and done when it has.
#[derive(Default)]
pub(super) struct Work {
    rows: Few<NewRow, 4>,
    scalar: Few<(u8, u32), 8>,
    scc: Option<bool>,
    /// Rows that count as written, in active lanes: the first, and how many.
    defined: (usize, usize),
}

impl Work {
    fn set_scalar(&mut self, operand: Operand, kind: Kind, bits: u64) {
        let Operand::Scalar(n) = operand else { return };
        if n == Operand::NULL || self.scalar.len() > 5 {
            return;
        }
        self.scalar.push((n, low(bits)));
        if kind.bits() == 64 {
            self.scalar.push((n.saturating_add(1), low(bits >> 32)));
        }
    }

    fn set_rows(&mut self, row: usize, kind: Kind, values: &[u64; LANES], lanes: u64, computed: u64) {
        if self.rows.len() > 2 {
            return;
        }
        self.rows.push(NewRow { row, values: values.map(low), lanes, computed });
        if kind.words() > 1 {
            self.rows.push(NewRow { row: row + 1, values: values.map(|value| low(value >> 32)), lanes, computed });
        }
    }
}

fn low(bits: u64) -> u32 {
    u32::try_from(bits & 0xffff_ffff).unwrap_or(0)
}

/// What is known of a group.
#[derive(Clone, Debug)]
pub(super) struct Init {
    waves: Vec<Shadow>,
    lds: Bytes,
}

impl Init {
    pub(super) fn new(launch: &Launch, waves: u32, lds: usize, scratch: Option<&Scratch>) -> Init {
        let program = &launch.program;
        let rows = usize::from(program.vgprs);
        let asked = scratch.map_or(0, |scratch| scratch.asked(program.lanes)).min(MOST_SCRATCH);
        let mut scalar = [u32::MAX; 128];
        // The system's registers follow the user's.
        let system = program.group_ids.iter().filter(|wanted| **wanted).count()
            + usize::from(program.group_info)
            + usize::from(program.scratch);
        let given = launch.user.len().max(program.user_sgprs.into()) + system;
        scalar.iter_mut().take(given).for_each(|word| *word = 0);
        let supplied = [Operand::EXEC, Operand::EXEC + 1, Operand::NULL, Operand::XNACK_MASK, Operand::XNACK_MASK + 1];
        for n in supplied.into_iter().chain(Operand::TTMP..Operand::M0) {
            if let Some(word) = scalar.get_mut(usize::from(n)) {
                *word = 0;
            }
        }
        let given = if program.target.packs_work_item_ids() { 1 } else { program.item_ids.into() };
        let undefined = |row: usize| if row < given { 0 } else { u32::MAX };
        let shadow = Shadow {
            rows: (0..rows).map(|row| [undefined(row); LANES]).collect(),
            dirty: (0..rows).map(|row| u64::from(undefined(row)) << 32 | u64::from(undefined(row))).collect(),
            computed: vec![0; rows],
            scalar,
            scc: false,
            scratch: vec![u64::MAX; usize::try_from(asked.div_ceil(64)).unwrap_or(0)],
        };
        let waves = usize::try_from(waves).unwrap_or(0);
        Init { waves: vec![shadow; waves], lds: vec![u64::MAX; lds.div_ceil(64)] }
    }

    /// Whether a piece of code has no unwritten bits to read, which it would hand on.
    pub(super) fn allows(&self, wave: &Wave, piece: &Piece) -> bool {
        if process().has(Switch::BlindInit) {
            return true;
        }
        let Some(shadow) = self.waves.get(usize::from(wave.index)) else { return true };
        let lanes = if piece.crosses { wave.all() } else { wave.exec() };
        let is_written = |register: u16| match register {
            ..VECTOR => shadow.scalar.get(usize::from(register)).is_none_or(|bits| *bits == 0),
            _ => row_of(wave, register).and_then(|row| shadow.dirty.get(row)).is_none_or(|dirty| dirty & lanes == 0),
        };
        // Where the lanes change on the way, nobody knows which of them a result is written in.
        !shadow.scc
            && piece.reads.iter().all(is_written)
            && (!piece.crosses || piece.writes.iter().filter(|register| *register >= VECTOR).all(is_written))
    }

    /// A piece of code has run that was allowed, from these lanes on.
    pub(super) fn computed(&mut self, wave: &Wave, exec: u64, piece: &Piece) {
        let Some(shadow) = self.waves.get_mut(usize::from(wave.index)) else { return };
        for register in piece.writes.iter() {
            if register < VECTOR {
                if let Some(bits) = shadow.scalar.get_mut(usize::from(register)) {
                    *bits = 0;
                }
                continue;
            }
            let Some(row) = row_of(wave, register) else { continue };
            if shadow.dirty.get(row).is_some_and(|dirty| dirty & exec != 0) {
                shadow.set_row(&NewRow { row, values: [0; LANES], lanes: exec, computed: 0 });
            } else if let Some(computed) = shadow.computed.get_mut(row) {
                *computed &= !exec;
            }
        }
    }

    /// What an instruction that is about to run uses, and what it will leave.
    pub(super) fn before(
        &mut self,
        seen: &Seen<'_>,
        inst: &Inst,
        wave: &Wave,
        group: &Group,
        work: &mut Work,
        notes: &mut Notes,
    ) {
        work.rows.clear();
        work.scalar.clear();
        (work.scc, work.defined) = (None, (0, 0));
        if process().has(Switch::BlindInit) {
            return;
        }
        let Some(shadow) = self.waves.get_mut(usize::from(seen.wave)) else { return };
        match inst.format {
            Format::Sopp | Format::Sop1 | Format::Sop2 | Format::Sopk | Format::Sopc => {
                scalar::before(shadow, seen, inst, wave, group, work, notes);
            }
            Format::Vop1 | Format::Vop2 | Format::Vopc | Format::Vop3 | Format::Vop3p | Format::Vopd => {
                vector::before(shadow, inst, wave, group, work);
            }
            _ => memory::before(shadow, seen, inst, wave, notes),
        }
        // Which lanes run is decided here, whatever comes next.
        let mut lanes = false;
        let all = wave.all();
        work.scalar.iter_mut().for_each(|(n, bits)| {
            let mask = match *n {
                Operand::EXEC => low(all),
                n if n == Operand::EXEC + 1 => low(all >> 32),
                _ => return,
            };
            lanes |= *bits & mask != 0;
            *bits = 0;
        });
        if lanes {
            notes.add_at(seen, Rule::Lanes, (None, None), None);
        }
    }

    /// The instruction has run.
    pub(super) fn after<W: World>(
        &mut self,
        seen: &Seen<'_>,
        inst: &Inst,
        (wave, world): (&Wave, &mut W),
        reaches: &[Reach],
        (work, map, notes): (&mut Work, &Map, &mut Notes),
    ) {
        if process().has(Switch::BlindInit) {
            return;
        }
        let Init { waves, lds } = self;
        let Some(shadow) = waves.get_mut(usize::from(seen.wave)) else { return };
        for new in work.rows.iter() {
            shadow.set_row(new);
        }
        let (first, count) = work.defined;
        for row in first..first + count {
            shadow.set_row(&NewRow { row, values: [0; LANES], lanes: wave.exec(), computed: 0 });
        }
        for &(n, bits) in work.scalar.iter() {
            if let Some(slot) = shadow.scalar.get_mut(usize::from(n)) {
                *slot = bits;
            }
        }
        shadow.scc = work.scc.unwrap_or(shadow.scc);
        if memory::reaches(inst.format) {
            memory::after(shadow, lds, seen, inst, (wave, world), reaches, (map, notes));
        }
    }
}

/// The row of a vector register.
fn row_of(wave: &Wave, register: u16) -> Option<usize> {
    let operand = match register {
        ACCUMULATION.. => Operand::Agpr(register - ACCUMULATION),
        _ => Operand::Vgpr(register.checked_sub(VECTOR)?),
    };
    operand::row(wave, operand, 1).ok()
}

impl Shadow {
    fn set_row(&mut self, new: &NewRow) {
        let NewRow { row, values, lanes, computed } = new;
        let (Some(to), Some(dirty), Some(old)) =
            (self.rows.get_mut(*row), self.dirty.get_mut(*row), self.computed.get_mut(*row))
        else {
            return;
        };
        for (lane, (to, value)) in to.iter_mut().zip(values).enumerate() {
            if lanes >> lane & 1 == 1 {
                *to = *value;
                *dirty = *dirty & !(1 << lane) | u64::from(*value != 0) << lane;
            }
        }
        *old = *old & !lanes | computed & lanes;
    }

    /// A lane's word of a row counts as written.
    fn define(&mut self, row: usize, lane: usize) {
        if let (Some(row), Some(dirty)) = (self.rows.get_mut(row), self.dirty.get_mut(row)) {
            if let Some(word) = row.get_mut(lane) {
                *word = 0;
            }
            *dirty &= !(1u64.checked_shl(u32::try_from(lane).unwrap_or(64)).unwrap_or(0));
        }
    }

    fn word(&self, row: usize, lane: usize) -> u32 {
        self.rows.get(row).and_then(|row| row.get(lane)).copied().unwrap_or(0)
    }

    /// Bits of a scalar operand that nothing wrote.
    fn scalar(&self, operand: Operand, kind: Kind) -> u64 {
        let Operand::Scalar(n) = operand else { return 0 };
        if n == Operand::NULL {
            return 0;
        }
        let word = |n: usize| self.scalar.get(n).copied().map_or(0, u64::from);
        let bits = word(n.into()) | if kind.bits() == 64 { word(usize::from(n) + 1) << 32 } else { 0 };
        bits & kind.mask()
    }

    fn define_scalar(&mut self, operand: Operand, words: usize) {
        let Operand::Scalar(n) = operand else { return };
        self.scalar.iter_mut().skip(n.into()).take(words).for_each(|word| *word = 0);
    }
}

/// Bits from the lowest set one up: what a sum depends on.
fn upward(bits: u64, mask: u64) -> u64 {
    if bits == 0 {
        0
    } else {
        u64::MAX << bits.trailing_zeros() & mask
    }
}

/// All bits, if one is set.
fn whole(bits: u64, mask: u64) -> u64 {
    if bits == 0 {
        0
    } else {
        mask
    }
}

/// Of `a & b`, the bits that depend on unwritten ones: a written zero decides.
fn conjunction((a, ua): (u64, u64), (b, ub): (u64, u64)) -> u64 {
    ua & ub | ua & b | ub & a
}

/// Of `a | b`: a written one decides.
fn disjunction((a, ua): (u64, u64), (b, ub): (u64, u64)) -> u64 {
    ua & ub | ua & !b | ub & !a
}

/// Whether an operation compares for equality, which differing written bits decide.
fn is_equality(op: Op) -> bool {
    matches!(
        op,
        Op::SCmpEqI32
            | Op::SCmpEqU32
            | Op::SCmpLgI32
            | Op::SCmpLgU32
            | Op::SCmpEqU64
            | Op::SCmpLgU64
            | Op::SCmpkEqI32
            | Op::SCmpkEqU32
            | Op::SCmpkLgI32
            | Op::SCmpkLgU32
            | Op::VCmpEqI32
            | Op::VCmpEqU32
            | Op::VCmpNeI32
            | Op::VCmpNeU32
            | Op::VCmpEqI64
            | Op::VCmpEqU64
            | Op::VCmpNeI64
            | Op::VCmpNeU64
            | Op::VCmpEqI16
            | Op::VCmpEqU16
            | Op::VCmpNeI16
            | Op::VCmpNeU16
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bits_decide() {
        assert_eq!(conjunction((0b0011, 0b0101), (0b0011, 0)), 0b0001);
        assert_eq!(disjunction((0b0011, 0b0101), (0b0011, 0)), 0b0100);
        assert_eq!(upward(0b0100, 0xff), 0xfc);
        assert_eq!((whole(1, 7), whole(0, 7)), (7, 0));
    }
}
