// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Words of lanes that lie side by side: a lane's words follow one another in memory, and a row has
//! one word of each lane.
//!
//! One word is a load or a store. More are exchanged between vectors: memory has them lane by lane.
//! With AVX-512 a permutation picks words of two vectors. AVX2 exchanges the words of four lanes
//! within 16 bytes. So it loads lanes that are four apart into one vector.
//!
//! Whole lines may be stored past the host's caches, by instructions of their own.
//!
//! Limits: AVX2 gathers three words, and does not store them here.

use super::*;

/// Bytes of a lane with four words.
const FOUR: i64 = 16;
/// The lower halves of two vectors of 64 bytes, and the upper ones.
const LOWER: u32 = 0x44;
const UPPER: u32 = 0xee;

/// The register of 16 bytes that a wider one begins with.
fn small(register: Register) -> Register {
    Register::XMM0 + (register as u32 - Register::YMM0 as u32)
}

impl Emit {
    /// Loads words from `rax` on. In LDS, a single word's inactive lanes may be beyond its ends;
    /// all lanes are active otherwise.
    pub(super) fn load_line(&mut self, to: &[Register], offset: i32, lds: bool) {
        let before = self.taken;
        let offset = i64::from(offset);
        match (to, self.width.is_wide()) {
            (&[one], _) => self.load_words_of_lanes(one, offset, lds),
            (&[even, odd], true) => self.load_pairs(even, odd, offset),
            (&[even, odd], false) => self.load_narrow_pairs(even, odd, offset),
            (&[a, b, c], true) => self.load_threes([a, b, c], offset),
            (&[a, b, c, d], true) => self.load_fours([a, b, c, d], offset),
            (&[a, b, c, d], false) => self.load_narrow_fours([a, b, c, d], offset),
            _ => self.gather_line(to, offset),
        }
        self.taken = before;
    }

    fn load(&mut self, to: Register, offset: i64) {
        self.asm.add(Instruction::with2(width::LOAD.of(self.width), to, at(Register::RAX, offset)));
    }

    /// Which words a permutation takes of the vectors `one` and then `two`, for each word of `d`.
    pub(super) fn pick(&mut self, d: Register, word: impl Fn(u32) -> u32) {
        let words: Vec<u32> = (0..16).map(word).collect();
        let words = at(Register::RCX, self.pool.vector(&words));
        self.asm.add(Instruction::with2(width::LOAD.of(self.width), d, words));
    }

    fn load_words_of_lanes(&mut self, to: Register, offset: i64, lds: bool) {
        let (load, place) = (width::LOAD.of(self.width), at(Register::RAX, offset));
        if !lds {
            self.asm.add(Instruction::with2(load, to, place));
        } else if self.width.is_wide() {
            let load = Instruction::with2(load, to, place).map(|mut load| {
                load.set_zeroing_masking(true);
                load
            });
            self.masked(EXEC, load);
        } else {
            let exec = self.exec_vector();
            self.asm.add(Instruction::with3(Code::VEX_Vmaskmovps_ymm_ymm_m256, to, exec, place));
        }
    }

    fn load_pairs(&mut self, even: Register, odd: Register, offset: i64) {
        let first = self.temp();
        self.load(first, offset);
        for (to, begin) in [(even, 0), (odd, 1)] {
            self.pick(to, |lane| begin + 2 * lane);
            let second = at(Register::RAX, offset + 64);
            self.asm.add(Instruction::with3(Code::EVEX_Vpermi2ps_zmm_k1z_zmm_zmmm512b32, to, first, second));
        }
    }

    fn load_narrow_pairs(&mut self, even: Register, odd: Register, offset: i64) {
        let (first, second) = (self.temp(), self.temp());
        self.load(first, offset);
        self.load(second, offset + 32);
        for (to, pick) in [(even, 0x88u32), (odd, 0xdd)] {
            self.asm.add(Instruction::with4(Code::VEX_Vshufps_ymm_ymm_ymmm256_imm8, to, first, second, pick));
            self.asm.add(Instruction::with3(Code::VEX_Vpermq_ymm_ymmm256_imm8, to, to, 0xd8u32));
        }
    }

    fn load_threes(&mut self, to: [Register; 3], offset: i64) {
        let (first, words) = (self.temp(), self.temp());
        self.load(first, offset);
        for (to, begin) in to.into_iter().zip(0..) {
            self.pick(to, |lane| (begin + 3 * lane) % 32);
            let second = at(Register::RAX, offset + 64);
            self.asm.add(Instruction::with3(Code::EVEX_Vpermi2ps_zmm_k1z_zmm_zmmm512b32, to, first, second));
            // What is in the third vector, beside the words that are there already.
            self.pick(words, |lane| (begin + 3 * lane).checked_sub(32).map_or(lane, |word| 16 + word));
            let third = at(Register::RAX, offset + 128);
            self.asm.add(Instruction::with3(Code::EVEX_Vpermt2ps_zmm_k1z_zmm_zmmm512b32, to, words, third));
        }
    }

    fn load_fours(&mut self, [a, b, c, d]: [Register; 4], offset: i64) {
        let lanes = self.temp();
        // The first two words of eight lanes, and the last two.
        for (offset, halves) in [(offset, [a, c]), (offset + 128, [b, d])] {
            self.load(lanes, offset);
            for (to, begin) in halves.into_iter().zip([0, 2]) {
                self.pick(to, |word| begin + word / 8 + 4 * (word % 8));
                let second = at(Register::RAX, offset + 64);
                self.asm.add(Instruction::with3(Code::EVEX_Vpermi2ps_zmm_k1z_zmm_zmmm512b32, to, lanes, second));
            }
        }
        for [one, two] in [[a, b], [c, d]] {
            self.join(lanes, [one, two], LOWER);
            self.join(two, [one, two], UPPER);
            self.mov(one, Src::Reg(lanes));
        }
    }

    /// Halves of two vectors.
    fn join(&mut self, d: Register, [one, two]: [Register; 2], halves: u32) {
        self.asm.add(Instruction::with4(Code::EVEX_Vshuff64x2_zmm_k1z_zmm_zmmm512b64_imm8, d, one, two, halves));
    }

    fn load_narrow_fours(&mut self, to: [Register; 4], offset: i64) {
        for (to, lane) in to.into_iter().zip(0..) {
            let place = at(Register::RAX, offset + FOUR * lane);
            self.asm.add(Instruction::with2(Code::VEX_Vmovups_xmm_xmmm128, small(to), place));
            let place = at(Register::RAX, offset + FOUR * (lane + 4));
            self.asm.add(Instruction::with4(Code::VEX_Vinsertf128_ymm_ymm_xmmm128_imm8, to, to, place, 1u32));
        }
        self.exchange_fours(to);
    }

    /// Of four vectors, exchanges words and vectors within 16 bytes.
    fn exchange_fours(&mut self, [a, b, c, d]: [Register; 4]) {
        let (low, high) = (self.temp(), self.temp());
        let mut add = |code, to: Register, one: Register, two: Register| {
            self.asm.add(Instruction::with3(code, to, one, two));
        };
        add(Code::VEX_Vunpcklps_ymm_ymm_ymmm256, low, a, b);
        add(Code::VEX_Vunpckhps_ymm_ymm_ymmm256, high, a, b);
        add(Code::VEX_Vunpcklps_ymm_ymm_ymmm256, a, c, d);
        add(Code::VEX_Vunpckhps_ymm_ymm_ymmm256, b, c, d);
        for (to, one, two, pick) in [(c, high, b, LOWER), (d, high, b, UPPER), (b, low, a, UPPER), (a, low, a, LOWER)] {
            self.asm.add(Instruction::with4(Code::VEX_Vshufps_ymm_ymm_ymmm256_imm8, to, one, two, pick));
        }
    }

    /// Words of memory of lanes side by side, active or not, one row after the other.
    fn gather_line(&mut self, to: &[Register], offset: i64) {
        let lanes: Vec<u32> = (0..u32::from(self.width.lanes())).map(|lane| 4 * lane * to.len() as u32).collect();
        let (steps, places, all) = (self.temp(), at(Register::RCX, self.pool.vector(&lanes)), self.temp());
        self.asm.add(Instruction::with2(width::LOAD.of(self.width), steps, places));
        for (register, word) in to.iter().zip(0..) {
            let here = offset + 4 * word;
            let place = MemoryOperand::with_base_index_scale_displ_size(Register::RAX, steps, 1, here, 1);
            self.asm.add(Instruction::with3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, all, all, all));
            self.asm.add(Instruction::with3(Code::VEX_Vgatherdps_ymm_vm32y_ymm, *register, place, all));
        }
    }

    /// Stores words from `rax` on: of active lanes, or of all where there are several words.
    /// `past`: past the caches, of all lanes, to whole vectors.
    pub(super) fn store_line(&mut self, values: &[Register], offset: i32, past: bool) {
        let offset = i64::from(offset);
        self.past = past;
        match (values, self.width.is_wide()) {
            (&[one], _) if past => self.put_line(one, offset),
            (&[one], true) => {
                let store = Instruction::with2(width::STORE.of(self.width), at(Register::RAX, offset), one);
                self.masked(EXEC, store);
            }
            (&[one], false) => {
                let (place, exec) = (at(Register::RAX, offset), self.exec_vector());
                self.asm.add(Instruction::with3(Code::VEX_Vmaskmovps_m256_ymm_ymm, place, exec, one));
            }
            (&[even, odd], true) => self.store_pairs(even, odd, offset),
            (&[even, odd], false) => self.store_narrow_pairs(even, odd, offset),
            (&[a, b, c], true) => self.store_threes([a, b, c], offset),
            (&[a, b, c, d], true) => self.store_fours([a, b, c, d], offset),
            (&[a, b, c, d], false) => self.store_narrow_fours([a, b, c, d], offset),
            _ => self.asm.fail(),
        }
        self.past = false;
    }

    fn put_line(&mut self, value: Register, offset: i64) {
        let store = if self.past { width::STORE_PAST } else { width::STORE };
        self.asm.add(Instruction::with2(store.of(self.width), at(Register::RAX, offset), value));
    }

    fn store_pairs(&mut self, even: Register, odd: Register, offset: i64) {
        let to = self.temp();
        for part in 0..2 {
            self.pick(to, |word| 8 * part + word / 2 + word % 2 * 16);
            self.asm.add(Instruction::with3(Code::EVEX_Vpermi2ps_zmm_k1z_zmm_zmmm512b32, to, even, odd));
            self.put_line(to, offset + 64 * i64::from(part));
        }
    }

    fn store_narrow_pairs(&mut self, even: Register, odd: Register, offset: i64) {
        let (low, high, to) = (self.temp(), self.temp(), self.temp());
        self.asm.add(Instruction::with3(Code::VEX_Vunpcklps_ymm_ymm_ymmm256, low, even, odd));
        self.asm.add(Instruction::with3(Code::VEX_Vunpckhps_ymm_ymm_ymmm256, high, even, odd));
        for (half, pick) in [(0, 0x20u32), (1, 0x31)] {
            let code = Code::VEX_Vperm2f128_ymm_ymm_ymmm256_imm8;
            self.asm.add(Instruction::with4(code, to, low, high, pick));
            self.put_line(to, offset + 32 * half);
        }
    }

    fn store_threes(&mut self, [a, b, c]: [Register; 3], offset: i64) {
        let (to, words) = (self.temp(), self.temp());
        for part in 0..3 {
            let place = |word: u32| ((16 * part + word) / 3, (16 * part + word) % 3);
            self.pick(to, |word| place(word).0 + 16 * (place(word).1 % 2));
            self.asm.add(Instruction::with3(Code::EVEX_Vpermi2ps_zmm_k1z_zmm_zmmm512b32, to, a, b));
            self.pick(words, |word| if place(word).1 == 2 { 16 + place(word).0 } else { word });
            self.asm.add(Instruction::with3(Code::EVEX_Vpermt2ps_zmm_k1z_zmm_zmmm512b32, to, words, c));
            self.put_line(to, offset + 64 * i64::from(part));
        }
    }

    fn store_fours(&mut self, [a, b, c, d]: [Register; 4], offset: i64) {
        let (one, two, to) = (self.temp(), self.temp(), self.temp());
        // Eight lanes: their first two words, and their last two.
        for (halves, offset) in [(LOWER, offset), (UPPER, offset + 128)] {
            self.join(one, [a, b], halves);
            self.join(two, [c, d], halves);
            for part in 0..2 {
                self.pick(to, |word| 4 * part + word / 4 + 8 * (word % 4));
                self.asm.add(Instruction::with3(Code::EVEX_Vpermi2ps_zmm_k1z_zmm_zmmm512b32, to, one, two));
                self.put_line(to, offset + 64 * i64::from(part));
            }
        }
    }

    fn store_narrow_fours(&mut self, values: [Register; 4], offset: i64) {
        let to = values.map(|value| {
            let to = self.temp();
            self.mov(to, Src::Reg(value));
            to
        });
        self.exchange_fours(to);
        for (value, lane) in to.into_iter().zip(0..) {
            let places = [at(Register::RAX, offset + FOUR * lane), at(Register::RAX, offset + FOUR * (lane + 4))];
            if self.past {
                self.asm.add(Instruction::with2(Code::VEX_Vmovntps_m128_xmm, places[0], small(value)));
                let high = small(value);
                self.asm.add(Instruction::with3(Code::VEX_Vextractf128_xmmm128_ymm_imm8, high, value, 1u32));
                self.asm.add(Instruction::with2(Code::VEX_Vmovntps_m128_xmm, places[1], high));
                continue;
            }
            self.asm.add(Instruction::with2(Code::VEX_Vmovups_xmmm128_xmm, places[0], small(value)));
            self.asm.add(Instruction::with3(Code::VEX_Vextractf128_xmmm128_ymm_imm8, places[1], value, 1u32));
        }
    }
}
