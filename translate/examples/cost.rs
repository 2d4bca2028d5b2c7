// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What translating costs: microseconds for an instruction, of blocks of 40 and in both widths.
//! `cargo run --release -p vkfd-translate --example cost`
#![allow(missing_docs, clippy::cast_precision_loss, reason = "an example")]

#[cfg(not(target_arch = "x86_64"))]
fn main() {}

#[cfg(target_arch = "x86_64")]
fn main() {
    measure::all();
}

#[cfg(target_arch = "x86_64")]
mod measure {
    use std::time::Instant;
    use vkfd_isa::{decode, Inst, Op, Operand, Target};
    use vkfd_sabotage::Switches;
    use vkfd_translate::{translate, Accesses, Registers, Translator, Width};

    struct Waves;

    impl Registers for Waves {
        fn lanes(&self) -> u8 {
            64
        }
        fn row(&self, operand: Operand) -> Option<u16> {
            match operand {
                Operand::Vgpr(n) if n < 256 => Some(n),
                _ => None,
            }
        }
        fn scalar(&self, operand: Operand, words: u8) -> Option<u8> {
            match operand {
                Operand::Scalar(n) if n + words <= 128 => Some(n),
                _ => None,
            }
        }
        fn clears_half(&self, _: Op) -> bool {
            true
        }

        fn mask(&self, operand: Operand) -> Option<u8> {
            self.scalar(operand, 2)
        }
    }

    /// n-body's instructions, twice, without its load and branch.
    fn block() -> Vec<Inst> {
        let words: [u32; 22] = [
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
        ];
        let mut insts = Vec::new();
        for _ in 0..2 {
            let mut at = 0;
            while at < words.len() {
                let inst = decode(Target::Gfx900, &words[at..]).expect("instructions");
                at += usize::from(inst.bytes) / 4;
                insts.push(inst);
            }
        }
        insts
    }

    pub(super) fn all() {
        let insts = block();
        for width in [Width::Avx2, Width::Avx512].into_iter().filter(|width| width.is_there()) {
            let mut costs = Vec::new();
            let mut translator = Translator::default();
            for _ in 0..2_000 {
                let begun = Instant::now();
                let regions =
                    translate(&insts, &Waves, (width, Accesses::All), &mut translator, &Switches::NONE, |_, _| {});
                costs.push(begun.elapsed().as_secs_f64() * 1e6 / insts.len() as f64);
                assert_eq!(regions.iter().map(|region| region.insts.len()).sum::<usize>(), insts.len());
            }
            let first = costs[0];
            costs.sort_by(f64::total_cmp);
            println!("{width:?}: {:.2} us for an instruction, {first:.2} the first time", costs[costs.len() / 2]);
        }
    }
}
