// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The SDMA packet processor.
//!
//! Packets are those of `vega10_sdma_pkt_open.h`, `navi10_sdma_pkt_open.h` and
//! `sdma_v6_0_0_pkt_open.h`. Implemented: NOP, COPY_LINEAR (also broadcast),
//! COPY_LINEAR_SUB_WINDOW ([`sub_window`]), WRITE_LINEAR, INDIRECT, FENCE, TRAP, POLL_REGMEM on
//! memory, COND_EXE, ATOMIC, CONST_FILL, TIMESTAMP, and GCR_REQ from gfx10 on. Everything else
//! halts the queue, register accesses included: there are no registers.
//!
//! A difference of generations: the count of a linear copy has 22 bits on gfx9 and gfx10, and 30 on
//! MI200 and gfx11. All 30 are used, because the other eight were reserved. A poll never gives up,
//! whatever its retry count.

use crate::base::clock::{clock, nanoseconds};
use crate::base::queue_error::{QueueError, Stop};
use crate::packets::poll;
use crate::packets::stream::{Stream, Words};
use crate::packets::sub_window;
use crate::state::access::Port;
use crate::state::config::Family;
use crate::state::timeline::{Record, Span};

mod op {
    pub const NOP: u32 = 0;
    pub const COPY: u32 = 1;
    pub const WRITE: u32 = 2;
    pub const INDIRECT: u32 = 4;
    pub const FENCE: u32 = 5;
    pub const TRAP: u32 = 6;
    pub const POLL_REGMEM: u32 = 8;
    pub const COND_EXE: u32 = 9;
    pub const ATOMIC: u32 = 10;
    pub const CONST_FILL: u32 = 11;
    pub const TIMESTAMP: u32 = 13;
    pub const GCR_REQ: u32 = 17;
}

/// The sub-opcode of a copy from a box to a box.
const SUB_WINDOW: u32 = 4;
/// Words of pattern that a fill writes at a time.
const PATTERN_WORDS: usize = 4096;

/// State of an SDMA queue.
pub(crate) struct Sdma {
    family: Family,
    /// Bytes processed.
    rptr: u64,
    pattern: Vec<u8>,
}

impl Sdma {
    /// Begins at byte `start`.
    pub(crate) fn new(family: Family, start: u64) -> Sdma {
        Sdma { family, rptr: start, pattern: vec![0; PATTERN_WORDS * 4] }
    }

    /// The doorbell that says that all packets before it are done.
    pub(crate) fn done(&self) -> Option<u64> {
        Some(self.rptr)
    }

    /// Processes one packet of the ring; false if there is none, or not the whole of it.
    pub(crate) fn step(&mut self, port: &mut Port) -> Result<bool, Stop> {
        let wptr = port.control.doorbell.load()?;
        let ring = port.ring();
        let pending = wptr.wrapping_sub(self.rptr);
        if pending == 0 {
            return Ok(false);
        }
        if pending > ring.bytes || wptr % 4 != 0 {
            return Err(QueueError::BadDoorbell { doorbell: wptr, rptr: self.rptr, ring_bytes: ring.bytes }.into());
        }
        let offset = self.rptr & (ring.bytes - 1);
        let stream = Stream { va: ring.va, pos: self.rptr, end: wptr, wrap: Some(ring.bytes), offset };
        let begun = nanoseconds();
        let packet = self.packet(port, stream);
        port.shared.vmid_of(&port.control).copying.add_since(begun);
        let Some(words) = packet? else {
            return Ok(false);
        };
        self.rptr = self.rptr.wrapping_add(words * 4);
        if port.control.rptr_va != 0 {
            port.store_u64(port.control.rptr_va, self.rptr)?;
        }
        Ok(true)
    }

    /// Executes the packet at the start of `stream`; returns its length in words, or `None` if the
    /// ring does not hold all of it yet.
    fn packet(&mut self, port: &mut Port, stream: Stream) -> Result<Option<u64>, Stop> {
        let words = stream.fetch(port, 0)?;
        let header = words.get(0);
        let (op, sub_op) = (header & 0xff, header >> 8 & 0xff);
        let known: u64 = match (op, sub_op) {
            (op::NOP, _) => 1 + u64::from(header >> 16 & 0x3fff),
            (op::COPY, 0) if header >> 27 & 1 != 0 => 9,
            (op::COPY, 0) => 7,
            (op::COPY, SUB_WINDOW) => sub_window::WORDS,
            // The data follow; their number is in word 3.
            (op::WRITE, 0) if stream.left() < 16 => 4,
            (op::WRITE, 0) => 4 + u64::from(words.get(3) & 0xf_ffff) + 1,
            (op::INDIRECT, _) if stream.wrap.is_some() => 6,
            (op::INDIRECT, _) => return Err(stream.bad("INDIRECT within an indirect buffer".into())),
            (op::FENCE, 0) => 4,
            (op::TRAP, 0) => 2,
            (op::POLL_REGMEM, 0) => 6,
            (op::COND_EXE, 0) => 5,
            (op::ATOMIC, 0) => 8,
            (op::CONST_FILL, 0) => 5,
            (op::TIMESTAMP, 1 | 2) => 3,
            (op::GCR_REQ, 0 | 1) if self.family >= Family::Gfx10 => 5,
            _ => {
                let message =
                    format!("opcode {op:#x} with sub-opcode {sub_op:#x} is not supported (header {header:#010x})");
                return Err(stream.bad(message));
            }
        };
        if !stream.holds(&format!("opcode {op:#x}"), known)? {
            return Ok(None);
        }
        let mut length = known;
        match op {
            op::COPY if sub_op == SUB_WINDOW => {
                let begun = port.timed();
                let bytes = sub_window::copy(port, &stream, &words)?;
                recorded(port, begun, bytes, "copy of a window");
            }
            op::COPY => {
                let begun = port.timed();
                let count = u64::from(words.get(1) & 0x3fff_ffff) + 1;
                port.copy(words.wide(5), words.wide(3), count)?;
                if known == 9 {
                    port.copy(words.wide(7), words.wide(3), count)?;
                }
                recorded(port, begun, count, "copy");
            }
            op::WRITE => {
                let (begun, bytes) = (port.timed(), (known - 4) * 4);
                stream.copy_out(port, 16, words.wide(1), bytes)?;
                recorded(port, begun, bytes, "write");
            }
            op::INDIRECT => self.indirect(port, &stream, &words)?,
            op::FENCE => port.store_u32(words.wide(1), words.get(3))?,
            op::TRAP => port.signal_event(words.get(1) & 0x0fff_ffff),
            op::POLL_REGMEM => poll_regmem(port, &stream, &words)?,
            op::COND_EXE => {
                let skipped = u64::from(words.get(4) & 0x3fff);
                if port.load_u32(words.wide(1))? != words.get(3) {
                    length += skipped;
                    if length * 4 > stream.left() {
                        return Err(stream.bad(format!("COND_EXE skips {skipped} words, more than were submitted")));
                    }
                }
            }
            op::ATOMIC => atomic(port, &stream, &words)?,
            op::CONST_FILL => self.fill(port, &stream, &words)?,
            op::TIMESTAMP => port.store_u64(words.wide(1), clock())?,
            // NOP; GCR_REQ flushes caches, of which there are none.
            _ => {}
        }
        Ok(Some(length))
    }

    fn indirect(&mut self, port: &mut Port, stream: &Stream, words: &Words) -> Result<(), Stop> {
        let va = words.wide(1);
        if va % 32 != 0 {
            return Err(stream.bad(format!("indirect buffer at GPU address {va:#x} is not aligned to 32 bytes")));
        }
        let end = u64::from(words.get(3) & 0xf_ffff) * 4;
        let mut inner = Stream::indirect(va, end, stream.offset);
        while inner.left() > 0 {
            port.check_removed()?;
            // A buffer never yields "not yet": a packet that leaves it is an error.
            let length = self.packet(port, inner)?.unwrap_or(1);
            inner.pos += length * 4;
        }
        Ok(())
    }

    /// CONST_FILL. The count names the last element: its byte (fill size 0) or the first byte of
    /// its word (fill size 2). The pattern is the 32-bit data word, from the destination on, in
    /// both cases, as amdgpu uses it.
    fn fill(&mut self, port: &mut Port, stream: &Stream, words: &Words) -> Result<(), Stop> {
        let count = u64::from(words.get(4) & 0x3fff_ffff);
        let mut left = match words.get(0) >> 30 {
            0 => count + 1,
            2 => (count & !3) + 4,
            size => return Err(stream.bad(format!("CONST_FILL with fill size {size}"))),
        };
        let (begun, all) = (port.timed(), left);
        for word in self.pattern.chunks_exact_mut(4) {
            word.copy_from_slice(&words.get(3).to_le_bytes());
        }
        let mut va = words.wide(1);
        while left > 0 {
            let piece = usize::try_from(left).map_or(self.pattern.len(), |left| left.min(self.pattern.len()));
            port.write(va, self.pattern.get(..piece).unwrap_or_default())?;
            va = va.wrapping_add(piece as u64);
            left -= piece as u64;
        }
        recorded(port, begun, all, "fill");
        Ok(())
    }
}

/// Records a packet that has taken since `begun`, if that is wanted.
fn recorded(port: &Port, begun: Option<u64>, bytes: u64, what: &str) {
    if let (Some(timeline), Some(begun)) = (&port.shared.config.timeline, begun) {
        timeline.add(Record::Copy { track: port.track(), span: Span::since(begun), bytes, what });
    }
}

/// POLL_REGMEM. A register poll that is always true is how the HDP flush is spelt, and there is
/// nothing to flush.
fn poll_regmem(port: &mut Port, stream: &Stream, words: &Words) -> Result<(), Stop> {
    let header = words.get(0);
    let function = header >> 28 & 7;
    let (hdp_flush, memory) = (header >> 26 & 1 != 0, header >> 31 != 0);
    if !memory {
        return if hdp_flush || function == 0 { Ok(()) } else { Err(stream.bad("POLL_REGMEM on a register".into())) };
    }
    let (va, reference, mask) = (words.wide(1), words.get(3), words.get(4));
    let Some(holds) = poll::comparison(function) else {
        return Err(stream.bad(format!("POLL_REGMEM with function {function}")));
    };
    poll::wait(port, holds, va, reference, mask)
}

/// ATOMIC. Operations are the TC_OP_ATOMIC_*_RTN codes: 32-bit ones, and 64-bit ones 0x20 above.
/// The old value is not returned anywhere. A compare-and-swap with the loop bit repeats until it
/// succeeds.
fn atomic(port: &mut Port, stream: &Stream, words: &Words) -> Result<(), Stop> {
    let (header, va) = (words.get(0), words.wide(1));
    let operation = header >> 25;
    let (data, compare) = (words.wide(3), words.wide(5));
    let repeat = header >> 16 & 1 != 0;
    match operation {
        0x2f => port.add_u64(va, data).map(|_| ()),
        0x28 => port.poll(|port| {
            let old = port.update_u64(va, |old| if old == compare { data } else { old })?;
            Ok(old == compare || !repeat)
        }),
        0x08 => {
            let (data, compare) = (words.get(3), words.get(5));
            port.poll(|port| {
                let old = port.update_u32(va, |old| if old == compare { data } else { old })?;
                Ok(old == compare || !repeat)
            })
        }
        _ => match (alu::<u32>(operation), alu::<u64>(operation.wrapping_sub(0x20))) {
            (Some(f), _) => port.update_u32(va, |old| f(old, words.get(3))).map(|_| ()),
            (_, Some(f)) => port.update_u64(va, |old| f(old, data)).map(|_| ()),
            _ => Err(stream.bad(format!("ATOMIC with operation {operation:#x}"))),
        },
    }
}

/// The integers that SDMA atomics work on.
trait Word:
    Ord + Copy + std::ops::BitAnd<Output = Self> + std::ops::BitOr<Output = Self> + std::ops::BitXor<Output = Self>
{
    const ZERO: Self;
    fn add(self, by: Self) -> Self;
    fn sub(self, by: Self) -> Self;
    fn increment(self) -> Self;
    fn signed_less(self, other: Self) -> bool;
}

macro_rules! word {
    ($type:ty, $signed:ty) => {
        impl Word for $type {
            const ZERO: Self = 0;
            fn add(self, by: Self) -> Self {
                self.wrapping_add(by)
            }
            fn sub(self, by: Self) -> Self {
                self.wrapping_sub(by)
            }
            fn increment(self) -> Self {
                self.wrapping_add(1)
            }
            fn signed_less(self, other: Self) -> bool {
                (self as $signed) < (other as $signed)
            }
        }
    };
}
word!(u32, i32);
word!(u64, i64);

/// The function (old, operand) of a 32-bit operation code.
fn alu<T: Word>(operation: u32) -> Option<fn(T, T) -> T> {
    Some(match operation {
        0x07 => |_, data| data,
        0x0f => T::add,
        0x10 => T::sub,
        0x11 => |old: T, data| if old.signed_less(data) { old } else { data },
        0x12 => |old: T, data| old.min(data),
        0x13 => |old: T, data| if old.signed_less(data) { data } else { old },
        0x14 => |old: T, data| old.max(data),
        0x15 => |old, data| old & data,
        0x16 => |old, data| old | data,
        0x17 => |old, data| old ^ data,
        0x18 => |old: T, data| {
            if old >= data {
                T::ZERO
            } else {
                old.increment()
            }
        },
        0x19 => |old: T, data| {
            if old == T::ZERO || old > data {
                data
            } else {
                old.sub(T::ZERO.increment())
            }
        },
        _ => return None,
    })
}
