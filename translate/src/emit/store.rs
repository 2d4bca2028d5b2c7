// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Stores to memory and to LDS, for the lanes of a strip.
//!
//! Lanes that lie side by side are stored at once: one word with a mask of lanes, more of them if
//! all lanes are active. In LDS others are stored one after the other, in the order of lanes, for
//! their words may overlap; a scatter of single words has that order. In memory they are the
//! engine's.
//!
//! Where the engine says so of a page, all lanes of a strip are stored past the host's caches. Such
//! a page has another tag, which only stores look for that may go there.

use super::access::{context, known, request, slot, LINE};
use super::*;
use crate::context::{Accessing, Context, Known, Slot};
use crate::plan::{Access, Space};
use std::mem::offset_of;

impl Emit {
    /// Stores the words of an access, whose shape is known.
    pub(crate) fn store_words(&mut self, access: &Access, look: usize, base: MemoryOperand, out: Label) {
        let (access, lds) = (*access, access.space == Space::Lds);
        let (single, done, page, again) = (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        let found = self.asm.label();
        let (words, lanes) = (i32::from(access.words), i32::from(self.width.lanes()));
        let rows = move |part: usize| (0..u16::from(access.words)).map(move |word| access.data[part] + word);
        let parts = 0..usize::from(access.parts);
        let by_lines = words != 3 || self.width.is_wide();
        if by_lines {
            let shape = known(look, offset_of!(Known, shape));
            self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, shape, LINE));
            self.asm.jump_if(When::NotZero, single);
            if words > 1 {
                self.need_all(single);
            }
            self.asm.bind(again);
            self.asm.load64(Register::RAX, known(look, offset_of!(Known, base)));
            if !lds {
                self.host_on(&access, (access.offsets[0], 4 * words * lanes), [single, page]);
                self.foresee(&access, 4 * words * lanes);
            }
            self.asm.bind(found);
            for part in parts.clone() {
                self.begin();
                let values = self.values(rows(part));
                self.store_line(&values, if lds { access.offsets[part] } else { 0 }, false);
            }
        } else {
            self.asm.jump(single);
        }
        self.asm.bind(done);
        let rare = move |e: &mut Emit| {
            e.asm.bind(single);
            let all: Vec<u16> = parts.flat_map(rows).collect();
            match (lds, &all[..]) {
                (true, &[row]) if e.width.is_wide() => e.scatter_in_lds(&access, row),
                (true, _) => e.store_in_lds(&access, &all),
                (false, _) => e.store_singly(&access, &all, base, out),
            }
            e.asm.jump(done);
            if by_lines && !lds {
                e.asm.bind(page);
                if access.past {
                    e.store_past(&all, [found, done]);
                }
                e.ask_page(&access, out);
                e.asm.jump(again);
            }
        };
        let state = self.state();
        self.cold.push((state, Box::new(rare)));
    }

    /// What rows have for the strip.
    pub(super) fn values(&mut self, rows: impl Iterator<Item = u16>) -> Vec<Register> {
        rows.map(|row| {
            let source = self.row_source(row);
            self.reg(source)
        })
        .collect()
    }

    /// Jumps unless all lanes of the strip are active.
    pub(super) fn need_all(&mut self, otherwise: Label) {
        let all = if self.width.is_wide() { 0xffff } else { 0xff };
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm32, context(offset_of!(Context, active)), all));
        self.asm.jump_if(When::NotZero, otherwise);
    }

    /// Stores to a page past the caches, if its slot says so. `rbp` and `r13` are as
    /// [`Emit::host`] leaves them. Jumps to the first label with the host's address in `rax` if the
    /// strip has no whole vectors there, and to the second one if they are stored.
    fn store_past(&mut self, rows: &[u16], [found, done]: [Label; 2]) {
        let unknown = self.asm.label();
        self.jump_past(When::NotZero, unknown);
        self.host_of_slot();
        let lanes = i32::from(self.width.lanes());
        self.asm.add(Instruction::with2(Code::Test_rm32_imm32, Register::EAX, 4 * lanes - 1));
        self.asm.jump_if(When::NotZero, found);
        self.need_all(found);
        self.begin();
        let values = self.values(rows.iter().copied());
        self.store_line(&values, 0, true);
        let bytes = 4 * lanes * rows.len() as i32;
        self.asm.add(Instruction::with2(Code::Add_rm64_imm32, context(offset_of!(Context, passed)), bytes));
        self.asm.jump(done);
        self.asm.bind(unknown);
    }

    /// Jumps if the slot's page is stored to past the caches, or unless. `rbp` and `r13` are as
    /// [`Emit::host`] leaves them.
    pub(super) fn jump_past(&mut self, when: When, to: Label) {
        self.asm.add(Instruction::with2(Code::Or_rm64_imm8, Register::RBP, Accessing::PAST as i32));
        self.asm.add(Instruction::with2(Code::Cmp_r64_rm64, Register::RBP, slot(offset_of!(Slot, tag))));
        self.asm.jump_if(when, to);
    }

    /// Leaves unless the active lanes' addresses are those of whole words.
    pub(crate) fn need_aligned(&mut self, row: u16, offset: i32, out: Label) {
        let at = self.temp();
        self.either(width::ADD, at, self.row_source(row), Src::Const(offset as u32));
        self.op(width::AND, at, Src::Reg(at), Src::Const(3));
        let apart = self.once(|e| e.compared(Src::Reg(at), Src::Const(0), Order::NotEqual, true));
        self.jump_if_any(apart, out);
    }

    /// Adds the active lanes' words to LDS, in the order of lanes, because they may be the same
    /// words. Those beyond its end are left out. `r8` and `r10` are free in a store's code.
    pub(crate) fn add_in_lds(&mut self, access: &Access) {
        let (addresses, words) = (self.of_lane(access.address), self.of_lane(access.data[0]));
        let done = self.asm.label();
        self.asm.load32(Register::R13D, context(offset_of!(Context, lds_bytes)));
        self.asm.add(Instruction::with2(Code::Sub_rm32_imm8, Register::R13D, 4));
        self.asm.jump_if(When::Below, done);
        self.asm.load64(Register::R8, context(offset_of!(Context, lds)));
        self.for_lanes(|e| {
            let beyond = e.asm.label();
            e.asm.load32(Register::EAX, addresses);
            e.asm.add(Instruction::with2(Code::Add_rm32_imm32, Register::EAX, access.offsets[0]));
            e.asm.add(Instruction::with2(Code::Cmp_rm32_r32, Register::EAX, Register::R13D));
            e.asm.jump_if(When::Above, beyond);
            e.asm.load32(Register::R10D, words);
            let word = MemoryOperand::with_base_index(Register::R8, Register::RAX);
            e.asm.add(Instruction::with2(Code::Add_rm32_r32, word, Register::R10D));
            e.asm.bind(beyond);
        });
        self.asm.bind(done);
    }

    /// Stores a word of each active lane to LDS, within whose bounds they are. Of lanes with the
    /// same place the last one counts.
    fn scatter_in_lds(&mut self, access: &Access, row: u16) {
        let before = self.taken;
        let [places, words] = [access.address, row].map(|row| {
            let source = self.row_source(row);
            self.reg(source)
        });
        self.asm.load64(Register::RAX, context(offset_of!(Context, lds)));
        let offset = i64::from(access.offsets[0]);
        let place = MemoryOperand::with_base_index_scale_displ_size(Register::RAX, places, 1, offset, 1);
        self.asm.add(Instruction::with3(Code::VEX_Kandw_kr_kr_kr, Register::K7, EXEC, EXEC));
        let scatter = Instruction::with2(Code::EVEX_Vpscatterdd_vm32z_k1_zmm, place, words);
        self.masked(Register::K7, scatter);
        self.taken = before;
    }

    /// Stores all words of each active lane to LDS, within whose bounds they are, before those of
    /// the next one. `r10` and `r12` are free behind a store's look.
    fn store_in_lds(&mut self, access: &Access, rows: &[u16]) {
        self.asm.load64(Register::R13, context(offset_of!(Context, lds)));
        self.for_lanes(|e| {
            e.asm.load32(Register::EAX, e.of_lane(access.address));
            for (number, row) in rows.iter().enumerate() {
                let (part, word) = (number / usize::from(access.words), number % usize::from(access.words));
                let offset = i64::from(access.offsets[part]) + 4 * word as i64;
                e.asm.load32(Register::R10D, e.of_lane(*row));
                let place = MemoryOperand::with_base_index_scale_displ_size(Register::R13, Register::RAX, 1, offset, 1);
                e.asm.store32(place, Register::R10D);
            }
        });
    }

    /// Does something for each active lane, whose number is in `r12`. `ebp` has the others.
    fn for_lanes(&mut self, each: impl FnOnce(&mut Emit)) {
        let next = self.asm.label();
        self.asm.load32(Register::EBP, context(offset_of!(Context, active)));
        self.asm.bind(next);
        self.asm.add(Instruction::with2(Code::Bsf_r32_rm32, Register::R12D, Register::EBP));
        self.asm.add(Instruction::with2(Code::Btr_rm32_r32, Register::EBP, Register::R12D));
        each(self);
        self.asm.add(Instruction::with2(Code::Test_rm32_r32, Register::EBP, Register::EBP));
        self.asm.jump_if(When::NotZero, next);
    }

    /// A row's word of the lane in `r12`.
    fn of_lane(&self, row: u16) -> MemoryOperand {
        let mut place = self.row(row);
        (place.index, place.scale) = (Register::R12, 4);
        place
    }

    /// Has the engine store the words of each active lane to memory.
    pub(crate) fn store_singly(&mut self, access: &Access, rows: &[u16], base: MemoryOperand, out: Label) {
        let before = self.taken;
        for (word, row) in rows.iter().enumerate() {
            let source = self.row_source(*row);
            let value = self.reg(source);
            let place = request(offset_of!(Accessing, result) + 64 * word);
            self.asm.add(Instruction::with2(width::STORE.of(self.width), place, value));
            self.taken = before;
        }
        self.ask(access, (access.offsets[0], Accessing::STORE, rows.len()), base, out);
        self.fill_slot();
        self.taken = before;
    }
}
