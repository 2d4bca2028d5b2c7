// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Patterns of names on a command line.

/// Whether a name matches a pattern in which `*` stands for anything.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(tail) = name.strip_prefix(head) else { return false };
    tail.char_indices().map(|(at, _)| at).chain([tail.len()]).any(|at| matches(rest, &tail[at..]))
}
