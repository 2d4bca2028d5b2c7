// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Instructions as the checks see them: a class, and the registers that are read and written.
//!
//! Mechanism: the decoder's tables say how many registers each field of an encoding names. Operands
//! that no field names (VCC, EXEC, M0, a destination that is partly kept) are added here.
//!
//! Limits: addresses of images beyond the first register are not seen, nor are registers that a
//! relative index chooses. Both make the checks miss findings, and never make one up.

use std::sync::OnceLock;

use vkfd_isa::{
    encodings, Encoding, Extension, Field, FieldKind, Format, Inst, Op, Operand, SdwaSelect, SdwaUnused, Target,
};

use crate::class::{class, Class};
use crate::register::{Role, Use, Uses, EXEC, M0, VCC};

/// An instruction of a function.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Bytes from the function's start.
    pub offset: u32,
    pub words: [u32; 2],
    pub op: Op,
    pub class: Class,
    /// The immediate of SOPK and SOPP.
    pub imm: i32,
    pub bytes: u8,
    pub reads: Uses,
    pub writes: Uses,
    /// Whether a literal or another constant that is not inline is read.
    pub literal: bool,
    /// Whether the buffer's offset is in a scalar register.
    pub scalar_offset: bool,
}

impl Step {
    /// The operand in a role, if there is one.
    pub fn operand(&self, role: Role) -> Option<Use> {
        self.reads.iter().find(|operand| operand.role == role)
    }

    /// The result's registers.
    pub fn result(&self) -> Option<Use> {
        self.writes.iter().find(|operand| operand.role == Role::Destination)
    }

    /// An operation without operands.
    #[cfg(test)]
    pub fn of(op: Op, class: Class) -> Step {
        Step {
            offset: 0,
            words: [0; 2],
            op,
            class,
            imm: 0,
            bytes: 4,
            reads: Uses::NONE,
            writes: Uses::NONE,
            literal: false,
            scalar_offset: false,
        }
    }

    /// Wait states that it takes.
    pub fn states(&self) -> u32 {
        match self.op {
            Op::SNop => u32::try_from(self.imm & 15).unwrap_or(0) + 1,
            _ => 1,
        }
    }
}

/// How many registers the fields of an encoding name.
#[derive(Clone, Copy, Debug, Default)]
struct Widths {
    class: Class,
    dst: u8,
    sdst: u8,
    src: [u8; 3],
    vaddr: u8,
    data: u8,
    data2: u8,
    base: u8,
    soffset: u8,
}

/// One of a lane mask, whose size is that of the wave.
const MASK: u8 = u8::MAX;

static WIDTHS: [OnceLock<Vec<Widths>>; Target::ALL.len()] = [const { OnceLock::new() }; Target::ALL.len()];

/// The table of a target's instructions, which takes about a millisecond the first time.
fn table(target: Target) -> &'static [Widths] {
    WIDTHS[target as usize].get_or_init(|| widths(target))
}

/// Makes a target's table of instructions. From then on to look at one allocates nothing.
pub fn prepare(target: Target) {
    table(target);
}

fn widths(target: Target) -> Vec<Widths> {
    let mut all = Vec::new();
    for encoding in encodings(target) {
        let at = usize::from(encoding.entry);
        if all.len() <= at {
            all.resize(at + 1, Widths::default());
        }
        all[at] = of(target, &encoding);
    }
    all
}

fn of(target: Target, encoding: &Encoding) -> Widths {
    let mut widths = Widths { class: class(target, encoding.op, encoding.format), ..Widths::default() };
    let vector = encoding.fields.iter().any(|field| field.field == Field::Vdst);
    for field in &encoding.fields {
        let count = match field.kind {
            FieldKind::Bool | FieldKind::SdwaDst => MASK,
            _ => field.dwords,
        };
        let place = match field.field {
            Field::Vdst | Field::VdstX => &mut widths.dst,
            Field::Sdst if vector => &mut widths.sdst,
            Field::Sdst => &mut widths.dst,
            Field::Src0 | Field::Src0X | Field::Vsrc => &mut widths.src[0],
            Field::Src1 | Field::Vsrc1X => &mut widths.src[1],
            Field::Src2 | Field::Idx => &mut widths.src[2],
            Field::Addr | Field::Vaddr | Field::Vaddr0 => &mut widths.vaddr,
            Field::Data0 | Field::Vdata | Field::Sdata => &mut widths.data,
            Field::Data1 => &mut widths.data2,
            Field::Saddr | Field::Srsrc | Field::Sbase => &mut widths.base,
            Field::Soffset => &mut widths.soffset,
            _ => continue,
        };
        *place = count;
    }
    widths
}

/// The instruction at `offset`. `mask`: the registers of a lane mask.
pub(crate) fn step(target: Target, mask: u8, offset: u32, words: &[u32], inst: &Inst) -> Step {
    let none = Widths::default();
    let widths = table(target).get(usize::from(inst.entry)).unwrap_or(&none);
    let mut class = widths.class;
    let memory = &inst.memory;
    if memory.gds {
        class |= Class::GDS | Class::READS_M0;
    }
    if memory.lds && class.intersects(Class::VECTOR_MEMORY) {
        class |= Class::LDS_DMA | Class::READS_M0;
    }
    let kept = match inst.extension {
        Extension::Sdwa(sdwa) => {
            if sdwa.dst != SdwaSelect::Dword && inst.dst != Operand::None {
                class |= Class::PART;
            }
            sdwa.unused == SdwaUnused::Preserve && sdwa.dst != SdwaSelect::Dword
        }
        Extension::Dpp(_) => {
            class |= Class::DPP;
            true
        }
        Extension::None => false,
    };
    if inst.format == Format::Vop3 && inst.mods.op_sel & 8 != 0 {
        class |= Class::PART;
    }
    let mut effects = Effects { mask, reads: Uses::NONE, writes: Uses::NONE };
    if class.intersects(Class::MEMORY | Class::SMEM) {
        effects.memory(class, inst, widths);
    } else {
        effects.registers(class, inst, widths, kept);
    }
    effects.implicit(target, class, inst);
    let is_literal = |operand: &Operand| matches!(operand, Operand::Literal(_));
    let pair = inst.pair.as_ref().is_some_and(|pair| pair.src.iter().any(is_literal));
    let scalar = matches!(memory.soffset, Operand::Scalar(n) if n != Operand::NULL);
    Step {
        offset,
        words: [words.first().copied().unwrap_or(0), words.get(1).copied().unwrap_or(0)],
        op: inst.op,
        class,
        imm: inst.imm,
        bytes: inst.bytes,
        reads: effects.reads,
        writes: effects.writes,
        literal: pair || inst.src.iter().any(is_literal),
        scalar_offset: scalar,
    }
}

struct Effects {
    mask: u8,
    reads: Uses,
    writes: Uses,
}

impl Effects {
    fn count(&self, width: u8) -> u8 {
        if width == MASK {
            self.mask
        } else {
            width.max(1)
        }
    }

    fn read(&mut self, operand: Operand, width: u8, role: Role) {
        // Where no field says how much of VCC is read, it is a lane mask.
        let mask = operand == Operand::Scalar(Operand::VCC) && width == 0;
        let count = if mask { self.mask } else { self.count(width) };
        self.reads.add(Use::new(operand, count, role));
    }

    fn write(&mut self, operand: Operand, width: u8, role: Role) {
        let masks = [Operand::Scalar(Operand::VCC), Operand::Scalar(Operand::EXEC)];
        let mask = masks.contains(&operand) && width == 0;
        let count = if mask { self.mask } else { self.count(width) };
        self.writes.add(Use::new(operand, count, role));
    }

    fn registers(&mut self, class: Class, inst: &Inst, widths: &Widths, kept: bool) {
        let name = inst.op.name();
        let begins = |start: &str| name.starts_with(start);
        // What the encoding has as a destination and the operation reads.
        let only_read = begins("s_cmpk") || begins("s_setreg") || begins("s_waitcnt_") || name == "s_cbranch_i_fork";
        let also_read = begins("s_addk")
            || begins("s_mulk")
            || begins("s_cmov")
            || begins("s_bitset")
            || begins("s_subvector_loop")
            || kept
            || class.contains(Class::WRITE_LANE)
            || begins("v_mad_mix")
            || begins("v_fma_mix")
            || (class.contains(Class::PART) && inst.format == Format::Vop3)
            || class.contains(Class::SPARSE);
        if only_read {
            self.read(inst.dst, widths.dst, Role::A);
        } else {
            self.write(inst.dst, widths.dst, Role::Destination);
        }
        if also_read {
            let role = if class.contains(Class::SPARSE) { Role::C } else { Role::Old };
            self.read(inst.dst, widths.dst, role);
        }
        self.write(inst.sdst, widths.sdst, Role::Flag);
        let third = if class.contains(Class::SPARSE) { Role::Index } else { Role::C };
        for (n, role) in [Role::A, Role::B, third].into_iter().enumerate() {
            let tied = n == 2 && inst.src[2] == inst.dst && widths.src[2] == 0;
            self.read(inst.src[n], if tied { widths.dst } else { widths.src[n] }, role);
        }
        if begins("v_swap") {
            self.write(inst.src[0], widths.src[0], Role::Flag);
            self.read(inst.dst, widths.dst, Role::B);
        }
        if let Some(pair) = &inst.pair {
            self.write(pair.dst, 1, Role::Flag);
            for (operand, role) in pair.src.into_iter().zip([Role::A, Role::B, Role::C]) {
                self.read(operand, 1, role);
            }
        }
    }

    fn memory(&mut self, class: Class, inst: &Inst, widths: &Widths) {
        let memory = &inst.memory;
        let scalar = class.contains(Class::SMEM);
        let returns = !class.contains(Class::LDS_DMA) && inst.dst != Operand::None;
        let loads = class.contains(Class::LOAD) || scalar;
        if returns && (loads || memory.glc || class.contains(Class::DS)) {
            let width = widths.dst.max(if widths.dst == 0 { widths.data } else { 0 });
            self.write(inst.dst, width.saturating_add(u8::from(memory.tfe)), Role::Destination);
            if inst.op.name().contains("d16") {
                self.read(inst.dst, width, Role::Old);
            }
        }
        self.read(memory.vaddr, widths.vaddr, Role::Address);
        // A load's data are its destination.
        let loaded = class.contains(Class::LOAD) && !class.contains(Class::DS) || scalar && returns;
        if !loaded {
            self.read(memory.data, widths.data, Role::Data);
        }
        self.read(memory.data2, widths.data2, Role::Data);
        self.read(memory.base, widths.base, Role::Base);
        self.read(memory.soffset, widths.soffset, Role::Base);
    }

    fn implicit(&mut self, target: Target, class: Class, inst: &Inst) {
        let whole = |first, count| Some(Use { first, count, role: Role::Implicit });
        let mask = self.mask.into();
        if class.contains(Class::READS_M0) {
            self.reads.add(whole(M0, 1));
        }
        if class.contains(Class::DIV_FMAS) {
            self.reads.add(whole(VCC, mask));
        }
        if class.contains(Class::COMPARE_EXEC) && target.is_gfx9() {
            self.writes.add(whole(EXEC, 2));
        }
        let name = inst.op.name();
        match inst.op {
            Op::SCbranchVccz | Op::SCbranchVccnz => self.reads.add(whole(VCC, mask)),
            Op::SSetGprIdxOn | Op::SSetGprIdxIdx => self.writes.add(whole(M0, 1)),
            _ if name.contains("saveexec") || name.contains("wrexec") => {
                let count = if name.ends_with("b64") { 2 } else { 1 };
                self.reads.add(whole(EXEC, count));
                self.writes.add(whole(EXEC, count));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::{AGPR, VGPR};
    use vkfd_isa::decode;

    fn of_words(target: Target, words: &[u32]) -> Step {
        let inst = decode(target, words).unwrap_or_else(|error| panic!("{words:08x?}: {error}"));
        step(target, if target.is_gfx9() { 2 } else { 1 }, 0, words, &inst)
    }

    fn ranges(uses: &Uses) -> Vec<(u16, u16)> {
        uses.iter().map(|operand| (operand.first, operand.count)).collect()
    }

    #[test]
    fn loads_and_stores_have_their_registers() {
        // global_load_dwordx4 v[4:7], v0, s[2:3]
        let load = of_words(Target::Gfx900, &[0xdc5c_8000, 0x0402_0000]);
        assert_eq!(ranges(&load.writes), [(VGPR + 4, 4)]);
        assert_eq!(ranges(&load.reads), [(VGPR, 1), (2, 2)]);
        // global_store_dwordx2 v[0:1], v[4:5], off
        let store = of_words(Target::Gfx900, &[0xdc74_8000, 0x007f_0400]);
        assert!(ranges(&store.writes).is_empty());
        assert_eq!(ranges(&store.reads), [(VGPR, 2), (VGPR + 4, 2)]);
        // buffer_load_dword v1, v2, s[4:7], s8 offen
        let buffer = of_words(Target::Gfx900, &[0xe050_1000, 0x0801_0102]);
        assert_eq!(ranges(&buffer.writes), [(VGPR + 1, 1)]);
        assert_eq!(ranges(&buffer.reads), [(VGPR + 2, 1), (4, 4), (8, 1)]);
        assert!(buffer.scalar_offset);
        // s_load_dwordx8 s[8:15], s[0:1], 0x0
        let scalar = of_words(Target::Gfx900, &[0xc00e_0200, 0]);
        assert_eq!((ranges(&scalar.writes), ranges(&scalar.reads)), (vec![(8, 8)], vec![(0, 2)]));
        // ds_write_b64 v1, v[2:3]
        let lds = of_words(Target::Gfx900, &[0xd89a_0000, 0x0000_0201]);
        assert_eq!((ranges(&lds.writes), ranges(&lds.reads)), (vec![], vec![(VGPR + 1, 1), (VGPR + 2, 2)]));
        // ds_read_b128 v[4:7], v1
        let lds = of_words(Target::Gfx900, &[0xd9fe_0000, 0x0400_0001]);
        assert_eq!((ranges(&lds.writes), ranges(&lds.reads)), (vec![(VGPR + 4, 4)], vec![(VGPR + 1, 1)]));
    }

    #[test]
    fn vector_operations_have_their_registers() {
        // v_add_co_u32_e32 v0, vcc, v1, v2
        let add = of_words(Target::Gfx900, &[0x3200_0501]);
        assert_eq!(ranges(&add.writes), [(VGPR, 1), (VCC, 2)]);
        // v_cmpx_eq_u32_e64 s[4:5], v0, v1
        let compare = of_words(Target::Gfx900, &[0xd0da_0004, 0x0002_0300]);
        assert_eq!(ranges(&compare.writes), [(4, 2), (EXEC, 2)]);
        // v_fma_f64 v[0:1], v[2:3], v[4:5], s[6:7]
        let fma = of_words(Target::Gfx900, &[0xd1cc_0000, 0x001a_0902]);
        assert_eq!(ranges(&fma.reads), [(VGPR + 2, 2), (VGPR + 4, 2), (6, 2)]);
        // v_mac_f32_e32 v0, v1, v2
        let mac = of_words(Target::Gfx900, &[0x2c00_0501]);
        assert_eq!(ranges(&mac.reads), [(VGPR + 1, 1), (VGPR + 2, 1), (VGPR, 1)]);
        // v_mfma_f32_32x32x1f32 a[0:31], v0, v1, a[0:31]
        let mfma = of_words(Target::Gfx90a, &[0xd3c0_8000, 0x0402_0300]);
        assert_eq!(ranges(&mfma.writes), [(AGPR, 32)]);
        assert_eq!(ranges(&mfma.reads), [(VGPR, 1), (VGPR + 1, 1), (AGPR, 32)]);
        // v_readfirstlane_b32 s4, v5
        let lane = of_words(Target::Gfx900, &[0x7e08_0505]);
        assert_eq!((ranges(&lane.writes), ranges(&lane.reads)), (vec![(4, 1)], vec![(VGPR + 5, 1)]));
    }

    #[test]
    fn scalar_operations_have_their_registers() {
        // s_and_saveexec_b64 s[2:3], vcc
        let save = of_words(Target::Gfx900, &[0xbe82_206a]);
        assert_eq!(ranges(&save.writes), [(2, 2), (EXEC, 2)]);
        assert_eq!(ranges(&save.reads), [(VCC, 2), (EXEC, 2)]);
        // s_cmpk_eq_u32 s4, 0x7
        let compare = of_words(Target::Gfx900, &[0xb404_0007]);
        assert_eq!((ranges(&compare.writes), ranges(&compare.reads)), (vec![], vec![(4, 1)]));
    }
}
