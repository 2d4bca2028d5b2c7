// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Instructions as text, in the form that `llvm-mc` prints.
//!
//! Mechanism: a shape's template names the operands; each is printed from the decoded [`Inst`],
//! which is also what the engines execute. Fields that only unexecuted encodings have (images,
//! exports, interpolation) are taken from the words.
//!
//! Limits: gfx10 and later are printed for waves of 32 lanes. Comments that `llvm-mc` adds about
//! registers of a wrong class or alignment are not.

mod permute;

use std::fmt::{self, Write};

use crate::decode::{last_sgpr, MAX_WORDS};
use crate::inst::{Extension, Format, Half, Inst};
use crate::names;
use crate::operand::{Operand, Special};
use crate::table::{self, flags, float, Field, Kind, Number, Record, Shape, Slot};
use crate::{decode, DecodeError, Op, Target};

/// Decodes the instruction at the start of `words`, and its text.
///
/// # Errors
///
/// If the words are no instruction of the target.
pub fn disassemble(target: Target, words: &[u32]) -> Result<(Inst, String), DecodeError> {
    let inst = decode(target, words)?;
    let text = inst.text(target, words);
    Ok((inst, text))
}

impl Inst {
    /// What the assembler of `target` calls the operation, without marks of the encoding. `target`
    /// and `inst` belong together.
    #[must_use]
    pub fn mnemonic(&self) -> &'static str {
        self.record().0.mnemonic
    }

    fn record(&self) -> (&'static Record, &'static Shape) {
        table::at(self.entry)
    }

    /// The instruction as text; `words` are those that it was decoded from.
    #[must_use]
    pub fn text(&self, target: Target, words: &[u32]) -> String {
        let mut padded = [0; MAX_WORDS];
        let count = words.len().min(MAX_WORDS);
        padded[..count].copy_from_slice(&words[..count]);
        let (record, shape) = self.record();
        let mut printer = Printer { target, inst: self, shape, words: padded, out: String::with_capacity(64) };
        // Writing to a string does not fail.
        let _ = printer.instruction(record);
        printer.out
    }
}

struct Printer<'a> {
    target: Target,
    inst: &'a Inst,
    shape: &'static Shape,
    words: [u32; MAX_WORDS],
    out: String,
}

impl Printer<'_> {
    fn instruction(&mut self, record: &Record) -> fmt::Result {
        self.out.push_str(record.mnemonic);
        let mut template = self.shape.template;
        while let Some(at) = template.find(['$', ':']) {
            self.out.push_str(&template[..at]);
            let rest = &template[at..];
            if let Some(after) = rest.strip_prefix("::") {
                self.out.push_str(":: ");
                self.out.push_str(record.pair.map_or("", |(_, mnemonic)| mnemonic));
                template = after;
            } else if let Some(rest) = rest.strip_prefix('$') {
                let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
                self.operand(&rest[..end])?;
                template = &rest[end..];
            } else {
                self.out.push(':');
                template = &rest[1..];
            }
        }
        self.out.push_str(template);
        Ok(())
    }

    fn slot(&self, field: Field) -> Option<&'static Slot> {
        self.shape.slots.iter().find(|slot| slot.field == field)
    }

    fn raw(&self, field: Field) -> u32 {
        self.slot(field).map_or(0, |slot| slot.raw(&self.words))
    }

    fn operand(&mut self, name: &str) -> fmt::Result {
        let inst = self.inst;
        let memory = &inst.memory;
        let pair = inst.pair.unwrap_or(Half { op: inst.op, dst: inst.dst, src: inst.src });
        match name {
            "vdst" => self.register(Field::Vdst, inst.dst),
            "vdstX" => self.register(Field::VdstX, inst.dst),
            "sdst" => {
                let is_second = self.slot(Field::Vdst).is_some();
                self.register(Field::Sdst, if is_second { inst.sdst } else { inst.dst })
            }
            "src0" => self.source(Field::Src0, 0),
            "src1" => self.source(Field::Src1, 1),
            "src2" => self.source(Field::Src2, 2),
            "src3" => self.source(Field::Src3, 0),
            "src0X" => self.register(Field::Src0X, inst.src[0]),
            // FMAMK has its literal between its sources.
            "vsrc1X" => self.register(Field::Vsrc1X, inst.src[if inst.op == Op::VFmamkF32 { 2 } else { 1 }]),
            "vdstY" => self.register(Field::VdstY, pair.dst),
            "src0Y" => self.register(Field::Src0Y, pair.src[0]),
            "vsrc1Y" => self.register(Field::Vsrc1Y, pair.src[if pair.op == Op::VFmamkF32 { 2 } else { 1 }]),
            "src0_modifiers" => self.modified(Field::Src0Modifiers, Field::Src0, 0),
            "src1_modifiers" => self.modified(Field::Src1Modifiers, Field::Src1, 1),
            "src2_modifiers" => self.modified(Field::Src2Modifiers, Field::Src2, 2),
            "idx" => self.register(Field::Idx, inst.src[2]),
            "vsrc" => self.source(Field::Vsrc, 0),
            "addr" => self.register(Field::Addr, memory.vaddr),
            "vaddr" => self.register(Field::Vaddr, memory.vaddr),
            "data0" => self.register(Field::Data0, memory.data),
            "data1" => self.register(Field::Data1, memory.data2),
            "vdata" => self.register(Field::Vdata, memory.data),
            "sdata" if self.slot(Field::Sdata).is_some_and(|slot| slot.kind == Kind::Imm) => {
                let value = self.raw(Field::Sdata);
                self.immediate(Number::Int32, value.into())
            }
            "sdata" => self.register(Field::Sdata, memory.data),
            "saddr" => self.register(Field::Saddr, memory.base),
            "srsrc" => self.register(Field::Srsrc, memory.base),
            "sbase" => self.register(Field::Sbase, memory.base),
            "soffset" => {
                self.register(Field::Soffset, memory.soffset)?;
                if inst.format == Format::Mtbuf {
                    names::buffer_format(&mut self.out, self.target, memory.format.into())?;
                }
                Ok(())
            }
            "format" => Ok(()),
            "clamp" => self.bit(inst.mods.clamp, name),
            "gds" => self.bit(memory.gds, name),
            "tfe" => self.bit(memory.tfe, name),
            "omod" => {
                self.out.push_str(["", " mul:2", " mul:4", " div:2"][usize::from(inst.mods.omod & 3)]);
                Ok(())
            }
            "op_sel" => self.op_sel(),
            "op_sel_hi" => {
                self.packed(" op_sel_hi:[", inst.mods.op_sel_hi, self.shape.flags & flags::PACKED != 0, false)
            }
            "neg_lo" => self.packed(" neg_lo:[", inst.mods.neg, false, false),
            "neg_hi" => self.packed(" neg_hi:[", inst.mods.neg_hi, false, false),
            "cbsz" => self.number(" cbsz:", inst.mods.cbsz),
            "abid" => self.number(" abid:", inst.mods.abid),
            "blgp" => self.blgp(),
            "offset" => self.offset(),
            "offset0" => self.number(" offset0:", memory.offsets[0]),
            "offset1" => self.number(" offset1:", memory.offsets[1]),
            "cpol" => self.cache_policy(),
            "simm16" => self.simm16(),
            "imm" => self.literal(Field::Imm),
            // The other half's literal.
            "immDeferred" => self.literal(Field::Imm),
            "dpp_ctrl" | "dpp8" | "row_mask" | "bank_mask" | "bound_ctrl" | "fi" => self.dpp(name),
            "dst_sel" | "dst_unused" | "src0_sel" | "src1_sel" => self.sdwa(name),
            _ => self.unexecuted(name),
        }
    }

    fn bit(&mut self, set: bool, name: &str) -> fmt::Result {
        if set {
            write!(self.out, " {name}")?;
        }
        Ok(())
    }

    fn number(&mut self, prefix: &str, value: u8) -> fmt::Result {
        if value != 0 {
            write!(self.out, "{prefix}{value}")?;
        }
        Ok(())
    }

    /// Fields that [`Inst`] does not have.
    fn unexecuted(&mut self, name: &str) -> fmt::Result {
        let named = |printer: &Self, field| printer.raw(field) != 0;
        match name {
            "unorm" => self.bit(named(self, Field::Unorm), name),
            "lwe" => self.bit(named(self, Field::Lwe), name),
            "da" => self.bit(named(self, Field::Da), name),
            "a16" => self.bit(named(self, Field::A16), name),
            "d16" => self.bit(named(self, Field::D16), name),
            "r128" => {
                let name = if self.target.is_gfx9() { "a16" } else { name };
                self.bit(named(self, Field::R128), name)
            }
            "high" => self.bit(named(self, Field::High), name),
            "vm" => self.bit(named(self, Field::Vm), name),
            "compr" => self.bit(named(self, Field::Compr), name),
            "dmask" => {
                let mask = self.inst.memory.dmask;
                if mask != 0 {
                    write!(self.out, " dmask:{mask:#x}")?;
                }
                Ok(())
            }
            "dim" => {
                const DIMS: [&str; 8] = ["1D", "2D", "3D", "CUBE", "1D_ARRAY", "2D_ARRAY", "2D_MSAA", "2D_MSAA_ARRAY"];
                let dim = DIMS[(self.raw(Field::Dim) & 7) as usize];
                write!(self.out, " dim:SQ_RSRC_IMG_{dim}")
            }
            "attr" => {
                let attribute = self.raw(Field::Attr);
                write!(self.out, "attr{attribute}")
            }
            "attrchan" => {
                let channel = ['x', 'y', 'z', 'w'][(self.raw(Field::Attrchan) & 3) as usize];
                write!(self.out, ".{channel}")
            }
            "tgt" => {
                let tgt = self.raw(Field::Tgt);
                names::export(&mut self.out, self.target, tgt)
            }
            "waitexp" => {
                let count = self.raw(Field::Waitexp);
                write!(self.out, " wait_exp:{count}")
            }
            "waitvdst" => {
                let count = self.raw(Field::Waitvdst);
                write!(self.out, " wait_vdst:{count}")
            }
            "addresses" => self.addresses(),
            "ssamp" => self.register_in_words(Field::Ssamp),
            _ => match name.strip_prefix("vaddr").and_then(|n| n.parse::<usize>().ok()) {
                Some(n) => self.register_in_words(ADDRESSES[n.min(ADDRESSES.len() - 1)]),
                None => Ok(()),
            },
        }
    }

    /// A register that is in the words only.
    fn register_in_words(&mut self, field: Field) -> fmt::Result {
        let Some(slot) = self.slot(field) else { return Ok(()) };
        let raw = slot.raw(&self.words);
        let number = raw.to_le_bytes()[0];
        if slot.kind == Kind::Sgpr {
            return self.register(field, scalar_group(slot, number));
        }
        match (field, self.image_registers()) {
            (Field::Vaddr0, Some((_, addresses))) => self.group('v', number.into(), addresses),
            _ => self.register(field, Operand::Vgpr(number.into())),
        }
    }

    /// The registers of data and addresses that an image instruction has, if not those of its
    /// record.
    fn image_registers(&self) -> Option<(u8, u8)> {
        let image = self.shape.image.as_ref()?;
        let set = |field: Field| self.raw(field) != 0;
        let mut addresses = image.addresses;
        if !self.target.is_gfx9() {
            // Of 1D, 2D, 3D, cube, arrays of 1D and 2D, 2D with samples, and arrays of that.
            let dim = (self.raw(Field::Dim) & 7) as usize;
            let coordinates: u8 = [1, 2, 3, 3, 2, 3, 3, 4][dim];
            let gradients: u8 = [2, 4, 6, 4, 2, 4, 4, 4][dim];
            let components = if image.coordinates { coordinates } else { 0 } + u8::from(image.lod);
            addresses = image.extra + if set(Field::A16) { components.div_ceil(2) } else { components };
            if image.gradients {
                addresses += if image.short_gradients { (gradients / 2).next_multiple_of(2) } else { gradients };
            }
            if image.scattered {
                // NEW TARGET: whether images take more addresses than their form
                if addresses > image.addresses && self.target != Target::Gfx1100 {
                    return None;
                }
            } else if addresses > 12 {
                addresses = 16;
            }
        }
        let texels = if image.gather { 4 } else { self.inst.memory.dmask.count_ones().max(1) };
        let texels = if set(Field::D16) { texels.div_ceil(2) } else { texels };
        let data = u8::try_from(texels).unwrap_or(4) + u8::from(self.inst.memory.tfe);
        let exists = image.data_sizes >> data & 1 != 0 && image.address_sizes >> addresses & 1 != 0;
        let fits = |first: u16, count: u8| first + u16::from(count) <= 256;
        let register = if self.slot(Field::Vdst).is_some() { self.inst.dst } else { self.inst.memory.data };
        let first = match register {
            Operand::Vgpr(n) | Operand::Agpr(n) => n,
            _ => 0,
        };
        if !exists || (data != image.data && !fits(first, data)) {
            return None;
        }
        let alone = if image.scattered { image.addresses - 1 } else { 0 };
        let last = ADDRESSES[usize::from(alone)];
        let at = u16::from(self.raw(last).to_le_bytes()[0]);
        let widened = addresses != image.addresses && !self.target.is_gfx9() && addresses > alone;
        if widened && !fits(at, addresses - alone) {
            return None;
        }
        Some((data, addresses))
    }

    /// The addresses of an image instruction that has each in a register of its own; the last may
    /// have the rest after it.
    fn addresses(&mut self) -> fmt::Result {
        let Some(image) = &self.shape.image else { return Ok(()) };
        let count = self.image_registers().map_or(image.addresses, |(_, addresses)| addresses);
        for n in 0..count.min(image.addresses) {
            let register = u16::from(self.raw(ADDRESSES[usize::from(n)]).to_le_bytes()[0]);
            let rest = if n + 1 == image.addresses { count - n } else { 1 };
            self.out.push_str(if n == 0 { "" } else { ", " });
            self.group('v', register, rest)?;
        }
        Ok(())
    }

    fn source(&mut self, field: Field, index: usize) -> fmt::Result {
        let Some(slot) = self.slot(field) else { return Ok(()) };
        let raw = slot.raw(&self.words);
        match slot.kind {
            _ if self.inst.format == Format::Exp => self.export_source(field, index),
            Kind::GprIndexMode => self.gpr_index_mode(raw),
            Kind::Message => names::message(&mut self.out, self.target, raw),
            Kind::Imm => match raw {
                0 => self.out.write_str("p10"),
                1 => self.out.write_str("p20"),
                2 => self.out.write_str("p0"),
                _ => write!(self.out, "invalid_param_{raw}"),
            },
            Kind::Half | Kind::SrcHalf => {
                let operand = self.inst.src[index];
                self.half(slot, operand, self.inst.mods.op_sel >> index & 1 != 0)
            }
            Kind::LowOrHigh | Kind::SrcLow => {
                // The number, with the half in bit 7.
                let high = if self.inst.mods.op_sel >> index & 1 != 0 { 128 } else { 0 };
                match self.inst.src[index] {
                    Operand::Vgpr(n) => self.any(slot, Operand::Vgpr(n + high)),
                    other => self.any(slot, other),
                }
            }
            _ => self.register(field, self.inst.src[index]),
        }
    }

    fn half(&mut self, slot: &Slot, operand: Operand, high: bool) -> fmt::Result {
        self.any(slot, operand)?;
        if matches!(operand, Operand::Vgpr(_)) {
            self.out.push_str(if high { ".h" } else { ".l" });
        }
        Ok(())
    }

    fn export_source(&mut self, field: Field, _index: usize) -> fmt::Result {
        let n = match field {
            Field::Src0 => 0,
            Field::Src1 => 1,
            Field::Src2 => 2,
            _ => 3,
        };
        if self.raw(Field::En) >> n & 1 == 0 {
            return self.out.write_str("off");
        }
        let compressed = self.raw(Field::Compr) != 0;
        let field = [Field::Src0, Field::Src1, Field::Src2, Field::Src3][if compressed { n / 2 } else { n }];
        let register = self.raw(field);
        write!(self.out, "v{register}")
    }

    fn modified(&mut self, modifiers: Field, field: Field, index: usize) -> fmt::Result {
        let kind = self.slot(modifiers).map_or(Kind::Imm, |slot| slot.kind);
        let operand = self.inst.src[index];
        let mods = &self.inst.mods;
        if kind == Kind::IntMods {
            let sext = match &self.inst.extension {
                Extension::Sdwa(sdwa) => sdwa.sext.get(index).copied().unwrap_or(false),
                _ => self.raw(modifiers) & 1 != 0,
            };
            if sext {
                self.out.push_str("sext(");
            }
            self.source(field, index)?;
            if sext {
                self.out.push(')');
            }
            return Ok(());
        }
        let (neg, abs) = (mods.neg >> index & 1 != 0, mods.abs >> index & 1 != 0);
        let constant = matches!(operand, Operand::Int(_) | Operand::Float(_) | Operand::Literal(_));
        let open = match (neg, constant && !abs) {
            (true, true) => "neg(",
            (true, false) => "-",
            _ => "",
        };
        self.out.push_str(open);
        if abs {
            self.out.push('|');
        }
        self.source(field, index)?;
        if abs {
            self.out.push('|');
        }
        if open == "neg(" {
            self.out.push(')');
        }
        Ok(())
    }

    fn op_sel(&mut self) -> fmt::Result {
        let select = self.inst.mods.op_sel;
        match self.inst.op {
            Op::VPermlane16B32 | Op::VPermlanex16B32 => {
                if select & 3 != 0 {
                    write!(self.out, " op_sel:[{},{}]", select & 1, select >> 1 & 1)?;
                }
                Ok(())
            }
            Op::VCvtF32Fp8 | Op::VCvtF32Bf8 | Op::VCvtPkF32Fp8 | Op::VCvtPkF32Bf8 => {
                let raw = self.raw(Field::Src0Modifiers);
                if raw & 12 != 0 {
                    write!(self.out, " op_sel:[{},{}]", raw >> 2 & 1, raw >> 3 & 1)?;
                }
                Ok(())
            }
            _ => self.packed(" op_sel:[", select, false, self.shape.flags & flags::OPSEL_DST != 0),
        }
    }

    fn packed(&mut self, name: &str, mask: u8, default: bool, with_dst: bool) -> fmt::Result {
        let sources = if self.shape.flags & flags::WMMA != 0 { 3 } else { self.shape.sources };
        let all = (1u8 << sources) - 1;
        let dst = with_dst && mask & 8 != 0;
        if mask & all == (if default { all } else { 0 }) && !dst {
            return Ok(());
        }
        self.out.push_str(name);
        for source in 0..sources {
            let comma = if source == 0 { "" } else { "," };
            write!(self.out, "{comma}{}", mask >> source & 1)?;
        }
        if with_dst {
            write!(self.out, ",{}", u8::from(dst))?;
        }
        self.out.push(']');
        Ok(())
    }

    fn blgp(&mut self) -> fmt::Result {
        let value = self.inst.mods.blgp;
        let double = matches!(self.inst.op, Op::VMfmaF64_16x16x4f64 | Op::VMfmaF64_4x4x4f64);
        // NEW TARGET: names of matrix modifiers
        if value != 0 && self.target == Target::Gfx942 && double {
            return write!(self.out, " neg:[{},{},{}]", value & 1, value >> 1 & 1, value >> 2 & 1);
        }
        self.number(" blgp:", value)
    }

    fn offset(&mut self) -> fmt::Result {
        let Some(slot) = self.slot(Field::Offset) else { return Ok(()) };
        let offset = self.inst.memory.offset;
        let magnitude = offset.unsigned_abs();
        let sign = if offset < 0 { "-" } else { "" };
        match slot.kind {
            Kind::SmemOffset => write!(self.out, "{sign}{magnitude:#x}"),
            Kind::SmemOffsetMod => write!(self.out, " offset:{sign}{magnitude:#x}"),
            _ if offset == 0 => Ok(()),
            Kind::Swizzle => {
                self.out.push_str(" offset:");
                names::swizzle(&mut self.out, magnitude)
            }
            _ => write!(self.out, " offset:{offset}"),
        }
    }

    fn cache_policy(&mut self) -> fmt::Result {
        let memory = &self.inst.memory;
        // NEW TARGET: names of cache policies
        let gfx942 = self.target == Target::Gfx942;
        let glc = if gfx942 && self.inst.format != Format::Smem { "sc0" } else { "glc" };
        self.bit(memory.glc, glc)?;
        self.bit(memory.slc, if gfx942 { "nt" } else { "slc" })?;
        let third = match self.target {
            Target::Gfx90a => "scc",
            Target::Gfx942 => "sc1",
            _ => "dlc",
        };
        self.bit(memory.dlc, third)
    }

    fn simm16(&mut self) -> fmt::Result {
        let Some(slot) = self.slot(Field::Simm16) else { return Ok(()) };
        let value = u32::from_ne_bytes(self.inst.imm.to_ne_bytes()) & 0xffff;
        match slot.kind {
            Kind::Branch => write!(self.out, "{value}"),
            Kind::Decimal16 => self.immediate(Number::Int32, u64::from(value)),
            Kind::Hwreg => {
                let (id, offset, width) = (value & 63, value >> 6 & 31, (value >> 11 & 31) + 1);
                match names::hwreg(self.target, id) {
                    Some(name) => write!(self.out, "hwreg({name}")?,
                    None => write!(self.out, "hwreg({id}")?,
                }
                if offset != 0 || width != 32 {
                    write!(self.out, ", {offset}, {width}")?;
                }
                self.out.write_char(')')
            }
            Kind::Message => names::message(&mut self.out, self.target, value),
            Kind::GprIndexMode => self.gpr_index_mode(value),
            Kind::Endpgm if value == 0 => Ok(()),
            Kind::Endpgm => write!(self.out, " {value}"),
            Kind::Waitcnt => names::waitcnt(&mut self.out, self.target, value),
            Kind::DepCtr => names::depctr(&mut self.out, self.target, value),
            Kind::DelayAlu => names::delay_alu(&mut self.out, value),
            _ => write!(self.out, "{value:#x}"),
        }
    }

    fn gpr_index_mode(&mut self, value: u32) -> fmt::Result {
        if value & !15 != 0 {
            return write!(self.out, "{value:#x}");
        }
        let names = ["SRC0", "SRC1", "SRC2", "DST"];
        let set: Vec<&str> =
            names.iter().enumerate().filter(|(n, _)| value >> n & 1 != 0).map(|(_, name)| *name).collect();
        write!(self.out, "gpr_idx({})", set.join(","))
    }

    fn literal(&mut self, field: Field) -> fmt::Result {
        let Some(slot) = self.slot(field) else { return Ok(()) };
        let value = slot.raw(&self.words);
        match slot.number {
            Number::None => self.immediate(Number::Int32, u64::from(value)),
            _ => write!(self.out, "{value:#x}"),
        }
    }

    fn register(&mut self, field: Field, operand: Operand) -> fmt::Result {
        let Some(slot) = self.slot(field) else { return Ok(()) };
        if slot.kind == Kind::Half && field == Field::Vdst {
            return self.half(slot, operand, self.inst.mods.op_sel & 8 != 0);
        }
        if matches!(field, Field::Vdst | Field::Vdata) {
            match (self.image_registers(), operand) {
                (Some((data, _)), Operand::Vgpr(n)) => return self.group('v', n, data),
                (Some((data, _)), Operand::Agpr(n)) => return self.group('a', n, data),
                _ => {}
            }
        }
        self.any(slot, operand)
    }

    /// Any operand, of as many registers as `slot` says.
    fn any(&mut self, slot: &Slot, operand: Operand) -> fmt::Result {
        match operand {
            Operand::None => self.out.write_str("off"),
            Operand::Vgpr(n) => self.group('v', n, slot.scalars(self.target)),
            Operand::Agpr(n) => self.group('a', n, slot.dwords),
            Operand::Scalar(n) => self.scalar(n, slot.scalars(self.target)),
            Operand::Int(n) => write!(self.out, "{n}"),
            Operand::Float(code) => self.immediate(slot.number, float(slot.number, code)),
            Operand::Literal(value) => {
                let value = match slot.number {
                    Number::Fp64 => u64::from(value) << 32,
                    _ => u64::from(value),
                };
                self.immediate(slot.number, value)
            }
            Operand::Special(special) => self.out.write_str(match special {
                Special::SharedBase => "src_shared_base",
                Special::SharedLimit => "src_shared_limit",
                Special::PrivateBase => "src_private_base",
                Special::PrivateLimit => "src_private_limit",
                Special::PopsExitingWaveId => "src_pops_exiting_wave_id",
                Special::Vccz => "src_vccz",
                Special::Execz => "src_execz",
                Special::Scc => "src_scc",
                Special::LdsDirect => "src_lds_direct",
            }),
        }
    }

    fn group(&mut self, file: char, first: u16, dwords: u8) -> fmt::Result {
        match dwords {
            0 | 1 => write!(self.out, "{file}{first}"),
            _ => write!(self.out, "{file}[{first}:{}]", first + u16::from(dwords) - 1),
        }
    }

    fn scalar(&mut self, n: u8, dwords: u8) -> fmt::Result {
        let wide = dwords == 2;
        let name = match n {
            _ if n <= last_sgpr(self.target) => return self.group('s', n.into(), dwords),
            108..=123 => {
                self.out.push_str("ttm");
                return self.group('p', (n - 108).into(), dwords);
            }
            102 if wide => "flat_scratch",
            102 => "flat_scratch_lo",
            103 => "flat_scratch_hi",
            104 if wide => "xnack_mask",
            104 => "xnack_mask_lo",
            105 => "xnack_mask_hi",
            106 if wide => "vcc",
            106 => "vcc_lo",
            107 => "vcc_hi",
            Operand::M0 => "m0",
            Operand::NULL => "null",
            126 if wide => "exec",
            126 => "exec_lo",
            _ => "exec_hi",
        };
        self.out.write_str(name)
    }

    /// A constant, printed as a source of type `number` has it.
    fn immediate(&mut self, number: Number, value: u64) -> fmt::Result {
        let low = value & 0xffff_ffff;
        let small = |value: i64| (-16..=64).contains(&value);
        let signed32 = i64::from(i32::from_ne_bytes(u32::try_from(low).unwrap_or(0).to_ne_bytes()));
        let signed16 = i64::from(i16::from_ne_bytes(u16::try_from(low & 0xffff).unwrap_or(0).to_ne_bytes()));
        let whole = match number {
            Number::Int64 | Number::Fp64 => i64::from_ne_bytes(value.to_ne_bytes()),
            Number::Fp16 | Number::Bf16 => signed16,
            _ => signed32,
        };
        if small(whole) {
            return write!(self.out, "{whole}");
        }
        let named = (240..=248).find(|code| {
            let same = |number: Number, value: u64| float(number, *code) == value;
            match number {
                Number::Int64 | Number::Fp64 => same(Number::Fp64, value),
                Number::Fp16 => same(Number::Fp16, low & 0xffff),
                Number::Bf16 => same(Number::Bf16, low & 0xffff),
                Number::V2Fp16 => same(Number::Fp16, low),
                Number::V2Bf16 => same(Number::Bf16, low),
                _ => same(Number::Fp32, low),
            }
        });
        if let Some(code) = named {
            let wide = matches!(number, Number::Int64 | Number::Fp64);
            return self.out.write_str(match code {
                240 => "0.5",
                241 => "-0.5",
                242 => "1.0",
                243 => "-1.0",
                244 => "2.0",
                245 => "-2.0",
                246 => "4.0",
                247 => "-4.0",
                _ if wide => "0.15915494309189532",
                _ => "0.15915494",
            });
        }
        match number {
            Number::Fp64 => write!(self.out, "{:#x}", value >> 32),
            Number::Int64 => write!(self.out, "{value:#x}"),
            Number::Int16 | Number::Fp16 => write!(self.out, "{:#x}", low & 0xffff),
            _ => write!(self.out, "{low:#x}"),
        }
    }
}

/// The group of scalar registers with `code`, which has been found possible.
fn scalar_group(slot: &Slot, code: u8) -> Operand {
    let align = match slot.dwords {
        1 => 1,
        2 => 2,
        _ => 4,
    };
    match code {
        108..=123 => Operand::Scalar(108 + (code - 108) / align * align),
        _ => Operand::Scalar(code / align * align),
    }
}

/// The addresses of an image instruction.
const ADDRESSES: [Field; 12] = [
    Field::Vaddr0,
    Field::Vaddr1,
    Field::Vaddr2,
    Field::Vaddr3,
    Field::Vaddr4,
    Field::Vaddr5,
    Field::Vaddr6,
    Field::Vaddr7,
    Field::Vaddr8,
    Field::Vaddr9,
    Field::Vaddr10,
    Field::Vaddr11,
];
