// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loads of memory and of LDS, for the lanes of a strip; `store` has stores.
//!
//! How the lanes' addresses lie is found once for a row of addresses ([`Emit::look`]): side by
//! side, all the same, one word apart though each has more, or anyhow. Accesses by the same row, at
//! other offsets, use that. In LDS the bounds of all of them are looked at there, too.
//!
//! Lanes that lie side by side in one page, or are at one address, are loaded at once, if the code
//! has the page in a slot. Slots are found by the page's number and the access. Lanes that lie
//! anyhow in one page are gathered ([`Emit::scattered`]). What remains is the engine's
//! ([`Emit::single`]); it also fills the slot. In LDS lanes that lie anyhow are gathered.
//!
//! Memory may vanish under an access: a fault goes on at the way out, with the strip's rounds in
//! `r10`. So does a load that the engine cannot do. `r12` is four times the first active lane.

use super::*;
use crate::context::{Accessing, Context, Known, Slot, FORESEEN, KNOWN};
use crate::plan::{Access, Space};
use crate::slots::Slots;
pub(super) use crate::slots::PAGE;
use std::mem::offset_of;

/// Rows of addresses whose shape is known.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Key {
    row: u16,
    bytes: u32,
    base: Option<MemoryOperand>,
    lds: bool,
}

/// Lanes lie side by side, from the base on, or all at the base.
pub(super) const LINE: i32 = 1;
const SAME: i32 = 2;
/// Lanes of several words are one word apart.
const SLIDE: i32 = 3;
/// Places of the code that loads an access.
#[derive(Clone, Copy)]
pub(super) struct Ways {
    /// Tries again, with the base in `rax`.
    pub(super) again: Label,
    /// Lanes that are no line, and those that are in two pages or lie anyhow.
    others: Label,
    single: Label,
    /// No slot has their page.
    page: Label,
    pub(super) done: Label,
}

/// Rounds of a loop after which prefetched memory is loaded.
const ROUNDS_AHEAD: u32 = 4;

pub(super) fn field(offset: usize) -> i64 {
    i64::try_from(offset).unwrap_or(0)
}

pub(super) fn context(offset: usize) -> MemoryOperand {
    at(Register::RDX, field(offset))
}

pub(super) fn known(index: usize, offset: usize) -> MemoryOperand {
    context(offset_of!(Context, known) + index * size_of::<Known>() + offset)
}

/// A slot's place is in `r13`.
const IN_STRIPS: Slots = Slots { context: Register::RDX, place: Register::R13 };

pub(super) fn slot(offset: usize) -> MemoryOperand {
    IN_STRIPS.slot(offset)
}

pub(super) fn request(offset: usize) -> MemoryOperand {
    context(offset_of!(Context, accessing) + offset)
}

/// The first active lane's word of a vector that is in memory.
pub(super) fn first_of(mut place: MemoryOperand) -> MemoryOperand {
    place.index = Register::R12;
    place.scale = 1;
    place
}

impl Emit {
    /// The strip begins: the first active lane, the active ones, and the way out of a fault.
    pub(crate) fn begin_accesses(&mut self, out: Label) {
        if self.width.is_wide() {
            self.asm.add(Instruction::with2(Code::VEX_Kmovw_r32_kr, Register::EAX, EXEC));
        } else {
            let exec = self.exec_vector();
            self.asm.add(Instruction::with2(Code::VEX_Vmovmskps_r32_ymm, Register::EAX, exec));
        }
        self.asm.store32(context(offset_of!(Context, active)), Register::EAX);
        self.asm.add(Instruction::with2(Code::Bsf_r32_rm32, Register::R12D, Register::EAX));
        self.asm.add(Instruction::with2(Code::Shl_rm32_imm8, Register::R12D, 2u32));
        self.asm.way_out(out);
    }

    /// A row was written: addresses in it are others.
    pub(crate) fn forget_row(&mut self, row: u16) {
        let is_high = |key: &Key| !key.lds && key.base.is_none() && key.row + 1 == row;
        self.looked.retain(|(key, _)| key.row != row && !is_high(key));
    }

    pub(super) fn set_shape(&mut self, index: usize, shape: i32) {
        self.asm.add(Instruction::with2(Code::Mov_rm32_imm32, known(index, offset_of!(Known, shape)), shape));
    }

    /// A row in memory, where a lane's word can be read.
    pub(super) fn spread_out(&mut self, row: u16, room: usize) -> MemoryOperand {
        match self.row_source(row) {
            Src::Row(place) => place,
            Src::Reg(register) => {
                let place = context(offset_of!(Context, scratch) + 64 * room);
                self.asm.add(Instruction::with2(width::STORE.of(self.width), place, register));
                place
            }
            _ => {
                self.asm.fail();
                context(0)
            }
        }
    }

    /// Finds how the addresses of an access lie, unless that is known. All accesses by
    /// these addresses reach at most `end` bytes beyond them.
    pub(crate) fn look(
        &mut self,
        access: &Access,
        base: MemoryOperand,
        end: u32,
        out: Label,
        is_guessed: bool,
    ) -> usize {
        let (row, bytes, lds) = (access.address, access.bytes(), access.space == Space::Lds);
        let key = Key { row, bytes, base: access.base.map(|_| base), lds };
        if let Some((_, index)) = self.looked.iter().find(|(other, _)| *other == key) {
            return *index;
        }
        let index = self.looks;
        self.looks += 1;
        if index >= KNOWN {
            self.asm.fail();
            return 0;
        }
        let before = (self.taken, self.masks);
        if self.wave_lanes != 0 {
            let there = self.asm.label();
            self.look_on(access, base, end, [out, there], (index, is_guessed));
        } else {
            self.look_at_strip(access, base, end, out, (index, is_guessed));
        }
        self.asm.store64(known(index, offset_of!(Known, base)), Register::RAX);
        (self.taken, self.masks) = before;
        self.looked.push((key, index));
        self.base_of = Some(index);
        index
    }

    /// The same for a strip that the look does not know yet: the base is in `rax`.
    pub(super) fn look_at_strip(
        &mut self,
        access: &Access,
        base: MemoryOperand,
        end: u32,
        out: Label,
        (index, is_guessed): (usize, bool),
    ) {
        let (row, bytes, lds) = (access.address, access.bytes(), access.space == Space::Lds);
        // Where lane 0 would be, active or not.
        let lanes: Vec<u32> = (0..u32::from(self.width.lanes())).map(|lane| lane * bytes).collect();
        let steps = Src::Row(at(Register::RCX, self.pool.vector(&lanes)));
        let from = self.temp();
        self.op(width::SUB, from, self.row_source(row), steps);
        let place = context(offset_of!(Context, scratch));
        self.asm.add(Instruction::with2(width::STORE.of(self.width), place, from));
        let first = first_of(place);
        let lows = self.spread_out(row, 1);
        self.asm.load32(Register::EAX, first_of(lows));
        self.asm.add(Instruction::with2(Code::Mov_r32_rm32, Register::EBP, Register::R12D));
        if access.words > 1 {
            let words = u32::from(access.words);
            self.asm.add(Instruction::with3(Code::Imul_r32_rm32_imm8, Register::EBP, Register::EBP, words));
        } else if bytes < 4 {
            self.asm.add(Instruction::with2(Code::Shr_rm32_imm8, Register::EBP, 2 - bytes.trailing_zeros()));
        }
        self.asm.add(Instruction::with2(Code::Sub_r64_rm64, Register::RAX, Register::RBP));
        self.set_shape(index, LINE);
        if !is_guessed {
            self.unless_equal(Src::Reg(from), first, move |e| {
                let place = e.spread_out(row, 0);
                let first = first_of(place);
                e.asm.load32(Register::EAX, first);
                e.set_shape(index, SAME);
                let source = e.row_source(row);
                let rest =
                    move |e: &mut Emit| if bytes > 4 && !lds { e.slides(row, index) } else { e.set_shape(index, 0) };
                e.unless_equal(source, first, rest);
            });
        }
        if lds {
            if !self.is_in_bounds {
                self.bounds(row, end, out);
            }
            if bytes != 4 {
                // Lanes of several words are loaded by whole strips.
                let (all, go_on) = (if self.width.is_wide() { 0xffff } else { 0xff }, self.asm.label());
                self.asm.add(Instruction::with2(Code::Cmp_rm32_imm32, context(offset_of!(Context, active)), all));
                self.asm.jump_if(When::Zero, go_on);
                self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, known(index, offset_of!(Known, shape)), SAME));
                self.asm.jump_if(When::Zero, go_on);
                self.set_shape(index, 0);
                self.asm.bind(go_on);
            }
            self.asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RAX, context(offset_of!(Context, lds))));
        } else {
            // Low words are not to wrap on their way: an offset might lead all lanes over the end
            // of 4 GiB into one page.
            let (go_on, whole) = (self.asm.label(), i64::from(self.line_bytes(access)) - 1);
            self.asm.add(Instruction::with2(Code::Lea_r64_m, Register::RBP, at(Register::RAX, whole)));
            self.asm.add(Instruction::with2(Code::Shr_rm64_imm8, Register::RBP, 32u32));
            self.asm.jump_if(When::Zero, go_on);
            self.set_shape(index, 0);
            self.asm.bind(go_on);
            if access.base.is_some() {
                self.asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RAX, base));
            } else {
                self.add_high(row + 1, index);
            }
        }
    }

    /// Adds the high words of addresses, which are all the same in lanes of a shape.
    fn add_high(&mut self, row: u16, index: usize) {
        let first = self.add_first_high(row);
        let high = self.row_source(row);
        self.unless_equal(high, first, move |e| e.set_shape(index, 0));
    }

    /// Adds the high word of the first active lane's address to `rax`; its place.
    pub(super) fn add_first_high(&mut self, row: u16) -> MemoryOperand {
        let first = first_of(self.spread_out(row, 1));
        self.asm.load32(Register::EBP, first);
        self.asm.add(Instruction::with2(Code::Shl_rm64_imm8, Register::RBP, 32u32));
        self.asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RAX, Register::RBP));
        first
    }

    /// Finds whether each lane begins a word behind the one before it, and reaches into the next.
    fn slides(&mut self, row: u16, index: usize) {
        let lanes: Vec<u32> = (0..u32::from(self.width.lanes())).map(|lane| 4 * lane).collect();
        let (from, steps) = (self.temp(), Src::Row(at(Register::RCX, self.pool.vector(&lanes))));
        self.op(width::SUB, from, self.row_source(row), steps);
        let place = context(offset_of!(Context, scratch));
        self.asm.add(Instruction::with2(width::STORE.of(self.width), place, from));
        self.asm.load32(Register::EAX, first_of(place));
        self.set_shape(index, SLIDE);
        self.unless_equal(Src::Reg(from), first_of(place), move |e| e.set_shape(index, 0));
    }

    /// Leaves unless `end` bytes behind the active lanes' addresses are in LDS.
    pub(crate) fn bounds(&mut self, row: u16, end: u32, out: Label) {
        self.asm.load32(Register::EBP, context(offset_of!(Context, lds_bytes)));
        self.asm.add(Instruction::with2(Code::Sub_rm32_imm32, Register::EBP, end));
        self.asm.jump_if(When::Below, out);
        let bound = context(offset_of!(Context, bound));
        self.asm.store32(bound, Register::EBP);
        let source = self.row_source(row);
        let beyond = self.once(|e| {
            let source = Src::Reg(e.reg(source));
            e.compared(source, Src::All(bound), Order::Greater, false)
        });
        self.jump_if_any(beyond, out);
    }

    /// Loads the words of an access. The registers are the destinations', in which nothing is that
    /// is still needed.
    pub(crate) fn load_words(
        &mut self,
        access: &Access,
        look: usize,
        part: usize,
        to: &[Register],
        base: MemoryOperand,
        out: Label,
    ) {
        let (access, offset) = (*access, access.offsets[part]);
        let ways = self.ways();
        if self.base_of.take() != Some(look) {
            self.asm.load64(Register::RAX, known(look, offset_of!(Known, base)));
        }
        self.begin_line(&access, (look, offset), ways);
        self.finish_line(&access, offset, to);
        self.asm.bind(ways.done);
        let (state, to) = (self.state(), to.to_vec());
        let rare = move |e: &mut Emit| e.load_otherwise(&access, (look, offset), &to, base, (ways, out));
        self.cold.push((state, Box::new(rare)));
    }

    pub(super) fn ways(&mut self) -> Ways {
        let [again, others, single, page, done] = [(); 5].map(|()| self.asm.label());
        Ways { again, others, single, page, done }
    }

    /// `rax` = the host's address of the lanes at the base in `rax`, if they are a line.
    pub(super) fn begin_line(&mut self, access: &Access, (look, offset): (usize, i32), ways: Ways) {
        self.asm.bind(ways.again);
        let shape = known(look, offset_of!(Known, shape));
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, shape, LINE));
        self.asm.jump_if(When::NotZero, ways.others);
        if access.space != Space::Lds {
            self.host_on(access, (offset, self.line_bytes(access)), [ways.single, ways.page]);
        }
    }

    /// Bytes of a strip's line.
    pub(super) fn line_bytes(&self, access: &Access) -> i32 {
        access.bytes() as i32 * i32::from(self.width.lanes())
    }

    /// Loads a line from `rax` on.
    pub(super) fn finish_line(&mut self, access: &Access, offset: i32, to: &[Register]) {
        let lds = access.space == Space::Lds;
        if !lds {
            self.foresee(access, self.line_bytes(access));
        }
        match (access.narrow, to) {
            (Some(narrow), &[to]) => self.narrow_line(narrow, to),
            _ => self.load_line(to, if lds { offset } else { 0 }, lds),
        }
    }

    /// Loads lanes that are no line in one page.
    pub(super) fn load_otherwise(
        &mut self,
        access: &Access,
        (look, offset): (usize, i32),
        to: &[Register],
        base: MemoryOperand,
        (ways, out): (Ways, Label),
    ) {
        let Ways { again, others, single, page, done } = ways;
        let (shape, lds) = (known(look, offset_of!(Known, shape)), access.space == Space::Lds);
        self.asm.bind(others);
        let (words, is_sliding) = (i32::from(access.words), self.asm.label());
        let slides = words > 1 && !lds;
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, shape, SAME));
        self.asm.jump_if(When::NotZero, if slides { is_sliding } else { single });
        if !lds {
            self.host(access, (offset, access.bytes() as i32), [single, page]);
        }
        match (access.narrow, to) {
            (Some(narrow), &[to]) => self.narrow_same(narrow, to),
            _ => self.same(to, if lds { offset } else { 0 }),
        }
        self.asm.jump(done);
        if slides {
            self.asm.bind(is_sliding);
            self.asm.add(Instruction::with2(Code::Cmp_rm32_imm8, shape, SLIDE));
            self.asm.jump_if(When::NotZero, single);
            let bytes = 4 * (words - 1 + i32::from(self.width.lanes()));
            self.host(access, (offset, bytes), [single, page]);
            for (word, register) in to.iter().enumerate() {
                let place = at(Register::RAX, 4 * field(word));
                self.asm.add(Instruction::with2(width::LOAD.of(self.width), *register, place));
            }
            self.asm.jump(done);
        }
        self.asm.bind(single);
        if lds {
            self.gather(access.address, to, offset);
        } else {
            let alone = self.asm.label();
            self.scattered(access, offset, to, base, [alone, page]);
            self.asm.jump(done);
            self.asm.bind(alone);
            self.single(access, offset, to, base, out);
            if let (Some(narrow), &[to]) = (access.narrow, to) {
                self.extend(narrow, to);
            }
        }
        self.asm.jump(done);
        if !lds {
            self.asm.bind(page);
            self.ask_page(access, out);
            self.asm.load64(Register::RAX, known(look, offset_of!(Known, base)));
            self.asm.jump(again);
        }
    }

    /// `rax` = the host's address of `bytes` at the GPU's address in `rax`. Jumps to the first
    /// label if they are in two pages. Jumps to the second one if no slot has their page, with
    /// their address in `rax`.
    pub(super) fn host(&mut self, access: &Access, (offset, bytes): (i32, i32), [apart, missing]: [Label; 2]) {
        self.tag(access, (offset, bytes), apart);
        self.match_slot(missing);
        self.host_of_slot();
    }

    /// The same for an access that goes on in the page of the last strip, as most do.
    pub(super) fn host_on(&mut self, access: &Access, (offset, bytes): (i32, i32), [apart, missing]: [Label; 2]) {
        if access.slot >= FORESEEN {
            return self.host(access, (offset, bytes), [apart, missing]);
        }
        let latest = |offset: usize| context(offset_of!(Context, latest) + access.slot * size_of::<Slot>() + offset);
        let (tag, host) = (latest(offset_of!(Slot, tag)), latest(offset_of!(Slot, host)));
        let there = self.asm.label();
        self.tag(access, (offset, bytes), apart);
        self.asm.add(Instruction::with2(Code::Cmp_r64_rm64, Register::RBP, tag));
        self.asm.jump_if(When::NotZero, there);
        self.lies_behind(there, move |e| {
            e.match_slot(missing);
            e.asm.store64(tag, Register::RBP);
            e.asm.load64(Register::RBP, slot(offset_of!(Slot, host)));
            e.asm.store64(host, Register::RBP);
        });
        self.host_of(host);
    }

    /// `rbp` = the tag of the slot for `bytes` at the address in `rax` and an offset, to which
    /// `rax` is set. Jumps if they are in two pages.
    fn tag(&mut self, access: &Access, (offset, bytes): (i32, i32), apart: Label) {
        if offset != 0 {
            self.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RAX, offset));
        }
        self.asm.add(Instruction::with2(Code::Mov_r32_rm32, Register::EBP, Register::EAX));
        self.asm.add(Instruction::with2(Code::And_rm32_imm32, Register::EBP, PAGE - 1));
        self.asm.add(Instruction::with2(Code::Cmp_rm32_imm32, Register::EBP, PAGE - bytes));
        self.asm.jump_if(When::Above, apart);
        self.asm.move64(Register::RBP, Register::RAX);
        self.asm.add(Instruction::with2(Code::And_rm64_imm32, Register::RBP, -PAGE));
        self.asm.add(Instruction::with2(Code::Or_r64_rm64, Register::RBP, context(offset_of!(Context, stamp))));
        let flags = Accessing::tag(0, access.space == Space::Flat, access.is_store);
        if flags != 0 {
            self.asm.add(Instruction::with2(Code::Or_rm64_imm8, Register::RBP, flags as i32));
        }
    }

    /// `rax` = the host's address of the GPU's address in `rax`, whose page the slot has.
    pub(super) fn host_of_slot(&mut self) {
        self.host_of(slot(offset_of!(Slot, host)));
    }

    /// The same where the page's first byte on the host is in memory.
    fn host_of(&mut self, page: MemoryOperand) {
        self.asm.add(Instruction::with2(Code::And_rm32_imm32, Register::EAX, PAGE - 1));
        self.asm.add(Instruction::with2(Code::Add_r64_rm64, Register::RAX, page));
    }

    /// Prefetches for some rounds later, if the strip goes on as since the last round, and if pages
    /// that follow one another do so on the host, too. The processor itself foresees no stride of
    /// more than a page.
    pub(super) fn foresee(&mut self, access: &Access, bytes: i32) {
        if self.stride_since(access) {
            self.prefetch_ahead(access, bytes);
        }
    }

    /// `rbp` = the bytes since the strip's last round, in a loop whose accesses are foreseen.
    pub(super) fn stride_since(&mut self, access: &Access) -> bool {
        if !self.prefetches || access.slot >= FORESEEN {
            return false;
        }
        let offset = field(offset_of!(Context, lasts) + access.slot * 64);
        let scale = if self.width.is_wide() { 4 } else { 8 };
        let last = MemoryOperand::with_base_index_scale_displ_size(Register::RDX, Register::R11, scale, offset, 1);
        self.asm.move64(Register::RBP, Register::RAX);
        self.asm.add(Instruction::with2(Code::Sub_r64_rm64, Register::RBP, last));
        self.asm.store64(last, Register::RAX);
        true
    }

    /// Prefetches a line for each line of the strip, so many strides ahead. A line that will be
    /// stored to is the processor's own then, so that stores wait in no line for one another.
    pub(super) fn prefetch_ahead(&mut self, access: &Access, bytes: i32) {
        let code = if access.is_store { Code::Prefetchw_m8 } else { Code::Prefetcht0_m8 };
        for line in 0..(i64::from(bytes) + 63) / 64 {
            let ahead = MemoryOperand::with_base_index_scale_displ_size(
                Register::RAX,
                Register::RBP,
                ROUNDS_AHEAD,
                64 * line,
                1,
            );
            self.asm.add(Instruction::with1(code, ahead));
        }
    }

    /// `r13` = the place of the slot for the page in `rax`.
    fn find_slot(&mut self) {
        IN_STRIPS.find(&mut self.asm, Register::RAX);
    }

    /// The same, and jumps unless the slot has the tag in `rbp`.
    fn match_slot(&mut self, missing: Label) {
        self.find_slot();
        self.asm.add(Instruction::with2(Code::Cmp_r64_rm64, Register::RBP, slot(offset_of!(Slot, tag))));
        self.asm.jump_if(When::NotZero, missing);
    }

    /// Has the engine find the page of the address in `rax`, or leaves.
    pub(super) fn ask_page(&mut self, access: &Access, out: Label) {
        let kind = if access.is_store { Accessing::PAGE_TO_WRITE } else { Accessing::PAGE };
        let (flat, site) = (u32::from(access.space == Space::Flat), access.slot as u32);
        let asked = [access.words.into(), flat, site, access.past.into(), kind];
        IN_STRIPS.ask(&mut self.asm, Register::RAX, asked);
        self.asm.call(self.host.access(self.may_flush));
        self.asm.add(Instruction::with2(Code::Test_rm32_r32, Register::EAX, Register::EAX));
        self.asm.jump_if(When::Zero, out);
        self.fill_slot();
    }

    /// Fills the slot of the page that the engine has found.
    pub(super) fn fill_slot(&mut self) {
        IN_STRIPS.fill(&mut self.asm);
    }

    /// One address for all lanes.
    fn same(&mut self, to: &[Register], offset: i32) {
        for (word, register) in to.iter().enumerate() {
            let place = at(Register::RAX, i64::from(offset) + 4 * field(word));
            self.asm.add(Instruction::with2(width::SPLAT.of(self.width), *register, place));
        }
    }

    /// Words of LDS, anywhere within its bounds.
    fn gather(&mut self, row: u16, to: &[Register], offset: i32) {
        let before = self.taken;
        let at_row = self.row_source(row);
        let lanes = self.temp();
        self.mov(lanes, at_row);
        self.asm.load64(Register::RAX, context(offset_of!(Context, lds)));
        for (word, register) in to.iter().enumerate() {
            let offset = i64::from(offset) + 4 * field(word);
            let place = MemoryOperand::with_base_index_scale_displ_size(Register::RAX, lanes, 1, offset, 1);
            if self.width.is_wide() {
                self.asm.add(Instruction::with2(Code::VEX_Kmovw_kr_km16, Register::K7, EXEC));
                let gather = Instruction::with2(Code::EVEX_Vgatherdps_zmm_k1_vm32z, *register, place);
                self.masked(Register::K7, gather);
            } else {
                let (mask, exec) = (self.temp(), self.exec_vector());
                self.mov(mask, Src::Reg(exec));
                self.asm.add(Instruction::with3(Code::VEX_Vgatherdps_ymm_vm32y_ymm, *register, place, mask));
                self.taken -= 1;
            }
        }
        self.taken = before;
    }

    /// Has the engine load the words of each active lane.
    fn single(&mut self, access: &Access, offset: i32, to: &[Register], base: MemoryOperand, out: Label) {
        let before = self.taken;
        self.ask(access, (offset, Accessing::LOAD, to.len()), base, out);
        self.fill_slot();
        for (word, register) in to.iter().enumerate() {
            let place = request(offset_of!(Accessing, result) + 64 * word);
            self.asm.add(Instruction::with2(width::LOAD.of(self.width), *register, place));
        }
        self.taken = before;
    }

    /// Asks the engine for an access by each active lane, or leaves.
    pub(super) fn ask(
        &mut self,
        access: &Access,
        (offset, kind, words): (i32, u32, usize),
        base: MemoryOperand,
        out: Label,
    ) {
        let store = width::STORE.of(self.width);
        let low = self.row_source(access.address);
        let low = self.reg(low);
        self.asm.add(Instruction::with2(store, request(offset_of!(Accessing, low)), low));
        let is_narrow = access.base.is_some() || access.space == Space::Lds;
        let high = if is_narrow { Src::Const(0) } else { self.row_source(access.address + 1) };
        let high = self.reg(high);
        self.asm.add(Instruction::with2(store, request(offset_of!(Accessing, high)), high));
        if access.base.is_some() {
            self.asm.load64(Register::RAX, base);
        } else {
            self.asm.add(Instruction::with2(Code::Xor_r32_rm32, Register::EAX, Register::EAX));
        }
        self.asm.add(Instruction::with2(Code::Add_rm64_imm32, Register::RAX, offset));
        self.asm.store64(request(offset_of!(Accessing, base)), Register::RAX);
        self.asm.load32(Register::EAX, context(offset_of!(Context, active)));
        self.asm.store32(request(offset_of!(Accessing, lanes)), Register::EAX);
        for (place, value) in [
            (offset_of!(Accessing, words), words as u32),
            (offset_of!(Accessing, flat), u32::from(access.space == Space::Flat)),
            (offset_of!(Accessing, kind), kind),
            (offset_of!(Accessing, narrow), access.narrow.map_or(0, |narrow| narrow.bytes.into())),
        ] {
            self.asm.add(Instruction::with2(Code::Mov_rm32_imm32, request(place), value));
        }
        self.asm.call(self.host.access(self.may_flush));
        self.asm.add(Instruction::with2(Code::Test_rm32_r32, Register::EAX, Register::EAX));
        self.asm.jump_if(When::Zero, out);
    }
}
