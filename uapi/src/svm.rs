// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shared virtual memory (SVM): ranges whose GPU address is their CPU address.
//!
//! Mechanism: one call sets or gets attributes of an address range. The argument is [`SvmArgs`]
//! followed by `nattr` [`SvmAttribute`]; callers put the whole length into the command word, so a
//! driver compares it with [`super::ioctl::Command::same_call`]. Source: `kfd_ioctl.h`.

use super::pod::{assert_layout, pod, Field, Pod};

pod! {
    /// One attribute.
    pub struct SvmAttribute {
        /// `SVM_ATTR_*` (AMD's `type`).
        pub attr_type: u32,
        /// Its value: a gpu_id, a location, flags, or log2 of a number of pages.
        pub value: u32,
    }
}

pod! {
    /// The fixed part of the argument of `SVM`.
    pub struct SvmArgs {
        /// In: first address, page aligned.
        pub start_addr: u64,
        /// In: bytes, a multiple of the page size.
        pub size: u64,
        /// In: `SVM_OP_*`.
        pub op: u32,
        /// In: number of attributes that follow.
        pub nattr: u32,
    }
}

assert_layout! {
    SvmAttribute: 8 { value: 4 }
    SvmArgs: 24 { size: 8, op: 16, nattr: 20 }
}

/// Bytes of the argument with `nattr` attributes; `None` when a command word cannot hold that size.
#[must_use]
pub const fn args_size(nattr: usize) -> Option<usize> {
    let Some(attributes) = nattr.checked_mul(core::mem::size_of::<SvmAttribute>()) else {
        return None;
    };
    match attributes.checked_add(core::mem::size_of::<SvmArgs>()) {
        Some(size) if size <= super::ioctl::MAX_SIZE => Some(size),
        _ => None,
    }
}

/// Set attributes.
pub const SVM_OP_SET_ATTR: u32 = 0;
/// Get attributes common to the whole range.
pub const SVM_OP_GET_ATTR: u32 = 1;

/// System memory, as a location.
pub const SVM_LOCATION_SYSMEM: u32 = 0;
/// No location, or different ones.
pub const SVM_LOCATION_UNDEFINED: u32 = u32::MAX;

/// Where the range should be: a gpu_id or `SVM_LOCATION_*`.
pub const SVM_ATTR_PREFERRED_LOC: u32 = 0;
/// Where to migrate it now.
pub const SVM_ATTR_PREFETCH_LOC: u32 = 1;
/// This GPU may access it, by migration if need be.
pub const SVM_ATTR_ACCESS: u32 = 2;
/// This GPU may access it where it is.
pub const SVM_ATTR_ACCESS_IN_PLACE: u32 = 3;
/// This GPU may not access it.
pub const SVM_ATTR_NO_ACCESS: u32 = 4;
/// `SVM_FLAG_*` to set.
pub const SVM_ATTR_SET_FLAGS: u32 = 5;
/// `SVM_FLAG_*` to clear.
pub const SVM_ATTR_CLR_FLAGS: u32 = 6;
/// Migration granularity: log2 of a number of pages.
pub const SVM_ATTR_GRANULARITY: u32 = 7;

/// The CPU has access.
pub const SVM_FLAG_HOST_ACCESS: u32 = 1 << 0;
/// Fine-grained coherence between all that have access.
pub const SVM_FLAG_COHERENT: u32 = 1 << 1;
/// Any GPU of the preferred GPU's hive will do.
pub const SVM_FLAG_HIVE_LOCAL: u32 = 1 << 2;
/// GPUs only read it.
pub const SVM_FLAG_GPU_RO: u32 = 1 << 3;
/// GPUs may execute from it.
pub const SVM_FLAG_GPU_EXEC: u32 = 1 << 4;
/// GPUs mostly read it.
pub const SVM_FLAG_GPU_READ_MOSTLY: u32 = 1 << 5;
/// Keep it mapped as if XNACK were off.
pub const SVM_FLAG_GPU_ALWAYS_MAPPED: u32 = 1 << 6;
/// Coherent for atomics of device scope.
pub const SVM_FLAG_EXT_COHERENT: u32 = 1 << 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argument_size_is_bounded_by_the_command_word() {
        assert_eq!(args_size(0), Some(24));
        assert_eq!(args_size(3), Some(48));
        assert_eq!(args_size(2044), Some(16376));
        assert_eq!(args_size(2045), None);
        assert_eq!(args_size(usize::MAX), None);
    }
}
