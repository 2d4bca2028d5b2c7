// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Khronos's OpenCL CTS, as its user has built it, on Debian 13's OpenCL for AMD GPUs (5.7.1, on
//! ROCR 6.1.2). A program is one directory of the tests, a case is a test.
//!
//! Mechanism: the programs run in a root that has the runtime and its loader. A program runs whole,
//! without the tests that the expectation file leaves out, in the quick form of [`PROGRAMS`]. The
//! tests after one that took the program with it, or hung, are run anew without it.
//!
//! Limits: a program has to run with Debian 13's C library. No images, and none of the extensions'
//! programs. The quick forms test a part of the values that the conformance tests are to test: none
//! of this is a claim to conformance.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use super::built;
use super::cts;
use super::machine::Machine;
use super::ran::Ran;
use super::root::WORK;
use super::select::matches;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;

pub struct OpenclCts;

/// A program and how it is asked to be quick.
struct Program {
    /// Its directory.
    name: &'static str,
    program: &'static str,
    /// Before the tests' names, and after them.
    before: &'static [&'static str],
    after: &'static [&'static str],
    /// Whether it takes the tests' names; otherwise it runs all it has.
    is_named: bool,
}

/// Conversions that are tested, `DESTINATION_SOURCE`, of about 1,000. The program takes their names
/// instead of the test's name.
const CONVERSIONS: &[&str] = &[
    "-w",
    "-1",
    "-[4096]",
    "char_sat_rte_float",
    "double_rtn_long",
    "double_ulong",
    "float_rtz_double",
    "float_rtp_ulong",
    "half_float",
    "half_rtz_double",
    "int_half",
    "int_sat_rtz_float",
    "long_sat_rtn_double",
    "short_sat_int",
    "uchar_sat_short",
    "uint_sat_rtp_double",
    "ulong_sat_float",
    "ushort_sat_rte_half",
];

/// These tests compile thousands of kernels: one for each memory order, scope, type and way to
/// reach the atomic. So each runs few rounds of few work-items.
const FEW_THREADS: &[&str] = &["-internalIterations", "100", "-maxDeviceThreads", "128"];

/// A program whose tests take a number of work-items.
const fn sized(name: &'static str, program: &'static str) -> Program {
    Program { name, program, before: &[], after: &["1024"], is_named: true }
}

/// A program that has options.
const fn with(name: &'static str, program: &'static str, before: &'static [&'static str]) -> Program {
    Program { name, program, before, after: &[], is_named: true }
}

/// `-w` is the tests' own quick form. In two programs it can be made quicker: by a factor, and by
/// scalars alone.
const PROGRAMS: &[Program] = &[
    sized("SVM", "test_svm"),
    sized("api", "test_api"),
    sized("atomics", "test_atomics"),
    sized("basic", "test_basic"),
    sized("buffers", "test_buffers"),
    Program { after: FEW_THREADS, ..sized("c11_atomics", "test_c11_atomics") },
    sized("commonfns", "test_commonfns"),
    Program { is_named: false, ..with("conversions", "test_conversions", CONVERSIONS) },
    sized("geometrics", "test_geometrics"),
    with("half", "test_half", &["-w", "-[4096]"]),
    sized("integer_ops", "test_integer_ops"),
    with("math_brute_force", "test_bruteforce", &["-w", "-1", "-[1024]"]),
    sized("printf", "test_printf"),
    sized("profiling", "test_profiling"),
    sized("relationals", "test_relationals"),
    with("select", "test_select", &["-w"]),
    sized("subgroups", "test_subgroups"),
    sized("vectors", "test_vectors"),
    sized("workgroups", "test_workgroups"),
];

/// So many times the time of a program is there for it with its runs anew.
const AGAIN: u32 = 2;
/// Where a program writes its verdicts, in its directory.
const VERDICTS: &str = "verdicts.json";

impl Program {
    fn named(name: &str) -> Result<&'static Program> {
        PROGRAMS.iter().find(|program| program.name == name).with_context(|| format!("{name} is none of the programs"))
    }

    /// Where it is in the build directory.
    fn built(&self, source: &Path) -> PathBuf {
        source.join("test_conformance").join(self.name).join(self.program)
    }
}

impl OpenclCts {
    fn start(&self, machine: &Machine, unit: &Unit<'_>, arguments: &[&str]) -> Result<Ran> {
        let program = unit.program.file_name().context("a program without a name")?;
        let program = format!("{WORK}/{}", program.to_string_lossy());
        machine.run_in_root(unit, &program, self.options(unit.name), arguments, self.patience())
    }

    /// The tests of a program that are not left out.
    fn tests(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<String>> {
        let ran = self.start(machine, unit, &["--list"])?;
        if ran.code.is_none() && ran.stderr.is_empty() {
            // It is noted for a guest.
            return Ok(Vec::new());
        }
        let left_out = |name: &&str| unit.left_out.iter().any(|pattern| matches(pattern, name));
        let tests: Vec<_> = cts::listed(&ran.stdout).filter(|name| !left_out(name)).map(str::to_owned).collect();
        ensure!(ran.code == Some(0), "{} says no tests: {}", unit.name, ran.why());
        Ok(tests)
    }

    /// Runs tests by name; whether the program came to its end.
    fn ask(&self, machine: &Machine, unit: &Unit<'_>, tests: &[&str]) -> Result<(Ran, Ended)> {
        let written = unit.at.join(VERDICTS);
        if written.exists() {
            fs::remove_file(&written).with_context(|| format!("remove {}", written.display()))?;
        }
        let Program { before, after, is_named, .. } = *Program::named(unit.name)?;
        let arguments = [before, if is_named { tests } else { &[] }, after].concat();
        let ran = self.start(machine, unit, &arguments)?;
        let json = (!ran.hung && ran.code.is_some()).then(|| fs::read_to_string(&written).ok()).flatten();
        let ended = match json {
            Some(json) => Ended::Whole(cts::of_json(&json, &ran.stdout)?),
            None => Ended::Part(cts::of_lines(&ran.stdout, |name| tests.contains(&name))),
        };
        Ok((ran, ended))
    }
}

/// What a run of a program showed.
enum Ended {
    /// All tests that it was asked for.
    Whole(BTreeMap<String, Outcome>),
    /// Those that it came to; none for one that has not ended.
    Part(Vec<(String, Option<Outcome>)>),
}

impl Suite for OpenclCts {
    fn name(&self) -> &'static str {
        "opencl-cts"
    }

    fn about(&self) -> &'static str {
        "Khronos's tests of OpenCL as their user has built them, in quick forms, on Debian 13's OpenCL 5.7.1"
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn source(&self) -> Source {
        Source::BuiltInRoot {
            how: "build KhronosGroup/OpenCL-CTS by its README (`cmake -S OpenCL-CTS -B OpenCL-CTS/build` with its headers \
                  and loader), and say --built with the build directory",
            suite: "trixie",
            // The compiler looks for one of clang's headers when it has a warning to print.
            packages: &["rocm-opencl-icd", "libclang-common-17-dev"],
        }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx900", "gfx90a", "gfx1030"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(180 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(90 * 60)
    }

    fn units(&self, source: &Path) -> Result<Vec<String>> {
        let mut units = Vec::new();
        for program in PROGRAMS {
            if built::is_program(&program.built(source))? {
                units.push(program.name.to_owned());
            }
        }
        Ok(units)
    }

    fn built(&self, source: &Path, unit: &str) -> Result<Option<PathBuf>> {
        Ok(Some(Program::named(unit)?.built(source)))
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &[]
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        &[("CL_CONFORMANCE_RESULTS_FILENAME", "/work/verdicts.json"), ("CL_DEVICE_TYPE", "gpu")]
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let tests = self.tests(machine, unit)?;
        let mut ended: BTreeMap<String, Outcome> = BTreeMap::new();
        let cases = |ended: BTreeMap<String, Outcome>| {
            ended.into_iter().map(|(name, outcome)| Case::of(unit.name, &name, outcome)).collect::<Vec<_>>()
        };
        let begun = Instant::now();
        while begun.elapsed() < AGAIN * self.patience() {
            let rest: Vec<_> = tests.iter().map(String::as_str).filter(|name| !ended.contains_key(*name)).collect();
            // No names would be all of them.
            if rest.is_empty() {
                break;
            }
            let (ran, shown) = self.ask(machine, unit, &rest)?;
            let before = ended.len();
            match shown {
                Ended::Whole(cases) => ended.extend(cases),
                Ended::Part(cases) => {
                    let why = || Outcome::Failed(ran.why());
                    ended.extend(cases.into_iter().map(|(name, outcome)| (name, outcome.unwrap_or_else(why))));
                }
            }
            let failed = ended.values().any(|outcome| matches!(outcome, Outcome::Failed(_)));
            if ended.len() == before || (ran.code != Some(0) && !failed) {
                // Before the first test, or after the last.
                let all = Case { name: unit.name.into(), outcome: Outcome::Failed(ran.why()) };
                return Ok(cases(ended).into_iter().chain([all]).collect());
            }
        }
        Ok(cases(ended))
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        match ran.code {
            Some(0) => Outcome::Passed,
            _ => Outcome::Failed(ran.why()),
        }
    }

    fn controls(&self) -> &'static [Control] {
        const {
            &[
                Control::new("cu.handler=v_add_u32", "geometrics", "gfx900"),
                Control::new("cu.handler=v_mov_b32", "SVM", "gfx900"),
            ]
        }
    }
}
