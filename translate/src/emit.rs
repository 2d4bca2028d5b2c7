// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The words in which `ops` says what an operation does: vectors of one strip, in either width.
//!
//! A destination is a host register. It may be the same as that of a source, so an operation writes
//! it in its last word, or when no source is needed any more. Temporaries are free again behind the
//! instruction. Lanes that are not active may hold anything: only masks and stores to rows leave
//! them out.
//!
//! Words that jump ([`Emit::cold`]) put what is rare behind the code. What vectors do not decide,
//! [`Emit::mend`] hands to the engine, lane by lane, and goes on.
//!
//! Host registers while strips run: `rdi` is the first row and `rsi` the first scalar register,
//! both advanced to the strip. `r9` is the first scalar register, `rdx` the context and `rcx` the
//! pool. `r8` is the round's trace, `r10` the rounds that are left, `r11` the strip's bytes in a
//! mask. `r14` and `r15` have masks ([`masks`]).

mod abreast;
mod access;
mod apart;
mod compare;
mod double;
mod line;
mod masks;
mod mend;
mod needs;
mod rows;
mod scatter;
mod short;
mod store;
mod wave;
mod whole;

use crate::assembler::{at, Assembler, Label, Pool, When};
use crate::stubs::Host;
use crate::width::{self, Both, Width};
pub(crate) use abreast::SECOND;
pub(crate) use apart::Addresses;
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};
pub(crate) use needs::{Learned, Needs};
use rows::Held;
pub(crate) use rows::Plan;

/// A source of 32 bits for each lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Src {
    Reg(Register),
    /// A row in memory.
    Row(MemoryOperand),
    /// A word in memory, for all lanes.
    All(MemoryOperand),
    Const(u32),
}

/// A mask of lanes: a mask register, or a vector whose highest bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mask {
    K(Register),
    V(Register),
}

/// Comparisons of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Equal,
    Less,
    LessOrEqual,
    NotEqual,
    NotLess,
    Greater,
}

/// The lanes that are active.
const EXEC: Register = Register::K1;
/// The highest bit of a word.
const SIGN: u32 = 1 << 31;
/// What quiets a NaN.
pub(crate) const QUIET: u32 = 1 << 22;
const EXPONENT: u32 = 0x7f80_0000;
/// Predicates of comparisons of singles, as the host has them.
pub(crate) mod is {
    pub(crate) const EQ: u32 = 0x00;
    pub(crate) const UNORDERED: u32 = 0x03;
    pub(crate) const NEQ: u32 = 0x04;
    pub(crate) const ORDERED: u32 = 0x07;
    pub(crate) const NLG: u32 = 0x08;
    pub(crate) const FALSE: u32 = 0x0b;
    pub(crate) const LG: u32 = 0x0c;
    pub(crate) const TRUE: u32 = 0x0f;
    pub(crate) const LT: u32 = 0x11;
    pub(crate) const LE: u32 = 0x12;
    pub(crate) const NLT: u32 = 0x15;
    pub(crate) const NLE: u32 = 0x16;
    pub(crate) const NGE: u32 = 0x19;
    pub(crate) const NGT: u32 = 0x1a;
    pub(crate) const GE: u32 = 0x1d;
    pub(crate) const GT: u32 = 0x1e;
}

type Cold = Box<dyn FnOnce(&mut Emit)>;

/// What code that lies behind finds: temporaries and masks that are taken, and rows.
type State = (usize, usize, Held);

/// What writes the code of strips.
pub(crate) struct Emit {
    pub(crate) asm: Assembler,
    pub(crate) pool: Pool,
    pub(crate) width: Width,
    host: Host,
    /// The segment's rows, and where they are.
    plan: Plan,
    held: Held,
    /// The strip of which rows are spoken, if there are two abreast: 0 or [`SECOND`].
    pub(crate) strip: u16,
    /// How many temporaries the instruction has taken, and what was learned of all.
    taken: usize,
    pub(crate) needs: Needs,
    /// Rows that leave their registers are lost, for tests.
    pub(crate) loses_rows: bool,
    /// From this instruction on, rows that leave their registers go to the wave.
    home_from: usize,
    /// Addresses in LDS have been looked at.
    pub(crate) is_in_bounds: bool,
    /// Mask registers that the instruction has taken.
    masks: usize,
    /// Masks that are in registers, by the scalar register or place in the trace.
    cached: Vec<(MaskPlace, Mask)>,
    /// Masks of scalar registers that are nowhere else yet.
    unsettled: Vec<(u8, Mask)>,
    /// Masks of scalar registers that have general registers.
    homes: Vec<(u8, Register)>,
    /// Which register a mask is kept in next.
    turn: usize,
    cold: Vec<(State, Cold)>,
    /// Rows of addresses whose shape the context has, and how many there were.
    looked: Vec<(access::Key, usize)>,
    looks: usize,
    /// Lanes of the wave, if strips do one round, so that the next one follows on the last; or 0.
    wave_lanes: u8,
    /// Where looks are forgotten, and what begins then.
    forget: Option<(Label, Label)>,
    /// The row of addresses, by its number, whose base is in `rax`.
    base_of: Option<usize>,
    /// All active lanes are left to the engine, for tests.
    pub(crate) mends_all: bool,
    /// Loads of memory are a loop's: those of later rounds are foreseen.
    pub(crate) prefetches: bool,
    /// Lines are stored past the caches.
    past: bool,
    /// The host may have to lose denormals.
    may_flush: bool,
}

/// Where a mask is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaskPlace {
    Scalar(u8),
    Trace(i64),
}

impl Emit {
    /// Host registers for rows and temporaries: in narrow strips two others are masks.
    pub(crate) const fn usable(width: Width) -> usize {
        if width.is_wide() {
            width.vectors()
        } else {
            width.vectors() - 2
        }
    }

    /// Code for these rows, of which nothing is in a register yet.
    pub(crate) fn new(host: Host, plan: Plan, needs: Needs) -> Emit {
        let width = host.width;
        Emit {
            asm: Assembler::new(),
            pool: Pool::default(),
            width,
            host,
            plan,
            held: Held::new(width),
            strip: 0,
            taken: 0,
            needs,
            loses_rows: false,
            home_from: usize::MAX,
            is_in_bounds: false,
            masks: 0,
            cached: Vec::new(),
            unsettled: Vec::new(),
            homes: Vec::new(),
            turn: 0,
            cold: Vec::new(),
            looked: Vec::new(),
            looks: 0,
            wave_lanes: 0,
            forget: None,
            base_of: None,
            mends_all: false,
            prefetches: false,
            past: false,
            may_flush: false,
        }
    }

    /// The next instruction begins.
    pub(crate) fn begin(&mut self) {
        (self.taken, self.masks, self.base_of) = (0, 0, None);
    }

    /// A vector register that is free until the instruction ends.
    pub(crate) fn temp(&mut self) -> Register {
        let register = self.held.temp(self.taken);
        self.taken += 1;
        self.needs.note(self.held.need, self.taken, register.is_some());
        if register.is_none() {
            self.asm.fail();
        }
        self.width.vector(register.unwrap_or(0))
    }

    /// What code that lies behind this place finds.
    fn state(&self) -> State {
        (self.taken, self.masks, self.held.clone())
    }

    fn temp_mask(&mut self) -> Mask {
        if !self.width.is_wide() {
            return Mask::V(self.temp());
        }
        self.masks += 1;
        match self.masks {
            1 => Mask::K(Register::K6),
            2 => Mask::K(Register::K7),
            _ => {
                self.asm.fail();
                Mask::K(Register::K7)
            }
        }
    }

    /// Where EXEC is in narrow strips.
    pub(crate) fn exec_vector(&self) -> Register {
        self.width.vector(self.width.vectors() - 1)
    }

    fn masked(&mut self, mask: Register, instruction: Result<Instruction, IcedError>) {
        self.asm.masked(mask, false, instruction);
    }

    fn constant(&mut self, word: u32) -> MemoryOperand {
        at(Register::RCX, self.pool.word(word))
    }

    /// A constant of all lanes as an instruction's operand. Narrow instructions have no broadcast.
    fn operand(&mut self, word: u32) -> MemoryOperand {
        if self.width.is_wide() {
            broadcast(self.constant(word))
        } else {
            at(Register::RCX, self.pool.vector(&[word; 8]))
        }
    }

    /// A source in a register: its own, or `room`.
    fn in_register(&mut self, source: Src, room: Register) -> Register {
        let width = self.width;
        match source {
            Src::Reg(register) => return register,
            Src::Row(place) => self.asm.add(Instruction::with2(width::LOAD.of(width), room, place)),
            Src::All(place) => self.asm.add(Instruction::with2(width::SPLAT.of(width), room, place)),
            Src::Const(0) => {
                self.asm.add(Instruction::with3(width::XOR.of(width), room, room, room));
            }
            Src::Const(word) => {
                let place = self.constant(word);
                self.asm.add(Instruction::with2(width::SPLAT.of(width), room, place));
            }
        }
        room
    }

    /// A source in a register, which may be a temporary.
    pub(crate) fn reg(&mut self, source: Src) -> Register {
        if let Src::Reg(register) = source {
            return register;
        }
        let room = self.temp();
        self.in_register(source, room)
    }

    /// `d = a`.
    pub(crate) fn mov(&mut self, d: Register, a: Src) {
        match a {
            Src::Reg(a) if a == d => {}
            Src::Reg(a) => self.asm.add(Instruction::with2(width::MOVE.of(self.width), d, a)),
            _ => {
                self.in_register(a, d);
            }
        }
    }

    /// An instruction with two operands and a last one that may be in memory.
    fn last3(&mut self, code: Code, d: Register, a: Register, b: Src) -> Result<Instruction, IcedError> {
        match b {
            Src::Reg(b) => Instruction::with3(code, d, a, b),
            Src::Row(place) => Instruction::with3(code, d, a, place),
            Src::Const(word) => {
                let place = self.operand(word);
                Instruction::with3(code, d, a, place)
            }
            Src::All(place) if self.width.is_wide() => Instruction::with3(code, d, a, broadcast(place)),
            Src::All(_) => {
                let b = self.reg(b);
                Instruction::with3(code, d, a, b)
            }
        }
    }

    /// `d = a op b`.
    pub(crate) fn op(&mut self, op: Both, d: Register, a: Src, b: Src) {
        let before = self.taken;
        let a = if b == Src::Reg(d) { self.reg(a) } else { self.in_register(a, d) };
        let instruction = self.last3(op.of(self.width), d, a, b);
        self.asm.add(instruction);
        self.taken = before;
    }

    /// `d = d op b` in the lanes of a mask.
    pub(crate) fn op_in(&mut self, op: Both, d: Register, mask: Mask, b: Src) {
        let before = self.taken;
        if let Mask::K(k) = mask {
            let instruction = self.last3(op.of(self.width), d, d, b);
            self.masked(k, instruction);
        } else {
            let changed = self.temp();
            self.op(op, changed, Src::Reg(d), b);
            self.blend(d, mask, Src::Reg(changed));
        }
        self.taken = before;
    }

    /// The same of an operation whose operands may be exchanged.
    pub(crate) fn either(&mut self, op: Both, d: Register, a: Src, b: Src) {
        if matches!(a, Src::Reg(_)) {
            self.op(op, d, a, b);
        } else {
            self.op(op, d, b, a);
        }
    }

    /// `d = op a`.
    pub(crate) fn op1(&mut self, op: Both, d: Register, a: Src) {
        let a = self.in_register(a, d);
        self.asm.add(Instruction::with2(op.of(self.width), d, a));
    }

    fn immediate(&mut self, op: Both, d: Register, a: Src, by: u32) {
        let a = self.in_register(a, d);
        self.asm.add(Instruction::with3(op.of(self.width), d, a, by));
    }

    fn shift(&mut self, (by_vector, by_number): (Both, Both), d: Register, a: Src, by: Src) {
        let before = self.taken;
        if let Src::Const(by) = by {
            self.immediate(by_number, d, a, by & 31);
            self.taken = before;
            return;
        }
        let by = {
            let room = self.temp();
            self.either(width::AND, room, by, Src::Const(31));
            room
        };
        self.op(by_vector, d, a, Src::Reg(by));
        self.taken = before;
    }

    /// Shifts by the low five bits of `by`.
    pub(crate) fn shl(&mut self, d: Register, a: Src, by: Src) {
        self.shift((width::SHL, width::SHL_BY), d, a, by);
    }

    pub(crate) fn shr(&mut self, d: Register, a: Src, by: Src) {
        self.shift((width::SHR, width::SHR_BY), d, a, by);
    }

    pub(crate) fn sar(&mut self, d: Register, a: Src, by: Src) {
        self.shift((width::SAR, width::SAR_BY), d, a, by);
    }

    /// The low word of the pair `high:low`, shifted right by the low five bits of `by`.
    pub(crate) fn align(&mut self, d: Register, high: Src, low: Src, by: Src) {
        let before = self.taken;
        self.align_with(d, high, low, by);
        self.taken = before;
    }

    fn align_with(&mut self, d: Register, high: Src, low: Src, by: Src) {
        match by {
            Src::Const(by) if by & 31 == 0 => self.mov(d, low),
            Src::Const(by) if self.width.is_wide() && high == low => {
                let a = self.in_register(low, d);
                self.asm.add(Instruction::with3(Code::EVEX_Vprord_zmm_k1z_zmmm512b32_imm8, d, a, by & 31));
            }
            Src::Const(by) => {
                let up = self.temp();
                self.shl(up, high, Src::Const(32 - (by & 31)));
                self.shr(d, low, Src::Const(by));
                self.op(width::OR, d, Src::Reg(d), Src::Reg(up));
            }
            _ => {
                let (down, up) = (self.temp(), self.temp());
                self.either(width::AND, down, by, Src::Const(31));
                let all = self.reg(Src::Const(32));
                self.op(width::SUB, up, Src::Reg(all), Src::Reg(down));
                // A shift by 32 leaves nothing.
                self.op(width::SHL, up, high, Src::Reg(up));
                self.op(width::SHR, d, low, Src::Reg(down));
                self.op(width::OR, d, Src::Reg(d), Src::Reg(up));
            }
        }
    }

    /// `d = a * b + c`, rounded once. Of NaNs `a` counts first, then `b`, then `c`.
    pub(crate) fn fma(&mut self, d: Register, a: Src, b: Src, c: Src) {
        let before = self.taken;
        // Each form writes another source's register. In each, a NaN of `a` comes before one of
        // `b`, and that before one of `c`.
        let own = Src::Reg(d);
        let (code, second, third) = if own == c {
            (width::FMA, a, b)
        } else if own == a {
            (width::FMA132, c, b)
        } else if own == b {
            (width::FMA213, a, c)
        } else {
            self.mov(d, c);
            (width::FMA, a, b)
        };
        let second = self.reg(second);
        let instruction = self.last3(code.of(self.width), d, second, third);
        self.asm.add(instruction);
        self.taken = before;
    }

    /// Rounds to an integer: 8 to the nearest, 9 down, 10 up, 11 towards zero.
    pub(crate) fn round(&mut self, d: Register, a: Src, how: u32) {
        self.immediate(width::ROUND, d, a, how);
    }

    /// The high words of products.
    pub(crate) fn mul_high(&mut self, d: Register, a: Src, b: Src) {
        let before = self.taken;
        let (a, b) = (self.reg(a), self.reg(b));
        let (even, odd, other) = (self.temp(), self.temp(), self.temp());
        self.op(width::MUL_WIDE, even, Src::Reg(a), Src::Reg(b));
        self.immediate(width::SHR64_BY, odd, Src::Reg(a), 32);
        self.immediate(width::SHR64_BY, other, Src::Reg(b), 32);
        self.op(width::MUL_WIDE, odd, Src::Reg(odd), Src::Reg(other));
        self.immediate(width::SHR64_BY, even, Src::Reg(even), 32);
        if self.width.is_wide() {
            self.asm.add(Instruction::with2(Code::Mov_r32_imm32, Register::EAX, 0xaaaa_u32));
            self.asm.add(Instruction::with2(Code::VEX_Kmovw_kr_r32, Register::K7, Register::EAX));
            self.blend(even, Mask::K(Register::K7), Src::Reg(odd));
            self.mov(d, Src::Reg(even));
        } else {
            self.asm.add(Instruction::with4(Code::VEX_Vpblendd_ymm_ymm_ymmm256_imm8, d, even, odd, 0xaa_u32));
        }
        self.taken = before;
    }

    /// `d` becomes `a` where the mask is.
    pub(crate) fn blend(&mut self, d: Register, mask: Mask, a: Src) {
        let width = self.width;
        match (mask, a) {
            (Mask::K(k), Src::Reg(a)) => self.masked(k, Instruction::with2(width::MOVE.of(width), d, a)),
            (Mask::K(k), Src::Row(place)) => self.masked(k, Instruction::with2(width::LOAD.of(width), d, place)),
            (Mask::K(k), Src::All(place)) => self.masked(k, Instruction::with2(width::SPLAT.of(width), d, place)),
            (Mask::K(k), Src::Const(word)) => {
                let place = self.constant(word);
                self.masked(k, Instruction::with2(width::SPLAT.of(width), d, place));
            }
            (Mask::V(mask), Src::Const(word)) => {
                // No temporary: the mask may be in one that counts as free.
                let place = self.operand(word);
                let blend = Instruction::with4(Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm, d, d, place, mask);
                self.asm.add(blend);
            }
            (Mask::V(mask), a) => {
                let a = self.reg(a);
                self.asm.add(Instruction::with4(Code::VEX_Vblendvps_ymm_ymm_ymmm256_ymm, d, d, a, mask));
            }
        }
    }

    /// Jumps if an active lane is in the mask.
    fn jump_if_any(&mut self, mask: Mask, to: Label) {
        match mask {
            Mask::K(k) => self.asm.add(Instruction::with2(Code::VEX_Kortestw_kr_kr, k, k)),
            Mask::V(v) => {
                let exec = self.exec_vector();
                self.asm.add(Instruction::with2(Code::VEX_Vtestps_ymm_ymmm256, v, exec));
            }
        }
        self.asm.jump_if(When::NotZero, to);
    }

    /// What is done if an active lane is in the mask; the code for it lies behind all other.
    pub(crate) fn cold(&mut self, mask: Mask, rare: impl FnOnce(&mut Emit) + 'static) {
        let there = self.asm.label();
        self.jump_if_any(mask, there);
        self.lies_behind(there, rare);
    }

    /// What is done if an active lane has another word than this one in memory.
    fn unless_equal(&mut self, row: Src, word: MemoryOperand, rare: impl FnOnce(&mut Emit) + 'static) {
        let there = self.asm.label();
        self.jump_unless_equal(there, (row, word), None);
        self.lies_behind(there, rare);
    }

    /// Jumps if an active lane has in one row, or the other one, another word than the one in
    /// memory.
    fn jump_unless_equal(&mut self, to: Label, one: (Src, MemoryOperand), two: Option<(Src, MemoryOperand)>) {
        let order = if self.width.is_wide() { Order::NotEqual } else { Order::Equal };
        let before = (self.masks, self.taken);
        self.masks = 0;
        let one = self.compared(one.0, Src::All(one.1), order, false);
        let two = two.map_or(one, |(row, word)| self.compared(row, Src::All(word), order, false));
        match (one, two) {
            (Mask::K(one), Mask::K(two)) => {
                self.asm.add(Instruction::with2(Code::VEX_Kortestw_kr_kr, one, two));
                self.asm.jump_if(When::NotZero, to);
            }
            (Mask::V(equal), two) => {
                if two != one {
                    self.intersect(one, two);
                }
                let exec = self.exec_vector();
                self.asm.add(Instruction::with2(Code::VEX_Vtestps_ymm_ymmm256, equal, exec));
                self.asm.jump_if(When::NotBelow, to);
            }
            (Mask::K(_), Mask::V(_)) => self.asm.fail(),
        }
        (self.masks, self.taken) = before;
    }

    /// Goes on with the strips behind these, at `head`, unless they are the wave's last ones.
    pub(crate) fn advance(&mut self, strips: u8, lanes: u8, head: Label) {
        let bytes = strips * self.width.lanes();
        let mask_bytes = i32::from(bytes / 8);
        self.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RDI, 4 * i32::from(bytes)));
        self.asm.add(Instruction::with2(Code::Add_rm64_imm8, Register::RSI, mask_bytes));
        self.asm.add(Instruction::with2(Code::Add_rm32_imm8, Register::R11D, mask_bytes));
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, Register::R11D, i32::from(lanes / 8)));
        self.asm.jump_if(When::Below, head);
    }

    /// Goes back to the first strip.
    pub(crate) fn go_back(&mut self, lanes: u8) {
        self.asm.add(Instruction::with2(Code::Sub_rm64_imm32, Register::RDI, 4 * i32::from(lanes)));
        self.asm.add(Instruction::with2(Code::Sub_rm64_imm8, Register::RSI, i32::from(lanes / 8)));
        self.asm.add(Instruction::with2(Code::Xor_r32_rm32, Register::R11D, Register::R11D));
    }

    /// What is done from a label on, behind all other code, before this place goes on.
    fn lies_behind(&mut self, there: Label, rare: impl FnOnce(&mut Emit) + 'static) {
        let back = self.asm.label();
        self.asm.bind(back);
        let state = self.state();
        let whole = move |e: &mut Emit| {
            e.asm.bind(there);
            rare(e);
            e.asm.jump(back);
        };
        self.cold.push((state, Box::new(whole)));
    }

    /// Integers of singles, towards zero. What is out of range is the least one.
    pub(crate) fn truncate(&mut self, d: Register, a: Src) {
        self.op1(width::TO_INT, d, a);
    }

    /// `d = a`, denormals as zeros with their signs.
    pub(crate) fn flush(&mut self, d: Register, a: Src) {
        let before = self.taken;
        self.flush_with(d, a);
        self.taken = before;
    }

    fn flush_with(&mut self, d: Register, a: Src) {
        let a = self.reg(a);
        if self.width.is_wide() {
            let mask = self.constant(EXPONENT);
            let test = Instruction::with3(Code::EVEX_Vptestnmd_kr_k1_zmm_zmmm512b32, Register::K7, a, broadcast(mask));
            self.asm.add(test);
            self.mov(d, Src::Reg(a));
            let sign = self.constant(SIGN);
            let and = Instruction::with3(width::AND.of(self.width), d, d, broadcast(sign));
            self.masked(Register::K7, and);
            return;
        }
        let (low, zero) = (self.temp(), self.temp());
        self.op(width::AND, low, Src::Reg(a), Src::Const(EXPONENT));
        self.op(width::XOR, zero, Src::Reg(zero), Src::Reg(zero));
        self.asm.add(Instruction::with3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, low, low, zero));
        self.op(width::AND, zero, Src::Reg(a), Src::Const(SIGN));
        self.mov(d, Src::Reg(a));
        self.blend(d, Mask::V(low), Src::Reg(zero));
    }
}

/// A word of memory for all lanes.
fn broadcast(mut place: MemoryOperand) -> MemoryOperand {
    place.is_broadcast = true;
    place
}
