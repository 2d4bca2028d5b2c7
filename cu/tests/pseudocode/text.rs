// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The published text where it lies: opcode numbers and pseudo-code, in two Python files of a
//! package.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// One operation: its encoding's class, its name, its number in that encoding, and its text.
#[derive(Clone, Debug)]
pub struct Entry {
    pub class: String,
    pub name: String,
    pub number: u32,
    pub text: String,
}

/// Where `cargo xtask pseudocode` puts the package.
pub fn directory() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("VKFD_PSEUDOCODE") {
        return Some(given.into());
    }
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    let found = cache.join("vkfd/pseudocode");
    found.is_dir().then_some(found)
}

/// All operations of a generation ("cdna", "rdna3").
pub fn read(directory: &Path, generation: &str) -> std::io::Result<Vec<Entry>> {
    let base = directory.join("tinygrad/runtime/autogen/amd").join(generation);
    let numbers = numbers(&std::fs::read_to_string(base.join("enum.py"))?);
    Ok(entries(&std::fs::read_to_string(base.join("str_pcode.py"))?, &numbers))
}

/// `NAME = number` under `class CLASS`.
fn numbers(source: &str) -> HashMap<(String, String), u32> {
    let mut class = String::new();
    let mut found = HashMap::new();
    for line in source.lines() {
        if let Some(rest) = line.strip_prefix("class ") {
            class = rest.split('(').next().unwrap_or("").into();
        } else if let Some((name, number)) = line.trim().split_once(" = ") {
            if let Ok(number) = number.trim().parse() {
                found.insert((class.clone(), name.to_string()), number);
            }
        }
    }
    found
}

/// Lines of `  CLASS.NAME: 'text',`.
fn entries(source: &str, numbers: &HashMap<(String, String), u32>) -> Vec<Entry> {
    let mut found = Vec::new();
    for line in source.lines() {
        let Some((key, text)) = line.trim().split_once(": ") else { continue };
        let Some((class, name)) = key.split_once('.') else { continue };
        let Some(&number) = numbers.get(&(class.to_string(), name.to_string())) else { continue };
        let text = unquoted(text.trim_end_matches(','));
        found.push(Entry { class: class.into(), name: name.into(), number, text });
    }
    found
}

/// A Python string literal's value.
fn unquoted(literal: &str) -> String {
    let inner = literal.get(1..literal.len().saturating_sub(1)).unwrap_or("");
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some(other) => out.push(other),
                None => {}
            },
            c => out.push(c),
        }
    }
    out
}
