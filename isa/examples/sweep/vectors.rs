// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The encodings in LLVM's own tests, of whatever processor: each is words for every target.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{ensure, Context};
use vkfd_isa::MAX_WORDS;

use crate::cases::{Random, Words};

/// The encodings in the files below `dir`, filled up with random words.
pub fn read(dir: &Path) -> anyhow::Result<Vec<Words>> {
    let mut found = BTreeSet::new();
    for part in ["AMDGPU", "Disassembler/AMDGPU"] {
        let dir = dir.join(part);
        for entry in fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))? {
            let path = entry?.path();
            if path.is_file() {
                let text = fs::read(&path).with_context(|| format!("{}", path.display()))?;
                let text = String::from_utf8_lossy(&text);
                found.extend(text.lines().filter_map(bytes).filter(|bytes| !bytes.is_empty()));
            }
        }
    }
    ensure!(found.len() > 50_000, "only {} encodings in {}", found.len(), dir.display());
    let mut numbers = Random(0);
    Ok(found
        .iter()
        .map(|bytes| {
            let mut words: Words = std::array::from_fn(|_| numbers.word());
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
                *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            words
        })
        .collect())
}

/// The bytes of a line: after `encoding:`, or the whole line.
fn bytes(line: &str) -> Option<Vec<u8>> {
    let list = match line.split_once("encoding: [") {
        Some((_, rest)) => rest.split(']').next()?,
        None if line.starts_with("0x") => line.split(['#', ';', '/']).next()?,
        None => return None,
    };
    let bytes: Option<Vec<u8>> = list
        .split([',', ' '])
        .map(str::trim)
        .filter(|byte| !byte.is_empty())
        .map(|byte| u8::from_str_radix(byte.strip_prefix("0x")?, 16).ok())
        .collect();
    bytes.filter(|bytes| bytes.len() % 4 == 0 && bytes.len() <= MAX_WORDS * 4)
}
