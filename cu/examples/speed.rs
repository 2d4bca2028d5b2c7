// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What an instruction costs in the two engines: a loop of each on one wave. For work on the fast
//! engine.
//!
//! `cargo run --release -p vkfd-cu --example speed [NAME]`
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures")]

use std::time::Instant;
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Apertures, Flat, Group, Lds, Mode, Place, Row, Watched, Wave};
use vkfd_isa::{Operand, Target};

const CODE: u64 = 0x10_0000;
const DATA: u64 = 0x20_0000;

/// Name, processor, instructions per round, how often the code is repeated in a round, the code.
const KERNELS: &[(&str, Target, u32, usize, &[u32])] = &[
    // v_fma_f32 v8, v0, v4, v8
    (
        "fma",
        Target::Gfx900,
        32,
        4,
        &[
            0xd1cb0008, 0x04220900, 0xd1cb0009, 0x04260b01, 0xd1cb000a, 0x042a0d02, 0xd1cb000b, 0x042e0f03, 0xd1cb000c,
            0x04320900, 0xd1cb000d, 0x04360b01, 0xd1cb000e, 0x043a0d02, 0xd1cb000f, 0x043e0f03,
        ],
    ),
    // v_fma_f32 v8, v0, v1, v8
    (
        "mix",
        Target::Gfx900,
        32,
        4,
        &[
            0xd1cb0008, 0x04220300, 0xd1cb0009, 0x04260300, 0xd1cb000a, 0x042a0300, 0xd1cb000b, 0x042e0300, 0x68181b0c,
            0x80060706, 0x7c821100, 0xdc508000, 0x0e040002,
        ],
    ),
    // v_fma_f32 v8, s8, v1, v8
    ("fma_sgpr", Target::Gfx900, 16, 16, &[0xd1cb0008, 0x04220208]),
    // v_add_u32 v12, v12, v13
    ("add_u32", Target::Gfx900, 16, 16, &[0x68181b0c]),
    // v_mul_lo_u32 v12, v12, v13
    ("mul_lo", Target::Gfx900, 16, 16, &[0xd285000c, 0x00021b0c]),
    // v_cmp_lt_f32 vcc, v0, v8
    ("cmp", Target::Gfx900, 16, 16, &[0x7c821100]),
    // v_cndmask_b32 v12, v13, v14, vcc
    ("cndmask", Target::Gfx900, 16, 16, &[0x00181d0d]),
    // v_add_co_u32 v12, vcc, v12, v13
    ("addco", Target::Gfx900, 16, 16, &[0x32181b0c]),
    // s_add_u32 s6, s6, s7
    ("salu", Target::Gfx900, 16, 16, &[0x80060706]),
    // global_load_dword v14, v2, s[4:5]
    ("load", Target::Gfx900, 16, 16, &[0xdc508000, 0x0e040002]),
    // global_load_dword v14, v[16:17], off
    ("load64", Target::Gfx900, 16, 16, &[0xdc508000, 0x0e7f0010]),
    // global_load_dwordx4 v[20:23], v3, s[4:5]
    ("load_x4", Target::Gfx900, 16, 16, &[0xdc5c8000, 0x14040003]),
    // global_load_dword v14, v18, s[4:5]
    ("load_any", Target::Gfx900, 16, 16, &[0xdc508000, 0x0e040012]),
    // global_store_dword v2, v14, s[4:5]
    ("store", Target::Gfx900, 16, 16, &[0xdc708000, 0x00040e02]),
    // ds_read_b32 v14, v2
    ("ds_read", Target::Gfx900, 16, 16, &[0xd86c0000, 0x0e000002]),
    // ds_read2_b32 v[14:15], v2 offset1:1
    ("ds_read2", Target::Gfx900, 16, 16, &[0xd86e0100, 0x0e000002]),
    // ds_read_b128 v[20:23], v3
    ("ds_read_b128", Target::Gfx900, 16, 16, &[0xd9fe0000, 0x14000003]),
    // ds_write_b32 v2, v14
    ("ds_write", Target::Gfx900, 16, 16, &[0xd81a0000, 0x00000e02]),
    // s_load_dwordx4 s[8:11], s[4:5], 0x0
    ("s_load", Target::Gfx900, 16, 16, &[0xc00a0202, 0x00000000]),
    // v_mad_u64_u32 v[20:21], vcc, v0, v1, v[20:21]
    ("mad64", Target::Gfx900, 16, 16, &[0xd1e86a14, 0x04520300]),
    // v_lshlrev_b64 v[20:21], 2, v[20:21]
    ("lshl64", Target::Gfx900, 16, 16, &[0xd28f0014, 0x00022882]),
    // v_fma_f64 v[24:25], v[26:27], v[26:27], v[24:25]
    ("fma64", Target::Gfx900, 16, 16, &[0xd1cc0018, 0x0462351a]),
    // v_rcp_f32 v14, v0
    ("rcp", Target::Gfx900, 16, 16, &[0x7e1c4500]),
    // v_exp_f32 v14, v0
    ("exp", Target::Gfx900, 16, 16, &[0x7e1c4100]),
    // v_mul_f32 v14, -v0, v1
    ("mul_neg", Target::Gfx900, 16, 16, &[0xd105000e, 0x20020300]),
    // v_add_u32_sdwa v14, v0, v1 dst_sel:DWORD src0_sel:WORD_0 src1_sel:DWORD
    ("sdwa", Target::Gfx900, 16, 16, &[0x681c02f9, 0x06041600]),
    // v_add_f32_dpp v14, v0, v1 row_shr:1 row_mask:0xf bank_mask:0xf
    ("dpp", Target::Gfx900, 16, 16, &[0x021c02fa, 0xff011100]),
    // v_cvt_f16_f32 v14, v0
    ("cvt_f16", Target::Gfx900, 16, 16, &[0x7e1c1500]),
    // v_pk_fma_f16 v14, v0, v1, v14
    ("pk_fma16", Target::Gfx900, 16, 16, &[0xd38e400e, 0x1c3a0300]),
    // ds_bpermute_b32 v14, v2, v0
    ("bperm", Target::Gfx900, 16, 16, &[0xd87e0000, 0x0e000002]),
    // v_mfma_f32_32x32x8f16 a[0:15], v[30:31], v[32:33], a[0:15]
    ("mfma_f16_32", Target::Gfx90a, 16, 16, &[0xd3cc8000, 0x0402411e]),
    // v_mfma_f32_16x16x16f16 a[0:3], v[30:31], v[32:33], a[0:3]
    ("mfma_f16_16", Target::Gfx90a, 16, 16, &[0xd3cd8000, 0x0402411e]),
    // v_mfma_f32_32x32x2f32 a[0:15], v30, v31, a[0:15]
    ("mfma_f32_32", Target::Gfx90a, 16, 16, &[0xd3c48000, 0x04023f1e]),
    // v_pk_fma_f32 v[24:25], v[26:27], v[26:27], v[24:25]
    ("pk_fma32", Target::Gfx90a, 16, 16, &[0xd3b04018, 0x1c62351a]),
    // v_accvgpr_read_b32 v14, a0
    ("acc_read", Target::Gfx90a, 16, 16, &[0xd3d8400e, 0x18000100]),
];

/// Rounds of the code repeated, as many as s0 says.
fn rounds_of(code: &[u32], times: usize) -> Vec<u32> {
    let mut words = code.repeat(times);
    // From behind the branch to the beginning.
    let back = -(words.len() as i16 + 3);
    // s_sub_u32 s0, s0, 1; s_cmp_lg_u32 s0, 0; s_cbranch_scc1; s_endpgm
    words.extend([0x8080_8100, 0xbf07_8000, 0xbf85_0000 | u32::from(back as u16), 0xbf81_0000]);
    words
}

fn wave(target: Target, rounds: u32) -> Wave {
    let mut wave = Wave {
        target,
        lanes: 64,
        pc: CODE,
        scalar: [0; 128],
        scc: false,
        mode: Mode::DEFAULT,
        rows: vec![Row::ZERO; 96],
        acc: 64,
        sgprs: 100,
        flat_scratch: 0,
        trapsts: 0,
        done: 0,
        index: 0,
    };
    wave.set_pair(Operand::EXEC, u64::MAX);
    wave.scalar[0] = rounds;
    wave.set_pair(4, DATA);
    for lane in 0..64 {
        let f = 0.5 + lane as f32 / 1000.0;
        for row in [0, 1, 4, 5, 6, 7, 8, 9, 10, 11] {
            wave.rows[row].0[lane] = f.to_bits();
        }
        wave.rows[2].0[lane] = 4 * lane as u32;
        wave.rows[3].0[lane] = 16 * lane as u32;
        wave.rows[16].0[lane] = DATA as u32 + 4 * lane as u32;
        wave.rows[18].0[lane] = (lane as u32 * 37 % 64) * 4;
        for row in 30..34 {
            wave.rows[row].0[lane] = 0x3800_3a00;
        }
    }
    wave
}

fn main() {
    let only = std::env::args().nth(1);
    println!("{:14} {:>10} {:>12} {:>8}", "", "fast ns", "reference ns", "times");
    for (name, target, count, times, code) in KERNELS {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let mut world = Flat::new(CODE, 512);
        world.write_words(CODE, &rounds_of(code, *times));
        let mut group = Group {
            lds: Lds::new(4096),
            apertures: Apertures { shared: 1 << 16, private: 2 << 16 },
            watch: Watched::default(),
            place: Place::default(),
        };
        let mut engine = Engine::new(*target);
        let mut best = [f64::INFINITY; 2];
        for _ in 0..15 {
            let rounds = 2000;
            let mut one = wave(*target, rounds);
            let begin = Instant::now();
            let exit = engine.run(&mut one, &mut group, &mut world, u32::MAX);
            best[0] = best[0].min(begin.elapsed().as_secs_f64() / f64::from(rounds * count));
            assert_eq!(exit, vkfd_cu::Exit::End, "{name}");
        }
        for _ in 0..3 {
            let rounds = 10;
            let mut one = wave(*target, rounds);
            let begin = Instant::now();
            reference::run(&mut one, &mut group, &mut world, u32::MAX);
            best[1] = best[1].min(begin.elapsed().as_secs_f64() / f64::from(rounds * count));
        }
        println!("{name:14} {:10.2} {:12.1} {:8.1}", best[0] * 1e9, best[1] * 1e9, best[1] / best[0]);
    }
}
