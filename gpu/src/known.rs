// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs in AMD's instruction set that are known as a whole, by a digest of their code: three of the HSA runtime's own.
//!
//! The runtime copies every code object into GPU memory with one of them, and fills memory with another, also for programs that launch no
//! kernel: without them nothing above the runtime starts. They are not interpreted; what they do follows from their arguments, which are
//! checked. A program that differs in one bit is not known, and its dispatch halts the queue as any other's.
//!
//! The code is that of ROCR 5.2.3 for gfx9 and gfx10. An entry is added by computing [`digest`] of the code of another version.

use crate::access::{Port, Stop};
use crate::queue::QueueError;

/// Where a kernel object, of either form, says how far its code is from it.
const ENTRY_OFFSET: u64 = 16;
/// The instruction that ends a program.
const END: [u8; 4] = 0xbf81_0000_u32.to_le_bytes();
/// Longest program that is looked at, in bytes.
const MAX_CODE: usize = 1024;
/// Bytes of pattern that a fill writes at a time.
const PATTERN: usize = 4096;

/// What a known program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Copies whole words, in four phases: words a lane, then the rest.
    CopyAligned,
    /// Copies bytes, in two phases.
    CopyMisaligned,
    /// Fills whole words, in two phases.
    Fill,
}

/// Digest and length of each program's code.
const KNOWN: [(u64, usize, Program); 6] = [
    (0xc9ed_7ddd_e0f2_82c7, 496, Program::CopyAligned),
    (0x7625_bfdd_9a90_794d, 412, Program::CopyMisaligned),
    (0xc3fd_25e8_e46c_95f0, 188, Program::Fill),
    (0x100e_f5cb_91f1_2135, 500, Program::CopyAligned),
    (0x8fe4_ca08_f257_9c2b, 416, Program::CopyMisaligned),
    (0x4ed0_8360_03ce_8f92, 192, Program::Fill),
];

/// FNV-1a of 64 bits.
fn digest(code: &[u8]) -> u64 {
    code.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn identify(code: &[u8]) -> Option<Program> {
    let end = code.chunks_exact(4).position(|word| word == END)? * 4 + 4;
    let found = (digest(code.get(..end)?), end);
    KNOWN.iter().find(|known| (known.0, known.1) == found).map(|known| known.2)
}

/// The program behind a kernel object, if it is known. Does not fault.
pub(crate) fn find(port: &mut Port, object: u64) -> Result<Option<Program>, Stop> {
    let mut entry = [0; 8];
    if !port.peek(object.wrapping_add(ENTRY_OFFSET), &mut entry)? {
        return Ok(None);
    }
    let at = object.wrapping_add(u64::from_le_bytes(entry));
    let mut code = [0; MAX_CODE];
    // As far as it is mapped: what follows a program need not be.
    for (index, part) in code.chunks_exact_mut(64).enumerate() {
        if !port.peek(at.wrapping_add(64 * index as u64), part)? {
            break;
        }
    }
    Ok(identify(&code))
}

impl Program {
    /// Does what the program does with the arguments at `kernarg`.
    pub(crate) fn run(self, port: &mut Port, kernarg: u64) -> Result<(), Stop> {
        let mut bytes = [0; 80];
        port.read(kernarg, &mut bytes)?;
        let mut words = [0; 10];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = chunk.try_into().map(u64::from_le_bytes).unwrap_or(0);
        }
        let bad =
            || QueueError::BadArguments { kernarg, message: "the phases of a copy or fill do not follow each other" };
        match self {
            // Pairs of source and destination: where each phase begins, and where the last ends.
            Program::CopyAligned | Program::CopyMisaligned => {
                let pairs = if self == Program::CopyAligned { words.len() } else { 6 };
                let (src, dst, length) = whole(words.get(..pairs).unwrap_or_default()).ok_or_else(bad)?;
                port.copy(dst, src, length)?;
            }
            Program::Fill => {
                let [start, second, end, value, ..] = words;
                if start > second || second > end || (end - start) % 4 != 0 {
                    return Err(bad().into());
                }
                let [a, b, c, d, ..] = value.to_le_bytes();
                let pattern: Vec<u8> = [a, b, c, d].into_iter().cycle().take(PATTERN).collect();
                let mut at = start;
                while at < end {
                    let part = usize::try_from(end - at).map_or(PATTERN, |left| left.min(PATTERN));
                    port.write(at, pattern.get(..part).unwrap_or_default())?;
                    at += part as u64;
                }
            }
        }
        Ok(())
    }
}

/// Source, destination and length of a copy whose phases begin and end at `pairs`. `None` if these do not go up together.
fn whole(pairs: &[u64]) -> Option<(u64, u64, u64)> {
    let ([src, dst], mut length) = (*pairs.first_chunk::<2>()?, 0);
    for pair in pairs.chunks_exact(2) {
        let (from, to) = (pair[0].checked_sub(src)?, pair[1].checked_sub(dst)?);
        if from != to || from < length {
            return None;
        }
        length = from;
    }
    Some((src, dst, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_makes_another_program() {
        let code: Vec<u8> = [1u32, 2, 3, 0xbf81_0000, 9].iter().flat_map(|word| word.to_le_bytes()).collect();
        let known = digest(&code[..16]);
        for bit in 0..128 {
            let mut other = code.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(digest(&other[..16]), known, "bit {bit}");
        }
        assert_eq!(identify(&code), None);
        assert_eq!(identify(&[]), None);
    }

    #[test]
    fn phases_follow_each_other() {
        assert_eq!(whole(&[100, 500, 140, 540, 140, 540, 141, 541]), Some((100, 500, 41)));
        assert_eq!(whole(&[100, 500]), Some((100, 500, 0)));
        for wrong in [&[100, 500, 140, 541][..], &[100, 500, 140, 540, 130, 530], &[100, 500, 99, 499], &[]] {
            assert_eq!(whole(wrong), None, "{wrong:?}");
        }
    }
}
