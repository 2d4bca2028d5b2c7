// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory: the common shapes of access. Everything else, and whatever misses, is the reference
//! engine's.
//!
//! | module | |
//! |---|---|
//! | `global` | GLOBAL and FLAT: lanes side by side in memory, all at one address, or anywhere |
//! | `addresses` | how lanes' addresses lie, and host pointers of them |
//! | `aperture` | where LDS and scratch are among FLAT's addresses |
//! | `local` | LDS |
//! | `atomic` | atomic operations |
//! | `exchange` | permutes and swizzles |
//! | `buffer`, `addressing` | MUBUF, scratch among it; addresses by a descriptor |
//! | `transfer` | lanes with pointers of their own, and lines |
//! | `scratch` | SCRATCH |
//! | `uniform` | SMEM |

mod addresses;
mod addressing;
mod aperture;
mod atomic;
mod buffer;
mod exchange;
mod global;
#[cfg(target_arch = "x86_64")]
mod lanes512;
mod local;
#[cfg(target_arch = "x86_64")]
mod local512;
mod scratch;
mod shape;
mod transfer;
mod uniform;

use super::builder::Builder;
use super::cache::PAGE;
use super::operation::vectors;
use super::simd::Simd;
use super::step::{Cx, Place, Step};
use crate::reference::memory::{kind, Kind};
use vkfd_isa::{Format, Inst, Op};

/// Loads bytes that begin in one page and end in the next.
pub(super) fn load_across(cx: &mut Cx, va: u64, to: &mut [u8]) -> Option<()> {
    let (first, second) = to.split_at_mut(((PAGE - va % PAGE) as usize).min(to.len()));
    let mut part = |va, to: &mut [u8]| {
        let from = cx.cache.page(cx.world, va, false)?;
        // SAFETY: a span while the gate is open, as far as its page goes; there is room.
        unsafe { vkfd_raw::copy(to.as_mut_ptr(), from, to.len()) }.ok()
    };
    part(va, first)?;
    part(va.wrapping_add(first.len() as u64), second)
}

/// Makes a step of a memory instruction.
pub(super) fn translate(builder: &mut Builder, inst: &Inst, place: Place, steps: &mut Vec<Step>) -> Option<()> {
    // Caches are the host's, which has one for all.
    let nothing = matches!(inst.op, Op::SDcacheInv | Op::SDcacheInvVol | Op::SDcacheWb | Op::SDcacheWbVol | Op::DsNop);
    if nothing || kind(inst.op) == Some(Kind::Nothing) {
        return Some(());
    }
    match inst.format {
        Format::Global | Format::Flat => {
            global::translate(builder, inst, place, steps).or_else(|| atomic::translate(builder, inst, place, steps))
        }
        Format::Ds => local::translate(builder, inst, place, steps)
            .or_else(|| exchange::translate(builder, inst, place, steps))
            .or_else(|| atomic::translate(builder, inst, place, steps)),
        Format::Mubuf => {
            buffer::translate(builder, inst, place, steps).or_else(|| atomic::in_buffer(builder, inst, place, steps))
        }
        Format::Scratch => scratch::translate(builder, inst, place, steps),
        Format::Smem => uniform::translate(builder, inst, place, steps),
        _ => None,
    }
}

/// A handler compiled with and without AVX2.
macro_rules! both {
    ($avx2:expr, $body:ident $(::<$($generic:tt),*>)?) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn wide(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { $body::<crate::fast::avx2::Avx2, $($($generic),*)?>(step, cx) }
        }
        unsafe fn narrow(step: &Step, cx: &mut Cx) -> Flow {
            // SAFETY: the caller's.
            unsafe { $body::<crate::fast::simd::Portable, $($($generic),*)?>(step, cx) }
        }
        #[cfg(target_arch = "x86_64")]
        let run: Run = if $avx2 { wide } else { narrow };
        #[cfg(not(target_arch = "x86_64"))]
        let run: Run = narrow;
        run
    }};
}
use both;

/// Whether no row of some is one of others; each begins somewhere, and is as many.
fn are_apart((first, count): (usize, usize), (other, others): (usize, usize)) -> bool {
    first + count <= other || other + others <= first
}

/// A row's words.
type Words = [u32; 64];

/// Writes the active lanes of a row. By vectors, and stored whole: a loop would become masked
/// stores, which some processors do in microcode.
#[inline(always)]
unsafe fn merge<S: Simd>(cx: &Cx, offset: usize, value: &Words, exec: u64) {
    let (to, from) = (cx.row_mut(offset), value.as_ptr());
    // SAFETY: the row exists; nothing refers to it.
    unsafe {
        for i in 0..vectors(cx.all) {
            let mut new = S::load(from.add(8 * i));
            if exec != cx.all {
                new = S::select(S::lanes((exec >> (8 * i)) as u8), S::load(to.add(8 * i)), new);
            }
            S::store(to.add(8 * i), new);
        }
    }
}
