// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Modules of a crate's root that know each other in a ring. A part of `stray`.
//!
//! Mechanism: a file belongs to the module of the root that it is below. It knows another one if it
//! names `crate::other`, alone or in a group, or something that the root takes out of `other`. A
//! file of the root also says `super::other`. The graph of a crate in [`CRATES`] must have no ring.
//! Crates whose modules have an order are in [`crate::rooms`].
//!
//! Limits: rings below a module of the root, such as a facade with its parts, are not seen. Tests,
//! at the end of a file or in a file of their own, may name anything.

use std::collections::{BTreeMap, BTreeSet};

/// The crates: the directory with a slash at its end, and the root's file.
pub const CRATES: [(&str, &str); 11] = [
    ("bench/src/", "lib.rs"),
    ("client/src/", "lib.rs"),
    ("cu/src/", "lib.rs"),
    ("device/src/", "lib.rs"),
    ("remote/src/", "lib.rs"),
    ("virtio-gpu/src/", "lib.rs"),
    ("wire/src/", "lib.rs"),
    ("xtask/clients/src/", "lib.rs"),
    ("xtask/programs/src/", "lib.rs"),
    ("xtask/src/", "main.rs"),
    ("xtask/vm/src/", "lib.rs"),
];

/// The modules of a crate's root, and which of them each one knows.
pub struct Graph {
    source: &'static str,
    root: &'static str,
    /// A module by its own name and by the names that the root takes out of it.
    names: BTreeMap<String, String>,
    knows: BTreeMap<String, BTreeSet<String>>,
}

/// The text without comments and tests.
pub fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join(" ")
}

/// Whether a character is one of a name.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first words of the paths that follow `prefix` in `code`, in a group or alone.
fn named(code: &str, prefix: &str) -> Vec<String> {
    let mut found = Vec::new();
    for after in code.split(prefix).skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            found.push(after.chars().take_while(|c| is_word(*c)).collect());
            continue;
        };
        let mut depth = 0_usize;
        let mut word = String::new();
        // A word of the group's first level begins a path.
        let mut begins = true;
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    found.push(std::mem::take(&mut word));
                    begins = true;
                }
                c if depth == 0 && begins && is_word(c) => word.push(c),
                c => begins &= c.is_whitespace() && word.is_empty(),
            }
        }
        found.push(word);
    }
    found
}

impl Graph {
    /// Of the crate at `source`, whose root has the text `text`.
    pub fn new(source: &'static str, root: &'static str, text: &str) -> Self {
        let code = code(text);
        let mut names = BTreeMap::new();
        for statement in code.split(';') {
            if let Some(module) = statement.rsplit(' ').next().filter(|_| statement.contains("mod ")) {
                names.insert(module.to_owned(), module.to_owned());
            }
        }
        for statement in code.split(';') {
            let Some((_, used)) = statement.split_once("pub use ") else { continue };
            let Some((module, items)) = used.split_once("::") else { continue };
            if let Some(module) = names.get(module.trim()).cloned() {
                let items = items.split(|c| !is_word(c)).filter(|item| !item.is_empty());
                for item in items {
                    names.entry(item.to_owned()).or_insert_with(|| module.clone());
                }
            }
        }
        Self { source, root, names, knows: BTreeMap::new() }
    }

    /// Enters a file of the tree, if it is the crate's.
    pub fn enter(&mut self, path: &str, text: &str) {
        let Some(path) = path.strip_prefix(self.source).filter(|path| path.ends_with(".rs")) else { return };
        if path == self.root || path.ends_with("tests.rs") {
            return;
        }
        let module = path.split('/').next().unwrap_or_default().trim_end_matches(".rs").to_owned();
        let code = code(text);
        let mut words = named(&code, "crate::");
        if !path.contains('/') || path.ends_with(&format!("{module}/mod.rs")) {
            words.extend(named(&code, "super::"));
        }
        let others = words.iter().filter_map(|word| self.names.get(word)).filter(|other| **other != module).cloned();
        self.knows.entry(module.clone()).or_default().extend(others);
    }

    /// A ring, if there is one.
    pub fn ring(&self) -> Option<String> {
        let ring = circle(&self.knows)?;
        Some(format!("{}: modules know each other in a ring: {}", self.source, ring.join(" -> ")))
    }
}

/// A way from something back to itself; the first is named again at the end.
pub fn circle(knows: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    let mut free = BTreeSet::new();
    knows.keys().find_map(|start| walk(knows, &mut vec![start], &mut free))
}

/// Follows a way; from those in `free` no circle is reached.
fn walk<'a>(
    knows: &'a BTreeMap<String, BTreeSet<String>>,
    way: &mut Vec<&'a String>,
    free: &mut BTreeSet<&'a String>,
) -> Option<Vec<String>> {
    let last = *way.last()?;
    for next in knows.get(last).into_iter().flatten() {
        if let Some(at) = way.iter().position(|module| *module == next) {
            return Some(way[at..].iter().copied().chain([next]).cloned().collect());
        }
        if !free.contains(next) {
            way.push(next);
            if let Some(circle) = walk(knows, way, free) {
                return Some(circle);
            }
            way.pop();
        }
    }
    free.insert(last);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let root = "//! Text.\nmod a;\npub mod b;\n#[cfg(x)]\nmod c;\npub use b::{Thing, other::Deep};\n";
        let mut graph = Graph::new("x/src/", "lib.rs", root);
        files.iter().for_each(|(path, text)| graph.enter(path, text));
        graph
    }

    #[test]
    fn a_ring_is_found_and_an_order_is_none() {
        let one = ("x/src/a.rs", "use crate::b::X;\n");
        assert_eq!(graph(&[one, ("x/src/b/mod.rs", "use crate::c;\n"), ("x/src/c.rs", "")]).ring(), None);
        let ring =
            graph(&[one, ("x/src/b/deep.rs", "fn f() { crate::c::g(); }"), ("x/src/c.rs", "use super::{a, z};")]);
        assert_eq!(ring.ring().as_deref(), Some("x/src/: modules know each other in a ring: a -> b -> c -> a"));
    }

    #[test]
    fn names_of_the_root_and_groups_count_and_tests_do_not() {
        let thing = ("x/src/a.rs", "use crate::{c::{b, Y}, Thing};\n");
        let back = graph(&[thing, ("x/src/b.rs", "use crate::a;\n")]);
        assert!(back.ring().is_some_and(|ring| ring.ends_with("a -> b -> a")));
        assert_eq!(named("use crate::{c::{b, Y}, Thing};", "crate::"), ["c", "Thing"]);
        let tests = "// crate::b\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n";
        assert_eq!(graph(&[("x/src/a.rs", tests), ("x/src/b.rs", "use crate::a;\n")]).ring(), None);
        assert_eq!(graph(&[("x/src/a/tests.rs", "use crate::b;"), ("y/src/a.rs", "use crate::b;")]).knows.len(), 0);
    }

    #[test]
    fn the_crates_are_the_trees() {
        for (source, root) in CRATES {
            let text = std::fs::read_to_string(xtask_base::tree::root().join(source).join(root)).unwrap();
            assert!(Graph::new(source, root, &text).names.len() > 1, "{source}");
        }
    }
}
