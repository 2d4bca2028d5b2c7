// SPDX-License-Identifier: GPL-2.0 OR MIT
//! HIP's own samples, which are kept with hip-tests, as their user has built them. A program is a
//! sample, which compares with the processor's result and says so.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::built;
use super::ran::Ran;
use super::source::Source;
use super::suite::{Control, Outcome, Suite};

pub struct HipSamples;

/// A sample.
struct Sample {
    name: &'static str,
    /// In the build directory.
    program: &'static str,
    /// What it says on a line of its own where all is well.
    says: &'static str,
}

const fn sample(name: &'static str, program: &'static str, says: &'static str) -> Sample {
    Sample { name, program, says }
}

const PASSED: &str = "PASSED!";
/// What one is to say on every target but its own.
const OTHER_TARGET: &str = "Error: Kernel is supported for gfx908 architecture";

const SAMPLES: &[Sample] = &[
    sample("bit_extract", "0_Intro/bit_extract/bit_extract", PASSED),
    sample("default_driver", "0_Intro/module_api/defaultDriver.hip.out", PASSED),
    sample("device_library", "2_Cookbook/15_static_library/device_functions/test_device_static", "Test Passed!"),
    sample("dynamic_shared", "2_Cookbook/6_dynamic_shared/dynamic_shared", "dynamic_shared PASSED!"),
    sample("event", "2_Cookbook/1_hipEvent/hipEvent", PASSED),
    sample("gpu_arch", "2_Cookbook/14_gpu_arch/gpuarch", OTHER_TARGET),
    sample("hiprtc", "2_Cookbook/23_cmake_hiprtc/test", "SAXPY test completed"),
    sample("host_library", "2_Cookbook/15_static_library/host_functions/test_opt_static", "Test Passed!"),
    sample("inline_asm", "2_Cookbook/10_inline_asm/inline_asm", PASSED),
    sample("launch_kernel", "0_Intro/module_api/launchKernelHcc.hip.out", PASSED),
    sample("matrix_transpose", "2_Cookbook/0_MatrixTranspose/MatrixTranspose", PASSED),
    sample("module_global", "0_Intro/module_api_global/runKernel1.hip.out", PASSED),
    sample("occupancy", "2_Cookbook/13_occupancy/occupancy", "Automatic Test PASSED!"),
    sample("peer2peer", "2_Cookbook/8_peer2peer/peer2peer", "Peer2Peer PASSED!"),
    sample("run_kernel", "0_Intro/module_api/runKernel.hip.out", PASSED),
    sample("shared_memory", "2_Cookbook/3_shared_memory/sharedMemory", PASSED),
    sample("shfl", "2_Cookbook/4_shfl/shfl", PASSED),
    sample("shfl_2d", "2_Cookbook/5_2dshfl/2dshfl", PASSED),
    sample("square", "0_Intro/square/square", PASSED),
    sample("streams", "2_Cookbook/7_streams/stream", "stream PASSED!"),
    sample("unroll", "2_Cookbook/9_unroll/unroll", "PASSED"),
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
        "HIP's own samples, each with a comparison of its own, as their user has built them"
    }

    fn packages(&self) -> &'static [&'static str] {
        &[]
    }

    fn source(&self) -> Source {
        Source::Built {
            how: "build ROCm/hip-tests' samples by samples/README.md (`cmake ../samples`, `make build_samples`), and say \
                  --built with the build directory",
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
        for Sample { name, program, .. } in SAMPLES {
            if built::is_program(&source.join(program))? {
                units.push((*name).to_owned());
            }
        }
        Ok(units)
    }

    fn built(&self, source: &Path, unit: &str) -> Result<Option<PathBuf>> {
        Ok(Some(source.join(Sample::named(unit)?.program)))
    }

    fn in_guest(&self) -> &'static [&'static str] {
        &[]
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
