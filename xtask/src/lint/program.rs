// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random kernels in OpenCL C, for a compiler.
//!
//! A kernel is a tree of statements over a few variables of each type, with loops, branches, calls,
//! LDS, scratch, atomics and the target's own operations. It need not end or make sense: nobody
//! runs it. The same seed gives the same text.

use std::fmt::Write as _;

use vkfd_targets::Target;

/// Random numbers (splitmix64).
pub(super) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn one<'a>(&mut self, list: &[&'a str]) -> &'a str {
        let at = self.below(list.len() as u64);
        list[usize::try_from(at).unwrap_or(0)]
    }
}

/// Operations that only some targets have: features, and a statement. `I`, `F`, `D`, `V` and `W`
/// stand for variables.
#[rustfmt::skip]
const OWN: &[(&[Target], &str)] = {
    // NEW TARGET: which operations of its own it has
    use Target::{Gfx1030, Gfx1100, Gfx900, Gfx90a, Gfx942};
    const ALL: &[Target] = &Target::ALL;
    const CDNA: &[Target] = &[Gfx90a, Gfx942];
    const RDNA: &[Target] = &[Gfx1030, Gfx1100];
    &[
        (ALL, "I = __builtin_amdgcn_readfirstlane(I);"),
        (ALL, "I = __builtin_amdgcn_readlane(I, __builtin_amdgcn_readfirstlane(I));"),
        (ALL, "I = __builtin_amdgcn_readlane(I, 7);"),
        (ALL, "I = __builtin_amdgcn_ds_bpermute(I, I);"),
        (ALL, "I = __builtin_amdgcn_update_dpp(I, I, 0x111, 0xf, 0xf, false);"),
        (ALL, "I = __builtin_amdgcn_update_dpp(0, I, 0x1b, 0xf, 0xf, true) + I;"),
        (ALL, "I = __builtin_amdgcn_mov_dpp(I, 0x141, 0xa, 0xf, false);"),
        (ALL, "F = __builtin_amdgcn_rcpf(F); F = F * F;"),
        (ALL, "F = __builtin_amdgcn_sqrtf(F) + __builtin_amdgcn_rsqf(F);"),
        (ALL, "F = __builtin_amdgcn_logf(F); F += __builtin_amdgcn_exp2f(F);"),
        (ALL, "D = __builtin_amdgcn_rcp(D); D = D * D;"),
        (ALL, "F = F / F;"),
        (ALL, "D = D / D;"),
        (ALL, "F = __builtin_amdgcn_div_fmasf(F, F, F, I > 3);"),
        (ALL, "D = __builtin_amdgcn_div_fmas(D, D, D, I == 3);"),
        (&[Gfx900, Gfx90a, Gfx942, Gfx1030], "I = (int)__builtin_amdgcn_s_memtime();"),
        (ALL, "__builtin_amdgcn_s_sleep(1);"),
        (ALL, "__builtin_amdgcn_sched_barrier(0);"),
        (ALL, "__builtin_amdgcn_s_barrier();"),
        (ALL, "__builtin_amdgcn_s_setprio(1);"),
        (ALL, "__builtin_amdgcn_wave_barrier();"),
        (ALL, "__builtin_amdgcn_s_setreg(6145, __builtin_amdgcn_readfirstlane(I)); I += __builtin_amdgcn_s_getreg(6145);"),
        (ALL, "__builtin_amdgcn_s_setreg(2177, 3);"),
        (ALL, "I = __builtin_amdgcn_perm(I, I, 0x01000302);"),
        (ALL, "I = (int)__builtin_amdgcn_ballot_w64(I > 5);"),
        (ALL, "I = __builtin_amdgcn_mbcnt_lo(I, I);"),
        (ALL, "I += (int)__builtin_amdgcn_uicmp(I, I, 33);"),
        (ALL, "if (__builtin_amdgcn_class(D, I)) I += 5;"),
        (ALL, "if (__builtin_amdgcn_is_shared((const void *)pointer)) I += 9;"),
        (ALL, "F = __builtin_amdgcn_ds_faddf((__local float *)shared, F, 0, 0, false);"),
        (ALL, "I += __builtin_amdgcn_sad_u8(I, I, I);"),
        (ALL, "I = __builtin_amdgcn_raw_buffer_load_b32(resource, I, 0, 0);"),
        (ALL, "W = __builtin_amdgcn_raw_buffer_load_b128(resource, I, 0, 0);"),
        (ALL, "__builtin_amdgcn_raw_buffer_store_b128((uint4)(I, I, I, I), resource, I, 0, 0); W = W + (uint4)(1);"),
        (ALL, "__builtin_amdgcn_raw_buffer_store_b32(I, resource, I, __builtin_amdgcn_readfirstlane(I), 0);"),
        (CDNA, "V = __builtin_amdgcn_mfma_f32_4x4x1f32(F, F, V, 0, 0, 0);"),
        (CDNA, "V = __builtin_amdgcn_mfma_f32_16x16x4f32(F, F, V, 0, 0, 0);"),
        (CDNA, "V = __builtin_amdgcn_mfma_f32_16x16x16f16(H4, H4, V, 0, 0, 0);"),
        (CDNA, "X = __builtin_amdgcn_mfma_f32_32x32x2f32(F, F, X, 0, 0, 0);"),
        (CDNA, "X = __builtin_amdgcn_mfma_f32_32x32x8f16(H4, H4, X, 0, 0, 0);"),
        (CDNA, "X = __builtin_amdgcn_mfma_f32_16x16x1f32(F, F, X, 0, 0, 0);"),
        (CDNA, "D4 = __builtin_amdgcn_mfma_f64_16x16x4f64(D, D, D4, 0, 0, 0);"),
        (CDNA, "D = __builtin_amdgcn_mfma_f64_4x4x4f64(D, D, D, 0, 0, 0);"),
        (CDNA, "V.yzw = V.xyz; F += V.x;"),
        (CDNA, "X.s3 = F; F += X.s9;"),
        (CDNA, "D4.x = D; D += D4.y;"),
        (CDNA, "D = __builtin_fma(D, D, D);"),
        (&[Gfx942], "V = __builtin_amdgcn_mfma_f32_16x16x8_xf32((float2)(F, F), (float2)(F, F), V, 0, 0, 0);"),
        (&[Gfx942], "V = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8((long)I, (long)I, V, 0, 0, 0);"),
        (&[Gfx942], "X = __builtin_amdgcn_mfma_f32_32x32x4_xf32((float2)(F, F), (float2)(F, F), X, 0, 0, 0);"),
        (&[Gfx942], "V = __builtin_amdgcn_smfmac_f32_16x16x32_f16(H4, H8, V, I, 0, 0);"),
        (&[Gfx90a, Gfx942, Gfx1030, Gfx1100], "F = __builtin_amdgcn_fdot2((half2)(h0, h1), (half2)(h1, h0), F, false);"),
        (&[Gfx90a, Gfx942, Gfx1030], "I = __builtin_amdgcn_sdot4(I, I, I, false);"),
        (&[Gfx90a, Gfx942, Gfx1030], "I = __builtin_amdgcn_sdot8(I, I, I, false);"),
        (CDNA, "F = __builtin_amdgcn_global_atomic_fadd_f32((__global float *)out + I, F);"),
        (CDNA, "D = __builtin_amdgcn_global_atomic_fadd_f64((__global double *)out + I, D);"),
        (CDNA, "D = __builtin_amdgcn_flat_atomic_fadd_f64((double *)pointer, D);"),
        (RDNA, "I = __builtin_amdgcn_permlane16(I, I, 0x3210, 0x7654, false, false);"),
        (RDNA, "I = __builtin_amdgcn_permlanex16(I, I, __builtin_amdgcn_readfirstlane(I), 0x7654, true, false);"),
        (RDNA, "I = __builtin_amdgcn_mov_dpp8(I, 0x53977);"),
        (&[Gfx1100], "I = __builtin_amdgcn_permlane64(I);"),
        (&[Gfx1100], "I += (int)__builtin_amdgcn_s_sendmsg_rtn(0x85);"),
    ]
};

const STATEMENTS: &[&str] = &[
    "I = in[I & 1023];",
    "I = in[__builtin_amdgcn_workitem_id_x() + 7];",
    "I += table[I & 15];",
    "F = ((const __global float *)in)[I & 255];",
    "D = ((const __global double *)in)[I & 63];",
    "W = ((const __global uint4 *)in)[I & 63];",
    "I += ((const __global short *)in)[I] + ((const __global uchar *)in)[I];",
    "h0 = ((const __global half *)in)[I & 77]; h1 = ((const __global half *)in)[I & 78];",
    "out[I & 1023] = I;",
    "((__global double *)out)[I & 63] = D;",
    "((__global uint4 *)out)[I & 63] = W; W = W * (uint4)(3, I, 5, 7);",
    "((__global uint4 *)out)[I & 63] = W; W.x = I; W.y = I; W.z = I; W.w = I;",
    "((__global uint3 *)out)[I & 63] = W.xyz; W = (uint4)(I);",
    "((__global uchar *)out)[I & 511] = (uchar)I;",
    "shared[I & 127] = I;",
    "I += shared[I & 127];",
    "W = ((__local uint4 *)shared)[I & 15];",
    "((__local ulong *)shared)[I & 31] = (ulong)I * I;",
    "F += ((__local float *)shared)[I & 15] * ((__local float *)shared)[I & 31];",
    "local_array[I & 15] = I;",
    "I += local_array[I & 15];",
    "I += pointer[I & 7];",
    "pointer[I & 7] = I;",
    "pointer = (I & 1) ? (int *)shared : (int *)out;",
    "pointer = (I & 1) ? (int *)local_array : (int *)out;",
    "W = *(uint4 *)pointer; I += W.x;",
    "I = ADD((__global int *)out + (I & 15), I);",
    "MAX((__global int *)out + (I & 15), I);",
    "I = ADD((__local int *)shared + (I & 15), I);",
    "OR((__local int *)shared + (I & 15), I);",
    "__scoped_atomic_compare_exchange_n((__global int *)out + (I & 15), &I, I, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);",
    "I = __scoped_atomic_load_n((__global int *)out, __ATOMIC_ACQUIRE, __MEMORY_SCOPE_DEVICE);",
    "__scoped_atomic_store_n((__global int *)out, I, __ATOMIC_RELEASE, __MEMORY_SCOPE_SYSTEM);",
    "BARRIER",
    "BARRIER I += shared[I & 63];",
    "__builtin_amdgcn_fence(__ATOMIC_SEQ_CST, \"agent\");",
    "I = I * I + 7;",
    "I = I / (I | 1);",
    "I ^= I >> (I & 31);",
    "I = (int)((long)I * I >> 7);",
    "I = (I > I) ? I : ~I;",
    "F = F * F + F;",
    "F = (F > F) ? F : -F;",
    "I = (int)F;",
    "F = (float)I;",
    "D = D * D + (double)F;",
    "D = (D < D) ? D : (double)I;",
    "h0 = h0 * h1 + (half)F; h1 = h0 + (half)2.0f;",
    "h1 = h0 / h1; F += (float)h1;",
    "I = called(in, I, F);",
    "F = other(&F, I);",
    "I = __builtin_popcount(I) + __builtin_clz(I | 1);",
    "W += (uint4)(I, I, I, I) >> W;",
    "I += k;",
    "I += k * I + (k >> 3);",
];

/// A file of kernels for a target, and the compiler's options for it.
pub(super) fn file(random: &mut Random, target: Target, kernels: u64) -> (String, Vec<String>) {
    let mut text = String::from(
        "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n\
         #define ADD(at, x) __scoped_atomic_fetch_add(at, x, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE)\n\
         #define MAX(at, x) __scoped_atomic_fetch_max(at, x, __ATOMIC_ACQ_REL, __MEMORY_SCOPE_DEVICE)\n\
         #define OR(at, x) __scoped_atomic_fetch_or(at, x, __ATOMIC_RELEASE, __MEMORY_SCOPE_WRKGRP)\n\
         #define BARRIER __builtin_amdgcn_fence(__ATOMIC_RELEASE, \"workgroup\"); __builtin_amdgcn_s_barrier(); \
         __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"workgroup\");\n\
         __constant int table[16] = {1, 5, 2, 7, 3, 9, 4, 8, 1, 5, 2, 7, 3, 9, 4, 8};\n\
         __attribute__((noinline)) int called(const __global int *in, int a, float b) {\n\
         \x20 return a > 3 ? in[a] + (int)b : in[a + 1] * 3;\n}\n\
         __attribute__((noinline)) float other(float *a, int b) {\n\
         \x20 *a = *a + b; return b > 9 ? *a * 2 : called((const __global int *)0, b, *a);\n}\n",
    );
    for n in 0..kernels {
        kernel(random, target, n, &mut text);
    }
    let mut options = vec![format!("-O{}", random.one(&["0", "1", "2", "2", "3", "3", "s"]))];
    if target.is_rdna() && random.below(3) == 0 {
        options.push("-mwavefrontsize64".into());
    }
    if target.is_rdna() && random.below(4) == 0 {
        options.push("-mcumode".into());
    }
    if target.is_cdna() && random.below(6) == 0 {
        options.push("-mtgsplit".into());
    }
    (text, options)
}

fn kernel(random: &mut Random, target: Target, n: u64, text: &mut String) {
    let group = random.one(&["64", "128", "256", "1024"]);
    let _ = write!(
        text,
        "\n__attribute__((reqd_work_group_size({group}, 1, 1)))\n\
         __kernel void k{n}(const __global int *in, __global int *out, int k, float x) {{\n\
         \x20 __local int shared[256];\n  int local_array[16] = {{k, 3, 5}};\n  int *pointer = (int *)out;\n\
         \x20 int i0 = __builtin_amdgcn_workitem_id_x(), i1 = k, i2 = __builtin_amdgcn_workgroup_id_x(), i3 = in[i0];\n\
         \x20 float f0 = x, f1 = x * 2, f2 = i0;\n  double d0 = x, d1 = i3;\n  half h0 = 1, h1 = 2;\n\
         \x20 uint4 w0 = (uint4)(k), w1 = (uint4)(i0);\n"
    );
    text.push_str(
        "  __amdgpu_buffer_rsrc_t resource = __builtin_amdgcn_make_buffer_rsrc((void *)out, 0, 4096, 0x27000);\n",
    );
    if target.is_cdna() {
        text.push_str(
            "  float4 v0 = (float4)(x), v1 = (float4)(i0);\n  float16 x0 = (float16)(x), x1 = (float16)(i0);\n\
             \x20 half4 e0 = (half4)(h0), e1 = (half4)(h1);\n  double4 q0 = (double4)(d0), q1 = (double4)(d1);\n\
             \x20 half8 g0 = (half8)(h0);\n",
        );
    }
    let count = 4 + random.below(24);
    statements(random, target, count, 0, text);
    text.push_str("  out[i0] = i0 + i1 + i2 + i3 + (int)(f0 + f1 + f2) + (int)(d0 + d1) + (int)(h0 + h1);\n");
    text.push_str("  out[i1 & 63] = w0.x + w0.y + w0.z + w0.w + w1.x + w1.y + w1.z + w1.w + local_array[i2 & 15];\n");
    if target.is_cdna() {
        text.push_str(
            "  ((__global float4 *)out)[i2] = v0 + v1;\n  ((__global float16 *)out)[i2] = x0 + x1;\n\
             \x20 ((__global double4 *)out)[i2] = q0 + q1;\n",
        );
    }
    text.push_str("}\n");
}

fn statements(random: &mut Random, target: Target, count: u64, depth: usize, text: &mut String) {
    for _ in 0..count {
        let indent = "  ".repeat(depth + 1);
        match random.below(12) {
            0 if depth < 3 => {
                let condition = random.one(&["I > I", "k > 4", "F < F", "D < D", "(I & 3) == 0", "W.x == W.y"]);
                let _ = writeln!(text, "{indent}if ({}) {{", filled(random, condition));
                let inner = 1 + random.below(6);
                statements(random, target, inner, depth + 1, text);
                if random.below(2) == 0 {
                    let _ = writeln!(text, "{indent}}} else {{");
                    statements(random, target, inner, depth + 1, text);
                }
                let _ = writeln!(text, "{indent}}}");
            }
            1 if depth < 3 => {
                let bound = random.one(&["k", "4", "9", "I & 7", "table[k & 15]"]);
                let bound = filled(random, bound);
                let _ = writeln!(text, "{indent}for (int n{depth} = 0; n{depth} < ({bound}); ++n{depth}) {{");
                let inner = 1 + random.below(6);
                statements(random, target, inner, depth + 1, text);
                if random.below(3) == 0 {
                    let condition = filled(random, "I == 77");
                    let _ = writeln!(text, "{indent}  if ({condition}) break;");
                }
                let _ = writeln!(text, "{indent}}}");
            }
            2..=5 => {
                let own: Vec<&str> =
                    OWN.iter().filter(|(targets, _)| targets.contains(&target)).map(|(_, text)| *text).collect();
                let statement = random.one(&own);
                let _ = writeln!(text, "{indent}{}", filled(random, statement));
            }
            _ => {
                let statement = random.one(STATEMENTS);
                let _ = writeln!(text, "{indent}{}", filled(random, statement));
            }
        }
    }
}

/// A statement with variables in the places of the letters.
fn filled(random: &mut Random, statement: &str) -> String {
    const LETTERS: [(&str, &[&str]); 9] = [
        ("H4", &["e0", "e1"]),
        ("H8", &["g0"]),
        ("D4", &["q0", "q1"]),
        ("I", &["i0", "i1", "i2", "i3"]),
        ("F", &["f0", "f1", "f2"]),
        ("D", &["d0", "d1"]),
        ("V", &["v0", "v1"]),
        ("W", &["w0", "w1"]),
        ("X", &["x0", "x1"]),
    ];
    let mut out = String::new();
    let mut rest = statement;
    let mut inside = false;
    while let Some(first) = rest.chars().next() {
        let found = LETTERS.iter().find(|(letter, _)| {
            let behind = rest.strip_prefix(letter).map(|rest| rest.chars().next());
            behind.is_some_and(|next| !next.is_some_and(|next| next.is_alphanumeric() || next == '_'))
        });
        match found {
            Some((letter, variables)) if !inside => {
                out.push_str(random.one(variables));
                rest = &rest[letter.len()..];
                inside = true;
            }
            _ => {
                out.push(first);
                rest = &rest[first.len_utf8()..];
                inside = first.is_alphanumeric() || first == '_';
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_become_variables_and_names_stay() {
        let text = filled(&mut Random::new(1), "I = D4.x + CLK_I + (F)");
        assert!(
            text.starts_with('i') && text.contains(" q") && text.contains("CLK_I") && text.ends_with(')'),
            "{text}"
        );
    }

    #[test]
    fn the_same_seed_gives_the_same_file() {
        let of = |seed| file(&mut Random::new(seed), Target::Gfx942, 3);
        assert_eq!(of(5), of(5));
        assert_ne!(of(5), of(6));
    }
}
