// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is said besides by a process that shares a machine with others (`vkfd serve`): calls about
//! files and about other processes' memory, and notes about changes of its own.
//!
//! Files go through a socket of their own (SCM_RIGHTS), with eight bytes each: before a call that
//! takes one, after a call that gives one.
//!
//! A note is 32 bytes: what happens, a protection, a place in the file of the process's memory,
//! bytes, and 8 bytes of zeroes. Its answer is 8 bytes; when it is there, no GPU uses what the note
//! took away.

use std::mem::{offset_of, size_of};

use vkfd_uapi::call::{Count, Forward, Known, Pointer, Way};
use vkfd_uapi::command as c;
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::memory::GetDmabufInfoArgs;

use super::calls::find;
use crate::protocol::{put32, put64, u32_at, u64_at, Malformed};

/// Gives an object's memory a name that other processes import it by: `handle` (64 bits), the name
/// (128, answered), `gpu_id`, flags. The number and layout are those of AMD's own kernel modules,
/// as libhsakmt 5.2 has them; the kernel's KFD has no such call.
pub const IPC_EXPORT: Command = Command::iowr::<[u64; 4]>(b'K', 0x81);
/// Makes an object of it: `handle` (answered), GPU address, mmap offset (answered), the name,
/// `gpu_id`, flags (answered).
pub const IPC_IMPORT: Command = Command::iowr::<[u64; 6]>(b'K', 0x80);
/// Where in the machine's file an mmap is: offset, bytes, pointer to places, how many are answered
/// (32 bits), and how many have room.
pub const PLACES: Command = Command::iowr::<[u64; 4]>(b'V', 1);
/// Bytes of a place: where it is, and its bytes.
pub const PLACE_BYTES: usize = 16;
/// Most places of an answer.
pub const MAX_PLACES: usize = 512;

/// The calls that only such a process makes.
const OWN: &[Known] = &[
    own("IPC_EXPORT", IPC_EXPORT, &[]),
    own("IPC_IMPORT", IPC_IMPORT, &[]),
    own("PLACES", PLACES, &[Pointer { at: 16, count: Count::Word(28), each: PLACE_BYTES, way: Way::Out }]),
];

const fn own(name: &'static str, command: Command, pointers: &'static [Pointer]) -> Known {
    Known { name, command, since: 1, until: None, fields: &[], pointers, forward: Forward::WithFile }
}

/// The row of a call about files or other processes' memory.
pub(super) fn row(command: Command) -> Option<&'static Known> {
    let with_file = find(command, c::ALL).filter(|known| known.forward == Forward::WithFile);
    with_file.or_else(|| find(command, OWN))
}

/// What a call does with a file: where in the argument its number is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Carries {
    /// No file.
    Nothing,
    /// It takes one.
    In(usize),
    /// It gives one.
    Out(usize),
}

/// What `command` does with a file.
#[must_use]
pub fn carries(command: Command) -> Carries {
    use vkfd_uapi::memory::{ExportDmabufArgs, ImportDmabufArgs};
    use vkfd_uapi::smi::SmiEventsArgs;
    match command {
        _ if command.same_call(c::GET_DMABUF_INFO) => Carries::In(offset_of!(GetDmabufInfoArgs, dmabuf_fd)),
        _ if command.same_call(c::IMPORT_DMABUF) => Carries::In(offset_of!(ImportDmabufArgs, dmabuf_fd)),
        _ if command.same_call(c::EXPORT_DMABUF) => Carries::Out(offset_of!(ExportDmabufArgs, dmabuf_fd)),
        _ if command.same_call(c::SMI_EVENTS) => Carries::Out(offset_of!(SmiEventsArgs, anon_fd)),
        _ => Carries::Nothing,
    }
}

/// Whether it is one of these calls.
#[must_use]
pub fn is_one(command: Command) -> bool {
    row(command).is_some()
}

/// What happens to memory of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happens {
    /// It goes.
    Unmap,
    /// Its contents go.
    Discard,
    /// It may be used like this only (PROT_READ, PROT_WRITE).
    Protect(u32),
}

/// A note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Note {
    pub happens: Happens,
    /// Where in the file of the process's memory, whole pages.
    pub offset: u64,
    pub bytes: u64,
}

/// Bytes of a note.
pub const NOTE_BYTES: usize = 32;
/// Bytes of its answer.
pub const NOTED_BYTES: usize = 8;
const _: () = assert!(size_of::<u64>() == NOTED_BYTES);

impl Note {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; NOTE_BYTES] {
        let mut bytes = [0; NOTE_BYTES];
        let (kind, protection) = match self.happens {
            Happens::Unmap => (1, 0),
            Happens::Discard => (2, 0),
            Happens::Protect(protection) => (3, protection),
        };
        put32(&mut bytes, 0, kind);
        put32(&mut bytes, 4, protection);
        put64(&mut bytes, 8, self.offset);
        put64(&mut bytes, 16, self.bytes);
        bytes
    }

    /// Of bytes.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8; NOTE_BYTES]) -> Result<Self, Malformed> {
        let happens = match (u32_at(bytes, 0)?, u32_at(bytes, 4)?) {
            (1, 0) => Happens::Unmap,
            (2, 0) => Happens::Discard,
            (3, protection @ 0..=3) => Happens::Protect(protection),
            _ => return Err(Malformed::Value),
        };
        if u64_at(bytes, 24)? != 0 {
            return Err(Malformed::Value);
        }
        Ok(Self { happens, offset: u64_at(bytes, 8)?, bytes: u64_at(bytes, 16)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_that_libhsakmt_has() {
        assert_eq!((IPC_EXPORT.0, IPC_IMPORT.0), (0xc020_4b81, 0xc030_4b80));
    }

    #[test]
    fn a_note_is_what_it_was() {
        for happens in [Happens::Unmap, Happens::Discard, Happens::Protect(0), Happens::Protect(3)] {
            let note = Note { happens, offset: 0x1000, bytes: 0x0123_4567_89ab_c000 };
            assert_eq!(Note::decode(&note.encode()), Ok(note));
        }
        for (at, value) in [(0, 0), (0, 4), (4, 1), (24, 1)] {
            let mut bytes = Note { happens: Happens::Unmap, offset: 0, bytes: 4096 }.encode();
            bytes[at] = value;
            assert!(Note::decode(&bytes).is_err(), "{at} {value}");
        }
    }
}
