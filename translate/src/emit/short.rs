// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Bytes and halves of words: dot products, picking of bytes, and conversions of halves.

use super::*;
use vkfd_isa::Op;

/// How the host rounds to halves.
const NEAREST: u32 = 0;
const TOWARD_ZERO: u32 = 3;

impl Emit {
    /// Sums of products of the halves of each word, with signs.
    pub(crate) fn dot_halves(&mut self, d: Register, a: Register, b: Register) {
        self.asm.add(Instruction::with3(width::DOT_SHORTS.of(self.width), d, a, b));
    }

    /// The even bytes of each word and the odd ones, as halves.
    fn bytes(&mut self, [even, odd]: [Register; 2], a: Register, signed: bool) {
        let by = |e: &mut Emit, both: Both, d, a| {
            e.asm.add(Instruction::with3(both.of(e.width), d, a, 8u32));
        };
        if signed {
            by(self, width::SHL16_BY, even, a);
            by(self, width::SAR16_BY, even, even);
            by(self, width::SAR16_BY, odd, a);
        } else {
            self.op(width::AND, even, Src::Reg(a), Src::Const(0xff_00ff));
            by(self, width::SHR16_BY, odd, a);
        }
    }

    /// `d = a . b + c` of the four bytes of each word, with signs or without.
    pub(crate) fn dot_bytes(&mut self, d: Register, [a, b]: [Src; 2], c: Src, signed: [bool; 2]) {
        let before = self.taken;
        let (a, b) = (self.reg(a), self.reg(b));
        let (one, two) = ([self.temp(), self.temp()], [self.temp(), self.temp()]);
        self.bytes(one, a, signed[0]);
        self.bytes(two, b, signed[1]);
        self.dot_halves(one[0], one[0], two[0]);
        self.dot_halves(one[1], one[1], two[1]);
        self.op(width::ADD, one[0], Src::Reg(one[0]), Src::Reg(one[1]));
        self.op(width::ADD, d, Src::Reg(one[0]), c);
        self.taken = before;
    }

    /// Bytes of `b`, and above them of `a`, by a word of selectors: 12 is a zero. Signs and ones
    /// are the engine's.
    pub(crate) fn pick_bytes(&mut self, d: Register, a: Src, b: Src, select: Src) {
        let (a, b, c) = (Src::Reg(self.reg(a)), Src::Reg(self.reg(b)), Src::Reg(self.reg(select)));
        let value = self.temp();
        let before = self.taken;
        let (from, other) = (self.temp(), self.temp());
        // Within the word, and nothing for eight and more.
        self.op(width::AND, from, c, Src::Const(0x0808_0808));
        self.shl(from, Src::Reg(from), Src::Const(4));
        self.op(width::AND, other, c, Src::Const(0x0303_0303));
        self.op(width::OR, from, Src::Reg(from), Src::Reg(other));
        let words: Vec<u32> = (0..u32::from(self.width.lanes())).map(|lane| lane % 4 * 0x0404_0404).collect();
        let words = Src::Row(at(Register::RCX, self.pool.vector(&words)));
        self.op(width::OR, from, Src::Reg(from), words);
        let pick = width::PICK_BYTES.of(self.width);
        for (to, source) in [(value, b), (other, a)] {
            let Src::Reg(source) = source else { return };
            self.asm.add(Instruction::with3(pick, to, source, from));
        }
        // The third bit of each selector becomes its highest.
        self.shl(from, c, Src::Const(5));
        if self.width.is_wide() {
            self.asm.add(Instruction::with2(Code::EVEX_Vpmovb2m_kr_zmm, Register::K7, from));
            let blend = Instruction::with3(Code::EVEX_Vpblendmb_zmm_k1z_zmm_zmmm512, value, value, other);
            self.masked(Register::K7, blend);
        } else {
            let blend = Instruction::with4(Code::VEX_Vpblendvb_ymm_ymm_ymmm256_ymm, value, value, other, from);
            self.asm.add(blend);
        }
        if select != Src::Const(0) {
            self.strange(from, other, c);
            let bad = self.once(|e| e.compared(Src::Reg(from), Src::Const(0), Order::NotEqual, false));
            self.cold(bad, move |e| {
                let bad = e.active();
                e.mend(Op::VPermB32, bad, &[a, b, c], value, None);
            });
        }
        self.taken = before;
        self.mov(d, Src::Reg(value));
    }

    /// Nothing in `d` if all selectors are less than eight, or 12.
    fn strange(&mut self, d: Register, other: Register, select: Src) {
        // Now 12 is zero, and those below eight are from eight to 15.
        self.op(width::XOR, d, select, Src::Const(0x0c0c_0c0c));
        self.shr(other, Src::Reg(d), Src::Const(3));
        self.op(width::AND, other, Src::Reg(other), Src::Const(0x0101_0101));
        let ones = self.temp();
        self.shl(ones, Src::Reg(other), Src::Const(3));
        self.op(width::SUB, other, Src::Reg(ones), Src::Reg(other));
        // The low bits of those without the bit of eight, and all high bits.
        self.op(width::XOR, other, Src::Reg(other), Src::Const(u32::MAX));
        self.op(width::AND, ones, Src::Reg(d), Src::Const(0x0707_0707));
        self.op(width::AND, other, Src::Reg(other), Src::Reg(ones));
        self.op(width::AND, d, Src::Reg(d), Src::Const(0xf0f0_f0f0));
        self.op(width::OR, d, Src::Reg(d), Src::Reg(other));
        self.taken -= 1;
    }

    /// `d` = `b`, and the number of set bits of `a` that belong to lower lanes: among the first 32
    /// lanes, or among the others.
    pub(crate) fn count_below(&mut self, d: Register, a: Src, b: Src, high: bool) {
        let before = self.taken;
        let below = |lane: u32| match (high, lane) {
            (false, 32..) => u32::MAX,
            (false, _) => (1 << lane) - 1,
            (true, 32..) => (1 << (lane - 32)) - 1,
            (true, _) => 0,
        };
        // A strip has 32 bytes here for each byte that it has in a mask.
        let ones = a == Src::Const(u32::MAX);
        let words: Vec<u32> = (0..64).map(|lane| if ones { below(lane).count_ones() } else { below(lane) }).collect();
        let table = self.pool.vector(&words);
        self.asm.add(Instruction::with2(Code::Mov_r32_rm32, Register::EAX, Register::R11D));
        self.asm.add(Instruction::with2(Code::Shl_rm32_imm8, Register::EAX, 5u32));
        let place = MemoryOperand::with_base_index_scale_displ_size(Register::RCX, Register::RAX, 1, table, 1);
        let bits = self.temp();
        self.asm.add(Instruction::with2(width::LOAD.of(self.width), bits, place));
        if !ones {
            self.op(width::AND, bits, Src::Reg(bits), a);
            let part = self.temp();
            self.shr(part, Src::Reg(bits), Src::Const(1));
            self.op(width::AND, part, Src::Reg(part), Src::Const(0x5555_5555));
            self.op(width::SUB, bits, Src::Reg(bits), Src::Reg(part));
            self.shr(part, Src::Reg(bits), Src::Const(2));
            self.op(width::AND, part, Src::Reg(part), Src::Const(0x3333_3333));
            self.op(width::AND, bits, Src::Reg(bits), Src::Const(0x3333_3333));
            self.op(width::ADD, bits, Src::Reg(bits), Src::Reg(part));
            self.shr(part, Src::Reg(bits), Src::Const(4));
            self.op(width::ADD, bits, Src::Reg(bits), Src::Reg(part));
            self.op(width::AND, bits, Src::Reg(bits), Src::Const(0x0f0f_0f0f));
            self.op(width::MUL, bits, Src::Reg(bits), Src::Const(0x0101_0101));
            self.shr(bits, Src::Reg(bits), Src::Const(24));
        }
        self.op(width::ADD, d, Src::Reg(bits), b);
        self.taken = before;
    }

    /// The singles of the low halves.
    pub(crate) fn of_halves(&mut self, d: Register, a: Src) {
        let before = self.taken;
        let (a, room) = (self.reg(a), self.temp());
        let small = self.half(room);
        if self.width.is_wide() {
            self.asm.add(Instruction::with2(Code::EVEX_Vpmovdw_ymmm256_k1z_zmm, small, a));
        } else {
            let high = self.temp();
            let (low, above) = (small, self.half(high));
            self.op(width::AND, room, Src::Reg(a), Src::Const(0xffff));
            self.asm.add(Instruction::with3(width::HIGH_HALF.of(self.width), above, room, 1u32));
            self.asm.add(Instruction::with3(Code::VEX_Vpackusdw_xmm_xmm_xmmm128, low, low, above));
        }
        self.asm.add(Instruction::with2(width::OF_HALVES.of(self.width), d, small));
        self.taken = before;
    }

    /// Halves, to the nearest, with zeros above.
    pub(crate) fn round_to_halves(&mut self, d: Register, a: Src) {
        self.narrowed(d, a, NEAREST);
    }

    fn narrowed(&mut self, d: Register, a: Src, rounding: u32) {
        let before = self.taken;
        let (a, room) = (self.reg(a), self.temp());
        let small = self.half(room);
        self.asm.add(Instruction::with3(width::TO_HALVES.of(self.width), small, a, rounding));
        self.asm.add(Instruction::with2(width::WIDEN_SHORTS.of(self.width), d, small));
        self.taken = before;
    }

    /// `d` = `a` where `lost` is a number other than zero and `odd` is zero. Numbers need not be
    /// those of the strip's lanes: EXEC does not count.
    pub(crate) fn blend_inexact(&mut self, d: Register, a: Register, lost: Register, odd: Register) {
        let zero = self.constant(0);
        if self.width.is_wide() {
            let code = Code::EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae;
            self.asm.add(Instruction::with4(code, Register::K6, lost, broadcast(zero), is::LG));
            let code = Code::EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8;
            self.masked(Register::K6, Instruction::with4(code, Register::K7, odd, broadcast(zero), 0u32));
            self.blend(d, Mask::K(Register::K7), Src::Reg(a));
            return;
        }
        let moved = self.once(|e| {
            let inexact = e.tested(Src::Reg(lost), Src::Const(0), is::LG);
            let even = e.compared(Src::Reg(odd), Src::Const(0), Order::Equal, true);
            e.intersect(inexact, even);
            inexact
        });
        self.blend(d, moved, Src::Reg(a));
    }

    /// Halves of both sources, rounded towards zero: the first one's below.
    pub(crate) fn truncate_to_halves(&mut self, d: Register, a: Src, b: Src) {
        let before = self.taken;
        let (b, value, above) = (Src::Reg(self.reg(b)), self.temp(), self.temp());
        self.narrowed(value, a, TOWARD_ZERO);
        self.narrowed(above, b, TOWARD_ZERO);
        self.shl(above, Src::Reg(above), Src::Const(16));
        self.op(width::OR, d, Src::Reg(value), Src::Reg(above));
        self.taken = before;
    }

    /// An operation on the low halves, by single precision. `write` may use up its sources, and its
    /// destination is none of them.
    pub(crate) fn by_singles<const N: usize>(
        &mut self,
        d: Register,
        sources: [Src; N],
        write: fn(&mut Emit, Register, [Register; N]),
    ) {
        let before = self.taken;
        let value = self.temp();
        let singles = sources.map(|source| {
            let single = self.temp();
            self.of_halves(single, source);
            single
        });
        write(self, value, singles);
        self.round_to_halves(d, Src::Reg(value));
        self.taken = before;
    }

    /// The same on both halves: the host's lower half of a vector, and then its upper one.
    pub(crate) fn both_by_singles<const N: usize>(
        &mut self,
        d: Register,
        sources: [Src; N],
        write: fn(&mut Emit, Register, [Register; N]),
    ) {
        let before = self.taken;
        let sources = sources.map(|source| self.reg(source));
        let (joined, value) = (self.temp(), self.temp());
        let taken = self.taken;
        for part in 0..2u32 {
            let singles = sources.map(|source| {
                let single = self.temp();
                let small = if part == 0 { self.half(source) } else { self.half(single) };
                if part != 0 {
                    self.asm.add(Instruction::with3(width::HIGH_HALF.of(self.width), small, source, 1u32));
                }
                self.asm.add(Instruction::with2(width::OF_HALVES.of(self.width), single, small));
                single
            });
            write(self, value, singles);
            let small = self.half(if part == 0 { joined } else { value });
            self.asm.add(Instruction::with3(width::TO_HALVES.of(self.width), small, value, NEAREST));
            if part != 0 {
                self.asm.add(Instruction::with4(width::JOIN_HALVES.of(self.width), joined, joined, small, 1u32));
            }
            self.taken = taken;
        }
        self.mov(d, Src::Reg(joined));
        self.taken = before;
    }

    /// The halves of `a` that the low and the high result take, with other signs where `signs` are.
    pub(crate) fn choose_halves(&mut self, a: Src, from: [bool; 2], signs: u32) -> Src {
        let mut source = a;
        if from != [false, true] {
            let [low, high] = from.map(|high| if high { 0x302 } else { 0x100 });
            let bytes: Vec<u32> =
                (0..u32::from(self.width.lanes())).map(|lane| (high << 16 | low) + lane % 4 * 0x0404_0404).collect();
            let (a, value) = (self.reg(source), self.temp());
            let bytes = at(Register::RCX, self.pool.vector(&bytes));
            self.asm.add(Instruction::with3(width::PICK_BYTES.of(self.width), value, a, bytes));
            source = Src::Reg(value);
        }
        if signs != 0 {
            let value = self.temp();
            self.either(width::XOR, value, source, Src::Const(signs));
            source = Src::Reg(value);
        }
        source
    }
}
