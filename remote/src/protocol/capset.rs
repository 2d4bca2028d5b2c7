// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Capability sets: which kinds of context the device has.
//!
//! Number 8 is AMD's libhsakmt (issue 218 of the virtio specification, not in it yet). [`KFD`] is
//! vkfd's own. Linux 7.3 takes numbers up to 63, but shifts a signed `int` by them: above 30 it
//! complains in its log.

use super::{put, put32, u32_at, Malformed};

/// Contexts that speak libhsakmt's protocol.
pub const HSAKMT: u32 = 8;

/// Contexts that speak KFD's ioctls. Numbers are given out from 1 upwards (rutabaga's go up to 9).
/// 30 is the farthest from all of them that is still below Linux's shift. The set begins with
/// [`MAGIC`], which tells it from another set of this number.
pub const KFD: u32 = 30;

/// All, in the order of their indices.
pub const ALL: [u32; 2] = [HSAKMT, KFD];

/// Bytes of capset 8.
pub const HSAKMT_BYTES: usize = 24;
/// Bytes of [`KFD`]'s set: the magic word, the version, a length, and as many bytes of text.
pub const KFD_BYTES: usize = 512;

/// How [`KFD`]'s set begins.
pub const MAGIC: &[u8; 8] = b"vkfd-kfd";
/// The version of the messages ([`super::forward`]).
pub const VERSION: u32 = 1;
const TEXT: usize = 16;

/// `VIRTGPU_DRM_CONTEXT_AMDGPU`.
const CONTEXT_AMDGPU: u32 = 1;

/// The largest version of a set, and its bytes there.
#[must_use]
pub fn info(id: u32) -> Option<(u32, u32)> {
    match id {
        HSAKMT => Some((0, 24)),
        KFD => Some((0, 512)),
        _ => None,
    }
}

/// A set's bytes; `machine` is the machine in words, as `vkfd run` passes it on.
#[must_use]
pub fn data(id: u32, machine: &str) -> Option<Vec<u8>> {
    match id {
        // Wire format, version 1.0.0 of the context, its type, padding.
        HSAKMT => Some([1, 1, 0, 0, CONTEXT_AMDGPU, 0].into_iter().flat_map(u32::to_le_bytes).collect()),
        KFD => {
            let mut bytes = vec![0; KFD_BYTES];
            let text = machine.as_bytes().get(..KFD_BYTES - TEXT).unwrap_or(machine.as_bytes());
            put(&mut bytes, 0, MAGIC);
            put32(&mut bytes, 8, VERSION);
            put32(&mut bytes, 12, u32::try_from(text.len()).unwrap_or(0));
            put(&mut bytes, TEXT, text);
            Some(bytes)
        }
        _ => None,
    }
}

/// The machine that a set of [`KFD`]'s names.
///
/// # Errors
/// [`Malformed`]: it is another's set, of another version, or cut off.
pub fn machine(set: &[u8]) -> Result<&str, Malformed> {
    if !set.starts_with(MAGIC) || u32_at(set, 8)? != VERSION {
        return Err(Malformed::Unknown);
    }
    let length = super::index(u32_at(set, 12)?);
    let text = set.get(TEXT..).and_then(|rest| rest.get(..length)).ok_or(Malformed::Short)?;
    std::str::from_utf8(text).map_err(|_| Malformed::Value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_are_announced_are_those_of_the_data() {
        for id in ALL {
            let (version, bytes) = info(id).unwrap();
            assert_eq!((version, data(id, "gpus=1").unwrap().len()), (0, bytes as usize));
        }
        assert_eq!(data(HSAKMT, "").unwrap()[..20], [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        assert!(info(6).is_none() && data(6, "").is_none());
    }

    #[test]
    fn a_set_of_ours_names_the_machine_and_another_is_not_taken_for_it() {
        let set = data(KFD, "gpus=2 target=gfx90a").unwrap();
        assert_eq!(machine(&set), Ok("gpus=2 target=gfx90a"));
        let mut newer = set.clone();
        newer[8] = 2;
        let mut long = set.clone();
        long[13] = 0xff;
        assert_eq!(machine(&newer), Err(Malformed::Unknown));
        assert_eq!(machine(&long), Err(Malformed::Short));
        assert_eq!(machine(&data(HSAKMT, "").unwrap()), Err(Malformed::Unknown));
        assert!(machine(&set[..12]).is_err() && machine(&[]).is_err());
    }
}
