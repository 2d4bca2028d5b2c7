// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Why an engine stops running a wave, and why a wave cannot go on.

use vkfd_isa::Op;

/// What an access wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Write, or an atomic operation.
    Write,
    /// Fetch an instruction.
    Execute,
}

/// An access that did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// First byte that could not be accessed.
    pub va: u64,
    /// What was attempted.
    pub access: Access,
    /// The address translated, but the host's memory had gone when it was touched.
    pub lost: bool,
    /// For the world's own use: why the translation failed.
    pub reason: u32,
}

/// The queue is being removed, or a fault has ended it; the world knows the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop;

/// What this GPU does not execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The words are no instruction of the target.
    Illegal {
        /// The first word.
        word: u32,
    },
    /// An operation that is not implemented.
    Unsupported(Op),
    /// A register beyond what the wave has.
    Register,
    /// An atomic operation on floating-point numbers in the host's memory, of which hardware does
    /// nothing; only in a world that is strict.
    HostAtomic {
        /// The operation.
        op: Op,
        /// The address.
        va: u64,
    },
    /// A FLAT access outside of every aperture's size, an LDS address that is not aligned where it
    /// must be.
    Aperture {
        /// The address.
        va: u64,
    },
}

/// Why an engine has stopped running a wave. The program counter is at the instruction that runs
/// next: for `Miss` and `Refused` the same one, whose registers and memory are as before (except
/// for lanes noted in [`Wave::done`](crate::Wave::done)).
///
/// It is aligned so that none lies in two pages: each turn of a wave writes one to the stack, which
/// would wait for all stores before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(32))]
pub enum Exit {
    /// The budget is used up, or the gate is wanted.
    Yield,
    /// `s_barrier`.
    Barrier,
    /// `s_sleep`, and waits that found nothing.
    Sleep,
    /// `s_endpgm`.
    End,
    /// An access has to be settled first.
    Miss(Miss),
    /// `s_trap` with its number (not 0).
    Trap(u8),
    /// `s_sendmsg MSG_INTERRUPT`, with M0.
    Interrupt(u32),
    /// Code is to be decoded first, which allocates, outside of the gate; see
    /// [`Engine::decode`](crate::launch::Engine::decode).
    Decode {
        /// Instructions that have run before.
        done: u32,
    },
    /// Not executable.
    Refused(Refusal),
}
