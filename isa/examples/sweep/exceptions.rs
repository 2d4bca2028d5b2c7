// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Where we differ from `llvm-mc` on purpose, each with its reason.

use vkfd_isa::Target;

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
pub fn reason(_target: Target, _words: &[u32], ours: &[&str], answer: &Answer) -> Option<&'static str> {
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
