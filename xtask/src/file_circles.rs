// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files of a crate that know each other in a circle. A part of `stray`.
//!
//! Mechanism: a file knows the files of the paths in it that begin with `crate`, `super` or `self`,
//! alone or in groups. A path's file is the longest beginning of the path that is a module. A
//! facade and the parts that it declares are no circle by that alone, since a declaration is no
//! path.
//!
//! Limits: only the sources in [`SOURCES`]. The crate's root counts as nobody's: others know the
//! names that it takes out of modules. Tests, at the end of a file or in a file of their own, may
//! name anything.

use std::collections::{BTreeMap, BTreeSet};

use crate::circles::{circle, code, is_word};

/// The crates' sources.
pub const SOURCES: [&str; 11] = [
    "bench/src/",
    "client/src/",
    "cu/src/",
    "device/src/",
    "gpu/src/",
    "tests/scenarios/src/",
    "wire/src/",
    "xtask/clients/src/",
    "xtask/programs/src/",
    "xtask/src/",
    "xtask/vm/src/",
];

/// The files of a source.
pub struct Files {
    source: &'static str,
    /// A module's path in the crate, and the paths in its file.
    modules: BTreeMap<Vec<String>, Vec<Vec<String>>>,
}

/// The paths that begin with `crate`, `super` or `self` in code without comments.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("::") {
        let before = code.get(..at).unwrap_or_default();
        let head: String = before.chars().rev().take_while(|c| is_word(*c)).collect();
        let head: String = head.chars().rev().collect();
        let earlier = before.strip_suffix(head.as_str()).unwrap_or_default();
        if matches!(head.as_str(), "crate" | "super" | "self") && !earlier.ends_with(':') {
            follow(code.get(at + 2..).unwrap_or_default(), &[head], &mut found);
        }
    }
    found
}

/// Reads on after `::`, and gives the rest of the text behind the path or the group.
fn follow<'a>(text: &'a str, path: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    if let Some(mut group) = text.strip_prefix('{') {
        loop {
            group = group.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            match group.strip_prefix('}') {
                Some(rest) => return rest,
                None if group.is_empty() => return group,
                None => {}
            }
            group = follow(group, path, found);
            // `as`, and its name.
            group = group.trim_start_matches(|c| c != ',' && c != '}');
        }
    }
    let word: String = text.chars().take_while(|c| is_word(*c)).collect();
    let rest = text.get(word.len()..).unwrap_or_default();
    let longer: Vec<String> = path.iter().cloned().chain([word].into_iter().filter(|word| word != "self")).collect();
    match rest.strip_prefix("::") {
        Some(rest) => follow(rest, &longer, found),
        None => {
            found.push(longer);
            // What is no word, such as `*`, is passed over.
            rest.strip_prefix('*').unwrap_or(rest)
        }
    }
}

impl Files {
    pub fn new(source: &'static str) -> Self {
        Self { source, modules: BTreeMap::new() }
    }

    /// Enters a file of the tree, if it is one of the source.
    pub fn enter(&mut self, path: &str, text: &str) {
        let Some(module) = path.strip_prefix(self.source).and_then(|path| path.strip_suffix(".rs")) else { return };
        if module.ends_with("tests") || matches!(module, "lib" | "main") {
            return;
        }
        let module = module.strip_suffix("/mod").unwrap_or(module).split('/').map(Into::into).collect();
        self.modules.insert(module, paths(&code(text)));
    }

    /// The module that a path in `from` leads into.
    fn module(&self, from: &[String], path: &[String]) -> Option<&[String]> {
        let mut whole = from.to_vec();
        let mut rest = path;
        while let [first, more @ ..] = rest {
            match first.as_str() {
                "crate" => whole.clear(),
                "super" => drop(whole.pop()),
                "self" => {}
                _ => break,
            }
            rest = more;
        }
        whole.extend_from_slice(rest);
        let beginnings = (1..=whole.len()).rev().filter_map(|length| whole.get(..length));
        beginnings.filter_map(|path| self.modules.get_key_value(path)).map(|(module, _)| &module[..]).next()
    }

    /// A circle, if there is one.
    pub fn circle(&self) -> Option<String> {
        let name = |module: &[String]| module.join("/");
        let known = |(from, paths): (&Vec<String>, &Vec<Vec<String>>)| {
            let others = paths.iter().filter_map(|path| self.module(from, path)).filter(|other| other != from);
            (name(from), others.map(name).collect::<BTreeSet<_>>())
        };
        let found = circle(&self.modules.iter().map(known).collect())?;
        Some(format!("{}: files know each other in a circle: {}", self.source, found.join(" -> ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Option<String> {
        let mut all = Files::new("gpu/src/");
        files.iter().for_each(|(path, text)| all.enter(path, text));
        all.circle()
    }

    #[test]
    fn files_that_know_each_other_are_found() {
        let way = "gpu/src/: files know each other in a circle: a/b -> a/c -> a/b";
        let b = ("gpu/src/a/b.rs", "use super::{c::{self, X as Y}, d};\n");
        for c in ["use crate::a::b::B;", "fn f() { super::b::g() }", "use crate::a::{b::{\n B}};", "use super::{d, b};"]
        {
            assert_eq!(found(&[b, ("gpu/src/a/c.rs", c)]).as_deref(), Some(way), "{c}");
        }
    }

    #[test]
    fn facades_comments_tests_and_other_crates_are_no_circles() {
        let facade = ("gpu/src/a/mod.rs", "mod b;\npub use vkfd_cu::a::b;\nstruct A;\n");
        for b in ["use super::A;", "// super::c", "use crate::a::A;", "use self::x::Y;"] {
            assert_eq!(found(&[facade, ("gpu/src/a/b.rs", b)]), None, "{b}");
        }
        let test = "struct C;\n#[cfg(test)]\nmod tests {\n use super::super::b::B;\n}\n";
        assert_eq!(found(&[("gpu/src/a/b.rs", "use super::c::C;"), ("gpu/src/a/c.rs", test)]), None);
        let other = ("gpu/src/a/b.rs", "use vkfd_cu::crate::a;\nuse super::c::*;\n");
        assert_eq!(found(&[other, ("gpu/src/a/c.rs", "")]), None);
    }

    #[test]
    fn the_sources_are_the_trees() {
        for source in SOURCES {
            let directory = xtask_base::tree::root().join(source);
            assert!(std::fs::read_dir(&directory).unwrap().count() > 5, "{}", directory.display());
        }
    }
}
