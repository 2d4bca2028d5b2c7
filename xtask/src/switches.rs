// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The list of sabotage switches and fail points, docs/sabotage.md, against the sources: all are in it, nothing else is, and the
//! test that a row names turns that switch on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};

use crate::tree;

const PAGE: &str = "docs/sabotage.md";

/// Where switches are declared, and what a declaration looks like: what is before the name, and what is after it.
const DECLARATIONS: [(&str, &str, &str, &[&str]); 6] = [
    ("driver", "driver/src/base/sabotage.rs", "    pub ", &[": bool,", ": Option<Hook>,"]),
    ("gpu", "gpu/src/base/sabotage.rs", "    pub ", &[": AtomicBool,", ": Mutex<"]),
    ("cu", "cu/src/fast/mod.rs", "    pub fn ", &["(&mut self, op: Op)", "(&mut self, operation: Op)"]),
    ("host", "host/src/sabotage.rs", "    pub fn ", &["(on: bool)", "(at: usize)"]),
    ("virtio-gpu", "virtio-gpu/src/device/mod.rs", "pub enum Sabotage {", &[","]),
    ("isa", "isa/src/sabotage.rs", "pub enum Fault {", &[",", "("]),
];

/// What the tree disagrees with its list in.
pub fn check() -> Result<Vec<String>> {
    let root = tree::root();
    let read = |path: &str| fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"));
    let mut switches = BTreeSet::new();
    for (part, file, before, after) in DECLARATIONS {
        let names = declared(&read(file)?, before, after);
        anyhow::ensure!(!names.is_empty(), "{file} declares no switch");
        switches.extend(names.into_iter().map(|name| format!("{part}.{name}")));
    }
    let mut points: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in tree::files()?.into_iter().filter(|path| path.ends_with(".rs")) {
        let of_a_host = ["driver/src/", "host/src/", "wire/src/", "linux/"];
        if !of_a_host.iter().any(|part| path.starts_with(part)) {
            continue;
        }
        let text = read(&path)?;
        if path.starts_with("linux/") {
            let numbers = quoted(&text, "is_sabotaged(", ")").into_iter().filter(|n| n.parse::<u8>().is_ok());
            switches.extend(numbers.map(|number| format!("linux.{number}")));
        }
        for name in quoted(&text, "failpoint(\"", "\"") {
            points.entry(name).or_default().insert(path.clone());
        }
    }
    let page = read(PAGE)?;
    let (first, second) =
        page.split_once("## Fail points").context("docs/sabotage.md has no section on fail points")?;
    let mut findings = compare("switch", &switches, &rows(first));
    findings.extend(compare("fail point", &points.keys().cloned().collect(), &rows(second)));
    for (name, row) in rows(first) {
        let Some(file) = links(&row).into_iter().next() else {
            findings.push(format!("{PAGE}: {name} names no test"));
            continue;
        };
        let own = name.rsplit('.').next().unwrap_or_default();
        let word = row.rsplit_once(", as `").and_then(|(_, word)| word.split('`').next()).unwrap_or(own);
        if !read(&file)?.contains(word) {
            findings.push(format!("{PAGE}: {file} does not turn {name} on: {word:?} is not in it"));
        }
    }
    for (name, row) in rows(second) {
        let said: BTreeSet<String> = links(&row).into_iter().collect();
        if points.get(&name).is_some_and(|files| *files != said) {
            findings.push(format!("{PAGE}: the fail point {name} is in {:?}", points[&name]));
        }
    }
    Ok(findings)
}

/// The names in a source that follow `before` and have one of `after` behind them; of an enum, its variants.
fn declared(text: &str, before: &str, after: &[&str]) -> Vec<String> {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    let of = |line: &str| {
        let end = after.iter().filter_map(|after| line.find(after)).min()?;
        Some(line[..end].to_owned()).filter(|name| is_name(name))
    };
    match before.ends_with('{') {
        true => {
            let body =
                text.split_once(before).map_or("", |(_, rest)| rest.split_once("\n}").map_or(rest, |(body, _)| body));
            body.lines().filter_map(|line| of(line.trim())).collect()
        }
        false => text.lines().filter_map(|line| of(line.strip_prefix(before)?)).collect(),
    }
}

fn quoted(text: &str, before: &str, after: &str) -> Vec<String> {
    text.split(before).skip(1).filter_map(|rest| Some(rest.split_once(after)?.0.to_owned())).collect()
}

/// The rows of a page's tables whose first cell is a name in code.
fn rows(text: &str) -> BTreeMap<String, String> {
    let cell = |line: &str| Some(line.strip_prefix("| `")?.split_once("` |")?.0.to_owned());
    text.lines().filter_map(|line| Some((cell(line)?, line.to_owned()))).collect()
}

/// The files that a row links, from the root of the tree.
fn links(row: &str) -> Vec<String> {
    quoted(row, "](../", ")")
}

fn compare(what: &str, there: &BTreeSet<String>, listed: &BTreeMap<String, String>) -> Vec<String> {
    let missing = there.iter().filter(|name| !listed.contains_key(*name));
    let missing = missing.map(|name| format!("{PAGE}: the {what} {name} is not in the list"));
    let surplus = listed.keys().filter(|name| !there.contains(*name));
    missing.chain(surplus.map(|name| format!("{PAGE}: there is no {what} {name}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_found() {
        let text = "pub enum Fault {\n    /// A.\n    Value(u32),\n    Name,\n}\nimpl X {\n    pub fn a(on: bool) {\n    pub fn b() {\n";
        assert_eq!(declared(text, "pub enum Fault {", &[",", "("]), ["Value", "Name"]);
        assert_eq!(declared(text, "    pub fn ", &["(on: bool)"]), ["a"]);
    }

    #[test]
    fn a_list_that_lacks_one_or_has_one_too_many_is_found() {
        let listed =
            rows("| switch | x |\n| --- | --- |\n| `a.b` | y | [t](../t.rs) |\n| `a.c` | z | [u](../u/v.rs) |\n");
        assert_eq!(links(&listed["a.c"]), ["u/v.rs"]);
        let there = BTreeSet::from(["a.b".to_owned(), "a.d".to_owned()]);
        assert_eq!(
            compare("switch", &there, &listed),
            ["docs/sabotage.md: the switch a.d is not in the list", "docs/sabotage.md: there is no switch a.c"]
        );
    }

    #[test]
    fn the_trees_list_is_whole() {
        assert_eq!(check().unwrap(), Vec::<String>::new());
    }
}
