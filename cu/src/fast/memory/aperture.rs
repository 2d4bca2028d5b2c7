// SPDX-License-Identifier: GPL-2.0 OR MIT
//! FLAT's apertures: where LDS and scratch are among its addresses.

use crate::fast::cache::PAGE;
use crate::fast::step::Cx;
use crate::reference::memory::{private, scratch_base};

/// Whether an address is one of LDS or of scratch.
#[inline(always)]
pub(super) fn is_in_one(cx: &Cx, va: u64) -> bool {
    let high = (va >> 32) as u32;
    high == cx.group.apertures.shared || high == cx.group.apertures.private
}

/// The host pointer of a lane's bytes at `va` in the aperture that FLAT's `address` is in: in LDS,
/// or within a dword of scratch.
#[cold]
pub(super) fn host(cx: &mut Cx, (address, va): (u64, u64), lane: usize, bytes: u64, write: bool) -> Option<*mut u8> {
    let low = va as u32;
    if (address >> 32) as u32 == cx.group.apertures.shared {
        let inside = u64::from(low) + bytes <= cx.group.lds.len() as u64;
        return inside.then(|| cx.group.lds.as_mut_ptr().wrapping_add(low as usize));
    }
    if u64::from(low % 4) + bytes > 4 {
        return None;
    }
    let at = private(scratch_base(cx.wave), cx.wave.lanes, lane, low);
    if at % PAGE + bytes > PAGE {
        return None;
    }
    cx.cache.page(cx.world, at, write)
}
