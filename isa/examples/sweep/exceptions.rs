// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where we differ from `llvm-mc` on purpose, each with its reason.

use vkfd_isa::{Encoding, Format, Target};
use vkfd_sabotage::Switch;

use crate::mc::Answer;

/// What [`crashes`] looks for.
pub const CRASHES: &str = "llvm-mc has no text for SDWA's selector 7 and its unused-bits rule 3, and ends";

/// Whether `llvm-mc` is known to crash on `words`.
pub fn crashes(target: Target, words: &[u32]) -> bool {
    let sdwa = target != Target::Gfx1100 && words[0] >> 31 == 0 && words[0] & 0x1ff == 0xf9;
    let compares = words[0] >> 25 == 0x3e;
    let select = |shift: u32| words[1] >> shift & 7 == 7;
    sdwa && (select(16) || select(24) || (!compares && (select(8) || words[1] >> 11 & 3 == 3)))
}

/// Registers and values that are one or two dwords.
const SPECIALS: [&str; 17] = [
    "flat_scratch",
    "xnack_mask",
    "vcc",
    "null",
    "exec",
    "src_shared_base",
    "src_shared_limit",
    "src_private_base",
    "src_private_limit",
    "src_pops_exiting_wave_id",
    "src_vccz",
    "src_execz",
    "src_scc",
    "m0",
    "vcc_lo",
    "exec_lo",
    "src_lds_direct",
];

/// Operations with sources of more than two dwords that need not be vector registers.
const WIDE: [&str; 13] = [
    "v_mqsad_u32_u8",
    "v_mfma_",
    "v_smfmac_",
    "v_wmma_",
    "buffer_",
    "tbuffer_",
    "s_buffer_",
    "image_",
    "s_load_",
    "s_store_",
    "s_scratch_",
    "s_atc_probe_buffer",
    "s_atomic_cmpswap_x2",
];

/// Why the difference is right, if it is.
pub fn reason(target: Target, words: &[u32], ours: &[&str], answer: &Answer) -> Option<&'static str> {
    let theirs = match answer {
        Answer::Crash => return Some("llvm-mc crashes"),
        Answer::Text(theirs) => theirs,
    };
    let first = theirs.first()?;
    let operands: Vec<&str> = first.split([' ', ',', '|', '-', '(', ')']).collect();
    if ours.len() == 1 && first.starts_with("s_version ") && ours[0].starts_with("s_version ") {
        return Some("the symbols of s_version are numbers here");
    }
    if ours.len() == 1 && first.starts_with("image_atomic_") && first.split(' ').nth(1) != ours[0].split(' ').nth(1) {
        return Some("llvm-mc has five data registers for an image atomic of four channels");
    }
    if ours.is_empty()
        && WIDE.iter().any(|name| first.starts_with(name))
        && SPECIALS.iter().any(|name| operands.contains(name))
    {
        return Some("no special register has more than two dwords");
    }
    let double_compare = first.starts_with("v_cmp") && first.contains("_f64");
    if target.is_rdna() && ours.len() == 1 && double_compare && words.first().is_some_and(|word| word & 0xff == 0xff) {
        return Some("a literal in the destination's place: llvm-mc has lost its value where the sources are printed");
    }
    if ours.is_empty() && first.starts_with("v_mfma_") && operands.iter().any(|operand| is_scalar(operand)) {
        return Some("no 32 scalar registers are one operand");
    }
    None
}

/// Whether `operand` is one scalar register.
fn is_scalar(operand: &str) -> bool {
    let number = operand.strip_prefix("ttmp").or_else(|| operand.strip_prefix('s'));
    number.is_some_and(|number| number.parse::<u8>().is_ok())
}

/// Whether the fault changes nothing that can be seen: CDNA has no GDS, and the bit for it no
/// meaning.
pub fn harmless(target: Target, encoding: &Encoding, fault: Switch, value: u32) -> bool {
    let (Switch::OperandPlace | Switch::OperandWidth) = fault else { return false };
    let Ok(slot) = usize::try_from(value) else { return false };
    let gds =
        encoding.format == Format::Ds && encoding.fields.get(slot).is_some_and(|field| field.runs == [(16, 1, 0)]);
    gds && target.is_cdna()
}

/// What `llvm-mc`'s assembler says of text that its disassembler prints, and why that is no
/// difference in the decoding.
const REFUSALS: [(&str, &str); 36] = [
    ("'null' operand is not supported on this GPU", "gfx9's reserved code 125 is printed as null"),
    ("register not available on this GPU", "a register that the target does not have is printed by its name"),
    ("execz and vccz are not supported on this GPU", "a register that the target does not have is printed by its name"),
    ("lds_direct is not supported on this GPU", "a register that the target does not have is printed by its name"),
    ("lds_direct cannot be used with this instruction", "where LDS_DIRECT may stand is a rule of the assembler"),
    ("lds_direct may be used as src0 only", "where LDS_DIRECT may stand is a rule of the assembler"),
    (
        "invalid operand (violates constant bus restrictions)",
        "how many scalar operands there may be is a rule of the assembler",
    ),
    ("invalid operand for instruction", "which class of operand may stand where is a rule of the assembler"),
    (
        "src1 immediate operand invalid for instruction",
        "which class of operand may stand where is a rule of the assembler",
    ),
    ("not a valid operand.", "a control of DPP that has no meaning is printed with a remark"),
    ("failed parsing operand.", "interpolation's negated constants are not read back"),
    ("operands are not valid for this GPU or mode", "a short form whose operands only the long one may name"),
    ("literal operands are not supported", "an inline constant of 16 bits is printed as its value"),
    (
        "invalid immediate: only 4-bit values are legal",
        "modes of s_set_gpr_idx that have no meaning are printed by their number",
    ),
    (
        "source 2 operand must not partially overlap with dst",
        "which registers of MFMAs may overlap is a rule of the assembler",
    ),
    ("only one unique literal operand is allowed", "an inline constant of 16 bits is printed as its value"),
    ("source operand must be a VGPR", "which class of operand may stand where is a rule of the assembler"),
    ("expected a value name", "waits of s_delay_alu that have no meaning are printed with a remark"),
    ("src0 must be null", "the first operand of s_waitcnt_* is ignored"),
    ("src1 operands must use different VGPR banks", "VOPD's banks are a rule of the assembler"),
    ("src2 operands must use different VGPR banks", "VOPD's banks are a rule of the assembler"),
    ("src0 operands must use different VGPR banks", "VOPD's banks are a rule of the assembler"),
    ("one dst register must be even and the other odd", "VOPD's banks are a rule of the assembler"),
    ("invalid register class: vgpr tuples must be 64 bit aligned", "the alignment of pairs is a rule of the assembler"),
    ("vgpr must be even aligned", "the alignment of pairs is a rule of the assembler"),
    ("TFE modifier has no meaning for store instructions", "TFE of stores is a rule of the assembler"),
    ("expected a 12-bit unsigned offset", "FLAT's offset has a bit more in the disassembler"),
    ("expected a 11-bit unsigned offset", "FLAT's offset has a bit more in the disassembler"),
    ("expected a 20-bit unsigned offset", "a negative offset of SMEM is a rule of the assembler"),
    ("invalid op_sel operand", "op_sel of dot products is a rule of the assembler"),
    ("invalid exp target", "an export's target that does not exist is printed by its number"),
    ("invalid interpolation slot", "interpolation of what does not exist is printed by its number"),
    ("out of bounds interpolation attribute number", "interpolation of what does not exist is printed by its number"),
    ("invalid atomic image dmask", "the mask of images is a rule of the assembler"),
    ("invalid image_gather dmask: only one bit must be set", "the mask of images is a rule of the assembler"),
    ("invalid dim; must be MSAA type", "the dimension of images is a rule of the assembler"),
];

/// Why `llvm-mc` does not assemble its own output, by its message.
pub fn refused(reason: &str) -> Option<&'static str> {
    if reason.starts_with("image ") && reason.contains(" size does not match ") {
        return Some("how many registers an image instruction has is a rule of the assembler");
    }
    REFUSALS.iter().find(|(message, _)| *message == reason).map(|(_, why)| *why)
}

/// Why what `llvm-mc` has assembled from its own text is something else.
pub fn reassembled(target: Target, text: &str) -> Option<&'static str> {
    if text.starts_with("exp ") && text.contains(" compr") {
        return Some("a compressed export's registers are read back in another order");
    }
    if text.starts_with("ds_swizzle_b32 ") {
        return Some("two patterns of a swizzle that mean the same lanes");
    }
    if text.split([' ', '_']).any(|part| ["b16", "f16", "i16", "u16"].contains(&part)) && text.contains("0x") {
        return Some("a literal of 16 bits is printed without what is above them");
    }
    let upper = |operand: &str| {
        operand.strip_prefix('v').and_then(|number| number.parse::<u8>().ok()).is_some_and(|n| n >= 128)
    };
    if target == Target::Gfx1100 && text.starts_with("v_cmp") && text.split([' ', ',', '|', '-']).any(upper) {
        return Some("the upper half of a register is printed as one from v128 on, which has a longer form only");
    }
    None
}
