// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Superblocks: blocks that waves mostly do one after the other, as one block.
//!
//! When a block is hot, its successors are followed, the likelier ones, as far as they lie behind
//! one another. A superblock has the steps and the regions of all of them. The branches in its
//! middle are side exits, for waves that go another way. So a wave that has a dozen short blocks
//! finds, enters and leaves one or two.
//!
//! A superblock belongs to its first block, and is done instead of it. The others are there by
//! themselves, too, for waves that come to them from elsewhere. As a ring does, a superblock names
//! its blocks by their numbers. Every one of them is looked at before its first use in a run.
//!
//! Limits: nothing leads backward within a superblock, so that a loop has each of its rounds begin
//! with a look-up. Blocks that end with waits, or whose results are approximate, are in none.

use super::block::{Block, Straight, Superblock};
use super::layout::{Grain, Layout};
use super::region;
use super::rings::ways;
use super::Blocks;
use crate::world::World;
use vkfd_sabotage::Switch;

/// Most instructions of a superblock.
const INSTS: usize = 640;

/// A block of a superblock: its address, and whether its branch is taken on the way.
type Link = (u64, bool);

impl Blocks {
    /// The blocks of a superblock that begins with this one; of the last one the way means nothing.
    fn find_superblock(&self, head: u64, layout: Layout) -> Option<Vec<Link>> {
        if layout.grain != Grain::Whole {
            return None;
        }
        let enough = self.blocks.get(&(head, layout))?.heat.get() / 2;
        let (mut links, mut next, mut count): (Vec<Link>, _, _) = (Vec::new(), Some(head), 0);
        while let Some(block) = next.and_then(|pc| self.blocks.get(&(pc, layout))) {
            let last = block.insts.last()?;
            let ways = ways(block, last);
            let is_loop = ways.contains(&Some(block.pc));
            count += block.insts.len();
            if is_loop || block.in_ring.get() || !block.inexact.is_empty() || block.heat.get() < enough || count > INSTS
            {
                break;
            }
            let jumps = self.jumps(layout, last.op, ways);
            links.push((block.pc, jumps.unwrap_or(false)));
            next = jumps.and_then(|jumps| ways[usize::from(jumps)]).filter(|next| *next >= block.end());
        }
        (links.len() > 1).then_some(links)
    }

    /// Makes the superblock of which a hot block is the head, if there is one, and translates it.
    pub(super) fn make_superblock(&mut self, head: u64, layout: Layout) -> bool {
        let Some(links) = self.find_superblock(head, layout) else { return false };
        let Blocks { blocks, constants, held, native: Some(native), vectors, sabotage, .. } = self else {
            return false;
        };
        let block = |pc: u64| blocks.get(&(pc, layout)).map(|block| &**block);
        let parts = links.iter().filter_map(|(pc, taken)| Some((block(*pc)?, *taken)));
        let members = parts.clone().map(|(block, _)| (block.pc, block.serial)).collect();
        let straight: Vec<Straight> =
            parts.map(|(block, taken)| Straight { pc: block.pc, insts: &block.insts, taken }).collect();
        let before = constants.bytes();
        let mut superblock = Block::joined(layout, &straight, *vectors, constants);
        held.take(constants.bytes() - before);
        #[cfg(debug_assertions)]
        superblock.spoil(sabotage);
        region::translate(native, &mut superblock, sabotage);
        native.report.superblocks += 1;
        let Some(head) = blocks.get_mut(&(head, layout)) else { return false };
        superblock.heat.set(head.heat.get());
        head.superblock = Some(Superblock { block: Box::new(superblock), members });
        // It is found instead of its first block from now on.
        self.recent.fill(std::ptr::null_mut());
        true
    }

    /// The superblock that begins with a block, if its code is still what was decoded. Otherwise
    /// the block is to become hot once more.
    pub(super) fn superblock(&mut self, world: &mut dyn World, key: (u64, Layout)) -> Option<*mut Block> {
        let now = self.runs;
        let entry = self.blocks.get_mut(&key)?.superblock.take()?;
        let holds = if entry.block.run == now || self.sabotage.has(Switch::KeptSuperblock) {
            Ok(true)
        } else {
            self.hold(world, key.1, entry.members.iter().copied())
        };
        let head = self.blocks.get_mut(&key)?;
        if let Ok(false) = holds {
            self.held.give(entry.bytes());
            head.heat.set(0);
            return None;
        }
        let entry = head.superblock.insert(entry);
        // Code that is not there now is asked for when a wave comes to it.
        if holds.is_err() {
            return None;
        }
        entry.block.run = now;
        Some(&raw mut *entry.block)
    }
}
