// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A guest process's CPU memory: simulated, with its frames in the guest's RAM, where they move. A
//! place that a page has left belongs to another owner at once, and is filled with a pattern. When
//! it is reused, and at the end, the pattern must still be there.

use crate::ram::Ram;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use vkfd_driver::base::addr::{PhysAddr, PAGE};
use vkfd_sim::SimMm;

/// Places of others before one is reused.
const OTHERS: usize = 500;
const PATTERN: [u8; 4096] = [0xa5; 4096];

#[derive(Default)]
struct Moves {
    others: VecDeque<PhysAddr>,
    moved: u64,
    corrupted: u64,
}

pub struct GuestMemory {
    ram: Arc<Ram>,
    /// The memory as the driver has it.
    pub mm: Arc<SimMm>,
    moves: Mutex<Moves>,
}

impl GuestMemory {
    pub fn new(ram: Arc<Ram>) -> Self {
        Self { ram, mm: Arc::default(), moves: Mutex::default() }
    }

    /// Gives page `page` memory.
    pub fn add(&self, page: u64) {
        self.mm.map_at(page, self.ram.pages(1).0 / PAGE);
    }

    /// The word at byte `at` of a page.
    pub fn load(&self, page: u64, at: u64) -> u64 {
        self.mm.with_frame(page, |frame| self.ram.load(PhysAddr(frame * PAGE + at)))
    }

    /// Moves a page to another place, as compaction does.
    pub fn migrate(&self, page: u64) {
        let mut moves = self.moves.lock().unwrap();
        let new = if moves.others.len() < OTHERS {
            self.ram.pages(1)
        } else {
            let reused = moves.others.pop_front().unwrap();
            moves.corrupted += u64::from(self.ram.read(reused, PAGE) != PATTERN);
            reused
        };
        self.mm.compact(page, new.0 / PAGE, |old| {
            let old = PhysAddr(old * PAGE);
            self.ram.write(new, &self.ram.read(old, PAGE));
            self.ram.write(old, &PATTERN);
            moves.others.push_back(old);
        });
        moves.moved += 1;
    }

    /// Pages moved, and places of others that have changed.
    pub fn count(&self) -> (u64, u64) {
        let moves = self.moves.lock().unwrap();
        let changed = moves.others.iter().filter(|at| self.ram.read(**at, PAGE) != PATTERN).count() as u64;
        (moves.moved, moves.corrupted + changed)
    }
}
