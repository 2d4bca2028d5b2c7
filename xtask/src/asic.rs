// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask asic`: the device's register tables against the kernel's headers.
//!
//! Mechanism: the tables of `asic/src/registers` are read as text, line by line. The kernel has a
//! header with the blocks' base addresses, and a header of offsets for each block; a register is at
//! base plus offset. Every line must be there, with the same number.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};

use xtask_base::{cache, tree, Verdict};

/// Check the device's register tables against the headers of a kernel's source
///
/// `cargo xtask vm setup` gets a source into the cache; `--source` names another.
///
/// Exit status: 0 all registers agree with the kernel, 1 findings, 2 cannot check.
#[derive(clap::Args)]
pub struct Args {
    /// Compare, which is all that this task does
    #[arg(long)]
    check: bool,
    /// The kernel's source
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
}

/// The files of tables.
const TABLES: [&str; 4] = ["gc.rs", "hub.rs", "sdma.rs", "system.rs"];
/// Below a kernel's source.
const HEADERS: &str = "drivers/gpu/drm/amd/include";
const BASES: &str = "aldebaran_ip_offset.h";

/// A block and the headers that the driver uses for it. What names have in front in the headers and
/// not in the tables.
const BLOCKS: [(&str, &[&str], &str); 9] = [
    ("GC", &["gc/gc_9_0_offset.h", "gc/gc_9_4_2_offset.h"], ""),
    ("MMHUB", &["mmhub/mmhub_1_7_offset.h"], ""),
    ("SDMA0", &["sdma0/sdma0_4_2_2_offset.h"], "SDMA0_"),
    ("NBIO", &["nbio/nbio_7_4_offset.h"], ""),
    ("OSSSYS", &["oss/osssys_4_2_0_offset.h"], ""),
    ("ATHUB", &["athub/athub_1_0_offset.h"], ""),
    ("HDP", &["hdp/hdp_4_0_offset.h"], ""),
    ("MP0", &["mp/mp_13_0_2_offset.h"], ""),
    ("SMUIO", &["smuio/smuio_13_0_2_offset.h"], ""),
];

/// A line of a table.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    ip: String,
    /// The name, with `{}` for the number of several.
    name: String,
    at: u64,
    count: u64,
    stride: u64,
}

/// The lines of a table file.
fn lines(text: &str) -> Vec<Line> {
    let mut ip = None;
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('"').and_then(|line| line.strip_suffix("\":")) {
            ip = Some(name.to_owned());
        } else if line == "}" {
            ip = None;
        }
        let (Some(ip), Some((left, right))) = (&ip, line.split_once(" = 0x")) else { continue };
        let Some(at) = right.strip_suffix(';').and_then(|at| u64::from_str_radix(at, 16).ok()) else { continue };
        let several = left.split_once(" [\"").and_then(|(_, rest)| {
            let (pattern, rest) = rest.trim_end_matches(']').split_once("\"; ")?;
            let (count, stride) = rest.split_once(" * ")?;
            Some((pattern.to_owned(), count.parse().ok()?, stride.parse().ok()?))
        });
        let (name, count, stride) = several.unwrap_or_else(|| (left.to_owned(), 1, 1));
        found.push(Line { ip: ip.clone(), name, at, count, stride });
    }
    found
}

fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The base addresses of the first instance of each block.
fn bases(text: &str) -> HashMap<String, Vec<u64>> {
    let mut found = HashMap::new();
    for line in text.lines() {
        let Some((name, rest)) = line.strip_prefix("static const struct IP_BASE ").and_then(|l| l.split_once("_BASE"))
        else {
            continue;
        };
        let numbers = rest.rsplit_once("{ { { { ").map_or("", |(_, rest)| rest).split('}').next().unwrap_or_default();
        found.insert(name.trim().to_owned(), numbers.split(',').filter_map(number).collect());
    }
    found
}

/// Registers of a header: offset and segment, by name.
fn offsets(text: &str, into: &mut HashMap<String, (u64, usize)>) {
    let mut segments = HashMap::new();
    let mut values = HashMap::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        if words.next() != Some("#define") {
            continue;
        }
        let (Some(name), Some(value)) = (words.next(), words.next().and_then(number)) else { continue };
        let name = name.strip_prefix("mm").or_else(|| name.strip_prefix("reg")).unwrap_or(name);
        match name.strip_suffix("_BASE_IDX") {
            Some(name) => segments.insert(name, value),
            None => values.insert(name, value),
        };
    }
    for (name, value) in values {
        let segment = segments.get(name).and_then(|segment| usize::try_from(*segment).ok()).unwrap_or(0);
        into.insert(name.to_owned(), (value, segment));
    }
}

/// The differences of `lines` from a block's registers.
fn compare(lines: &[&Line], prefix: &str, registers: &HashMap<String, (u64, usize)>, bases: &[u64]) -> Vec<String> {
    let mut findings = Vec::new();
    for line in lines {
        for index in 0..line.count {
            let name = format!("{prefix}{}", line.name.replace("{}", &index.to_string()));
            let own = line.at + index * line.stride;
            // A copy engine's table is relative to the engine.
            let theirs = registers.get(&name).and_then(|(offset, segment)| match prefix {
                "" => bases.get(*segment).map(|base| base + offset),
                _ => Some(*offset),
            });
            match theirs {
                Some(theirs) if theirs == own => {}
                Some(theirs) => {
                    findings.push(format!("{}.{name}: {own:#x}, and {theirs:#x} in the kernel's headers", line.ip));
                }
                None => findings.push(format!("{}.{name}: the kernel's headers do not have it", line.ip)),
            }
        }
    }
    findings
}

/// The source that `vm setup` has left in the cache.
fn cached_source() -> Result<PathBuf> {
    let root = cache::root()?.join("vm");
    let entries = fs::read_dir(&root).with_context(|| format!("list {}", root.display()))?;
    let mut sources: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    sources.retain(|path| path.join(HEADERS).is_dir());
    sources.sort();
    sources.pop().context("no kernel's source is in the cache: run `cargo xtask vm setup`, or give --source")
}

pub fn run(args: &Args) -> Result<Verdict> {
    ensure!(args.check, "there is nothing to do without --check");
    let source = args.source.clone().map_or_else(cached_source, Ok)?;
    let headers = source.join(HEADERS);
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
    let bases = bases(&read(&headers.join(BASES))?);
    let mut tables = Vec::new();
    for name in TABLES {
        tables.extend(lines(&read(&tree::root().join("asic/src/registers").join(name))?));
    }
    let mut findings = Vec::new();
    for line in &tables {
        if !BLOCKS.iter().any(|(ip, ..)| *ip == line.ip) {
            findings.push(format!("{}.{}: no header is known for this block", line.ip, line.name));
        }
    }
    for (ip, files, prefix) in BLOCKS {
        let mut registers = HashMap::new();
        for file in files {
            offsets(&read(&headers.join("asic_reg").join(file))?, &mut registers);
        }
        let own: Vec<&Line> = tables.iter().filter(|line| line.ip == ip).collect();
        ensure!(!own.is_empty(), "the tables have no register of {ip}: they are written in another way now");
        findings.extend(compare(&own, prefix, &registers, bases.get(ip).map_or(&[], Vec::as_slice)));
    }
    let count: u64 = tables.iter().map(|line| line.count).sum();
    let place = source.display();
    Ok(match findings.is_empty() {
        true => Verdict::Clean(format!("{count} registers in {} lines are where {place} has them", tables.len())),
        false => Verdict::Findings(findings),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "registers! {\n    \"GC\":\n    A = 0x2001;\n    B [\"B{}_X\"; 2 * 4] = 0xa010;\n}\nconst C = 0x5;\n";

    fn kernel() -> (HashMap<String, (u64, usize)>, Vec<u64>) {
        let mut registers = HashMap::new();
        let header = "#define mmA 0x0001\n#define mmA_BASE_IDX 0\n#define regB0_X 0x10 \n#define regB0_X_BASE_IDX 1\n\
                      #define regB1_X 0x14\n#define regB1_X_BASE_IDX 1\n";
        offsets(header, &mut registers);
        let text = "static const struct IP_BASE GC_BASE            = { { { { 0x00002000, 0x0000A000, 0, 0 } },\n";
        (registers, bases(text)["GC"].clone())
    }

    #[test]
    fn tables_are_read_and_compared_line_by_line() {
        let table = lines(TABLE);
        assert_eq!(table.len(), 2);
        assert_eq!((table[1].name.as_str(), table[1].count, table[1].stride), ("B{}_X", 2, 4));
        let (registers, bases) = kernel();
        let all: Vec<&Line> = table.iter().collect();
        assert!(compare(&all, "", &registers, &bases).is_empty());
        let wrong = lines(&TABLE.replace("0x2001", "0x2002").replace("B{}", "D{}"));
        let all: Vec<&Line> = wrong.iter().collect();
        assert_eq!(compare(&all, "", &registers, &bases).len(), 3);
    }

    #[test]
    fn every_line_of_the_tree_is_read() {
        for name in TABLES {
            let text = fs::read_to_string(tree::root().join("asic/src/registers").join(name)).unwrap();
            let written =
                text.lines().filter(|line| line.contains(" = 0x") && line.ends_with(';') && !line.contains("const "));
            assert_eq!(lines(&text).len(), written.count(), "{name}");
        }
    }
}
