// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scalar operations on the program counter and the state of the wave: branches, calls, MODE,
//! messages, traps, waits.

use super::hwreg::Field;
use super::kind::{low32, low64, Kind};
use super::operand::{self, check_scalar, set_scalar, uniform};
use crate::exit::{Exit, Refusal};
use crate::group::Group;
use crate::wave::{Mode, Wave};
use crate::world::World;
use vkfd_isa::{Inst, Op, Operand};

/// What comes after the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The instruction that follows.
    Following,
    /// Another one.
    At(u64),
    /// The one that follows, after the wave has been left for this reason.
    Leave(Exit),
}

const GPR_IDX_EN: u32 = 1 << 27;
const VSKIP: u32 = 1 << 28;
/// Depth of the stack of forks.
const CSP: u32 = 29;

/// `s_sendmsg`'s message to the driver.
const MSG_INTERRUPT: i32 = 1;
/// `s_sendmsg_rtn`'s message for the clock.
const MSG_RTN_REALTIME: u64 = 131;

/// Whether the operation is one of these.
pub(crate) fn knows(op: Op) -> bool {
    does_nothing(op)
        || matches!(
            op,
            Op::SEndpgm
                | Op::SEndpgmSaved
                | Op::SBranch
                | Op::SCbranchScc0
                | Op::SCbranchScc1
                | Op::SCbranchVccz
                | Op::SCbranchVccnz
                | Op::SCbranchExecz
                | Op::SCbranchExecnz
                | Op::SGetpcB64
                | Op::SSetpcB64
                | Op::SSwappcB64
                | Op::SRfeB64
                | Op::SCallB64
                | Op::SCbranchIFork
                | Op::SCbranchGFork
                | Op::SCbranchJoin
                | Op::SGetregB32
                | Op::SSetregB32
                | Op::SSetregImm32B32
                | Op::SDenormMode
                | Op::SRoundMode
                | Op::SSetvskip
                | Op::SSetGprIdxOn
                | Op::SSetGprIdxOff
                | Op::SSetGprIdxMode
                | Op::SSetGprIdxIdx
                | Op::SBarrier
                | Op::SSleep
                | Op::STrap
                | Op::SSendmsg
                | Op::SSendmsgRtnB32
                | Op::SSendmsgRtnB64
        )
}

/// What an engine that executes in order, without caches, has nothing to do for.
fn does_nothing(op: Op) -> bool {
    matches!(
        op,
        Op::SNop
            | Op::SWaitcnt
            | Op::SWaitcntVscnt
            | Op::SWaitcntVmcnt
            | Op::SWaitcntExpcnt
            | Op::SWaitcntLgkmcnt
            | Op::SWaitcntDepctr
            | Op::SWaitIdle
            | Op::SWaitEvent
            | Op::SClause
            | Op::SDelayAlu
            | Op::SInstPrefetch
            | Op::SIcacheInv
            | Op::SSetprio
            | Op::SWakeup
            | Op::SIncperflevel
            | Op::SDecperflevel
            | Op::STtracedata
            | Op::STtracedataImm
            | Op::SVersion
            // No debugger has set the conditions.
            | Op::SCbranchCdbgsys
            | Op::SCbranchCdbguser
            | Op::SCbranchCdbgsysOrUser
            | Op::SCbranchCdbgsysAndUser
    )
}

fn branch(inst: &Inst, pc: u64, taken: bool) -> Next {
    if taken {
        Next::At(pc.wrapping_add(4).wrapping_add((i64::from(inst.imm) * 4) as u64))
    } else {
        Next::Following
    }
}

/// Executes one of these; nothing if the operation is none.
pub(crate) fn execute<W: World>(
    inst: &Inst,
    wave: &mut Wave,
    group: &Group,
    world: &mut W,
) -> Option<Result<Next, Exit>> {
    knows(inst.op).then(|| run(inst, wave, group, world))
}

fn run<W: World>(inst: &Inst, wave: &mut Wave, group: &Group, world: &mut W) -> Result<Next, Exit> {
    let [src, second, _] = inst.src;
    let pc = wave.pc;
    let following = pc.wrapping_add(inst.bytes.into());
    let refused = Err(Exit::Refused(Refusal::Unsupported(inst.op)));
    Ok(match inst.op {
        op if does_nothing(op) => Next::Following,
        Op::SEndpgm | Op::SEndpgmSaved => Next::Leave(Exit::End),
        Op::SBranch => branch(inst, pc, true),
        Op::SCbranchScc0 => branch(inst, pc, !wave.scc),
        Op::SCbranchScc1 => branch(inst, pc, wave.scc),
        Op::SCbranchVccz => branch(inst, pc, wave.vcc() & wave.all() == 0),
        Op::SCbranchVccnz => branch(inst, pc, wave.vcc() & wave.all() != 0),
        Op::SCbranchExecz => branch(inst, pc, wave.exec() == 0),
        Op::SCbranchExecnz => branch(inst, pc, wave.exec() != 0),
        Op::SGetpcB64 => {
            set_scalar(wave, inst.dst, Kind::B64, following)?;
            Next::Following
        }
        Op::SSetpcB64 | Op::SRfeB64 => Next::At(uniform(wave, group, src, Kind::B64)?),
        Op::SSwappcB64 => {
            let target = uniform(wave, group, src, Kind::B64)?;
            set_scalar(wave, inst.dst, Kind::B64, following)?;
            Next::At(target)
        }
        Op::SCallB64 => {
            set_scalar(wave, inst.dst, Kind::B64, following)?;
            branch(inst, pc, true)
        }
        Op::SCbranchIFork => {
            let a = if src == Operand::None { inst.dst } else { src };
            let mask = uniform(wave, group, a, Kind::B64)?;
            let Next::At(target) = branch(inst, pc, true) else { return refused };
            fork(wave, mask, target, following)?
        }
        Op::SCbranchGFork => {
            let mask = uniform(wave, group, src, Kind::B64)?;
            let target = uniform(wave, group, second, Kind::B64)?;
            fork(wave, mask, target, following)?
        }
        Op::SCbranchJoin => join(wave, low32(uniform(wave, group, src, Kind::B32)?))?,
        Op::SGetregB32 => {
            let value = Field::new(inst.imm).get(wave, group, world.cycles());
            set_scalar(wave, inst.dst, Kind::B32, value.into())?;
            Next::Following
        }
        Op::SSetregB32 => {
            // The source has the destination's place in the encoding.
            let source = if src == Operand::None { inst.dst } else { src };
            let value = low32(uniform(wave, group, source, Kind::B32)?);
            Field::new(inst.imm).set(wave, group, value);
            Next::Following
        }
        Op::SSetregImm32B32 => {
            let value = low32(uniform(wave, group, src, Kind::B32)?);
            Field::new(inst.imm).set(wave, group, value);
            Next::Following
        }
        Op::SRoundMode => {
            wave.mode = Mode(wave.mode.0 & !0xf | imm(inst) & 0xf);
            Next::Following
        }
        Op::SDenormMode => {
            wave.mode = Mode(wave.mode.0 & !0xf0 | (imm(inst) & 0xf) << 4);
            Next::Following
        }
        Op::SSetvskip => {
            let a = uniform(wave, group, src, Kind::B32)?;
            let b = uniform(wave, group, second, Kind::B32)?;
            let skip = a >> (b & 31) & 1 == 1;
            wave.mode = Mode(wave.mode.0 & !VSKIP | if skip { VSKIP } else { 0 });
            Next::Following
        }
        Op::SSetGprIdxOn => {
            let index = low32(uniform(wave, group, src, Kind::B32)?) & 0xff;
            set_m0(wave, 0xf0ff, index | (imm(inst) & 0xf) << 12);
            wave.mode = Mode(wave.mode.0 | GPR_IDX_EN);
            Next::Following
        }
        Op::SSetGprIdxOff => {
            wave.mode = Mode(wave.mode.0 & !GPR_IDX_EN);
            Next::Following
        }
        Op::SSetGprIdxMode => {
            set_m0(wave, 0xf000, (imm(inst) & 0xf) << 12);
            Next::Following
        }
        Op::SSetGprIdxIdx => {
            let index = low32(uniform(wave, group, src, Kind::B32)?) & 0xff;
            set_m0(wave, 0xff, index);
            Next::Following
        }
        Op::SBarrier => Next::Leave(Exit::Barrier),
        Op::SSleep => Next::Leave(Exit::Sleep),
        Op::STrap => match u8::try_from(imm(inst) & 0xff) {
            Ok(0) | Err(_) => Next::Following,
            Ok(number) => Next::Leave(Exit::Trap(number)),
        },
        Op::SSendmsg => {
            // The other messages are the graphics pipeline's, or free resources early.
            if inst.imm & 0xff == MSG_INTERRUPT {
                Next::Leave(Exit::Interrupt(m0(wave)))
            } else {
                Next::Following
            }
        }
        Op::SSendmsgRtnB32 | Op::SSendmsgRtnB64 => {
            let message = if src == Operand::None { imm(inst).into() } else { uniform(wave, group, src, Kind::B32)? };
            if message & 0xff != MSG_RTN_REALTIME {
                return refused;
            }
            let kind = if inst.op == Op::SSendmsgRtnB64 { Kind::B64 } else { Kind::B32 };
            check_scalar(wave, inst.dst, kind)?;
            set_scalar(wave, inst.dst, kind, world.clock() & kind.mask())?;
            Next::Following
        }
        _ => return refused,
    })
}

fn imm(inst: &Inst) -> u32 {
    low32(i64::from(inst.imm) as u64)
}

fn m0(wave: &Wave) -> u32 {
    wave.scalar.get(usize::from(Operand::M0)).copied().unwrap_or(0)
}

fn set_m0(wave: &mut Wave, mask: u32, bits: u32) {
    if let Some(slot) = wave.scalar.get_mut(usize::from(Operand::M0)) {
        *slot = *slot & !mask | bits;
    }
}

fn depth(wave: &Wave) -> u32 {
    wave.mode.0 >> CSP
}

fn set_depth(wave: &mut Wave, depth: u32) {
    wave.mode = Mode(wave.mode.0 & !(7 << CSP) | depth << CSP);
}

/// Takes the smaller part of the lanes first and keeps the other part for the join, in four scalar
/// registers.
fn fork(wave: &mut Wave, mask: u64, target: u64, following: u64) -> Result<Next, Exit> {
    let exec = wave.exec();
    let (pass, fail) = (mask & exec, !mask & exec);
    if pass == exec {
        return Ok(Next::At(target));
    }
    if fail == exec {
        return Ok(Next::Following);
    }
    let fail_first = fail.count_ones() < pass.count_ones();
    let (now, later, other) = if fail_first { (fail, pass, target) } else { (pass, fail, following) };
    let depth = depth(wave);
    let at = operand::scalar_index(wave, u8::try_from(depth * 4).unwrap_or(u8::MAX), 4)?;
    wave.set_pair(at, other);
    wave.set_pair(at + 2, later);
    set_depth(wave, (depth + 1) & 7);
    wave.set_pair(Operand::EXEC, now);
    Ok(if fail_first { Next::Following } else { Next::At(target) })
}

/// At the depth of the fork's beginning both parts have come here; else the other part is next.
fn join(wave: &mut Wave, saved: u32) -> Result<Next, Exit> {
    let depth = depth(wave);
    if depth == saved {
        return Ok(Next::Following);
    }
    let depth = depth.wrapping_sub(1) & 7;
    let at = operand::scalar_index(wave, u8::try_from(depth * 4).unwrap_or(u8::MAX), 4)?;
    let (pc, exec) = (wave.pair(at), wave.pair(at + 2));
    set_depth(wave, depth);
    wave.set_pair(Operand::EXEC, exec);
    Ok(Next::At(low64(pc.into())))
}
