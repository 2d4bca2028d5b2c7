// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HIP's own samples, which are kept with hip-tests. A program is a sample, which compares with the
//! processor's result and says so.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{ensure, Context, Result};

use super::machine::Ran;
use super::source::Source;
use super::suite::{Control, Outcome, Suite, Unit, LOADED_BY_HIP};

pub(crate) struct HipSamples;

/// A sample.
struct Sample {
    name: &'static str,
    /// Its main file, in `samples`.
    main: &'static str,
    /// What it says on a line of its own where all is well.
    says: &'static str,
    with: With,
}

/// What a sample has beside its main file.
enum With {
    Nothing,
    /// A code object that it loads by its name.
    Code(&'static str, &'static str),
    /// A static library for the host.
    HostLibrary(&'static str),
    /// A static library for the device.
    DeviceLibrary(&'static str),
}

const fn sample(name: &'static str, main: &'static str, says: &'static str, with: With) -> Sample {
    Sample { name, main, says, with }
}

const PASSED: &str = "PASSED!";
const VCPY: With = With::Code("0_Intro/module_api/vcpy_kernel.cpp", "vcpy_kernel.code");
const VCPY_GLOBAL: With = With::Code("0_Intro/module_api_global/vcpy_kernel.cpp", "vcpy_kernel.code");
const HOST_LIBRARY: With = With::HostLibrary("2_Cookbook/15_static_library/host_functions/hipOptLibrary.cpp");
const DEVICE_LIBRARY: With = With::DeviceLibrary("2_Cookbook/15_static_library/device_functions/hipDevice.cpp");

const SAMPLES: &[Sample] = &[
    sample("bit_extract", "0_Intro/bit_extract/bit_extract.cpp", PASSED, With::Nothing),
    sample("default_driver", "0_Intro/module_api/defaultDriver.cpp", PASSED, VCPY),
    sample(
        "device_library",
        "2_Cookbook/15_static_library/device_functions/hipMain2.cpp",
        "Test Passed!",
        DEVICE_LIBRARY,
    ),
    sample("dynamic_shared", "2_Cookbook/6_dynamic_shared/dynamic_shared.cpp", "dynamic_shared PASSED!", With::Nothing),
    sample("event", "2_Cookbook/1_hipEvent/hipEvent.cpp", PASSED, With::Nothing),
    sample(
        "gpu_arch",
        "2_Cookbook/14_gpu_arch/gpuarch.cpp",
        // What it is to say on every other target.
        "Error: Kernel is supported for gfx908 architecture",
        With::Nothing,
    ),
    sample("hiprtc", "2_Cookbook/23_cmake_hiprtc/saxpy.cpp", "SAXPY test completed", With::Nothing),
    sample("host_library", "2_Cookbook/15_static_library/host_functions/hipMain1.cpp", "Test Passed!", HOST_LIBRARY),
    sample("inline_asm", "2_Cookbook/10_inline_asm/inline_asm.cpp", PASSED, With::Nothing),
    sample("launch_kernel", "0_Intro/module_api/launchKernelHcc.cpp", PASSED, VCPY),
    sample("matrix_transpose", "2_Cookbook/0_MatrixTranspose/MatrixTranspose.cpp", PASSED, With::Nothing),
    sample("module_global", "0_Intro/module_api_global/runKernel.cpp", PASSED, VCPY_GLOBAL),
    sample("occupancy", "2_Cookbook/13_occupancy/occupancy.cpp", "Automatic Test PASSED!", With::Nothing),
    sample("peer2peer", "2_Cookbook/8_peer2peer/peer2peer.cpp", "Peer2Peer PASSED!", With::Nothing),
    sample("run_kernel", "0_Intro/module_api/runKernel.cpp", PASSED, VCPY),
    sample("shared_memory", "2_Cookbook/3_shared_memory/sharedMemory.cpp", PASSED, With::Nothing),
    sample("shfl", "2_Cookbook/4_shfl/shfl.cpp", PASSED, With::Nothing),
    sample("shfl_2d", "2_Cookbook/5_2dshfl/2dshfl.cpp", PASSED, With::Nothing),
    sample("square", "0_Intro/square/square.hipref.cpp", PASSED, With::Nothing),
    sample("streams", "2_Cookbook/7_streams/stream.cpp", "stream PASSED!", With::Nothing),
    sample("unroll", "2_Cookbook/9_unroll/unroll.cpp", "PASSED", With::Nothing),
];

impl Sample {
    fn named(name: &str) -> Result<&'static Sample> {
        SAMPLES.iter().find(|sample| sample.name == name).with_context(|| format!("{name} is none of the samples"))
    }
}

impl Suite for HipSamples {
    fn name(&self) -> &'static str {
        "hip-samples"
    }

    fn about(&self) -> &'static str {
        "HIP's own samples, each with a comparison of its own"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["hipcc", "libamdhip64-dev", "libamdhip64-5", "g++", "libc6-dev"]
    }

    fn source(&self) -> Source {
        super::hip_catch::SOURCE
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
        for Sample { main, .. } in SAMPLES {
            let at = source.join("samples").join(main);
            ensure!(at.is_file(), "{} is absent: this is another version of hip-tests", at.display());
        }
        Ok(SAMPLES.iter().map(|sample| sample.name.into()).collect())
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        let Sample { main, with, .. } = Sample::named(unit.name)?;
        let samples = unit.source.join("samples");
        let arch = format!("--offload-arch={}", unit.target);
        let hipcc = |options: &[&str], file: &str, to: &str| {
            let mut command = Command::new("hipcc");
            command.args([&arch, "-std=c++17", "-O2", "-w", "-I"]).arg(samples.join("common"));
            command.args(options).arg(samples.join(file)).arg("-o").arg(unit.at.join(to));
            command
        };
        // A library comes first: hipcc takes what follows a source file for source as well.
        let library = unit.at.join("library.o").display().to_string();
        let main = |options: &[&str]| hipcc(options, main, "program");
        Ok(match with {
            With::Nothing => vec![main(&[])],
            With::Code(file, name) => vec![hipcc(&["--genco"], file, name), main(&[])],
            With::HostLibrary(file) => vec![hipcc(&["-fPIC", "-c"], file, "library.o"), main(&[&library])],
            With::DeviceLibrary(file) => {
                vec![hipcc(&["-fgpu-rdc", "-c"], file, "library.o"), main(&["-fgpu-rdc", &library])]
            }
        })
    }

    fn libraries(&self) -> &'static [&'static str] {
        // HIP's run-time compiler asks the second for the target, by this name.
        const { &[LOADED_BY_HIP[0], "/lib/x86_64-linux-gnu/libamdhip64.so"] }
    }

    fn options(&self, unit: &str) -> &'static [&'static str] {
        match unit {
            "peer2peer" => &["--gpus", "2"],
            _ => &[],
        }
    }

    fn judge(&self, unit: &str, ran: &Ran) -> Outcome {
        let says = Sample::named(unit).map_or("", |sample| sample.says);
        let lines = || ran.stdout.lines().map(str::trim);
        let failed = lines().any(|line| line.contains("FAILED"));
        match lines().any(|line| line == says) && !failed && ran.code == Some(0) {
            true => Outcome::Passed,
            false => Outcome::Failed(ran.why()),
        }
    }

    fn controls(&self) -> &'static [Control] {
        const {
            &[
                Control::new("cu.handler=v_add_u32", "matrix_transpose", "gfx900"),
                Control::new("cu.handler=v_mov_b32", "square", "gfx900"),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_to_say_its_line_and_no_other() {
        let ended = |stdout: &str, code| {
            let ran = Ran { code, stdout: stdout.into(), ..Ran::default() };
            HipSamples.judge("occupancy", &ran) == Outcome::Passed
        };
        assert!(ended("\nManual Test PASSED!\n\n Automatic Test PASSED!\n", Some(0)));
        assert!(!ended("\nManual Test FAILED: 3 errors\n\nAutomatic Test PASSED!\n", Some(0)));
        assert!(!ended("\nManual Test PASSED!\n", Some(0)) && !ended("Automatic Test PASSED!\n", None));
    }
}
