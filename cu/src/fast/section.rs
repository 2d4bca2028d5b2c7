// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reads the code between a barrier and the next ones for its accesses ([`Section`]).
//!
//! Mechanism: a walk over all ways from an address on, as far as a barrier or the program's end.
//! Both ways of a branch are walked, unless the wave's SCC decides it. A loop often compares before
//! its last barrier, and only waves that leave it store to memory. Code whose next address is in a
//! register, or that sleeps or sends messages, is unknown. So is a section of more than [`MOST`]
//! blocks. What was found is kept until the engine decodes anything anew. It may be out of date for
//! one section, where code has changed: it decides an order of waves alone, and each order is
//! allowed.
//!
//! Limits: a buffer instruction that accesses scratch counts as one that accesses memory.

use super::code::{branch, ends, gives_registers_back, Code};
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

/// Where a section begins: the address, SCC, and the number of blocks decoded until then.
type Begin = (u64, bool, u64);

/// Sections, each with its begin.
pub(super) struct Sections {
    kept: [(Begin, Section); KEPT],
    /// The one that is replaced next, and the one that was found last: waves come here together.
    oldest: usize,
    latest: usize,
}

impl Sections {
    pub(super) const fn new() -> Sections {
        // No code has been decoded as often as that.
        Sections { kept: [((0, false, u64::MAX), Section::UNKNOWN); KEPT], oldest: 0, latest: 0 }
    }

    /// The section that begins at `pc` with this SCC, for an engine that has decoded `made` blocks.
    /// The gate is open. Allocates nothing. As long as its code, the first time.
    pub(super) fn at(&mut self, world: &mut dyn World, layout: Layout, begin: Begin) -> Section {
        if self.kept[self.latest].0 != begin {
            self.latest = self.kept.iter().position(|kept| kept.0 == begin).unwrap_or_else(|| {
                let place = self.oldest;
                self.kept[place] = (begin, walk(world, layout, begin.0, begin.1));
                self.oldest = (place + 1) % KEPT;
                place
            });
        }
        self.kept[self.latest].1
    }
}

/// A walk from `pc` on.
#[cold]
#[inline(never)]
fn walk(world: &mut dyn World, layout: Layout, pc: u64, scc: bool) -> Section {
    let layout = Layout { grain: Grain::Whole, ..layout };
    let mut starts: Few<u64, MOST> = Few::new();
    starts.push(pc);
    // Known as long as one way alone was walked.
    let mut scc = Some(scc);
    let mut section = Section::NONE;
    let mut next = 0;
    while let Some(&start) = starts.get(next) {
        next += 1;
        let Ok(code) = Code::fetch(world, layout, start) else { return Section::UNKNOWN };
        for inst in code.insts.iter() {
            section = section.and(accesses(inst));
            if may_write_scc(inst) {
                scc = None;
            }
        }
        let behind = start.wrapping_add(4 * code.words.len() as u64);
        let last = code.insts.last();
        let Some(mut ways) = last.and_then(|last| ways(layout.target, last, behind)) else {
            return Section::UNKNOWN;
        };
        match (last.map(|last| last.op), scc) {
            (Some(Op::SCbranchScc0), Some(scc)) => ways[usize::from(!scc)] = None,
            (Some(Op::SCbranchScc1), Some(scc)) => ways[usize::from(scc)] = None,
            _ if ways.iter().flatten().count() == 2 => scc = None,
            _ => {}
        }
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

/// Whether an instruction may write SCC. Of scalar ones nearly all do.
fn may_write_scc(inst: &Inst) -> bool {
    matches!(inst.format, Format::Sop1 | Format::Sop2 | Format::Sopk | Format::Sopc)
        && !matches!(inst.op, Op::SMovB32 | Op::SMovB64 | Op::SMovkI32)
}

/// The ways behind a block's last instruction, none of which is behind a barrier; nothing if they
/// are not known.
fn ways(target: Target, last: &Inst, behind: u64) -> Option<[Option<u64>; 2]> {
    if let Some((target, may_go_on)) = branch(last, behind) {
        return Some([Some(target), may_go_on.then_some(behind)]);
    }
    Some(match last.op {
        Op::SBarrier | Op::SEndpgm => [None, None],
        // These end a block because they change how vector operations compute.
        Op::SSetregB32 | Op::SSetregImm32B32 | Op::SDenormMode | Op::SRoundMode => [Some(behind), None],
        op if !ends(op) || gives_registers_back(target, last) => [Some(behind), None],
        _ => return None,
    })
}

/// The accesses of an instruction to memory that waves share.
fn accesses(inst: &Inst) -> Section {
    const LDS: [Section; 2] = [Section::READS_LDS, Section::WRITES_LDS];
    const MEMORY: [Section; 2] = [Section::READS_MEMORY, Section::WRITES_MEMORY];
    // FLAT has LDS among its addresses. A wave's scratch is its own.
    const BOTH: [Section; 2] = [LDS[0].and(MEMORY[0]), LDS[1].and(MEMORY[1])];
    const OWN: [Section; 2] = [Section::NONE; 2];
    let moves = |kind, [reads, writes]: [Section; 2]| match kind {
        Kind::Nothing => Some(Section::NONE),
        Kind::Load { .. } | Kind::Format { store: false, .. } => Some(reads),
        Kind::Store { .. } | Kind::Format { store: true, .. } => Some(writes),
        _ => None,
    };
    let by_lane = |places| kind(inst.op).and_then(|kind| moves(kind, places)).unwrap_or(Section::UNKNOWN);
    let name = inst.op.name();
    match inst.format {
        Format::Ds => match inst.op {
            Op::DsNop | Op::DsSwizzleB32 | Op::DsPermuteB32 | Op::DsBpermuteB32 => Section::NONE,
            _ if inst.memory.gds => Section::UNKNOWN,
            op if ds_two(op).is_some() && name.starts_with("ds_read") => LDS[0],
            op if ds_two(op).is_some() && name.starts_with("ds_write") => LDS[1],
            op => ds_kind(op).and_then(|kind| moves(kind, LDS)).unwrap_or(LDS[0].and(LDS[1])),
        },
        Format::Scratch => by_lane(OWN),
        Format::Flat => by_lane(BOTH),
        Format::Global | Format::Mubuf | Format::Mtbuf => by_lane(MEMORY),
        Format::Smem if name.contains("load") => Section::READS_MEMORY,
        Format::Smem if name.starts_with("s_dcache") || name.contains("time") || name.contains("prefetch") => {
            Section::NONE
        }
        Format::Smem | Format::Mimg | Format::Exp | Format::Ldsdir => Section::UNKNOWN,
        _ => Section::NONE,
    }
}
