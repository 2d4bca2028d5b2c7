// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Plain data: types that may be copied byte by byte between a client and the driver.
//!
//! Mechanism: the `pod!` macro declares a `repr(C)` structure and proves at compile time that it
//! has no hidden padding. So its bytes are always initialised, and no byte of driver memory leaks
//! through a gap. Padding of AMD's structures is an explicit field.
//!
//! Limits: the byte views are of the driver's own copy. Memory that a client can write at the same
//! time is never viewed through this module.

use core::mem::{size_of_val, MaybeUninit};
use core::slice;

/// One field of a [`Pod`] structure, for tools that compare or print layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's name in Rust.
    pub name: &'static str,
    /// Its offset in the structure, in bytes.
    pub offset: usize,
    /// Its size, in bytes.
    pub size: usize,
}

/// A type without padding for which every bit pattern is valid.
///
/// # Safety
///
/// The type has no padding bytes, no pointers or references, and every bit pattern of its size is a
/// valid value.
pub unsafe trait Pod: Copy + 'static {
    /// The fields in order; empty for integers, arrays and `()`.
    const FIELDS: &'static [Field];

    /// A value of all zero bytes.
    #[must_use]
    fn zeroed() -> Self {
        // SAFETY: `Pod` promises that every bit pattern is valid, so all zeroes is.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// The value's bytes in memory order.
    fn as_bytes(&self) -> &[u8] {
        slice_as_bytes(slice::from_ref(self))
    }

    /// The value's bytes, to fill it from a client's copy.
    fn as_bytes_mut(&mut self) -> &mut [u8] {
        slice_as_bytes_mut(slice::from_mut(self))
    }
}

/// The bytes of an array of plain data.
#[must_use]
pub fn slice_as_bytes<T: Pod>(values: &[T]) -> &[u8] {
    // SAFETY: `Pod` promises that all `size_of_val` bytes are initialised (no padding); u8 needs no
    // alignment, and the shared borrow of `values` lasts as long as the result.
    unsafe { slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of an array of plain data, to fill it.
#[must_use]
pub fn slice_as_bytes_mut<T: Pod>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `slice_as_bytes`, the borrow is exclusive, and `Pod` promises that whatever
    // bytes are written make a valid value.
    unsafe { slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}

macro_rules! pod_integers {
    ($($integer:ty)+) => {$(
        // SAFETY: a primitive integer has no padding and every bit pattern is a value.
        unsafe impl Pod for $integer {
            const FIELDS: &'static [Field] = &[];
        }
    )+};
}
pod_integers!(u8 u16 u32 u64 i32 i64);

// SAFETY: there are no bytes.
unsafe impl Pod for () {
    const FIELDS: &'static [Field] = &[];
}

// SAFETY: an array has no padding between its elements, and the elements are Pod.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {
    const FIELDS: &'static [Field] = &[];
}

/// Declares a `repr(C)` structure and implements [`Pod`] for it. The caller's scope needs `Field`
/// and `Pod`.
macro_rules! pod {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$field_meta:meta])* $vis:vis $field:ident: $type:ty,)+
        }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* $vis $field: $type,)+
        }

        const _: () = {
            const fn is_pod<T: Pod>() {}
            $(is_pod::<$type>();)+
            assert!(
                ::core::mem::size_of::<$name>() == 0 $(+ ::core::mem::size_of::<$type>())+,
                concat!("hidden padding in ", stringify!($name)),
            );
        };

        // SAFETY: the assertions above show that every field is Pod and that the sizes of the
        // fields add up to the size of the structure, so there is no padding.
        unsafe impl Pod for $name {
            const FIELDS: &'static [Field] = &[$(Field {
                name: stringify!($field),
                offset: ::core::mem::offset_of!($name, $field),
                size: ::core::mem::size_of::<$type>(),
            }),+];
        }
    };
}
pub(super) use pod;

/// Asserts at compile time a structure's size and the offsets of the named fields.
macro_rules! assert_layout {
    ($($name:ident: $size:literal { $($field:ident: $offset:literal),* $(,)? })+) => {$(
        const _: () = {
            assert!(::core::mem::size_of::<$name>() == $size, stringify!($name));
            $(assert!(
                ::core::mem::offset_of!($name, $field) == $offset,
                concat!(stringify!($name), ".", stringify!($field)),
            );)*
        };
    )+};
}
pub(super) use assert_layout;

#[cfg(test)]
mod tests {
    use super::*;

    pod! {
        /// A structure with fields of different sizes.
        pub struct Mixed {
            /// Eight bytes.
            pub wide: u64,
            /// Four bytes.
            pub narrow: u32,
            /// Keeps the size a multiple of eight.
            pub pad: u32,
        }
    }

    #[test]
    fn zeroed_is_all_zero() {
        assert!(Mixed::zeroed().as_bytes().iter().all(|&byte| byte == 0));
        assert_eq!(Mixed::zeroed(), Mixed::default());
    }

    #[test]
    fn bytes_are_in_memory_order_and_writable() {
        let mut mixed = Mixed { wide: 0x1122_3344_5566_7788, narrow: 9, pad: 0 };
        assert_eq!(mixed.as_bytes().len(), 16);
        assert_eq!(mixed.as_bytes()[..8], 0x1122_3344_5566_7788_u64.to_ne_bytes());
        mixed.as_bytes_mut()[8..12].copy_from_slice(&77_u32.to_ne_bytes());
        assert_eq!(mixed, Mixed { wide: 0x1122_3344_5566_7788, narrow: 77, pad: 0 });
    }

    #[test]
    fn slices_cover_every_element() {
        let mut values = [1_u32, 2, 3];
        assert_eq!(slice_as_bytes(&values).len(), 12);
        slice_as_bytes_mut(&mut values)[8..].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(values, [1, 2, u32::MAX]);
        assert!(slice_as_bytes::<u64>(&[]).is_empty());
    }

    #[test]
    fn fields_name_the_layout() {
        let narrow = Field { name: "narrow", offset: 8, size: 4 };
        assert_eq!(Mixed::FIELDS.len(), 3);
        assert_eq!(Mixed::FIELDS[1], narrow);
    }
}
