// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loops that only wait for a word to change: flags that are plain loads, as `volatile` makes them.
//!
//! Such a loop ends in a branch backwards. It stores nothing, has no barrier, and loads from an
//! address that does not change in it. A compiler would move any other load of that kind out of the
//! loop.

use super::super::seen::{fetch_words, Seen};
use crate::world::World;
use vkfd_isa::{decode_as_hardware, Format, Inst, Op, Operand, Target, MAX_WORDS};
use vkfd_sabotage::{process, Switch};

/// Loads that are remembered.
const MOST: usize = 32;
/// Instructions of a loop, and their bytes.
const LENGTH: usize = 64;
const BYTES: u64 = 512;

/// Loads that were looked at: their addresses, and whether they are in such a loop.
pub(in crate::check) struct Spins {
    known: [(u64, bool); MOST],
    next: usize,
}

impl Spins {
    pub(in crate::check) const fn new() -> Spins {
        Spins { known: [(0, false); MOST], next: 0 }
    }

    /// Forgets all: the code may be another's.
    pub(in crate::check) fn clear(&mut self) {
        *self = Spins::new();
    }

    /// Whether the load at an offset of a kernel is in such a loop.
    pub(super) fn has<W: World>(&mut self, seen: &Seen<'_>, offset: u32, world: &mut W) -> bool {
        if process().has(Switch::UnknownSpins) {
            return false;
        }
        let pc = seen.group.entry.wrapping_add(offset.into());
        if let Some((_, spins)) = self.known.iter().find(|(known, _)| *known == pc) {
            return *spins;
        }
        let spins = waits(seen.target, pc, world);
        if let Some(place) = self.known.get_mut(self.next) {
            *place = (pc, spins);
        }
        self.next = (self.next + 1) % MOST;
        spins
    }
}

fn at<W: World>(target: Target, pc: u64, world: &mut W) -> Option<Inst> {
    let mut words = [0; MAX_WORDS];
    fetch_words(4 * MAX_WORDS, pc, world, &mut words);
    decode_as_hardware(target, &words).ok()
}

/// Whether the load at `pc` is in a loop that waits.
fn waits<W: World>(target: Target, pc: u64, world: &mut W) -> bool {
    let Some(load) = at(target, pc, world) else { return false };
    let address = load.memory.vaddr;
    let mut here = pc;
    for _ in 0..LENGTH {
        let Some(inst) = at(target, here, world) else { return false };
        let next = here.wrapping_add(inst.bytes.into());
        if inst.op == Op::SBranch || inst.op.name().starts_with("s_cbranch") {
            let to = next.wrapping_add_signed(4 * i64::from(inst.imm));
            if to <= pc && pc - to <= BYTES {
                return only_waits(target, (to, next), address, world);
            }
        }
        if !is_harmless(&inst, address) {
            return false;
        }
        here = next;
    }
    false
}

/// Whether nothing between two addresses is more than waiting.
fn only_waits<W: World>(target: Target, (from, to): (u64, u64), address: Operand, world: &mut W) -> bool {
    let mut here = from;
    for _ in 0..LENGTH {
        if here >= to {
            return true;
        }
        let Some(inst) = at(target, here, world).filter(|inst| is_harmless(inst, address)) else { return false };
        here = here.wrapping_add(inst.bytes.into());
    }
    false
}

fn is_harmless(inst: &Inst, address: Operand) -> bool {
    let name = inst.op.name();
    let stores = match inst.format {
        Format::Ds => !(name.starts_with("ds_read") || name.starts_with("ds_load")),
        Format::Flat | Format::Global | Format::Scratch | Format::Mubuf | Format::Mtbuf => {
            ["store", "atomic"].iter().any(|word| name.contains(word))
        }
        _ => false,
    };
    let leaves =
        ["s_barrier", "s_endpgm", "s_setpc", "s_swappc", "s_sendmsg"].iter().any(|word| name.starts_with(word));
    // An address that is made anew of constants is the same.
    let again = inst.op == Op::VMovB32 && !matches!(inst.src[0], Operand::Vgpr(_));
    let moves = address != Operand::None && inst.dst == address && !again;
    !stores && !leaves && !moves
}
