// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Five loops, interpreted and translated, by turns: cycles of the time stamp counter per wave
//! instruction, the least of several runs. `cargo run --release -p vkfd-cu --example loops`
#![allow(clippy::cast_precision_loss, missing_docs, reason = "an example")]

#[cfg(not(target_arch = "x86_64"))]
fn main() {}

#[cfg(target_arch = "x86_64")]
fn main() {
    measure::all();
}

#[cfg(target_arch = "x86_64")]
mod measure {
    use vkfd_cu::fast::native::{Accesses, Translation, Width};
    use vkfd_cu::fast::Engine;
    use vkfd_cu::{Apertures, Exit, Flat, Group, Lds, Mode, Place, Row, Watched, Wave};
    use vkfd_isa::{Operand, Target};

    const BASE: u64 = 0x10_0000_0000;
    const DATA: u64 = BASE + 0x1_0000;
    const ROUNDS: u32 = 4000;
    const END: u32 = 0xbf81_0000;

    /// A loop of s20 rounds: its words, and its instructions.
    struct Loop {
        name: &'static str,
        words: Vec<u32>,
        instructions: u64,
    }

    fn loops() -> [Loop; 5] {
        // v_fma_f32 v8, v0, v4, v8 and so on to v15, four times; s_add_i32 s20, s20, -1;
        // s_cmp_lg_u32 s20, 0; s_cbranch_scc1
        let chain = [
            0xd1cb_0008_u32,
            0x0422_0900,
            0xd1cb_0009,
            0x0426_0b01,
            0xd1cb_000a,
            0x042a_0d02,
            0xd1cb_000b,
            0x042e_0f03,
            0xd1cb_000c,
            0x0432_0900,
            0xd1cb_000d,
            0x0436_0b01,
            0xd1cb_000e,
            0x043a_0d02,
            0xd1cb_000f,
            0x043e_0f03,
        ];
        let mut fma = chain.repeat(4);
        fma.extend([0x8114_c114, 0xbf07_8014, 0xbf85_ffbd]);
        // A body's mass and place by a scalar load, the distance, its reciprocal root, three sums.
        let nbody = vec![
            0xc00a_0101,
            0,
            0xbf8c_c07f,
            0x0408_0004,
            0x040a_0205,
            0x040c_0406,
            0x0a0e_0904,
            0xd1cb_0007,
            0x041e_0b05,
            0xd1cb_0007,
            0x041e_0d06,
            0x020e_0e08,
            0x7e10_4907,
            0x8002_9002,
            0x8203_8003,
            0x8114_c114,
            0x0a12_1108,
            0x0a12_1109,
            0x0a12_1207,
            0xd1cb_000a,
            0x042a_1304,
            0xd1cb_000b,
            0x042e_1305,
            0xd1cb_000c,
            0x0432_1306,
            0xbf07_8014,
            0xbf85_ffe5,
        ];
        // Rotations, shifts, sums, a choice by bits and a product.
        let mix = vec![
            0xd1ce_0004,
            0x021e_0100,
            0xd1ce_0005,
            0x024a_0301,
            0x2a08_0b04,
            0x200c_0083,
            0x2a08_0d04,
            0xd1ff_0001,
            0x0052_0304,
            0x260e_0300,
            0xd1ca_0008,
            0x0402_0501,
            0x6804_0508,
            0xd285_0000,
            0x0002_0f01,
            0x8114_c114,
            0xbf07_8014,
            0xbf85_ffee,
        ];
        let with = |name, mut words: Vec<u32>, instructions| {
            words.push(END);
            Loop { name, words, instructions }
        };
        // v_fma_f64 v[8:9], v[0:1], v[4:5], v[8:9] and so on to v[14:15], sixteen of them.
        let mut doubles: Vec<u32> = (0..16u32)
            .flat_map(|n| {
                let [a, b, c] = [n % 2 * 2, 4 + n / 2 % 2 * 2, 8 + n % 4 * 2].map(|row| 256 + row);
                [0xd1cc_0000 | (c - 256), c << 18 | b << 9 | a]
            })
            .collect();
        doubles.extend([0x8114_c114, 0xbf07_8014, 0xbf85_ffdd]);
        // Six times: v_xor_b32 v1, 32, v2 or 16 and so on; v_lshlrev_b32 v1, 2, v1;
        // ds_bpermute_b32 v4, v1, v0; v_add_f32 v0, v0, v4.
        let mut sum: Vec<u32> = [0xa0, 0x90, 0x88, 0x84, 0x82, 0x81_u32]
            .iter()
            .flat_map(|lane| [0x2a02_0400 | lane, 0x2402_0282, 0xd87e_0000, 0x0400_0001, 0x0200_0900])
            .collect();
        sum.extend([0x8114_c114, 0xbf07_8014, 0xbf85_ffdf]);
        [
            with("FMA chain", fma, 35),
            with("n-body", nbody, 21),
            with("integer mix", mix, 13),
            with("FMA chain, doubles", doubles, 19),
            with("sum over lanes", sum, 27),
        ]
    }

    fn wave(lanes: u64) -> Wave {
        let mut wave = Wave {
            target: Target::Gfx900,
            lanes: 64,
            pc: BASE,
            scalar: [0; 128],
            scc: false,
            mode: Mode::DEFAULT,
            rows: vec![Row::ZERO; 32],
            acc: 32,
            sgprs: 100,
            flat_scratch: 0,
            trapsts: 0,
            done: 0,
            index: 0,
        };
        wave.set_pair(Operand::EXEC, lanes);
        wave.set_pair(2, DATA);
        wave.scalar[8] = 0.01f32.to_bits();
        wave.scalar[20] = ROUNDS;
        for (number, row) in wave.rows.iter_mut().enumerate().take(16) {
            for (lane, word) in row.0.iter_mut().enumerate() {
                *word = (0.5 + (lane + number) as f32 / 1000.0).to_bits();
            }
        }
        wave
    }

    fn ticks() -> u64 {
        // SAFETY: the processor has the counter.
        unsafe { std::arch::x86_64::_rdtsc() }
    }

    /// Cycles of a whole run, and the rows behind it.
    fn run(engine: &mut Engine, world: &mut Flat, lanes: u64) -> (u64, Vec<Row>) {
        let apertures = Apertures { shared: 1 << 16, private: 2 << 16 };
        let mut group = Group { lds: Lds::new(0), apertures, watch: Watched::default(), place: Place::default() };
        let mut wave = wave(lanes);
        let begun = ticks();
        while engine.run(&mut wave, &mut group, world, 1 << 30) == Exit::Yield {}
        (ticks() - begun, wave.rows)
    }

    pub(super) fn all() {
        let widths: Vec<Width> = [Width::Avx2, Width::Avx512].into_iter().filter(|width| width.is_there()).collect();
        println!("{:<12} {:>6} {:>12}  {widths:?}", "loop", "lanes", "interpreter");
        for Loop { name, words, instructions } in loops() {
            let mut world = Flat::new(BASE, 64);
            world.write_words(BASE, &words);
            let bodies: Vec<u32> = (0..4 * ROUNDS).map(|n| (n as f32 / 777.0).to_bits()).collect();
            world.write_words(DATA, &bodies);
            for (count, lanes) in [(64, u64::MAX), (50, (1 << 50) - 1)] {
                let mut engines = vec![Engine::new(Target::Gfx900)];
                for &width in &widths {
                    let mut engine = Engine::new(Target::Gfx900);
                    let after = 4;
                    engine.translate(Translation {
                        width,
                        after,
                        accesses: Accesses::All,
                        is_checked: false,
                        perf_map: false,
                    });
                    engines.push(engine);
                }
                let mut least = vec![u64::MAX; engines.len()];
                let mut rows = Vec::new();
                for turn in 0..15 {
                    for (engine, least) in engines.iter_mut().zip(&mut least) {
                        let (cycles, now) = run(engine, &mut world, lanes);
                        *least = cycles.min(*least);
                        if turn == 0 && rows.is_empty() {
                            rows = now;
                        } else {
                            assert!(rows == now, "{name}: results differ");
                        }
                    }
                }
                print!("{name:<12} {count:>6}");
                for cycles in least {
                    print!(" {:>12.2}", cycles as f64 / (u64::from(ROUNDS) * instructions) as f64);
                }
                println!();
            }
        }
    }
}
