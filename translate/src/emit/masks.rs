// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Masks of lanes: scalar registers as the strips see them, and EXEC.
//!
//! Masks that a segment's strips write have *homes*, as far as there are general registers. The
//! strip's part is in the lowest bits, and the register turns by as many when the strip ends.
//! Behind the last strip it has the whole mask. Other masks are stored in parts, which are put
//! together at the end.
//!
//! A mask goes to its home or to memory when its register is taken for another one, or when the
//! round ends. Most are made anew before that, as VCC is by each sum of 64 bits.

use super::*;
use vkfd_isa::Operand;

/// Registers that are homes of masks.
const HOMES: [Register; 2] = [Register::R14, Register::R15];

/// The lowest bits of a home: a strip's, and as many as the host moves at a time.
fn part(home: Register, bytes: u32) -> Register {
    let number = home as u32 - Register::R8 as u32;
    match bytes {
        1 => Register::R8L + number,
        2 => Register::R8W + number,
        _ => Register::R8D + number,
    }
}

impl Emit {
    /// Gives the first of these masks homes, and loads them.
    pub(crate) fn begin_masks(&mut self, masks: &[u8], lanes: u8) {
        self.homes = masks.iter().copied().zip(HOMES).collect();
        for (n, home) in self.homes.clone() {
            self.asm.push(home);
            let from = at(Register::R9, 4 * i64::from(n));
            if lanes == 64 {
                self.asm.load64(home, from);
            } else {
                self.asm.load32(part(home, 4), from);
            }
        }
    }

    /// The strip ends, whether it was done or not.
    pub(crate) fn turn_masks(&mut self, lanes: u8) {
        let by = u32::from(self.width.lanes());
        for (_, home) in self.homes.clone() {
            self.asm.add(if lanes == 64 {
                Instruction::with2(Code::Ror_rm64_imm8, home, by)
            } else {
                Instruction::with2(Code::Ror_rm32_imm8, part(home, 4), by)
            });
        }
    }

    /// All strips are done: the masks with homes, and of the others these, become numbers.
    pub(crate) fn end_masks(&mut self, joined: &[u8], lanes: u8) {
        for &n in joined {
            if self.home(n).is_none() {
                self.join_mask(n, lanes);
            }
        }
        for (n, home) in self.homes.clone() {
            let to = at(Register::R9, 4 * i64::from(n));
            if lanes == 64 {
                self.asm.store64(to, home);
            } else {
                self.asm.store32(to, part(home, 4));
            }
        }
    }

    /// The caller's registers are as they were.
    pub(crate) fn leave_masks(&mut self) {
        self.homes.clone().into_iter().rev().for_each(|(_, home)| self.asm.pop(home));
    }

    fn home(&self, n: u8) -> Option<Register> {
        self.homes.iter().find(|(other, _)| *other == n).map(|(_, home)| *home)
    }

    /// The register for a mask that is kept until another takes its place.
    pub(super) fn kept_mask(&mut self) -> Mask {
        let mask = if self.width.is_wide() {
            let all = [Register::K2, Register::K3, Register::K4, Register::K5];
            self.turn += 1;
            Mask::K(all[self.turn % all.len()])
        } else {
            Mask::V(self.width.vector(self.width.vectors() - 2))
        };
        if let Some(at) = self.unsettled.iter().position(|(_, other)| *other == mask) {
            let (n, mask) = self.unsettled.remove(at);
            self.settle_mask(n, mask);
        }
        self.cached.retain(|(_, other)| *other != mask);
        mask
    }

    /// Forgets masks in registers: what comes next is reached from elsewhere, too.
    pub(crate) fn forget_masks(&mut self) {
        self.cached.clear();
    }

    pub(super) fn mask_place(place: MaskPlace) -> MemoryOperand {
        match place {
            MaskPlace::Scalar(n) => at(Register::RSI, 4 * i64::from(n)),
            MaskPlace::Trace(offset) => {
                MemoryOperand::with_base_index_scale_displ_size(Register::R8, Register::R11, 1, offset, 1)
            }
        }
    }

    /// A mask of the wave.
    pub(crate) fn mask(&mut self, place: MaskPlace) -> Mask {
        if let Some((_, mask)) = self.cached.iter().find(|(other, _)| *other == place) {
            return *mask;
        }
        let (mask, from) = (self.kept_mask(), Emit::mask_place(place));
        let home = match place {
            MaskPlace::Scalar(n) => self.home(n),
            MaskPlace::Trace(_) => None,
        };
        match (mask, home) {
            (Mask::K(k), Some(home)) => self.asm.add(Instruction::with2(Code::VEX_Kmovw_kr_r32, k, part(home, 4))),
            (Mask::V(v), Some(home)) => {
                self.asm.add(Instruction::with2(Code::Movzx_r32_rm8, Register::EAX, part(home, 1)));
                self.spread(v);
            }
            (Mask::K(k), None) => self.asm.add(Instruction::with2(Code::VEX_Kmovw_kr_km16, k, from)),
            (Mask::V(v), None) => {
                self.asm.add(Instruction::with2(Code::Movzx_r32_rm8, Register::EAX, from));
                self.spread(v);
            }
        }
        self.cached.push((place, mask));
        mask
    }

    /// A vector of the mask whose bits are in `eax`.
    pub(crate) fn spread(&mut self, v: Register) {
        let small = Register::XMM0 + (v as u32 - Register::YMM0 as u32);
        let bits = at(Register::RCX, self.pool.vector(&[1, 2, 4, 8, 16, 32, 64, 128]));
        self.asm.add(Instruction::with2(Code::VEX_Vmovd_xmm_rm32, small, Register::EAX));
        self.asm.add(Instruction::with2(Code::VEX_Vpbroadcastd_ymm_xmmm32, v, small));
        self.asm.add(Instruction::with3(Code::VEX_Vpand_ymm_ymm_ymmm256, v, v, bits));
        self.asm.add(Instruction::with3(Code::VEX_Vpcmpeqd_ymm_ymm_ymmm256, v, v, bits));
    }

    /// Makes a mask and gives it to a scalar register; NULL takes nothing.
    pub(crate) fn set_mask(&mut self, n: u8, make: impl FnOnce(&mut Emit, Mask)) {
        let mask = if self.width.is_wide() { self.kept_mask() } else { self.temp_mask() };
        make(self, mask);
        if n == Operand::NULL {
            return;
        }
        self.cached.retain(|(place, _)| *place != MaskPlace::Scalar(n));
        self.unsettled.retain(|(other, _)| *other != n);
        let kept = match mask {
            Mask::K(_) => mask,
            Mask::V(v) => {
                let kept = self.kept_mask();
                let (Mask::V(register), exec) = (kept, self.exec_vector()) else { return };
                self.op(width::AND, register, Src::Reg(v), Src::Reg(exec));
                kept
            }
        };
        self.cached.push((MaskPlace::Scalar(n), kept));
        self.unsettled.push((n, kept));
    }

    /// A mask goes to its home or to memory.
    fn settle_mask(&mut self, n: u8, mask: Mask) {
        let (to, home) = (Emit::mask_place(MaskPlace::Scalar(n)), self.home(n));
        match mask {
            Mask::K(k) => {
                if let Some(home) = home {
                    self.asm.add(Instruction::with2(Code::VEX_Kmovw_r32_kr, Register::EAX, k));
                    self.asm.add(Instruction::with2(Code::Mov_r16_rm16, part(home, 2), Register::AX));
                } else {
                    self.asm.add(Instruction::with2(Code::VEX_Kmovw_m16_kr, to, k));
                }
            }
            Mask::V(v) => {
                self.asm.add(Instruction::with2(Code::VEX_Vmovmskps_r32_ymm, Register::EAX, v));
                self.asm.add(match home {
                    Some(home) => Instruction::with2(Code::Mov_r8_rm8, part(home, 1), Register::AL),
                    None => Instruction::with2(Code::Mov_rm8_r8, to, Register::AL),
                });
            }
        }
    }

    /// All masks go there: a round ends.
    pub(crate) fn settle_masks(&mut self) {
        for (n, mask) in std::mem::take(&mut self.unsettled) {
            self.settle_mask(n, mask);
        }
    }

    /// Gives zeros to a scalar register's part of a mask.
    pub(crate) fn clear_mask(&mut self, n: u8) {
        let to = Emit::mask_place(MaskPlace::Scalar(n));
        self.asm.add(match (self.home(n), self.width.is_wide()) {
            (Some(home), true) => Instruction::with2(Code::Mov_r16_imm16, part(home, 2), 0u32),
            (Some(home), false) => Instruction::with2(Code::Mov_r8_imm8, part(home, 1), 0u32),
            (None, true) => Instruction::with2(Code::Mov_rm16_imm16, to, 0u32),
            (None, false) => Instruction::with2(Code::Mov_rm8_imm8, to, 0u32),
        });
    }

    /// Stores a mask as one number, of which the strips have stored their parts. The next
    /// instruction that reads it reads all of it, and would wait
    /// ([`load_pair`](crate::assembler::Assembler::load_pair)).
    fn join_mask(&mut self, n: u8, lanes: u8) {
        let bytes = i64::from(self.width.lanes() / 8);
        let part = |offset: i64| at(Register::R9, 4 * i64::from(n) + offset);
        let (first, next, small) = if self.width.is_wide() {
            (Code::Movzx_r32_rm16, Code::Mov_r16_rm16, Register::AX)
        } else {
            (Code::Movzx_r32_rm8, Code::Mov_r8_rm8, Register::AL)
        };
        let last = i64::from(lanes / 8) - bytes;
        self.asm.add(Instruction::with2(first, Register::EAX, part(last)));
        for offset in (0..last / bytes).rev().map(|strip| strip * bytes) {
            self.asm.add(Instruction::with2(Code::Shl_rm64_imm8, Register::RAX, 8 * bytes as u32));
            self.asm.add(Instruction::with2(next, small, part(offset)));
        }
        if lanes == 64 {
            self.asm.store64(part(0), Register::RAX);
        } else {
            self.asm.store32(part(0), Register::EAX);
        }
    }

    /// EXEC of the strip; jumps if no lane is active. `is_open`: a fault, all lanes are.
    pub(crate) fn load_exec(&mut self, none: Label, is_open: bool) {
        let from = Emit::mask_place(MaskPlace::Scalar(Operand::EXEC));
        if self.width.is_wide() {
            self.asm.add(Instruction::with2(Code::VEX_Kmovw_kr_km16, EXEC, from));
            self.asm.add(Instruction::with2(Code::VEX_Kortestw_kr_kr, EXEC, EXEC));
            self.asm.jump_if(When::Zero, none);
            if is_open {
                self.asm.add(Instruction::with3(Code::VEX_Kxnorw_kr_kr_kr, EXEC, EXEC, EXEC));
            }
            return;
        }
        self.asm.add(Instruction::with2(Code::Movzx_r32_rm8, Register::EAX, from));
        self.asm.add(Instruction::with2(Code::Test_rm32_r32, Register::EAX, Register::EAX));
        self.asm.jump_if(When::Zero, none);
        if is_open {
            self.asm.add(Instruction::with2(Code::Mov_r32_imm32, Register::EAX, 0xff_u32));
        }
        let exec = self.exec_vector();
        self.spread(exec);
    }

    /// The active lanes.
    pub(crate) fn active(&self) -> Mask {
        if self.width.is_wide() {
            Mask::K(EXEC)
        } else {
            Mask::V(self.exec_vector())
        }
    }
}
