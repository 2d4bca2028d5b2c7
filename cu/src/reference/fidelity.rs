// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How near the results of each operation are to hardware's.

use crate::reference;
use vkfd_isa::{Op, Target};

/// How near an operation's results are to hardware's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fidelity {
    /// The documented result, bit for bit; of a NaN, that it is one.
    Exact,
    /// Hardware may give another one, for this reason.
    Approximate(&'static str),
    /// Refused by name.
    Missing,
}

const UNIT: &str = "correctly rounded; hardware is within one unit in the last place";
const SEED: &str = "correctly rounded; hardware gives a seed for an iteration";
const ORDER: &str = "the order and rounding of the sums are not published";
const BYTE: &str = "how a fraction is rounded is not documented: it is cut off";
const RANDOM: &str = "random bits are added below what is kept, then cut off: how the two meet is not documented";
const UNFUSED: &str = "product and sum each rounded, denormals flushed, as documented";

/// How near `op`'s results on `target` are to hardware's.
pub fn fidelity(op: Op, target: Target) -> Fidelity {
    match op {
        Op::VRcpF32
        | Op::VRcpIflagF32
        | Op::VRsqF32
        | Op::VSqrtF32
        | Op::VExpF32
        | Op::VExpLegacyF32
        | Op::VLogF32
        | Op::VLogLegacyF32
        | Op::VSinF32
        | Op::VCosF32
        | Op::VRcpF16
        | Op::VRsqF16
        | Op::VSqrtF16
        | Op::VExpF16
        | Op::VLogF16
        | Op::VSinF16
        | Op::VCosF16 => Fidelity::Approximate(UNIT),
        Op::VRcpF64 | Op::VRsqF64 | Op::VSqrtF64 => Fidelity::Approximate(SEED),
        Op::VDot2F32F16 | Op::VDot2cF32F16 | Op::VDot2F32Bf16 | Op::VDot2F16F16 | Op::VDot2Bf16Bf16 => {
            Fidelity::Approximate(ORDER)
        }
        Op::VCvtPkU8F32 | Op::VCvtPkaccumU8F32 => Fidelity::Approximate(BYTE),
        Op::VCvtSrFp8F32 | Op::VCvtSrBf8F32 => Fidelity::Approximate(RANDOM),
        Op::VMadMixF32 | Op::VMadMixloF16 | Op::VMadMixhiF16 => Fidelity::Approximate(UNFUSED),
        // Sums of integers are the same in any order.
        _ if op.name().contains("_i32_") && reference::knows(op) => Fidelity::Exact,
        _ if reference::is_wmma(op) => Fidelity::Approximate(ORDER),
        // NEW TARGET: operations with another order of sums
        _ if reference::is_sparse(op) && target == Target::Gfx942 => Fidelity::Approximate(ORDER),
        _ if reference::knows(op) => Fidelity::Exact,
        _ => Fidelity::Missing,
    }
}
