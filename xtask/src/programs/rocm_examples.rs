// SPDX-License-Identifier: GPL-2.0 OR MIT
//! AMD's rocm-examples: HIP's features and small applications, each compared with the processor's
//! result by the example itself.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::machine::Ran;
use super::source::Source;
use super::suite::{Control, Outcome, Suite, Unit, LOADED_BY_HIP};

pub(crate) struct RocmExamples;

/// Where examples are, each in a directory with `main.hip` or `main.cpp`.
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
        "AMD's examples of HIP, each with a comparison of its own"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["hipcc", "libamdhip64-dev", "libamdhip64-5", "librocprim-dev", "librocrand-dev", "g++", "libc6-dev"]
    }

    fn source(&self) -> Source {
        Source::Git {
            name: "rocm-examples",
            repository: "https://github.com/ROCm/rocm-examples",
            commit: "7dfb7d402794c33031be2847eaa06ee6732f07cb",
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
            for entry in fs::read_dir(&directory).with_context(|| format!("read {}", directory.display()))? {
                let entry = entry?;
                if main_file(&entry.path()).is_some() {
                    units.push(format!("{group}/{}", entry.file_name().to_string_lossy()));
                }
            }
        }
        units.sort_unstable();
        Ok(units)
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        let directory = unit.source.join(unit.name);
        let main = main_file(&directory).context("an example without a main file")?;
        let arch = format!("--offload-arch={}", unit.target);
        let hipcc = |arguments: &[&str], file: &str, to: &str| {
            let mut command = Command::new("hipcc");
            command.args([&arch, "-std=c++17", "-O2", "-w", "-I"]).arg(unit.source.join("Common"));
            command.args(arguments).arg(directory.join(file)).arg("-o").arg(unit.at.join(to));
            command
        };
        let linked = |objects: &[String]| {
            let mut command = Command::new("hipcc");
            command.args(objects).arg("-o").arg(unit.at.join("program"));
            command
        };
        // What it loads, or is linked with, comes first: hipcc takes what follows a source file for
        // source as well.
        let within = |name: &str| unit.at.join(name).display().to_string();
        let headers = format!("-I{}", directory.join("library").display());
        Ok(match unit.name {
            "HIP-Basic/module_api" => {
                vec![hipcc(&["--genco"], "module.hip", "module.co"), hipcc(&[], &main, "program")]
            }
            "HIP-Basic/static_device_library" => vec![
                hipcc(&["-fgpu-rdc", "-c"], "library/library.hip", "library.o"),
                hipcc(&["-fgpu-rdc", &headers, &within("library.o")], &main, "program"),
            ],
            "HIP-Basic/static_host_library" => vec![
                hipcc(&["--emit-static-lib", "-fPIC"], "library/library.hip", "library.a"),
                hipcc(&["-c", &headers], &main, "main.o"),
                linked(&["main.o", "library.a"].map(within)),
            ],
            name if name.starts_with("Libraries/rocRAND") => vec![hipcc(&["-lrocrand"], &main, "program")],
            _ => vec![hipcc(&[], &main, "program")],
        })
    }

    fn libraries(&self) -> &'static [&'static str] {
        LOADED_BY_HIP
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

fn main_file(directory: &Path) -> Option<String> {
    ["main.hip", "main.cpp"].into_iter().find(|name| directory.join(name).exists()).map(str::to_owned)
}
