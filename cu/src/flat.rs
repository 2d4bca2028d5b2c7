// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A world without a GPU: one piece of memory at an address, for tests and benchmarks of the
//! engines.
//!
//! Its pages can be scattered (no two neighbours are neighbours on the host), protected, and absent
//! until a miss is settled. It has one thread; there is no driver, so the gate is always open.

use crate::exit::{Miss, Stop};
use crate::world::{Access, Detour, Span, World};
use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::cell::Cell;
use std::collections::BTreeMap;
use vkfd_isa::Op;
use vkfd_raw as raw;

/// Bytes of a page.
const PAGE: usize = 4096;

/// What a page allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    All,
    /// Reads and fetches.
    ReadOnly,
    /// Nothing, until a miss on it is settled.
    Absent,
    /// Nothing, ever.
    None,
}

struct Page {
    host: usize,
    rights: Rights,
}

/// Memory from an address on.
pub struct Flat {
    base: u64,
    memory: *mut u8,
    layout: Layout,
    pages: Vec<Page>,
    scattered: bool,
    /// Not every page allows everything.
    restricted: bool,
    /// Events that the wave has raised.
    pub events: Vec<u32>,
    /// What the reference engine had to do, and how often.
    pub detours: BTreeMap<(Op, Detour), u64>,
    /// The gate is wanted at each fifth question.
    pub is_wanted: bool,
    /// How often the gate was left, if somebody enters and leaves it: spans last as long.
    pub openings: Option<u64>,
    asked: Cell<u32>,
}

impl Flat {
    /// Zeroed memory of `pages` pages at `base`, which is page-aligned.
    #[must_use]
    pub fn new(base: u64, pages: usize) -> Flat {
        let layout = Layout::from_size_align(pages.max(1) * PAGE, PAGE).unwrap_or(Layout::new::<u8>());
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() {
            handle_alloc_error(layout);
        }
        let pages = (0..pages).map(|host| Page { host, rights: Rights::All }).collect();
        Flat {
            base,
            memory,
            layout,
            pages,
            scattered: false,
            restricted: false,
            events: Vec::new(),
            detours: BTreeMap::new(),
            is_wanted: false,
            openings: None,
            asked: Cell::new(0),
        }
    }

    /// Puts every page elsewhere, so that accesses across pages meet two host pages. What was
    /// written moves, too.
    pub fn scatter(&mut self) {
        self.scattered = true;
        let count = self.pages.len();
        for (index, page) in self.pages.iter_mut().enumerate() {
            // Evens first, then odds.
            page.host = if index % 2 == 0 { index / 2 } else { count.div_ceil(2) + index / 2 };
        }
    }

    /// Changes what the page of an address allows.
    pub fn protect(&mut self, va: u64, rights: Rights) {
        self.restricted = true;
        if let Some(page) = self.page(va).and_then(|index| self.pages.get_mut(index)) {
            page.rights = rights;
        }
    }

    fn page(&self, va: u64) -> Option<usize> {
        usize::try_from(va.checked_sub(self.base)? / PAGE as u64).ok().filter(|index| *index < self.pages.len())
    }

    /// Host address of a byte, and the bytes that follow it there.
    fn host(&self, va: u64) -> Option<(Span, Rights)> {
        let index = self.page(va)?;
        let page = self.pages.get(index)?;
        let within = usize::try_from(va % PAGE as u64).ok()?;
        let end = if self.scattered { PAGE } else { (self.pages.len() - index) * PAGE };
        let ptr = self.memory.wrapping_add(page.host * PAGE + within);
        Some((Span { ptr, len: end - within }, page.rights))
    }

    /// Writes bytes, whatever the pages allow; beyond the end nothing.
    pub fn write(&mut self, va: u64, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            if let Some((span, _)) = self.host(va.wrapping_add(index as u64)) {
                // SAFETY: a byte of the own allocation; no reference to it exists.
                let _ = unsafe { raw::store_u8(span.ptr, *byte) };
            }
        }
    }

    /// Writes words.
    pub fn write_words(&mut self, va: u64, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(va, &bytes);
    }

    /// Reads bytes, whatever the pages allow; zeros beyond the end.
    #[must_use]
    pub fn read(&self, va: u64, len: usize) -> Vec<u8> {
        (0..len)
            .map(|index| {
                let span = self.host(va.wrapping_add(index as u64));
                // SAFETY: as in `write`.
                span.and_then(|(span, _)| unsafe { raw::load_u8(span.ptr) }.ok()).unwrap_or(0)
            })
            .collect()
    }

    /// Reads words.
    #[must_use]
    pub fn read_words(&self, va: u64, count: usize) -> Vec<u32> {
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        self.read(va, 4 * count).chunks(4).map(word).collect()
    }
}

impl Drop for Flat {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.memory, self.layout) };
    }
}

impl World for Flat {
    fn enter(&mut self) -> Result<(), Stop> {
        Ok(())
    }

    fn leave(&mut self) {
        self.openings = self.openings.map(|openings| openings + 1);
    }

    fn opening(&self) -> Option<u64> {
        self.openings
    }

    fn wanted(&self) -> bool {
        self.asked.set(self.asked.get().wrapping_add(1));
        self.is_wanted && self.asked.get() % 5 == 0
    }

    fn translate(&mut self, va: u64, access: Access) -> Result<Span, Miss> {
        let miss = Miss { va, access, lost: false, reason: 0 };
        let (mut span, rights) = self.host(va).ok_or(miss)?;
        let allowed = match rights {
            Rights::All => true,
            Rights::ReadOnly => access != Access::Write,
            Rights::Absent | Rights::None => false,
        };
        if self.restricted {
            let within = usize::try_from(va % PAGE as u64).unwrap_or(0);
            span.len = span.len.min(PAGE - within);
        }
        allowed.then_some(span).ok_or(miss)
    }

    fn settle(&mut self, miss: &Miss) -> Result<(), Stop> {
        let page = self.page(miss.va).and_then(|index| self.pages.get_mut(index)).ok_or(Stop)?;
        if page.rights != Rights::Absent {
            return Err(Stop);
        }
        page.rights = Rights::All;
        Ok(())
    }

    fn interrupt(&mut self, event: u32) {
        self.events.push(event);
    }

    fn clock(&self) -> u64 {
        100
    }

    fn cycles(&self) -> u64 {
        1600
    }

    fn detour(&mut self, op: Op, why: Detour) {
        *self.detours.entry((op, why)).or_default() += 1;
    }
}
