// SPDX-License-Identifier: GPL-2.0 OR MIT
//! AMD's topology and vkfd's, property by property.
//!
//! Both are texts: a line with a file's path, then the file. The files of a group, such as caches,
//! are compared one by one; differences that several have in common are one difference. Which are
//! agreed is in [`AGREED`], each with its cause and reason, and [`PAGE`] is made of it. A new
//! difference is a finding, and so is an agreed one that is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};

use super::listed;
use xtask_base::tree;

/// Prints the topology in the guest.
pub const SHOW: &str = "cd /sys/class/kfd/kfd/topology && find . -type f | sort | \
                        while read file; do echo \"== $file\"; cat $file; done";
/// Differences that are known: `PROPERTY: CAUSE: REASON`. What was vkfd's mistake is fixed.
const AGREED: &str = "xtask/vm/src/amdgpu/topology.txt";
/// The same for people.
const PAGE: &str = "docs/amdgpu-topology.md";
/// Why something is different.
const CAUSES: [(&str, &str); 2] =
    [("AMD", "AMD's driver is wrong"), ("device", "the device, or the machine around it, does not have it")];

/// The values of a topology by the path of their file and their name.
fn values<'a>(lines: impl Iterator<Item = &'a str>) -> BTreeMap<(&'a str, &'a str), &'a str> {
    let mut file = "";
    let mut values = BTreeMap::new();
    for line in lines.map(str::trim).filter(|line| !line.is_empty()) {
        match (line.strip_prefix("== ./"), line.split_once(' ')) {
            (Some(path), _) => file = path,
            (None, Some((name, value))) => drop(values.insert((file, name), value)),
            // A file of one value.
            (None, None) => drop(values.insert((file, ""), line)),
        }
    }
    values
}

/// The name of a property of all files of a group.
fn general(file: &str, name: &str) -> String {
    let mut parts: Vec<&str> = file.split('/').collect();
    if let [.., group @ ("caches" | "mem_banks" | "io_links"), number, _] = &mut parts[..] {
        let _ = group;
        *number = "N";
    }
    let file = parts.join("/");
    let file = file.strip_suffix("/properties").unwrap_or(&file);
    if name.is_empty() {
        file.into()
    } else {
        format!("{file} {name}")
    }
}

/// A difference: AMD's value and vkfd's of the first file that has it.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    amd: String,
    vkfd: String,
}

fn differences(amd: &[&str], vkfd: &str) -> (usize, BTreeMap<String, Difference>) {
    let (amd, vkfd) = (values(amd.iter().copied()), values(vkfd.lines()));
    let all: BTreeSet<_> = amd.keys().chain(vkfd.keys()).copied().collect();
    let mut found = BTreeMap::new();
    let show = |value: Option<&&str>| value.map_or("none".to_owned(), |value| (*value).to_owned());
    for &(file, name) in &all {
        let (amd, vkfd) = (amd.get(&(file, name)), vkfd.get(&(file, name)));
        if amd != vkfd {
            let difference = || Difference { amd: show(amd), vkfd: show(vkfd) };
            found.entry(general(file, name)).or_insert_with(difference);
        }
    }
    (all.len(), found)
}

/// Property, cause and reason of each agreed difference.
fn agreed() -> Result<BTreeMap<String, (String, String)>> {
    let lines = listed(AGREED)?;
    let parts = lines.iter().map(|line| {
        let mut parts = line.splitn(3, ": ").map(ToOwned::to_owned);
        let all = (parts.next(), parts.next(), parts.next());
        let (Some(name), Some(cause), Some(reason)) = all else { anyhow::bail!("{AGREED}: {line}") };
        anyhow::ensure!(CAUSES.iter().any(|(known, _)| *known == cause), "{AGREED}: no such cause: {line}");
        Ok((name, (cause, reason)))
    });
    parts.collect()
}

/// Compares both; writes the page if `write`. Returns what is wrong.
pub fn compare(amd: &[&str], vkfd: &str, version: &str, write: bool) -> Result<Vec<String>> {
    let agreed = agreed()?;
    let (all, found) = differences(amd, vkfd);
    let known = found.keys().filter(|name| agreed.contains_key(*name)).count();
    println!("  topology: {all} properties, {} kinds of differences, {known} of them agreed", found.len());
    let mut wrong = Vec::new();
    for (name, Difference { amd, vkfd }) in found.iter().filter(|(name, _)| !agreed.contains_key(*name)) {
        wrong.push(format!("topology, {name}: AMD's driver {amd}, vkfd {vkfd}"));
    }
    for name in agreed.keys().filter(|name| !found.contains_key(*name)) {
        wrong.push(format!("topology, {name}: no difference any more, and {AGREED} has one"));
    }
    let path = tree::root().join(PAGE);
    let page = page(&found, &agreed, version);
    if write {
        fs::write(&path, page).with_context(|| format!("write {}", path.display()))?;
        println!("  {PAGE} is written");
    } else if fs::read_to_string(&path).unwrap_or_default() != page {
        wrong.push(format!("{PAGE} is not up to date: cargo xtask vm amdgpu probe --write"));
    }
    Ok(wrong)
}

fn page(found: &BTreeMap<String, Difference>, agreed: &BTreeMap<String, (String, String)>, version: &str) -> String {
    // A newer build of the same kernel shows the same.
    let release = version.split('.').take(2).collect::<Vec<_>>().join(".");
    let mut text = format!(
        "<!-- SPDX-License-Identifier: GPL-2.0 OR MIT -->\n\
         <!-- Generated by `cargo xtask vm amdgpu probe --write`. -->\n\
         # The topology of AMD's driver and vkfd's\n\n\
         Both drivers show the same GPU, a gfx90a of [the device](amdgpu.md). AMD's is that of Linux\n\
         {release}. All other properties are equal. N stands for any number.\n\n\
         | cause | |\n| --- | --- |\n"
    );
    for (cause, meaning) in CAUSES {
        text += &format!("| {cause} | {meaning} |\n");
    }
    text += "\n| property | AMD's driver | vkfd's driver | cause | reason |\n| --- | --- | --- | --- | --- |\n";
    for (name, Difference { amd, vkfd }) in found {
        let Some((cause, reason)) = agreed.get(name) else { continue };
        // Values that no two guests need have in common are left out.
        let (amd, vkfd) = if reason.starts_with("varies") { ("", "") } else { (amd.as_str(), vkfd.as_str()) };
        text += &format!("| `{name}` | {amd} | {vkfd} | {cause} | {reason} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_a_group_are_one() {
        let amd = ["== ./nodes/1/gpu_id", "7", "== ./nodes/1/caches/0/properties", "type 9", "size 16", ""];
        let more = ["== ./nodes/1/caches/1/properties", "type 9", "size 16"];
        let vkfd = "== ./nodes/1/gpu_id\n7\n== ./nodes/1/caches/0/properties\ntype 1\nsize 16\n\
                    == ./nodes/1/caches/1/properties\ntype 1\nsize 16\nextra 1\n";
        let (all, found) = differences(&[&amd[..], &more[..]].concat(), vkfd);
        assert_eq!((all, found.len()), (6, 2), "{found:?}");
        assert_eq!(found["nodes/1/caches/N type"], Difference { amd: "9".into(), vkfd: "1".into() });
        assert_eq!(found["nodes/1/caches/N extra"].amd, "none");
        assert_eq!(general("nodes/1/properties", "capability"), "nodes/1 capability");
        assert_eq!(general("nodes/1/gpu_id", ""), "nodes/1/gpu_id");
    }

    #[test]
    fn every_agreed_difference_has_a_cause_and_a_reason() {
        for (name, (_, reason)) in agreed().unwrap() {
            assert!(reason.len() > 10, "{name}");
        }
    }
}
