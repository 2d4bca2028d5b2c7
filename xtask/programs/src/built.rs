// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Directories in which users have built suites that no package has.
//!
//! Mechanism: a suite's README says how it is built, and the shape of the build directory follows
//! from the suite's own build files. Nothing is compiled here: programs are found by their names.
//! Programs that an expectation file names and that were not built are named, and are no finding.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};

use super::expected::Expectations;
use super::suite::Suite;

/// The programs in a directory, in the order of their names: files that may be executed, without
/// libraries and objects. None if there is no such directory.
pub fn programs(directory: &Path) -> Result<Vec<PathBuf>> {
    if !directory.is_dir() {
        return Ok(Vec::new());
    }
    let mut programs = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))? {
        let path = entry?.path();
        if is_program(&path)? {
            programs.push(path);
        }
    }
    programs.sort_unstable();
    Ok(programs)
}

/// Whether a file is one that may be executed by itself.
pub fn is_program(path: &Path) -> Result<bool> {
    let Ok(about) = fs::metadata(path) else { return Ok(false) };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let is_library = [".so", ".o", ".a", ".co", ".code"].iter().any(|end| name.ends_with(end)) || name.contains(".so.");
    if !about.is_file() || about.permissions().mode() & 0o111 == 0 || is_library {
        return Ok(false);
    }
    let mut start = [0; 4];
    let mut file = fs::File::open(path).with_context(|| format!("open {}", path.display()))?;
    let begins = file.read(&mut start).with_context(|| format!("read {}", path.display()))?;
    Ok(start[..begins] == *b"\x7fELF" || start[..begins].starts_with(b"#!"))
}

/// What a suite's file names and its user has not built, for people; an error if nothing was built.
pub fn absent(suite: &dyn Suite, source: &Path, how: &str, expected: &Expectations) -> Result<Option<String>> {
    let units = suite.units(source)?;
    let at = source.display();
    ensure!(!units.is_empty(), "{}: {at} has none of its programs: {how}", suite.name());
    let absent: Vec<_> = expected
        .units()
        .into_iter()
        .filter(|unit| expected.names_unit(unit) && !units.iter().any(|has| has == unit))
        .collect();
    Ok((!absent.is_empty()).then(|| {
        let (count, all) = (absent.len(), absent.join(", "));
        format!("{}: {count} programs that its file names are not in {at}: {all}", suite.name())
    }))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::Parser;

    use super::super::{run, Args};
    use super::*;
    use xtask_base::Verdict;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// Stands for `vkfd`, and runs the program alone.
    const VKFD: &str = "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nexec \"$@\"\n";

    /// Writes a program by another process: none of this one's children may hold it open at its
    /// start.
    fn program(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        let source = path.with_extension("text");
        fs::write(&source, text).expect("written");
        let status = Command::new("install").args(["-m", "755"]).args([&source, path]).status().expect("install");
        assert!(status.success());
    }

    /// A program of Catch2 with these cases, one of which may fail.
    fn catch(cases: &[&str], fails: &str) -> String {
        let names = cases.join("\n");
        format!(
            r#"#!/bin/sh
# --list-test-names-only
names() {{ cat <<END
{names}
END
}}
case "$*" in *--list-test-names-only*) names; exit 0;; esac
for wanted; do :; done
end=0
names > "$0.$$"
while read -r name; do
    case "$wanted" in xml|*"$name"*) ;; *) continue;; esac
    right=true
    if [ "$name" = "{fails}" ]; then right=false end=1; fi
    echo "<TestCase name=\"$name\"><OverallResult success=\"$right\"/></TestCase>"
done < "$0.$$"
rm "$0.$$"
exit $end
"#
        )
    }

    /// A program that says a line.
    fn says(line: &str) -> String {
        format!("#!/bin/sh\necho '{line}'\n")
    }

    fn findings(at: &Path, suite: &str) -> Vec<String> {
        let vkfd = at.join("vkfd");
        program(&vkfd, VKFD);
        let words = [at.join("build"), vkfd].map(|path| path.display().to_string());
        let line = ["programs", suite, "--target", "gfx900", "--built", &words[0], "--vkfd", &words[1]];
        match run(&Line::parse_from(line).args).expect("it runs") {
            Verdict::Clean(_) => Vec::new(),
            Verdict::Findings(findings) => findings,
        }
    }

    #[test]
    fn hip_catch_runs_as_its_readme_builds_it() {
        let (events, constants) = (
            ["Unit_hipEventDestroy_Unfinished", "Unit_hipEventDestroy_WithWaitingStream"],
            ["Unit_kernel_chkConstantViaKernel"],
        );
        for (destroy, constant) in [
            // A program of each category, and one of each file.
            ("event/EventTest", "kernel/KernelTest"),
            ("event/hipEventDestroy", "kernel/hipTestConstant"),
        ] {
            for fails in ["", events[1]] {
                let at = tempfile::tempdir().expect("a directory");
                let units = at.path().join("build/catch_tests/unit");
                let other = ["Unit_nobody_knows"];
                program(&units.join(destroy), &catch(&events, fails));
                program(&units.join(constant), &catch(&constants, ""));
                program(&units.join("event/another"), &catch(&other, other[0]));
                // A helper of a test is no program of Catch2.
                program(&units.join("kernel/helper_exe"), &says("nothing"));
                let found = findings(at.path(), "hip-catch");
                match fails.is_empty() {
                    true => assert_eq!(found, [""; 0]),
                    false => {
                        assert_eq!(found.len(), 1, "{found:?}");
                        assert!(
                            found[0].contains(&format!("event/hipEventDestroy: {fails}: new failure")),
                            "{found:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_case_that_a_built_program_lacks_is_a_finding() {
        let at = tempfile::tempdir().expect("a directory");
        let units = at.path().join("build/catch_tests/unit");
        program(&units.join("event/hipEventDestroy"), &catch(&["Unit_hipEventDestroy_Unfinished"], ""));
        let found = findings(at.path(), "hip-catch");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("Unit_hipEventDestroy_WithWaitingStream") && found[0].contains("did not show"));
    }

    #[test]
    fn samples_and_examples_run_as_their_readmes_build_them() {
        for (suite, right, wrong, line) in [
            ("hip-samples", "0_Intro/square/square", "2_Cookbook/9_unroll/unroll", "PASSED!"),
            ("rocm-examples", "HIP-Basic/events/hip_events", "HIP-Basic/saxpy/hip_saxpy", "Validation passed."),
        ] {
            let at = tempfile::tempdir().expect("a directory");
            program(&at.path().join("build").join(right), &says(line));
            assert_eq!(findings(at.path(), suite), [""; 0], "{suite}");
            program(&at.path().join("build").join(wrong), &says("FAILED"));
            let found = findings(at.path(), suite);
            assert!(found.len() == 1 && found[0].contains("new failure"), "{found:?}");
        }
    }

    #[test]
    fn a_suite_that_is_not_built_says_in_a_line_how_it_is() {
        for suite in ["hip-catch", "hip-samples", "rocm-examples", "opencl-cts"] {
            let error = run(&Line::parse_from(["programs", suite]).args).expect_err("nothing is built").to_string();
            assert!(error.contains("README") && error.contains("--built") && !error.contains('\n'), "{error}");
        }
        let at = tempfile::tempdir().expect("a directory");
        let built = at.path().display().to_string();
        for words in [&["rocrand", "--built", &built][..], &["--built", &built], &["hip-samples", "--built", &built]] {
            let line = Line::parse_from([&["programs"], words].concat());
            assert!(run(&line.args).is_err(), "{words:?}");
        }
    }

    #[test]
    fn opencl_cts_is_found_where_its_readme_builds_it() {
        let at = tempfile::tempdir().expect("a directory");
        let test = at.path().join("test_conformance/geometrics/test_geometrics");
        program(&test, "#!/bin/sh\n");
        let suite = &super::super::opencl_cts::OpenclCts;
        assert_eq!(suite.units(at.path()).expect("units"), ["geometrics"]);
        assert_eq!(suite.built(at.path(), "geometrics").expect("found"), Some(test));
    }
}
