// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The seam: what a wave needs of the GPU around it.
//!
//! # The gate
//!
//! Memory may be touched only while the gate of the address space is held open ([`World::enter`] to
//! [`World::leave`]). Suspending and flushing wait for that. The scheduler enters, has an engine
//! run a wave for a bounded batch of instructions, and leaves as soon as a thread waits. Engines
//! ask [`World::wanted`] at each branch and at least every 64 instructions.
//!
//! A [`Span`] is good until the gate is left: an engine may keep spans that long and no longer. So
//! an engine's cache of spans never hides a flush that the driver forgot.

pub use crate::exit::Access;
use crate::exit::{Miss, Stop};
use vkfd_isa::Op;

/// Why the fast engine has the reference engine execute an instruction, or each of its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detour {
    /// There is no handler for the instruction, or for this form of it.
    NoHandler,
    /// An operand or a result is one that the handler does not compute, such as a NaN.
    Value,
    /// MODE has another rounding, loses denormals, or moves registers.
    Mode,
    /// An access misses, crosses into another aperture, or has to be repeated in part.
    Access,
    /// There are no vectors for the operation: each lane is done by itself.
    Lanes,
}

impl Detour {
    /// All of them.
    pub const ALL: [Detour; 5] = [Detour::NoHandler, Detour::Value, Detour::Mode, Detour::Access, Detour::Lanes];

    /// A word for it, as reports have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Detour::NoHandler => "no-handler",
            Detour::Value => "value",
            Detour::Mode => "mode",
            Detour::Access => "access",
            Detour::Lanes => "lanes",
        }
    }
}

/// Host memory behind a GPU virtual address. Others write it, and it may vanish: it is accessed by
/// `vkfd_raw` alone.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// The byte at the address asked for.
    pub ptr: *mut u8,
    /// Contiguous bytes from there, at least 1. Both the address and the pointer go on in step.
    pub len: usize,
}

/// Where bytes lie that an instruction reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// At a GPU virtual address.
    Memory(u64),
    /// In the work-group's LDS.
    Lds(u32),
}

/// What an instruction does to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    Read,
    Write,
    /// An atomic operation: both, in one.
    Atomic,
}

/// Bytes that an instruction is about to reach, for worlds that check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The lane; [`Reach::SCALAR`] for a scalar access.
    pub lane: u8,
    /// Where these bytes begin in the lane's data.
    pub at: u8,
    pub len: u8,
    pub touch: Touch,
    pub spot: Spot,
}

impl Reach {
    /// The lane of accesses that no lane makes.
    pub const SCALAR: u8 = 255;
}

/// The GPU around a wave, as one thread sees it.
pub trait World {
    /// Opens the gate; waits while the address space is suspended.
    ///
    /// # Errors
    /// [`Stop`] when the queue is being removed.
    fn enter(&mut self) -> Result<(), Stop>;

    /// Closes it. Spans are good no longer.
    fn leave(&mut self);

    /// Whether somebody waits for the gate to be left, or the queue is to stop. Cheap.
    fn wanted(&self) -> bool;

    /// A number for the memory as this opening of the gate finds it; `None`: it is not known. In
    /// openings with the same number, spans that one of them got are good in the next ones. Once
    /// the number changes it never comes back on this thread.
    fn opening(&self) -> Option<u64> {
        None
    }

    /// Host memory behind `va`. Only while the gate is held.
    ///
    /// # Errors
    /// [`Miss`]: nothing was touched; the scheduler settles it with the gate left.
    fn translate(&mut self, va: u64, access: Access) -> Result<Span, Miss>;

    /// Whether what hardware does not do, and this engine could, is refused.
    fn strict(&self) -> bool {
        false
    }

    /// Whether `va` is in the host's memory, behind the bus. Only while the gate is held.
    fn is_host(&mut self, va: u64) -> bool {
        let _ = va;
        false
    }

    /// Whether a page fault may be repaired, and the access repeated.
    fn retries(&self) -> bool {
        false
    }

    /// Deals with a miss: reports the fault, or waits until the driver has brought the memory back.
    /// Only with the gate left.
    ///
    /// # Errors
    /// [`Stop`] when the wave cannot go on: the fault was fatal and is reported, or the queue is
    /// being removed.
    fn settle(&mut self, miss: &Miss) -> Result<(), Stop>;

    /// Interrupts the driver with an event's id (`s_sendmsg MSG_INTERRUPT`).
    fn interrupt(&mut self, event: u32);

    /// The GPU's clock, 100 MHz, which `s_memrealtime` and a message tell.
    fn clock(&self) -> u64;

    /// Cycles of the shaders' clock, which `s_memtime` and a hardware register tell. Programs
    /// divide them by the rate that the driver says of the GPU.
    fn cycles(&self) -> u64;

    /// So many instructions have been executed; an engine says it when it stops running a wave.
    fn retired(&mut self, instructions: u64) {
        let _ = instructions;
    }

    /// Instructions that were said to be executed so far, of all waves; 0 where nobody counts.
    fn executed(&self) -> u64 {
        0
    }

    /// The wave has stored something, or changed memory by an atomic operation; an engine says it
    /// when it stops running the wave, at the latest.
    fn wrote(&mut self) {}

    /// Whether a wave has written since this was asked the last time.
    fn has_written(&mut self) -> bool {
        false
    }

    /// Bytes are about to be reached, by the reference engine. They may not be yet: the access may
    /// miss, or be refused, and is then repeated.
    fn reaches(&mut self, reach: Reach) {
        let _ = reach;
    }

    /// So many bytes of memory are about to be read or written by vector instructions.
    fn moved(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Sets a global wave sync resource: the next `value` waves at its barrier wait for the one
    /// after them.
    fn gws_init(&mut self, resource: u32, value: u32) {
        let _ = (resource, value);
    }

    /// Arrives at a resource's barrier, whose next round is of `value` waves and one more. What to
    /// wait for, or 0: all have come.
    fn gws_arrive(&mut self, resource: u32, value: u32) -> u64 {
        let _ = (resource, value);
        0
    }

    /// Whether what a wave waits for has come.
    fn gws_passed(&mut self, resource: u32, ticket: u64) -> bool {
        let _ = (resource, ticket);
        true
    }

    /// The fast engine had the reference engine execute an instruction of a wave, or its lanes.
    fn detour(&mut self, op: Op, why: Detour) {
        let _ = (op, why);
    }

    /// An operation was executed whose result only approximates hardware's.
    fn inexact(&mut self, op: Op) {
        let _ = op;
    }
}
