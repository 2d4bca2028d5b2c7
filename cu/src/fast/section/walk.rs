// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The code between a barrier and the next ones, as a graph of straight pieces ([`Walk`]).
//!
//! A piece begins with the registers that are [`Known`] there. Another way to the same place that
//! knows others leads to a piece that knows nothing, so each place has two pieces at most.
//!
//! Code of more pieces than there is room for is walked over once more. Nothing is known then, and
//! all of its accesses are one piece's.

use super::super::code::{branch, ends, gives_registers_back, Code};
use super::super::layout::Layout;
use super::super::Vectors;
use super::known::{Flag, Known};
use super::number::Change;
use crate::few::Few;
use crate::launch::{Section, Span};
use crate::reference::memory::{ds_kind, ds_two, kind, Kind};
use crate::wave::Wave;
use crate::world::World;
use vkfd_isa::{Format, Inst, Op, Operand};
use vkfd_sabotage::{Switch, Switches};

/// Pieces of a walk, and of one that makes one piece of them, blocks that it reads, and accesses of
/// LDS whose places are known.
const PIECES: usize = 32;
pub(super) const MOST_PIECES: usize = 240;
const BLOCKS: usize = 512;
const ACCESSES: usize = 48;

/// A walk that has read so many blocks was stopped.
const STOPPED: usize = usize::MAX;

/// Accesses of LDS by a row of addresses.
#[derive(Clone, Copy)]
struct Access {
    /// The row, by its number in the list.
    row: u8,
    writes: bool,
    /// Bytes from a lane's address on.
    from: u32,
    to: u32,
    /// Accesses of the other kind, a bit each, that meet it wherever the row leads.
    meets: u64,
}

/// What comes behind a piece.
#[derive(Clone, Copy)]
enum End {
    /// A barrier, or the program's end.
    Stop,
    Next(u8),
    /// The piece if the flag is false, and if it is true.
    Branch(Flag, [u8; 2]),
    Unknown,
}

/// Straight code.
#[derive(Clone, Copy)]
struct Piece {
    /// Its accesses but for those in the list, of which it has these.
    section: Section,
    accesses: [u8; 2],
    end: End,
}

impl Piece {
    /// Its accesses but for those in the list. All, if unknown code comes behind it.
    fn most(&self) -> Section {
        match self.end {
            End::Unknown => Section::UNKNOWN,
            _ => self.section,
        }
    }
}

/// All ways from a barrier to the next ones.
pub(super) struct Walk {
    pieces: Few<Piece, PIECES>,
    accesses: Few<Access, ACCESSES>,
    /// Rows of addresses, each after a change.
    rows: Few<(u16, Change), ACCESSES>,
    /// What any wave may access.
    most: Section,
}

impl Walk {
    pub(super) const fn new() -> Walk {
        Walk { pieces: Few::new(), accesses: Few::new(), rows: Few::new(), most: Section::UNKNOWN }
    }

    /// Walks from `pc` on, unless somebody wants the gate: whether it came to the end. `begins` has
    /// room for [`MOST_PIECES`], so that nothing is allocated.
    #[cold]
    #[inline(never)]
    pub(super) fn read(
        &mut self,
        world: &mut dyn World,
        layout: Layout,
        pc: u64,
        begins: &mut Vec<(u64, Known)>,
    ) -> bool {
        self.clear();
        let mut way = Way { begins, room: PIECES, blocks: 0, is_crowded: false };
        way.begin((pc, Known::BEGIN));
        while let Some(&begin) = way.begins.get(self.pieces.len()) {
            let piece = self.piece(world, layout, begin, &mut way);
            self.pieces.push(piece);
        }
        if way.is_crowded {
            self.clear();
            (way.room, way.blocks) = (MOST_PIECES, 0);
            way.begin((pc, Known::NOTHING));
            let (mut section, mut done) = (Section::NONE, 0);
            while let Some(&begin) = way.begins.get(done) {
                section = section.and(self.piece(world, layout, begin, &mut way).most());
                done += 1;
            }
            self.pieces.push(Piece { section, accesses: [0; 2], end: End::Stop });
        }
        for at in 0..self.accesses.len() {
            let one = self.accesses[at];
            let meets = |other: &Access| {
                one.row == other.row && one.writes != other.writes && one.from < other.to && other.from < one.to
            };
            let all = self.accesses.iter().enumerate().filter(|(_, other)| meets(other));
            self.accesses[at].meets = all.fold(0, |all, (number, _)| all | 1 << number);
        }
        let pieces = self.pieces.iter().map(Piece::most);
        let accesses = self.accesses.iter().map(|access| access.of((0, u32::MAX)));
        self.most = pieces.chain(accesses).fold(Section::NONE, Section::and);
        way.blocks != STOPPED
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.accesses.clear();
        self.rows.clear();
    }

    fn piece(
        &mut self,
        world: &mut dyn World,
        layout: Layout,
        (mut at, mut known): (u64, Known),
        way: &mut Way<'_>,
    ) -> Piece {
        let first = self.accesses.len() as u8;
        let mut section = Section::NONE;
        let end = loop {
            if world.wanted() {
                way.blocks = STOPPED;
            }
            if way.blocks >= BLOCKS {
                break End::Unknown;
            }
            way.blocks += 1;
            let Ok(code) = Code::fetch(world, layout, at) else { break End::Unknown };
            let before = code.insts.iter().take(code.insts.len().saturating_sub(1));
            for inst in before {
                section = section.and(self.accesses_of(inst, &known, first));
                known.step(layout, inst);
            }
            let Some(last) = code.insts.last() else { break End::Unknown };
            let behind = at.wrapping_add(4 * code.words.len() as u64);
            section = section.and(self.accesses_of(last, &known, first));
            if let Some((target, may_go_on)) = branch(last, behind) {
                let flag = match last.op {
                    Op::SCbranchScc0 | Op::SCbranchScc1 => known.flag,
                    Op::SCbranchExecz | Op::SCbranchExecnz => known.has_no_lanes(),
                    _ => Flag::Unknown,
                };
                let Some(jump) = way.place(target, known) else { break End::Unknown };
                if !may_go_on {
                    break End::Next(jump);
                }
                let Some(goes_on) = way.place(behind, known) else { break End::Unknown };
                let on_true = !matches!(last.op, Op::SCbranchScc0 | Op::SCbranchExecnz);
                break End::Branch(flag, if on_true { [goes_on, jump] } else { [jump, goes_on] });
            }
            match last.op {
                Op::SBarrier | Op::SEndpgm => break End::Stop,
                // These end a block because they change how vector operations compute.
                Op::SSetregB32 | Op::SSetregImm32B32 | Op::SDenormMode | Op::SRoundMode => {}
                op if !ends(op) || gives_registers_back(layout.target, last) => {}
                _ => break End::Unknown,
            }
            known.step(layout, last);
            at = behind;
        };
        Piece { section, accesses: [first, self.accesses.len() as u8], end }
    }

    /// Notes an access of LDS that is known, or says what an instruction accesses.
    fn accesses_of(&mut self, inst: &Inst, known: &Known, first: u8) -> Section {
        let all = accesses(inst);
        let Some((writes, from, to)) = local(inst) else { return all };
        let Operand::Vgpr(row) = inst.memory.vaddr else { return all };
        let Some(change) = known.row(row) else { return all };
        if self.accesses.len() == ACCESSES {
            return all;
        }
        let number = self.rows.iter().position(|known| *known == (row, change)).unwrap_or_else(|| {
            self.rows.push((row, change));
            self.rows.len() - 1
        });
        let row = number as u8;
        let mut own = self.accesses.iter_mut().skip(first.into());
        match own.find(|other| (other.row, other.writes) == (row, writes)) {
            Some(access) => (access.from, access.to) = (access.from.min(from), access.to.max(to)),
            None => self.accesses.push(Access { row, writes, from, to, meets: 0 }),
        }
        Section::NONE
    }

    /// What a wave at its begin accesses. As long as its pieces, with a look at all lanes for each
    /// row of addresses if some are read and others written. At once if no way shows order.
    #[inline(always)]
    pub(super) fn section(&self, wave: &Wave, vectors: Vectors, sabotage: &Switches) -> Section {
        if self.most.shows_order() {
            self.section_of(wave, vectors, sabotage)
        } else {
            self.most
        }
    }

    fn section_of(&self, wave: &Wave, vectors: Vectors, sabotage: &Switches) -> Section {
        let (mut seen, mut next) = (1u64, 1u64);
        let mut section = Section::NONE;
        let (mut reads, mut writes, mut accesses, mut met) = (false, false, 0u64, 0u64);
        while next != 0 {
            let at = next.trailing_zeros();
            next &= next - 1;
            let Some(piece) = self.pieces.get(at as usize) else { return Section::UNKNOWN };
            section = section.and(piece.section);
            for access in self.of(piece) {
                reads |= !access.writes;
                writes |= access.writes;
                met |= access.meets;
            }
            let [first, end] = piece.accesses.map(u32::from);
            accesses |= (1u64 << end).wrapping_sub(1 << first);
            let ways = match piece.end {
                End::Stop => 0,
                End::Next(next) => 1 << next,
                End::Branch(flag, [if_false, if_true]) => match flag.of(wave) {
                    Some(false) => 1 << if_false,
                    Some(true) => 1 << if_true,
                    None => 1 << if_false | 1 << if_true,
                },
                End::Unknown => return Section::UNKNOWN,
            };
            next |= ways & !seen;
            seen |= ways;
        }
        let unknown = [(reads, Section::READS_LDS), (writes, Section::WRITES_LDS)];
        let anywhere = unknown.iter().filter(|(has, _)| *has).fold(section, |all, (_, part)| all.and(*part));
        // Then it makes no difference where.
        if !anywhere.shows_order() || section.shows_order() || met & accesses != 0 {
            return anywhere;
        }
        // Several accesses are by one row.
        let (mut bounds, mut looked) = ([(0, 0); ACCESSES], 0u64);
        while seen != 0 {
            let piece = self.pieces.get(seen.trailing_zeros() as usize);
            seen &= seen - 1;
            for access in piece.map(|piece| self.of(piece)).unwrap_or_default() {
                let at = usize::from(access.row);
                let (Some(bounds), Some(&(row, change))) = (bounds.get_mut(at), self.rows.get(at)) else { continue };
                if looked >> at & 1 == 0 {
                    let change = if sabotage.has(Switch::LostChange) { Change::default() } else { change };
                    *bounds = addresses(wave, row, change, vectors);
                    looked |= 1 << at;
                }
                section = section.and(access.of(*bounds));
            }
        }
        section
    }

    fn of(&self, piece: &Piece) -> &[Access] {
        let [first, end] = piece.accesses;
        self.accesses.get(first.into()..end.into()).unwrap_or_default()
    }
}

impl Access {
    /// The bytes that lanes with addresses between these access by it.
    #[inline(always)]
    fn of(&self, (least, most): (u32, u32)) -> Section {
        let span = match (least.checked_add(self.from), most.checked_add(self.to)) {
            (Some(from), Some(to)) => Span::new(from, to),
            // Addresses wrap.
            _ => Span::ANYWHERE,
        };
        if self.writes {
            Section::writes(span)
        } else {
            Section::reads(span)
        }
    }
}

/// The least and the greatest address in a row of a wave, after a change.
fn addresses(wave: &Wave, row: u16, change: Change, vectors: Vectors) -> (u32, u32) {
    let lanes = wave.rows.get(usize::from(row)).and_then(|row| row.0.get(..wave.lanes.into()));
    let Some(lanes) = lanes else { return (0, u32::MAX) };
    match vectors {
        Vectors::Plain => bounds(lanes, change),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has them.
        _ => unsafe { bounds_avx2(lanes, change) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => bounds(lanes, change),
    }
}

/// The least and the greatest number of lanes, after a change.
#[inline(always)]
fn bounds(lanes: &[u32], change: Change) -> (u32, u32) {
    let mut bounds = (u32::MAX, 0);
    for lane in lanes {
        let lane = change.of(*lane);
        bounds = (bounds.0.min(lane), bounds.1.max(lane));
    }
    bounds
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn bounds_avx2(lanes: &[u32], change: Change) -> (u32, u32) {
    bounds(lanes, change)
}

/// Where the pieces of a walk begin.
struct Way<'a> {
    begins: &'a mut Vec<(u64, Known)>,
    room: usize,
    blocks: usize,
    /// There were more of them.
    is_crowded: bool,
}

impl Way<'_> {
    fn begin(&mut self, begin: (u64, Known)) {
        self.begins.clear();
        self.begins.push(begin);
    }

    /// The piece that begins somewhere.
    fn place(&mut self, pc: u64, known: Known) -> Option<u8> {
        let known = if self.is_crowded { Known::NOTHING } else { known };
        let find = |begins: &[(u64, Known)], known| begins.iter().position(|begin| *begin == (pc, known));
        let wanted = if self.begins.iter().any(|(other, _)| *other == pc) && find(self.begins, known).is_none() {
            Known::NOTHING
        } else {
            known
        };
        if let Some(found) = find(self.begins, wanted) {
            return Some(found as u8);
        }
        if self.begins.len() == self.room {
            self.is_crowded = true;
            return None;
        }
        self.begins.push((pc, wanted));
        Some((self.begins.len() - 1) as u8)
    }
}

/// Whether a load or store of LDS writes, and its bytes from a lane's address on.
fn local(inst: &Inst) -> Option<(bool, u32, u32)> {
    if inst.format != Format::Ds || inst.memory.gds {
        return None;
    }
    let name = inst.op.name();
    if let Some((bytes, unit)) = ds_two(inst.op) {
        let [one, other] = inst.memory.offsets.map(|offset| u32::from(offset) * unit);
        let writes = name.starts_with("ds_write");
        return (writes || name.starts_with("ds_read")).then_some((
            writes,
            one.min(other),
            one.max(other) + u32::from(bytes),
        ));
    }
    let (writes, bytes) = match ds_kind(inst.op)? {
        Kind::Load { bytes, .. } => (false, bytes),
        Kind::Store { bytes, .. } => (true, bytes),
        _ => return None,
    };
    let from = u32::try_from(inst.memory.offset).ok()?;
    Some((writes, from, from + u32::from(bytes)))
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
            _ => local(inst).map_or(LDS[0].and(LDS[1]), |(writes, ..)| LDS[usize::from(writes)]),
        },
        Format::Scratch => by_lane(OWN),
        Format::Flat => by_lane(BOTH),
        Format::Global | Format::Mubuf | Format::Mtbuf => by_lane(MEMORY),
        // The scalar cache does not see stores, until it is emptied.
        Format::Smem if name.contains("inv") => Section::READS_MEMORY,
        Format::Smem if name.contains("load") || name.starts_with("s_dcache") => Section::NONE,
        Format::Smem if name.contains("time") || name.contains("prefetch") => Section::NONE,
        Format::Smem | Format::Mimg | Format::Exp | Format::Ldsdir => Section::UNKNOWN,
        _ => Section::NONE,
    }
}
