// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Capability sets: which kinds of context the device has.
//!
//! Number 8 is AMD's libhsakmt (issue 218 of the virtio specification, not in it yet). Linux 7.3 takes
//! numbers up to 63, but shifts a signed `int` by them: above 30 it complains in its log.

use super::put32;

/// Contexts that speak libhsakmt's protocol.
pub const HSAKMT: u32 = 8;

/// All, in the order of their indices.
pub const ALL: [u32; 1] = [HSAKMT];

/// Bytes of capset 8.
pub const HSAKMT_BYTES: usize = 24;

/// `VIRTGPU_DRM_CONTEXT_AMDGPU`.
const CONTEXT_AMDGPU: u32 = 1;

/// The largest version of a set, and its bytes there.
#[must_use]
pub fn info(id: u32) -> Option<(u32, u32)> {
    match id {
        HSAKMT => Some((0, 24)),
        _ => None,
    }
}

/// A set's bytes.
#[must_use]
pub fn data(id: u32) -> Option<Vec<u8>> {
    let words: [u32; 6] = match id {
        // Wire format, version 1.0.0 of the context, its type, padding.
        HSAKMT => [1, 1, 0, 0, CONTEXT_AMDGPU, 0],
        _ => return None,
    };
    let mut bytes = vec![0; HSAKMT_BYTES];
    for (place, word) in words.into_iter().enumerate() {
        put32(&mut bytes, 4 * place, word);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_are_announced_are_those_of_the_data() {
        for id in ALL {
            let (version, bytes) = info(id).unwrap();
            assert_eq!((version, data(id).unwrap().len()), (0, bytes as usize));
        }
        assert_eq!(data(HSAKMT).unwrap()[..20], [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        assert!(info(6).is_none() && data(6).is_none());
    }
}
