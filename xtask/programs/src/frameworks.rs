// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Frameworks of PyPI on Debian's ROCm libraries: CuPy, ONNX Runtime, TensorFlow and JAX, and on
//! JAX models of transformers and diffusers; stable-diffusion.cpp; and PyTorch, which is built here
//! first ([`pytorch`]). Two suites are frameworks' own tests ([`own`]).
//! A program is a part of a file of checks in `tests/clients`, and a case is a check. Results of
//! the GPU are compared with NumPy, SciPy, or the CPU's side of the framework.
//!
//! Mechanism: pip takes the wheels that a file beside the expectations names, for a Python of the
//! root ([`Source::LibraryInRoot`]). Some of the libraries that a wheel is linked with are not
//! Debian's. A stub that does nothing ([`Stub`]), or a link to the library by its other name, lies
//! beside the program. Compilers in the root look for parts of them in directories that Debian does
//! not use; there the root gets links.
//!
//! Code that is compiled as a program runs stays in its directory, for the next run.
//!
//! Limits: the stubs have no tracing and no collectives. Two GPUs are used by the suites that have
//! RCCL in their root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::machine::Machine;
use super::memory::Memory;
use super::pytorch;
use super::ran::Ran;
use super::root::{self, WORK};
use super::source::{Source, Tests};
use super::suite::{Case, Control, Outcome, Suite};
use super::unit::Unit;
use xtask_base::{tree, venv};

mod own;

pub use own::{CUPY_OWN, PYTORCH_OWN};

/// See the module.
pub struct Framework {
    name: &'static str,
    about: &'static str,
    /// The suite of Debian that the libraries are from.
    debian: &'static str,
    packages: &'static [&'static str],
    /// Python's version in the root.
    python: &'static str,
    /// Beside the expectation files: the wheels. None for PyTorch.
    wheels: Option<&'static str>,
    /// The framework's own tests, if its source is wanted for them.
    tests: Option<Tests>,
    /// Below `tests/clients`.
    directory: &'static str,
    /// Files there that the files of checks share.
    shared: &'static [&'static str],
    /// `FILE/PART`, with the options of `vkfd run` for it.
    programs: &'static [(&'static str, &'static [&'static str])],
    stubs: &'static [Stub],
    /// Libraries by the names that the wheels know: the name, and Debian's.
    names: &'static [(&'static str, &'static str)],
    /// Links in the root, and their targets.
    places: &'static [(&'static str, &'static str)],
    environment: &'static [(&'static str, &'static str)],
    targets: &'static [&'static str],
    /// Programs that run in a guest.
    in_guest: &'static [&'static str],
    controls: &'static [Control],
}

/// A library that Debian does not have: its file, our source below `xtask/programs`, and what is
/// defined for it there.
type Stub = (&'static str, &'static str, &'static str);

/// Where the libraries are in the root.
const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
/// What the files of checks share.
const CHECKS: &str = "checks.py";
const STUBS: &str = "xtask/programs";
/// Functions that do nothing, by library.
const NOTHING: &str = "stubs.c";

pub const CUPY: Framework = Framework {
    name: "cupy",
    about: "CuPy 14.2 on HIP 7.2.4 against NumPy and SciPy: arrays, kernels, and the ROCm libraries through it",
    debian: "experimental",
    packages: &[
        "python3.13",
        "librocblas5",
        "libhipblas3",
        "libhiprand1",
        "libhipfft0",
        "librocsolver0",
        "libhipsparse4",
        "libhipsolver1",
        "librccl1",
        "libroctx64-4",
        "libhipblaslt1",
        // Headers of kernels that CuPy compiles.
        "librocprim-dev",
        "librocthrust-dev",
        "libhipcub-dev",
        "librocrand-dev",
        "libhiprand-dev",
        // Asked for the directories of headers, by a shell.
        "hipcc",
        "dash",
        "libc6-dev",
        "g++",
    ],
    python: "3.13",
    wheels: Some("cupy.txt"),
    tests: None,
    directory: "cupy",
    shared: &[],
    programs: &[
        ("arrays/arithmetic", &[]),
        ("arrays/reductions", &[]),
        ("arrays/sorting", &[]),
        ("arrays/indices", &[]),
        ("arrays/kernels", &[]),
        ("libraries/products", &[]),
        ("libraries/solvers", &[]),
        ("libraries/fourier", &[]),
        ("libraries/random", &[]),
        ("libraries/sparse", &[]),
        ("libraries/images", &[]),
    ],
    stubs: &[("libroctracer64.so.4", NOTHING, "ROCTRACER")],
    names: &[],
    places: &[],
    environment: &[
        ("PYTHONPATH", "/source"),
        ("LD_LIBRARY_PATH", WORK),
        ("CUPY_CACHE_DIR", "/work/kernels"),
        ("ROCFFT_RTC_CACHE_PATH", "/work/rocfft.db"),
        ("AMD_COMGR_CACHE_DIR", "/work/comgr"),
    ],
    targets: &["gfx90a", "gfx1030", "gfx1100"],
    in_guest: &[],
    controls: &[
        Control::new("cu.handler=v_add_u32", "arrays/reductions", "gfx90a"),
        Control::new("cu.handler=v_mul_f32", "arrays/arithmetic", "gfx90a"),
    ],
};

pub const ONNXRUNTIME: Framework = Framework {
    name: "onnxruntime",
    about: "ONNX Runtime 1.22 on HIP 7.2.4 against its CPU provider: operators, a transformer's block",
    packages: &[
        "python3.13",
        "libamdhip64-7",
        "libmiopen1",
        "libhipblas3",
        "libhipfft0",
        "librocm-smi64-7",
        "libamd-comgr3",
        // MIOpen starts compilers by a shell.
        "hipcc",
        "dash",
        "libc6-dev",
        "g++",
    ],
    wheels: Some("onnxruntime.txt"),
    directory: "onnx",
    programs: &[
        ("operators/elementwise", &[]),
        ("operators/reductions", &[]),
        ("operators/shapes", &[]),
        ("operators/products", &[]),
        ("operators/images", &[]),
        ("operators/models", &[]),
    ],
    names: &[("librocm_smi64.so.1", "librocm_smi64.so.7")],
    environment: &[
        ("PYTHONPATH", "/source"),
        ("LD_LIBRARY_PATH", WORK),
        ("CCC_OVERRIDE_OPTIONS", "#s/-isystem/-idirafter/"),
        // Debian's package lacks the sources in assembler, which MIOpen takes for convolutions.
        ("MIOPEN_DEBUG_GCN_ASM_KERNELS", "0"),
        ("MIOPEN_USER_DB_PATH", "/work/miopen"),
        ("MIOPEN_CUSTOM_CACHE_DIR", "/work/miopen"),
        ("ROCFFT_RTC_CACHE_PATH", "/work/rocfft.db"),
        ("AMD_COMGR_CACHE_DIR", "/work/comgr"),
    ],
    targets: &["gfx90a", "gfx942", "gfx1030", "gfx1100"],
    in_guest: &[],
    controls: &[Control::new("cu.handler=v_mul_f32", "operators/elementwise", "gfx90a")],
    ..CUPY
};

/// Where XLA and MIOpen 6.4.3 look for compilers and their libraries, and where sid has them.
pub const COMPILERS: &[(&str, &str)] = &[
    ("/opt/rocm/llvm/bin/ld.lld", "/usr/lib/llvm-21/bin/ld.lld"),
    ("/opt/rocm/amdgcn/bitcode", "/usr/lib/llvm-21/lib/clang/21/amdgcn/bitcode"),
    ("/build/reproducible-path/miopen-6.4.3+dfsg/build/clang-21", "/usr/bin/clang-21"),
];

/// XLA leaves most of the first GiB to others.
const XLA_MEMORY: &[&str] = &["--vram", "4G"];
const TWO_GPUS: &[&str] = &["--vram", "4G", "--gpus", "2"];

/// XLA's Triton takes waves for 32 wide. Without a search MIOpen has no convolution; a search for
/// products tries dozens of kernels for each shape, which takes a software GPU minutes.
const XLA_FLAGS: &str = "--xla_gpu_autotune_level=1 --xla_gpu_enable_triton_gemm=false \
                         --xla_disable_hlo_passes=gemm-algorithm-picker";

/// JAX's operations; a model of each library on it is a suite with the same root.
pub const JAX: Framework = Framework {
    name: "jax",
    about: "JAX 0.5.0 on HIP 6.4.3 against its CPU back end: operations, gradients, two GPUs, training",
    debian: "sid",
    packages: &[
        // Of Debian 12: these wheels are for no later Python.
        "python3.11",
        "libamdhip64-6",
        "libhiprtc6",
        "libamd-comgr3",
        "rocm-device-libs-21",
        "hipcc",
        "lld-21",
        "libmiopen1",
        "libhipfft0",
        "libhipblas2",
        "libhipblaslt1",
        "libhipsparse1",
        "libhipsolver0",
        "librocsolver0",
        "librocrand1",
        "libhiprand1",
        "libroctx64-4",
        "librocm-smi64-1",
        "libc6-dev",
        "g++",
        // MIOpen starts compilers by a shell.
        "dash",
    ],
    python: "3.11",
    wheels: Some("jax.txt"),
    tests: None,
    directory: "jax",
    shared: &[],
    programs: &[
        ("operations/elementwise", XLA_MEMORY),
        ("operations/reductions", XLA_MEMORY),
        ("operations/sorting", XLA_MEMORY),
        ("operations/indices", XLA_MEMORY),
        ("operations/products", XLA_MEMORY),
        ("operations/convolutions", XLA_MEMORY),
        ("operations/fourier", XLA_MEMORY),
        ("operations/solvers", XLA_MEMORY),
        ("operations/random", XLA_MEMORY),
        ("operations/control", XLA_MEMORY),
        ("parallel/gpus", TWO_GPUS),
        ("models/training", XLA_MEMORY),
    ],
    stubs: &[
        ("librocprofiler-register.so.0", NOTHING, "NOTHING"),
        ("libhipsparselt.so.0", NOTHING, "NOTHING"),
        ("librccl.so.1", "collectives.c", "RCCL"),
    ],
    names: &[
        ("libamd_comgr.so.2", "libamd_comgr.so.3"),
        ("librocm_smi64.so.7", "librocm_smi64.so.1"),
        ("libhipblaslt.so.0", "libhipblaslt.so.1"),
    ],
    places: COMPILERS,
    environment: &[
        ("PYTHONPATH", "/source"),
        ("LD_LIBRARY_PATH", WORK),
        ("JAX_PLATFORMS", "rocm,cpu"),
        ("XLA_FLAGS", XLA_FLAGS),
        ("JAX_COMPILATION_CACHE_DIR", "/work/compiled"),
        ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"),
        // MIOpen names C's headers before those of C++, which include them as the next.
        ("CCC_OVERRIDE_OPTIONS", "#s/-isystem/-idirafter/"),
        ("MIOPEN_USER_DB_PATH", "/work/miopen"),
        ("MIOPEN_CUSTOM_CACHE_DIR", "/work/miopen"),
        ("ROCFFT_RTC_CACHE_PATH", "/work/rocfft.db"),
        ("AMD_COMGR_CACHE_DIR", "/work/comgr"),
    ],
    targets: &["gfx90a"],
    in_guest: &[],
    controls: &[Control::new("cu.handler=v_add_u32", "operations/sorting", "gfx90a")],
};

/// TensorFlow, in JAX's root. It loads libraries by their names without a version.
pub const TENSORFLOW: Framework = Framework {
    name: "tensorflow",
    about: "TensorFlow 2.14 on HIP 6.4.3 against its CPU kernels: operations, convolutions, training",
    packages: &[
        // Of Debian 12: these wheels are for no later Python, and their LLVM is 18.
        "python3.11",
        "rocm-device-libs",
        "libamdhip64-6",
        "libamd-comgr3",
        "rocm-device-libs-21",
        "hipcc",
        "lld-21",
        "libmiopen1",
        "libhipfft0",
        "libhipblas2",
        "libhipblaslt1",
        "libhipsparse1",
        "libhipsolver0",
        "librocsolver0",
        "librocrand1",
        "libhiprand1",
        "libc6-dev",
        "g++",
        // MIOpen starts compilers by a shell.
        "dash",
    ],
    wheels: Some("tensorflow.txt"),
    directory: "tensorflow",
    programs: &[
        ("operations/elementwise", XLA_MEMORY),
        ("operations/reductions", XLA_MEMORY),
        ("operations/shapes", XLA_MEMORY),
        ("operations/products", XLA_MEMORY),
        ("operations/images", XLA_MEMORY),
        ("operations/models", XLA_MEMORY),
    ],
    shared: &["absent.py"],
    stubs: &[("librccl.so.1", NOTHING, "RCCL"), ("libroctracer64.so", NOTHING, "ROCTRACER")],
    names: &[
        ("libMIOpen.so", "libMIOpen.so.1"),
        ("librocblas.so", "librocblas.so.4"),
        // rocBLAS looks for its kernels beside itself.
        ("rocblas", "rocblas"),
        ("libhipblas.so", "libhipblas.so.2"),
        ("libhipblaslt.so", "libhipblaslt.so.1"),
        ("libhipfft.so", "libhipfft.so.0"),
        ("librocfft.so", "librocfft.so.0"),
        ("libhiprand.so", "libhiprand.so.1"),
        ("librocrand.so", "librocrand.so.1"),
        ("libhipsolver.so", "libhipsolver.so.0"),
        ("librocsolver.so", "librocsolver.so.0"),
        ("libhipsparse.so", "libhipsparse.so.1"),
        ("librocsparse.so", "librocsparse.so.1"),
    ],
    places: &[
        ("/opt/rocm-6.0.0/llvm/bin/ld.lld", "/usr/lib/llvm-21/bin/ld.lld"),
        ("/opt/rocm-6.0.0/amdgcn/bitcode", "/usr/lib/x86_64-linux-gnu/amdgcn/bitcode"),
        ("/build/reproducible-path/miopen-6.4.3+dfsg/build/clang-21", "/usr/bin/clang-21"),
    ],
    environment: &[
        ("PYTHONPATH", "/source"),
        ("LD_LIBRARY_PATH", WORK),
        ("TF_CPP_MIN_LOG_LEVEL", "1"),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
        ("CCC_OVERRIDE_OPTIONS", "#s/-isystem/-idirafter/"),
        ("MIOPEN_USER_DB_PATH", "/work/miopen"),
        ("MIOPEN_CUSTOM_CACHE_DIR", "/work/miopen"),
        ("ROCFFT_RTC_CACHE_PATH", "/work/rocfft.db"),
        ("AMD_COMGR_CACHE_DIR", "/work/comgr"),
    ],
    controls: &[Control::new("cu.handler=v_mul_f32", "operations/elementwise", "gfx90a")],
    ..JAX
};

pub const TRANSFORMERS: Framework = Framework {
    name: "transformers",
    about: "transformers 4.46 on JAX against its CPU back end: GPT-2, Llama, BERT, ViT, T5, Whisper in small",
    programs: &[("models/transformers", XLA_MEMORY)],
    targets: &["gfx90a"],
    in_guest: &[],
    controls: &[],
    ..JAX
};

pub const DIFFUSERS: Framework = Framework {
    name: "diffusers",
    about: "diffusers 0.32 on JAX against its CPU back end: a UNet, a VAE, Stable Diffusion's pipeline in small",
    programs: &[("models/diffusers", XLA_MEMORY)],
    targets: &["gfx90a"],
    in_guest: &[],
    controls: &[],
    ..JAX
};

pub const STABLE_DIFFUSION: Framework = Framework {
    name: "stable-diffusion",
    about: "stable-diffusion.cpp on HIP 6.4.3 against its CPU backend: pictures by models made here",
    packages: &["libamdhip64-6", "libhipblas2", "librocblas4", "libgomp1", "python3"],
    python: "3.14",
    wheels: Some("stable-diffusion.txt"),
    directory: "diffusion",
    shared: &["models.py"],
    programs: &[("images/pictures", XLA_MEMORY), ("images/more", XLA_MEMORY)],
    stubs: &[],
    names: &[],
    places: &[],
    environment: &[("PYTHONPATH", "/source"), ("PYTHONDONTWRITEBYTECODE", "1")],
    // Debian's rocBLAS has no code for gfx942, which the wheel has.
    targets: &["gfx90a", "gfx1100"],
    in_guest: &[],
    controls: &[
        Control::new("cu.handler=v_add_u32", "images/pictures", "gfx90a"),
        Control::new("driver.invalidation", "images/pictures", "gfx90a").on(Memory::Oversubscribed),
    ],
    ..JAX
};

pub const PYTORCH: Framework = Framework {
    name: pytorch::NAME,
    about: "PyTorch 2.6, built here on HIP 6.4.3, against its CPU side: operations, layers, training, models",
    debian: pytorch::ROOT,
    packages: pytorch::PACKAGES,
    python: pytorch::PYTHON,
    wheels: None,
    tests: None,
    directory: "torch",
    shared: &["device.py"],
    programs: &[
        ("operations/elementwise", &[]),
        ("operations/reductions", &[]),
        ("operations/sorting", &[]),
        ("operations/indices", &[]),
        ("operations/products", &[]),
        ("operations/convolutions", &[]),
        ("operations/fourier", &[]),
        ("operations/solvers", &[]),
        ("models/layers", &[]),
        ("models/training", &[]),
        ("models/transformers", &[]),
        ("models/diffusers", &[]),
    ],
    stubs: &[],
    names: &[("libopenblas.so.0", "openblas-pthread/libopenblas.so.0")],
    // MIOpen's compiler, as for JAX.
    places: JAX.places,
    environment: &[
        ("PYTHONPATH", "/source"),
        // Its libraries name each other without a directory.
        ("LD_LIBRARY_PATH", "/work:/source/torch/lib"),
        // Debian's hipBLASLt 7.1 ends most products with an internal error; hipBLAS does them.
        ("TORCH_BLAS_PREFER_HIPBLASLT", "0"),
        ("DISABLE_ADDMM_CUDA_LT", "1"),
        // Without MAGMA.
        ("TORCH_LINALG_PREFER_CUSOLVER", "1"),
        ("CCC_OVERRIDE_OPTIONS", "#s/-isystem/-idirafter/"),
        ("MIOPEN_USER_DB_PATH", "/work/miopen"),
        ("MIOPEN_CUSTOM_CACHE_DIR", "/work/miopen"),
        ("ROCFFT_RTC_CACHE_PATH", "/work/rocfft.db"),
        ("AMD_COMGR_CACHE_DIR", "/work/comgr"),
    ],
    targets: &["gfx90a"],
    in_guest: &["operations/sorting"],
    controls: &[Control::new("cu.handler=v_add_u32", "operations/sorting", "gfx90a")],
};

impl Framework {
    fn clients(&self) -> PathBuf {
        tree::root().join("tests/clients")
    }
}

impl Suite for Framework {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn packages(&self) -> &'static [&'static str] {
        &["python3", "python3-venv", "gcc", "libc6-dev"]
    }

    fn source(&self) -> Source {
        let Framework { python, wheels, tests, debian: suite, packages, .. } = *self;
        match (wheels, tests) {
            (Some(wheels), Some(tests)) => Source::TestedLibraryInRoot { python, wheels, tests, suite, packages },
            (Some(wheels), None) => Source::LibraryInRoot { python, wheels, suite, packages },
            (None, _) => Source::BuiltLibrary { suite, packages },
        }
    }

    fn targets(&self) -> &'static [&'static str] {
        self.targets
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(60 * 60)
    }

    /// The first run of a framework's own tests compiles their kernels.
    fn patience(&self) -> Duration {
        Duration::from_secs(1800)
    }

    fn units(&self, _source: &Path) -> Result<Vec<String>> {
        Ok(self.programs.iter().map(|(name, _)| (*name).into()).collect())
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        let (file, _) = unit.name.split_once('/').context("a program is FILE/PART")?;
        let directory = self.clients().join(self.directory);
        let mut scripts = vec![self.clients().join(CHECKS), directory.join(file).with_extension("py")];
        scripts.extend(self.shared.iter().map(|name| directory.join(name)));
        let sources: Vec<PathBuf> = self.stubs.iter().map(|(_, file, _)| tree::root().join(STUBS).join(file)).collect();
        let mut commands = vec![venv::made_from(&[&scripts[..], &sources].concat())?];
        let mut copy = Command::new("cp");
        copy.args(&scripts).arg(unit.at);
        commands.push(copy);
        for ((library, _, name), source) in self.stubs.iter().zip(&sources) {
            let mut compile = Command::new("gcc");
            compile.args(["-shared", "-fPIC", "-O1", "-Wall", &format!("-D{name}"), &format!("-Wl,-soname,{library}")]);
            compile.arg("-o").arg(unit.at.join(library)).arg(source);
            commands.push(compile);
        }
        for (name, library) in self.names {
            let mut link = Command::new("ln");
            link.arg("-s").arg(Path::new(LIBRARIES).join(library)).arg(unit.at.join(name));
            commands.push(link);
        }
        Ok(commands)
    }

    fn environment(&self) -> &'static [(&'static str, &'static str)] {
        self.environment
    }

    fn in_guest(&self) -> &'static [&'static str] {
        self.in_guest
    }

    fn options(&self, unit: &str) -> &'static [&'static str] {
        self.programs.iter().find(|(name, _)| *name == unit).map_or(&[], |(_, options)| options)
    }

    fn interpreter(&self) -> Option<String> {
        Some(format!("/usr/bin/python{}", self.python))
    }

    /// Makes the links in the root that are not there.
    fn prepare(&self, unit: &Unit<'_>) -> Result<()> {
        let root = unit.root.context("a framework is in a root")?;
        root::link(root, self.places)
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        let (file, part) = unit.name.split_once('/').context("a program is FILE/PART")?;
        let program = self.interpreter().context("a framework has a Python")?;
        let script = format!("{WORK}/{file}.py");
        let arguments = [script.as_str(), part];
        let ran = machine.run_in_root(unit, &program, self.options(unit.name), &arguments, self.patience())?;
        Ok(cases(unit.name, &ran))
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        Outcome::Failed(ran.why())
    }

    fn controls(&self) -> &'static [Control] {
        self.controls
    }
}

/// The checks that a program came to, and the program itself if it has not come to its end.
fn cases(unit: &str, ran: &Ran) -> Vec<Case> {
    let mut cases = Vec::new();
    let named = |rest: &str| rest.split_once(": ").map(|(name, how)| (name.to_owned(), how.to_owned()));
    for line in ran.stdout.lines() {
        if let Some((name, _)) = line.strip_prefix("ok ").and_then(named) {
            cases.push(Case::of(unit, &name, Outcome::Passed));
        } else if let Some((name, why)) = line.strip_prefix("FAILED ").and_then(named) {
            cases.push(Case::of(unit, &name, Outcome::Failed(why)));
        } else if let Some((name, why)) = line.strip_prefix("skipped ").and_then(named) {
            cases.push(Case::of(unit, &name, Outcome::Skipped(why)));
        }
    }
    let has_failed = cases.iter().any(|case| matches!(case.outcome, Outcome::Failed(_)));
    let ends = ran.stdout.lines().any(|line| line == "end") && ran.code == Some(i32::from(has_failed));
    if !ends || cases.is_empty() {
        cases.push(Case { name: unit.into(), outcome: Outcome::Failed(ran.why()) });
    }
    cases
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_check_is_a_case_and_so_is_a_program_without_an_end() {
        let seen = |code, stdout: &str| {
            let ran = Ran { code, stdout: stdout.into(), ..Ran::default() };
            cases("a/b", &ran).into_iter().map(|Case { name, outcome }| (name, outcome == Outcome::Passed)).collect()
        };
        let is = |expected: &[(&str, bool)], seen: Vec<(String, bool)>| {
            let seen: Vec<_> = seen.iter().map(|(name, passed)| (name.as_str(), *passed)).collect();
            assert_eq!(seen, expected);
        };
        is(&[("a/b: one", true), ("a/b: two", false)], seen(Some(1), "ok one: 3 equal\nFAILED two: no\nend\n"));
        is(&[("a/b: one", true)], seen(Some(0), "ok one: 3 values equal\nend\n"));
        is(&[("a/b: one", true), ("a/b: two", false)], seen(Some(0), "ok one: 0.1 s\nskipped two: no\nend\n"));
        is(&[("a/b: one", true), ("a/b", false)], seen(Some(0), "ok one: 3 values equal\n"));
        is(&[("a/b: one", true), ("a/b", false)], seen(Some(1), "ok one: 3 values equal\nend\n"));
        is(&[("a/b: one", true), ("a/b", false)], seen(None, "ok one: 3 values equal\nend\n"));
        is(&[("a/b", false)], seen(Some(0), "end\n"));
    }

    #[test]
    fn each_program_is_a_part_of_a_file() {
        for framework in [&CUPY, &JAX, &TRANSFORMERS, &DIFFUSERS, &STABLE_DIFFUSION, &PYTORCH] {
            for (name, _) in framework.programs {
                let (file, part) = name.split_once('/').expect("FILE/PART");
                let file = framework.clients().join(framework.directory).join(file).with_extension("py");
                let text = fs::read_to_string(&file).expect("a file of checks");
                assert!(text.contains(&format!("\npart(\"{part}\")\n")), "{name}");
            }
        }
    }
}
