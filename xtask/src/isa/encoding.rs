// SPDX-License-Identifier: GPL-2.0 OR MIT
//! From LLVM's records to the tables' form (`isa/src/table.rs` says what that is).

use anyhow::{bail, Context};

use super::names;
use super::tablegen::{Argument, Bit, Dag, Def, Instruction, Records};

/// Bits of an operand: word, lowest bit, width, lowest bit in the operand.
pub type Part = (u8, u8, u8, u8);

/// An operand of an encoding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    pub field: String,
    pub kind: &'static str,
    pub dwords: u8,
    pub number: &'static str,
    pub parts: Vec<Part>,
}

/// What records share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    pub format: &'static str,
    pub bytes: u8,
    pub flags: Vec<&'static str>,
    pub sources: u8,
    /// The assembler's text after the mnemonic, with `$field` for operands; `::` has the second
    /// mnemonic of a VOPD after it.
    pub template: String,
    pub slots: Vec<Slot>,
    pub image: Option<Image>,
}

/// What decides how many registers an image instruction has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Image {
    pub extra: u8,
    pub coordinates: bool,
    pub lod: bool,
    pub gradients: bool,
    pub short_gradients: bool,
    pub gather: bool,
    /// Registers of this encoding, and a bit for each number that another encoding has.
    pub data: u8,
    pub data_sizes: u8,
    pub addresses: u8,
    pub address_sizes: u16,
    /// Each address in a register of its own.
    pub scattered: bool,
}

/// An encoding.
#[derive(Clone, Debug)]
pub struct Encoding {
    pub mnemonic: String,
    /// Mnemonic of the second half of a VOPD.
    pub pair: Option<String>,
    pub mask: [u32; 3],
    pub value: [u32; 3],
    pub shape: Shape,
}

/// Bits of `TSFlags`.
mod ts {
    pub const VOP1: u64 = 1 << 7;
    pub const VOP2: u64 = 1 << 8;
    pub const VOPC: u64 = 1 << 9;
    pub const VOP3: u64 = 1 << 10;
    pub const SDWA: u64 = 1 << 14;
    pub const DPP: u64 = 1 << 15;
    pub const FLAT: u64 = 1 << 24;
    pub const GLOBAL: u64 = 1 << 51;
    pub const SCRATCH: u64 = 1 << 56;
    pub const GATHER4: u64 = 1 << 37;
    pub const RETURNS: u64 = 1 << 58;
    pub const OPSEL_DST: u64 = 1 << 42;
    pub const PACKED: u64 = 1 << 49;
    pub const WMMA: u64 = 1 << 59;
    /// The other formats that have a bit of their own.
    pub const FORMATS: [(u64, &str); 16] = [
        (1 << 2, "Sop1"),
        (1 << 3, "Sop2"),
        (1 << 4, "Sopc"),
        (1 << 5, "Sopk"),
        (1 << 6, "Sopp"),
        (1 << 12, "Vop3p"),
        (1 << 13, "Vintrp"),
        (1 << 29, "Vintrp"),
        (1 << 17, "Mubuf"),
        (1 << 18, "Mtbuf"),
        (1 << 19, "Smem"),
        (1 << 20, "Mimg"),
        (1 << 23, "Exp"),
        (1 << 25, "Ds"),
        (1 << 28, "Ldsdir"),
        (VOP3, "Vop3"),
    ];
}

/// Converts `instruction`.
pub fn encoding(records: &Records, instruction: &Instruction) -> anyhow::Result<Encoding> {
    Converter::new(records, instruction).and_then(Converter::convert).with_context(|| instruction.name.clone())
}

struct Operand {
    name: String,
    class: String,
    is_out: bool,
}

fn operands(dag: &Dag, is_out: bool) -> anyhow::Result<Vec<Operand>> {
    let mut operands = Vec::new();
    for (argument, name) in &dag.args {
        let Argument::Def(class) = argument else { bail!("an operand that is no record") };
        let name = name.clone().context("an operand without a name")?;
        operands.push(Operand { name, class: class.def.clone(), is_out });
    }
    Ok(operands)
}

struct Converter<'a> {
    records: &'a Records,
    instruction: &'a Instruction,
    bits: &'a [Option<Bit>],
    bytes: u8,
    mnemonic: String,
    template: String,
    format: &'static str,
    operands: Vec<Operand>,
    slots: Vec<Slot>,
    flags: Vec<&'static str>,
}

impl<'a> Converter<'a> {
    fn new(records: &'a Records, instruction: &'a Instruction) -> anyhow::Result<Converter<'a>> {
        let asm = first_alternatives(instruction.asm.as_deref().context("no assembly")?);
        let mnemonic = names::mnemonic(&asm).to_string();
        let template = asm[mnemonic.len()..].to_string();
        let mut operands = operands(&instruction.outs, true)?;
        operands.extend(self::operands(&instruction.ins, false)?);
        let bits = instruction.bits.as_ref().context("no bits")?;
        Ok(Converter {
            records,
            instruction,
            bits,
            bytes: instruction.size.context("no size")?,
            format: format(instruction, bits, &mnemonic)?,
            mnemonic,
            template,
            operands,
            slots: Vec::new(),
            flags: Vec::new(),
        })
    }

    fn convert(mut self) -> anyhow::Result<Encoding> {
        let mut mask = [0; 3];
        let mut value = [0; 3];
        for (at, bit) in self.bits.iter().enumerate().take(usize::from(self.bytes) * 8) {
            if let Some(Bit::Fixed(bit)) = bit {
                mask[at / 32] |= 1 << (at % 32);
                value[at / 32] |= u32::from(*bit) << (at % 32);
            }
        }
        let sources = ["src0", "src1", "src2"].iter().filter(|name| self.operands.iter().any(|o| o.name == **name));
        let sources = u8::try_from(sources.count())?;
        self.print_destination();
        let bytes = self.bytes + 4 * self.fill_slots()?;
        self.imply();
        self.flags.sort_unstable();
        self.flags.dedup();
        let mut pair = None;
        if let Some((first, second)) = self.template.split_once(":: ") {
            let name = names::mnemonic(second).to_string();
            let rest = second[name.len()..].to_string();
            self.template = format!("{first}::{rest}");
            pair = Some(name);
        }
        let image = self.image()?;
        let Converter { mnemonic, format, flags, template, slots, .. } = self;
        let shape = Shape { format, bytes, flags, sources, template, slots, image };
        Ok(Encoding { mnemonic, pair, mask, value, shape })
    }

    fn image(&mut self) -> anyhow::Result<Option<Image>> {
        let instruction = self.instruction;
        let (Some(name), Some(encoding)) = (&instruction.image, &instruction.image_encoding) else { return Ok(None) };
        let operation =
            self.records.images.get(&name.def).with_context(|| format!("no image operation {}", name.def))?;
        if operation.bvh {
            self.template = self.template.replace("$a16", if operation.a16 { " a16" } else { "" });
            return Ok(None);
        }
        let scattered = encoding.def.ends_with("NSA");
        if scattered {
            let (open, close) = (self.template.find('['), self.template.find(']'));
            let (open, close) = open.zip(close).context("no list of addresses")?;
            self.template.replace_range(open..=close, "[$addresses]");
        }
        let (mut data_sizes, mut address_sizes) = (0, 0);
        for other in &self.records.instructions {
            let is = |def: &Option<Def>, wanted: &Def| def.as_ref().is_some_and(|def| def.def == wanted.def);
            if !other.is_pseudo && is(&other.image, name) && is(&other.image_encoding, encoding) {
                data_sizes |= 1 << other.data_dwords;
                address_sizes |= 1 << other.address_dwords;
            }
        }
        Ok(Some(Image {
            extra: operation.extra,
            coordinates: operation.coordinates,
            lod: operation.lod,
            gradients: operation.gradients,
            short_gradients: operation.short_gradients,
            gather: self.is(ts::GATHER4),
            data: instruction.data_dwords,
            data_sizes,
            addresses: instruction.address_dwords,
            address_sizes,
            scattered,
        }))
    }

    fn is(&self, flag: u64) -> bool {
        self.instruction.flags & flag != 0
    }

    fn defines(&self, register: &str) -> bool {
        self.instruction.defs.iter().any(|def| def.def == register)
    }

    fn has(&self, field: &str) -> bool {
        self.slots.iter().any(|slot| slot.field == field)
    }

    /// Writes what LLVM's printer adds before or after operands into the template: the encoding's
    /// mark, and the VCC that no operand names.
    fn print_destination(&mut self) {
        let later = self.instruction.namespace.as_deref().is_some_and(|n| n.starts_with("GFX1"));
        let vcc = if later { "vcc_lo" } else { "vcc" };
        let mark = match () {
            () if self.is(ts::VOP3) && self.is(ts::DPP) => "_e64_dpp",
            () if self.is(ts::VOP3) && !self.instruction.is_single => "_e64",
            () if self.is(ts::VOP3) => "",
            () if self.is(ts::DPP) => "_dpp",
            () if self.is(ts::SDWA) => "_sdwa",
            () if self.is(ts::VOP1 | ts::VOP2) && !self.instruction.is_single => "_e32",
            () => "",
        };
        if let Some(first) = self.operands.first() {
            let name = format!("${}", first.name);
            let print = self.records.operands.get(&first.class).and_then(|o| o.print.as_deref());
            match print {
                Some("printVOPDst") => self.template = self.template.replacen(&name, &format!("{mark} {name}"), 1),
                Some("printVINTRPDst") => self.template = self.template.replacen(&name, &format!("_e32 {name}"), 1),
                _ => {}
            }
        }
        let carries = ["v_add_co_ci_u32", "v_sub_co_ci_u32", "v_subrev_co_ci_u32"].contains(&self.mnemonic.as_str());
        if self.format == "Vop2" && carries {
            self.template = self.template.replacen("$vdst", &format!("$vdst, {vcc}"), 1);
        }
        let selects = self.mnemonic == "v_cndmask_b32" && !self.template.contains("vcc");
        if self.format == "Vop2" && (carries || selects) {
            let source = if self.template.contains("$src1_modifiers") { "$src1_modifiers" } else { "$src1" };
            self.template = self.template.replacen(source, &format!("{source}, {vcc}"), 1);
        }
        let names_vcc = self.operands.iter().any(|operand| operand.name == "sdst");
        if self.is(ts::VOPC) && self.defines("VCC") && !names_vcc {
            self.template = self.template.replacen("$src0", &format!("{vcc}, $src0"), 1);
        }
    }

    /// The operands that have bits. Returns how many words with more addresses follow.
    fn fill_slots(&mut self) -> anyhow::Result<u8> {
        let tied_scalar = self.operands.iter().any(|operand| operand.name == "sdst_in");
        let position = |name: &str| self.template.find(name);
        let literal_second = position("$imm").is_some_and(|imm| position("$src1").is_some_and(|src1| imm < src1));
        let indexed = self.operands.iter().any(|operand| operand.name == "idx");
        let mut addresses = 0;
        for operand in &self.operands {
            let mut parts = parts(self.bits, self.bytes, &operand.name)?;
            if parts.is_empty() {
                match operand.name.as_str() {
                    // More addresses follow the encoding, one in a byte.
                    name if self.format == "Mimg" && name.starts_with("vaddr") && name != "vaddr0" => {
                        parts = vec![(self.bytes / 4 + addresses / 4, addresses % 4 * 8, 8, 0)];
                        addresses += 1;
                    }
                    name => {
                        match name {
                            "vdst" if self.format == "Mimg" => {
                                self.flags.push("DATA_DST");
                                self.template = rename(&self.template, "vdst", "vdata");
                            }
                            "vdata_in" | "sdata" => self.flags.push("DATA_DST"),
                            "src2" | "src2X" if !indexed => self.flags.push("SRC2_DST"),
                            "src2Y" => self.flags.push("PAIR_SRC2_DST"),
                            _ => {}
                        }
                        continue;
                    }
                }
            }
            let (mut kind, dwords, number) = kind(self.records, operand)?;
            if kind == "FlatOffset" && self.format != "Flat" {
                kind = "SignedOffset";
            }
            // Some packed operations are described with the modifiers of plain ones; their text
            // says what the bits are.
            if kind == "FloatMods" && self.template.contains("$neg_hi") {
                kind = "PackedMods";
            }
            let name = match operand.name.as_str() {
                // What is loaded, or the old value.
                "vdata" if operand.is_out => "vdst",
                // A scalar that is only read.
                "sdst" if !operand.is_out && self.format == "Sopk" && !tied_scalar => "src0",
                "src1" if literal_second && self.format == "Vop2" => "src2",
                name => name,
            };
            if name != operand.name {
                self.template = rename(&self.template, &operand.name, name);
            }
            self.slots.push(Slot { field: camel(name), kind, dwords, number, parts });
        }
        Ok(addresses.div_ceil(4))
    }

    /// What follows from the encoding without an operand.
    fn imply(&mut self) {
        let mut flags = Vec::new();
        if self.is(ts::VOPC) || self.format == "Vopc" {
            if !self.has("Sdst") {
                flags.push(if self.defines("VCC") { "DST_VCC" } else { "DST_EXEC" });
            }
        } else if self.format == "Vop2" {
            if self.defines("VCC") && !self.has("Sdst") {
                flags.push("SDST_VCC");
            }
            if self.instruction.uses.iter().any(|def| def.def == "VCC") {
                flags.push("SRC2_VCC");
            }
        }
        // What stands in the text as it is: an operand may follow it without a gap.
        let marks = self.template.split(|c: char| !c.is_ascii_alphanumeric() && c != '$');
        let words: Vec<&str> = marks.filter_map(|mark| mark.split('$').next()).collect();
        for (mark, flag) in [("offen", "OFFEN"), ("idxen", "IDXEN"), ("lds", "LDS"), ("tfe", "TFE"), ("gds", "GDS")] {
            if words.contains(&mark) {
                flags.push(flag);
            }
        }
        let marks =
            [(ts::RETURNS, "RETURNS"), (ts::OPSEL_DST, "OPSEL_DST"), (ts::PACKED, "PACKED"), (ts::WMMA, "WMMA")];
        flags.extend(marks.iter().filter(|(flag, _)| self.is(*flag)).map(|(_, name)| *name));
        if self.format == "Mimg" {
            // One form for both: GLC is a bit of it.
            flags.retain(|flag| *flag != "RETURNS");
        }
        if self.has("DstSel") || self.has("Src0Sel") {
            flags.push("SDWA");
        } else if self.has("Dpp8") {
            flags.push("DPP8");
        } else if self.has("DppCtrl") {
            flags.push("DPP16");
        }
        self.flags.extend(flags);
    }
}

/// The text of the assembler's first variant: what braces hold up to a bar.
fn first_alternatives(asm: &str) -> String {
    let mut text = String::new();
    let (mut depth, mut later) = (0, false);
    for c in asm.chars() {
        match c {
            '{' => (depth, later) = (depth + 1, false),
            '}' => (depth, later) = (depth - 1, false),
            '|' if depth > 0 => later = true,
            _ if later => {}
            _ => text.push(c),
        }
    }
    text
}

fn rename(template: &str, from: &str, to: &str) -> String {
    let from = format!("${from}");
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find(&from) {
        let end = at + from.len();
        let whole = !rest[end..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        text.push_str(&rest[..at]);
        text.push_str(&if whole { format!("${to}") } else { from.clone() });
        rest = &rest[end..];
    }
    text + rest
}

fn camel(name: &str) -> String {
    name.split('_')
        .map(|part| {
            let mut letters = part.chars();
            letters.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
        })
        .collect()
}

fn format(instruction: &Instruction, bits: &[Option<Bit>], mnemonic: &str) -> anyhow::Result<&'static str> {
    let is = |flag: u64| instruction.flags & flag != 0;
    if mnemonic.starts_with("v_dual_") {
        return Ok("Vopd");
    }
    if is(ts::FLAT) {
        return Ok(match () {
            () if is(ts::GLOBAL) => "Global",
            () if is(ts::SCRATCH) => "Scratch",
            () => "Flat",
        });
    }
    if let Some((_, name)) = ts::FORMATS.iter().find(|(flag, _)| is(*flag)) {
        return Ok(name);
    }
    // All zeros, which gfx10 and later have in VOP2, has no flag; the extended forms have none of
    // their base encoding.
    let top = (25..32).fold(0u32, |value, n| match bits[n] {
        Some(Bit::Fixed(bit)) => value | u32::from(bit) << (n - 25),
        _ => value,
    });
    Ok(match top {
        0x3f => "Vop1",
        0x3e => "Vopc",
        0x68..=0x6b => "Vop3",
        code if code < 0x3e => "Vop2",
        code => bail!("no format for {code:#x}"),
    })
}

/// The bits that operand `name` supplies.
fn parts(bits: &[Option<Bit>], bytes: u8, name: &str) -> anyhow::Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    for (at, bit) in bits.iter().enumerate().take(usize::from(bytes) * 8) {
        let Some(Bit::Var(bit)) = bit else { continue };
        if bit.var.as_deref() != Some(name) {
            continue;
        }
        let index = bit.index.unwrap_or(0);
        let (word, at) = (u8::try_from(at / 32)?, u8::try_from(at % 32)?);
        match parts.last_mut() {
            Some((w, low, width, to)) if *w == word && *low + *width == at && *to + *width == index => *width += 1,
            _ => parts.push((word, at, 1, index)),
        }
    }
    Ok(parts)
}

/// How an operand's bits are to be understood: kind, registers, number.
fn kind(records: &Records, operand: &Operand) -> anyhow::Result<(&'static str, u8, &'static str)> {
    let class = operand.class.as_str();
    if operand.name == "vdstY" {
        return Ok(("VopdDst", 1, "None"));
    }
    let record = records.operands.get(class);
    let method = record.and_then(|r| r.decoder.as_deref()).unwrap_or("");
    let register = record.and_then(|r| r.class.as_ref()).map_or(class, |c| c.def.as_str());
    let dwords = dwords(register).unwrap_or(0);
    let number = number(record.and_then(|r| r.operand.as_deref()).unwrap_or(""))?;
    let decoder = method.split('<').next().unwrap_or("");
    let kind = match decoder {
        "decodeSrcRegOrImm9" if register == "VS_32_Lo128" => "SrcLow",
        "decodeAVLdSt" | "decodeAV10" => "VgprOrAgpr",
        "decodeSrcAV10" | "decodeSrcReg9" | "decodeSrcRegOrImm9" | "decodeOperand_VSrc_f64" => "Src",
        "decodeSrcA9" | "decodeSrcRegOrImmA9" => "SrcAgpr",
        "decodeSrcRegOrImmDeferred9" => "SrcDeferred",
        "decodeBoolReg" => "Bool",
        "decodeSDWASrc32" | "decodeSDWASrc16" => "SdwaSrc",
        "decodeSDWAVopcDst" => "SdwaDst",
        "decodeOperand_KImmFP" => "Literal",
        "decodeOperand_VSrcT16_Lo128" => "SrcHalf",
        "DecodeVGPR_16_Lo128RegisterClass" => "Half",
        "DecodeVGPR_32RegisterClass" if register == "VGPR_32_Lo128" => "LowOrHigh",
        "DecodeVGPR_32RegisterClass" => "Vgpr",
        "decodeSMEMOffset" if record.and_then(|r| r.print.as_deref()) == Some("printSMEMOffsetMod") => "SmemOffsetMod",
        "decodeSMEMOffset" => "SmemOffset",
        "decodeSOPPBrTarget" => "Branch",
        "decodeDpp8FI" => "Fi8",
        "decodeVersionImm" => "Version",
        "" => plain(records, operand, register)?,
        other => bail!("decoder {other} of {class}"),
    };
    Ok((kind, dwords, number))
}

/// The kind of operands that LLVM needs no code to decode.
fn plain(records: &Records, operand: &Operand, register: &str) -> anyhow::Result<&'static str> {
    let record = records.operands.get(&operand.class);
    let print = record.and_then(|r| r.print.as_deref()).unwrap_or("");
    Ok(match register {
        "VGPR_32_Lo128" => "VgprLow",
        r if r.starts_with("VGPR_") || r.starts_with("VReg_") => "Vgpr",
        r if r.starts_with("AGPR_") || r.starts_with("AReg_") => "Agpr",
        r if r.starts_with("SReg_") => "Sgpr",
        _ if operand.name.ends_with("_modifiers") => match print {
            _ if operand.class.starts_with("Packed") => "PackedMods",
            "printOperandAndFPInputMods" => "FloatMods",
            "printOperandAndIntInputMods" => "IntMods",
            "printOperand" => "SelectMods",
            other => bail!("modifiers that {other} prints"),
        },
        _ => match print {
            "printHwreg" => "Hwreg",
            "printSendMsg" => "Message",
            "printGPRIdxMode" => "GprIndexMode",
            "printEndpgm" => "Endpgm",
            "printSWaitCnt" => "Waitcnt",
            "printDepCtr" => "DepCtr",
            "printSDelayALU" => "DelayAlu",
            "printSwizzle" => "Swizzle",
            "printFlatOffset" => "FlatOffset",
            "printU16ImmOperand" => "Simm16",
            "printOperand" if operand.name == "simm16" => "Decimal16",
            _ if operand.name == "imm" => "Literal",
            _ => "Imm",
        },
    })
}

/// The registers of a class.
fn dwords(register: &str) -> Option<u8> {
    let bits = register.split('_').find_map(|part| part.parse::<u16>().ok())?;
    u8::try_from(bits.div_ceil(32)).ok()
}

fn number(operand: &str) -> anyhow::Result<&'static str> {
    match operand {
        "OPERAND_KIMM32" => return Ok("Fp32"),
        "OPERAND_KIMM16" => return Ok("Fp16"),
        _ => {}
    }
    let Some(rest) = operand.strip_prefix("OPERAND_REG_") else { return Ok("None") };
    let rest = ["IMM_", "INLINE_C_", "INLINE_AC_"].iter().find_map(|p| rest.strip_prefix(p)).unwrap_or(rest);
    Ok(match rest.strip_suffix("_DEFERRED").unwrap_or(rest) {
        "INT16" => "Int16",
        "FP16" => "Fp16",
        "BF16" => "Bf16",
        "INT32" => "Int32",
        "FP32" => "Fp32",
        "INT64" => "Int64",
        "FP64" => "Fp64",
        "V2INT16" => "V2Int16",
        "V2FP16" => "V2Fp16",
        "V2BF16" => "V2Bf16",
        "V2INT32" => "V2Int32",
        "V2FP32" => "V2Fp32",
        other => bail!("numbers of type {other}"),
    })
}
