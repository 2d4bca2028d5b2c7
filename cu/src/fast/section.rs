// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reads the code between a barrier and the next ones for its accesses ([`Section`]).
//!
//! Mechanism: a walk over all ways from an address on, as far as a barrier or the program's end.
//! Both ways of a branch are walked. Code whose next address is in a register, or that sleeps or
//! sends messages, is unknown, and so is a section of more than [`MOST`] blocks. What was found is
//! kept by address until the engine decodes anything anew. It may be out of date for one section,
//! where code has changed: it decides an order of waves alone, and each order is allowed.
//!
//! Limits: a buffer instruction that accesses scratch counts as one that accesses memory.

use super::code::{ends, gives_registers_back, Code};
use super::layout::{Grain, Layout};
use crate::few::Few;
use crate::launch::Section;
use crate::reference::memory::{ds_kind, ds_two, kind, Kind};
use crate::world::World;
use vkfd_isa::{Format, Inst, Op, Target};

/// Blocks of a section that is walked.
const MOST: usize = 32;
/// Sections that are kept: a kernel has few barriers.
const KEPT: usize = 16;

/// Sections by the address at which they begin, and the number of blocks decoded until then.
pub(super) struct Sections {
    kept: [(u64, u64, Section); KEPT],
    /// The one that is replaced next.
    oldest: usize,
}

impl Sections {
    pub(super) const fn new() -> Sections {
        // No code has been decoded as often as that.
        Sections { kept: [(0, u64::MAX, Section::UNKNOWN); KEPT], oldest: 0 }
    }

    /// The section that begins at `pc`, for an engine that has decoded `made` blocks. The gate is
    /// open. Allocates nothing. As long as its code, the first time.
    pub(super) fn at(&mut self, world: &mut dyn World, layout: Layout, pc: u64, made: u64) -> Section {
        if let Some((.., section)) = self.kept.iter().find(|kept| (kept.0, kept.1) == (pc, made)) {
            return *section;
        }
        let section = walk(world, layout, pc);
        self.kept[self.oldest] = (pc, made, section);
        self.oldest = (self.oldest + 1) % KEPT;
        section
    }
}

/// A walk from `pc` on.
fn walk(world: &mut dyn World, layout: Layout, pc: u64) -> Section {
    let layout = Layout { grain: Grain::Whole, ..layout };
    let mut starts: Few<u64, MOST> = Few::new();
    starts.push(pc);
    let mut section = Section::NONE;
    let mut next = 0;
    while let Some(&start) = starts.get(next) {
        next += 1;
        let Ok(code) = Code::fetch(world, layout, start) else { return Section::UNKNOWN };
        for inst in code.insts.iter() {
            section = section.and(accesses(inst));
        }
        let behind = start.wrapping_add(4 * code.words.len() as u64);
        let Some(ways) = code.insts.last().and_then(|last| ways(layout.target, last, behind)) else {
            return Section::UNKNOWN;
        };
        for way in ways.into_iter().flatten() {
            if starts.contains(&way) {
                continue;
            }
            if starts.len() == MOST {
                return Section::UNKNOWN;
            }
            starts.push(way);
        }
        if section == Section::UNKNOWN {
            break;
        }
    }
    section
}

/// The ways behind a block's last instruction, none of which is behind a barrier; nothing if they
/// are not known.
fn ways(target: Target, last: &Inst, behind: u64) -> Option<[Option<u64>; 2]> {
    let there = Some(behind.wrapping_add_signed(i64::from(last.imm) * 4));
    Some(match last.op {
        Op::SBarrier | Op::SEndpgm => [None, None],
        Op::SBranch => [there, None],
        Op::SCbranchScc0
        | Op::SCbranchScc1
        | Op::SCbranchVccz
        | Op::SCbranchVccnz
        | Op::SCbranchExecz
        | Op::SCbranchExecnz => [there, Some(behind)],
        // These end a block because they change how vector operations compute.
        Op::SSetregB32 | Op::SSetregImm32B32 | Op::SDenormMode | Op::SRoundMode => [Some(behind), None],
        op if !ends(op) || gives_registers_back(target, last) => [Some(behind), None],
        _ => return None,
    })
}

/// The accesses of an instruction to memory that waves share.
fn accesses(inst: &Inst) -> Section {
    let of_lds = |kind: Option<Kind>| match kind {
        Some(Kind::Load { .. }) => Section::READS_LDS,
        Some(Kind::Store { .. }) => Section::WRITES_LDS,
        _ => Section::READS_LDS.and(Section::WRITES_LDS),
    };
    let name = inst.op.name();
    match inst.format {
        Format::Ds => match inst.op {
            Op::DsNop | Op::DsSwizzleB32 | Op::DsPermuteB32 | Op::DsBpermuteB32 => Section::NONE,
            _ if inst.memory.gds => Section::UNKNOWN,
            op if ds_two(op).is_some() && name.starts_with("ds_read") => Section::READS_LDS,
            op if ds_two(op).is_some() && name.starts_with("ds_write") => Section::WRITES_LDS,
            op => of_lds(ds_kind(op)),
        },
        // Its own scratch, which no other wave has.
        Format::Scratch => match kind(inst.op) {
            Some(Kind::Load { .. } | Kind::Store { .. } | Kind::Nothing) => Section::NONE,
            _ => Section::UNKNOWN,
        },
        Format::Global | Format::Flat | Format::Mubuf | Format::Mtbuf => {
            let access = match kind(inst.op) {
                Some(Kind::Nothing) => Section::NONE,
                Some(Kind::Load { .. } | Kind::Format { store: false, .. }) => Section::READS_MEMORY,
                Some(Kind::Store { .. } | Kind::Format { store: true, .. }) => Section::WRITES_MEMORY,
                _ => Section::UNKNOWN,
            };
            match (inst.format, kind(inst.op)) {
                (Format::Flat, Some(Kind::Load { .. })) => access.and(Section::READS_LDS),
                (Format::Flat, Some(Kind::Store { .. })) => access.and(Section::WRITES_LDS),
                _ => access,
            }
        }
        Format::Smem if name.contains("load") => Section::READS_MEMORY,
        Format::Smem if name.starts_with("s_dcache") || name.contains("time") || name.contains("prefetch") => {
            Section::NONE
        }
        Format::Smem | Format::Mimg | Format::Exp | Format::Ldsdir => Section::UNKNOWN,
        _ => Section::NONE,
    }
}
