// SPDX-License-Identifier: GPL-2.0 OR MIT
//! piglit's OpenCL programs, as Debian 13 packages them, on its OpenCL for AMD GPUs (5.7.1, on ROCR
//! 6.1.2).
//!
//! Mechanism: a group of tests stands for a program here, and a case is one of them. It is a file
//! of OpenCL C that names its kernels, their arguments and results: `cl-program-tester` runs it. Or
//! it is a program that tries a call of the interface. Each has a process of its own, and says
//! its result in a line of JSON. piglit's own runner, which is Python, is not used.
//!
//! Limits: the files whose tests compare nothing say "pass" when they compile.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use super::built;
use super::machine::Machine;
use super::matches;
use super::ran::Ran;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;

pub struct Piglit;

/// Where the package is in the root.
const PIGLIT: &str = "/usr/lib/x86_64-linux-gnu/piglit";
/// What runs a file of tests.
const TESTER: &str = "cl-program-tester";
/// Groups of files, by their directory.
const FILES: [(&str, &str); 13] = [
    ("atomic", "tests/cl/program/execute/builtin/atomic"),
    ("build", "tests/cl/program/build"),
    ("build-fail", "tests/cl/program/build/fail"),
    ("common", "generated_tests/cl/builtin/common"),
    ("convert", "tests/cl/program/execute/builtin/convert"),
    ("execute", "tests/cl/program/execute"),
    ("int", "generated_tests/cl/builtin/int"),
    ("math", "generated_tests/cl/builtin/math"),
    ("misc", "generated_tests/cl/builtin/misc"),
    ("relational", "generated_tests/cl/builtin/relational"),
    ("store", "generated_tests/cl/store"),
    ("vload", "generated_tests/cl/vload"),
    ("vstore", "generated_tests/cl/vstore"),
];
/// Groups of programs, by how their names begin.
const PROGRAMS: [(&str, &str); 3] = [("api", "cl-api-"), ("custom", "cl-custom-"), ("program", "cl-program-")];
/// What begins a file's description of its tests; a file without it is a part of another.
const DESCRIBED: &str = "[config]";

/// A test: the name of its case, the program that is run, and what it is given.
struct Test {
    name: String,
    program: String,
    file: Option<String>,
}

/// The tests of a group, in the order of their names.
fn tests(root: &Path, group: &str) -> Result<Vec<Test>> {
    let piglit = root.join(PIGLIT.trim_start_matches('/'));
    let mut tests = Vec::new();
    if let Some((_, begin)) = PROGRAMS.iter().find(|(name, _)| *name == group) {
        for path in built::programs(&piglit.join("bin"))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(test) = name.strip_prefix(begin).filter(|_| name != TESTER) {
                tests.push(Test { name: test.into(), program: format!("{PIGLIT}/bin/{name}"), file: None });
            }
        }
    }
    let directories = FILES.iter().filter(|(name, _)| *name == group);
    for (_, directory) in directories {
        let at = piglit.join(directory);
        for entry in fs::read_dir(&at).with_context(|| format!("read {}", at.display()))? {
            let path = entry?.path();
            let is_file = path.extension().is_some_and(|end| end == "cl" || end == "program_test");
            if !is_file || !String::from_utf8_lossy(&fs::read(&path)?).contains(DESCRIBED) {
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let file = Some(format!("{PIGLIT}/{directory}/{name}"));
            let name = name.trim_end_matches(".generated.cl").trim_end_matches(".cl").to_owned();
            tests.push(Test { name, program: format!("{PIGLIT}/bin/{TESTER}"), file });
        }
    }
    ensure!(!tests.is_empty(), "piglit's package has no tests of {group}: it is another version");
    tests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tests)
}

impl Suite for Piglit {
    fn name(&self) -> &'static str {
        "piglit"
    }

    fn about(&self) -> &'static str {
        "piglit's OpenCL programs, on Debian 13's OpenCL 5.7.1"
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn source(&self) -> Source {
        // The compiler looks for one of clang's headers if it has a warning to print.
        Source::Root { suite: "trixie", packages: &["piglit", "rocm-opencl-icd", "libclang-common-17-dev"] }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx900"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(60 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn units(&self, _source: &Path) -> Result<Vec<String>> {
        let groups = FILES.iter().chain(&PROGRAMS);
        Ok(groups.map(|(name, _)| (*name).to_owned()).collect())
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        // piglit's runner sets it.
        &[("LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu/piglit/lib")]
    }

    fn in_guest(&self) -> &'static [&'static str] {
        // Where the processor is emulated, each compilation takes seconds.
        &[]
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let root = unit.root.context("piglit is in a root")?;
        let mut cases = Vec::new();
        for Test { name, program, file } in tests(root, unit.name)? {
            if unit.left_out.iter().any(|pattern| matches(pattern, &name)) {
                continue;
            }
            let file: Vec<_> = file.as_deref().into_iter().collect();
            let ran = machine.run_in_root(unit, &program, self.options(unit.name), &file, self.patience())?;
            cases.push(Case::of(unit.name, &name, self.judge(unit.name, &ran)));
        }
        Ok(cases)
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        match result(&ran.stdout).as_deref() {
            Some("pass") if ran.code == Some(0) => Outcome::Passed,
            Some("skip") => Outcome::Skipped(why(ran)),
            _ => Outcome::Failed(why(ran)),
        }
    }

    fn controls(&self) -> &'static [Control] {
        const { &[Control::new("cu.handler=v_mov_b32", "convert", "gfx900")] }
    }
}

/// What a test says at its end: a line with `PIGLIT:` and JSON, after those of its parts.
fn result(stdout: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Said {
        result: Option<String>,
    }
    let said = stdout.lines().filter_map(|line| line.strip_prefix("PIGLIT:"));
    said.filter_map(|json| serde_json::from_str::<Said>(json).ok()?.result).next_back()
}

/// What a test says of itself: the first line that calls itself a mistake, or the last one.
fn why(ran: &Ran) -> String {
    let lines = || ran.stdout.lines().chain(ran.stderr.lines()).map(str::trim).filter(|line| !line.is_empty());
    let is_mistake = |line: &&str| {
        ["Expecting", "Error", "error:", "expected", "Unexpected", "vkfd:"].iter().any(|word| line.contains(word))
    };
    let line = lines().find(is_mistake).or_else(|| lines().rfind(|line| !line.starts_with("PIGLIT:")));
    line.map_or_else(|| ran.why(), |line| line.chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_result_of_a_test_counts() {
        let text = "what\nPIGLIT: {\"subtest\": {\"one\" : \"fail\"}}\nPIGLIT: {\"result\": \"fail\" }\n";
        assert_eq!(result(text).as_deref(), Some("fail"));
        assert_eq!(result("PIGLIT: {\"subtest\": {\"one\" : \"pass\"}}\n"), None);
        let ran =
            |said: &str, code| Ran { code, stdout: format!("PIGLIT: {{\"result\": \"{said}\" }}\n"), ..Ran::default() };
        assert_eq!(Piglit.judge("int", &ran("pass", Some(0))), Outcome::Passed);
        assert!(matches!(Piglit.judge("int", &ran("skip", Some(0))), Outcome::Skipped(_)));
        for ran in [ran("pass", None), ran("fail", Some(0)), Ran { code: Some(0), ..Ran::default() }] {
            assert!(matches!(Piglit.judge("int", &ran), Outcome::Failed(_)));
        }
    }
}
