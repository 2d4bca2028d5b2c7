// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The page tables of one VM: four gfx9 levels in the GPU's own memory.
//!
//! ```text
//! PDB2 (bits 47:39) -> PDB1 (38:30) -> PDB0 (29:21) -> PTB (20:12)
//! ```
//!
//! Two steps, so that an invalidation never allocates. [`PageTable::reserve`] makes every table
//! that a span of addresses needs, down to the last level, and returns [`Leaves`]: where the span's
//! entries are. A thread that owns the span then writes and clears entries through its `Leaves`
//! alone, as often as it likes, without a walk and without the tree's lock. A whole 2 MiB block
//! becomes one huge entry, and small ones again without an allocation, because its last-level table
//! stays. [`PageTable::detach`] and [`PageTable::reap`] take the tables away again, with a TLB
//! flush between, so that no walker still reads a table that is someone else's page by then.
//!
//! The tree is guarded by the VM's lock (rank `Vm`). `Leaves` are written under the lock of the
//! object that owns them. Costs: reserve and detach O(2 MiB blocks of the span); writing
//! O(entries), one device access a run.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "indices are masked to a table, addresses are of spans below VA_END, which whoever makes a reservation checks, and counts are of pages in them"
)]

use crate::base::addr::{index, GpuSpan, GpuVa, VramOffset, HUGE as BLOCK, HUGE_PAGES, PAGE, PAGE_SHIFT};
use crate::base::errno::Result;
use crate::base::pte::{self, Target};
use crate::device::vram::{Vram, VramBlock};
use crate::os::{Arc, Vec};
use crate::seams::address_space::Page;
use crate::seams::gpu::Gpu;

const NIL: u32 = u32::MAX;
const ENTRIES: usize = 512;
const ENTRY_BYTES: u64 = 8;
/// A table that has been given back.
const FREED: VramOffset = VramOffset(u64::MAX);
/// One past the highest GPU address: where user space's half of canonical addresses ends, as in
/// KFD. The tables could take one bit more, but clients take a higher limit for that of a GPU
/// without a common address space.
pub const VA_END: u64 = 1 << 47;

struct Table {
    at: VramOffset,
    /// Children, or for a PTB the spans that use it.
    users: u32,
    parent: u32,
    /// Which entry of the parent.
    slot: u32,
    /// By entry; empty in a PTB.
    children: Vec<u32>,
}

/// The tree.
pub struct PageTable {
    gpu: Arc<dyn Gpu>,
    vram: Arc<Vram>,
    tables: Vec<Table>,
    unused: Vec<u32>,
    /// Detached, waiting for [`PageTable::reap`].
    dead: u32,
    live: u64,
}

/// One 2 MiB block of a span: the directory entry that covers it, and its last-level table.
#[derive(Clone, Copy)]
struct Leaf {
    pde: VramOffset,
    ptb: VramOffset,
}

/// The entries of one reserved span.
pub struct Leaves {
    span: GpuSpan,
    blocks: Vec<Leaf>,
}

impl PageTable {
    /// An empty tree: one root.
    pub fn new(gpu: Arc<dyn Gpu>, vram: Arc<Vram>) -> Result<Self> {
        let mut this = Self { gpu, vram, tables: Vec::new(), unused: Vec::new(), dead: NIL, live: 0 };
        this.add(NIL, 0, true)?;
        Ok(this)
    }

    /// Where the root is.
    pub fn root(&self) -> VramOffset {
        self.tables[0].at
    }

    /// VRAM that the tables take.
    pub fn bytes(&self) -> u64 {
        self.live * PAGE
    }

    fn add(&mut self, parent: u32, slot: u32, directory: bool) -> Result<u32> {
        let children = if directory { Vec::filled(NIL, ENTRIES)? } else { Vec::new() };
        self.tables.reserve(1)?;
        // Room to remember the number when the table goes, so that detaching cannot fail.
        self.unused.reserve(self.tables.len() + 1 - self.unused.len())?;
        let at = self.vram.alloc_page(&*self.gpu)?;
        self.live += 1;
        let table = Table { at, users: 0, parent, slot, children };
        let number = match self.unused.pop() {
            Some(number) => {
                self.tables[number as usize] = table;
                number
            }
            None => {
                // Bounded by VRAM pages, which are u32.
                let number = u32::try_from(self.tables.len()).unwrap_or(NIL);
                self.tables.push(table)?;
                number
            }
        };
        if parent != NIL {
            let base = self.gpu.properties().vram_base;
            let entry = pte::directory(crate::base::addr::FabricAddr(base.0 + at.0));
            let pde = self.entry(parent, slot);
            let above = &mut self.tables[parent as usize];
            above.children[slot as usize] = number;
            above.users += 1;
            self.gpu.write_entries(pde, entry, 0, 1);
        }
        Ok(number)
    }

    fn entry(&self, table: u32, slot: u32) -> VramOffset {
        VramOffset(self.tables[table as usize].at.0 + u64::from(slot) * ENTRY_BYTES)
    }

    fn slot(va: u64, level: u32) -> u32 {
        u32::try_from((va >> (PAGE_SHIFT + 9 * level)) % ENTRIES as u64).unwrap_or(0)
    }

    /// The PTB of the block at `va`, made if `make`.
    fn descend(&mut self, va: u64, make: bool) -> Result<Option<u32>> {
        let mut at = 0;
        for level in (1..=3).rev() {
            let slot = Self::slot(va, level);
            let child = self.tables[at as usize].children[slot as usize];
            at = match (child, make) {
                (NIL, false) => return Ok(None),
                (NIL, true) => match self.add(at, slot, level > 1) {
                    Ok(child) => child,
                    Err(e) => {
                        self.prune(at);
                        return Err(e);
                    }
                },
                (child, _) => child,
            };
        }
        Ok(Some(at))
    }

    /// The leaf entry of an address, by the tables in VRAM; of a huge entry the part that maps the
    /// page. 0 where there is none.
    pub fn entry_at(&self, va: GpuVa) -> u64 {
        if va.0 >= VA_END {
            return 0;
        }
        let mut table = 0;
        for level in (1..=3).rev() {
            let slot = Self::slot(va.0, level);
            let entry = self.gpu.read_entry(self.entry(table, slot));
            if entry & (pte::VALID | pte::HUGE) == pte::VALID | pte::HUGE {
                return entry + va.0 % BLOCK / PAGE * PAGE;
            }
            table = self.tables[table as usize].children[slot as usize];
            if entry & pte::VALID == 0 || table == NIL {
                return 0;
            }
        }
        self.gpu.read_entry(self.entry(table, Self::slot(va.0, 0)))
    }

    /// The first address of each last-level table.
    pub fn blocks(&self) -> impl Iterator<Item = GpuVa> + '_ {
        let last_level = |table: &&Table| table.children.is_empty() && table.at != FREED;
        self.tables.iter().filter(last_level).map(|table| {
            let (mut va, mut level, mut at) = (0, 1, table);
            while at.parent != NIL {
                va += u64::from(at.slot) << (PAGE_SHIFT + 9 * level);
                level += 1;
                at = &self.tables[at.parent as usize];
            }
            GpuVa(va)
        })
    }

    /// Detaches `table` and its ancestors as far as nobody uses them.
    fn prune(&mut self, mut table: u32) {
        while table != 0 && self.tables[table as usize].users == 0 {
            let (parent, slot) = (self.tables[table as usize].parent, self.tables[table as usize].slot);
            self.gpu.write_entries(self.entry(parent, slot), 0, 0, 1);
            let above = &mut self.tables[parent as usize];
            above.children[slot as usize] = NIL;
            above.users -= 1;
            self.tables[table as usize].parent = self.dead;
            self.dead = table;
            table = parent;
        }
    }

    /// Makes the tables of `span` (whole pages below [`VA_END`]). On failure the tree is as it was,
    /// except that detached tables wait for [`reap`](Self::reap).
    pub fn reserve(&mut self, span: GpuSpan) -> Result<Leaves> {
        let first = span.start().0 / BLOCK;
        let last = (span.end().0 - 1) / BLOCK;
        let mut blocks = Vec::with_capacity(index(last - first + 1))?;
        for block in first..=last {
            let ptb = match self.descend(block * BLOCK, true) {
                Ok(Some(ptb)) => ptb,
                Ok(None) => break, // `make` never gives none
                Err(e) => {
                    self.drop_users(first, block);
                    return Err(e);
                }
            };
            let table = &mut self.tables[ptb as usize];
            table.users += 1;
            let leaf = Leaf { ptb: table.at, pde: VramOffset(0) };
            let pde = self.entry(self.tables[ptb as usize].parent, self.tables[ptb as usize].slot);
            blocks.push_reserved(Leaf { pde, ..leaf });
        }
        Ok(Leaves { span, blocks })
    }

    /// Takes the directory entries of tables that only `leaves` used away. Whether there were any:
    /// then the caller flushes and calls [`reap`](Self::reap). The span's entries must have been
    /// cleared.
    #[must_use]
    pub fn detach(&mut self, leaves: &Leaves) -> bool {
        let first = leaves.span.start().0 / BLOCK;
        self.drop_users(first, first + leaves.blocks.len() as u64);
        self.dead != NIL
    }

    fn drop_users(&mut self, first: u64, end: u64) {
        for block in first..end {
            if let Ok(Some(ptb)) = self.descend(block * BLOCK, false) {
                self.tables[ptb as usize].users -= 1;
                self.prune(ptb);
            }
        }
    }

    /// Frees detached tables. After a TLB flush.
    pub fn reap(&mut self) {
        while self.dead != NIL {
            let number = self.dead;
            let table = &mut self.tables[number as usize];
            self.dead = table.parent;
            table.children = Vec::new();
            let block = [VramBlock::page(core::mem::replace(&mut table.at, FREED))];
            self.vram.free(&*self.gpu, &block);
            self.unused.push_reserved(number);
            self.live -= 1;
        }
    }
}

impl Drop for PageTable {
    fn drop(&mut self) {
        // The VM is off the GPU: nothing walks these any more.
        self.reap();
        for table in self.tables.iter().filter(|t| t.at != FREED) {
            self.vram.free(&*self.gpu, &[VramBlock::page(table.at)]);
        }
    }
}

impl Leaves {
    /// The span these are the entries of.
    pub const fn span(&self) -> GpuSpan {
        self.span
    }

    /// Bytes of driver memory held.
    pub fn memory(&self) -> u64 {
        self.blocks.memory()
    }

    fn huge(&self, gpu: &dyn Gpu, leaf: Leaf) -> bool {
        gpu.read_entry(leaf.pde) & pte::HUGE != 0
    }

    fn point_at_table(gpu: &dyn Gpu, leaf: Leaf) {
        let base = gpu.properties().vram_base;
        gpu.write_entries(leaf.pde, pte::directory(crate::base::addr::FabricAddr(base.0 + leaf.ptb.0)), 0, 1);
    }

    /// The entry of a page of the span; of a huge entry the part that maps the page. For tests.
    pub fn entry(&self, gpu: &dyn Gpu, page: u64) -> u64 {
        let mut entry = 0;
        self.each_block(page, 1, |leaf, within, _, _| {
            let pde = gpu.read_entry(leaf.pde);
            let small = || gpu.read_entry(VramOffset(leaf.ptb.0 + within * ENTRY_BYTES));
            entry = if pde & pte::HUGE != 0 { pde + within * PAGE } else { small() };
        });
        entry
    }

    /// Calls `f` for the part of pages `[first, first + count)` in each block: the leaf, the page
    /// within the block, the pages, and how many came before.
    fn each_block(&self, first: u64, count: u64, mut f: impl FnMut(Leaf, u64, u64, u64)) {
        let base = self.span.start().0 % BLOCK / PAGE;
        let mut done = 0;
        while done < count {
            let at = base + first + done;
            let within = at % HUGE_PAGES;
            let pages = (HUGE_PAGES - within).min(count - done);
            let Some(leaf) = self.blocks.get(index(at / HUGE_PAGES)) else { return };
            f(*leaf, within, pages, done);
            done += pages;
        }
    }

    /// Makes sure that no larger entry reaches over page `page` of the span from below. A huge
    /// entry becomes small ones, a fragment two sides of smaller ones. Every page keeps its mapping
    /// throughout. At most 512 entries.
    fn split_at(&self, gpu: &dyn Gpu, page: u64) {
        let at = self.span.start().0 % BLOCK / PAGE + page;
        let within = at % HUGE_PAGES;
        let Some(leaf) = self.blocks.get(index(at / HUGE_PAGES)).filter(|_| within != 0) else { return };
        let pde = gpu.read_entry(leaf.pde);
        if pde & pte::HUGE != 0 {
            let start = pte::without_fragment(pde);
            // Small entries before the directory entry that makes them visible.
            write_run(gpu, leaf.ptb, 0, within, start);
            write_run(gpu, leaf.ptb, within, HUGE_PAGES - within, start + within * PAGE);
            Self::point_at_table(gpu, *leaf);
            return;
        }
        let entry = gpu.read_entry(VramOffset(leaf.ptb.0 + (within - 1) * ENTRY_BYTES));
        let size = 1u64 << pte::fragment(entry);
        let start = (within - 1) & !(size - 1);
        if entry & pte::VALID == 0 || start + size <= within {
            return;
        }
        let first = pte::without_fragment(entry) - (within - 1 - start) * PAGE;
        write_run(gpu, leaf.ptb, start, within - start, first);
        write_run(gpu, leaf.ptb, within, start + size - within, first + (within - start) * PAGE);
    }

    /// As [`clear`](Self::clear), for any pages: larger entries stay mapped outside of the span.
    /// Needs a flush.
    pub fn clear_part(&self, gpu: &dyn Gpu, first: u64, count: u64) {
        self.split_at(gpu, first);
        self.split_at(gpu, first + count);
        self.clear(gpu, first, count);
    }

    /// As [`write`](Self::write), for any pages: larger entries stay mapped outside of the span.
    /// `entry(i)` is page i's entry without a fragment.
    pub fn write_part(&self, gpu: &dyn Gpu, first: u64, count: u64, entry: impl Fn(u64) -> u64) {
        self.split_at(gpu, first);
        self.split_at(gpu, first + count);
        let run = |i, most| {
            let start = entry(i);
            (1..most).find(|n| entry(i + n) != start + n * PAGE).unwrap_or(most)
        };
        self.write_runs(gpu, first, count, &entry, run);
    }

    /// Clears the entries of `count` pages from page `first` of the span. Needs a flush.
    pub fn clear(&self, gpu: &dyn Gpu, first: u64, count: u64) {
        self.each_block(first, count, |leaf, within, pages, _| {
            gpu.write_entries(VramOffset(leaf.ptb.0 + within * ENTRY_BYTES), 0, 0, pages);
            // Only a block that lies in one range of one object is ever huge, and it is cleared as
            // a whole.
            if pages == HUGE_PAGES && self.huge(gpu, leaf) {
                Self::point_at_table(gpu, leaf);
            }
        });
    }

    /// Writes `count` entries from page `first` of the span; page i points at `target(i)` with
    /// `access`. Contiguous pages become the largest fragments, whole blocks huge entries.
    /// `first .. first + count` must hold every 2 MiB block that it touches either as a whole, or
    /// not have written it as a whole before.
    pub fn write(&self, gpu: &dyn Gpu, first: u64, count: u64, target: impl Fn(u64) -> (Target, u64)) {
        // Entries without a fragment: those of contiguous pages with equal access are a page apart.
        let entry = |i| {
            let (target, access) = target(i);
            pte::leaf(target, access, 0)
        };
        let run = |i, most| {
            let start = entry(i);
            (1..most).find(|n| entry(i + n) != start + n * PAGE).unwrap_or(most)
        };
        self.write_runs(gpu, first, count, entry, run);
    }

    /// [`Leaves::write`] of pages as they were faulted in. `entry`'s result depends only on the
    /// page's place and on whether it is writable.
    pub fn write_pages(&self, gpu: &dyn Gpu, first: u64, pages: &[Page], entry: impl Fn(Page) -> u64) {
        let at = |i: u64| pages[index(i)];
        let run = |i, most| Page::run(&pages[index(i)..index(i + most)]);
        self.write_runs(gpu, first, pages.len() as u64, |i| entry(at(i)), run);
    }

    /// `entry(i)` is page i's entry without a fragment, `run(i, most)` how many pages of the `most`
    /// from i on are contiguous.
    fn write_runs(
        &self,
        gpu: &dyn Gpu,
        first: u64,
        count: u64,
        entry: impl Fn(u64) -> u64,
        contiguous: impl Fn(u64, u64) -> u64,
    ) {
        self.each_block(first, count, |leaf, within, pages, done| {
            let mut huge = pages == HUGE_PAGES && self.huge(gpu, leaf);
            let mut at = 0;
            while at < pages {
                let start = entry(done + at);
                let run = contiguous(done + at, pages - at);
                if run == HUGE_PAGES && pte::address(start) % BLOCK == 0 {
                    gpu.write_entries(leaf.pde, start | pte::HUGE, 0, 1);
                    return;
                }
                if huge {
                    // Small entries before the directory entry that makes them visible.
                    gpu.write_entries(leaf.ptb, 0, 0, HUGE_PAGES);
                    Self::point_at_table(gpu, leaf);
                    huge = false;
                }
                write_run(gpu, leaf.ptb, within + at, run, start);
                at += run;
            }
        });
    }
}

/// Writes a contiguous run, whose first page has the entry `start`, in the largest fragments that
/// alignment on both sides allows.
fn write_run(gpu: &dyn Gpu, ptb: VramOffset, first: u64, count: u64, start: u64) {
    let number = pte::address(start) / PAGE;
    let mut done = 0;
    while done < count {
        let (here, there) = (first + done, number + done);
        let fragment = (here | there).trailing_zeros().min((count - done).ilog2()).min(pte::MAX_FRAGMENT);
        // Equal fragments in a row go out in one access.
        let size = 1 << fragment;
        let mut pages = size;
        while done + pages + size <= count && ((here + pages) | (there + pages)).trailing_zeros() == fragment {
            pages += size;
        }
        let entry = pte::with_fragment(start + done * PAGE, fragment);
        gpu.write_entries(VramOffset(ptb.0 + here * ENTRY_BYTES), entry, PAGE, pages);
        done += pages;
    }
}
