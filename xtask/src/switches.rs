// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask switches`: docs/sabotage.md, the page that lists switches and fail points, from the
//! list that the code has.
//!
//! Mechanism: names and what they do come from the package `vkfd-sabotage`. Which test notices a
//! switch is kept in the page; that the test's source turns the switch on is checked. Where fail
//! points are passed is looked up in the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{ensure, Context, Result};
use vkfd_sabotage::{FailPoint, Switch};

use xtask_base::{tree, Verdict};

/// Check or write the page that lists sabotage switches and fail points
///
/// The tables of docs/sabotage.md have to agree with the list in sabotage/. Another finding is a
/// switch that nothing asks for, or one without a test, or one whose test does not turn it on. A
/// fail point that nothing passes is also one. `cargo xtask stray` checks the same.
///
/// Exit status: 0 clean or written, 1 findings, 2 cannot check.
#[derive(clap::Args)]
pub struct Args {
    /// Write the tables anew. Which test notices a switch stays as it is in the page
    #[arg(long)]
    write: bool,
}

const PAGE: &str = "docs/sabotage.md";
const SWITCHES: [&str; 2] = ["| switch | effect | noticed by |", "| --- | --- | --- |"];
const POINTS: [&str; 2] = ["| fail point | failing operation | source |", "| --- | --- | --- |"];

/// What can be broken.
const BREAKABLE: [&str; 14] = [
    "cli/src/",
    "cu/src/",
    "driver/src/",
    "gpu/src/",
    "translate/src/",
    "host/src/",
    "isa/src/",
    "linux/",
    "preload/src/",
    "raw/src/",
    "rt/src/",
    "remote/src/",
    "virtio-gpu/src/",
    "wire/src/",
];
/// What passes fail points.
const FALLIBLE: [&str; 4] = ["driver/src/", "host/src/", "linux/", "wire/src/"];

pub fn run(args: &Args) -> Result<Verdict> {
    if args.write {
        let page = read(PAGE)?;
        let written = Sources::read()?.page(&page)?;
        if written != page {
            fs::write(tree::root().join(PAGE), written).with_context(|| format!("write {PAGE}"))?;
        }
    }
    let findings = check()?;
    Ok(match findings.is_empty() {
        true => {
            let (switches, points) = (Switch::ALL.len(), FailPoint::ALL.len());
            Verdict::Clean(format!("{PAGE} lists all {switches} switches and {points} fail points"))
        }
        false => Verdict::Findings(findings),
    })
}

/// What the tree disagrees with its list in.
pub fn check() -> Result<Vec<String>> {
    let page = read(PAGE)?;
    let sources = Sources::read()?;
    let mut findings = differences(&page, &sources.page(&page)?);
    let noticed = cells(&page);
    for &switch in Switch::ALL {
        let name = switch.name();
        if !sources.asked.contains(name) {
            findings.push(format!("{name}: nothing asks whether it is on"));
        }
        let tests = links(noticed.get(name).map_or("", String::as_str));
        if tests.is_empty() {
            findings.push(format!("{PAGE}: {name} names no test"));
        }
        for file in tests {
            if !turns_on(&read(&file)?, switch) {
                findings.push(format!("{PAGE}: {file} does not turn {name} on"));
            }
        }
    }
    for point in FailPoint::ALL {
        if !sources.passed.contains_key(point.name()) {
            findings.push(format!("the fail point {point}: nothing passes it"));
        }
    }
    Ok(findings)
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(tree::root().join(path)).with_context(|| format!("read {path}"))
}

/// What the sources do with the list.
struct Sources {
    /// Switches that something asks for.
    asked: BTreeSet<&'static str>,
    /// The files in which each fail point is passed.
    passed: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Sources {
    fn read() -> Result<Sources> {
        let mut sources = Sources { asked: BTreeSet::new(), passed: BTreeMap::new() };
        for path in tree::files()?.into_iter().filter(|path| path.ends_with(".rs")) {
            if BREAKABLE.iter().any(|part| path.starts_with(part)) {
                sources.look_at(&path, &read(&path)?);
            }
        }
        Ok(sources)
    }

    fn look_at(&mut self, path: &str, text: &str) {
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let code = code.join("\n");
        self.asked.extend(Switch::ALL.iter().filter(|switch| names(&code, "Switch", switch)).map(|s| s.name()));
        if FALLIBLE.iter().any(|part| path.starts_with(part)) {
            for point in FailPoint::ALL.iter().filter(|point| names(&code, "FailPoint", point)) {
                self.passed.entry(point.name()).or_default().insert(path.to_owned());
            }
        }
    }

    /// The page with the tables that the list makes.
    fn page(&self, page: &str) -> Result<String> {
        let noticed = cells(page);
        let switches = Switch::ALL.iter().map(|switch| {
            let value = switch.value().map_or_else(String::new, |value| format!("={}", value.to_uppercase()));
            let tests = noticed.get(switch.name()).map_or("", String::as_str);
            format!("| `{}{value}` | {} | {tests} |", switch.name(), switch.about())
        });
        let points = FailPoint::ALL.iter().map(|point| {
            let files = self.passed.get(point.name()).into_iter().flatten();
            let files: Vec<String> = files.map(|file| format!("[{file}](../{file})")).collect();
            format!("| `{point}` | {} | {} |", point.about(), files.join(", "))
        });
        let page = replaced(page, SWITCHES, &switches.collect::<Vec<_>>())?;
        replaced(&page, POINTS, &points.collect::<Vec<_>>())
    }
}

/// Whether code names a variant of an enum: `Switch::TlbFlush`, and not only the beginning of
/// another.
fn names(code: &str, list: &str, variant: &impl std::fmt::Debug) -> bool {
    let name = format!("{list}::{variant:?}");
    code.split(&name).skip(1).any(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// Whether a test's source turns a switch on, in code or by its name.
fn turns_on(text: &str, switch: Switch) -> bool {
    let quoted = |text: &str| text.split('"').skip(1).step_by(2).any(|text| text.contains(switch.name()));
    names(text, "Switch", &switch) || text.lines().any(quoted)
}

/// The page with other rows below a table's head.
fn replaced(page: &str, head: [&str; 2], rows: &[String]) -> Result<String> {
    let head = head.join("\n");
    let (before, after) = page.split_once(&format!("{head}\n")).with_context(|| format!("{PAGE} has no {head:?}"))?;
    ensure!(!after.contains(&head), "{PAGE} has {head:?} twice");
    let mut rest = after;
    while rest.starts_with('|') {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
    }
    Ok(format!("{before}{head}\n{}\n{rest}", rows.join("\n")))
}

/// The last cell of each row of the page's tables, by the name in the first.
fn cells(page: &str) -> BTreeMap<String, String> {
    let row = |line: &str| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        let last = rest.strip_suffix(" |")?.rsplit_once(" | ").map_or("", |(_, last)| last);
        Some((name.split('=').next()?.to_owned(), last.trim().to_owned()))
    };
    page.lines().filter_map(row).collect()
}

/// The files that a cell links, from the root of the tree.
fn links(cell: &str) -> Vec<String> {
    cell.split("](../").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
}

/// Which rows a page lacks, and which it has too many.
fn differences(page: &str, wanted: &str) -> Vec<String> {
    if page == wanted {
        return Vec::new();
    }
    let (there, right): (Vec<&str>, Vec<&str>) = (page.lines().collect(), wanted.lines().collect());
    let missing =
        right.iter().filter(|line| !there.contains(line)).map(|line| format!("{PAGE}: there should be {line}"));
    let surplus =
        there.iter().filter(|line| !right.contains(line)).map(|line| format!("{PAGE}: there should not be {line}"));
    let mut findings: Vec<String> = missing.chain(surplus).collect();
    findings.push(format!("{PAGE}: `cargo xtask switches --write` writes it"));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(row: &str) -> String {
        let (switches, points) = (SWITCHES.join("\n"), POINTS.join("\n"));
        format!("Text.\n\n{switches}\n{row}\n\n## Fail points\n\n{points}\n| `vec` | old | |\n")
    }

    fn sources() -> Sources {
        let mut sources = Sources { asked: BTreeSet::new(), passed: BTreeMap::new() };
        sources.look_at("driver/src/a.rs", "failpoint(FailPoint::Vec)?;\n// Switch::Unregister\n");
        sources.look_at("gpu/src/b.rs", "if has(Switch::SkipTlbFlush) { FailPoint::Arc }\n");
        sources
    }

    #[test]
    fn sources_say_who_asks_and_who_passes() {
        let sources = sources();
        assert_eq!(sources.asked.iter().collect::<Vec<_>>(), [&"gpu.skip_tlb_flush"]);
        assert_eq!(sources.passed.keys().collect::<Vec<_>>(), [&"vec"], "the GPU is no host");
        assert!(!names("Switch::RangeEndings", "Switch", &Switch::RangeEnd));
        assert!(names("Switch::RangeEnd", "Switch", &Switch::RangeEnd));
    }

    #[test]
    fn the_page_keeps_its_text_and_its_tests() {
        let old =
            page("| `gpu.short_copy` | old | [a](../a.rs), [b](../c/b.rs) |\n| `cu.handler=OLD` | x | [h](../h.rs) |");
        let new = sources().page(&old).unwrap();
        assert!(new.starts_with("Text.\n\n| switch |") && new.contains("\n\n## Fail points\n\n| fail point |"));
        let about = Switch::ShortCopy.about();
        assert!(new.contains(&format!("\n| `gpu.short_copy` | {about} | [a](../a.rs), [b](../c/b.rs) |\n")));
        assert!(new.contains("\n| `cu.handler=OPERATION` | ") && cells(&new)["cu.handler"] == "[h](../h.rs)");
        assert!(new.contains("\n| `vec` | a growable array | [driver/src/a.rs](../driver/src/a.rs) |\n"));
        assert_eq!(links(&cells(&new)["gpu.short_copy"]), ["a.rs", "c/b.rs"]);
        assert_eq!(sources().page(&new).unwrap(), new);
        assert!(differences(&old, &new).iter().any(|finding| finding.contains("there should not be | `vec` | old")));
        assert!(differences(&new, &new).is_empty());
        assert!(sources().page("no tables").is_err());
    }

    #[test]
    fn a_test_turns_a_switch_on_by_either_name() {
        assert!(turns_on("with(Switch::Swapped)", Switch::Swapped));
        assert!(turns_on("(\"a\", \"cu.handler=v_mov_b32\")", Switch::Handler));
        assert!(!turns_on("// cu.handler, swapped", Switch::Handler));
        assert!(!turns_on("\"a\" virtio-gpu.swapped \"b\"", Switch::Swapped));
    }
}
