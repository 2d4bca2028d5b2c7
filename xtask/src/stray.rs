// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask stray`: rules of the tree that no compiler checks.
//!
//! Mechanism: git lists the files (tracked, and new ones that are not ignored), each rule looks at
//! one file's text.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::rooms::{Rooms, CRATES};
use crate::{calls, circles, file_circles, marks, prose, second_locks, sources, switches};
use xtask_base::{tree, Verdict};
use xtask_programs as programs;

/// Check the tree's own rules: host cfg, SPDX lines, file length, open ranges
///
/// Findings:
///
/// Sources: a cfg that names the host (vkfd_kernel) in a .rs file of driver/ other than
/// driver/src/os/mod.rs, because the driver's source must be the same on every host. A .rs, .c or
/// .h file without the line "SPDX-License-Identifier: GPL-2.0 OR MIT" at its start. A .rs file of
/// more than 700 lines. A line of a comment of more than 100 columns that is no row of a table.
///
/// Code in a program's process: a thread of the standard library, or thread-local data that may
/// have a destructor. Both take the loader's lock (docs/design/locks.md).
///
/// Code in the kernel (driver/, wire/, linux/, uapi/, sabotage/, targets/): an open range from a
/// variable that is counted through, as in `(first..).zip(list)`. It steps beyond the last number
/// of its type before it finds the list's end. A kernel that is built with overflow checks ends
/// there.
///
/// Layers: a module of the driver, the software GPU or the user host that names one of another room
/// that is not a lower one. The rooms' order is in xtask/src/rooms.rs. In the crates of
/// xtask/src/circles.rs, modules of the root that know each other in a ring; in the sources of
/// xtask/src/file_circles.rs, files that do.
///
/// Tests: a PATIENCE or HANG of less than a second. A test waits for as long as a busy machine may
/// take, and only hangs end the wait.
///
/// Memory and descriptors: a memory file that is made outside raw/src/memory_file.rs, which seals
/// its size. A message with descriptors that libc's recvmsg reads, which owns none of them. Tests
/// may do both.
///
/// A test in a library that Cargo.toml says has none (`test = false`), unless a file of the
/// package's `tests/` takes the module in by its path.
///
/// Lock files: one beside the workspace's that lacks what a package of the tree depends on.
///
/// Pages: a sabotage switch or fail point that docs/sabotage.md does not list, or lists wrongly
/// (`cargo xtask switches` says more). docs/results.md or README.md's table of results that differs
/// from xtask/programs/results.toml. docs/kfd-calls.md that differs from the dispatch. A comment
/// `NEW TARGET` without its row in docs/extending.md, or the other way round. Code that compares
/// with single targets without such a comment above it.
///
/// Language: in a page or a comment, a sentence against the rules in CONTRIBUTING.md.
///
/// Looks at all files that git tracks and at new ones that it does not ignore.
///
/// Exit status: 0 clean, 1 findings, 2 cannot check (no git).
#[derive(clap::Args)]
pub struct Args {}

const HOST: &str = "vkfd_kernel";
const HOST_FILE: &str = "driver/src/os/mod.rs";
const LICENSE: &str = "SPDX-License-Identifier: GPL-2.0 OR MIT";
const MAX_LINES: usize = 700;
/// What runs in a program's process, where threads are `vkfd_rt::thread`'s. The driver falls back
/// to others where no host has said how threads are made.
const IN_PROCESS: [&str; 7] =
    ["cu/src/", "driver/src/", "gpu/src/", "host/src/", "preload/src/", "raw/src/", "remote/src/guest/"];
const FALLBACK: &str = "driver/src/os/user.rs";
/// Of a comment's line: what is read in one pass is not longer. Code may have 120 (rustfmt.toml).
const MAX_COLUMNS: usize = 100;
/// Calls that only one file may make, tests apart: a part of the call, the file, and the reason.
const ONE_PLACE: [(&str, &str, &str); 2] = [
    ("memfd_create(", "raw/src/memory_file.rs", "its size would not be sealed"),
    ("libc::recvmsg(", "", "descriptors that it installs have no owner; rustix::net::recvmsg gives them one"),
];
/// What is compiled into the kernel module.
const IN_KERNEL: [&str; 6] = ["driver/src/", "wire/src/", "linux/", "uapi/src/", "sabotage/src/", "targets/src/"];

/// Files in a program's process with thread-local variables of the language. A look at one may take
/// malloc's lock when other libraries were loaded since. The event reader waits for a look at none
/// of these. The driver's are for hosts without a place of their own, and for tests.
const THREAD_LOCALS: [&str; 9] = [
    "cu/src/launch/spare.rs",
    FALLBACK,
    "gpu/src/state/pool.rs",
    "host/src/interpose.rs",
    "host/src/interposed.rs",
    "host/src/mm/fork.rs",
    "preload/src/event_wait.rs",
    "preload/src/own_stack.rs",
    "remote/src/guest/fork.rs",
];

pub fn run(_: &Args) -> Result<Verdict> {
    let root = tree::root();
    let mut findings = Vec::new();
    let mut looked_at = 0_usize;
    sources::record()?;
    let mut rooms = Vec::new();
    for of in &CRATES {
        let file = format!("{}lib.rs", of.source);
        rooms.push((of.source, Rooms::new(of, &fs::read_to_string(root.join(&file)).context(file)?)));
    }
    let mut graphs = Vec::new();
    for (source, file) in circles::CRATES {
        let text = fs::read_to_string(root.join(source).join(file)).with_context(|| format!("{source}{file}"))?;
        graphs.push(circles::Graph::new(source, file, &text));
    }
    let mut files = file_circles::SOURCES.map(file_circles::Files::new);
    let mut targets = Vec::new();
    let paths = tree::files()?;
    findings.extend(tests_that_never_run(&paths)?);
    findings.extend(second_locks::check(&paths)?);
    for path in paths {
        if !matches!(extension(&path), "rs" | "c" | "h" | "md") {
            continue;
        }
        let file = root.join(&path);
        let text = fs::read_to_string(&file).with_context(|| format!("read {path}"))?;
        looked_at += 1;
        if !generated(&text) {
            findings.extend(prose::check(&path, &text).iter().map(|finding| finding.at(&path)));
        }
        if extension(&path) == "md" {
            continue;
        }
        findings.extend(check(&path, &text));
        if extension(&path) == "rs" && path != "xtask/src/marks.rs" {
            targets.extend(marks::rows(&path, &text));
            findings.extend(marks::unmarked(&path, &text));
        }
        graphs.iter_mut().for_each(|graph| graph.enter(&path, &text));
        files.iter_mut().for_each(|files| files.enter(&path, &text));
        for (source, rooms) in &rooms {
            if let Some(path) = path.strip_prefix(source).filter(|path| extension(path) == "rs") {
                findings.extend(rooms.check(path, &text));
            }
        }
    }
    findings.extend(graphs.iter().filter_map(circles::Graph::ring));
    findings.extend(files.iter().filter_map(file_circles::Files::circle));
    findings.extend(switches::check()?);
    findings.extend(programs::check_results()?);
    findings.extend(calls::check()?);
    findings.extend(marks::check(&targets)?);
    if findings.is_empty() {
        Ok(Verdict::Clean(format!("{looked_at} files, nothing stray")))
    } else {
        Ok(Verdict::Findings(findings))
    }
}

/// Tests in libraries that cargo makes no test program of.
fn tests_that_never_run(paths: &[String]) -> Result<Vec<String>> {
    let read = |path: &str| fs::read_to_string(tree::root().join(path)).with_context(|| format!("read {path}"));
    let mut findings = Vec::new();
    for package in paths.iter().filter_map(|path| path.strip_suffix("Cargo.toml")) {
        if !has_no_test_program(&read(&format!("{package}Cargo.toml"))?)? {
            continue;
        }
        let below = |directory: &str| {
            let directory = format!("{package}{directory}/");
            paths.iter().filter(move |path| path.starts_with(&directory) && extension(path) == "rs")
        };
        let tests = below("tests").map(|path| read(path)).collect::<Result<Vec<_>>>()?.concat();
        for path in below("src") {
            if read(path)?.contains("#[cfg(test)]") && !tests.contains(&format!("\"../{}\"", &path[package.len()..])) {
                findings.push(format!("{path}: no program runs its tests ({package}Cargo.toml: test = false)"));
            }
        }
    }
    Ok(findings)
}

/// Whether a Cargo.toml says so of its library.
fn has_no_test_program(text: &str) -> Result<bool> {
    let manifest: toml::Table = text.parse().context("a Cargo.toml")?;
    Ok(manifest.get("lib").and_then(|lib| lib.get("test")).and_then(toml::Value::as_bool) == Some(false))
}

fn extension(path: &str) -> &str {
    Path::new(path).extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// Whether a task has written the file: nobody reads it from top to bottom.
fn generated(text: &str) -> bool {
    text.lines().take(8).any(|line| line.contains("enerated by `cargo xtask") || line.contains("Made by `cargo xtask"))
}

/// The findings in one file.
fn check(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let first = text.lines().next().unwrap_or_default();
    if !first.starts_with(['/', '*']) || !first.contains(LICENSE) {
        findings.push(format!("{path}:1: the first line is not a comment with {LICENSE:?}"));
    }
    if extension(path) != "rs" {
        return findings;
    }
    let lines = text.lines().count();
    let generated = generated(text);
    if lines > MAX_LINES && !generated {
        findings.push(format!("{path}: {lines} lines, more than {MAX_LINES}"));
    }
    if !generated {
        let long = long_comments(text);
        findings.extend(long.iter().map(|line| format!("{path}:{line}: a comment of more than {MAX_COLUMNS} columns")));
    }
    if IN_KERNEL.iter().any(|directory| path.starts_with(directory)) {
        let lines = open_ranges(text);
        findings.extend(
            lines.iter().map(|line| format!("{path}:{line}: an open range from a variable can step beyond its type")),
        );
    }
    if is_test(path) {
        let lines = short_patience(text);
        findings.extend(lines.iter().map(|line| format!("{path}:{line}: a busy machine may take longer than this")));
    } else {
        for (call, _, why) in ONE_PLACE.iter().filter(|(_, place, _)| path != *place) {
            let calls = text.lines().zip(1..).filter(|(line, _)| code(line).contains(call));
            findings.extend(calls.map(|(_, line)| format!("{path}:{line}: {call}...): {why}")));
        }
    }
    if is_in_process(path) && !THREAD_LOCALS.contains(&path) && text.contains("thread_local!") {
        findings.push(format!("{path}: a thread-local variable: use vkfd_rt::word where the event reader waits"));
    }
    if is_in_process(path) && path != FALLBACK {
        let lines = other_threads(text);
        findings.extend(lines.iter().map(|line| {
            format!(
                "{path}:{line}: a thread of the standard library's, which takes the loader's lock: use vkfd_rt::thread"
            )
        }));
        let lines = dropped_locals(text);
        findings.extend(lines.iter().map(|line| {
            format!("{path}:{line}: thread-local data that may have a destructor: a Cell, or within ManuallyDrop")
        }));
    }
    if path.starts_with("driver/") && path != HOST_FILE {
        let lines = host_cfgs(text);
        findings.extend(lines.iter().map(|line| format!("{path}:{line}: a cfg names {HOST}; only {HOST_FILE} may")));
    }
    findings
}

/// Whether a file's code runs in a program's process.
fn is_in_process(path: &str) -> bool {
    path.starts_with("rt/src/") || IN_PROCESS.iter().any(|directory| path.starts_with(directory))
}

/// Whether a file is a test's alone.
fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

/// Lines (from 1) with the longest time that a test waits, if it is no second.
fn short_patience(text: &str) -> Vec<usize> {
    let is_short = |line: &str| {
        ["const PATIENCE:", "const HANG:"].iter().any(|name| line.contains(name))
            && ["from_millis(", "from_micros(", "from_nanos("].iter().any(|unit| line.contains(unit))
    };
    (1..).zip(text.lines()).filter(|(_, line)| is_short(line)).map(|(number, _)| number).collect()
}

/// A line without its comment and its texts: near enough for names of calls.
fn code(line: &str) -> String {
    let line = line.split("//").next().unwrap_or_default();
    line.split('"').step_by(2).collect()
}

/// Lines (from 1) that are comments of too many columns. Not what a table or a block of text needs:
/// its lines cannot be broken.
fn long_comments(text: &str) -> Vec<usize> {
    let mut fenced = false;
    let mut long = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            fenced = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!', ' ']);
        fenced ^= comment.starts_with("```");
        if line.chars().count() > MAX_COLUMNS && !fenced && !comment.starts_with('|') {
            long.push(number);
        }
    }
    long
}

/// Lines (from 1), before the file's tests, that start a thread of the standard library.
fn other_threads(text: &str) -> Vec<usize> {
    let code = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
    let starts = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        ["thread::Builder", "std::thread::spawn", "thread::scope"].iter().any(|start| code.contains(start))
    };
    (1..).zip(code).filter(|(_, line)| starts(line)).map(|(number, _)| number).collect()
}

/// Lines (from 1), before the file's tests, of thread-local data that is neither a `Cell`, which
/// has what can be copied, nor within `ManuallyDrop`.
fn dropped_locals(text: &str) -> Vec<usize> {
    let (mut inside, mut found) = (false, Vec::new());
    for (number, line) in (1..).zip(text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"))) {
        let code = line.trim_start();
        inside = inside && code != "}" || code.contains("thread_local! {");
        let data = code.strip_prefix("static ").and_then(|data| data.split_once(": ")).map(|(_, data)| data);
        let plain = |data: &str| data.starts_with("Cell<") || data.starts_with("ManuallyDrop<");
        if inside && data.is_some_and(|data| !plain(data)) {
            found.push(number);
        }
    }
    found
}

/// Lines (from 1) of the `cfg(...)`, `cfg!(...)` and `cfg_attr(...)` that name the host.
fn host_cfgs(text: &str) -> Vec<usize> {
    let mut lines = Vec::new();
    for opening in ["cfg(", "cfg!(", "cfg_attr("] {
        for (start, _) in text.match_indices(opening) {
            let inside = &text[start + opening.len()..];
            if balanced(inside).contains(HOST) {
                lines.push(text[..start].matches('\n').count() + 1);
            }
        }
    }
    lines.sort_unstable();
    lines
}

/// Lines (from 1) with an open range that begins at neither a literal nor a constant and is not an
/// index. Such are `(a..)` by itself, an argument other than `get`'s, and the range of a `for`.
fn open_ranges(text: &str) -> Vec<usize> {
    let fixed = |start: &str| {
        let start = start.trim_start_matches(['(', '&', '-']);
        start.starts_with(|c: char| c.is_ascii_digit())
            || start.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit())
    };
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for (at, _) in code.match_indices("..") {
            let (before, after) = (&code[..at], code[at + 2..].trim_start());
            let start_of = before.rfind([' ', '(', '[', ',']).map_or(0, |space| space + 1);
            let start = before[start_of..].trim();
            let opener = before[..start_of].trim_end();
            let indexed = opener.ends_with('[') || opener.ends_with("get(") || opener.ends_with("get_mut(");
            let counted =
                after.starts_with(')') && opener.ends_with('(') || after.starts_with('{') && opener.ends_with(" in");
            if counted && !indexed && !start.is_empty() && !fixed(start) {
                found.push(number + 1);
            }
        }
    }
    found
}

/// `text` up to the parenthesis that closes the one before it.
fn balanced(text: &str) -> &str {
    let mut depth = 1_usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[..at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPDX: &str = "// SPDX-License-Identifier: GPL-2.0 OR MIT\n";

    #[test]
    fn a_good_file_has_no_findings() {
        assert!(check("driver/src/bo.rs", &format!("{SPDX}#[cfg(test)]\nmod tests {{}}\n")).is_empty());
        assert!(check("data/sample.h", "/* SPDX-License-Identifier: GPL-2.0 OR MIT */\n").is_empty());
    }

    #[test]
    fn the_host_is_named_in_one_file_only() {
        let text = format!("{SPDX}\n#[cfg(all(\n    test,\n    not(vkfd_kernel),\n))]\nfn f() {{}}\n");
        assert_eq!(
            check("driver/src/bo.rs", &text),
            ["driver/src/bo.rs:3: a cfg names vkfd_kernel; only driver/src/os/mod.rs may"]
        );
        assert!(check(HOST_FILE, &text).is_empty());
        assert!(check("host/src/lib.rs", &text).is_empty());
    }

    #[test]
    fn every_kind_of_cfg_is_seen() {
        assert_eq!(host_cfgs("#[cfg_attr(vkfd_kernel, path = \"a.rs\")]\nif cfg!(vkfd_kernel) {}\n"), [1, 2]);
        assert_eq!(host_cfgs("\ncfg!(vkfd_kernel)"), [2]);
        assert!(host_cfgs("// vkfd_kernel\n#[cfg(test)] // vkfd_kernel\n").is_empty());
    }

    #[test]
    fn open_ranges_that_are_counted_through_are_found() {
        let bad = "(first..).zip(slots)\nlist.zip(self.at..)\nfor i in start.. {\n";
        assert_eq!(open_ranges(bad), [1, 2, 3]);
        let good = "(0..).zip(slots)\nlist.get(first..)\n&list[first..]\nlist.get_mut(a..b)\nOk(1..)\n(FIRST..).map(f)\nfn f(a: A, ..)\n\
                    for i in a..b {\nSelf { a, .. }\n// (first..)\nlist[..end]\n";
        assert!(open_ranges(good).is_empty(), "{:?}", open_ranges(good));
        let text = format!("{SPDX}fn f() {{ (a..).next() }}\n");
        assert_eq!(check("wire/src/lib.rs", &text).len(), 1);
        assert!(check("gpu/src/lib.rs", &text).is_empty());
    }

    #[test]
    fn calls_that_have_one_place_are_found_elsewhere() {
        let call = ["memfd", "_create("].concat();
        let text = format!("{SPDX}// {call})\nlet fd = libc::{call}name, 0);\nlibc::recvmsg(fd);\n");
        let found = check("host/src/files.rs", &text);
        assert!(found[0].starts_with("host/src/files.rs:3: memfd_create"), "{found:?}");
        assert!(found[1].starts_with("host/src/files.rs:4: libc::recvmsg"), "{found:?}");
        assert_eq!(check("raw/src/memory_file.rs", &text).len(), 1);
        assert!(check("host/tests/files.rs", &text).is_empty());
        assert!(check("host/src/lib.rs", &format!("{SPDX}let text = {call:?};\n")).is_empty());
    }

    #[test]
    fn threads_of_the_standard_librarys_are_found_where_a_program_is() {
        let text = format!(
            "{SPDX}fn f() {{ std::thread::spawn(g); }}\n// std::thread::spawn\n#[cfg(test)]\nmod tests {{ thread::scope(h); }}\n"
        );
        assert_eq!(check("gpu/src/queue.rs", &text).len(), 1);
        assert!(check("bench/src/lib.rs", &text).is_empty() && check(FALLBACK, &text).is_empty());
    }

    #[test]
    fn thread_local_variables_are_found_where_the_event_reader_may_wait() {
        let text = format!("// {LICENSE}\nthread_local! {{\n    static A: Cell<u8> = const {{ Cell::new(0) }};\n}}\n");
        for (path, findings) in
            [("rt/src/section.rs", 1), ("host/src/uffd.rs", 1), (THREAD_LOCALS[4], 0), ("cli/src/a.rs", 0)]
        {
            assert_eq!(check(path, &text).len(), findings, "{path}");
        }
    }

    #[test]
    fn thread_local_data_with_a_destructor_is_found() {
        let text = |data: &str| {
            format!(
                "{SPDX}thread_local! {{\n    /// Of a thread.\n    static A: {data} = x;\n}}\nstatic B: Vec<u8> = x;\n"
            )
        };
        assert_eq!(dropped_locals(&text("RefCell<Vec<u8>>")), [4]);
        assert!(
            dropped_locals(&text("Cell<u32>")).is_empty() && dropped_locals(&text("ManuallyDrop<Vec<u8>>")).is_empty()
        );
        assert_eq!(check(THREAD_LOCALS[0], &text("String")).len(), 1);
    }

    #[test]
    fn a_test_without_patience_is_found() {
        let text = format!("{SPDX}const PATIENCE: Duration = Duration::from_millis(2);\n");
        let found = check("tests/hunt/src/fuzz.rs", &text);
        assert_eq!(found, ["tests/hunt/src/fuzz.rs:2: a busy machine may take longer than this"]);
        assert!(check("gpu/src/world.rs", &text).is_empty());
        assert!(check("gpu/tests/gpu/rig.rs", &text.replace("millis", "secs")).is_empty());
    }

    #[test]
    fn a_library_without_a_test_program_is_known() {
        let of = |text| has_no_test_program(text).unwrap();
        assert!(of("[lib]\ntest = false\n"));
        assert!(!of("[lib]\ntest = true\n") && !of("[lib]\n") && !of("[[bin]]\ntest = false\n"));
        let files = tree::files().unwrap();
        assert_eq!(tests_that_never_run(&files).unwrap(), [""; 0]);
        let without: Vec<_> = files.into_iter().filter(|path| path != "preload/tests/modules.rs").collect();
        assert_eq!(tests_that_never_run(&without).unwrap().len(), 2);
    }

    #[test]
    fn a_missing_license_line_is_found() {
        assert_eq!(check("host/src/lib.rs", "//! Text.\n").len(), 1);
        assert_eq!(check("data/sample.c", &format!("\n{SPDX}")).len(), 1);
        assert_eq!(check("data/sample.c", "").len(), 1);
    }

    #[test]
    fn a_long_file_is_found() {
        let text = format!("{SPDX}{}", "\n".repeat(MAX_LINES));
        assert_eq!(check("gpu/src/lib.rs", &text), ["gpu/src/lib.rs: 701 lines, more than 700"]);
        assert!(check("gpu/src/lib.rs", &text[..text.len() - 1]).is_empty());
    }

    #[test]
    fn a_long_comment_is_found() {
        let long = "x".repeat(MAX_COLUMNS);
        let text = format!(
            "// short\n    /// {long}\nlet code = \"{long}\";\n//! ```text\n//! {long}\n//! ```\n//! | {long} |\n//! {long}\n"
        );
        assert_eq!(long_comments(&text), [2, 8]);
    }
}
