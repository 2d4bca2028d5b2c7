// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The addresses of lanes, their [`Shape`], and host pointers of them.

use super::aperture::{self, is_in_one};
#[cfg(target_arch = "x86_64")]
use super::lanes512;
use super::shape::{line, Shape};
use super::Words;
use crate::fast::cache::PAGE;
use crate::fast::operation::{vectors, LOW};
use crate::fast::simd::Simd;
use crate::fast::step::{Cx, Step};

/// No scalar base.
pub(super) const NO_BASE: u8 = 255;

/// The addresses of the lanes. They are valid until a handler writes its result, which may replace
/// them.
pub(super) struct Addresses {
    low: *const Words,
    /// The high halves; null if there are offsets from a scalar base.
    high: *const Words,
    pub(super) base: u64,
    pub(super) shape: Shape,
}

impl Addresses {
    /// Of active lanes, of which there is one.
    #[inline(always)]
    pub(super) unsafe fn of<S: Simd>(step: &Step, cx: &Cx, exec: u64, bytes: u32) -> Addresses {
        // SAFETY: the step's rows and registers exist.
        unsafe {
            let row = cx.row(step.src[0]);
            let (high, base) = if step.scalar[0] == NO_BASE {
                (row.add(64).cast::<Words>(), step.imm as u64)
            } else {
                (std::ptr::null(), cx.address(step.scalar[0]).wrapping_add(step.imm as u64))
            };
            Addresses { low: row.cast(), high, base, shape: Shape::Anyhow }.shaped::<S>(step, (cx.all, exec), bytes)
        }
    }

    /// Of offsets from a base, which stay where they are.
    #[inline(always)]
    pub(super) fn by<S: Simd>(step: &Step, offsets: &Words, base: u64, lanes: (u64, u64), bytes: u32) -> Addresses {
        let addresses = Addresses { low: offsets, high: std::ptr::null(), base, shape: Shape::Anyhow };
        // SAFETY: the words of all lanes.
        unsafe { addresses.shaped::<S>(step, lanes, bytes) }
    }

    /// The same, with the shape of the active lanes, each of which reaches so many bytes.
    ///
    /// # Safety
    /// The words of all lanes are there.
    #[inline(always)]
    unsafe fn shaped<S: Simd>(self, step: &Step, (all, exec): (u64, u64), bytes: u32) -> Addresses {
        let Addresses { low, high, .. } = self;
        // One lane.
        if exec & exec.wrapping_sub(1) == 0 {
            return Addresses { shape: Shape::Same, ..self };
        }
        let (row, highs) = (low.cast::<u32>(), high.cast::<u32>());
        #[cfg(not(target_arch = "x86_64"))]
        let _ = step;
        #[cfg(target_arch = "x86_64")]
        if step.avx512 && exec == all {
            let lanes = 8 * vectors(all);
            // SAFETY: the caller's; the processor has AVX-512.
            let shape = unsafe {
                if high.is_null() || lanes512::are_same(highs, lanes) {
                    lanes512::shape(row, lanes, bytes)
                } else {
                    Shape::Anyhow
                }
            };
            #[cfg(debug_assertions)]
            let shape = if step.guesses { Shape::Line } else { shape };
            return Addresses { shape, ..self };
        }
        // SAFETY: the caller's.
        unsafe {
            let at = |lane: usize| *row.add(lane);
            let (first, last) = ends(exec);
            // The low halves must not wrap on the way.
            let start = at(first).wrapping_sub(bytes.wrapping_mul(first as u32));
            let wraps = at(last) < at(first);
            let (mut apart, mut differ, mut other) = (S::splat(0), S::splat(0), S::splat(0));
            let groups = vectors(all);
            if exec == all {
                let mut expected = S::add(S::splat(start), S::steps(bytes));
                for group in 0..groups {
                    apart = S::or(apart, S::xor(S::load(row.add(8 * group)), expected));
                    expected = S::add(expected, S::splat(8 * bytes));
                }
                if !high.is_null() {
                    let first = S::splat(*highs);
                    for group in 0..groups {
                        other = S::or(other, S::xor(S::load(highs.add(8 * group)), first));
                    }
                }
                if !wraps && S::is_zero(S::or(apart, other)) {
                    return Addresses { shape: Shape::Line, ..self };
                }
            }
            // Eight lanes are the fewest that are looked at together.
            let run = line(bytes).max(8);
            let mut ragged = S::splat(0);
            for group in 0..groups {
                let lanes = S::lanes((exec >> (8 * group)) as u8);
                let here = S::load(row.add(8 * group));
                let within = 8 * group % run;
                let own = S::splat(at(8 * group - within).wrapping_add(bytes * within as u32));
                ragged = S::or(ragged, S::xor(here, S::add(own, S::steps(bytes))));
                let expected = S::add(S::splat(start.wrapping_add(bytes * 8 * group as u32)), S::steps(bytes));
                apart = S::or(apart, S::and(S::xor(here, expected), lanes));
                differ = S::or(differ, S::and(S::xor(here, S::splat(at(first))), lanes));
                if !high.is_null() {
                    let here = S::load(highs.add(8 * group));
                    other = S::or(other, S::and(S::xor(here, S::splat(*highs.add(first))), lanes));
                }
            }
            let shape = if !S::is_zero(other) {
                Shape::Anyhow
            } else if S::is_zero(differ) {
                Shape::Same
            } else if S::is_zero(apart) && !wraps {
                Shape::Line
            } else if S::is_zero(ragged) && exec == all {
                Shape::Runs(run)
            } else {
                Shape::Anyhow
            };
            Addresses { shape, ..self }
        }
    }

    #[inline(always)]
    pub(super) fn va(&self, lane: usize) -> u64 {
        // SAFETY: the rows exist, and have 64 lanes.
        unsafe {
            let low = *self.low.cast::<u32>().add(lane & 63);
            let high = if self.high.is_null() { 0 } else { *self.high.cast::<u32>().add(lane & 63) };
            self.base.wrapping_add(u64::from(low) | u64::from(high) << 32)
        }
    }

    /// Where a run of lanes side by side begins, each of which reaches so many bytes. `None` if
    /// offsets of 32 bits begin anew inside of it.
    #[inline(always)]
    pub(super) fn run(&self, first: usize, lanes: usize, bytes: usize) -> Option<u64> {
        let va = self.va(first);
        (self.va(first + lanes - 1) == va.wrapping_add((bytes * (lanes - 1)) as u64)).then_some(va)
    }

    /// Whether FLAT's access at `va` is one of an aperture: the address without the offset decides.
    #[inline(always)]
    pub(super) fn is_aside(&self, cx: &Cx, va: u64) -> bool {
        is_in_one(cx, va.wrapping_sub(self.base))
    }

    /// Host pointers of the active lanes, and how many they are.
    #[inline(always)]
    pub(super) fn pointers(
        &self,
        step: &Step,
        cx: &mut Cx,
        exec: u64,
        bytes: u64,
        (flat, write): (bool, bool),
        out: &mut [*mut u8; 64],
    ) -> Option<usize> {
        let access = cx.access(step);
        let mut stays = false;
        // All lanes in one page: one translation. Or each in the page of the last time.
        if exec == cx.all {
            let lanes = if exec == LOW { 32 } else { 64 };
            let mut vas = [0u64; 64];
            let (mut differ, mut furthest) = (0, 0);
            for lane in 0..lanes {
                vas[lane] = self.va(lane);
            }
            for lane in 0..lanes {
                differ |= vas[lane] ^ vas[0];
                furthest = furthest.max(vas[lane] % PAGE);
            }
            let page = vas[0] & !(PAGE - 1);
            // Addresses within a page: an aperture's border can only be at its ends.
            let aside = flat && [page, page + PAGE - 1].into_iter().any(|va| self.is_aside(cx, va));
            if differ < PAGE && furthest + bytes <= PAGE && !aside {
                let host = cx.cache.page(cx.world, page, write)?;
                for lane in 0..lanes {
                    out[lane] = host.wrapping_add((vas[lane] % PAGE) as usize);
                }
                return Some(lanes);
            }
            stays = !flat && cx.cache.may_stay(access);
            if stays && cx.cache.again(access, (&vas[..lanes], bytes), write, out) {
                return Some(lanes);
            }
        }
        let (mut count, mut last, mut host) = (0, u64::MAX, std::ptr::null_mut::<u8>());
        let mut rest = exec;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let va = self.va(lane);
            let page = va & !(PAGE - 1);
            if flat && self.is_aside(cx, va) {
                *out.get_mut(count)? = aperture::host(cx, (va.wrapping_sub(self.base), va), lane, bytes, write)?;
                count += 1;
                continue;
            }
            if page != last {
                host = cx.cache.page(cx.world, page, write)?;
                last = page;
            }
            if stays {
                cx.cache.keep(access, lane, page, host, write);
            }
            if va - page + bytes > PAGE {
                return None;
            }
            out[count] = host.wrapping_add((va - page) as usize);
            count += 1;
        }
        Some(count)
    }
}

/// The first and the last active lane.
#[inline(always)]
pub(super) fn ends(exec: u64) -> (usize, usize) {
    (exec.trailing_zeros() as usize % 64, 63 - exec.leading_zeros() as usize % 64)
}
