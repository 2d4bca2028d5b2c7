// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The context's slots of pages, as machine code finds, asks for and fills them.

use crate::assembler::{at, Assembler};
use crate::context::{Accessing, Context, Slot, SLOTS};
use iced_x86::{Code, Instruction, MemoryOperand, Register};
use std::mem::offset_of;

/// Bytes of a page.
pub(crate) const PAGE: i32 = 4096;

fn field(offset: usize) -> i64 {
    i64::try_from(offset).unwrap_or(0)
}

/// The registers that have the context, and the place of a slot.
#[derive(Clone, Copy)]
pub(crate) struct Slots {
    pub(crate) context: Register,
    pub(crate) place: Register,
}

impl Slots {
    fn request(self, offset: usize) -> MemoryOperand {
        at(self.context, field(offset_of!(Context, accessing) + offset))
    }

    /// A field of the slot.
    pub(crate) fn slot(self, offset: usize) -> MemoryOperand {
        let offset = field(offset_of!(Context, slots) + offset);
        MemoryOperand::with_base_index_scale_displ_size(self.context, self.place, 1, offset, 1)
    }

    /// The place becomes that of the slot for an address. Of any stride, the highest bits of such a
    /// product are spread evenly.
    pub(crate) fn find(self, asm: &mut Assembler, address: Register) {
        let low = Register::EAX + (self.place as u32 - Register::RAX as u32);
        asm.move64(self.place, address);
        asm.add(Instruction::with2(Code::Shr_rm64_imm8, self.place, PAGE.trailing_zeros()));
        asm.add(Instruction::with3(Code::Imul_r32_rm32_imm32, low, low, 0x9e37_79b1_u32));
        asm.add(Instruction::with2(Code::Shr_rm32_imm8, low, 32 - SLOTS.trailing_zeros()));
        asm.add(Instruction::with2(Code::Shl_rm32_imm8, low, size_of::<Slot>().trailing_zeros()));
    }

    /// Writes the request for the page of an address. The numbers are fields of [`Accessing`].
    pub(crate) fn ask(self, asm: &mut Assembler, address: Register, [words, flat, site, past, kind]: [u32; 5]) {
        asm.store64(self.request(offset_of!(Accessing, base)), address);
        for (place, value) in [
            (offset_of!(Accessing, words), words),
            (offset_of!(Accessing, flat), flat),
            (offset_of!(Accessing, site), site),
            (offset_of!(Accessing, past), past),
            (offset_of!(Accessing, kind), kind),
        ] {
            asm.add(Instruction::with2(Code::Mov_rm32_imm32, self.request(place), value));
        }
    }

    /// The slot gets the page that the engine has answered. By way of `rax`.
    pub(crate) fn fill(self, asm: &mut Assembler) {
        asm.load64(Register::RAX, self.request(offset_of!(Accessing, page)));
        self.find(asm, Register::RAX);
        let stamp = at(self.context, field(offset_of!(Context, stamp)));
        asm.add(Instruction::with2(Code::Or_r64_rm64, Register::RAX, stamp));
        asm.store64(self.slot(offset_of!(Slot, tag)), Register::RAX);
        asm.load64(Register::RAX, self.request(offset_of!(Accessing, host)));
        asm.store64(self.slot(offset_of!(Slot, host)), Register::RAX);
    }
}
