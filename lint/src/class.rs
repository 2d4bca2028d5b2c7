// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Classes of instructions, by which rules choose them.
//!
//! A class follows from the encoding's format and the operation's name. It is found once per entry
//! of the decoder's tables.

use bitflags::bitflags;
use vkfd_isa::{Format, Op, Target};

bitflags! {
    /// Properties of an instruction.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Class: u64 {
        const VALU = 1 << 0;
        const SALU = 1 << 1;
        const SMEM = 1 << 2;
        /// Buffers and images.
        const VMEM = 1 << 3;
        /// FLAT, GLOBAL and SCRATCH.
        const FLAT = 1 << 4;
        /// FLAT alone: LDS, scratch or memory, by the address.
        const GENERIC = 1 << 5;
        const DS = 1 << 6;
        const GDS = 1 << 7;
        const EXPORT = 1 << 8;
        const LDS_DIRECT = 1 << 9;
        const INTERPOLATION = 1 << 10;
        const STORE = 1 << 11;
        const LOAD = 1 << 12;
        const ATOMIC = 1 << 13;
        const FLOAT_ATOMIC = 1 << 14;
        /// Invalidates caches, and counts nowhere.
        const INVALIDATE = 1 << 15;
        /// A load whose data go to LDS.
        const LDS_DMA = 1 << 16;
        const SAMPLER = 1 << 17;
        const RAYS = 1 << 18;
        const TRANS = 1 << 19;
        const DOT = 1 << 20;
        /// A matrix operation of CDNA.
        const MFMA = 1 << 21;
        /// One of double precision.
        const DGEMM = 1 << 22;
        /// One that gfx942 executes in its wide unit.
        const XDL = 1 << 23;
        const SPARSE = 1 << 24;
        const WMMA = 1 << 25;
        /// A comparison that writes EXEC.
        const COMPARE_EXEC = 1 << 26;
        const DIV_FMAS = 1 << 27;
        const READ_LANE = 1 << 28;
        const READ_FIRST_LANE = 1 << 29;
        const WRITE_LANE = 1 << 30;
        const PERMLANE = 1 << 31;
        const SETREG = 1 << 32;
        const GETREG = 1 << 33;
        const RFE = 1 << 34;
        /// Reads M0 without naming it.
        const READS_M0 = 1 << 35;
        /// Reads a lane mask from a scalar register.
        const MASKED = 1 << 36;
        const NOP = 1 << 37;
        const DENORM_MODE = 1 << 38;
        const FMA64 = 1 << 39;
        const MESSAGE = 1 << 40;
        const DPP = 1 << 41;
        /// Writes a part of a register by SDWA or `op_sel`.
        const PART = 1 << 42;
        /// An instruction that waits for a counter.
        const WAIT = 1 << 43;
    }
}

impl Class {
    /// An access to memory that vector registers take part in.
    pub const VECTOR_MEMORY: Class = Class::VMEM.union(Class::FLAT);
    /// The same and LDS.
    pub const MEMORY: Class = Class::VECTOR_MEMORY.union(Class::DS);
    /// The same and exports.
    pub const MEMORY_OR_EXPORT: Class = Class::MEMORY.union(Class::EXPORT);
}

/// The class of an operation in an encoding.
pub(crate) fn class(target: Target, op: Op, format: Format) -> Class {
    let name = op.name();
    let mut class = match format {
        Format::Sop1 | Format::Sop2 | Format::Sopk | Format::Sopc | Format::Sopp => Class::SALU,
        Format::Smem => Class::SMEM,
        Format::Vop1 | Format::Vop2 | Format::Vopc | Format::Vop3 | Format::Vop3p | Format::Vopd => Class::VALU,
        Format::Vintrp => Class::INTERPOLATION,
        Format::Ldsdir => Class::LDS_DIRECT,
        Format::Ds => Class::DS,
        Format::Flat => Class::FLAT | Class::GENERIC,
        Format::Global | Format::Scratch => Class::FLAT,
        Format::Mubuf | Format::Mtbuf | Format::Mimg => Class::VMEM,
        Format::Exp => Class::EXPORT,
    };
    if class.intersects(Class::MEMORY) {
        class |= memory(name);
    }
    if class.contains(Class::VALU) {
        class |= vector(target, name);
    }
    if class.contains(Class::SALU) {
        class |= scalar(name);
    }
    if name.starts_with("v_interp") {
        class |= Class::INTERPOLATION;
    }
    if class.contains(Class::INTERPOLATION) {
        class |= Class::READS_M0;
    }
    class
}

fn memory(name: &str) -> Class {
    let mut class = Class::empty();
    let has = |part: &str| name.contains(part);
    if name.starts_with("buffer_wbinvl1") || name.starts_with("buffer_gl") || name.starts_with("buffer_inv") {
        class |= Class::INVALIDATE;
    } else if has("_atomic") {
        class |= Class::ATOMIC | Class::STORE;
        let float = ["_f32", "_f64", "_f16", "_bf16", "_fmin", "_fmax", "_fcmpswap", "_fmin_x2", "_fmax_x2"];
        if float.iter().any(|end| name.ends_with(end)) {
            class |= Class::FLOAT_ATOMIC;
        }
    } else if has("_store") || has("ds_write") || has("buffer_wbl2") {
        class |= Class::STORE;
    } else {
        class |= Class::LOAD;
    }
    if name.starts_with("ds_gws") || name.starts_with("ds_ordered_count") || name.starts_with("ds_add_gs_reg") {
        class |= Class::GDS | Class::READS_M0;
    }
    if has("_load_lds") || has("store_lds") {
        class |= Class::LDS_DMA | Class::READS_M0;
    }
    if has("addtid") && name.starts_with("ds_") {
        class |= Class::READS_M0;
    }
    if has("image_sample") || has("image_gather4") || has("image_get_lod") {
        class |= Class::SAMPLER;
    }
    if has("_bvh") {
        class |= Class::RAYS;
    }
    class
}

fn vector(target: Target, name: &str) -> Class {
    let mut class = Class::empty();
    let begins = |start: &str| name.starts_with(start);
    let trans = ["v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"];
    if trans.iter().any(|start| begins(start)) {
        class |= Class::TRANS;
    }
    if begins("v_dot") {
        class |= Class::DOT;
    }
    if begins("v_mfma") || begins("v_smfmac") {
        class |= Class::MFMA;
        if begins("v_mfma_f64") {
            class |= Class::DGEMM;
        // NEW TARGET: whether the wide matrix unit takes single precision
        } else if target != Target::Gfx942 || !single_precision(name) {
            class |= Class::XDL;
        }
        if begins("v_smfmac") {
            class |= Class::SPARSE;
        }
    }
    if begins("v_wmma") {
        class |= Class::WMMA;
    }
    if begins("v_cmpx_") {
        class |= Class::COMPARE_EXEC;
    }
    if begins("v_div_fmas") {
        class |= Class::DIV_FMAS | Class::MASKED;
    }
    if begins("v_permlane") {
        class |= Class::PERMLANE;
    }
    if begins("v_cndmask") || begins("v_addc_") || begins("v_subb_") || begins("v_subbrev_") {
        class |= Class::MASKED;
    }
    match name {
        "v_readlane_b32" => class |= Class::READ_LANE,
        "v_readfirstlane_b32" => class |= Class::READ_FIRST_LANE,
        "v_writelane_b32" => class |= Class::WRITE_LANE,
        "v_nop" => class |= Class::NOP,
        "v_fma_f64" | "v_fmac_f64" => class |= Class::FMA64,
        _ => {}
    }
    class
}

/// Whether a matrix operation has inputs of single precision, which gfx942's wide unit does not
/// take.
fn single_precision(name: &str) -> bool {
    name.strip_suffix("f32").is_some_and(|rest| rest.ends_with(|c: char| c.is_ascii_digit()))
}

fn scalar(name: &str) -> Class {
    let begins = |start: &str| name.starts_with(start);
    if begins("s_setreg") {
        Class::SETREG
    } else if begins("s_getreg") {
        Class::GETREG
    } else if begins("s_rfe") {
        Class::RFE
    } else if begins("s_movrel") {
        Class::READS_M0
    } else if begins("s_sendmsg_rtn") {
        Class::MESSAGE
    } else if begins("s_sendmsg") {
        Class::MESSAGE | Class::READS_M0
    } else if begins("s_ttracedata") {
        Class::READS_M0
    } else if begins("s_denorm_mode") {
        Class::DENORM_MODE
    } else if begins("s_waitcnt") || begins("s_wait_") {
        Class::WAIT
    } else if name == "s_nop" {
        Class::NOP
    } else {
        Class::empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_from_names() {
        let of = |op, format| class(Target::Gfx942, op, format);
        let f32 = of(Op::VMfmaF32_32x32x1f32, Format::Vop3p);
        assert!(f32.contains(Class::MFMA) && !f32.contains(Class::XDL));
        assert!(of(Op::VMfmaF32_16x16x8Xf32, Format::Vop3p).contains(Class::XDL));
        assert!(of(Op::VMfmaF32_32x32x8f16, Format::Vop3p).contains(Class::XDL));
        assert!(of(Op::VRcpF32, Format::Vop1).contains(Class::TRANS));
        let invalidate = of(Op::BufferInv, Format::Mubuf);
        assert!(invalidate.contains(Class::INVALIDATE) && !invalidate.contains(Class::LOAD));
        assert!(of(Op::GlobalAtomicAddF32, Format::Global).contains(Class::FLOAT_ATOMIC | Class::STORE));
        assert!(!of(Op::GlobalAtomicAdd, Format::Global).contains(Class::FLOAT_ATOMIC));
    }
}
