// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The frameworks' own tests, of which `own.py` beside the framework's checks runs a selection.
//!
//! A program is a part of the tests, and a case is a test. The verdict is the framework's.

use super::{Control, Framework, Tests, CUPY, PYTORCH, WORK};

/// The tests keep tensors of those before.
const ROOMY: &[&str] = &["--vram", "8G"];

/// A selection of PyTorch's own tests, which its source has.
pub const PYTORCH_OWN: Framework = Framework {
    name: "pytorch-tests",
    about: "PyTorch 2.6's own tests of a device, a selection: tensors, operations, gradients, networks",
    shared: &[],
    programs: &[
        ("own/tensors", ROOMY),
        ("own/views", ROOMY),
        ("own/creation", ROOMY),
        ("own/elementwise", ROOMY),
        ("own/reductions", ROOMY),
        ("own/algebra", ROOMY),
        ("own/networks", ROOMY),
        ("own/layers", ROOMY),
        ("own/operations", ROOMY),
        ("own/gradients", ROOMY),
        ("own/many", ROOMY),
    ],
    in_guest: &[],
    controls: &[Control::new("cu.handler=v_add_u32", "own/views", "gfx90a")],
    ..PYTORCH
};

/// Some tests are of two GPUs.
const PAIR: &[&str] = &["--gpus", "2"];

/// A selection of CuPy's own tests, of its source on PyPI.
pub const CUPY_OWN: Framework = Framework {
    name: "cupy-tests",
    about: "CuPy 14.2's own tests, a selection: arrays, mathematics, sorting, algebra, random numbers",
    tests: Some(Tests { package: "cupy==14.2.0", parts: &["tests", "pyproject.toml"], wheels: "cupy-tests.txt" }),
    programs: &[
        ("own/core", PAIR),
        ("own/creation", PAIR),
        ("own/indexing", PAIR),
        ("own/manipulation", PAIR),
        ("own/math", PAIR),
        ("own/sorting", PAIR),
        ("own/statistics", PAIR),
        ("own/algebra", PAIR),
        ("own/random", PAIR),
        ("own/fourier", PAIR),
    ],
    environment: &[
        ("PYTHONPATH", "/source:/source/own"),
        ("LD_LIBRARY_PATH", WORK),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("CUPY_CACHE_DIR", "/work/kernels"),
        ("ROCFFT_RTC_CACHE_PATH", "/work/rocfft.db"),
        // CuPy keeps the kernels, and the compiler would keep each again.
        ("AMD_COMGR_CACHE", "0"),
    ],
    targets: &["gfx90a"],
    in_guest: &[],
    controls: &[Control::new("cu.handler=v_add_u32", "own/indexing", "gfx90a")],
    ..CUPY
};

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::source::Source;
    use crate::suite::Suite;

    #[test]
    fn tests_are_of_the_version_that_runs() {
        let Source::TestedLibraryInRoot { wheels, tests, .. } = CUPY_OWN.source() else { panic!("with tests") };
        let wheels = fs::read_to_string(xtask_base::tree::root().join("xtask/programs").join(wheels)).expect("wheels");
        let version = tests.package.strip_prefix("cupy").expect("CuPy's source");
        assert!(wheels.lines().any(|line| line.starts_with("cupy-rocm-") && line.ends_with(version)));
    }

    #[test]
    fn each_program_is_a_part_of_the_selection() {
        for framework in [&PYTORCH_OWN, &CUPY_OWN] {
            let file = framework.clients().join(framework.directory).join("own.py");
            let text = fs::read_to_string(&file).expect("a selection");
            for (name, _) in framework.programs {
                let part = name.strip_prefix("own/").expect("own/PART");
                assert!(text.contains(&format!("\n    \"{part}\": ([")), "{name}");
            }
        }
    }
}
