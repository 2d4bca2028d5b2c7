// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The counts of the last runs: docs/results.md and the summary in README.md.
//!
//! Mechanism: xtask/programs/results.toml has one entry for each way in which a suite ran, with the
//! counts by target. [`page`] makes the page of it, [`summary`] the table between two comments in
//! README.md. `cargo xtask stray` fails when either differs from the file.
//!
//! Limits: a person copies a run's counts into the file; the expectation files hold each case.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use super::place::Place;
use super::SUITES;
use vkfd_targets::Target;
use xtask_base::tree;

const FILE: &str = "xtask/programs/results.toml";
const PAGE: &str = "docs/results.md";
const README: &str = "README.md";
const BEGIN: &str = "<!-- results: written by `cargo xtask programs --table --write` -->\n\n";
const END: &str = "\n<!-- end of results -->";
/// The targets, a column each.
const TARGETS: [Target; Target::ALL.len()] = Target::ALL;

const INTRO: &str = "\
<!-- SPDX-License-Identifier: GPL-2.0 OR MIT -->
<!-- Made by `cargo xtask programs --table --write` from xtask/programs/results.toml; do not edit. -->
# Which programs run: results of other projects' test suites

Each cell has the cases that passed and, behind a slash, the cases that failed. The expectation
files in `xtask/programs/` name every failure with its reason; another result fails the run. A part
of a suite is left out where a software GPU needs too long for it.
[programs.md](programs.md) describes the suites, and how to run them.
";

/// The rows of the summary: its words, and the suites it counts.
const FAMILIES: [(&str, &[&str]); 7] = [
    ("HIP: catch tests, samples, examples, runtimes", &["hip-catch", "hip-samples", "rocm-examples", "runtimes"]),
    (
        "ROCm libraries: rocBLAS, rocSPARSE, rocSOLVER, rocFFT, rocRAND, rocPRIM, rocThrust, their HIP forms, MIOpen",
        &[
            "rocblas",
            "rocsparse",
            "rocsolver",
            "rocfft",
            "rocrand",
            "rocprim",
            "miopen",
            "rocthrust",
            "hipblas",
            "hipsparse",
            "hipsolver",
            "hipfft",
            "hiprand",
            "hipcub",
        ],
    ),
    ("OpenCL: the CTS in quick forms, piglit", &["opencl-cts", "piglit"]),
    (
        "ROCR's rocrtst, KFD's kfdtest, monitors, GCC's C torture tests",
        &["rocrtst", "kfdtest", "monitors", "gcc-torture"],
    ),
    ("llama.cpp, whisper.cpp and stable-diffusion.cpp on HIP", &["ggml", "whisper", "stable-diffusion"]),
    (
        "PyTorch, JAX, TensorFlow, CuPy, ONNX Runtime, transformers, diffusers, RCCL",
        &[
            "cupy",
            "cupy-tests",
            "onnxruntime",
            "tensorflow",
            "jax",
            "pytorch",
            "pytorch-tests",
            "transformers",
            "diffusers",
            "rccl",
            "rccl-processes",
            "rccl-four",
        ],
    ),
    ("tinygrad, Triton, IREE", &["tinygrad-hw", "tinygrad-backend", "tinygrad-models", "triton", "iree"]),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    run: Vec<Run>,
}

/// One way in which a suite ran.
#[derive(Deserialize)]
struct Run {
    suite: String,
    /// The part of the suite that ran.
    #[serde(default)]
    part: String,
    #[serde(default)]
    guest: bool,
    #[serde(default)]
    amdgpu: bool,
    #[serde(default)]
    memory: String,
    #[serde(default)]
    pressure: bool,
    /// The number of programs that the suite has.
    of: Option<u32>,
    #[serde(default)]
    note: String,
    /// By target.
    #[serde(flatten)]
    counts: BTreeMap<String, Counts>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    programs: u32,
    passed: u32,
    failed: u32,
}

impl Run {
    /// Whether the programs ran under `vkfd run`.
    fn in_process(&self) -> bool {
        !self.guest && !self.amdgpu
    }

    fn counts(&self) -> [Option<Counts>; TARGETS.len()] {
        TARGETS.map(|target| self.counts.get(target.name()).copied())
    }

    /// The suite and its part.
    fn name(&self) -> String {
        let part = if self.part.is_empty() { String::new() } else { format!(", {}", self.part) };
        let pressure = if self.pressure { ", `--pressure`" } else { "" };
        let memory =
            if self.guest && !self.memory.is_empty() { format!(", `--memory {}`", self.memory) } else { String::new() };
        format!("`{}`{part}{memory}{pressure}", self.suite)
    }

    /// Programs on the first target, and how many there are.
    fn programs(&self) -> String {
        let all: Vec<u32> = self.counts().into_iter().flatten().map(|counts| counts.programs).collect();
        let (least, most) = (all.iter().min().copied().unwrap_or(0), all.iter().max().copied().unwrap_or(0));
        let range = if least == most { number(most) } else { format!("{} to {}", number(least), number(most)) };
        self.of.map_or(range.clone(), |of| format!("{range} of {}", number(of)))
    }
}

fn read() -> Result<Results> {
    let text = fs::read_to_string(tree::root().join(FILE)).with_context(|| format!("read {FILE}"))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Results> {
    let results: Results = toml::from_str(text).with_context(|| format!("read {FILE}"))?;
    for run in &results.run {
        let suite = SUITES.iter().find(|suite| suite.name() == run.suite);
        let suite = suite.with_context(|| format!("{FILE}: there is no suite {}", run.suite))?;
        ensure!(matches!(run.memory.as_str(), "" | "batch" | "oversubscribed"), "{FILE}: memory {:?}", run.memory);
        ensure!(!run.pressure || run.guest, "{FILE}: {}: pressure is a guest's", run.suite);
        ensure!(!run.amdgpu || !run.guest, "{FILE}: {}: a guest has one driver", run.suite);
        ensure!(!run.counts.is_empty(), "{FILE}: {}: no target", run.suite);
        let place = if run.amdgpu { Place::Amdgpu } else { Place::Process };
        for target in run.counts.keys() {
            ensure!(suite.targets_at(place).contains(&target.as_str()), "{FILE}: {} has no target {target}", run.suite);
        }
    }
    for suite in SUITES {
        let named = |families: &[&str]| families.contains(&suite.name());
        // One that is built first may not have been run yet.
        let has_run = !suite.source().is_built_first() || results.run.iter().any(|run| run.suite == suite.name());
        let is_in_one = FAMILIES.iter().any(|(_, suites)| named(suites));
        ensure!(!has_run || is_in_one, "{} is in no family", suite.name());
    }
    Ok(results)
}

/// The whole page.
fn page(results: &Results) -> String {
    let mut page = INTRO.to_owned();
    let mut table = |title: &str, about: &str, chosen: &dyn Fn(&Run) -> bool| {
        if !results.run.iter().any(chosen) {
            return;
        }
        let _ = write!(
            page,
            "\n## {title}\n\n{about}\n\n| suite | programs | {} | remarks |\n",
            TARGETS.map(Target::name).join(" | ")
        );
        let _ = writeln!(page, "|{}", " --- |".repeat(TARGETS.len() + 3));
        for run in results.run.iter().filter(|run| chosen(run)) {
            let cells: Vec<String> = run.counts().into_iter().map(cell).collect();
            let _ = writeln!(page, "| {} | {} | {} | {} |", run.name(), run.programs(), cells.join(" | "), run.note);
        }
    };
    table("In the process", "The programs ran under `vkfd run`.", &|run| run.in_process() && run.memory.is_empty());
    table(
        "In registered batches",
        "All device memory is host memory in scattered pieces; one call registers each allocation\n(`--memory batch`).",
        &|run| run.in_process() && run.memory == "batch",
    );
    table(
        "Oversubscribed",
        "Device memory is managed memory with a VRAM limit of 2 MiB, XNACK on (`--memory oversubscribed`).",
        &|run| run.in_process() && run.memory == "oversubscribed",
    );
    table(
        "In a guest, on the kernel module",
        "Nothing stands between a program and `/dev/kfd`. With `--pressure` the guest's kernel swaps,\n\
         compacts and merges the programs' pages meanwhile.",
        &|run| run.guest,
    );
    table(
        "In a guest, on AMD's own driver",
        "The kernel is a distribution's, and vkfd's GPU its PCI device ([amdgpu.md](amdgpu.md)).",
        &|run| run.amdgpu,
    );
    page
}

/// The table of README.md.
fn summary(results: &Results) -> String {
    let mut table = "| suites | targets | cases passed | cases that fail |\n| --- | --- | --- | --- |\n".to_owned();
    let mut row = |words: &str, chosen: &dyn Fn(&Run) -> bool| {
        let runs: Vec<&Run> = results.run.iter().filter(|run| chosen(run)).collect();
        if runs.is_empty() {
            return;
        }
        let ran = |at: usize| runs.iter().any(|run| run.counts()[at].is_some());
        let targets: Vec<&str> = (0..TARGETS.len()).filter(|at| ran(*at)).map(|at| TARGETS[at].name()).collect();
        let all = || runs.iter().flat_map(|run| run.counts()).flatten();
        let (passed, failed): (u32, u32) = (all().map(|c| c.passed).sum(), all().map(|c| c.failed).sum());
        let _ = writeln!(table, "| {words} | {} | {} | {} |", targets.join(", "), number(passed), number(failed));
    };
    let plain = |run: &Run| run.in_process() && run.memory.is_empty();
    for (words, suites) in FAMILIES {
        row(words, &|run| plain(run) && suites.contains(&run.suite.as_str()));
    }
    row("the same, device memory in registered batches or oversubscribed", &|run| {
        run.in_process() && !run.memory.is_empty()
    });
    row("the same, on the kernel module in a guest, some under swap, compaction and KSM", &|run| run.guest);
    table
}

fn cell(counts: Option<Counts>) -> String {
    counts.map_or(String::new(), |counts| format!("{} / {}", number(counts.passed), number(counts.failed)))
}

/// A number with a comma before each three digits.
fn number(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// README.md with the summary in its place.
fn placed(readme: &str, summary: &str) -> Result<String> {
    let (before, rest) = readme.split_once(BEGIN).with_context(|| format!("{README} has no {:?}", BEGIN.trim()))?;
    let (_, after) = rest.split_once(END).with_context(|| format!("{README} has no {:?}", END.trim()))?;
    Ok(format!("{before}{BEGIN}{summary}{END}{after}"))
}

/// The files that are not what results.toml says; with `write` they are written.
pub fn check(write: bool) -> Result<Vec<String>> {
    let results = read()?;
    let text = |path: &str| fs::read_to_string(tree::root().join(path)).unwrap_or_default();
    let readme = text(README);
    let mut findings = Vec::new();
    for (path, is, should) in
        [(PAGE, text(PAGE), page(&results)), (README, readme.clone(), placed(&readme, &summary(&results))?)]
    {
        if is != should && write {
            fs::write(tree::root().join(path), should).with_context(|| format!("write {path}"))?;
        } else if is != should {
            findings.push(format!("{path} is not what {FILE} says: `cargo xtask programs --table --write`"));
        }
    }
    Ok(findings)
}

/// Both tables, to be read.
pub(super) fn text() -> Result<String> {
    let results = read()?;
    Ok(format!("{}\n{}", page(&results), summary(&results)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "[[run]]\nsuite = \"rocrand\"\nof = 1040\nnote = \"why\"\ngfx900 = { programs = 32, passed = 1583, failed = 1 }\n";

    #[test]
    fn counts_become_rows_and_sums() {
        let results =
            parse(&format!("{RUN}{}", RUN.replace("of = 1040", "guest = true\npressure = true"))).expect("two runs");
        let page = page(&results);
        assert!(page.contains("| `rocrand` | 32 of 1,040 | 1,583 / 1 |  |  |  |  | why |"), "{page}");
        assert!(page.contains("| `rocrand`, `--pressure` | 32 | 1,583 / 1 |"), "{page}");
        assert!(summary(&results).contains("their HIP forms, MIOpen | gfx900 | 1,583 | 1 |"), "{}", summary(&results));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            RUN.replace("rocrand", "rocnothing"),
            RUN.replace("gfx900", "gfx942"),
            RUN.replace("of = 1040", "pressure = true"),
            RUN.replace("of = 1040", "memory = \"much\""),
            RUN.replace("of = 1040", "guest = true\namdgpu = true"),
            RUN.replace("of = 1040", "off = 1040"),
            "[[run]]\nsuite = \"rocrand\"\n".to_owned(),
        ] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_summary_has_its_place() {
        let readme = format!("a\n{BEGIN}old{END}\nb\n");
        assert_eq!(placed(&readme, "new").expect("placed"), format!("a\n{BEGIN}new{END}\nb\n"));
        assert!(placed("a", "new").is_err());
    }
}
