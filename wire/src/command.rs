// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Commands: what the driver asks of the device, and how that is written into a mailbox.
//!
//! The first word says which, the others are its arguments. A device answers each with 0 or an
//! errno, and a value, which [`Command::Clock`], [`Command::Work`] and [`Command::Waves`] have.
//! Each answer means "done": after [`Command::SetVmid`] with a suspended state,
//! [`Command::FlushTlb`] and [`Command::RemoveQueue`] no access that they end is in flight.

use crate::vmid::VmidState;
use vkfd_driver::base::addr::{GpuVa, PhysAddr, VramOffset};
use vkfd_driver::seams::gpu::{HwQueue, QueueKind, Vmid, Work};

/// Words of a command.
pub const WORDS: usize = 10;

/// A GPU's work as a value: twice the nanoseconds, and 1 with a kernel on the GPU.
pub fn work_word(work: Work) -> u64 {
    work.nanoseconds.wrapping_shl(1) | u64::from(work.now)
}

/// The work that a value stands for.
pub fn work(word: u64) -> Work {
    Work { nanoseconds: word >> 1, now: word & 1 != 0 }
}

/// A command as it stands in a mailbox.
pub type Words = [u64; WORDS];

/// A queue to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewQueue {
    /// The driver's number for it, which nothing else had in this epoch.
    pub queue: HwQueue,
    /// Address space, and whose: what the queue raises has this.
    pub vmid: Vmid,
    pub kind: QueueKind,
    /// Ring buffer.
    pub ring: GpuVa,
    /// Its size in bytes.
    pub ring_bytes: u64,
    /// Where the GPU writes its read pointer.
    pub rptr: GpuVa,
    /// Where the client keeps the write pointer.
    pub wptr: GpuVa,
    /// Its 8-byte doorbell in guest RAM.
    pub doorbell: PhysAddr,
}

/// What the driver asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// First of an epoch: a driver is there. The device checks that it finds `nonce` at `probe`,
    /// that is whether it has the right memory for the guest's RAM; EFAULT if not. From now on it
    /// may raise interrupts.
    Attach {
        /// An 8-byte word of guest RAM.
        probe: PhysAddr,
        /// What is there.
        nonce: u64,
    },
    /// An address space's state. Older than the device's state: nothing to do, and no error.
    SetVmid { vmid: Vmid, state: VmidState },
    /// Drops cached translations.
    FlushTlb {
        /// Of which address space.
        vmid: Vmid,
    },
    /// Answers a retry fault.
    FaultDone {
        /// Address space.
        vmid: Vmid,
        va: GpuVa,
        /// Translate again, or halt.
        served: bool,
    },
    /// Starts a queue.
    AddQueue(NewQueue),
    /// Changes a queue's ring, or pauses it.
    UpdateQueue {
        queue: HwQueue,
        /// New ring.
        ring: GpuVa,
        /// Its size in bytes.
        ring_bytes: u64,
        /// Whether it runs.
        enabled: bool,
    },
    /// Ends a queue.
    RemoveQueue { queue: HwQueue },
    /// Zeroes VRAM.
    Clear {
        /// The first byte.
        at: VramOffset,
        bytes: u64,
    },
    /// Reads the GPU clock.
    Clock,
    /// Reads how much the GPU has worked, as [`work_word`] has it.
    Work,
    /// Reads how many waves an address space's kernels have on the GPU.
    Waves { vmid: Vmid },
}

const ATTACH: u64 = 1;
const SET_VMID: u64 = 2;
const FLUSH_TLB: u64 = 3;
const FAULT_DONE: u64 = 4;
const ADD_QUEUE: u64 = 5;
const UPDATE_QUEUE: u64 = 6;
const REMOVE_QUEUE: u64 = 7;
const CLEAR: u64 = 8;
const CLOCK: u64 = 9;
const WORK: u64 = 10;
const WAVES: u64 = 11;

const SDMA: u64 = 0;
const AQL: u64 = 1;
const PM4: u64 = 2;

fn words<const N: usize>(command: u64, arguments: [u64; N]) -> Words {
    let mut words = [0; WORDS];
    let all = core::iter::once(command).chain(arguments);
    for (to, from) in words.iter_mut().zip(all) {
        *to = from;
    }
    words
}

fn number(word: u64) -> Option<u32> {
    u32::try_from(word).ok()
}

fn flag(word: u64) -> Option<bool> {
    match word {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

impl Command {
    /// As words.
    pub fn encode(&self) -> Words {
        match *self {
            Self::Attach { probe, nonce } => words(ATTACH, [probe.0, nonce]),
            Self::SetVmid { vmid, state } => words(SET_VMID, [vmid.0.into(), state.word()]),
            Self::FlushTlb { vmid } => words(FLUSH_TLB, [vmid.0.into()]),
            Self::FaultDone { vmid, va, served } => words(FAULT_DONE, [vmid.0.into(), va.0, served.into()]),
            Self::AddQueue(new) => {
                let kind = match new.kind {
                    QueueKind::Sdma => SDMA,
                    QueueKind::Aql => AQL,
                    QueueKind::Pm4 => PM4,
                };
                let NewQueue { queue, vmid, ring, ring_bytes, rptr, wptr, doorbell, .. } = new;
                let (queue, vmid) = (queue.0.into(), vmid.0.into());
                words(ADD_QUEUE, [queue, vmid, kind, ring.0, ring_bytes, rptr.0, wptr.0, doorbell.0])
            }
            Self::UpdateQueue { queue, ring, ring_bytes, enabled } => {
                words(UPDATE_QUEUE, [queue.0.into(), ring.0, ring_bytes, enabled.into()])
            }
            Self::RemoveQueue { queue } => words(REMOVE_QUEUE, [queue.0.into()]),
            Self::Clear { at, bytes } => words(CLEAR, [at.0, bytes]),
            Self::Clock => words(CLOCK, []),
            Self::Work => words(WORK, []),
            Self::Waves { vmid } => words(WAVES, [vmid.0.into()]),
        }
    }

    /// From words; `None` if they are no command.
    pub fn decode(words: &Words) -> Option<Self> {
        let [command, a, b, c, d, e, f, g, h, _] = *words;
        Some(match command {
            ATTACH => Self::Attach { probe: PhysAddr(a), nonce: b },
            SET_VMID => Self::SetVmid { vmid: Vmid(number(a)?), state: VmidState::from_word(b) },
            FLUSH_TLB => Self::FlushTlb { vmid: Vmid(number(a)?) },
            FAULT_DONE => Self::FaultDone { vmid: Vmid(number(a)?), va: GpuVa(b), served: flag(c)? },
            ADD_QUEUE => Self::AddQueue(NewQueue {
                queue: HwQueue(number(a)?),
                vmid: Vmid(number(b)?),
                kind: match c {
                    SDMA => QueueKind::Sdma,
                    AQL => QueueKind::Aql,
                    PM4 => QueueKind::Pm4,
                    _ => return None,
                },
                ring: GpuVa(d),
                ring_bytes: e,
                rptr: GpuVa(f),
                wptr: GpuVa(g),
                doorbell: PhysAddr(h),
            }),
            UPDATE_QUEUE => {
                Self::UpdateQueue { queue: HwQueue(number(a)?), ring: GpuVa(b), ring_bytes: c, enabled: flag(d)? }
            }
            REMOVE_QUEUE => Self::RemoveQueue { queue: HwQueue(number(a)?) },
            CLEAR => Self::Clear { at: VramOffset(a), bytes: b },
            CLOCK => Self::Clock,
            WORK => Self::Work,
            WAVES => Self::Waves { vmid: Vmid(number(a)?) },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let new = NewQueue {
            queue: HwQueue(1),
            vmid: Vmid(2),
            kind: QueueKind::Aql,
            ring: GpuVa(3),
            ring_bytes: 4,
            rptr: GpuVa(5),
            wptr: GpuVa(6),
            doorbell: PhysAddr(7),
        };
        let state = VmidState::default().with_suspended(true).next();
        let all = [
            Command::Attach { probe: PhysAddr(8), nonce: u64::MAX },
            Command::SetVmid { vmid: Vmid(1), state },
            Command::FlushTlb { vmid: Vmid(u32::MAX) },
            Command::FaultDone { vmid: Vmid(1), va: GpuVa(1 << 47), served: true },
            Command::AddQueue(new),
            Command::AddQueue(NewQueue { kind: QueueKind::Sdma, ..new }),
            Command::AddQueue(NewQueue { kind: QueueKind::Pm4, ..new }),
            Command::UpdateQueue { queue: HwQueue(9), ring: GpuVa(1), ring_bytes: 2, enabled: false },
            Command::RemoveQueue { queue: HwQueue(9) },
            Command::Clear { at: VramOffset(3), bytes: 4 },
            Command::Clock,
            Command::Work,
            Command::Waves { vmid: Vmid(3) },
        ];
        for command in all {
            assert_eq!(Command::decode(&command.encode()), Some(command));
        }
    }

    #[test]
    fn work_is_a_word() {
        for work in
            [(0, false), (0, true), (1, false), (1 << 62, true)].map(|(nanoseconds, now)| Work { nanoseconds, now })
        {
            assert_eq!(super::work(work_word(work)), work);
        }
    }

    #[test]
    fn nonsense_is_no_command() {
        let bad = |command, arguments: [u64; 4]| Command::decode(&words(command, arguments));
        assert_eq!(bad(0, [0; 4]), None);
        assert_eq!(bad(WAVES + 1, [0; 4]), None);
        assert_eq!(bad(SET_VMID, [1 << 32, 0, 0, 0]), None);
        assert_eq!(bad(FAULT_DONE, [0, 0, 2, 0]), None);
        assert_eq!(bad(ADD_QUEUE, [0, 0, 3, 0]), None);
        assert_eq!(bad(UPDATE_QUEUE, [0, 0, 0, u64::MAX]), None);
    }
}
