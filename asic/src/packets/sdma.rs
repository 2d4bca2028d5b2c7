// SPDX-License-Identifier: GPL-2.0 OR MIT
//! SDMA packets of the driver's own rings.
//!
//! Packets are those of `vega10_sdma_pkt_open.h`. Programs' queues run on the GPU's packet
//! processor; these rings have what programs must not: registers, and entries of page tables.

use super::{holds, is_whole, PacketError, Processor, Step, Words};
use crate::interrupts::{client, source, Interrupt};
use crate::queues::user::space;
use crate::ring::{Buffer, Ring};

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
    pub const PTEPDE: u32 = 12;
    pub const TIMESTAMP: u32 = 13;
    pub const SRBM_WRITE: u32 = 14;
}

fn op_name(op: u32, sub: u32) -> String {
    let name = match op {
        op::NOP => "NOP",
        op::COPY => "COPY",
        op::WRITE => "WRITE",
        op::INDIRECT => "INDIRECT",
        op::FENCE => "FENCE",
        op::TRAP => "TRAP",
        op::POLL_REGMEM => "POLL_REGMEM",
        op::COND_EXE => "COND_EXE",
        op::ATOMIC => "ATOMIC",
        op::CONST_FILL => "CONST_FILL",
        op::PTEPDE => "PTEPDE",
        op::TIMESTAMP => "TIMESTAMP",
        op::SRBM_WRITE => "SRBM_WRITE",
        _ => return format!("SDMA {op:#x}.{sub:#x}"),
    };
    if sub == 0 {
        format!("SDMA {name}")
    } else {
        format!("SDMA {name}.{sub:#x}")
    }
}

/// The operation of ATOMIC that adds 64 bits.
const ADD64: u32 = 0x2f;

fn bad<T>(message: String) -> Result<T, PacketError> {
    Err(PacketError::Bad(message))
}

impl Processor {
    /// Executes the packet at a ring's read pointer.
    pub(crate) fn sdma(&mut self, ring: &mut Ring, engine: usize) -> Result<Step, PacketError> {
        let words = self.words(ring)?;
        let header = words.get(0);
        let (op, sub) = (header & 0xff, header >> 8 & 0xff);
        let length: u64 = match (op, sub) {
            (op::NOP, _) => 1 + u64::from(header >> 16 & 0x3fff),
            (op::COPY, 0) => 7,
            (op::WRITE, 0) if ring.available() < 4 => 4,
            (op::WRITE, 0) => 4 + u64::from(words.get(3) & 0xf_ffff) + 1,
            (op::INDIRECT, 0) => 6,
            (op::FENCE, 0) => 4,
            (op::TRAP, 0) => 2,
            (op::POLL_REGMEM, 0) => 6,
            (op::COND_EXE, 0) => 5,
            (op::ATOMIC, 0) => 8,
            (op::CONST_FILL, 0) => 5,
            (op::PTEPDE, 0) => 10,
            (op::TIMESTAMP, 1 | 2) => 3,
            (op::SRBM_WRITE, 0) => 3,
            _ => return bad(format!("{} is not supported (header {header:#010x})", op_name(op, sub))),
        };
        if !is_whole(ring, length)? {
            return Ok(Step::Empty);
        }
        if !ring.wrote {
            self.count(&op_name(op, sub));
        }
        let space = ring.space();
        match op {
            op::COPY => {
                let bytes = u64::from(words.get(1) & 0x3fff_ffff) + 1;
                self.copy(space, words.wide(5), words.wide(3), bytes)?;
            }
            op::WRITE => {
                let data = (4..length).map(|index| self.word(ring, index)).collect::<Result<Vec<_>, _>>()?;
                self.store_words(space, words.wide(1), &data)?;
            }
            op::INDIRECT => return self.indirect_copy(ring, &words, length),
            op::FENCE => self.store(space, words.wide(1), words.get(3))?,
            op::TRAP => {
                let client = client::SDMA.get(engine).copied().unwrap_or_default();
                let data = [words.get(1) & 0x0fff_ffff, 0, 0, 0];
                self.shared.interrupt(&Interrupt { client, source: source::TRAP, data, ..Interrupt::default() });
            }
            op::POLL_REGMEM if !self.poll_regmem(ring, &words)? => return Ok(Step::Wait),
            op::COND_EXE if self.load(space, words.wide(1))? != words.get(3) => {
                let skipped = u64::from(words.get(4) & 0x3fff);
                return match is_whole(ring, length + skipped)? {
                    true => Ok(Step::Done(length + skipped)),
                    false => Ok(Step::Empty),
                };
            }
            op::ATOMIC => {
                let operation = header >> 25;
                if operation != ADD64 {
                    return bad(format!("ATOMIC with operation {operation:#x}"));
                }
                let view = self.view(space)?;
                let sum = view.load_u64(words.wide(1))?.wrapping_add(words.wide(3));
                view.store_u64(words.wide(1), sum)?;
            }
            op::CONST_FILL => self.fill(ring, &words)?,
            op::PTEPDE => self.generate_entries(ring, &words)?,
            op::TIMESTAMP => self.store_clock(space, words.wide(1))?,
            op::SRBM_WRITE => self.write_register(words.get(1) & 0x3_ffff, words.get(2)),
            // NOP, and a condition that holds.
            _ => {}
        }
        Ok(Step::Done(length))
    }

    fn indirect_copy(&mut self, ring: &mut Ring, words: &Words, length: u64) -> Result<Step, PacketError> {
        if ring.buffer.is_some() {
            return bad("INDIRECT within an indirect buffer".into());
        }
        let own = u8::try_from(words.get(0) >> 16 & 0xf).unwrap_or(0);
        let buffer = Buffer {
            vmid: space(own, true),
            va: words.wide(1) & !31,
            words: u64::from(words.get(3) & 0xf_ffff),
            done: 0,
        };
        ring.advance(length);
        ring.buffer = (buffer.words != 0).then_some(buffer);
        Ok(Step::Done(0))
    }

    /// POLL_REGMEM. The form for the host data path writes a register and waits for another.
    fn poll_regmem(&mut self, ring: &mut Ring, words: &Words) -> Result<bool, PacketError> {
        let header = words.get(0);
        let (function, flush, in_memory) = (header >> 28 & 7, header >> 26 & 1 != 0, header >> 31 != 0);
        let (reference, mask) = (words.get(3), words.get(4));
        let register = |index: usize| words.get(index) >> 2 & 0x3_ffff;
        let value = if in_memory {
            self.load(ring.space(), words.wide(1) & !3)?
        } else {
            if flush && !ring.wrote {
                self.write_register(register(2), reference);
            }
            self.read_register(register(1))
        };
        match holds(function, value & mask, reference) {
            Some(holds) => {
                ring.wrote = !holds;
                Ok(holds)
            }
            None => bad(format!("POLL_REGMEM with function {function}")),
        }
    }

    /// CONST_FILL, of bytes (fill size 0) or words (fill size 2); the count names the last one's
    /// begin.
    fn fill(&mut self, ring: &Ring, words: &Words) -> Result<(), PacketError> {
        let count = u64::from(words.get(4) & 0x3fff_ffff);
        let bytes = match words.get(0) >> 30 {
            0 => count + 1,
            2 => (count & !3) + 4,
            size => return bad(format!("CONST_FILL with fill size {size}")),
        };
        let pattern: Vec<u8> = words.get(3).to_le_bytes().repeat(1024);
        let (va, space) = (words.wide(1), ring.space());
        let mut done = 0;
        while done < bytes {
            let length = usize::try_from(bytes - done).map_or(pattern.len(), |left| left.min(pattern.len()));
            self.view(space)?.write(va.wrapping_add(done), pattern.get(..length).unwrap_or_default())?;
            done += length as u64;
        }
        Ok(())
    }

    /// PTEPDE: entries of a table that follow each other at equal distances.
    fn generate_entries(&mut self, ring: &Ring, words: &Words) -> Result<(), PacketError> {
        let (va, flags, first, step) = (words.wide(1), words.wide(3), words.wide(5), words.wide(7));
        let count = u64::from(words.get(9) & 0x7_ffff) + 1;
        for index in 0..count {
            let entry = first.wrapping_add(step.wrapping_mul(index)) | flags;
            self.store_wide(ring.space(), va.wrapping_add(index * 8), entry)?;
        }
        Ok(())
    }
}
