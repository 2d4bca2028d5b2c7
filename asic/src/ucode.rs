// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The firmware files that AMD's driver loads: headers and zeros.
//!
//! The driver checks their sizes and writes them into registers, which ignore them: this crate is
//! the firmware. Versions steer the driver's features, so they are those that the target table has.
//! Layouts are those of `amdgpu_ucode.h`.

use crate::shape::Shape;

/// A file of `/lib/firmware/amdgpu`.
pub struct Ucode {
    /// Its name there.
    pub name: &'static str,
    /// Its contents.
    pub bytes: Vec<u8>,
}

/// Bytes in front of the code.
const HEADER: usize = 256;
/// Feature levels of the real files, which the driver only stores.
const COMPUTE_FEATURE: u32 = 46;
const COPY_FEATURE: u32 = 44;
/// The version of the file for RLC, which nothing asks for.
const RLC_VERSION: u32 = 0x11;

struct Kind {
    /// Version of the header.
    header: [u16; 2],
    /// Bytes of the header.
    header_bytes: u32,
    /// Version of the block.
    block: [u16; 2],
    version: u32,
    feature: u32,
    code: usize,
}

fn file(name: &'static str, kind: &Kind) -> Ucode {
    let size = HEADER + kind.code;
    let number = |value: usize| u32::try_from(value).unwrap_or(0).to_le_bytes();
    let mut bytes = Vec::with_capacity(size);
    bytes.extend(number(size));
    bytes.extend(kind.header_bytes.to_le_bytes());
    for part in kind.header.into_iter().chain(kind.block) {
        bytes.extend(part.to_le_bytes());
    }
    bytes.extend(kind.version.to_le_bytes());
    bytes.extend(number(kind.code));
    bytes.extend(number(HEADER));
    // The checksum, which nobody looks at.
    bytes.extend([0; 4]);
    bytes.extend(kind.feature.to_le_bytes());
    bytes.resize(size, 0);
    Ucode { name, bytes }
}

/// The files that the driver of a gfx90a asks for.
pub fn files(shape: &Shape) -> Vec<Ucode> {
    let compute = Kind {
        header: [1, 0],
        header_bytes: 44,
        block: [9, 4],
        version: shape.compute_firmware,
        feature: COMPUTE_FEATURE,
        code: 4096,
    };
    let rlc = Kind { header: [2, 0], header_bytes: 104, block: [9, 4], version: RLC_VERSION, feature: 1, code: 256 };
    let copy = Kind {
        header: [1, 0],
        header_bytes: 48,
        block: [4, 4],
        version: shape.copy_firmware,
        feature: COPY_FEATURE,
        code: 256,
    };
    vec![
        file("aldebaran_mec.bin", &compute),
        file("aldebaran_mec2.bin", &compute),
        file("aldebaran_rlc.bin", &rlc),
        file("aldebaran_sdma.bin", &copy),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::tests::mi210;

    #[test]
    fn sizes_and_versions_are_where_the_driver_looks() {
        for Ucode { name, bytes } in files(&mi210()) {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let (size, code, at) = (word(0), word(20), word(24));
            assert_eq!((size as usize, at + code), (bytes.len(), size), "{name}");
            let version = if name.contains("mec") { 78 } else { word(16) };
            assert_eq!(word(16), version, "{name}");
            assert!(name.starts_with("aldebaran_") && code % 4 == 0);
        }
    }
}
