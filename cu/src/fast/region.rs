// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Translated code among a block's steps: how it is made, entered and checked.
//!
//! A block that ran [`Translation::after`] times is translated (`vkfd_translate`). Each region
//! replaces the first step of its instructions. That step's own handler stays beside it, for waves
//! whose MODE is not the usual one, and for a load that misses. So a region does all of its
//! instructions, or the handlers do. When a store misses, the handlers go on with it. A loop is
//! left after a chunk of rounds, and its block is run again: the budget and the gate are asked
//! between chunks.
//!
//! Regions are part of their block: they go when its code has changed, or when the engine forgets.
//! They are made where blocks are decoded, outside of the gate.
//!
//! A checked engine runs each region twice, and the second time the reference engine has its
//! instructions. It compares all registers, counts what differs, and goes on with the reference's.

use super::block::Block;
use super::cache::{is_far, PAGE};
use super::layout::Layout;
use super::memory::load_across;
use super::native::{Accesses, Check, Native, Translation};
use super::step::{Cx, Entry, Flow, Step};
use super::Seam;
use crate::reference::{self, Function};
use std::cell::Cell;
use std::ffi::c_void;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Instant;
use vkfd_isa::{Op, Operand};
use vkfd_sabotage::Switches;
use vkfd_translate::{Accessing, Context, How, Left, Mending, Region, Registers, Straight, ROUNDS};

/// O_NOFOLLOW, as Linux has it on x86-64.
const NO_FOLLOW: i32 = 0o400_000;

impl Registers for Layout {
    fn lanes(&self) -> u8 {
        self.lanes
    }

    fn row(&self, operand: Operand) -> Option<u16> {
        Layout::row(self, operand, 1).and_then(|row| row.try_into().ok())
    }

    fn scalar(&self, operand: Operand, words: u8) -> Option<u8> {
        Layout::scalar(self, operand, words)
    }

    fn mask(&self, operand: Operand) -> Option<u8> {
        Layout::mask(self, operand)
    }

    fn exchange_lanes(&self) -> u8 {
        Layout::exchange_lanes(self)
    }

    fn clears_half(&self, op: Op) -> bool {
        self.target.is_gfx9() && reference::kinds(op).is_some_and(|kinds| kinds.clears)
    }
}

/// A translator that does as asked, if the processor has what that takes.
pub(super) fn translator(how: Translation) -> Option<Native> {
    Native::new(how, Context::new(mend, access))
}

/// Translates a block. Its steps do not move.
pub(super) fn translate(native: &mut Native, block: &mut Block, sabotage: &Switches) {
    let begun = Instant::now();
    for entry in std::mem::take(&mut block.regions) {
        if let Some(step) = block.steps.iter_mut().find(|step| std::ptr::eq(step.region, &raw const *entry)) {
            (step.run, step.region) = (entry.plain, std::ptr::null());
        }
    }
    let accesses = match (block.plain_accesses.get(), native.how.is_checked) {
        (true, _) => Accesses::None,
        // What is stored cannot be stored twice.
        (false, true) => Accesses::Loads,
        (false, false) => native.how.accesses,
    };
    let how = How { width: native.how.width, accesses, past: !block.orders, crosses: !block.in_order.get() };
    let refused = &mut native.report.refused;
    let note = |op, why| *refused.entry((op, why)).or_default() += 1;
    let ways: Vec<_> = block.joints.iter().map(|joint| (joint.last, joint.taken)).collect();
    let code = Straight { insts: &block.insts, ways: &ways };
    let regions = vkfd_translate::translate(code, &block.layout, how, &mut native.translator, sabotage, note);
    if native.how.is_checked {
        native.check.make_room(block.layout.rows);
    }
    native.report.blocks += 1;
    native.report.instructions += block.insts.len() as u64;
    for region in regions {
        native.report.translated += region.insts.len() as u64;
        native.report.bytes += region.bytes() as u64;
        if native.how.perf_map {
            list(region.code(), block.pc, region.insts.start);
        }
        enter_at(block, region, native.how.is_checked);
    }
    native.report.time += begun.elapsed();
}

/// Adds functions to the list that perf reads, by their block and instruction. Without the file
/// its samples have no names: no harm.
pub(super) fn list<'a>(code: impl Iterator<Item = (&'a str, usize, usize)>, pc: u64, from: usize) {
    let path = format!("/tmp/perf-{}.map", std::process::id());
    let mut options = std::fs::OpenOptions::new();
    // /tmp is everybody's: a link there is not followed.
    options.create(true).append(true).custom_flags(NO_FOLLOW);
    let Ok(mut file) = options.open(path) else { return };
    let line = |(what, address, bytes)| format!("{address:x} {bytes:x} vkfd-{what}-{pc:x}+{from}\n");
    // In one write: other threads' lines come before or behind it, and never inside.
    let _ = file.write_all(code.map(line).collect::<String>().as_bytes());
}

/// Has a region replace its instructions.
fn enter_at(block: &mut Block, region: Region, is_checked: bool) {
    let range = region.insts.clone();
    let steps = &block.steps;
    // Instructions that do nothing have no step.
    let inside = |step: &Step| range.contains(&(step.inst as usize));
    let Some(first) = steps.iter().position(inside) else { return };
    let last = steps.iter().skip(first).take_while(|step| inside(step)).last();
    let (Some(last), Some(insts)) = (last.map(std::ptr::from_ref), block.insts.get(range.clone())) else { return };
    let joints = block.joints.iter().filter(|joint| range.contains(&joint.last));
    let branch = |inst: usize| steps.iter().find(|step| step.inst as usize == inst).map(std::ptr::from_ref);
    let outs = joints.filter_map(|joint| Some((joint.last - range.start, branch(joint.last)?))).collect();
    let offset = block.offset(range.start);
    // Only checks ask for them.
    let behinds = range.clone().filter(|_| is_checked).map(|inst| block.offset(inst + 1)).collect();
    let Some(step) = block.steps.get_mut(first) else { return };
    let (rounds, singles) = (Cell::new(0), Cell::new(0));
    let entry = Box::new(Entry { region, plain: step.run, last, insts, offset, behinds, outs, rounds, singles });
    step.run = enter;
    step.region = &raw const *entry;
    block.regions.push(entry);
}

/// Runs a region, or the handlers if it cannot be.
unsafe fn enter(step: &Step, cx: &mut Cx) -> Flow {
    // SAFETY: the block has its entries as long as its steps.
    let entry = unsafe { &*step.region };
    let region = &entry.region;
    let flushes = if cx.native.is_null() { None } else { region.arithmetic.flushes(cx.mode()) };
    let Some(flushes) = flushes else {
        // SAFETY: the step's own handler.
        return unsafe { (entry.plain)(step, cx) };
    };
    let limit = if region.looped {
        let length = entry.insts.len() as u64;
        u32::try_from((cx.left / length.max(1)).clamp(1, ROUNDS.into())).unwrap_or(1)
    } else {
        1
    };
    // SAFETY: the engine's, which nothing else uses while blocks run.
    let native = unsafe { &mut *cx.native };
    native.context.set_flushing(flushes);
    // SAFETY: as above.
    let left = unsafe {
        if native.how.is_checked {
            twice(entry, native, cx, limit)
        } else {
            run(entry, native, cx, limit)
        }
    };
    match left {
        Left::Missed => {
            // SAFETY: the step's own handler; nothing was done.
            unsafe { (entry.plain)(step, cx) }
        }
        Left::SideExit { at } => {
            let branch = entry.outs.iter().find(|(inst, _)| *inst == at).map_or(entry.last, |(_, branch)| *branch);
            // SAFETY: a step of the block, which leads out as the region has.
            unsafe { ((*branch).run)(&*branch, cx) }
        }
        Left::Within { rounds, at } => {
            cx.rounds = rounds + 1;
            let inst = entry.region.insts.start + at;
            let mut next = step;
            // SAFETY: the block's steps. Its last one belongs to no instruction.
            unsafe {
                while (next.inst as usize) < inst {
                    next = &*next.next;
                }
                let run = if std::ptr::eq(next, step) { entry.plain } else { next.run };
                run(next, cx)
            }
        }
        Left::Done { rounds, again } if entry.region.looped => {
            cx.rounds = rounds;
            let bytes: u64 = if again { 0 } else { block_bytes(entry) };
            cx.next = cx.pc.wrapping_add(bytes);
            Flow::Jump
        }
        Left::Done { .. } => {
            cx.at = entry.last;
            Flow::Next
        }
    }
}

/// Bytes of a region's instructions.
fn block_bytes(entry: &Entry) -> u64 {
    // SAFETY: the block's own instructions, which do not move.
    unsafe { &*entry.insts }.iter().map(|inst| u64::from(inst.bytes)).sum()
}

unsafe fn run(entry: &Entry, native: &mut Native, cx: &mut Cx, limit: u32) -> Left {
    let context = &mut *native.context;
    context.scc = cx.wave.scc.into();
    let (rows, scalars) = (cx.rows, cx.scalars);
    context.user = (&raw mut *cx).cast();
    context.set_lds(&mut cx.group.lds);
    context.forget_pages(cx.cache.openings);
    // SAFETY: the wave's registers are as the block's layout has them, for which the region was
    // made. The functions get what runs the wave.
    let left = unsafe { entry.region.run(context, rows, scalars, limit) };
    cx.wave.scc = context.scc & 1 != 0;
    let mut singles = context.take_calls();
    cx.cache.moved += context.take_moved();
    let passed = context.take_passed();
    cx.cache.past |= passed != 0;
    #[cfg(debug_assertions)]
    {
        cx.cache.passed += passed;
    }
    cx.cache.wrote |= entry.region.stores && left != Left::Missed;
    match left {
        Left::Done { rounds, .. } => {
            entry.rounds.set(entry.rounds.get().saturating_add(rounds));
        }
        Left::SideExit { .. } => {
            entry.rounds.set(entry.rounds.get().saturating_add(1));
        }
        Left::Missed | Left::Within { .. } => singles += MISS,
    }
    if singles != 0 {
        entry.singles.set(entry.singles.get().saturating_add(singles));
        let length = u32::try_from(entry.insts.len()).unwrap_or(u32::MAX);
        let paid = entry.rounds.get().saturating_mul(length) / FREE;
        native.gave_up |= entry.singles.get() > SINGLES.max(paid);
    }
    left
}

/// Strips that a region may load lane by lane in any case. After that it may load one for each
/// [`FREE`] instructions: more cost what the region gains.
const SINGLES: u32 = 256;
/// Instructions that pay for one such strip.
const FREE: u32 = 64;
/// What a miss counts for.
const MISS: u32 = 4;

/// Runs a region, has the reference engine do the same, and compares.
unsafe fn twice(entry: &Entry, native: &mut Native, cx: &mut Cx, limit: u32) -> Left {
    let mut check = std::mem::take(&mut native.check);
    let (scalar, scc) = (cx.wave.scalar, cx.wave.scc);
    for (copy, row) in check.before.iter_mut().zip(&cx.wave.rows) {
        *copy = *row;
    }
    // SAFETY: the caller's.
    let left = unsafe { run(entry, native, cx, limit) };
    // SAFETY: the block's own instructions.
    let insts = unsafe { &*entry.insts };
    let (rounds, again, done) = match left {
        Left::Done { rounds, again } => (rounds, again, insts.len()),
        Left::SideExit { at } => (1, false, at),
        Left::Missed | Left::Within { .. } => {
            native.check = check;
            return left;
        }
    };
    let after = (cx.wave.scalar, cx.wave.scc);
    for (copy, row) in check.behind.iter_mut().zip(&cx.wave.rows) {
        *copy = *row;
    }
    let put_back = |cx: &mut Cx, check: &Check| {
        for (row, copy) in cx.wave.rows.iter_mut().zip(&check.before) {
            *row = *copy;
        }
        (cx.wave.scalar, cx.wave.scc) = (scalar, scc);
        cx.refresh();
    };
    put_back(cx, &check);
    let pc = cx.wave.pc;
    // Of a superblock: whether a branch leads elsewhere than the region has gone.
    let mut astray = false;
    for _ in 0..rounds {
        cx.wave.pc = cx.pc.wrapping_add(entry.offset);
        for (inst, behind) in insts.iter().take(done).zip(&entry.behinds) {
            if reference::execute(inst, cx.wave, cx.group, &mut Seam(cx.world)).is_err() {
                // Memory went meanwhile: the handlers find out.
                put_back(cx, &check);
                cx.wave.pc = pc;
                native.check = check;
                return Left::Missed;
            }
            astray |= !entry.region.looped && cx.wave.pc != cx.pc.wrapping_add(*behind);
        }
    }
    if let (Left::SideExit { .. }, Some(inst), Some(behind)) = (left, insts.get(done), entry.behinds.get(done)) {
        let is_done = reference::execute(inst, cx.wave, cx.group, &mut Seam(cx.world)).is_ok();
        // Both ways of a branch to the next instruction are one.
        astray |= !is_done || cx.wave.pc == cx.pc.wrapping_add(*behind) && inst.imm != 0;
    }
    let back = cx.wave.pc == cx.pc.wrapping_add(entry.offset);
    cx.wave.pc = pc;
    cx.refresh();
    let lanes = usize::from(cx.wave.lanes);
    let rows = cx.wave.rows.iter().zip(&check.behind).position(|(one, two)| one.0[..lanes] != two.0[..lanes]);
    let scalars = cx.wave.scalar.iter().zip(&after.0).position(|(one, two)| one != two);
    let flow = entry.region.looped && back != again || astray;
    check.found.checked += 1;
    if rows.is_some() || scalars.is_some() || cx.wave.scc != after.1 || flow {
        check.found.wrong += 1;
        if check.found.first.is_none() {
            let ops: Vec<&str> = insts.iter().map(|inst| inst.op.name()).collect();
            let at = cx.pc.wrapping_add(entry.offset);
            let text = format!("{at:#x}: row {rows:?}, scalar {scalars:?}, branch {flow}, of {}", ops.join(" "));
            check.found.first = Some(text);
        }
    }
    native.check = check;
    match left {
        Left::Done { .. } => Left::Done { rounds, again: if entry.region.looped { back } else { again } },
        left => left,
    }
}

/// Whether FLAT has one of its apertures at a page, or so near that an offset leads there.
fn is_aside(cx: &Cx, page: u64) -> bool {
    [page.wrapping_sub(2 * PAGE), page.wrapping_add(3 * PAGE)].into_iter().any(|va| {
        let high = (va >> 32) as u32;
        high == cx.group.apertures.shared || high == cx.group.apertures.private
    })
}

/// The page of an address, and a prefetch of the next access, if the last three had one stride from
/// page to page.
fn page(cx: &mut Cx, access: &mut Accessing) -> Option<()> {
    let (va, flat, write) = (access.base, access.flat != 0, access.kind == Accessing::PAGE_TO_WRITE);
    let page = va & !(PAGE - 1);
    if flat && is_aside(cx, page) {
        return None;
    }
    let host = cx.cache.page(cx.world, page, write)?;
    let past = write && access.past != 0 && cx.cache.streams() && cx.cache.is_fresh(page);
    let tag = Accessing::tag(page, flat, write) | if past { Accessing::PAST } else { 0 };
    (access.page, access.host) = (tag, host);
    if let Some(stride) = cx.cache.site(access.site, cx.wave.index, va).filter(|stride| is_far(*stride)) {
        let next = va.wrapping_add(stride);
        if let Some(host) = cx.cache.page(cx.world, next, write) {
            vkfd_raw::prefetch_lines(host, 4 * access.words as usize, write);
        }
    }
    Some(())
}

/// A strip's load of memory, or its store, lane by lane.
unsafe extern "sysv64" fn access(user: *mut c_void, access: *mut Accessing) -> u32 {
    // SAFETY: as in `mend`.
    let (cx, access) = unsafe { (&mut *user.cast::<Cx>(), &mut *access) };
    if let Accessing::PAGE | Accessing::PAGE_TO_WRITE = access.kind {
        return page(cx, access).is_some().into();
    }
    access.calls += 1;
    let (words, flat, write) = (access.words.clamp(1, 4) as usize, access.flat != 0, access.kind == Accessing::STORE);
    let narrow = access.narrow as usize;
    // Three pieces of one word, or one of all words, or one of less.
    let (bytes, piece) = match narrow {
        1 | 2 => (narrow as u64, narrow),
        _ => (4 * words as u64, if words == 3 { 4 } else { 4 * words }),
    };
    let each = bytes as usize / piece;
    let mut pointers = [std::ptr::null_mut::<u8>(); 48];
    let (mut count, mut last, mut host) = (0, u64::MAX, std::ptr::null_mut::<u8>());
    let mut crossing = None;
    for lane in (0..16).filter(|lane| access.lanes >> lane & 1 != 0) {
        let address = u64::from(access.low[lane]) | u64::from(access.high[lane]) << 32;
        let va = access.base.wrapping_add(address);
        let page = va & !(PAGE - 1);
        if page != last {
            if flat && is_aside(cx, page) {
                return 0;
            }
            let Some(found) = cx.cache.page(cx.world, page, write) else { return 0 };
            (last, host) = (page, found);
            if count == 0 {
                (access.page, access.host) = (Accessing::tag(page, flat, write), host);
            }
        }
        if va - page + bytes > PAGE {
            // Its bytes are in two pages: both of them are there, or the access misses.
            if write || crossing.is_some() {
                return 0;
            }
            let mut found = [0u8; 16];
            if load_across(cx, va, &mut found[..bytes as usize]).is_none() {
                return 0;
            }
            crossing = Some((lane, found));
            continue;
        }
        for at in 0..each {
            pointers[count] = host.wrapping_add((va - page) as usize + at * piece);
            count += 1;
        }
    }
    let mut moved = [0u32; 64];
    let lanes = access.lanes;
    let active = || (0..16).filter(move |lane| lanes >> lane & 1 != 0);
    if write {
        for (lane, moved) in active().zip(moved.chunks_exact_mut(words)) {
            moved.iter_mut().zip(&access.result).for_each(|(word, row)| *word = row[lane]);
        }
        // SAFETY: pointers of spans while the gate is open; all lanes' words are there.
        return unsafe { vkfd_raw::store_each(moved.as_ptr().cast(), &pointers[..count], piece) }.is_ok().into();
    }
    // SAFETY: pointers of spans while the gate is open; there is room for all lanes.
    if unsafe { vkfd_raw::load_each(moved.as_mut_ptr().cast(), &pointers[..count], piece) }.is_err() {
        return 0;
    }
    if let Some((lane, bytes)) = crossing {
        let words = bytes
            .chunks_exact(4)
            .take(words)
            .map(|word| word.first_chunk().map_or(0, |word| u32::from_le_bytes(*word)));
        words.zip(&mut access.result).for_each(|(word, result)| result[lane] = word);
    }
    let loaded = active().filter(|lane| crossing.is_none_or(|(other, _)| other != *lane));
    for (lane, words) in loaded.zip(moved.chunks_exact(words)) {
        for (word, result) in words.iter().zip(&mut access.result) {
            result[lane] = *word;
        }
    }
    1
}

/// Lanes that vectors have left, by the reference engine's function.
unsafe extern "sysv64" fn mend(user: *mut c_void, mending: *mut Mending) {
    // SAFETY: as in `load`; the context's own, which code uses only before and behind this.
    let (cx, mending) = unsafe { (&mut *user.cast::<Cx>(), &mut *mending) };
    let Some(&op) = Op::ALL.get(mending.op as usize) else { return };
    let words = |mending: &Mending, lane: usize| mending.sources.map(|source| source[lane]);
    let lanes = mending.lanes;
    let active = (0..16).filter(|lane| lanes >> lane & 1 != 0);
    mending.out = 0;
    if op == Op::VDivScaleF32 {
        for lane in active {
            let (value, bit) = reference::div_scale32(cx.wave.mode, words(mending, lane));
            mending.result[lane] = value;
            mending.out |= u32::from(bit) << lane;
        }
        return;
    }
    let Some(function) = Function::of(op) else { return };
    for lane in active {
        let value = function.lane(cx.wave, lane, mending.inward.into(), words(mending, lane), false);
        mending.result[lane] = value as u32;
    }
}
