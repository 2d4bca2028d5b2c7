// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Words without structure: the decoder and the disassembler end with an instruction or an error,
//! whatever they are given.
//!
//! `VKFD_ISA_WORDS` says how many.

use vkfd_isa::{decode, disassemble, encodings, Format, Target, MAX_WORDS};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn words(&mut self) -> [u32; 6] {
        let [a, b, c] = [self.next(), self.next(), self.next()].map(u64::to_le_bytes);
        let word =
            |bytes: [u8; 8], at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        [word(a, 0), word(a, 4), word(b, 0), word(b, 4), word(c, 0), word(c, 4)]
    }
}

fn count() -> u64 {
    std::env::var("VKFD_ISA_WORDS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000)
}

/// Decodes `count` sequences of words for each target; how many of them are instructions.
fn decode_random(seed: u64, count: u64) -> [u64; 5] {
    let mut random = Random(seed);
    let mut decoded = [0u64; 5];
    for n in 0..count {
        let words = random.words();
        // Now and then every length, also those that end inside of an instruction, which is much
        // slower to find out.
        let len = if n % 64 < 7 { n % 64 } else { 6 };
        let words = &words[..usize::try_from(len).unwrap_or(0)];
        for target in Target::ALL {
            let Ok(inst) = decode(target, words) else { continue };
            decoded[target as usize] += 1;
            assert!(inst.bytes % 4 == 0 && (4..=20).contains(&inst.bytes), "{inst:?}");
            assert!(usize::from(inst.bytes) <= words.len() * 4, "{inst:?} is longer than its words");
            if n % 16 == 0 {
                assert!(!inst.text(target, words).is_empty());
            }
        }
    }
    decoded
}

#[test]
fn any_words_are_an_instruction_or_an_error() {
    let seeds = [0x1234_5678_9abc_def1, 0x0fed_cba9_8765_4321];
    let each = count() / seeds.len() as u64;
    let decoded = std::thread::scope(|scope| {
        let threads = seeds.map(|seed| scope.spawn(move || decode_random(seed, each)));
        threads.map(|thread| thread.join().expect("no panic"))
    });
    // Most words are something; a decoder that knows nothing would pass what is above.
    assert!(decoded.iter().flatten().all(|n| *n > each / 4), "{decoded:?}");
}

/// The text of an access is the engines' information about it: the text is compared
/// with `llvm-mc`, so the rest is right.
#[test]
fn the_marks_in_the_text_are_those_of_the_instruction() {
    let mut random = Random(0xfeed_beef_1234_5678);
    let mut seen = [0u32; 6];
    for target in Target::ALL {
        for encoding in encodings(target) {
            for round in 0..4 {
                let mut words = encoding.value;
                for field in &encoding.fields {
                    let [value, ..] = random.words();
                    field.set(&mut words, if round == 0 { 0 } else { value });
                }
                let Ok((inst, text)) = disassemble(target, &words) else { continue };
                if inst.format == Format::Mimg || inst.format == Format::Exp {
                    continue;
                }
                let memory = &inst.memory;
                let glc = if target == Target::Gfx942 { "sc0" } else { "glc" };
                let has = |mark: &str| text.split(' ').skip(1).any(|word| word == mark);
                let marks = [
                    ("offen", memory.offen),
                    ("idxen", memory.idxen),
                    ("lds", memory.lds),
                    ("tfe", memory.tfe),
                    ("gds", memory.gds),
                    (glc, memory.glc),
                ];
                for (n, (mark, set)) in marks.into_iter().enumerate() {
                    // Scalar accesses and those that gfx942 has no bit for are printed in words of
                    // their own.
                    if mark == glc && !has(mark) {
                        continue;
                    }
                    assert_eq!(has(mark), set, "{target}: {text}: {mark}");
                    seen[n] += u32::from(set);
                }
            }
        }
    }
    assert!(seen.iter().all(|count| *count != 0), "a mark that no instruction has: {seen:?}");
}

#[test]
fn every_encoding_is_decoded_as_itself() {
    for target in Target::ALL {
        let mut other = 0;
        let all: Vec<_> = encodings(target).collect();
        for encoding in &all {
            match disassemble(target, &encoding.value[..MAX_WORDS]) {
                Ok((inst, text)) => {
                    other += usize::from(inst.op != encoding.op);
                    assert!(text.len() > 2, "{text}");
                }
                Err(_) => other += 1,
            }
        }
        // All operands zero: not possible in some, and another form of precedence in others.
        assert!(other * 50 < all.len(), "{target}: {other} of {}", all.len());
    }
}
