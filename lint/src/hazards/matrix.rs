// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Wait states behind matrix operations, by their passes.
//!
//! A pass is four cycles of the matrix unit. An operation's passes follow from its shape.

use vkfd_isa::Target;

use crate::class::Class;
use crate::step::Step;

/// The most that any rule needs.
pub(crate) const MOST: u32 = 19;

/// Whether the matrix unit is CDNA3's, with other passes than CDNA2's.
fn is_newer(target: Target) -> bool {
    match target {
        Target::Gfx900 | Target::Gfx90a | Target::Gfx1030 | Target::Gfx1100 => false,
        Target::Gfx942 => true,
    }
}

/// The passes of a matrix operation.
fn passes(target: Target, step: &Step) -> u32 {
    let name = step.op.name();
    let shape = name.split('_').find(|part| part.matches('x').count() == 2 && part.starts_with(char::is_numeric));
    let mut sizes = shape.unwrap_or("").split('x');
    let rows = sizes.next().unwrap_or("");
    let depth: String = sizes.nth(1).unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
    let depth: u32 = depth.parse().unwrap_or(0);
    let newer = is_newer(target);
    let sparse = step.class.contains(Class::SPARSE);
    if step.class.contains(Class::DGEMM) {
        return match rows {
            "4" => 4,
            _ if newer => 16,
            _ => 8,
        };
    }
    match (rows, newer) {
        ("4", _) => 2,
        ("16", false) => 8,
        ("16", true) if sparse || depth >= 8 => 4,
        ("16", true) => 8,
        (_, true) if sparse || depth >= 8 || name.ends_with("xf32") => 8,
        _ => 16,
    }
}

/// For an operation that adds to the result of an earlier one. `same`: to all of it, and no more.
pub(crate) fn accumulated(target: Target, earlier: &Step, later: &Step, same: bool) -> u32 {
    let newer = is_newer(target);
    let is = |step: &Step, class: Class| step.class.contains(class);
    let double = is(earlier, Class::DGEMM);
    let passes = passes(target, earlier);
    if same {
        let both = double && is(later, Class::DGEMM) && passes == 4 && self::passes(target, later) == 4;
        return match () {
            () if both => 4,
            () if newer && passes == 2 => 2,
            () => 0,
        };
    }
    if double {
        return match passes {
            _ if is(later, Class::XDL) || (!newer && !is(later, Class::DGEMM)) => 0,
            4 => 4,
            _ => 9,
        };
    }
    if newer {
        return match (is(earlier, Class::XDL), is(later, Class::XDL)) {
            (false, true) => 0,
            (true, _) => passes + 1,
            (false, false) => passes,
        };
    }
    let more = u32::from(is(later, Class::DGEMM));
    passes + more
}

/// For an operation one of whose factors is the result.
pub(crate) fn factor(target: Target, earlier: &Step) -> u32 {
    behind(target, earlier, [6, 11])
}

/// For an instruction that reads the result.
pub(crate) fn read(target: Target, earlier: &Step, memory: bool) -> u32 {
    behind(target, earlier, if memory { [9, 18] } else { [6, 11] })
}

/// For an instruction that overwrites the result.
pub(crate) fn overwritten(target: Target, earlier: &Step) -> u32 {
    behind(target, earlier, [6, 11])
}

/// `double`: after an operation of double precision with 4 passes, and with more.
fn behind(target: Target, earlier: &Step, double: [u32; 2]) -> u32 {
    let passes = passes(target, earlier);
    if earlier.class.contains(Class::DGEMM) {
        return double[usize::from(passes > 4)];
    }
    // On gfx90a the same: 5, 11 and 19.
    passes + if !is_newer(target) || earlier.class.contains(Class::XDL) { 3 } else { 2 }
}

/// For an instruction that overwrites what the operation adds to.
pub(crate) fn accumulator_overwritten(target: Target, earlier: &Step) -> u32 {
    passes(target, earlier) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use vkfd_isa::encodings;

    fn all(target: Target) -> Vec<(&'static str, u32)> {
        let mut all: Vec<(&str, u32)> = encodings(target)
            .map(|encoding| {
                let class = crate::class::class(target, encoding.op, encoding.format);
                (encoding.op, class)
            })
            .filter(|(_, class)| class.contains(Class::MFMA))
            .map(|(op, class)| (op.name(), passes(target, &crate::step::Step::of(op, class))))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn of(target: Target, name: &str) -> u32 {
        let all = all(target);
        all.iter().find(|(other, _)| *other == name).unwrap_or_else(|| panic!("no {name} in {all:?}")).1
    }

    #[test]
    fn passes_follow_from_shapes() {
        for (name, passes) in [
            ("v_mfma_f32_4x4x1f32", 2),
            ("v_mfma_f32_16x16x4f16", 8),
            ("v_mfma_f32_16x16x16bf16_1k", 8),
            ("v_mfma_i32_32x32x8i8", 16),
            ("v_mfma_f64_4x4x4f64", 4),
            ("v_mfma_f64_16x16x4f64", 8),
        ] {
            assert_eq!(of(Target::Gfx90a, name), passes, "{name}");
        }
        for (name, passes) in [
            ("v_mfma_f32_4x4x4f16", 2),
            ("v_mfma_f32_16x16x16f16", 4),
            ("v_mfma_f32_16x16x8_xf32", 4),
            ("v_mfma_f32_16x16x4f32", 8),
            ("v_mfma_f32_16x16x1f32", 8),
            ("v_mfma_f32_32x32x4_xf32", 8),
            ("v_mfma_f32_32x32x8f16", 8),
            ("v_mfma_f32_32x32x2f32", 16),
            ("v_mfma_f32_32x32x4bf16_1k", 16),
            ("v_mfma_f64_16x16x4f64", 16),
            ("v_smfmac_f32_16x16x32_f16", 4),
            ("v_smfmac_f32_32x32x16_bf16", 8),
        ] {
            assert_eq!(of(Target::Gfx942, name), passes, "{name}");
        }
    }
}
