// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scalar operations, on general registers: a region's scalars run before its strips.
//!
//! An operation finds its sources in `rax` and `rcx` and leaves its result in `rax`. Registers of
//! the wave stay in memory: a round has few scalar instructions, and each is done once for all
//! lanes. But the next instruction finds a result in `rax`, and SCC in `r10` ([`Latest`]). `rbp` is
//! the first scalar register, `r12` the context, `r13` the round's trace, `r14` the completed
//! rounds. `rbx` is the way out of a fault, if there are loads.

use crate::assembler::{at, Assembler};
use crate::context::Context;
use crate::plan::{Branch, Item};
use crate::Registers;
use iced_x86::{Code, Instruction, Register};
use std::mem::offset_of;
use vkfd_isa::{first_literal, Format, Inst, Op, Operand};

pub(crate) const SCALARS: Register = Register::RBP;
pub(crate) const CONTEXT: Register = Register::R12;

/// What SCC becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scc {
    Keep,
    /// Whether the result is not zero.
    NonZero,
    /// A flag of the host, by the code of the instruction that reads it.
    Flag(Code),
}

/// A source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Register(u8),
    Constant(u64),
}

/// An operation's shape, and what writes its code.
struct Operation {
    /// Words of the destination, 0: there is none, and of the sources.
    dst: u8,
    src: [u8; 2],
    scc: Scc,
    write: fn(&mut Assembler),
    reads_scc: bool,
    /// EXEC gets the result, and the destination what EXEC was.
    saves: bool,
}

/// An instruction.
pub(crate) struct Scalar {
    operation: Operation,
    dst: u8,
    sources: [Option<Source>; 2],
}

const A: Register = Register::EAX;
const B: Register = Register::ECX;
const A64: Register = Register::RAX;
const B64: Register = Register::RCX;
const SCC: Register = Register::R10L;

fn two(asm: &mut Assembler, code: Code, a: Register, b: Register) {
    asm.add(Instruction::with2(code, a, b));
}

fn one(asm: &mut Assembler, code: Code, a: Register) {
    asm.add(Instruction::with1(code, a));
}

/// The host's carry is SCC.
fn carry_in(asm: &mut Assembler) {
    asm.add(Instruction::with2(Code::Cmp_rm8_imm8, SCC, 1i32));
    asm.add(Ok(Instruction::with(Code::Cmc)));
}

/// The host's zero flag is the contrary of SCC.
fn zero_unless_scc(asm: &mut Assembler) {
    asm.add(Instruction::with2(Code::Test_rm8_r8, SCC, SCC));
}

/// Where the context has SCC.
fn scc() -> iced_x86::MemoryOperand {
    at(CONTEXT, i64::try_from(offset_of!(Context, scc)).unwrap_or(0))
}

/// A shift to the left, and a sum, whose bits above 32 are left in `rdx`.
fn shifted(asm: &mut Assembler, by: u32) {
    asm.add(Instruction::with2(Code::Shl_rm64_imm8, A64, by));
    two(asm, Code::Add_r64_rm64, A64, B64);
    two(asm, Code::Mov_r64_rm64, Register::RDX, A64);
    two(asm, Code::Mov_r32_rm32, A, A);
    asm.add(Instruction::with2(Code::Shr_rm64_imm8, Register::RDX, 32u32));
}

/// A field of `rax`, by its first bit in `rcx` and, 16 bits above, its length of 1 to 63. `right`
/// is a shift with signs or without.
fn field(asm: &mut Assembler, right: Code) {
    two(asm, right, A64, Register::CL);
    asm.add(Instruction::with2(Code::Shr_rm32_imm8, B, 16u32));
    one(asm, Code::Neg_rm32, B);
    two(asm, Code::Shl_rm64_CL, A64, Register::CL);
    two(asm, right, A64, Register::CL);
}

/// The number of a bit that the host finds in `rax`, or -1 if none is set.
fn found(asm: &mut Assembler, find: Code) {
    asm.add(Instruction::with2(Code::Mov_r32_imm32, B, u32::MAX));
    two(asm, find, A64, A64);
    two(asm, Code::Cmove_r32_rm32, A, B);
}

macro_rules! operations {
    ($($dst:literal $src:tt $scc:expr => |$asm:ident| { $($op:ident => $body:expr;)* })*) => {
        fn operation(op: Op) -> Option<Operation> {
            Some(match op {
                $($(Op::$op => {
                    fn write($asm: &mut Assembler) {
                        $body;
                    }
                    Operation { dst: $dst, src: $src, scc: $scc, write, reads_scc: reads_scc(op), saves: false }
                })*)*
                _ => return None,
            })
        }
    };
}

operations! {
    1 [1, 0] Scc::Keep => |asm| {
        SMovB32 => { let _ = asm; };
    }
    1 [0, 1] Scc::Keep => |asm| {
        SMovkI32 => two(asm, Code::Mov_r32_rm32, A, B);
    }
    2 [2, 0] Scc::Keep => |asm| {
        SMovB64 => { let _ = asm; };
    }
    1 [1, 0] Scc::Keep => |asm| {
        SSextI32I8 => two(asm, Code::Movsx_r32_rm8, A, Register::AL);
        SSextI32I16 => two(asm, Code::Movsx_r32_rm16, A, Register::AX);
        SFf1I32B32 => found(asm, Code::Bsf_r64_rm64);
    }
    1 [2, 0] Scc::Keep => |asm| {
        SFf1I32B64 => found(asm, Code::Bsf_r64_rm64);
    }
    1 [1, 0] Scc::NonZero => |asm| {
        SNotB32 => one(asm, Code::Not_rm32, A);
        SBcnt1I32B32 => two(asm, Code::Popcnt_r32_rm32, A, A);
        SAbsI32 => {
            two(asm, Code::Mov_r32_rm32, B, A);
            one(asm, Code::Neg_rm32, A);
            two(asm, Code::Cmovs_r32_rm32, A, B);
        };
    }
    1 [2, 0] Scc::NonZero => |asm| {
        SBcnt1I32B64 => two(asm, Code::Popcnt_r64_rm64, A64, A64);
    }
    2 [2, 0] Scc::NonZero => |asm| {
        SNotB64 => one(asm, Code::Not_rm64, A64);
    }
    1 [1, 1] Scc::Flag(Code::Setb_rm8) => |asm| {
        SAddU32 => two(asm, Code::Add_r32_rm32, A, B);
        SSubU32 => two(asm, Code::Sub_r32_rm32, A, B);
        SAddcU32 => { carry_in(asm); two(asm, Code::Adc_r32_rm32, A, B) };
        SSubbU32 => { carry_in(asm); two(asm, Code::Sbb_r32_rm32, A, B) };
    }
    1 [1, 1] Scc::Flag(Code::Seto_rm8) => |asm| {
        SAddI32 => two(asm, Code::Add_r32_rm32, A, B);
        SSubI32 => two(asm, Code::Sub_r32_rm32, A, B);
        SAddkI32 => two(asm, Code::Add_r32_rm32, A, B);
    }
    1 [1, 1] Scc::Flag(Code::Setne_rm8) => |asm| {
        SLshl1AddU32 => shifted(asm, 1);
        SLshl2AddU32 => shifted(asm, 2);
        SLshl3AddU32 => shifted(asm, 3);
        SLshl4AddU32 => shifted(asm, 4);
    }
    1 [1, 1] Scc::Flag(Code::Setl_rm8) => |asm| {
        SMinI32 => { two(asm, Code::Cmp_r32_rm32, A, B); two(asm, Code::Cmovg_r32_rm32, A, B) };
    }
    1 [1, 1] Scc::Flag(Code::Setge_rm8) => |asm| {
        SMaxI32 => { two(asm, Code::Cmp_r32_rm32, A, B); two(asm, Code::Cmovl_r32_rm32, A, B) };
    }
    1 [1, 1] Scc::Flag(Code::Setb_rm8) => |asm| {
        SMinU32 => { two(asm, Code::Cmp_r32_rm32, A, B); two(asm, Code::Cmova_r32_rm32, A, B) };
    }
    1 [1, 1] Scc::Flag(Code::Setae_rm8) => |asm| {
        SMaxU32 => { two(asm, Code::Cmp_r32_rm32, A, B); two(asm, Code::Cmovb_r32_rm32, A, B) };
    }
    1 [1, 1] Scc::Keep => |asm| {
        SCselectB32 => { zero_unless_scc(asm); two(asm, Code::Cmove_r32_rm32, A, B) };
        SMulI32 => two(asm, Code::Imul_r32_rm32, A, B);
        SMulkI32 => two(asm, Code::Imul_r32_rm32, A, B);
        SMulHiU32 => { one(asm, Code::Mul_rm32, B); two(asm, Code::Mov_r32_rm32, A, Register::EDX) };
        SMulHiI32 => { one(asm, Code::Imul_rm32, B); two(asm, Code::Mov_r32_rm32, A, Register::EDX) };
    }
    2 [2, 2] Scc::Keep => |asm| {
        SCselectB64 => { zero_unless_scc(asm); two(asm, Code::Cmove_r64_rm64, A64, B64) };
    }
    1 [1, 1] Scc::Keep => |asm| {
        SPackLlB32B16 => {
            two(asm, Code::Movzx_r32_rm16, A, Register::AX);
            asm.add(Instruction::with2(Code::Shl_rm32_imm8, B, 16u32));
            two(asm, Code::Or_r32_rm32, A, B);
        };
        SPackLhB32B16 => {
            two(asm, Code::Movzx_r32_rm16, A, Register::AX);
            asm.add(Instruction::with2(Code::And_rm32_imm32, B, 0xffff_0000u32));
            two(asm, Code::Or_r32_rm32, A, B);
        };
        SPackHhB32B16 => {
            asm.add(Instruction::with2(Code::Shr_rm32_imm8, A, 16u32));
            asm.add(Instruction::with2(Code::And_rm32_imm32, B, 0xffff_0000u32));
            two(asm, Code::Or_r32_rm32, A, B);
        };
    }
    1 [1, 1] Scc::NonZero => |asm| {
        SBfeU32 => field(asm, Code::Shr_rm64_CL);
        SBfeI32 => {
            two(asm, Code::Movsxd_r64_rm32, A64, A);
            field(asm, Code::Sar_rm64_CL);
            two(asm, Code::Mov_r32_rm32, A, A);
        };
        SAndB32 => two(asm, Code::And_r32_rm32, A, B);
        SOrB32 => two(asm, Code::Or_r32_rm32, A, B);
        SXorB32 => two(asm, Code::Xor_r32_rm32, A, B);
        SAndn2B32 => { one(asm, Code::Not_rm32, B); two(asm, Code::And_r32_rm32, A, B) };
        SOrn2B32 => { one(asm, Code::Not_rm32, B); two(asm, Code::Or_r32_rm32, A, B) };
        SNandB32 => { two(asm, Code::And_r32_rm32, A, B); one(asm, Code::Not_rm32, A) };
        SNorB32 => { two(asm, Code::Or_r32_rm32, A, B); one(asm, Code::Not_rm32, A) };
        SXnorB32 => { two(asm, Code::Xor_r32_rm32, A, B); one(asm, Code::Not_rm32, A) };
        SLshlB32 => two(asm, Code::Shl_rm32_CL, A, Register::CL);
        SLshrB32 => two(asm, Code::Shr_rm32_CL, A, Register::CL);
        SAshrI32 => two(asm, Code::Sar_rm32_CL, A, Register::CL);
    }
    2 [2, 2] Scc::NonZero => |asm| {
        SAndB64 => two(asm, Code::And_r64_rm64, A64, B64);
        SOrB64 => two(asm, Code::Or_r64_rm64, A64, B64);
        SXorB64 => two(asm, Code::Xor_r64_rm64, A64, B64);
        SAndn2B64 => { one(asm, Code::Not_rm64, B64); two(asm, Code::And_r64_rm64, A64, B64) };
        SOrn2B64 => { one(asm, Code::Not_rm64, B64); two(asm, Code::Or_r64_rm64, A64, B64) };
        SNandB64 => { two(asm, Code::And_r64_rm64, A64, B64); one(asm, Code::Not_rm64, A64) };
        SNorB64 => { two(asm, Code::Or_r64_rm64, A64, B64); one(asm, Code::Not_rm64, A64) };
        SXnorB64 => { two(asm, Code::Xor_r64_rm64, A64, B64); one(asm, Code::Not_rm64, A64) };
    }
    2 [2, 1] Scc::NonZero => |asm| {
        SBfeU64 => field(asm, Code::Shr_rm64_CL);
        SBfeI64 => field(asm, Code::Sar_rm64_CL);
        SLshlB64 => two(asm, Code::Shl_rm64_CL, A64, Register::CL);
        SLshrB64 => two(asm, Code::Shr_rm64_CL, A64, Register::CL);
        SAshrI64 => two(asm, Code::Sar_rm64_CL, A64, Register::CL);
    }
    0 [1, 1] Scc::Flag(Code::Sete_rm8) => |asm| {
        SCmpEqI32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpEqU32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkEqI32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkEqU32 => two(asm, Code::Cmp_r32_rm32, A, B);
    }
    0 [1, 1] Scc::Flag(Code::Setne_rm8) => |asm| {
        SCmpLgI32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpLgU32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkLgI32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkLgU32 => two(asm, Code::Cmp_r32_rm32, A, B);
    }
    0 [1, 1] Scc::Flag(Code::Setg_rm8) => |asm| {
        SCmpGtI32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkGtI32 => two(asm, Code::Cmp_r32_rm32, A, B);
    }
    0 [1, 1] Scc::Flag(Code::Setge_rm8) => |asm| {
        SCmpGeI32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkGeI32 => two(asm, Code::Cmp_r32_rm32, A, B);
    }
    0 [1, 1] Scc::Flag(Code::Setl_rm8) => |asm| {
        SCmpLtI32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkLtI32 => two(asm, Code::Cmp_r32_rm32, A, B);
    }
    0 [1, 1] Scc::Flag(Code::Setle_rm8) => |asm| {
        SCmpLeI32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkLeI32 => two(asm, Code::Cmp_r32_rm32, A, B);
    }
    0 [1, 1] Scc::Flag(Code::Seta_rm8) => |asm| {
        SCmpGtU32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkGtU32 => two(asm, Code::Cmp_r32_rm32, A, B);
    }
    0 [1, 1] Scc::Flag(Code::Setae_rm8) => |asm| {
        SCmpGeU32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkGeU32 => two(asm, Code::Cmp_r32_rm32, A, B);
    }
    0 [1, 1] Scc::Flag(Code::Setb_rm8) => |asm| {
        SCmpLtU32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkLtU32 => two(asm, Code::Cmp_r32_rm32, A, B);
    }
    0 [1, 1] Scc::Flag(Code::Setbe_rm8) => |asm| {
        SCmpLeU32 => two(asm, Code::Cmp_r32_rm32, A, B);
        SCmpkLeU32 => two(asm, Code::Cmp_r32_rm32, A, B);
    }
    0 [2, 2] Scc::Flag(Code::Sete_rm8) => |asm| {
        SCmpEqU64 => two(asm, Code::Cmp_r64_rm64, A64, B64);
    }
    0 [2, 2] Scc::Flag(Code::Setne_rm8) => |asm| {
        SCmpLgU64 => two(asm, Code::Cmp_r64_rm64, A64, B64);
    }
    0 [1, 1] Scc::Flag(Code::Setb_rm8) => |asm| {
        SBitcmp1B32 => two(asm, Code::Bt_rm32_r32, A, B);
    }
    0 [1, 1] Scc::Flag(Code::Setae_rm8) => |asm| {
        SBitcmp0B32 => two(asm, Code::Bt_rm32_r32, A, B);
    }
}

/// An operation of a source and EXEC, which is saved: the code leaves it in `rcx`.
fn saving(op: Op) -> Option<Operation> {
    let saves = |words: u8, write| Operation {
        dst: words,
        src: [words, words],
        scc: Scc::NonZero,
        write,
        reads_scc: false,
        saves: true,
    };
    let without_exec = |asm: &mut Assembler| {
        two(asm, Code::Mov_r64_rm64, Register::RDX, B64);
        one(asm, Code::Not_rm64, Register::RDX);
        two(asm, Code::And_r64_rm64, A64, Register::RDX);
    };
    Some(match op {
        Op::SAndSaveexecB32 => saves(1, |asm| two(asm, Code::And_r32_rm32, A, B)),
        Op::SAndSaveexecB64 => saves(2, |asm| two(asm, Code::And_r64_rm64, A64, B64)),
        Op::SOrSaveexecB32 => saves(1, |asm| two(asm, Code::Or_r32_rm32, A, B)),
        Op::SOrSaveexecB64 => saves(2, |asm| two(asm, Code::Or_r64_rm64, A64, B64)),
        Op::SXorSaveexecB32 => saves(1, |asm| two(asm, Code::Xor_r32_rm32, A, B)),
        Op::SXorSaveexecB64 => saves(2, |asm| two(asm, Code::Xor_r64_rm64, A64, B64)),
        Op::SAndn2SaveexecB32 => saves(1, without_exec),
        Op::SAndn2SaveexecB64 => saves(2, without_exec),
        _ => return None,
    })
}

fn reads_scc(op: Op) -> bool {
    matches!(op, Op::SAddcU32 | Op::SSubbU32 | Op::SCselectB32 | Op::SCselectB64)
}

/// Whether a comparison with an immediate takes it without its sign.
fn is_unsigned(op: Op) -> bool {
    matches!(op, Op::SCmpkEqU32 | Op::SCmpkLgU32 | Op::SCmpkGtU32 | Op::SCmpkGeU32 | Op::SCmpkLtU32 | Op::SCmpkLeU32)
}

/// Whether the operation is translated.
pub(crate) fn has(op: Op) -> bool {
    operation(op).is_some() || saving(op).is_some()
}

/// A bit for each of so many registers.
pub(crate) fn bits(first: u8, words: u8) -> u128 {
    if words == 0 {
        return 0;
    }
    (u128::MAX >> (128 - u32::from(words))) << u32::from(first)
}

impl Scalar {
    /// The instruction, if it is translated.
    pub(crate) fn of(inst: &Inst, registers: &dyn Registers) -> Option<Scalar> {
        let operation = operation(inst.op).or_else(|| saving(inst.op))?;
        let dst = if operation.dst == 0 { 0 } else { registers.scalar(inst.dst, operation.dst)? };
        let mut sources = [None; 2];
        if inst.format == Format::Sopk {
            let first = if operation.dst == 0 { inst.src[0] } else { inst.dst };
            let register = [first, inst.dst, inst.src[0]].into_iter().find(|operand| *operand != Operand::None)?;
            if operation.src[0] != 0 {
                sources[0] = Some(Source::Register(registers.scalar(register, 1)?));
            }
            let immediate = u64::from(inst.imm as u32);
            sources[1] = Some(Source::Constant(if is_unsigned(inst.op) { immediate & 0xffff } else { immediate }));
        } else {
            for (index, words) in operation.src.into_iter().enumerate().filter(|(_, words)| *words != 0) {
                if operation.saves && index == 1 {
                    sources[index] = Some(Source::Register(Operand::EXEC));
                    continue;
                }
                sources[index] = Some(match inst.src[index] {
                    operand @ Operand::Scalar(_) => Source::Register(registers.scalar(operand, words)?),
                    Operand::Int(value) => Source::Constant(i64::from(value) as u64),
                    Operand::Literal(value) if index == 0 => Source::Constant(first_literal(inst.op, value)),
                    Operand::Literal(value) => Source::Constant(value.into()),
                    operand @ Operand::Float(_) if words == 1 => {
                        Source::Constant(crate::plan::constant(operand)?.into())
                    }
                    _ => return None,
                });
            }
        }
        let last_bit = match inst.op {
            Op::SBfeU32 | Op::SBfeI32 => 31,
            Op::SBfeU64 | Op::SBfeI64 => 63,
            _ => 0,
        };
        if last_bit != 0 {
            // Other lengths are rare, and so are fields that a register names.
            let Some(Source::Constant(control)) = &mut sources[1] else { return None };
            *control &= 0x7f_0000 | last_bit;
            if !(1..64).contains(&(*control >> 16)) {
                return None;
            }
        }
        Some(Scalar { operation, dst, sources })
    }

    /// Registers that it reads, and registers that it writes.
    pub(crate) fn registers(&self) -> (u128, u128) {
        let read = self.sources.iter().zip(self.operation.src).fold(0, |all, (source, words)| match source {
            Some(Source::Register(n)) => all | bits(*n, words),
            _ => all,
        });
        let exec = if self.operation.saves { bits(Operand::EXEC, self.operation.dst) } else { 0 };
        (read, bits(self.dst, self.operation.dst) | exec)
    }

    /// Writes its code.
    pub(crate) fn write(&self, asm: &mut Assembler, latest: &mut Latest, wanted: Wanted) {
        if self.operation.reads_scc {
            latest.need_scc(asm);
        }
        let [first, second] = [0, 1].map(|index| match self.sources[index] {
            Some(Source::Register(n)) => Some((n, self.operation.src[index])),
            _ => None,
        });
        if second.is_some() && second == latest.result {
            two(asm, Code::Mov_r64_rm64, B64, A64);
        }
        if first.is_none() || first != latest.result {
            self.load(asm, latest, 0, (A, A64));
        }
        if second.is_none() || second != latest.result {
            self.load(asm, latest, 1, (B, B64));
        }
        (self.operation.write)(asm);
        if self.operation.scc != Scc::Keep {
            self.set_scc(asm, latest, wanted);
        }
        let words = self.operation.dst;
        latest.result = match words {
            // A comparison changes nothing.
            0 => first,
            _ if self.operation.saves => {
                latest.store(asm, (Operand::EXEC, words), A64);
                // Last, also where it is EXEC itself.
                latest.store(asm, (self.dst, words), B64);
                (self.dst != Operand::EXEC).then_some((Operand::EXEC, words))
            }
            _ => {
                latest.store(asm, (self.dst, words), A64);
                Some((self.dst, words))
            }
        };
    }

    fn load(&self, asm: &mut Assembler, latest: &Latest, index: usize, (narrow, wide): (Register, Register)) {
        let words = self.operation.src[index];
        match self.sources[index] {
            Some(Source::Register(n)) => latest.load(asm, (n, words), wide),
            Some(Source::Constant(value)) => match (u32::try_from(value), i32::try_from(value as i64)) {
                (Ok(low), _) => asm.add(Instruction::with2(Code::Mov_r32_imm32, narrow, low)),
                (_, Ok(low)) if words == 2 => asm.add(Instruction::with2(Code::Mov_rm64_imm32, wide, low)),
                _ if words == 2 => asm.add(Instruction::with2(Code::Mov_r64_imm64, wide, value)),
                _ => {
                    let low = u32::try_from(value & 0xffff_ffff).unwrap_or(0);
                    asm.add(Instruction::with2(Code::Mov_r32_imm32, narrow, low));
                }
            },
            None => {}
        }
    }

    /// Gives SCC to its readers.
    fn set_scc(&self, asm: &mut Assembler, latest: &mut Latest, wanted: Wanted) {
        latest.has_scc = wanted.inside || wanted.behind;
        if !latest.has_scc {
            return;
        }
        let code = match self.operation.scc {
            Scc::Flag(code) => code,
            _ => {
                let (code, register) =
                    if self.operation.dst == 2 { (Code::Test_rm64_r64, A64) } else { (Code::Test_rm32_r32, A) };
                two(asm, code, register, register);
                Code::Setne_rm8
            }
        };
        one(asm, code, SCC);
        if wanted.behind {
            asm.add(Instruction::with2(Code::Mov_rm8_r8, scc(), SCC));
        }
    }
}

/// Readers of the SCC that an instruction makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// A later instruction of the piece reads it.
    inside: bool,
    /// Code behind the piece may read it.
    behind: bool,
}

/// For each item of a piece, the readers of its SCC.
pub(crate) fn wanted(items: &[&Item]) -> Vec<Wanted> {
    let mut wanted = vec![Wanted::default(); items.len()];
    let mut now = Wanted { inside: false, behind: true };
    for (item, wanted) in items.iter().zip(&mut wanted).rev() {
        match item {
            Item::Scalar(scalar) => {
                if scalar.operation.scc != Scc::Keep {
                    *wanted = std::mem::take(&mut now);
                }
                now.inside |= scalar.operation.reads_scc;
            }
            // It may lead out.
            Item::Branch(branch) => {
                let reads = matches!(branch, Branch::Scc(_));
                now = Wanted { inside: now.inside | reads, behind: true };
            }
            // It calls a function, and SCC is not in a register then.
            Item::Load(_) => now.behind |= now.inside,
            _ => {}
        }
    }
    wanted
}

/// What is in registers between two instructions of a piece.
#[derive(Default)]
pub(crate) struct Latest {
    /// `rax` has a scalar register, or two of them.
    result: Option<(u8, u8)>,
    /// `r10` has SCC.
    has_scc: bool,
    /// Registers that the segment stores singly. The processor hands what was stored a moment ago
    /// to a load only if one store has all of it.
    singly: u128,
}

impl Latest {
    /// Before a piece with these instructions.
    pub(crate) fn before<'a>(items: impl Iterator<Item = &'a Item>) -> Latest {
        let singles = items.map(|item| match item {
            Item::Scalar(scalar) if scalar.operation.dst == 1 => scalar.registers().1,
            _ => 0,
        });
        Latest { singly: singles.fold(0, |all, bits| all | bits), ..Latest::default() }
    }

    /// Code that is reached from elsewhere, too, or that has called a function.
    pub(crate) fn forget(&mut self) {
        (self.result, self.has_scc) = (None, false);
    }

    /// Registers as a number in a host register.
    fn load(&self, asm: &mut Assembler, (n, words): (u8, u8), to: Register) {
        let from = at(SCALARS, 4 * i64::from(n));
        if words == 1 {
            asm.load32(Register::EAX + (to as u32 - A64 as u32), from);
        } else if self.singly & bits(n, words) != 0 {
            asm.load_pair([to, Register::RDX], from);
        } else {
            asm.load64(to, from);
        }
    }

    /// Registers as a number in `rax`.
    pub(crate) fn get(&mut self, asm: &mut Assembler, registers: (u8, u8)) {
        if self.result != Some(registers) {
            self.load(asm, registers, A64);
            self.result = Some(registers);
        }
    }

    fn store(&self, asm: &mut Assembler, (n, words): (u8, u8), from: Register) {
        let to = at(SCALARS, 4 * i64::from(n));
        if words == 2 {
            asm.store64(to, from);
        } else {
            asm.store32(to, Register::EAX + (from as u32 - A64 as u32));
        }
    }

    fn need_scc(&mut self, asm: &mut Assembler) {
        if !self.has_scc {
            asm.add(Instruction::with2(Code::Mov_r8_rm8, SCC, scc()));
            self.has_scc = true;
        }
    }

    /// Jumps behind the region unless SCC is as the branch back wants it.
    pub(crate) fn branch(&mut self, asm: &mut Assembler, on: bool, out: crate::assembler::Label) {
        use crate::assembler::When;
        self.need_scc(asm);
        zero_unless_scc(asm);
        asm.jump_if(if on { When::Zero } else { When::NotZero }, out);
    }
}
