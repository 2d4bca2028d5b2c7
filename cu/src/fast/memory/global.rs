// SPDX-License-Identifier: GPL-2.0 OR MIT
//! GLOBAL and FLAT loads and stores.
//!
//! Lanes side by side in memory are one copy, and lanes at one address one access. Others are
//! accessed one by one, after all of them have been translated; LDS and scratch translate those in
//! FLAT's apertures. A word in two pages is loaded in two parts, and the reference engine stores
//! such words.

use super::addresses::{ends, Addresses, NO_BASE};
use super::shape::Shape;
use super::{aperture, are_apart, both, Words};
use crate::fast::builder::Builder;
use crate::fast::cache::{is_far, PAGE};
use crate::fast::operation::vectors;
use crate::fast::simd::Simd;
use crate::fast::step::{Cx, Flow, Place, Run, Source, Step, ROW};
use crate::reference::memory::{kept, kind, Extend, Kind};
use vkfd_isa::{Format, Inst, Operand};
use vkfd_raw as raw;

/// Reads or writes `len` bytes of memory from `va` on, by pages.
#[inline(always)]
unsafe fn transfer<S: Simd>(cx: &mut Cx, va: u64, local: *mut u8, len: usize, write: bool) -> Option<()> {
    if va % PAGE + len as u64 <= PAGE {
        let host = cx.cache.page(cx.world, va, write)?;
        // SAFETY: as below.
        return unsafe { exchange::<S>(host, local, len, write) };
    }
    let mut done = 0;
    let mut parts = [(std::ptr::null_mut::<u8>(), 0, 0); 3];
    let mut count = 0;
    while done < len {
        let at = va.wrapping_add(done as u64);
        let host = cx.cache.page(cx.world, at, write)?;
        let part = ((PAGE - at % PAGE) as usize).min(len - done);
        *parts.get_mut(count)? = (host, done, part);
        count += 1;
        done += part;
    }
    for (host, at, part) in parts.into_iter().take(count) {
        // SAFETY: spans of the world while the gate is open, and the caller's buffer.
        unsafe { exchange::<S>(host, local.wrapping_add(at), part, write)? };
    }
    Some(())
}

/// Reads or writes bytes of the host's memory.
#[inline(always)]
unsafe fn exchange<S: Simd>(host: *mut u8, local: *mut u8, len: usize, write: bool) -> Option<()> {
    let (to, from) = if write { (host, local.cast_const()) } else { (local, host.cast_const()) };
    // SAFETY: the caller's.
    unsafe {
        if len % 64 == 0 {
            S::copy_lines(to, from, len / 64).ok()
        } else {
            raw::copy(to, from, len).ok()
        }
    }
}

/// Stores whole lines in one page past the caches, if the launch writes the page for the first time
/// after many others. Its next reader would hardly find it in a cache. `None`: nothing was done.
#[inline(always)]
unsafe fn pass<S: Simd>(step: &Step, cx: &mut Cx, va: u64, local: *const u8, len: usize) -> Option<()> {
    if !step.past || !cx.cache.streams() || len % 64 != 0 || va % 64 != 0 || va % PAGE + len as u64 > PAGE {
        return None;
    }
    let host = cx.cache.fresh_page(cx.world, va)?;
    if host.addr() % 32 != 0 {
        return None;
    }
    // SAFETY: a span of the world while the gate is open, and the caller's buffer.
    unsafe { S::copy_lines_past(host, local, len / 64).ok()? };
    cx.cache.past = true;
    #[cfg(debug_assertions)]
    {
        cx.cache.passed += len as u64;
    }
    Some(())
}

/// Stores bytes side by side.
#[inline(always)]
unsafe fn store_line<S: Simd>(step: &Step, cx: &mut Cx, va: u64, local: *mut u8, len: usize) -> Option<()> {
    // SAFETY: the caller's.
    unsafe {
        if pass::<S>(step, cx, va, local, len).is_some() {
            return Some(());
        }
        let done = transfer::<S>(cx, va, local, len, true);
        expect(step, cx, va, len, true);
        done
    }
}

/// Prefetches the step's likely next access.
#[inline(always)]
fn expect(step: &Step, cx: &mut Cx, va: u64, len: usize, write: bool) {
    // The processor itself sees a stride that stays within a page.
    if let Some(stride) = stride(step, cx, va).filter(|stride| is_far(*stride)) {
        ask_for(cx, va.wrapping_add(stride), len, write);
    }
}

/// Prefetches the step's likely next access of lanes that lie anyhow, if it goes on within pages
/// into other lines. The processor does not see as many strides as there are lanes.
#[inline(always)]
fn expect_lanes(step: &Step, cx: &mut Cx, va: u64, pointers: &[*mut u8]) {
    if let Some(stride) = stride(step, cx, va).filter(|stride| !is_far(*stride)) {
        if va.wrapping_add(stride) / 64 != va / 64 {
            for pointer in pointers {
                raw::prefetch_lines(pointer.wrapping_add(stride as usize), 1, false);
            }
        }
    }
}

/// How far the wave's next access by this step is likely to be.
#[inline(always)]
fn stride(step: &Step, cx: &mut Cx, va: u64) -> Option<u64> {
    let access = cx.access(step);
    cx.cache.stride(access, va)
}

/// Prefetches whole lines.
#[inline(always)]
fn ask_for(cx: &mut Cx, next: u64, len: usize, write: bool) {
    // What crosses a page is rare; a miss is not this access's.
    if len >= 64 && next % PAGE + len as u64 <= PAGE {
        if let Some(host) = cx.cache.page(cx.world, next, write) {
            raw::prefetch_lines(host, len / 64, write);
        }
    }
}

/// Room for the words that all lanes load or store.
type Buffer<const N: usize> = std::mem::MaybeUninit<[[u32; N]; 64]>;

/// Loads `N` registers of each lane.
#[inline(always)]
unsafe fn load<S: Simd, const N: usize, const FLAT: bool>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    if exec == 0 {
        return step.done(cx);
    }
    // SAFETY: the caller's; a lane is active.
    unsafe {
        let addresses = Addresses::of::<S>(step, cx, exec, 4 * N as u32);
        load_from::<S, N, FLAT>(step, cx, addresses, exec)
    }
}

/// The same from known addresses, of which there is one.
///
/// # Safety
/// As for [`Run`]; the addresses' words live.
#[inline(always)]
pub(super) unsafe fn load_from<S: Simd, const N: usize, const FLAT: bool>(
    step: &Step,
    cx: &mut Cx,
    mut addresses: Addresses,
    exec: u64,
) -> Flow {
    let (first, last) = ends(exec);
    // SAFETY: the step's rows and registers exist; buffers have room.
    unsafe {
        if FLAT && matches!(addresses.shape, Shape::Runs(_)) {
            addresses.shape = Shape::Anyhow;
        }
        if FLAT && addresses.shape != Shape::Anyhow {
            let ends = [addresses.va(first), addresses.va(last).wrapping_add(4 * N as u64 - 1)];
            if ends.into_iter().any(|va| addresses.is_aside(cx, va)) {
                addresses.shape = Shape::Anyhow;
            }
        }
        #[cfg(target_arch = "x86_64")]
        if load_into_rows::<N>(step, cx, &addresses, exec).is_some() {
            cx.cache.moved += u64::from(exec.count_ones()) * 4 * N as u64;
            return step.done(cx);
        }
        let mut data = Buffer::<N>::uninit();
        let data = data.as_mut_ptr().cast::<[u32; N]>();
        let done = match addresses.shape {
            Shape::Same => {
                let mut one = [0u32; N];
                let done = transfer::<S>(cx, addresses.va(first), one.as_mut_ptr().cast(), 4 * N, false);
                for lane in 0..64 {
                    data.add(lane).write(one);
                }
                done
            }
            // Lanes between them that are not active are read, too: in pages in which active ones
            // are.
            Shape::Line => {
                if exec != cx.all {
                    data.cast::<[[u32; N]; 64]>().write([[0; N]; 64]);
                }
                let to = data.add(first).cast();
                let (va, len) = (addresses.va(first), 4 * N * (last - first + 1));
                let done = transfer::<S>(cx, va, to, len, false);
                expect(step, cx, va, len, false);
                done
            }
            Shape::Runs(run) => load_runs::<S, N>(step, cx, (&addresses, run), data),
            Shape::Anyhow => {
                let mut pointers = [std::ptr::null_mut(); 64];
                let count = addresses.pointers(step, cx, exec, 4 * N as u64, (FLAT, false), &mut pointers);
                if let Some(count) = count {
                    expect_lanes(step, cx, addresses.va(first), &pointers[..count]);
                }
                if exec != cx.all || count.is_none() {
                    data.cast::<[[u32; N]; 64]>().write([[0; N]; 64]);
                }
                match count {
                    Some(count) if exec == cx.all => load_lanes::<N>(&pointers[..count], data),
                    Some(count) => gather::<N>(&pointers[..count], exec, &mut *data.cast()),
                    None => gather_words::<N>(&addresses, cx, exec, FLAT, &mut *data.cast()),
                }
            }
        };
        if done.is_none() {
            return step.slow(cx);
        }
        let to = cx.row_mut(step.dst);
        for group in 0..vectors(cx.all) {
            let mask = (exec >> (8 * group)) as u8;
            let from = data.add(8 * group).cast::<u32>().cast_const();
            let mut words = [S::splat(0); N];
            match N {
                1 => words[0] = S::load(from),
                2 => words[..2].copy_from_slice(&S::split2(from)),
                4 => words[..4].copy_from_slice(&S::split4(std::array::from_fn(|lane| from.add(4 * lane)))),
                _ => {
                    for word in 0..N {
                        words[word] = S::from_array(std::array::from_fn(|lane| *from.add(N * lane + word)));
                    }
                }
            }
            for word in 0..N {
                let to = to.add(64 * word + 8 * group);
                let new =
                    if exec == cx.all { words[word] } else { S::select(S::lanes(mask), S::load(to), words[word]) };
                S::store(to, new);
            }
        }
    }
    cx.cache.moved += u64::from(exec.count_ones()) * 4 * N as u64;
    step.done(cx)
}

/// Loads all lanes into their rows at once, if they lie in lines of 64 bytes within pages. `None`:
/// it is to be done otherwise, and no address has been replaced.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn load_into_rows<const N: usize>(step: &Step, cx: &mut Cx, addresses: &Addresses, exec: u64) -> Option<()> {
    let lanes = 8 * vectors(cx.all);
    let together = match addresses.shape {
        Shape::Line => lanes,
        Shape::Runs(run) => run,
        Shape::Same | Shape::Anyhow => return None,
    };
    if N == 3 || !step.avx512 || !step.apart || exec != cx.all {
        return None;
    }
    // Runs that lie one behind the other are a piece.
    let len = 4 * N * together;
    let mut pieces = [(0u64, 0usize); 16];
    let mut count = 0;
    for first in (0..lanes).step_by(together) {
        let va = addresses.run(first, together, 4 * N)?;
        match pieces[..count].last_mut() {
            Some((begin, known)) if begin.wrapping_add(*known as u64) == va => *known += len,
            _ => {
                *pieces.get_mut(count)? = (va, len);
                count += 1;
            }
        }
    }
    let pieces = &pieces[..count];
    let mut lines = [std::ptr::null_mut(); 16];
    let mut count = 0;
    for &(va, len) in pieces {
        let mut done = 0;
        while done < len {
            let at = va.wrapping_add(done as u64);
            let host = cx.cache.page(cx.world, at, false)?;
            // A line in two pages is not one.
            let part = ((PAGE - at % PAGE) as usize / 64).min((len - done) / 64);
            if part == 0 {
                return None;
            }
            for line in 0..part {
                *lines.get_mut(count)? = host.wrapping_add(64 * line);
                count += 1;
            }
            done += 64 * part;
        }
    }
    // SAFETY: spans of the world while the gate is open, and the step's rows; the processor has
    // AVX-512.
    unsafe { raw::load_rows(cx.row_mut(step.dst), lines.get(..count)?, N).ok()? };
    if let Some(stride) = stride(step, cx, addresses.va(0)).filter(|stride| pieces.len() > 4 || is_far(*stride)) {
        for &(va, len) in pieces {
            ask_for(cx, va.wrapping_add(stride), len, false);
        }
    }
    Some(())
}

/// Loads all lanes, a run at a time.
#[inline(always)]
unsafe fn load_runs<S: Simd, const N: usize>(
    step: &Step,
    cx: &mut Cx,
    (addresses, run): (&Addresses, usize),
    data: *mut [u32; N],
) -> Option<()> {
    let stride = stride(step, cx, addresses.va(0));
    for first in (0..8 * vectors(cx.all)).step_by(run) {
        let va = addresses.run(first, run, 4 * N)?;
        // SAFETY: the caller's: there is room for all lanes.
        unsafe { transfer::<S>(cx, va, data.add(first).cast(), 4 * N * run, false)? };
        if let Some(stride) = stride {
            let next = va.wrapping_add(stride);
            // A part of a line goes on into the next one, or not.
            if 4 * N * run >= 64 || next / 64 != va / 64 {
                ask_for(cx, next & !63, (4 * N * run).max(64), false);
            }
        }
    }
    Some(())
}

/// Host pointers of each word of the active lanes, and their number. An access of several words may
/// go on in another page, and in scratch its words do not lie together. `across` has a pointer for
/// a word that is in two pages, by its address and its number.
fn words_of<const N: usize>(
    addresses: &Addresses,
    cx: &mut Cx,
    exec: u64,
    (flat, write): (bool, bool),
    pointers: &mut [*mut u8; 256],
    mut across: impl FnMut(&mut Cx, u64, usize) -> Option<*mut u8>,
) -> Option<usize> {
    let mut count = 0;
    let mut rest = exec;
    while rest != 0 {
        let lane = rest.trailing_zeros() as usize;
        let va = addresses.va(lane);
        rest &= rest - 1;
        for word in 0..N as u64 {
            let at = va.wrapping_add(4 * word);
            *pointers.get_mut(count)? = if flat && addresses.is_aside(cx, va) {
                aperture::host(cx, (va.wrapping_sub(addresses.base), at), lane, 4, write)?
            } else if at % PAGE > PAGE - 4 {
                across(cx, at, count)?
            } else {
                cx.cache.page(cx.world, at, write)?
            };
            count += 1;
        }
    }
    Some(count)
}

/// Loads the words of the active lanes one by one.
#[cold]
#[inline(never)]
unsafe fn gather_words<const N: usize>(
    addresses: &Addresses,
    cx: &mut Cx,
    exec: u64,
    flat: bool,
    data: &mut [[u32; N]; 64],
) -> Option<()> {
    let mut pointers = [std::ptr::null_mut::<u8>(); 256];
    let mut words = [[0u8; 4]; 256];
    let words = words.as_mut_ptr();
    let across = |cx: &mut Cx, va, number| {
        let mut word = [0; 4];
        super::load_across(cx, va, &mut word)?;
        let place = words.wrapping_add(number);
        // SAFETY: there is room for all words, and a number for each.
        unsafe { place.write(word) };
        Some(place.cast())
    };
    let count = words_of::<N>(addresses, cx, exec, (flat, false), &mut pointers, across)?;
    let mut loaded = [0u32; 256];
    // SAFETY: pointers of spans while the gate is open; there is room for all.
    unsafe { raw::load_each(loaded.as_mut_ptr().cast(), pointers.get(..count)?, 4).ok()? };
    let mut rest = exec;
    for value in loaded.chunks_exact(N) {
        if rest == 0 {
            break;
        }
        data[rest.trailing_zeros() as usize].copy_from_slice(value);
        rest &= rest - 1;
    }
    Some(())
}

/// Pieces of `N` words: bytes of each, and how many. Lane by lane, for stores may overlap.
const fn pieces(words: usize) -> (usize, usize) {
    match words {
        1 => (4, 1),
        2 => (8, 1),
        3 => (4, 3),
        _ => (16, 1),
    }
}

/// Room for the pieces of all lanes.
const PIECES: usize = 3 * 64;

/// The pointers of all pieces.
#[inline(always)]
fn spread<const N: usize>(pointers: &[*mut u8]) -> ([*mut u8; PIECES], usize) {
    let (bytes, each) = pieces(N);
    let mut all = [std::ptr::null_mut(); PIECES];
    for (index, pointer) in pointers.iter().enumerate().take(64) {
        for piece in 0..each {
            all[index * each + piece] = pointer.wrapping_add(piece * bytes);
        }
    }
    (all, pointers.len() * each)
}

/// Loads `N` words from each pointer, one after the other.
///
/// # Safety
/// The pointers are of spans while the gate is open; `to` has room.
#[inline(always)]
unsafe fn load_lanes<const N: usize>(pointers: &[*mut u8], to: *mut [u32; N]) -> Option<()> {
    // SAFETY: the caller's.
    unsafe {
        if N == 3 {
            let (all, count) = spread::<N>(pointers);
            raw::load_each(to.cast(), all.get(..count)?, pieces(N).0).ok()
        } else {
            raw::load_each(to.cast(), pointers, 4 * N).ok()
        }
    }
}

/// Loads `N` words from each pointer into the active lanes.
#[inline(always)]
unsafe fn gather<const N: usize>(pointers: &[*mut u8], exec: u64, data: &mut [[u32; N]; 64]) -> Option<()> {
    let mut loaded = [[0u32; N]; 64];
    // SAFETY: the caller's; there is room for all lanes.
    unsafe { load_lanes::<N>(pointers, loaded.as_mut_ptr())? };
    let mut rest = exec;
    for value in loaded.into_iter().take(pointers.len()) {
        data[rest.trailing_zeros() as usize % 64] = value;
        rest &= rest.wrapping_sub(1);
    }
    Some(())
}

/// Stores `N` registers of each lane.
#[inline(always)]
unsafe fn store<S: Simd, const N: usize, const FLAT: bool>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    if exec == 0 {
        return step.done(cx);
    }
    // SAFETY: the caller's; a lane is active.
    unsafe {
        let addresses = Addresses::of::<S>(step, cx, exec, 4 * N as u32);
        store_to::<S, N, FLAT>(step, cx, addresses, (exec, step.src[1]))
    }
}

/// The same to known addresses of lanes, of which there is one, from the rows at `data` on.
///
/// # Safety
/// As for [`Run`]; the addresses' words live.
#[inline(always)]
pub(super) unsafe fn store_to<S: Simd, const N: usize, const FLAT: bool>(
    step: &Step,
    cx: &mut Cx,
    addresses: Addresses,
    (exec, data): (u64, Source),
) -> Flow {
    // SAFETY: the step's rows and registers exist; buffers have room.
    unsafe {
        let rows = cx.row(data).cast::<Words>();
        let (first, last) = ends(exec);
        let lanes = last - first + 1;
        let ends = [addresses.va(first), addresses.va(last).wrapping_add(4 * N as u64 - 1)];
        // No lane between them is left out.
        if (addresses.shape == Shape::Line || lanes == 1)
            && exec.count_ones() as usize == lanes
            && !(FLAT && ends.into_iter().any(|va| addresses.is_aside(cx, va)))
        {
            let va = ends[0];
            let done = if N == 1 {
                let from = rows.cast::<u32>().add(first);
                store_line::<S>(step, cx, va, from.cast_mut().cast(), 4 * lanes)
            } else {
                let mut data = Buffer::<N>::uninit();
                let data = data.as_mut_ptr().cast::<[u32; N]>();
                for group in 0..vectors(cx.all) {
                    let from = rows.cast::<u32>().add(8 * group);
                    let to = data.add(8 * group).cast::<u32>();
                    match N {
                        2 => S::join2(to, [S::load(from), S::load(from.add(64))]),
                        4 => {
                            let words = [0, 1, 2, 3].map(|word| S::load(from.add(64 * word)));
                            S::join4(std::array::from_fn(|lane| to.add(4 * lane)), words);
                        }
                        _ => {
                            for lane in 0..8 {
                                for word in 0..N {
                                    *to.add(N * lane + word) = *from.add(64 * word + lane);
                                }
                            }
                        }
                    }
                }
                store_line::<S>(step, cx, va, data.add(first).cast(), 4 * N * lanes)
            };
            if done.is_none() {
                return step.slow(cx);
            }
            cx.cache.moved += (4 * N * lanes) as u64;
            return step.done(cx);
        }
        let mut pointers = [std::ptr::null_mut(); 64];
        let found = addresses.pointers(step, cx, exec, 4 * N as u64, (FLAT, true), &mut pointers);
        let mut data = [[0u32; N]; 64];
        let mut rest = exec;
        for slot in data.iter_mut().take(exec.count_ones() as usize) {
            let lane = rest.trailing_zeros() as usize % 64;
            rest &= rest.wrapping_sub(1);
            for word in 0..N {
                slot[word] = (*rows.add(word))[lane];
            }
        }
        let from = data.as_ptr().cast();
        let done = match found {
            Some(count) if N != 3 => raw::store_each(from, &pointers[..count], 4 * N),
            Some(count) => {
                let (all, count) = spread::<N>(&pointers[..count]);
                raw::store_each(from, &all[..count], pieces(N).0)
            }
            None => {
                let mut words = [std::ptr::null_mut(); 256];
                let Some(count) = words_of::<N>(&addresses, cx, exec, (FLAT, true), &mut words, |_, _, _| None) else {
                    return step.slow(cx);
                };
                raw::store_each(from, &words[..count], 4)
            }
        };
        // Stores that are done are done again.
        if done.is_err() {
            return step.slow(cx);
        }
    }
    cx.cache.moved += u64::from(exec.count_ones()) * 4 * N as u64;
    step.done(cx)
}

/// Loads bytes or halves; `scalar[1]` is the size, `scalar[2]` how they are extended.
#[inline(always)]
unsafe fn load_short<S: Simd, const FLAT: bool>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    if exec == 0 {
        return step.done(cx);
    }
    let bytes = step.scalar[1];
    // SAFETY: the step's rows and registers exist; buffers have room.
    unsafe {
        let addresses = Addresses::of::<S>(step, cx, exec, u32::from(bytes));
        let mut pointers = [std::ptr::null_mut(); 64];
        let Some(count) = addresses.pointers(step, cx, exec, bytes.into(), (FLAT, false), &mut pointers) else {
            return step.slow(cx);
        };
        let mut loaded = [0u32; 64];
        if raw::load_each(loaded.as_mut_ptr().cast(), &pointers[..count], bytes.into()).is_err() {
            return step.slow(cx);
        }
        let row = cx.row_mut(step.dst);
        let extend = EXTENDS[usize::from(step.scalar[2]) % EXTENDS.len()];
        let kept = kept(cx.wave.target);
        let mut rest = exec;
        for value in loaded.into_iter().take(count) {
            let slot = row.add(rest.trailing_zeros() as usize % 64);
            rest &= rest.wrapping_sub(1);
            slot.write(extend.apply(value, bytes, kept & slot.read()));
        }
    }
    cx.cache.moved += u64::from(exec.count_ones()) * u64::from(bytes);
    step.done(cx)
}

const EXTENDS: [Extend; 6] = [Extend::Zero, Extend::Sign, Extend::Low, Extend::LowSign, Extend::High, Extend::HighSign];

/// Stores bytes or halves; `scalar[1]` is the size, `scalar[2]` whether they are in the high half.
#[inline(always)]
unsafe fn store_short<S: Simd, const FLAT: bool>(step: &Step, cx: &mut Cx) -> Flow {
    let exec = cx.exec();
    if exec == 0 {
        return step.done(cx);
    }
    let bytes = step.scalar[1];
    let shift = if step.scalar[2] != 0 { 16 } else { 0 };
    // SAFETY: the step's rows and registers exist; buffers have room.
    unsafe {
        let addresses = Addresses::of::<S>(step, cx, exec, u32::from(bytes));
        let mut pointers = [std::ptr::null_mut(); 64];
        let Some(count) = addresses.pointers(step, cx, exec, bytes.into(), (FLAT, true), &mut pointers) else {
            return step.slow(cx);
        };
        let row = cx.row(step.src[1]);
        let mut data = [0u32; 64];
        let mut rest = exec;
        for slot in data.iter_mut().take(count) {
            *slot = row.add(rest.trailing_zeros() as usize % 64).read() >> shift;
            rest &= rest.wrapping_sub(1);
        }
        if raw::store_each(data.as_ptr().cast(), &pointers[..count], bytes.into()).is_err() {
            return step.slow(cx);
        }
    }
    cx.cache.moved += u64::from(exec.count_ones()) * u64::from(bytes);
    step.done(cx)
}

/// Makes a step of a load or store.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    let flat = inst.format == Format::Flat;
    let memory = &inst.memory;
    if memory.lds || memory.tfe {
        return None;
    }
    let (run, words): (Run, usize) = match (kind(inst.op)?, flat) {
        (Kind::Load { bytes: 4, extend: Extend::Zero }, false) => (both!(builder.avx2, load::<1, false>), 1),
        (Kind::Load { bytes: 8, .. }, false) => (both!(builder.avx2, load::<2, false>), 2),
        (Kind::Load { bytes: 12, .. }, false) => (both!(builder.avx2, load::<3, false>), 3),
        (Kind::Load { bytes: 16, .. }, false) => (both!(builder.avx2, load::<4, false>), 4),
        (Kind::Load { bytes: 4, extend: Extend::Zero }, true) => (both!(builder.avx2, load::<1, true>), 1),
        (Kind::Load { bytes: 8, .. }, true) => (both!(builder.avx2, load::<2, true>), 2),
        (Kind::Load { bytes: 12, .. }, true) => (both!(builder.avx2, load::<3, true>), 3),
        (Kind::Load { bytes: 16, .. }, true) => (both!(builder.avx2, load::<4, true>), 4),
        (Kind::Load { bytes: 1 | 2, .. }, false) => (both!(builder.avx2, load_short::<false>), 1),
        (Kind::Load { bytes: 1 | 2, .. }, true) => (both!(builder.avx2, load_short::<true>), 1),
        (Kind::Store { bytes: 4, high: false }, false) => (both!(builder.avx2, store::<1, false>), 1),
        (Kind::Store { bytes: 8, .. }, false) => (both!(builder.avx2, store::<2, false>), 2),
        (Kind::Store { bytes: 12, .. }, false) => (both!(builder.avx2, store::<3, false>), 3),
        (Kind::Store { bytes: 16, .. }, false) => (both!(builder.avx2, store::<4, false>), 4),
        (Kind::Store { bytes: 4, high: false }, true) => (both!(builder.avx2, store::<1, true>), 1),
        (Kind::Store { bytes: 8, .. }, true) => (both!(builder.avx2, store::<2, true>), 2),
        (Kind::Store { bytes: 12, .. }, true) => (both!(builder.avx2, store::<3, true>), 3),
        (Kind::Store { bytes: 16, .. }, true) => (both!(builder.avx2, store::<4, true>), 4),
        (Kind::Store { bytes: 1 | 2, .. }, false) => (both!(builder.avx2, store_short::<false>), 1),
        (Kind::Store { bytes: 1 | 2, .. }, true) => (both!(builder.avx2, store_short::<true>), 1),
        _ => return None,
    };
    let mut step = place.step(run);
    step.avx512 = builder.avx512;
    step.imm = memory.offset.into();
    let has_base = !matches!(memory.base, Operand::None | Operand::Scalar(Operand::NULL));
    step.scalar[0] = if has_base && !flat { builder.layout.scalar(memory.base, 2)? } else { NO_BASE };
    let address = builder.layout.row(memory.vaddr, if step.scalar[0] == NO_BASE { 2 } else { 1 })?;
    step.src[0] = Source::register(address * ROW);
    match kind(inst.op)? {
        Kind::Load { bytes, extend } => {
            let first = builder.layout.row(inst.dst, words)?;
            step.dst = first * ROW;
            step.apart = are_apart((first, words), (address, if step.scalar[0] == NO_BASE { 2 } else { 1 }));
            step.scalar[1] = bytes;
            step.scalar[2] = EXTENDS.iter().position(|other| *other == extend)? as u8;
        }
        Kind::Store { bytes, high } => {
            step.src[1] = Source::register(builder.layout.row(memory.data, words)? * ROW);
            step.scalar[1] = bytes;
            step.scalar[2] = high.into();
            step.past = true;
        }
        _ => return None,
    }
    if matches!(inst.op, vkfd_isa::Op::GlobalLoadDwordAddtid | vkfd_isa::Op::GlobalStoreDwordAddtid) {
        return None;
    }
    steps.push(step);
    Some(())
}
