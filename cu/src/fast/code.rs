// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Code as it is fetched for a block, with the gate open.
//!
//! A block's code ends after a branch, whatever leaves the engine, 64 instructions, or its page;
//! blocks that are [pieces](super::piece) end before what does more than compute.
//! The words are kept, to be compared when the code may have changed.

use super::layout::{Grain, Layout};
use super::piece::is_plain;
use super::scalar;
use crate::exit::{Exit, Refusal};
use crate::few::Few;
use crate::reference::memory::{kind, Kind};
use crate::world::{Access, World};
use vkfd_isa::{decode_as_hardware, DecodeError, Inst, Op, Target, MAX_WORDS};

/// Most instructions of a block.
const LENGTH: usize = 64;

/// One word of code.
fn fetch(world: &mut dyn World, pc: u64) -> Result<(u32, usize), Exit> {
    let span = world.translate(pc, Access::Execute).map_err(Exit::Miss)?;
    if span.len < 4 || pc % 4 != 0 || span.ptr.addr() % 4 != 0 {
        return Err(Exit::Refused(Refusal::Illegal { word: 0 }));
    }
    // SAFETY: an aligned word of a span, while the gate is open; nothing refers to it (World).
    let word = unsafe { vkfd_raw::load_u32(span.ptr.cast()) };
    let lost = crate::exit::Miss { va: pc, access: Access::Execute, lost: true, reason: 0 };
    Ok((word.map_err(|_| Exit::Miss(lost))?, span.ptr.addr()))
}

/// Words of code that are read at once.
pub(super) const TOGETHER: usize = 64;

/// Reads words of code, at most `most`, as far as they lie together; how many, at least one.
pub(super) fn fetch_words(
    world: &mut dyn World,
    pc: u64,
    words: &mut [u32; TOGETHER],
    most: usize,
) -> Result<usize, Exit> {
    let span = world.translate(pc, Access::Execute).map_err(Exit::Miss)?;
    if span.len < 4 || pc % 4 != 0 || span.ptr.addr() % 4 != 0 {
        return Err(Exit::Refused(Refusal::Illegal { word: 0 }));
    }
    let count = most.min(span.len / 4).min(TOGETHER);
    // SAFETY: within a span, while the gate is open; nothing refers to it (World). There is room.
    let copied = unsafe { vkfd_raw::copy(words.as_mut_ptr().cast(), span.ptr, 4 * count) };
    copied.map(|()| count).map_err(|fault| {
        let va = pc.wrapping_add(fault.done as u64);
        Exit::Miss(crate::exit::Miss { va, access: Access::Execute, lost: true, reason: 0 })
    })
}

/// Code as it was fetched, with the gate open, for a block that is built later.
pub(super) struct Code {
    pub(super) pc: u64,
    pub(super) layout: Layout,
    pub(super) insts: Few<Inst, LENGTH>,
    /// The words that were decoded.
    pub(super) words: Few<u32, { LENGTH * MAX_WORDS }>,
    /// Where they were on the host: the first and the last one.
    pub(super) host: [usize; 2],
}

impl Code {
    /// Fetches a block's code from `pc` on. Allocates nothing.
    pub(super) fn fetch(world: &mut dyn World, layout: Layout, pc: u64) -> Result<Code, Exit> {
        let mut code = Code { pc, layout, insts: Few::new(), words: Few::new(), host: [0; 2] };
        let mut at = pc;
        loop {
            let (words, host) = (code.words.len(), code.host[1]);
            let inst = match code.next(world, at) {
                Ok(inst) => inst,
                // The first one is to be reported; others when they are reached.
                Err(exit) if code.insts.is_empty() => return Err(exit),
                Err(_) => break,
            };
            let other = layout.grain == Grain::Plain && !is_plain(&inst);
            if other && !code.insts.is_empty() {
                code.words.truncate(words);
                code.host[1] = host;
                break;
            }
            at = at.wrapping_add(inst.bytes.into());
            let last = other
                || ends(inst.op) && !gives_registers_back(layout.target, &inst)
                || layout.grain == Grain::Waits && waits(inst.op);
            code.insts.push(inst);
            if last || code.insts.len() == LENGTH || at / 4096 != pc / 4096 {
                break;
            }
        }
        Ok(code)
    }

    /// The instruction at an address, whose words are kept.
    fn next(&mut self, world: &mut dyn World, at: u64) -> Result<Inst, Exit> {
        let mut words = [0; MAX_WORDS];
        let mut hosts = [0; MAX_WORDS];
        let mut count = 0;
        // Not more is fetched than the instruction has: what follows it may not be there.
        while let (Some(word), Some(host)) = (words.get_mut(count), hosts.get_mut(count)) {
            (*word, *host) = fetch(world, at.wrapping_add(4 * count as u64))?;
            count += 1;
            let code = words.get(..count).unwrap_or_default();
            match decode_as_hardware(self.layout.target, code) {
                Ok(inst) => {
                    if self.words.is_empty() {
                        self.host[0] = hosts[0];
                    }
                    self.host[1] = hosts[count - 1];
                    code.iter().for_each(|word| self.words.push(*word));
                    return Ok(inst);
                }
                Err(DecodeError::Truncated(_)) => {}
                // The second word may tell what the first one is.
                Err(DecodeError::Unknown(..)) if count == 1 => {}
                Err(_) => break,
            }
        }
        Err(Exit::Refused(Refusal::Illegal { word: words[0] }))
    }
}

/// Whether a block ends with this operation.
pub(super) fn ends(op: Op) -> bool {
    scalar::branch(op).is_some()
        || scalar::leave(op).is_some()
        || matches!(
            op,
            Op::SSetpcB64
                | Op::SSwappcB64
                | Op::SCallB64
                | Op::SRfeB64
                | Op::SCbranchIFork
                | Op::SCbranchGFork
                | Op::SCbranchJoin
                | Op::SSetregB32
                | Op::SSetregImm32B32
                | Op::SDenormMode
                | Op::SRoundMode
                | Op::SSetvskip
                | Op::SSetGprIdxOn
                | Op::SSetGprIdxOff
                | Op::SSetGprIdxMode
                | Op::SSetGprIdxIdx
                | Op::SSleep
                | Op::STrap
                | Op::SSendmsg
                | Op::SSendmsghalt
                | Op::SIcacheInv
                | Op::SEndpgmSaved
                | Op::SSubvectorLoopBegin
                | Op::SSubvectorLoopEnd
        )
}

/// Where a branch leads that ends at `behind`, and whether it may also go on there; nothing for
/// another instruction.
pub(super) fn branch(inst: &Inst, behind: u64) -> Option<(u64, bool)> {
    scalar::branch(inst.op)?;
    Some((behind.wrapping_add_signed(i64::from(inst.imm) * 4), inst.op != Op::SBranch))
}

/// Whether an operation waits for memory on hardware.
fn waits(op: Op) -> bool {
    matches!(op, Op::SWaitcnt | Op::SWaitcntVmcnt | Op::SWaitcntVscnt | Op::SWaitcntExpcnt | Op::SWaitcntLgkmcnt)
}

/// Whether it is the message with which waves of gfx11 give their registers back before they end.
/// Nothing comes of it.
pub(super) fn gives_registers_back(target: Target, inst: &Inst) -> bool {
    // NEW TARGET: messages without an effect
    target == Target::Gfx1100 && inst.op == Op::SSendmsg && inst.imm == 3
}

/// Whether an operation orders the stores before it and those after it, as a release does.
pub(super) fn orders(op: Op) -> bool {
    waits(op)
        || matches!(
            op,
            Op::SWaitcntDepctr | Op::SWaitIdle | Op::SWaitEvent | Op::SBarrier | Op::SDcacheWb | Op::SDcacheWbVol
        )
        || kind(op) == Some(Kind::Nothing)
}
