// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Translated loops of several blocks: how they are found, entered and dropped.
//!
//! When a block is hot, its successors are followed, the likelier ones, until they lead back. Such
//! a ring belongs to that block, its head, and is entered there. Its other blocks keep their own
//! regions, for waves that come to them from elsewhere.
//!
//! A ring has the code of all of its blocks. Each is named by its address and its number, which no
//! other block has had. Before its first use in a run every one of them is looked at: whether the
//! engine still has it, and whether its code is still what was decoded. Otherwise the ring is dead.

use super::block::Block;
use super::code::{branch, ends};
use super::layout::Layout;
use super::native::{Native, RingEntry};
use super::region::list;
use super::step::Cx;
use super::{Blocks, Seam};
use crate::exit::Exit;
use crate::reference;
use crate::world::World;
use std::cell::Cell;
use vkfd_isa::{Inst, Op};
use vkfd_sabotage::{Switch, Switches};
use vkfd_translate::{Link, Ring, Turned, Why, ROUNDS};

/// Most blocks and instructions of a ring.
const BLOCKS: usize = 8;
const INSTS: usize = 192;

/// Where a block leads: behind it, and by a jump.
pub(super) fn ways(block: &Block, last: &Inst) -> [Option<u64>; 2] {
    let behind = block.end();
    match branch(last, behind) {
        Some((target, may_go_on)) => [may_go_on.then_some(behind), Some(target)],
        None if ends(last.op) => [None, None],
        None => [Some(behind), None],
    }
}

impl Blocks {
    /// Whether the likelier way out of a block is its jump.
    pub(super) fn jumps(&self, layout: Layout, last: Op, [behind, target]: [Option<u64>; 2]) -> Option<bool> {
        let heat = |pc: Option<u64>| pc.and_then(|pc| self.blocks.get(&(pc, layout))).map(|block| block.heat.get());
        match (heat(behind), heat(target)) {
            (None, None) => None,
            (Some(_), None) => Some(false),
            (None, Some(_)) => Some(true),
            // Code that no lane does is left out; otherwise it is a part of each round.
            (Some(behind), Some(target)) if last == Op::SCbranchExecz => Some(behind < target / 4),
            (Some(behind), Some(target)) => Some(behind < target),
        }
    }

    /// The blocks of a ring that begins with this one, and whether each jumps to the next.
    fn find_ring(&self, head: u64, layout: Layout) -> Option<Vec<(u64, bool)>> {
        let (mut links, mut at, mut count) = (Vec::new(), head, 0);
        loop {
            let block = self.blocks.get(&(at, layout))?;
            let last = block.insts.last()?;
            count += block.insts.len();
            if block.in_ring.get() || !block.inexact.is_empty() || links.len() == BLOCKS || count > INSTS {
                return None;
            }
            let ways = ways(block, last);
            let jumps = self.jumps(layout, last.op, ways)?;
            links.push((at, jumps));
            at = ways[usize::from(jumps)]?;
            if at == head {
                return (links.len() > 1).then_some(links);
            }
            if links.iter().any(|(pc, _)| *pc == at) {
                return None;
            }
        }
    }

    /// Makes the ring of which a hot block is the head, if there is one.
    pub(super) fn make_ring(&mut self, head: u64, layout: Layout) {
        let Some(links) = self.find_ring(head, layout) else { return };
        let Some(native) = &mut self.native else { return };
        let members: Vec<(&Block, bool)> =
            links.iter().filter_map(|(pc, jumps)| Some((&**self.blocks.get(&(*pc, layout))?, *jumps))).collect();
        let Some(ring) = native.ring(&members, &self.sabotage) else { return };
        let blocks = members.iter().map(|(block, jumps)| {
            let out = block.insts.last().and_then(|last| ways(block, last)[usize::from(!jumps)]);
            (block.pc, block.serial, out.unwrap_or(block.pc))
        });
        let orders = members.iter().any(|(block, _)| block.orders);
        let (blocks, run, dead) = (blocks.collect(), Cell::new(0), Cell::new(false));
        members.iter().for_each(|(block, _)| block.in_ring.set(true));
        let entry = RingEntry { ring, blocks, run, dead, orders };
        if let Some(block) = self.blocks.get_mut(&(head, layout)) {
            block.ring = Some(Box::new(entry));
        }
    }

    /// Whether a ring's code is still what was translated.
    fn holds(&mut self, world: &mut dyn World, layout: Layout, entry: &RingEntry) -> Result<bool, Exit> {
        let now = self.runs;
        if entry.run.get() == now || self.sabotage.has(Switch::KeptRing) {
            return Ok(true);
        }
        let members = entry.blocks.iter().map(|(pc, serial, _)| (*pc, *serial));
        let holds = self.hold(world, layout, members)?;
        if holds {
            entry.run.set(now);
        } else {
            entry.dead.set(true);
        }
        Ok(holds)
    }

    /// Whether blocks, named by address and number, have the code that was decoded.
    pub(super) fn hold(
        &mut self,
        world: &mut dyn World,
        layout: Layout,
        members: impl Iterator<Item = (u64, u64)>,
    ) -> Result<bool, Exit> {
        let now = (self.runs, self.epoch);
        for (pc, serial) in members {
            let holds = match self.blocks.get_mut(&(pc, layout)) {
                Some(block) if block.serial == serial => block.run == now.0 || block.still(world, now)?,
                _ => false,
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does the ring of a block, if it has one that can be done; instructions that were done.
    #[inline(always)]
    pub(super) fn turn(&mut self, block: &Block, cx: &mut Cx, layout: Layout) -> Result<Option<u64>, Exit> {
        match &block.ring {
            Some(entry) if !entry.dead.get() => self.turn_ring(entry, cx, layout),
            _ => Ok(None),
        }
    }

    fn turn_ring(&mut self, entry: &RingEntry, cx: &mut Cx, layout: Layout) -> Result<Option<u64>, Exit> {
        let ring = &entry.ring;
        let Some(flushes) = ring.arithmetic.flushes(cx.mode()) else { return Ok(None) };
        if !self.holds(cx.world, layout, entry)? {
            return Ok(None);
        }
        let Some(native) = &mut self.native else { return Ok(None) };
        native.context.set_flushing(flushes);
        if entry.orders {
            cx.cache.settle();
        }
        let limit = u32::try_from((cx.left / u64::from(ring.insts.max(1))).clamp(1, ROUNDS.into())).unwrap_or(1);
        let head = cx.wave.pc;
        // SAFETY: the wave's registers are as the layout has them, for which the ring was made.
        let turned = unsafe {
            if native.how.is_checked {
                twice(ring, native, cx, limit)
            } else {
                run(ring, native, cx, limit)
            }
        };
        cx.wave.pc = turned.out.and_then(|block| entry.blocks.get(block)).map_or(head, |(_, _, out)| *out);
        native.check.compare_place(cx.wave.pc);
        Ok(Some(turned.done.into()))
    }
}

impl Native {
    fn ring(&mut self, members: &[(&Block, bool)], sabotage: &Switches) -> Option<Ring> {
        let links: Vec<Link<'_>> =
            members.iter().map(|(block, jumps)| Link { insts: &block.insts, jumps: *jumps }).collect();
        let layout = members.first()?.0.layout;
        let made: Result<Ring, Why> = Ring::build(&links, &layout, self.how.width, &mut self.translator, sabotage);
        let ring = made.ok()?;
        if self.how.is_checked {
            self.check.make_room(layout.rows);
        }
        self.report.rings += 1;
        self.report.bytes += ring.bytes() as u64;
        if self.how.perf_map {
            let pc = members.first()?.0.pc;
            ring.regions().for_each(|region| list(region.code(), pc, region.insts.start));
            list(ring.code(), pc, 0);
        }
        Some(ring)
    }
}

unsafe fn run(ring: &Ring, native: &mut Native, cx: &mut Cx, limit: u32) -> Turned {
    let context = &mut *native.context;
    context.scc = cx.wave.scc.into();
    context.user = (&raw mut *cx).cast();
    // SAFETY: the caller's.
    let turned = unsafe { ring.run(context, cx.rows, cx.scalars, limit) };
    cx.wave.scc = context.scc & 1 != 0;
    turned
}

/// Runs a ring, has the reference engine do as many instructions, and compares.
unsafe fn twice(ring: &Ring, native: &mut Native, cx: &mut Cx, limit: u32) -> Turned {
    let mut before = cx.wave.clone();
    // SAFETY: the caller's.
    let turned = unsafe { run(ring, native, cx, limit) };
    let after = cx.wave.clone();
    for _ in 0..turned.done {
        let done = reference::fetch(&before, &mut Seam(cx.world))
            .and_then(|inst| reference::execute(&inst, &mut before, cx.group, &mut Seam(cx.world)));
        match done {
            Ok(()) => {}
            // Memory went meanwhile: nothing to compare with.
            Err(Exit::Miss(_)) => return turned,
            Err(exit) => {
                let found = &mut native.check.found;
                (found.checked, found.wrong) = (found.checked + 1, found.wrong + 1);
                found.first.get_or_insert(format!("a ring at {:#x} goes on behind {exit:?}", before.pc));
                return turned;
            }
        }
    }
    let lanes = usize::from(after.lanes);
    let rows = before.rows.iter().zip(&after.rows).position(|(one, two)| one.0[..lanes] != two.0[..lanes]);
    let scalars = before.scalar.iter().zip(&after.scalar).position(|(one, two)| one != two);
    let found = &mut native.check.found;
    found.checked += 1;
    native.check.expected = Some(before.pc);
    if rows.is_some() || scalars.is_some() || before.scc != after.scc {
        found.wrong += 1;
        let text = format!("a ring at {:#x}: row {rows:?}, scalar {scalars:?}", after.pc);
        found.first.get_or_insert(text);
    }
    // On with the reference's registers.
    (cx.wave.scalar, cx.wave.scc) = (before.scalar, before.scc);
    for (row, right) in cx.wave.rows.iter_mut().zip(&before.rows) {
        *row = *right;
    }
    cx.refresh();
    turned
}
