// SPDX-License-Identifier: GPL-2.0 OR MIT
//! From an operation's class and number to machine code with registers that the sweep knows.

use vkfd_isa::{decode, Target};

/// Vector registers of the sources and the destination.
pub const SOURCES: [u32; 3] = [2, 4, 8];
pub const DESTINATION: u32 = 12;
/// Scalar registers of the same.
pub const SCALARS: [u32; 2] = [10, 12];
pub const SCALAR_DESTINATION: u32 = 14;
/// Where comparisons of the long encoding write, and where carries do.
pub const MASK: u32 = 20;
const VCC: u32 = 106;

/// The words; `literal` follows encodings that have one. `imm` is SOPK's.
pub fn encode(target: Target, class: &str, number: u32, name: &str, imm: u16, literal: u32) -> Option<Vec<u32>> {
    let mut words = with_three(target, class, number, name, imm, literal)?;
    if class == "VOP3Op" && decode(target, &words).is_err() {
        // Operations with fewer sources want the others' fields to be zero.
        for mask in [0x3_ffff, 0x1ff] {
            if let Some(sources) = words.get_mut(1) {
                *sources &= mask;
            }
            if decode(target, &words).is_ok() {
                break;
            }
        }
    }
    Some(words)
}

fn with_three(target: Target, class: &str, number: u32, name: &str, imm: u16, literal: u32) -> Option<Vec<u32>> {
    let gfx9 = target.is_gfx9();
    let [s0, s1] = SCALARS;
    let [v0, v1, v2] = SOURCES;
    let vector = |n: u32| 256 + n;
    let sources = vector(v0) | vector(v1) << 9 | vector(v2) << 18;
    let with_literal =
        name.contains("MADMK") || name.contains("MADAK") || name.contains("FMAMK") || name.contains("FMAAK");
    let mut words = match class {
        "SOP1Op" => vec![0xbe80_0000 | SCALAR_DESTINATION << 16 | number << 8 | s0],
        "SOP2Op" => vec![0x8000_0000 | number << 23 | SCALAR_DESTINATION << 16 | s1 << 8 | s0],
        "SOPCOp" => vec![0xbf00_0000 | number << 16 | s1 << 8 | s0],
        "SOPKOp" => vec![0xb000_0000 | number << 23 | SCALAR_DESTINATION << 16 | u32::from(imm)],
        "VOP1Op" => vec![0x7e00_0000 | DESTINATION << 17 | number << 9 | vector(v0)],
        "VOP2Op" => vec![number << 25 | DESTINATION << 17 | v1 << 9 | vector(v0)],
        "VOPCOp" => vec![0x7c00_0000 | number << 17 | v1 << 9 | vector(v0)],
        "VOP3Op" => {
            let long = if gfx9 { 0xd000_0000 } else { 0xd400_0000 };
            // The third source of a selection is a mask; comparisons have a scalar destination.
            let selects = name.contains("CNDMASK");
            let sources = if selects { vector(v0) | vector(v1) << 9 | VCC << 18 } else { sources };
            let compares = name.starts_with("V_CMP");
            let exec = name.starts_with("V_CMPX") && !gfx9;
            let dst = match (compares, exec) {
                (_, true) => 126,
                (true, _) => MASK,
                _ => DESTINATION,
            };
            vec![long | number << 16 | dst, sources]
        }
        "VOP3SDOp" => {
            let long = if gfx9 { 0xd000_0000 } else { 0xd400_0000 };
            let sources = if name.contains("ADDC") || name.contains("SUBB") || name.contains("_CI_") {
                vector(v0) | vector(v1) << 9 | VCC << 18
            } else if name.contains("_CO_") {
                sources & 0x3_ffff
            } else {
                sources
            };
            vec![long | number << 16 | VCC << 8 | DESTINATION, sources]
        }
        "VOP3POp" => {
            let long = if gfx9 { 0xd380_0000 } else { 0xcc00_0000 };
            vec![long | number << 16 | 1 << 14 | DESTINATION, sources | 3 << 27]
        }
        _ => return None,
    };
    if with_literal {
        words.push(literal);
    }
    Some(words)
}
