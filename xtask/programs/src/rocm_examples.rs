// SPDX-License-Identifier: GPL-2.0 OR MIT
//! AMD's rocm-examples, as their user has built them: HIP's features and small applications, each
//! compared with the processor's result by the example itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::built;
use super::ran::Ran;
use super::source::Source;
use super::suite::{Control, Outcome, Suite};

pub struct RocmExamples;

/// Where examples are, each in a directory with its program: `hip_saxpy` in `HIP-Basic/saxpy`.
const GROUPS: &[&str] =
    &["Applications", "HIP-Basic", "Libraries/hipCUB", "Libraries/rocPRIM", "Libraries/rocRAND", "Libraries/rocThrust"];

/// What examples say that compare nothing themselves, and whose documentation says what they print:
/// all lines must be there.
const SAYINGS: &[(&str, &[&str])] = &[
    (
        "HIP-Basic/hello_world",
        &[
            "Hello world from host!",
            "Hello world from device kernel block 0 thread 0!",
            "Hello world from device kernel block 0 thread 1!",
            "Hello world from device kernel block 1 thread 0!",
            "Hello world from device kernel block 1 thread 1!",
        ],
    ),
    ("HIP-Basic/assembly_to_executable", &["PASSED!"]),
    ("HIP-Basic/llvm_ir_to_executable", &["PASSED!"]),
    ("HIP-Basic/hello_world_cuda", &["Hello, World!"]),
    (
        "HIP-Basic/runtime_compilation",
        &["First 10 elements of the results: [ 7.1, 14.2, 21.3, 28.4, 35.5, 42.6, 49.7, 56.8, 63.9, 71 ]"],
    ),
    ("HIP-Basic/saxpy", &["First 10 elements of the results: [ 3, 5, 7, 9, 11, 13, 15, 17, 19, 21 ]"]),
    ("HIP-Basic/streams", &["streams completed!"]),
    ("Libraries/rocPRIM/device_sum", &["Reduced summation result: 42"]),
];

impl Suite for RocmExamples {
    fn name(&self) -> &'static str {
        "rocm-examples"
    }

    fn about(&self) -> &'static str {
        "AMD's examples of HIP, each with a comparison of its own, as their user has built them"
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn source(&self) -> Source {
        Source::Built {
            how: "build ROCm/rocm-examples by its README (`cmake -S . -B build`, `cmake --build build`), and say --built \
                  with the build directory",
        }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx900", "gfx90a", "gfx1030"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(30 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(300)
    }

    fn units(&self, source: &Path) -> Result<Vec<String>> {
        let mut units = Vec::new();
        for group in GROUPS {
            let directory = source.join(group);
            if !directory.is_dir() {
                continue;
            }
            for entry in fs::read_dir(&directory).with_context(|| format!("read {}", directory.display()))? {
                let unit = format!("{group}/{}", entry?.file_name().to_string_lossy());
                if program(source, &unit)?.is_some() {
                    units.push(unit);
                }
            }
        }
        units.sort_unstable();
        Ok(units)
    }

    fn built(&self, source: &Path, unit: &str) -> Result<Option<PathBuf>> {
        let program = program(source, unit)?;
        program.map(Some).with_context(|| format!("{unit} was not built in {}", source.display()))
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &[]
    }

    fn options(&self, unit: &str) -> &'static [&'static str] {
        if unit == "HIP-Basic/multi_gpu_data_transfer" {
            &["--gpus", "2"]
        } else {
            &[]
        }
    }

    fn judge(&self, unit: &str, ran: &Ran) -> Outcome {
        let lines = |wanted: &str| ran.stdout.lines().any(|line| line.trim() == wanted);
        let right = match (unit, SAYINGS.iter().find(|(name, _)| *name == unit)) {
            (_, Some((_, sayings))) => sayings.iter().all(|saying| lines(saying)),
            ("Applications/convolution", _) => said(&ran.stdout, "gpu result is ")
                .and_then(|error| error.parse().ok())
                .is_some_and(|error: f64| error < 1e-3),
            ("Libraries/rocPRIM/block_sum", _) => {
                let sums = said(&ran.stdout, "Reduced Summation Result:");
                sums.is_some() && sums == said(&ran.stdout, "Expected Summation Result:")
            }
            _ => ran.stdout.contains("Validation passed"),
        };
        if right && ran.code == Some(0) {
            Outcome::Passed
        } else {
            Outcome::Failed(ran.why())
        }
    }

    fn controls(&self) -> &'static [Control] {
        const SAXPY: &str = "HIP-Basic/saxpy";
        const {
            &[
                Control::new("cu.handler=v_add_u32", SAXPY, "gfx900"),
                Control::new("cu.handler=v_mov_b32", SAXPY, "gfx900"),
            ]
        }
    }
}

/// What follows these words on their line.
fn said<'a>(text: &'a str, words: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.split_once(words)).map(|(_, rest)| rest.trim())
}

/// An example's program: the one with the name of its directory, behind that of its group.
fn program(source: &Path, unit: &str) -> Result<Option<PathBuf>> {
    let directory = source.join(unit);
    let example = unit.rsplit('/').next().unwrap_or(unit);
    let is_its = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(example));
    Ok(built::programs(&directory)?.into_iter().find(is_its))
}
