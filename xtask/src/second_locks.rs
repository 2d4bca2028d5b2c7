// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Lock files of packages outside of the workspace.
//!
//! cargo builds such a package seldom, and then brings its lock file up to date without a word. So
//! its versions would be those of the day. What a package of the tree depends on has to be in each
//! lock file that has the package.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use toml::{Table, Value};

use xtask_base::tree;

const LOCK: &str = "Cargo.lock";

/// Looks at all lock files but the workspace's, which `--locked` guards.
pub fn check(paths: &[String]) -> Result<Vec<String>> {
    let read = |path: &String| -> Result<Table> {
        let text = fs::read_to_string(tree::root().join(path)).with_context(|| format!("read {path}"))?;
        text.parse().with_context(|| path.clone())
    };
    let manifests = paths.iter().filter(|path| path.ends_with("Cargo.toml")).map(read).collect::<Result<Vec<_>>>()?;
    let mut findings = Vec::new();
    for path in paths.iter().filter(|path| path.ends_with(LOCK) && *path != LOCK) {
        let lacking = lacking(&read(path)?, &manifests);
        let line = |(package, name)| format!("{path}: {package} depends on {name}, which is not there");
        findings.extend(lacking.into_iter().map(line));
    }
    Ok(findings)
}

/// Packages of a lock file, and what their manifests have beyond it.
fn lacking(lock: &Table, manifests: &[Table]) -> Vec<(String, String)> {
    let named = |table: &Table| table.get("name").and_then(Value::as_str).map(str::to_owned);
    let locked: BTreeMap<String, BTreeSet<&str>> = lock
        .get("package")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_table)
        .filter_map(|package| {
            let all = package.get("dependencies").and_then(Value::as_array).into_iter().flatten();
            // A version may follow.
            let names = all.filter_map(Value::as_str).filter_map(|entry| entry.split(' ').next());
            Some((named(package)?, names.collect()))
        })
        .collect();
    let mut all = Vec::new();
    for manifest in manifests {
        let Some(package) = manifest.get("package").and_then(Value::as_table).and_then(named) else { continue };
        let Some(locked) = locked.get(&package) else { continue };
        let names = dependencies(manifest).into_iter().filter(|name| !locked.contains(name.as_str()));
        all.extend(names.map(|name| (package.clone(), name)));
    }
    all
}

/// What a package cannot do without, tests and build scripts apart, on any host.
fn dependencies(manifest: &Table) -> Vec<String> {
    let hosts = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(Table::values);
    let tables = hosts.filter_map(Value::as_table).chain([manifest]);
    let each = tables.filter_map(|table| table.get("dependencies")?.as_table()).flatten();
    let is_optional = |value: &Value| value.get("optional").and_then(Value::as_bool) == Some(true);
    let name = |(name, value): (&String, &Value)| {
        value.get("package").and_then(Value::as_str).map_or_else(|| name.clone(), str::to_owned)
    };
    each.filter(|(_, value)| !is_optional(value)).map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_that_no_lock_file_has_is_found() {
        let lock = r#"
            [[package]]
            name = "one"
            dependencies = ["two", "three 1.0.0", "renamed"]
            [[package]]
            name = "two"
        "#;
        let one = r#"
            [package]
            name = "one"
            [dependencies]
            two = "1"
            three = { workspace = true }
            new = "1"
            maybe = { version = "1", optional = true }
            other = { package = "renamed", version = "1" }
            [dev-dependencies]
            four = "1"
            [target.'cfg(unix)'.dependencies]
            libc = "1"
        "#;
        let absent = "[package]\nname = \"absent\"\n[dependencies]\nfive = \"1\"\n";
        let manifests = [one, absent].map(|text| text.parse::<Table>().unwrap());
        let mut found = lacking(&lock.parse().unwrap(), &manifests);
        found.sort();
        let expected = [("one", "libc"), ("one", "new")].map(|(package, name)| (package.to_owned(), name.to_owned()));
        assert_eq!(found, expected);
    }
}
