// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Oclgrind's opinion of the same kernels, as an oracle that nobody here wrote. It interprets
//! OpenCL by LLVM's representation, and knows no GPU.

use super::published::{BUGS, TWINS};
use super::{page_has, Case, Given, ALL};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use vkfd_findings::Check;

/// Longer than any kernel takes there by much.
const LIMIT: Duration = Duration::from_secs(120);

/// Beginnings of names of kernels that Oclgrind is not given. It knows no order of memory and no
/// assembly, and runs work-groups to their end, one after the other.
const NOT_ASKED: &[&str] = &[
    "all_groups",
    "answer",
    "handover",
    "lock",
    "matrix",
    "overwrite",
    "registers",
    "scalar_",
    "scalars",
    "ticket",
    "unwritten",
    "write_back",
];

/// Kernels of which Oclgrind says something else.
const OTHERWISE: &[(&str, &str)] = &[
    ("move", "it reports values that are only moved"),
    ("barrier_ended", "OpenCL's barriers are for work-items that have ended, too"),
    ("flag", "a plain store is no flag by OpenCL's rules"),
    ("flag_volatile", "a volatile store is no flag by these rules"),
    ("guess", "a plain load may not guess by these rules"),
];

#[test]
fn oclgrind_has_the_same_opinion() {
    if Command::new("oclgrind-kernel").arg("--version").output().is_err() {
        println!("there is no oclgrind: not compared");
        return;
    }
    let mut table = "| check | bugs that both find | correct kernels, both silent | other opinions |\n".to_owned();
    table += "| --- | --- | --- | --- |\n";
    let mut reasons = "\nOther opinions of Oclgrind:\n\n".to_owned();
    let mut wrong = Vec::new();
    for check in [Check::Memory, Check::Init, Check::Race] {
        let (mut bugs, mut silent, mut other) = (0, 0, 0);
        for (source, (kernel, given, rule)) in cases(check) {
            let says = opinion(check, source, kernel, given);
            let same = says.as_ref().is_ok_and(|says| says.is_some() == rule.is_some());
            let reason = OTHERWISE.iter().find(|(name, _)| *name == kernel).map(|(_, reason)| *reason);
            match reason {
                Some(reason) if !same => {
                    other += 1;
                    reasons += &format!("- `{kernel}`: {reason}.\n");
                }
                None if same => *if rule.is_some() { &mut bugs } else { &mut silent } += 1,
                _ => wrong.push(format!("{kernel} {given:?}: {says:?}, and the check finds {rule:?}; {reason:?}")),
            }
        }
        table += &format!("| {check} | {bugs} | {silent} | {other} |\n");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    page_has("oclgrind", &(table + &reasons));
}

/// The kernels of a check, each with its source.
fn cases(check: Check) -> Vec<(&'static str, Case)> {
    let lists = ALL.iter().filter(|(of, _)| *of == check).flat_map(|(_, lists)| lists.iter().copied().flatten());
    let mut cases: Vec<(&str, Case)> = lists.map(|case| ("planted", *case)).collect();
    if check == Check::Race {
        let bugs = BUGS.iter().filter(|(.., rule, _)| rule.starts_with("race/"));
        cases.extend(bugs.map(|&(kernel, given, rule, _)| ("published", (kernel, given, Some(rule)))));
        cases.extend(TWINS.iter().map(|&(kernel, given)| ("published", (kernel, given, None))));
    }
    cases.retain(|(_, (kernel, ..))| !NOT_ASKED.iter().any(|name| kernel.starts_with(name)));
    cases
}

/// The first line that Oclgrind says of a kernel.
fn opinion(check: Check, source: &str, kernel: &str, given: Given) -> Result<Option<String>, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/checks");
    let directory = std::env::temp_dir().join(format!("vkfd-oclgrind-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let read = |name: &str| std::fs::read_to_string(here.join(name)).expect("a source");
    let text = read("oclgrind.h") + &read(&format!("{source}.cl"));
    std::fs::write(directory.join("kernels.cl"), text).expect("a source");
    let input = if given.unwritten { "noinit".into() } else { format!("uint fill={}", given.first) };
    let items = 128 * given.groups;
    let run = format!("kernels.cl\n{kernel}\n{items} 1 1\n128 1 1\n<size=1024 {input}>\n<size=400 uint fill=0>\n");
    std::fs::write(directory.join("run.sim"), run).expect("a description");
    let mut command = Command::new("oclgrind-kernel");
    command.args(match check {
        Check::Race => &["--data-races"][..],
        Check::Init => &["--uninitialized"],
        _ => &[],
    });
    command
        .args(["--max-errors", "4", "--log", "log", "run.sim"])
        .current_dir(&directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().expect("oclgrind");
    let begun = Instant::now();
    let ended = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break Ok(status),
            None if begun.elapsed() > LIMIT => break Err("it does not end".to_owned()),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    let said = std::fs::read_to_string(directory.join("log")).unwrap_or_default();
    let _ = std::fs::remove_dir_all(&directory);
    let status = ended?;
    if !status.success() {
        return Err(format!("{status}: {said}"));
    }
    Ok(said.lines().find(|line| !line.is_empty()).map(str::to_owned))
}
