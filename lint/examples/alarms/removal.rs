// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A function without one of its waits or with fewer wait states.

use vkfd_isa::{decode_as_hardware, Inst, Op, Target, MAX_WORDS};

/// A change of a function's code.
#[derive(Clone, Debug)]
pub struct Removal {
    /// The word that is changed.
    pub at: usize,
    pub kind: Kind,
    /// The instruction that comes after it, waits aside.
    pub next: Option<Op>,
    /// The instruction before it.
    pub before: Option<Op>,
    /// Whether it is one of those that fill up to an aligned place.
    pub fills: bool,
    /// Whether it stands between memory instructions of gfx9.
    pub clause: bool,
    /// Whether the same wait is beside it.
    pub double: bool,
    pub code: Vec<u8>,
}

/// What is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The wait for one counter.
    Vmcnt,
    Lgkmcnt,
    Expcnt,
    /// A wait on a dependency of gfx11.
    Depctr,
    /// All wait states of an `s_nop`.
    Nop,
    /// One of several.
    OneState,
}

/// The words of code.
pub fn words(code: &[u8]) -> Vec<u32> {
    code.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn instructions(target: Target, words: &[u32]) -> Vec<(usize, Inst)> {
    let mut list = Vec::new();
    let mut at = 0;
    while at < words.len() {
        let window = &words[at..words.len().min(at + MAX_WORDS)];
        match decode_as_hardware(target, window) {
            Ok(inst) => {
                list.push((at, inst));
                at += usize::from(inst.bytes / 4).max(1);
            }
            Err(_) => at += 1,
        }
    }
    list
}

/// The fields of `s_waitcnt`: masks of vmcnt, lgkmcnt and expcnt.
fn fields(target: Target) -> [(u32, Kind); 3] {
    match target {
        Target::Gfx1100 => [(63 << 10, Kind::Vmcnt), (63 << 4, Kind::Lgkmcnt), (7, Kind::Expcnt)],
        Target::Gfx1030 => [(15 | 3 << 14, Kind::Vmcnt), (63 << 8, Kind::Lgkmcnt), (7 << 4, Kind::Expcnt)],
        _ => [(15 | 3 << 14, Kind::Vmcnt), (15 << 8, Kind::Lgkmcnt), (7 << 4, Kind::Expcnt)],
    }
}

/// The code without the word `at`: branches across it go one word less far.
fn without(target: Target, words: &[u32], at: usize) -> Vec<u8> {
    let mut out = words.to_vec();
    for (from, inst) in instructions(target, words) {
        let name = inst.op.name();
        let branch = name.starts_with("s_cbranch") || name == "s_branch" || name == "s_call_b64";
        if !branch {
            continue;
        }
        let to = i64::try_from(from).unwrap_or(0) + 1 + i64::from(inst.imm);
        let (from, cut) = (i64::try_from(from).unwrap_or(0), i64::try_from(at).unwrap_or(0));
        let imm = if from < cut && cut < to {
            inst.imm - 1
        } else if to <= cut && cut < from {
            inst.imm + 1
        } else {
            continue;
        };
        let word = &mut out[usize::try_from(from).unwrap_or(0)];
        *word = *word & 0xffff_0000 | u32::from_ne_bytes(imm.to_ne_bytes()) & 0xffff;
    }
    out.remove(at);
    bytes(&out)
}

fn is_same(one: &Inst, other: &Inst) -> bool {
    (one.op, one.imm) == (other.op, other.imm)
}

/// The removals of a function's code.
pub fn removals(target: Target, code: &[u8]) -> Vec<Removal> {
    let words = words(code);
    let list = instructions(target, &words);
    let mut removals = Vec::new();
    for (n, (at, inst)) in list.iter().enumerate() {
        let waits = |op: Op| op.name().starts_with("s_waitcnt") || op == Op::SNop || op == Op::SDelayAlu;
        let next = list[n + 1..].iter().map(|(_, inst)| inst.op).find(|op| !waits(*op));
        let before = n.checked_sub(1).map(|n| list[n].1.op);
        let behind = list[n..].iter().find(|(_, inst)| inst.op != Op::SNop).map_or(0, |(at, _)| *at);
        let fills = target.is_rdna() && behind % 8 == 0;
        let memory = |op: Option<Op>| {
            let of = |start: &str| op.is_some_and(|op| op.name().starts_with(start));
            ["buffer_", "global_", "scratch_", "flat_", "s_load", "s_buffer"].into_iter().any(of)
        };
        let clause = target.is_gfx9() && memory(next) && memory(before);
        let same = |n: Option<usize>| n.and_then(|n| list.get(n)).is_some_and(|(_, other)| is_same(inst, other));
        let double = same(n.checked_sub(1)) || same(Some(n + 1));
        let mut add = |kind, code| removals.push(Removal { at: *at, kind, next, before, fills, clause, double, code });
        let imm = u32::from_ne_bytes(inst.imm.to_ne_bytes()) & 0xffff;
        match inst.op {
            Op::SWaitcnt => {
                for (mask, kind) in fields(target) {
                    if imm & mask != mask {
                        let mut changed = words.clone();
                        changed[*at] |= mask;
                        add(kind, bytes(&changed));
                    }
                }
            }
            Op::SWaitcntDepctr => add(Kind::Depctr, without(target, &words, *at)),
            Op::SNop => {
                add(Kind::Nop, without(target, &words, *at));
                if imm & 15 > 0 {
                    let mut changed = words.clone();
                    changed[*at] -= 1;
                    add(Kind::OneState, bytes(&changed));
                }
            }
            _ => {}
        }
    }
    removals
}

/// An operation on two halves, or on halves that are named.
fn is_packed(op: Op) -> bool {
    ["v_pk_", "v_fma_mix", "v_mad_mix", "v_dot"].iter().any(|start| op.name().starts_with(start))
}

/// Why a removal does no harm that the checks look for, if that follows from its neighbours.
pub fn reason(removal: &Removal) -> Option<&'static str> {
    let Some(next) = removal.next else { return Some("the end") };
    let name = next.name();
    let begins = |start: &str| name.starts_with(start);
    if !matches!(removal.kind, Kind::Vmcnt | Kind::Lgkmcnt | Kind::Expcnt) {
        return match () {
            () if removal.before == Some(Op::SEndpgm) => Some("code behind the end"),
            () if removal.fills => Some("filling up to a place where a loop begins"),
            () if removal.clause => {
                Some("a clause that may be replayed: LLVM ends it more often than there is a reason")
            }
            () if removal.next == Some(Op::SSendmsg) => Some("the message that gives registers back"),
            () if begins("v_writelane") && removal.before.is_some_and(|op| op.name().starts_with("v_writelane")) => {
                Some("registers that are spilled: LLVM takes the first for a write of all")
            }
            () if removal.before.is_some_and(is_packed) => {
                Some("a packed operation: LLVM takes its selection of halves for one of the result")
            }
            () if removal.before.is_some_and(|op| op.name().starts_with("s_waitcnt")) => {
                Some("behind a wait for a load: LLVM looks for any write")
            }
            () => None,
        };
    }
    if removal.at == 0 {
        return Some("a function's entry");
    }
    if removal.double {
        return Some("the same wait stands beside it");
    }
    if name == "s_barrier" {
        Some("a barrier: other waves see memory")
    } else if begins("buffer_inv") || begins("buffer_wb") || begins("buffer_gl") || begins("s_dcache") {
        Some("a cache operation: other waves see memory")
    } else if begins("s_endpgm") || begins("s_sendmsg") {
        Some("the end")
    } else if begins("s_setpc") || begins("s_swappc") {
        Some("a call or a return")
    } else if name.contains("atomic") || name.contains("_store") || begins("ds_write") {
        Some("a store or an atomic: other waves see memory in an order")
    } else {
        None
    }
}
