// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What operations do to memory, whatever the address. (DS with two addresses and exchanges between
//! lanes are in their modules.)

use vkfd_isa::Op::{self, *};
use vkfd_isa::Target;

/// How loaded bytes become a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extend {
    /// Zeros above; words as they are.
    Zero,
    /// The sign above.
    Sign,
    /// Into the low half; of the high one [`kept`] stays.
    Low,
    /// Sign-extended, into the low half.
    LowSign,
    /// Into the high half; of the low one [`kept`] stays.
    High,
    /// Sign-extended, into the high half.
    HighSign,
}

/// The bits of a register's other half that a load into one half keeps. Registers with ECC of whole
/// words keep nothing: CDNA2 and later. LLVM's D112635 has it from hardware, and rocBLAS's kernels
/// rely on zeros there.
pub(crate) fn kept(target: Target) -> u32 {
    match target.is_cdna() {
        true => 0,
        false => u32::MAX,
    }
}

impl Extend {
    /// The register's new value, of `value` (with zeros above its `bytes`) and the `old` one.
    pub(crate) fn apply(self, value: u32, bytes: u8, old: u32) -> u32 {
        let signed = match bytes {
            1 => value as u8 as i8 as i32 as u32,
            2 => value as u16 as i16 as i32 as u32,
            _ => value,
        };
        match self {
            Extend::Zero => value,
            Extend::Sign => signed,
            Extend::Low => old & 0xffff_0000 | value & 0xffff,
            Extend::LowSign => old & 0xffff_0000 | signed & 0xffff,
            Extend::High => old & 0xffff | value << 16,
            Extend::HighSign => old & 0xffff | signed << 16,
        }
    }
}

/// Which half of the registers formatted data are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    /// Whole registers.
    No,
    /// Two channels a register, from the low half on.
    Low,
    /// One channel, in the high half.
    High,
}

/// An atomic operation. `a` is the data, `b` what cmpswap compares with (mskor: what is set; wrap:
/// what is added).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the instructions' names")]
pub(crate) enum AtomicOp {
    Swap,
    Cmpswap,
    Add,
    Sub,
    Rsub,
    Csub,
    Smin,
    Umin,
    Smax,
    Umax,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Fadd,
    Fmin,
    Fmax,
    Fcmpswap,
    PkAddF16,
    PkAddBf16,
    Mskor,
    Wrap,
    Condxchg,
}

impl AtomicOp {
    /// Whether the operation is one of floating-point numbers.
    pub(crate) fn is_float(self) -> bool {
        use AtomicOp::{Fadd, Fcmpswap, Fmax, Fmin, PkAddBf16, PkAddF16};
        matches!(self, Fadd | Fmin | Fmax | Fcmpswap | PkAddF16 | PkAddBf16)
    }

    /// Whether there is a second operand.
    pub(crate) fn has_second(self) -> bool {
        matches!(self, AtomicOp::Cmpswap | AtomicOp::Fcmpswap | AtomicOp::Mskor | AtomicOp::Wrap)
    }
}

/// What an operation does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Load {
        bytes: u8,
        extend: Extend,
    },
    /// Store; `high`: of the high half.
    Store {
        bytes: u8,
        high: bool,
    },
    /// Atomic operation on 32 or (`wide`) 64 bits.
    Atomic {
        op: AtomicOp,
        wide: bool,
    },
    /// Load or store with conversion from or to the buffer's format.
    Format {
        store: bool,
        channels: u8,
        half: Half,
    },
    /// Load into LDS.
    ToLds {
        bytes: u8,
        extend: Extend,
    },
    /// Store from LDS.
    FromLds,
    /// Control of caches that there are not.
    Nothing,
}

const fn load(bytes: u8, extend: Extend) -> Kind {
    Kind::Load { bytes, extend }
}

const fn store(bytes: u8, high: bool) -> Kind {
    Kind::Store { bytes, high }
}

const fn atomic(op: AtomicOp, wide: bool) -> Kind {
    Kind::Atomic { op, wide }
}

const fn format(store: bool, channels: u8, half: Half) -> Kind {
    Kind::Format { store, channels, half }
}

/// Operations of FLAT, GLOBAL, SCRATCH, MUBUF and MTBUF.
pub(crate) fn kind(op: Op) -> Option<Kind> {
    Some(match op {
        FlatLoadUbyte | GlobalLoadUbyte | ScratchLoadUbyte | BufferLoadUbyte => load(1, Extend::Zero),
        FlatLoadSbyte | GlobalLoadSbyte | ScratchLoadSbyte | BufferLoadSbyte => load(1, Extend::Sign),
        FlatLoadUshort | GlobalLoadUshort | ScratchLoadUshort | BufferLoadUshort => load(2, Extend::Zero),
        FlatLoadSshort | GlobalLoadSshort | ScratchLoadSshort | BufferLoadSshort => load(2, Extend::Sign),
        FlatLoadDword | GlobalLoadDword | ScratchLoadDword | BufferLoadDword => load(4, Extend::Zero),
        FlatLoadDwordx2 | GlobalLoadDwordx2 | ScratchLoadDwordx2 | BufferLoadDwordx2 => load(8, Extend::Zero),
        FlatLoadDwordx3 | GlobalLoadDwordx3 | ScratchLoadDwordx3 | BufferLoadDwordx3 => load(12, Extend::Zero),
        FlatLoadDwordx4 | GlobalLoadDwordx4 | ScratchLoadDwordx4 | BufferLoadDwordx4 => load(16, Extend::Zero),
        FlatLoadUbyteD16 | GlobalLoadUbyteD16 | ScratchLoadUbyteD16 | BufferLoadUbyteD16 => load(1, Extend::Low),
        FlatLoadSbyteD16 | GlobalLoadSbyteD16 | ScratchLoadSbyteD16 | BufferLoadSbyteD16 => load(1, Extend::LowSign),
        FlatLoadShortD16 | GlobalLoadShortD16 | ScratchLoadShortD16 | BufferLoadShortD16 => load(2, Extend::Low),
        FlatLoadUbyteD16Hi | GlobalLoadUbyteD16Hi | ScratchLoadUbyteD16Hi | BufferLoadUbyteD16Hi => {
            load(1, Extend::High)
        }
        FlatLoadSbyteD16Hi | GlobalLoadSbyteD16Hi | ScratchLoadSbyteD16Hi | BufferLoadSbyteD16Hi => {
            load(1, Extend::HighSign)
        }
        FlatLoadShortD16Hi | GlobalLoadShortD16Hi | ScratchLoadShortD16Hi | BufferLoadShortD16Hi => {
            load(2, Extend::High)
        }
        FlatStoreByte | GlobalStoreByte | ScratchStoreByte | BufferStoreByte => store(1, false),
        FlatStoreShort | GlobalStoreShort | ScratchStoreShort | BufferStoreShort => store(2, false),
        FlatStoreDword | GlobalStoreDword | ScratchStoreDword | BufferStoreDword => store(4, false),
        FlatStoreDwordx2 | GlobalStoreDwordx2 | ScratchStoreDwordx2 | BufferStoreDwordx2 => store(8, false),
        FlatStoreDwordx3 | GlobalStoreDwordx3 | ScratchStoreDwordx3 | BufferStoreDwordx3 => store(12, false),
        FlatStoreDwordx4 | GlobalStoreDwordx4 | ScratchStoreDwordx4 | BufferStoreDwordx4 => store(16, false),
        FlatStoreByteD16Hi | GlobalStoreByteD16Hi | ScratchStoreByteD16Hi | BufferStoreByteD16Hi => store(1, true),
        FlatStoreShortD16Hi | GlobalStoreShortD16Hi | ScratchStoreShortD16Hi | BufferStoreShortD16Hi => store(2, true),
        GlobalLoadDwordAddtid => load(4, Extend::Zero),
        GlobalStoreDwordAddtid => store(4, false),
        GlobalLoadLdsUbyte | ScratchLoadLdsUbyte => Kind::ToLds { bytes: 1, extend: Extend::Zero },
        GlobalLoadLdsSbyte | ScratchLoadLdsSbyte => Kind::ToLds { bytes: 1, extend: Extend::Sign },
        GlobalLoadLdsUshort | ScratchLoadLdsUshort => Kind::ToLds { bytes: 2, extend: Extend::Zero },
        GlobalLoadLdsSshort | ScratchLoadLdsSshort => Kind::ToLds { bytes: 2, extend: Extend::Sign },
        GlobalLoadLdsDword | ScratchLoadLdsDword => Kind::ToLds { bytes: 4, extend: Extend::Zero },
        BufferLoadLdsU8 => Kind::ToLds { bytes: 1, extend: Extend::Zero },
        BufferLoadLdsI8 => Kind::ToLds { bytes: 1, extend: Extend::Sign },
        BufferLoadLdsU16 => Kind::ToLds { bytes: 2, extend: Extend::Zero },
        BufferLoadLdsI16 => Kind::ToLds { bytes: 2, extend: Extend::Sign },
        BufferLoadLdsB32 => Kind::ToLds { bytes: 4, extend: Extend::Zero },
        BufferStoreLdsDword => Kind::FromLds,
        FlatAtomicSwap | GlobalAtomicSwap | BufferAtomicSwap => atomic(AtomicOp::Swap, false),
        FlatAtomicSwapX2 | GlobalAtomicSwapX2 | BufferAtomicSwapX2 => atomic(AtomicOp::Swap, true),
        FlatAtomicCmpswap | GlobalAtomicCmpswap | BufferAtomicCmpswap => atomic(AtomicOp::Cmpswap, false),
        FlatAtomicCmpswapX2 | GlobalAtomicCmpswapX2 | BufferAtomicCmpswapX2 => atomic(AtomicOp::Cmpswap, true),
        FlatAtomicAdd | GlobalAtomicAdd | BufferAtomicAdd => atomic(AtomicOp::Add, false),
        FlatAtomicAddX2 | GlobalAtomicAddX2 | BufferAtomicAddX2 => atomic(AtomicOp::Add, true),
        FlatAtomicSub | GlobalAtomicSub | BufferAtomicSub => atomic(AtomicOp::Sub, false),
        FlatAtomicSubX2 | GlobalAtomicSubX2 | BufferAtomicSubX2 => atomic(AtomicOp::Sub, true),
        FlatAtomicSmin | GlobalAtomicSmin | BufferAtomicSmin => atomic(AtomicOp::Smin, false),
        FlatAtomicSminX2 | GlobalAtomicSminX2 | BufferAtomicSminX2 => atomic(AtomicOp::Smin, true),
        FlatAtomicUmin | GlobalAtomicUmin | BufferAtomicUmin => atomic(AtomicOp::Umin, false),
        FlatAtomicUminX2 | GlobalAtomicUminX2 | BufferAtomicUminX2 => atomic(AtomicOp::Umin, true),
        FlatAtomicSmax | GlobalAtomicSmax | BufferAtomicSmax => atomic(AtomicOp::Smax, false),
        FlatAtomicSmaxX2 | GlobalAtomicSmaxX2 | BufferAtomicSmaxX2 => atomic(AtomicOp::Smax, true),
        FlatAtomicUmax | GlobalAtomicUmax | BufferAtomicUmax => atomic(AtomicOp::Umax, false),
        FlatAtomicUmaxX2 | GlobalAtomicUmaxX2 | BufferAtomicUmaxX2 => atomic(AtomicOp::Umax, true),
        FlatAtomicAnd | GlobalAtomicAnd | BufferAtomicAnd => atomic(AtomicOp::And, false),
        FlatAtomicAndX2 | GlobalAtomicAndX2 | BufferAtomicAndX2 => atomic(AtomicOp::And, true),
        FlatAtomicOr | GlobalAtomicOr | BufferAtomicOr => atomic(AtomicOp::Or, false),
        FlatAtomicOrX2 | GlobalAtomicOrX2 | BufferAtomicOrX2 => atomic(AtomicOp::Or, true),
        FlatAtomicXor | GlobalAtomicXor | BufferAtomicXor => atomic(AtomicOp::Xor, false),
        FlatAtomicXorX2 | GlobalAtomicXorX2 | BufferAtomicXorX2 => atomic(AtomicOp::Xor, true),
        FlatAtomicInc | GlobalAtomicInc | BufferAtomicInc => atomic(AtomicOp::Inc, false),
        FlatAtomicIncX2 | GlobalAtomicIncX2 | BufferAtomicIncX2 => atomic(AtomicOp::Inc, true),
        FlatAtomicDec | GlobalAtomicDec | BufferAtomicDec => atomic(AtomicOp::Dec, false),
        FlatAtomicDecX2 | GlobalAtomicDecX2 | BufferAtomicDecX2 => atomic(AtomicOp::Dec, true),
        GlobalAtomicCsub | BufferAtomicCsub => atomic(AtomicOp::Csub, false),
        FlatAtomicAddF32 | GlobalAtomicAddF32 | BufferAtomicAddF32 => atomic(AtomicOp::Fadd, false),
        FlatAtomicAddF64 | GlobalAtomicAddF64 | BufferAtomicAddF64 => atomic(AtomicOp::Fadd, true),
        FlatAtomicMinF64 | GlobalAtomicMinF64 | BufferAtomicMinF64 => atomic(AtomicOp::Fmin, true),
        FlatAtomicMaxF64 | GlobalAtomicMaxF64 | BufferAtomicMaxF64 => atomic(AtomicOp::Fmax, true),
        FlatAtomicFmin | GlobalAtomicFmin | BufferAtomicFmin => atomic(AtomicOp::Fmin, false),
        FlatAtomicFmax | GlobalAtomicFmax | BufferAtomicFmax => atomic(AtomicOp::Fmax, false),
        FlatAtomicFcmpswap | GlobalAtomicFcmpswap | BufferAtomicFcmpswap => atomic(AtomicOp::Fcmpswap, false),
        FlatAtomicFcmpswapX2 | GlobalAtomicFcmpswapX2 | BufferAtomicFcmpswapX2 => atomic(AtomicOp::Fcmpswap, true),
        FlatAtomicPkAddF16 | GlobalAtomicPkAddF16 | BufferAtomicPkAddF16 => atomic(AtomicOp::PkAddF16, false),
        FlatAtomicPkAddBf16 | GlobalAtomicPkAddBf16 => atomic(AtomicOp::PkAddBf16, false),
        BufferLoadFormatX | TbufferLoadFormatX => format(false, 1, Half::No),
        BufferLoadFormatD16X | TbufferLoadFormatD16X => format(false, 1, Half::Low),
        BufferLoadFormatXy | TbufferLoadFormatXy => format(false, 2, Half::No),
        BufferLoadFormatD16Xy | TbufferLoadFormatD16Xy => format(false, 2, Half::Low),
        BufferLoadFormatXyz | TbufferLoadFormatXyz => format(false, 3, Half::No),
        BufferLoadFormatD16Xyz | TbufferLoadFormatD16Xyz => format(false, 3, Half::Low),
        BufferLoadFormatXyzw | TbufferLoadFormatXyzw => format(false, 4, Half::No),
        BufferLoadFormatD16Xyzw | TbufferLoadFormatD16Xyzw => format(false, 4, Half::Low),
        BufferLoadFormatD16HiX => format(false, 1, Half::High),
        BufferStoreFormatX | TbufferStoreFormatX => format(true, 1, Half::No),
        BufferStoreFormatD16X | TbufferStoreFormatD16X => format(true, 1, Half::Low),
        BufferStoreFormatXy | TbufferStoreFormatXy => format(true, 2, Half::No),
        BufferStoreFormatD16Xy | TbufferStoreFormatD16Xy => format(true, 2, Half::Low),
        BufferStoreFormatXyz | TbufferStoreFormatXyz => format(true, 3, Half::No),
        BufferStoreFormatD16Xyz | TbufferStoreFormatD16Xyz => format(true, 3, Half::Low),
        BufferStoreFormatXyzw | TbufferStoreFormatXyzw => format(true, 4, Half::No),
        BufferStoreFormatD16Xyzw | TbufferStoreFormatD16Xyzw => format(true, 4, Half::Low),
        BufferStoreFormatD16HiX => format(true, 1, Half::High),
        BufferInv | BufferInvl2 | BufferWbinvl1 | BufferWbinvl1Vol | BufferWbl2 | BufferGl0Inv | BufferGl1Inv => {
            Kind::Nothing
        }
        _ => return None,
    })
}

/// Loads and stores of DS with one address.
pub(crate) fn ds_kind(op: Op) -> Option<Kind> {
    Some(match op {
        DsReadB32 => load(4, Extend::Zero),
        DsReadB64 => load(8, Extend::Zero),
        DsReadB96 => load(12, Extend::Zero),
        DsReadB128 => load(16, Extend::Zero),
        DsReadU8 => load(1, Extend::Zero),
        DsReadI8 => load(1, Extend::Sign),
        DsReadU16 => load(2, Extend::Zero),
        DsReadI16 => load(2, Extend::Sign),
        DsReadU8D16 => load(1, Extend::Low),
        DsReadI8D16 => load(1, Extend::LowSign),
        DsReadU16D16 => load(2, Extend::Low),
        DsReadU8D16Hi => load(1, Extend::High),
        DsReadI8D16Hi => load(1, Extend::HighSign),
        DsReadU16D16Hi => load(2, Extend::High),
        DsWriteB8 => store(1, false),
        DsWriteB16 => store(2, false),
        DsWriteB32 => store(4, false),
        DsWriteB64 => store(8, false),
        DsWriteB96 => store(12, false),
        DsWriteB128 => store(16, false),
        DsWriteB8D16Hi => store(1, true),
        DsWriteB16D16Hi => store(2, true),
        _ => return None,
    })
}

/// Atomic operations of DS, and whether on 64 bits.
pub(crate) fn ds_atomic(op: Op) -> Option<(AtomicOp, bool)> {
    Some(match op {
        DsAddU32 | DsAddRtnU32 => (AtomicOp::Add, false),
        DsAddU64 | DsAddRtnU64 => (AtomicOp::Add, true),
        DsSubU32 | DsSubRtnU32 => (AtomicOp::Sub, false),
        DsSubU64 | DsSubRtnU64 => (AtomicOp::Sub, true),
        DsRsubU32 | DsRsubRtnU32 => (AtomicOp::Rsub, false),
        DsRsubU64 | DsRsubRtnU64 => (AtomicOp::Rsub, true),
        DsIncU32 | DsIncRtnU32 => (AtomicOp::Inc, false),
        DsIncU64 | DsIncRtnU64 => (AtomicOp::Inc, true),
        DsDecU32 | DsDecRtnU32 => (AtomicOp::Dec, false),
        DsDecU64 | DsDecRtnU64 => (AtomicOp::Dec, true),
        DsMinI32 | DsMinRtnI32 => (AtomicOp::Smin, false),
        DsMinI64 | DsMinRtnI64 => (AtomicOp::Smin, true),
        DsMaxI32 | DsMaxRtnI32 => (AtomicOp::Smax, false),
        DsMaxI64 | DsMaxRtnI64 => (AtomicOp::Smax, true),
        DsMinU32 | DsMinRtnU32 => (AtomicOp::Umin, false),
        DsMinU64 | DsMinRtnU64 => (AtomicOp::Umin, true),
        DsMaxU32 | DsMaxRtnU32 => (AtomicOp::Umax, false),
        DsMaxU64 | DsMaxRtnU64 => (AtomicOp::Umax, true),
        DsAndB32 | DsAndRtnB32 => (AtomicOp::And, false),
        DsAndB64 | DsAndRtnB64 => (AtomicOp::And, true),
        DsOrB32 | DsOrRtnB32 => (AtomicOp::Or, false),
        DsOrB64 | DsOrRtnB64 => (AtomicOp::Or, true),
        DsXorB32 | DsXorRtnB32 => (AtomicOp::Xor, false),
        DsXorB64 | DsXorRtnB64 => (AtomicOp::Xor, true),
        DsMskorB32 | DsMskorRtnB32 => (AtomicOp::Mskor, false),
        DsMskorB64 | DsMskorRtnB64 => (AtomicOp::Mskor, true),
        DsCmpstB32 | DsCmpstRtnB32 | DsCmpstoreB32 | DsCmpstoreRtnB32 => (AtomicOp::Cmpswap, false),
        DsCmpstB64 | DsCmpstRtnB64 | DsCmpstoreB64 | DsCmpstoreRtnB64 => (AtomicOp::Cmpswap, true),
        DsCmpstF32 | DsCmpstRtnF32 | DsCmpstoreF32 | DsCmpstoreRtnF32 => (AtomicOp::Fcmpswap, false),
        DsCmpstF64 | DsCmpstRtnF64 | DsCmpstoreF64 | DsCmpstoreRtnF64 => (AtomicOp::Fcmpswap, true),
        DsMinF32 | DsMinRtnF32 => (AtomicOp::Fmin, false),
        DsMinF64 | DsMinRtnF64 => (AtomicOp::Fmin, true),
        DsMaxF32 | DsMaxRtnF32 => (AtomicOp::Fmax, false),
        DsMaxF64 | DsMaxRtnF64 => (AtomicOp::Fmax, true),
        DsAddF32 | DsAddRtnF32 => (AtomicOp::Fadd, false),
        DsAddF64 | DsAddRtnF64 => (AtomicOp::Fadd, true),
        DsWrxchgRtnB32 => (AtomicOp::Swap, false),
        DsWrxchgRtnB64 => (AtomicOp::Swap, true),
        DsWrapRtnB32 => (AtomicOp::Wrap, false),
        DsPkAddF16 | DsPkAddRtnF16 => (AtomicOp::PkAddF16, false),
        DsPkAddBf16 | DsPkAddRtnBf16 => (AtomicOp::PkAddBf16, false),
        DsCondxchg32RtnB64 => (AtomicOp::Condxchg, true),
        _ => return None,
    })
}

/// Atomic operations of DS whose second operand is in LDS, too.
pub(crate) fn ds_source2(op: Op) -> Option<(AtomicOp, bool)> {
    Some(match op {
        DsAddSrc2U32 => (AtomicOp::Add, false),
        DsAddSrc2U64 => (AtomicOp::Add, true),
        DsSubSrc2U32 => (AtomicOp::Sub, false),
        DsSubSrc2U64 => (AtomicOp::Sub, true),
        DsRsubSrc2U32 => (AtomicOp::Rsub, false),
        DsRsubSrc2U64 => (AtomicOp::Rsub, true),
        DsIncSrc2U32 => (AtomicOp::Inc, false),
        DsIncSrc2U64 => (AtomicOp::Inc, true),
        DsDecSrc2U32 => (AtomicOp::Dec, false),
        DsDecSrc2U64 => (AtomicOp::Dec, true),
        DsMinSrc2I32 => (AtomicOp::Smin, false),
        DsMinSrc2I64 => (AtomicOp::Smin, true),
        DsMaxSrc2I32 => (AtomicOp::Smax, false),
        DsMaxSrc2I64 => (AtomicOp::Smax, true),
        DsMinSrc2U32 => (AtomicOp::Umin, false),
        DsMinSrc2U64 => (AtomicOp::Umin, true),
        DsMaxSrc2U32 => (AtomicOp::Umax, false),
        DsMaxSrc2U64 => (AtomicOp::Umax, true),
        DsAndSrc2B32 => (AtomicOp::And, false),
        DsAndSrc2B64 => (AtomicOp::And, true),
        DsOrSrc2B32 => (AtomicOp::Or, false),
        DsOrSrc2B64 => (AtomicOp::Or, true),
        DsXorSrc2B32 => (AtomicOp::Xor, false),
        DsXorSrc2B64 => (AtomicOp::Xor, true),
        DsMinSrc2F32 => (AtomicOp::Fmin, false),
        DsMinSrc2F64 => (AtomicOp::Fmin, true),
        DsMaxSrc2F32 => (AtomicOp::Fmax, false),
        DsMaxSrc2F64 => (AtomicOp::Fmax, true),
        DsWriteSrc2B32 => (AtomicOp::Swap, false),
        DsWriteSrc2B64 => (AtomicOp::Swap, true),
        DsAddSrc2F32 => (AtomicOp::Fadd, false),
        _ => return None,
    })
}
