// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Why a queue halts, and which kernel did it.

use crate::base::fault::PageFault;
use crate::raw;
use std::fmt;
use vkfd_cu::launch::LaunchError;

/// Why a queue does not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It is being removed.
    Removed,
    /// It halts.
    Error(QueueError),
}

impl From<QueueError> for Stop {
    fn from(error: QueueError) -> Stop {
        Stop::Error(error)
    }
}

/// What the runtime learns when a queue has halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exception {
    /// A launch has too few or too many dimensions, or none that mean something.
    Dimension,
    /// A launch wants more LDS than there is.
    GroupMemory,
    /// A kernel cannot be run.
    Code,
    /// A packet that is none.
    Packet,
    /// A launch has too large work-groups.
    GroupSize,
    /// A kernel wants more registers than there are.
    Registers,
    /// An access that no address space has.
    Aperture,
    /// An instruction that is none.
    Instruction,
    /// A trap of the kernel's own.
    Trap,
}

/// Why a queue halted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// A packet that is malformed, unknown or not implemented.
    #[error("packet at byte {offset:#x} of the ring: {message}")]
    BadPacket {
        /// Byte offset of the packet in the ring; for a packet in an indirect buffer, of the packet
        /// that called it.
        offset: u64,
        /// What is wrong with it.
        message: String,
    },
    /// A dispatch on a GPU whose target's instruction set is not known.
    #[error("cannot run kernel {kernel}: this GPU does not execute its target's instruction set")]
    UnknownKernel {
        /// What was to run.
        kernel: KernelName,
    },
    /// A launch that hardware refuses.
    #[error("cannot launch kernel {kernel}: {error}")]
    Launch {
        /// What was to run.
        kernel: KernelName,
        /// What is wrong.
        error: LaunchError,
    },
    /// A kernel that uses scratch on a queue without memory for it.
    #[error("kernel {kernel} needs {bytes} bytes of scratch for each work-item, and the queue has none")]
    NoScratch {
        /// What was to run.
        kernel: KernelName,
        /// Bytes of a work-item.
        bytes: u32,
    },
    /// A kernel did something that ends it.
    #[error("kernel {kernel}, {at}: {cause}")]
    Kernel {
        /// What ran.
        kernel: KernelName,
        /// Which wave, and where.
        at: WaveAt,
        /// What happened.
        cause: KernelError,
    },
    /// A page fault that was not recovered.
    #[error("page fault: {0}")]
    Fault(PageFault),
    /// A word access to an address that is not a multiple of its size.
    #[error("GPU address {va:#x} is not aligned to {bytes} bytes")]
    Unaligned {
        /// GPU address.
        va: u64,
        /// Bytes of the word.
        bytes: usize,
    },
    /// A doorbell value that is no whole number of words, or more than a ring ahead of the read
    /// pointer.
    #[error("doorbell value {doorbell:#x} does not fit read pointer {rptr:#x} and a ring of {ring_bytes:#x} bytes")]
    BadDoorbell {
        /// Value of the doorbell.
        doorbell: u64,
        /// Read pointer.
        rptr: u64,
        /// Size of the ring.
        ring_bytes: u64,
    },
    /// A thread of the GPU panicked: vkfd is at fault, not the client. Other queues go on.
    #[error("a thread of the GPU panicked, which is a bug of vkfd: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// The doorbell's memory is gone.
    #[error("the doorbell cannot be read: {0}")]
    DoorbellLost(raw::Faulted),
}

impl QueueError {
    /// What its runtime is told. Nothing of a page fault: the driver's memory exception says more.
    #[must_use]
    pub fn exception(&self) -> Option<Exception> {
        Some(match self {
            QueueError::UnknownKernel { .. } | QueueError::NoScratch { .. } => Exception::Code,
            QueueError::Launch { error, .. } => match error {
                LaunchError::Dimensions { .. } => Exception::Dimension,
                LaunchError::GroupTooLarge(_) => Exception::GroupSize,
                LaunchError::Lds(_) => Exception::GroupMemory,
                LaunchError::Registers { .. } => Exception::Registers,
                LaunchError::Code(_) => Exception::Code,
            },
            QueueError::Kernel { cause, .. } => match cause {
                KernelError::Fault(_) => return None,
                KernelError::Illegal(_) | KernelError::Unsupported(_) | KernelError::Register => Exception::Instruction,
                KernelError::Aperture(_) | KernelError::HostAtomic { .. } => Exception::Aperture,
                KernelError::Trap { .. } => Exception::Trap,
            },
            QueueError::BadPacket { .. } | QueueError::BadDoorbell { .. } => Exception::Packet,
            QueueError::Unaligned { .. } => Exception::Aperture,
            // Nobody else tells the runtime that its packets are never done.
            QueueError::Panicked { .. } => Exception::Code,
            QueueError::Fault(_) | QueueError::DoorbellLost(_) => return None,
        })
    }

    /// The page fault that this is about, if any.
    pub(crate) fn fault(&self) -> Option<&PageFault> {
        match self {
            QueueError::Fault(fault) | QueueError::Kernel { cause: KernelError::Fault(fault), .. } => Some(fault),
            _ => None,
        }
    }
}

/// A kernel, as far as its name is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelName {
    /// GPU address of the kernel object (AQL) or of the program (PM4).
    pub object: u64,
    /// Its name in the code object that it was loaded with, if that can be found.
    pub name: Option<String>,
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_deref().unwrap_or("(of unknown name)");
        write!(f, "{name} at GPU address {:#x}", self.object)
    }
}

/// A wave of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaveAt {
    /// Index of its work-group.
    pub group: [u32; 3],
    /// Its index in the work-group.
    pub wave: u16,
    /// Its program counter.
    pub pc: u64,
    /// The same, from the program's begin.
    pub offset: u64,
}

impl fmt::Display for WaveAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.group;
        let WaveAt { wave, pc, offset, .. } = self;
        write!(f, "work-group ({x}, {y}, {z}), wave {wave}, pc {pc:#x} (+{offset:#x})")
    }
}

/// What ends a kernel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A page fault that was not recovered.
    #[error("page fault: {0}")]
    Fault(PageFault),
    /// No instruction of the target.
    #[error("illegal instruction {0:#010x}")]
    Illegal(u32),
    /// An instruction that this GPU does not execute.
    #[error("instruction {0} is not implemented")]
    Unsupported(String),
    /// A register that the wave does not have.
    #[error("a register beyond those that the kernel asked for")]
    Register,
    /// An atomic operation on floating-point numbers in the host's memory, on a strict GPU.
    #[error("{name} at GPU address {va:#x}, in the host's memory: hardware does nothing there (strict)")]
    HostAtomic {
        /// The operation.
        name: String,
        /// GPU address.
        va: u64,
    },
    /// An access outside of LDS or scratch, or one that is not aligned.
    #[error("memory aperture violation at {0:#x}")]
    Aperture(u64),
    /// `s_trap`: assertions and the compilers' traps.
    #[error("trap {number}{}", if *number == 2 { " (abort: an assertion or a trap in the kernel's source)" } else { "" })]
    Trap {
        /// Its number.
        number: u8,
    },
}
