// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Lists of CPU ranges in the forms that programs already have.
//!
//! `struct iovec`, libhsakmt's `HsaMemoryRange`, [`std::io::IoSliceMut`] and KFD's userptr range
//! are the same 16 bytes on 64-bit Linux: an address, then a size. So the driver gets a list in
//! place, without a copy.

use std::ffi::c_void;
use std::io::IoSliceMut;
use std::mem::{align_of, offset_of, size_of};

use vkfd_uapi::batch::UserptrRange;

/// libhsakmt's range.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HsaMemoryRange {
    /// First address.
    pub address: *mut c_void,
    /// Size in bytes.
    pub bytes: u64,
}

const _: () = {
    assert!(
        size_of::<UserptrRange>() == 16 && offset_of!(UserptrRange, start) == 0 && offset_of!(UserptrRange, size) == 8
    );
    assert!(size_of::<libc::iovec>() == 16 && align_of::<libc::iovec>() == align_of::<UserptrRange>());
    assert!(offset_of!(libc::iovec, iov_base) == 0 && offset_of!(libc::iovec, iov_len) == 8);
    assert!(size_of::<HsaMemoryRange>() == 16 && align_of::<HsaMemoryRange>() == align_of::<UserptrRange>());
    assert!(offset_of!(HsaMemoryRange, address) == 0 && offset_of!(HsaMemoryRange, bytes) == 8);
    assert!(size_of::<IoSliceMut<'static>>() == 16 && align_of::<IoSliceMut<'static>>() == align_of::<UserptrRange>());
};

/// A list that can be seen as KFD's userptr ranges without copying.
pub trait AsRanges {
    /// The same memory as a slice of ranges.
    fn as_ranges(&self) -> &[UserptrRange];
}

impl AsRanges for [UserptrRange] {
    fn as_ranges(&self) -> &[UserptrRange] {
        self
    }
}

macro_rules! same_layout {
    ($($type:ty)+) => {$(
        impl AsRanges for [$type] {
            fn as_ranges(&self) -> &[UserptrRange] {
                // SAFETY: the assertions above show that size, alignment and the fields' offsets
                // are those of `UserptrRange`. Every bit pattern of it is valid. `IoSliceMut` is
                // documented to have the layout of `iovec`.
                unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len()) }
            }
        }
    )+};
}
same_layout!(libc::iovec HsaMemoryRange IoSliceMut<'_>);

macro_rules! through_slice {
    ($($type:ty)+) => {$(
        impl AsRanges for Vec<$type> {
            fn as_ranges(&self) -> &[UserptrRange] {
                self.as_slice().as_ranges()
            }
        }
        impl<const N: usize> AsRanges for [$type; N] {
            fn as_ranges(&self) -> &[UserptrRange] {
                self.as_slice().as_ranges()
            }
        }
    )+};
}
through_slice!(UserptrRange libc::iovec HsaMemoryRange IoSliceMut<'_>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_seen_in_place() {
        let mut a = [1_u8; 32];
        let mut b = [2_u8; 64];
        let (a_at, b_at) = (a.as_mut_ptr(), b.as_mut_ptr());
        let iovecs =
            [libc::iovec { iov_base: a_at.cast(), iov_len: 32 }, libc::iovec { iov_base: b_at.cast(), iov_len: 64 }];
        let seen = iovecs.as_ranges();
        assert_eq!(seen.as_ptr().cast::<c_void>(), iovecs.as_ptr().cast::<c_void>());
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[1].start, seen[1].size), (b_at.expose_provenance() as u64, 64));

        let hsa = vec![HsaMemoryRange { address: a_at.cast(), bytes: 32 }];
        assert_eq!(hsa.as_ranges().as_ptr().cast::<c_void>(), hsa.as_ptr().cast::<c_void>());
        assert_eq!(hsa.as_ranges()[0].start, a_at.expose_provenance() as u64);

        let slices = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
        let seen = slices.as_ranges();
        assert_eq!(seen.as_ptr().cast::<c_void>(), slices.as_ptr().cast::<c_void>());
        assert_eq!((seen[0].start, seen[0].size), (a_at.expose_provenance() as u64, 32));

        let own = [UserptrRange { start: 0x1000, size: 0x2000 }];
        assert_eq!(own.as_ranges().as_ptr(), own.as_ptr());
    }
}
