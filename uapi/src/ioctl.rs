// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ioctl command word.
//!
//! Mechanism: direction in bits 31:30, argument size in 29:16, type in 15:8, number in 7:0, as in
//! Linux's `asm-generic/ioctl.h`. x86-64, arm64 and riscv use it; powerpc, mips and sparc do not. A
//! driver compares whole words: the number alone is ambiguous (see [`super::batch`]).

use core::fmt;
use core::mem::size_of;

/// The direction a command declares, seen from the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// No argument (`_IO`).
    None,
    /// The caller writes the argument (`_IOW`).
    Write,
    /// The caller reads the argument back (`_IOR`).
    Read,
    /// Both (`_IOWR`).
    ReadWrite,
}

/// A 32-bit ioctl command word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Command(pub u32);

const SIZE_SHIFT: u32 = 16;
const SIZE_BITS: u32 = 14;
const DIRECTION_SHIFT: u32 = 30;

/// The largest argument that a command word can declare, in bytes.
pub const MAX_SIZE: usize = (1 << SIZE_BITS) - 1;

impl Command {
    /// `_IO(kind, number)`: no argument.
    #[must_use]
    pub const fn io(kind: u8, number: u8) -> Self {
        Self::encode(Direction::None, kind, number, 0)
    }

    /// `_IOR(kind, number, T)`. Panics (at compile time in a const) when `T` is larger than
    /// [`MAX_SIZE`].
    #[must_use]
    pub const fn ior<T>(kind: u8, number: u8) -> Self {
        Self::encode(Direction::Read, kind, number, size_of::<T>())
    }

    /// `_IOW(kind, number, T)`. Panics as [`Command::ior`] does.
    #[must_use]
    pub const fn iow<T>(kind: u8, number: u8) -> Self {
        Self::encode(Direction::Write, kind, number, size_of::<T>())
    }

    /// `_IOWR(kind, number, T)`. Panics as [`Command::ior`] does.
    #[must_use]
    pub const fn iowr<T>(kind: u8, number: u8) -> Self {
        Self::encode(Direction::ReadWrite, kind, number, size_of::<T>())
    }

    const fn encode(direction: Direction, kind: u8, number: u8, size: usize) -> Self {
        assert!(size <= MAX_SIZE, "the argument is too large for a command word");
        // The assertion keeps the size within 14 bits.
        #[allow(clippy::cast_possible_truncation)]
        let size = (size as u32) << SIZE_SHIFT;
        let direction: u32 = match direction {
            Direction::None => 0,
            Direction::Write => 1,
            Direction::Read => 2,
            Direction::ReadWrite => 3,
        };
        let low = u32::from_le_bytes([number, kind, 0, 0]);
        Self(direction << DIRECTION_SHIFT | size | low)
    }

    /// The number (bits 7:0).
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// The type, one letter a driver (bits 15:8).
    #[must_use]
    pub const fn kind(self) -> u8 {
        self.0.to_le_bytes()[1]
    }

    /// The argument's size in bytes (bits 29:16).
    #[must_use]
    pub const fn size(self) -> usize {
        (self.0 >> SIZE_SHIFT) as usize & MAX_SIZE
    }

    /// The declared direction (bits 31:30).
    #[must_use]
    pub const fn direction(self) -> Direction {
        match self.0 >> DIRECTION_SHIFT {
            0 => Direction::None,
            1 => Direction::Write,
            2 => Direction::Read,
            _ => Direction::ReadWrite,
        }
    }

    /// The same direction, type and number with another argument size, for calls whose argument
    /// ends in an array (SVM). `None` when `size` is larger than [`MAX_SIZE`].
    #[must_use]
    pub const fn with_size(self, size: usize) -> Option<Self> {
        if size > MAX_SIZE {
            return None;
        }
        Some(Self::encode(self.direction(), self.kind(), self.number(), size))
    }

    /// Whether both words differ in nothing but the argument's size.
    #[must_use]
    pub const fn same_call(self, other: Self) -> bool {
        const SIZE_MASK: u32 = ((1 << SIZE_BITS) - 1) << SIZE_SHIFT;
        self.0 | SIZE_MASK == other.0 | SIZE_MASK
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Command({self})")
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::format;

    // Words that Linux headers define, worked out by the C macros.
    const TIOCINQ_LIKE: Command = Command::io(b'T', 0x1b);
    const DRM_VERSION: Command = Command::iowr::<[u64; 8]>(b'd', 0);
    const KVM_SET_USER_MEMORY_REGION: Command = Command::iow::<[u64; 4]>(0xae, 0x46);
    const RTC_RD_TIME: Command = Command::ior::<[u32; 9]>(b'p', 0x09);

    #[test]
    fn encodes_what_other_drivers_use() {
        assert_eq!(TIOCINQ_LIKE.0, 0x541b);
        assert_eq!(DRM_VERSION.0, 0xc040_6400);
        assert_eq!(KVM_SET_USER_MEMORY_REGION.0, 0x4020_ae46);
        assert_eq!(RTC_RD_TIME.0, 0x8024_7009);
    }

    #[test]
    fn decodes_what_it_encodes() {
        let command = Command(0xc030_4b28);
        assert_eq!(command.number(), 0x28);
        assert_eq!(command.kind(), b'K');
        assert_eq!(command.size(), 48);
        assert_eq!(command.direction(), Direction::ReadWrite);
        assert_eq!(RTC_RD_TIME.direction(), Direction::Read);
        assert_eq!(KVM_SET_USER_MEMORY_REGION.direction(), Direction::Write);
        assert_eq!(TIOCINQ_LIKE.direction(), Direction::None);
    }

    #[test]
    fn resizing_keeps_the_rest() {
        let command = Command(0xc018_4b20);
        assert_eq!(command.with_size(24 + 8 * 3), Some(Command(0xc030_4b20)));
        assert_eq!(command.with_size(MAX_SIZE), Some(Command(0xffff_4b20)));
        assert_eq!(command.with_size(MAX_SIZE + 1), None);
    }

    #[test]
    fn same_call_ignores_only_the_size() {
        let command = Command(0xc030_4b28);
        assert!(command.same_call(Command(0xc010_4b28)));
        assert!(!command.same_call(Command(0xc030_4b27)));
        assert!(!command.same_call(Command(0xc030_4c28)));
        assert!(!command.same_call(Command(0x4030_4b28)));
    }

    #[test]
    fn prints_as_hexadecimal() {
        assert_eq!(format!("{:?} {}", Command(0xc010_4b28), Command(0x4b27)), "Command(0xc0104b28) 0x00004b27");
    }
}
