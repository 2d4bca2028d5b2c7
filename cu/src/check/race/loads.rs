// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Plain loads of words that others change, and that may: the code around the load shows it.
//!
//! - A loop that only waits for a word to change ([`Purpose::Spins`]), as flags with `volatile`
//!   make them. It ends in a branch backwards, stores nothing, has no barrier, and loads from an
//!   address that does not change in it. A compiler would move any other load of that kind out of
//!   the loop.
//! - A guess for a compare-and-swap ([`Purpose::Guesses`]). Behind the load is such an operation on
//!   the same address, and it compares with the loaded value. A wrong guess costs another try.

use super::super::seen::{fetch_words, Seen};
use crate::world::World;
use vkfd_isa::{decode_as_hardware, Format, Inst, Memory, Op, Operand, Target, MAX_WORDS};
use vkfd_lint::live::{Code, Registers, VECTOR};
use vkfd_sabotage::{process, Switch};

/// Loads that are remembered.
const MOST: usize = 32;
/// Instructions of a loop, and their bytes.
const LENGTH: usize = 64;
const BYTES: u64 = 512;
/// Instructions between a guess and its use.
const REACH: usize = 256;

/// What a load is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// See the module.
    Spins,
    Guesses,
    Other,
}

/// Loads that were looked at: their addresses, and what they are for.
pub(in crate::check) struct Loads {
    known: [(u64, Purpose); MOST],
    next: usize,
}

impl Loads {
    pub(in crate::check) const fn new() -> Loads {
        Loads { known: [(0, Purpose::Other); MOST], next: 0 }
    }

    /// Forgets all: the code may be another's.
    pub(in crate::check) fn clear(&mut self) {
        *self = Loads::new();
    }

    /// What the load at an offset of a kernel is for.
    pub(super) fn purpose<W: World>(&mut self, seen: &Seen<'_>, offset: u32, world: &mut W) -> Purpose {
        let pc = seen.group.entry.wrapping_add(offset.into());
        let known = self.known.iter().find(|(known, _)| *known == pc);
        let purpose = known.map(|(_, purpose)| *purpose).unwrap_or_else(|| {
            let purpose = match () {
                () if waits(seen.target, pc, world) => Purpose::Spins,
                () if guesses(seen, pc, world) => Purpose::Guesses,
                () => Purpose::Other,
            };
            if let Some(place) = self.known.get_mut(self.next) {
                *place = (pc, purpose);
            }
            self.next = (self.next + 1) % MOST;
            purpose
        });
        match purpose {
            Purpose::Spins if process().has(Switch::UnknownSpins) => Purpose::Other,
            Purpose::Guesses if process().has(Switch::UnknownGuesses) => Purpose::Other,
            purpose => purpose,
        }
    }
}

fn at<W: World>(target: Target, pc: u64, world: &mut W) -> Option<Inst> {
    let mut words = [0; MAX_WORDS];
    fetch_words(4 * MAX_WORDS, pc, world, &mut words);
    decode_as_hardware(target, &words).ok()
}

/// Whether a compare-and-swap at the same address compares with the value of the load at `pc`.
/// Copies of that value are followed, branches are not. Of a scalar load only the base and the
/// immediate offset are compared.
fn guesses<W: World>(seen: &Seen<'_>, pc: u64, world: &mut W) -> bool {
    let Some(load) = at(seen.target, pc, world) else { return false };
    let is_scalar = load.format == Format::Smem;
    let same_place = |swap: &Inst| {
        let (one, other) = (load.memory, swap.memory);
        let rest = |memory: Memory| (memory.vaddr, memory.soffset, memory.offen, memory.idxen);
        (one.base, one.offset) == (other.base, other.offset) && (is_scalar || rest(one) == rest(other))
    };
    let address = [register(load.memory.vaddr), register(load.memory.base)];
    let mut values = [register(load.dst), None, None, None];
    let mut here = pc.wrapping_add(load.bytes.into());
    for _ in 0..REACH {
        let Some(inst) = at(seen.target, here, world) else { return false };
        if compared(&inst).is_some_and(|compared| values.contains(&Some(compared))) && same_place(&inst) {
            return true;
        }
        let mut words = [0; MAX_WORDS];
        fetch_words(inst.bytes.into(), here, world, &mut words);
        let (mut unused, mut changed) = (Registers::NONE, Registers::NONE);
        Code::new(seen.target, seen.lanes, 0, &words, &inst).add_to(&mut unused, &mut changed);
        let is_copy = inst.op == Op::VMovB32 && register(inst.src[0]).is_some_and(|from| values.contains(&Some(from)));
        values.iter_mut().for_each(|value| *value = value.filter(|value| !changed.has(*value)));
        if let Some(place) = values.iter_mut().find(|value| is_copy && value.is_none()) {
            *place = register(inst.dst);
        }
        let moves = address.into_iter().flatten().any(|register| changed.has(register));
        if moves || values == [None; 4] || leaves(inst.op.name()) {
            return false;
        }
        here = here.wrapping_add(inst.bytes.into());
    }
    false
}

/// The number of an operand's first register.
fn register(operand: Operand) -> Option<u16> {
    match operand {
        Operand::Scalar(register) => Some(register.into()),
        Operand::Vgpr(register) => Some(VECTOR + register),
        _ => None,
    }
}

/// The register that a compare-and-swap in memory compares with, the lower one of two.
fn compared(inst: &Inst) -> Option<u16> {
    let name = inst.op.name();
    let is_wide = name.ends_with("_x2") || name.ends_with("_b64");
    let data = register(inst.memory.data).filter(|_| name.contains("atomic_cmpswap"))?;
    Some(data + if is_wide { 2 } else { 1 })
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
    // An address that is made anew of constants is the same.
    let again = inst.op == Op::VMovB32 && !matches!(inst.src[0], Operand::Vgpr(_));
    let moves = address != Operand::None && inst.dst == address && !again;
    !stores && !leaves(name) && !moves
}

/// Whether the next instruction in memory may not be the next in time.
fn leaves(name: &str) -> bool {
    ["s_barrier", "s_endpgm", "s_setpc", "s_swappc", "s_sendmsg"].iter().any(|word| name.starts_with(word))
}
