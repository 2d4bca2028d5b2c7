// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Host instructions into a buffer: the encoder, branches, and a pool of constants.
//!
//! The code does not depend on its address. Constants lie in a pool of words beside it, which a
//! register points to. Branches are written with a displacement of 32 bits, which is filled in when
//! all labels have their places.
//!
//! An instruction that the encoder refuses makes the whole piece refused ([`Assembler::finish`]),
//! so that callers need not look after each one.

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};

/// Bytes that nearly all pieces fit into.
const ROOM: usize = 4096;

/// A place in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// A condition of a branch, by its number in the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    Below = 2,
    NotBelow = 3,
    Above = 7,
    Zero = 4,
    NotZero = 5,
}

/// Code that is being written.
pub(crate) struct Assembler {
    encoder: Encoder,
    at: usize,
    labels: Vec<Option<usize>>,
    /// Where displacements are to be filled in, and the labels that they lead to.
    open: Vec<(usize, Label)>,
    broken: bool,
}

impl Assembler {
    pub(crate) fn new() -> Assembler {
        let encoder = Encoder::try_with_capacity(64, ROOM).unwrap_or_else(|_| Encoder::new(64));
        Assembler { encoder, at: 0, labels: Vec::new(), open: Vec::new(), broken: false }
    }

    /// The piece is not to be used: something has no encoding, or there are too few registers.
    pub(crate) fn fail(&mut self) {
        self.broken = true;
    }

    /// Adds an instruction.
    pub(crate) fn add(&mut self, instruction: Result<Instruction, IcedError>) {
        if self.broken {
            return;
        }
        match instruction.and_then(|instruction| self.encoder.encode(&instruction, self.at as u64)) {
            Ok(bytes) => self.at += bytes,
            Err(_) => self.fail(),
        }
    }

    /// The same for the lanes of a mask. `zeroes`: the others become zero.
    pub(crate) fn masked(&mut self, mask: Register, zeroes: bool, instruction: Result<Instruction, IcedError>) {
        self.add(instruction.map(|mut instruction| {
            instruction.set_op_mask(mask);
            instruction.set_zeroing_masking(zeroes);
            instruction
        }));
    }

    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label is here.
    pub(crate) fn bind(&mut self, label: Label) {
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(self.at);
        }
    }

    fn displacement(&mut self, opcode: &[u8], label: Label) {
        for &byte in opcode.iter().chain(&[0; 4]) {
            self.encoder.write_u8(byte);
        }
        self.at += opcode.len() + 4;
        self.open.push((self.at - 4, label));
    }

    pub(crate) fn jump(&mut self, to: Label) {
        self.displacement(&[0xe9], to);
    }

    pub(crate) fn jump_if(&mut self, when: When, to: Label) {
        self.displacement(&[0x0f, 0x80 | when as u8], to);
    }

    /// `rbx` = the label's address.
    pub(crate) fn way_out(&mut self, label: Label) {
        self.displacement(&[0x48, 0x8d, 0x1d], label);
    }

    /// Calls code at an address, by way of `rax`.
    pub(crate) fn call(&mut self, to: u64) {
        self.add(Instruction::with2(Code::Mov_r64_imm64, Register::RAX, to));
        self.add(Instruction::with1(Code::Call_rm64, Register::RAX));
    }

    /// Goes on at an address, by way of `rax`.
    pub(crate) fn jump_far(&mut self, to: u64) {
        self.add(Instruction::with2(Code::Mov_r64_imm64, Register::RAX, to));
        self.add(Instruction::with1(Code::Jmp_rm64, Register::RAX));
    }

    /// The code; `None` if it is not to be used.
    pub(crate) fn finish(mut self) -> Option<Vec<u8>> {
        let mut code = self.encoder.take_buffer();
        for (at, label) in self.open {
            let target = i64::try_from((*self.labels.get(label.0)?)?).ok()?;
            let distance = i32::try_from(target - i64::try_from(at + 4).ok()?).ok()?;
            code.get_mut(at..at + 4)?.copy_from_slice(&distance.to_le_bytes());
        }
        (!self.broken).then_some(code)
    }
}

/// A word of memory behind a register.
pub(crate) fn at(base: Register, offset: i64) -> MemoryOperand {
    MemoryOperand::with_base_displ(base, offset)
}

/// Shorthands for general registers.
impl Assembler {
    /// `register = [base + offset]`, 32 bits.
    pub(crate) fn load32(&mut self, register: Register, from: MemoryOperand) {
        self.add(Instruction::with2(Code::Mov_r32_rm32, register, from));
    }

    pub(crate) fn store32(&mut self, to: MemoryOperand, register: Register) {
        self.add(Instruction::with2(Code::Mov_rm32_r32, to, register));
    }

    pub(crate) fn load64(&mut self, register: Register, from: MemoryOperand) {
        self.add(Instruction::with2(Code::Mov_r64_rm64, register, from));
    }

    /// Two words as one number of 64 bits. The processor hands what was stored a moment ago to a
    /// load only if one store has all of it, and these may be two stores. Otherwise the load waits
    /// for all stores before them.
    pub(crate) fn load_pair(&mut self, [low, high]: [Register; 2], from: MemoryOperand) {
        let (mut second, small) = (from, |wide: Register| Register::EAX + (wide as u32 - Register::RAX as u32));
        second.displacement += 4;
        self.load32(small(low), from);
        self.load32(small(high), second);
        self.add(Instruction::with2(Code::Shl_rm64_imm8, high, 32u32));
        self.add(Instruction::with2(Code::Or_r64_rm64, low, high));
    }

    pub(crate) fn store64(&mut self, to: MemoryOperand, register: Register) {
        self.add(Instruction::with2(Code::Mov_rm64_r64, to, register));
    }

    pub(crate) fn move64(&mut self, to: Register, from: Register) {
        self.add(Instruction::with2(Code::Mov_r64_rm64, to, from));
    }

    pub(crate) fn push(&mut self, register: Register) {
        self.add(Instruction::with1(Code::Push_r64, register));
    }

    pub(crate) fn pop(&mut self, register: Register) {
        self.add(Instruction::with1(Code::Pop_r64, register));
    }

    pub(crate) fn ret(&mut self) {
        self.add(Ok(Instruction::with(Code::Retnq)));
    }
}

/// Words of a line of the host's cache.
const LINE: usize = 16;

/// Words of a pool's line.
#[repr(C, align(64))]
pub(crate) struct Line([u32; LINE]);

/// A pool that is complete. No vector of it lies in two lines.
pub(crate) type Constants = Box<[Line]>;

/// Words that code reads: values for all lanes, and values for each lane of a strip.
#[derive(Default)]
pub(crate) struct Pool {
    words: Vec<u32>,
}

impl Pool {
    /// The offset of words that begin at a multiple of `count` words.
    fn place(&mut self, words: &[u32], count: usize) -> i64 {
        let known = self.words.chunks(count).position(|chunk| chunk == words);
        let index = known.map_or_else(
            || {
                while self.words.len() % count != 0 {
                    self.words.push(0);
                }
                self.words.extend_from_slice(words);
                self.words.len() - count
            },
            |chunk| chunk * count,
        );
        4 * i64::try_from(index).unwrap_or(0)
    }

    /// The offset of a word.
    pub(crate) fn word(&mut self, word: u32) -> i64 {
        self.place(&[word], 1)
    }

    /// The offset of a word of 64 bits.
    pub(crate) fn double(&mut self, bits: u64) -> i64 {
        let [low, high] = [bits & 0xffff_ffff, bits >> 32].map(|word| u32::try_from(word).unwrap_or(0));
        self.place(&[low, high], 2)
    }

    /// The offset of a vector of words.
    pub(crate) fn vector(&mut self, words: &[u32]) -> i64 {
        self.place(words, words.len().max(1))
    }

    pub(crate) fn into_constants(self) -> Constants {
        let line = |words: &[u32]| {
            let mut line = Line([0; LINE]);
            line.0[..words.len()].copy_from_slice(words);
            line
        };
        self.words.chunks(LINE).map(line).collect()
    }
}
