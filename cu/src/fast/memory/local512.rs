// SPDX-License-Identifier: GPL-2.0 OR MIT
//! LDS loads of one and two words on processors with AVX-512: those of [`super::local`], sixteen
//! lanes at a time.
//!
//! Such lanes often read within 128 bytes: side by side, one word from each pair, or all the same
//! one. Two vectors have these bytes, and a permutation takes each lane's words out of them. Other
//! lanes are gathered. No inactive lane is read for, but bytes between active ones are.
//!
//! Limits: loads of three and four words are those of AVX2. LDS of less than 128 bytes is left to
//! the handler for AVX2, which is the step's rest.

use crate::fast::step::{Cx, Flow, Run, Step};
use std::arch::asm;
use vkfd_isa::Op;

/// Bytes of two vectors.
const WINDOW: usize = 128;

/// Where the words of eight lanes are that two gathers have loaded: the first ones, and the second.
static PAIRS: [[u32; 16]; 2] = {
    let mut places = [[0; 16]; 2];
    let mut lane = 0;
    while lane < 16 {
        places[0][lane] = 2 * lane as u32;
        places[1][lane] = 2 * lane as u32 + 1;
        lane += 1;
    }
    places
};

/// Looks whether sixteen lanes are in range: k6 gets a bit for each that is not.
macro_rules! check {
    ($address:literal, $lanes:literal, $offset:literal) => {
        concat!(
            "vpaddd zmm24, ",
            $address,
            ", ",
            $offset,
            "\n",
            "vpcmpud k5{{",
            $lanes,
            "}}, zmm24, zmm22, 6\n",
            "korw k6, k6, k5\n",
        )
    };
}

/// Takes words out of the two vectors at `place`, by the places in zmm26. zmm26 and zmm28 get them.
macro_rules! take {
    (1) => {
        "vmovdqu32 zmm27, [{lds} + {place}]\nvpermi2d zmm26, zmm27, [{lds} + {place} + 64]\n"
    };
    (2) => {
        concat!("vpsubd zmm28, zmm26, zmm31\n", take!(1), "vpermi2d zmm28, zmm27, [{lds} + {place} + 64]\n")
    };
}

/// Loads words from the places in zmm24. zmm26 and zmm28 get them.
macro_rules! gather {
    (1, $lanes:literal) => {
        concat!("kmovw k5, ", $lanes, "\nvpgatherdd zmm26{{k5}}, dword ptr [{lds} + zmm24]\n")
    };
    (2, $lanes:literal) => {
        concat!(
            "vextracti64x4 ymm25, zmm24, 1\n",
            "kmovw k5, ",
            $lanes,
            "\n",
            "kshiftrw k7, k5, 8\n",
            "vpgatherdq zmm27{{k5}}, qword ptr [{lds} + ymm24]\n",
            "vpgatherdq zmm29{{k7}}, qword ptr [{lds} + ymm25]\n",
            "vmovdqu32 zmm26, [{pairs}]\n",
            "vmovdqu32 zmm28, [{pairs} + 64]\n",
            "vpermi2d zmm26, zmm27, zmm29\n",
            "vpermi2d zmm28, zmm27, zmm29\n",
        )
    };
}

/// Writes the words of sixteen lanes.
macro_rules! put {
    (1, $to:literal, $lanes:literal) => {
        concat!("vmovdqu32 [{to} + ", $to, "]{{", $lanes, "}}, zmm26\n")
    };
    (2, $to:literal, $lanes:literal) => {
        concat!(put!(1, $to, $lanes), "vmovdqu32 [{to} + 256 + ", $to, "]{{", $lanes, "}}, zmm28\n")
    };
}

/// Loads for sixteen lanes. Their distances from the first one in words are numbers of places, if
/// a distance of any other number of bytes is a large number: it is rotated.
macro_rules! lanes {
    ($n:tt, $address:literal, $lanes:literal, $offset:literal, $to:literal) => {
        concat!(
            "vpaddd zmm24, ",
            $address,
            ", ",
            $offset,
            "\n",
            "vpbroadcastd zmm25, xmm24\n",
            "vpminud zmm25, zmm25, zmm23\n",
            "vmovd {place:e}, xmm25\n",
            "vpsubd zmm26, zmm24, zmm25\n",
            "vprord zmm26, zmm26, 2\n",
            "vpcmpud k5{{",
            $lanes,
            "}}, zmm26, zmm30, 6\n",
            "kortestw k5, k5\n",
            "jnz 2f\n",
            take!($n),
            "jmp 3f\n",
            "2:\n",
            gather!($n, $lanes),
            "3:\n",
            put!($n, $to, $lanes),
        )
    };
}

/// A handler of loads of `$n` words: the checks and the loads, of one address or two.
macro_rules! handler {
    ($name:ident, $n:tt, $checks:expr, $loads:expr) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn $name(step: &Step, cx: &mut Cx) -> Flow {
            let len = cx.group.lds.len();
            if len < WINDOW {
                // SAFETY: the caller's.
                return unsafe { (step.rest)(step, cx) };
            }
            let furthest_place = (WINDOW / 4 - $n) as u32;
            #[cfg(debug_assertions)]
            let furthest_place = if step.guesses { u32::MAX } else { furthest_place };
            let mut outside = 1u32;
            // SAFETY: the step's rows exist, and nothing refers to them; the processor has AVX-512
            // F and DQ. No lane is read for that is not in LDS, and no vector is loaded from beyond
            // its end. All addresses are read before anything is written.
            unsafe {
                asm!(
                    "vpbroadcastd zmm20, {offset:e}",
                    "shr {offset}, 32",
                    "vpbroadcastd zmm21, {offset:e}",
                    "vpbroadcastd zmm22, {limit_word:e}",
                    "vpbroadcastd zmm23, {furthest_word:e}",
                    "vpbroadcastd zmm30, {most_word:e}",
                    "vpternlogd zmm31, zmm31, zmm31, 0xff",
                    "kmovw k1, {exec:e}",
                    "shr {exec}, 16",
                    "kmovw k2, {exec:e}",
                    "shr {exec}, 16",
                    "kmovw k3, {exec:e}",
                    "shr {exec}, 16",
                    "kmovw k4, {exec:e}",
                    "vmovdqu32 zmm16, [{address}]",
                    "vmovdqu32 zmm17, [{address} + 64]",
                    "vmovdqu32 zmm18, [{address} + 128]",
                    "vmovdqu32 zmm19, [{address} + 192]",
                    "kxorw k6, k6, k6",
                    $checks,
                    "kortestw k6, k6",
                    "jnz 4f",
                    "xor {outside:e}, {outside:e}",
                    $loads,
                    "4:",
                    "/* {pairs} */",
                    offset = inout(reg) step.imm => _,
                    exec = inout(reg) cx.exec() => _,
                    limit_word = in(reg) (len - 4 * $n) as u32,
                    furthest_word = in(reg) (len - WINDOW) as u32,
                    most_word = in(reg) furthest_place,
                    outside = inout(reg) outside,
                    address = in(reg) cx.row(step.src[0]),
                    lds = in(reg) cx.group.lds.as_ptr(),
                    to = in(reg) cx.row_mut(step.dst),
                    pairs = in(reg) PAIRS.as_ptr(),
                    place = out(reg) _,
                    out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                    out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                    out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                    out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
                    out("k1") _, out("k2") _, out("k3") _, out("k4") _,
                    out("k5") _, out("k6") _, out("k7") _,
                    options(nostack)
                );
            }
            if outside != 0 {
                return step.slow(cx);
            }
            step.done(cx)
        }
    };
}

/// The checks of an address, or of the first and the second one.
macro_rules! checks {
    ($offset:literal) => {
        concat!(
            check!("zmm16", "k1", $offset),
            check!("zmm17", "k2", $offset),
            check!("zmm18", "k3", $offset),
            check!("zmm19", "k4", $offset),
        )
    };
}

/// The loads from an address, into rows from a place behind the first one on.
macro_rules! loads {
    ($n:tt, $offset:literal, $a:literal, $b:literal, $c:literal, $d:literal) => {
        concat!(
            lanes!($n, "zmm16", "k1", $offset, $a),
            lanes!($n, "zmm17", "k2", $offset, $b),
            lanes!($n, "zmm18", "k3", $offset, $c),
            lanes!($n, "zmm19", "k4", $offset, $d),
        )
    };
}

handler!(word, 1, checks!("zmm20"), loads!(1, "zmm20", "0", "64", "128", "192"));
handler!(pair, 2, checks!("zmm20"), loads!(2, "zmm20", "0", "64", "128", "192"));
handler!(
    two_words,
    1,
    concat!(checks!("zmm20"), checks!("zmm21")),
    concat!(loads!(1, "zmm20", "0", "64", "128", "192"), loads!(1, "zmm21", "256", "320", "384", "448"))
);
handler!(
    two_pairs,
    2,
    concat!(checks!("zmm20"), checks!("zmm21")),
    concat!(loads!(2, "zmm20", "0", "64", "128", "192"), loads!(2, "zmm21", "512", "576", "640", "704"))
);

/// The handler of a load, for processors with AVX-512 F and DQ.
pub(super) const fn handler(op: Op) -> Option<Run> {
    Some(match op {
        Op::DsReadB32 => word,
        Op::DsReadB64 => pair,
        Op::DsRead2B32 | Op::DsRead2st64B32 => two_words,
        Op::DsRead2B64 | Op::DsRead2st64B64 => two_pairs,
        _ => return None,
    })
}
