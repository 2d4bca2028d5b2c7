// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Interrupts: what the device reports, and how that is written into an entry of the ring.
//!
//! The driver decodes a copy of the entry and believes nothing: what makes no sense is no interrupt
//! ([`Interrupt::decode`]).

use vkfd_driver::base::addr::{page_start, GpuVa};
use vkfd_driver::seams::gpu::{FaultReason, HwQueue, PageFault, Vmid};

/// Words of an entry.
pub const WORDS: usize = 32;
/// Words before the message.
const HEAD: usize = 4;
/// Longest message in bytes.
pub const MESSAGE_BYTES: usize = (WORDS - HEAD) * 8;

/// An entry as it stands in the ring.
pub type Words = [u64; WORDS];

const PAGE_FAULT: u64 = 1;
const SIGNAL_EVENT: u64 = 2;
const QUEUE_ERROR: u64 = 3;

const WRITE: u64 = 1 << 0;
const RETRY: u64 = 1 << 1;
const REASON_SHIFT: u32 = 8;

/// Text of bounded length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    bytes: [u8; MESSAGE_BYTES],
    len: usize,
}

impl Message {
    /// The beginning of `text`, as far as it fits.
    pub fn new(text: &str) -> Self {
        let mut len = text.len().min(MESSAGE_BYTES);
        while !text.is_char_boundary(len) {
            len = len.saturating_sub(1);
        }
        let mut bytes = [0; MESSAGE_BYTES];
        for (to, from) in bytes.iter_mut().zip(text.as_bytes().iter().take(len)) {
            *to = *from;
        }
        Self { bytes, len }
    }

    /// The text, up to the first byte that is no text.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..self.len).unwrap_or_default();
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => bytes.get(..e.valid_up_to()).and_then(|good| core::str::from_utf8(good).ok()).unwrap_or_default(),
        }
    }
}

/// What the device reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant)] // lives on the stack for a moment
pub enum Interrupt {
    /// An access faulted.
    Fault(PageFault),
    /// A packet asked to signal an event.
    Event { vmid: Vmid, event: u32 },
    /// A queue stopped on something it cannot execute.
    Error { vmid: Vmid, queue: HwQueue, message: Message },
}

fn pair(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn halves(word: u64) -> (u32, u32) {
    let low = word & u64::from(u32::MAX);
    // Both fit after the mask and the shift.
    (u32::try_from(word >> 32).unwrap_or(0), u32::try_from(low).unwrap_or(0))
}

impl Interrupt {
    /// As words.
    pub fn encode(&self) -> Words {
        let mut words = [0; WORDS];
        match self {
            Self::Fault(fault) => {
                let reason: u64 = match fault.reason {
                    FaultReason::NotPresent => 0,
                    FaultReason::Permission => 1,
                    FaultReason::Stale => 2,
                    FaultReason::NoMemory => 3,
                };
                let write = if fault.write { WRITE } else { 0 };
                let retry = if fault.retry { RETRY } else { 0 };
                words[0] = PAGE_FAULT;
                words[1] = pair(fault.vmid.0, fault.queue.0);
                words[2] = fault.va.0;
                words[3] = reason << REASON_SHIFT | write | retry;
            }
            Self::Event { vmid, event } => {
                words[0] = SIGNAL_EVENT;
                words[1] = pair(vmid.0, *event);
            }
            Self::Error { vmid, queue, message } => {
                words[0] = QUEUE_ERROR;
                words[1] = pair(vmid.0, queue.0);
                words[3] = message.len as u64;
                for (word, bytes) in words[HEAD..].iter_mut().zip(message.bytes.chunks_exact(8)) {
                    let mut buffer = [0; 8];
                    buffer.copy_from_slice(bytes);
                    *word = u64::from_le_bytes(buffer);
                }
            }
        }
        words
    }

    /// From words; `None` if they are no interrupt.
    pub fn decode(words: &Words) -> Option<Self> {
        let (high, low) = halves(words[1]);
        match words[0] {
            PAGE_FAULT => {
                let reason = match words[3] >> REASON_SHIFT {
                    0 => FaultReason::NotPresent,
                    1 => FaultReason::Permission,
                    2 => FaultReason::Stale,
                    3 => FaultReason::NoMemory,
                    _ => return None,
                };
                Some(Self::Fault(PageFault {
                    vmid: Vmid(high),
                    queue: HwQueue(low),
                    va: GpuVa(page_start(words[2])),
                    write: words[3] & WRITE != 0,
                    reason,
                    retry: words[3] & RETRY != 0,
                }))
            }
            SIGNAL_EVENT => Some(Self::Event { vmid: Vmid(high), event: low }),
            QUEUE_ERROR => {
                let len = usize::try_from(words[3]).ok().filter(|len| *len <= MESSAGE_BYTES)?;
                let mut bytes = [0; MESSAGE_BYTES];
                for (to, word) in bytes.chunks_exact_mut(8).zip(words.iter().skip(HEAD)) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
                Some(Self::Error { vmid: Vmid(high), queue: HwQueue(low), message: Message { bytes, len } })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        for reason in [FaultReason::NotPresent, FaultReason::Permission, FaultReason::Stale, FaultReason::NoMemory] {
            for bits in 0..4 {
                let fault = PageFault {
                    vmid: Vmid(255),
                    queue: HwQueue(u32::MAX - 1),
                    va: GpuVa(0x7fff_ffff_f000),
                    write: bits & 1 != 0,
                    reason,
                    retry: bits & 2 != 0,
                };
                assert_eq!(Interrupt::decode(&Interrupt::Fault(fault).encode()), Some(Interrupt::Fault(fault)));
            }
        }
        let event = Interrupt::Event { vmid: Vmid(3), event: 4095 };
        assert_eq!(Interrupt::decode(&event.encode()), Some(event));
        let long = "bad packet, größer ".repeat(40);
        for text in ["", "bad", "12345678", &long] {
            let error = Interrupt::Error { vmid: Vmid(3), queue: HwQueue(7), message: Message::new(text) };
            let Some(Interrupt::Error { message, .. }) = Interrupt::decode(&error.encode()) else { panic!("{text}") };
            assert!(text.starts_with(message.as_str()));
            assert!(message.as_str().len() > MESSAGE_BYTES - 4 || message.as_str() == text);
        }
    }

    #[test]
    fn nonsense_is_no_interrupt() {
        let mut words = [u64::MAX; WORDS];
        assert_eq!(Interrupt::decode(&words), None);
        for kind in [0, 4, u64::MAX - 1] {
            words[0] = kind;
            assert_eq!(Interrupt::decode(&words), None);
        }
        for kind in [PAGE_FAULT, QUEUE_ERROR] {
            words[0] = kind;
            assert_eq!(Interrupt::decode(&words), None, "a length or reason out of range");
        }
        // Text that is none: cut off, not a panic.
        words[3] = 100;
        let Some(Interrupt::Error { message, .. }) = Interrupt::decode(&words) else { panic!() };
        assert_eq!(message.as_str(), "");
    }
}
