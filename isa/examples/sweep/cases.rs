// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Words to compare: every encoding of a target, each operand with the values at which its meaning
//! changes, then random ones.

use vkfd_isa::{decode, encodings, BitField, Encoding, Target, MAX_WORDS};

/// Words of one instruction.
pub type Words = [u32; MAX_WORDS];

/// A generator of numbers (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn word(&mut self) -> u32 {
        let bytes = self.next().to_le_bytes();
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    pub fn below(&mut self, n: u32) -> u32 {
        self.word() % n.max(1)
    }
}

/// Where sources change their meaning: SGPRs, VCC, TTMPs, M0, EXEC, integers, apertures, floats,
/// extensions, literal, VGPRs.
const EDGES: [u32; 42] = [
    0, 1, 2, 3, 96, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 120, 123, 124, 125, 126, 127, 128, 129, 192, 193,
    208, 209, 233, 234, 235, 239, 240, 248, 249, 251, 252, 253, 254, 255, 256, 257, 511,
];

/// The cases of `target`, `random` of them for each encoding, every `stride`-th encoding only; the
/// seed says which.
pub fn cases(target: Target, random: u32, stride: usize, seed: u64) -> impl Iterator<Item = Words> {
    let mut numbers = Random(seed ^ (target as u64 + 1));
    let stride = stride.max(1);
    let first = usize::try_from(seed).unwrap_or(0) % stride;
    encodings(target).skip(first).step_by(stride).flat_map(move |encoding| of(target, &encoding, random, &mut numbers))
}

/// The cases of an encoding.
pub fn of(target: Target, encoding: &Encoding, random: u32, numbers: &mut Random) -> Vec<Words> {
    let mut cases = Vec::new();
    let mut base = encoding.value;
    for word in &mut base[encoding.words..] {
        *word = numbers.word();
    }
    // Some encodings are none with zeros: what differs in one operand only starts from one that is.
    let is_itself = |words: &Words| decode(target, words).is_ok_and(|inst| inst.entry == encoding.entry);
    let mut special = false;
    for _ in 0..2_000 {
        if is_itself(&base) {
            break;
        }
        special = true;
        for field in &encoding.fields {
            let edge = EDGES[numbers.below(42) as usize];
            field.set(&mut base, if numbers.below(2) == 0 { 0 } else { edge });
        }
    }
    cases.push(base);
    for field in &encoding.fields {
        for value in edges(field) {
            let mut words = base;
            field.set(&mut words, value);
            cases.push(words);
        }
    }
    // What each fixed bit tells this encoding from.
    for (word, mask) in encoding.mask.iter().enumerate() {
        for bit in (0..32).filter(|bit| mask >> bit & 1 != 0) {
            let mut words = base;
            words[word] ^= 1 << bit;
            cases.push(words);
        }
    }
    for n in 0..random {
        let mut words = base;
        // Bits that nothing names, every other time.
        if n % 2 == 1 {
            for (word, mask) in words.iter_mut().zip(encoding.mask).take(encoding.words) {
                *word |= numbers.word() & !mask;
            }
        }
        for word in &mut words[encoding.words..] {
            *word = numbers.word();
        }
        for field in &encoding.fields {
            let width = field.width();
            if special && numbers.below(4) != 0 {
                continue;
            }
            let value = match (width, numbers.below(4)) {
                (8.., 0) => EDGES[numbers.below(42) as usize],
                (8.., 1) => numbers.below(64) * 4,
                (9.., 2) => 256 + numbers.below(248),
                (5..=7, 1) => numbers.below(12) * 2,
                _ => numbers.word(),
            };
            field.set(&mut words, value);
        }
        cases.push(words);
    }
    cases
}

fn edges(field: &BitField) -> Vec<u32> {
    let width = field.width();
    let all = u32::MAX >> (32 - width.clamp(1, 32));
    let mut values: Vec<u32> = if width <= 4 {
        (0..=all).collect()
    } else {
        let mut values: Vec<u32> = EDGES.iter().copied().filter(|value| *value <= all).collect();
        values.extend([all, all - 1, all / 2, all / 2 + 1, 0xa5a5_a5a5 & all]);
        values
    };
    values.sort_unstable();
    values.dedup();
    values
}
