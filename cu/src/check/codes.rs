// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Decoded instructions by their addresses: a loop runs them again and again. The words in memory
//! are compared each time, so that code which changes is seen.

use super::seen::{fetch_words, Seen};
use crate::exit::Exit;
use crate::reference;
use crate::wave::Wave;
use crate::world::World;
use vkfd_isa::{Inst, MAX_WORDS};
use vkfd_lint::live::Code;

/// Instructions that are kept.
const KEPT: usize = 1024;

struct Kept {
    pc: u64,
    lanes: u8,
    words: [u32; MAX_WORDS],
    inst: Inst,
    /// As the check of waits sees it.
    code: Option<Code>,
}

/// The instructions.
pub(super) struct Codes(Vec<Option<Kept>>);

fn slot(pc: u64) -> usize {
    usize::try_from(pc / 4).unwrap_or(0) % KEPT
}

impl Codes {
    pub(super) fn new() -> Codes {
        Codes((0..KEPT).map(|_| None).collect())
    }

    /// A wave's next instruction, and its words.
    pub(super) fn fetch<W: World>(&mut self, wave: &Wave, world: &mut W) -> Result<(Inst, [u32; MAX_WORDS]), Exit> {
        let pc = wave.pc;
        let Some(kept) = self.0.get_mut(slot(pc)) else { return Err(Exit::Yield) };
        if let Some(Kept { words, inst, .. }) = kept.as_ref().filter(|kept| (kept.pc, kept.lanes) == (pc, wave.lanes)) {
            let mut now = [0; MAX_WORDS];
            fetch_words(inst.bytes.into(), pc, world, &mut now);
            if now == *words {
                return Ok((*inst, now));
            }
        }
        let inst = reference::fetch(wave, world)?;
        let mut words = [0; MAX_WORDS];
        fetch_words(inst.bytes.into(), pc, world, &mut words);
        *kept = Some(Kept { pc, lanes: wave.lanes, words, inst, code: None });
        Ok((inst, words))
    }

    /// The instruction that was fetched last at an address, as the check of waits sees it.
    pub(super) fn code(&mut self, seen: &Seen<'_>) -> Option<&Code> {
        let kept = self.0.get_mut(slot(seen.pc))?.as_mut()?;
        let Kept { lanes, words, inst, code, .. } = kept;
        Some(code.get_or_insert_with(|| Code::new(seen.target, *lanes, seen.offset(), words, inst)))
    }
}
