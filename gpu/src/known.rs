// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs in AMD's instruction set that are known as a whole, by a digest of their code: those with which runtimes copy and fill.
//!
//! The HSA runtime copies every code object into GPU memory with one of its own ([`hsa`]), also for programs that launch no kernel: without
//! it nothing above the runtime starts. HIP copies within a GPU and fills memory with six of its own ([`hip`]), which it compiles when it
//! starts; the compiler makes the same code each time. They are not interpreted; what they do follows from their code, once read, and from
//! their arguments, which are checked. A program that differs in one bit is not known, and its dispatch halts the queue as any other's:
//! names are not looked at.
//!
//! The code is that of ROCR 5.2.3 for gfx9 and gfx10, and of HIP 5.2.3 (compiled by LLVM 15.0.6, as in Debian 12) for gfx900, gfx90a
//! and gfx1030. An entry is added by computing [`digest`] of the code of another version, from its first instruction to the one that ends
//! it, after reading that code. Who makes another program with the digest of one of these, which is not hard, is wrong about that program only.

use crate::access::{Port, Stop};
use crate::queue::QueueError;

mod hip;
mod hsa;

/// Where a kernel object, of either form, says how far its code is from it.
const ENTRY_OFFSET: u64 = 16;
/// The instruction that ends a program.
const END: [u8; 4] = 0xbf81_0000_u32.to_le_bytes();
/// Longest program that is looked at, in bytes.
const MAX_CODE: usize = 1024;
/// Bytes that a fill writes at a time; no pattern may be longer.
const FILL: usize = 64 << 10;

/// Digest and length of each program's code.
const KNOWN: [(u64, usize, Program); 23] = [
    // gfx9
    (0xc9ed_7ddd_e0f2_82c7, 496, Program::Hsa(hsa::Program::CopyAligned)),
    (0x7625_bfdd_9a90_794d, 412, Program::Hsa(hsa::Program::CopyMisaligned)),
    (0xc3fd_25e8_e46c_95f0, 188, Program::Hsa(hsa::Program::Fill)),
    // gfx10
    (0x100e_f5cb_91f1_2135, 500, Program::Hsa(hsa::Program::CopyAligned)),
    (0x8fe4_ca08_f257_9c2b, 416, Program::Hsa(hsa::Program::CopyMisaligned)),
    (0x4ed0_8360_03ce_8f92, 192, Program::Hsa(hsa::Program::Fill)),
    // gfx900; the second is gfx90a's as well
    (0xd4de_aa21_8fe8_dc7f, 368, Program::Hip(hip::Program::Copy)),
    (0x646d_02dd_c57d_5c99, 260, Program::Hip(hip::Program::CopyElements)),
    (0x668e_76ad_3ffa_99c2, 388, Program::Hip(hip::Program::CopyRect)),
    (0x4a04_a7b0_f7a1_5418, 488, Program::Hip(hip::Program::CopyRectElements)),
    (0xd4b0_93f0_62e0_b07d, 592, Program::Hip(hip::Program::Fill)),
    (0xe221_d621_3f95_3caa, 632, Program::Hip(hip::Program::FillRect)),
    // gfx90a
    (0xbc31_2ab1_05b0_bb83, 368, Program::Hip(hip::Program::Copy)),
    (0x7925_1f8b_c530_69e0, 404, Program::Hip(hip::Program::CopyRect)),
    (0xeecf_20c0_ca9a_6727, 500, Program::Hip(hip::Program::CopyRectElements)),
    (0xfe94_ff10_dcd4_4b17, 608, Program::Hip(hip::Program::Fill)),
    (0xb64b_d84c_356f_da3c, 648, Program::Hip(hip::Program::FillRect)),
    // gfx1030
    (0xe8cb_a5df_d0b7_d073, 392, Program::Hip(hip::Program::Copy)),
    (0x9dfa_c4bc_f577_3057, 272, Program::Hip(hip::Program::CopyElements)),
    (0x54a3_5301_a6c7_9745, 404, Program::Hip(hip::Program::CopyRect)),
    (0x3fad_6abe_bbe3_c28f, 504, Program::Hip(hip::Program::CopyRectElements)),
    (0x8808_ac41_8f05_3931, 604, Program::Hip(hip::Program::Fill)),
    (0xc761_18d2_bcd0_7a1f, 664, Program::Hip(hip::Program::FillRect)),
];

/// Whose program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// The HSA runtime's.
    Hsa(hsa::Program),
    /// HIP's.
    Hip(hip::Program),
}

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
    /// Does what the program does with the arguments at `kernarg`, for `grid` work-items in each dimension.
    pub(crate) fn run(self, port: &mut Port, kernarg: u64, grid: [u32; 3]) -> Result<(), Stop> {
        match self {
            Program::Hsa(program) => program.run(port, kernarg),
            Program::Hip(program) => program.run(port, kernarg, grid),
        }
    }
}

/// `N` words of arguments.
fn arguments<const N: usize>(port: &mut Port, kernarg: u64) -> Result<[u64; N], Stop> {
    let mut words = [0; N];
    for (word, index) in words.iter_mut().zip(0..) {
        let mut bytes = [0; 8];
        port.read(kernarg.wrapping_add(8 * index), &mut bytes)?;
        *word = u64::from_le_bytes(bytes);
    }
    Ok(words)
}

/// Writes `pattern` over and over, `bytes` long.
fn fill(port: &mut Port, start: u64, bytes: u64, pattern: &[u8]) -> Result<(), Stop> {
    let whole: Vec<u8> = pattern.repeat(FILL / pattern.len().max(1));
    let mut done = 0;
    while done < bytes && !whole.is_empty() {
        let part = usize::try_from(bytes - done).map_or(whole.len(), |left| left.min(whole.len()));
        port.write(start.wrapping_add(done), whole.get(..part).unwrap_or_default())?;
        done += part as u64;
    }
    Ok(())
}

fn bad(kernarg: u64, message: &'static str) -> Stop {
    QueueError::BadArguments { kernarg, message }.into()
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
}
