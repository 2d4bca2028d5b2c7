// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ROCm libraries' own test programs, as Debian 13 packages them, on HIP 5.7.1. They are
//! rocRAND, hipRAND, rocPRIM, rocThrust, hipCUB, rocBLAS, hipBLAS, rocSOLVER, hipSOLVER, rocSPARSE,
//! hipSPARSE, rocFFT, hipFFT and RCCL. ROCR's own tests, from Debian's experimental, run on ROCR
//! 7.2.4. A program is a file of the package, or a group of its tests; a case is one of its tests.
//!
//! Mechanism: a program runs whole, without the tests that the expectation file leaves out. What
//! comes after a test that took the program with it, or hung, is run anew without it. ROCR's tests
//! run each in a separate process. ROCR 7.2.4 can start only once per process without debugger
//! support in the firmware version, because it leaves the driver open.
//!
//! Of programs with very many tests each N-th is run, by GoogleTest's own sharding; in a guest,
//! where the processor is emulated, fewer. rocBLAS and rocSPARSE make hundreds of thousands of
//! names before the first test; in a guest they read a file that has fewer tests.
//!
//! Limits: programs are not compiled here, so that a target is one that Debian compiled for. Of a
//! program of which each N-th test is run, the tests after one that ended it are others: leaving
//! tests out moves the rest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::frameworks;
use super::gtest;
use super::machine::Machine;
use super::memory::Memory;
use super::ran::Ran;
use super::root::{self, WORK};
use super::select::matches;
use super::source::Source;
use super::suite::{Case, Control, Outcome, Suite};
use super::thrust;
use super::unit::Unit;
use xtask_base::{tree, venv};

pub struct RocmLibrary {
    name: &'static str,
    framework: Framework,
    about: &'static str,
    /// The suite of Debian that it is in.
    debian: &'static str,
    package: &'static [&'static str],
    /// What its programs need and Debian has not, as a source in xtask/programs and the library
    /// that it is compiled to.
    stub: Option<(&'static str, &'static str)>,
    environment: Environment,
    /// In a guest; none if it is the same.
    in_guest_environment: Option<Environment>,
    /// The file of its tests in the root, and each how many-th quick test of it a guest is given.
    in_guest_tests: Option<(&'static str, &'static str)>,
    /// Of the programs.
    arguments: &'static [&'static str],
    /// GoogleTest's pattern of the tests that are asked for.
    wanted: &'static str,
    /// Groups of tests that are a program each, `FILE/GROUP`, with GoogleTest's pattern; none if a
    /// file is one.
    groups: &'static [(&'static str, &'static str)],
    /// What a compiler that a program starts has to find, as links in the root.
    places: &'static [(&'static str, &'static str)],
    /// Of `vkfd run`, or of `vkfd serve`.
    options: &'static [&'static str],
    /// Its processes are on one machine, that of `vkfd serve`.
    served: bool,
    targets: &'static [&'static str],
    /// Programs that run in a guest, where the processor is emulated.
    in_guest: &'static [&'static str],
    /// The same on AMD's own driver.
    on_amdgpu: &'static [&'static str],
    controls: &'static [Control],
}

type Environment = &'static [(&'static str, &'static str)];

/// What the tests of a library are written with.
#[derive(Clone, Copy)]
enum Framework {
    GoogleTest,
    /// The same, with a process for each test, and with tests that their authors have disabled.
    GoogleTestAlone,
    /// Thrust's own: small sizes are asked for.
    Thrust,
}

/// What a run of a program showed.
enum Shown {
    /// All tests that it was asked for.
    Whole(Vec<(String, Outcome)>),
    /// Those that it came to; none for one that has not ended.
    Part(Vec<(String, Option<Outcome>)>),
}

/// What most libraries have.
const LIBRARY: RocmLibrary = RocmLibrary {
    name: "",
    framework: Framework::GoogleTest,
    about: "",
    debian: "trixie",
    package: &[],
    stub: None,
    environment: &[],
    in_guest_environment: None,
    in_guest_tests: None,
    arguments: &[],
    wanted: "*",
    groups: &[],
    places: &[],
    options: &[],
    served: false,
    targets: &["gfx900"],
    in_guest: &[],
    on_amdgpu: &[],
    controls: &[],
};

pub const ROCRAND: RocmLibrary = RocmLibrary {
    name: "rocrand",
    about: "rocRAND's own tests: generators of random numbers and their distributions",
    package: &["librocrand1-tests"],
    targets: &["gfx900", "gfx90a"],
    in_guest: &[
        "test_log_normal_distribution",
        "test_normal_distribution",
        "test_uniform_distribution",
        "test_rocrand_generator_type",
        "test_rocrand_kernel_philox4x32_10",
        "test_rocrand_linkage",
    ],
    controls: &[
        Control::new("cu.handler=v_add_u32", "test_rocrand_kernel_xorwow", "gfx900"),
        Control::new("driver.invalidation", "test_rocrand_kernel_xorwow", "gfx900").on(Memory::Oversubscribed),
    ],
    ..LIBRARY
};

pub const ROCPRIM: RocmLibrary = RocmLibrary {
    name: "rocprim",
    about: "rocPRIM's own tests: scans, reductions and sorts by warp, block and device",
    package: &["librocprim-tests"],
    targets: &["gfx900", "gfx90a", "gfx1100"],
    in_guest: &["test_basic", "test_intrinsics", "test_thread", "test_block_reduce", "test_warp*"],
    controls: &[
        Control::new("cu.handler=v_mov_b32", "test_warp_load", "gfx900"),
        Control::new("driver.invalidation", "test_warp_reduce", "gfx900").on(Memory::Oversubscribed),
    ],
    ..LIBRARY
};

pub const ROCTHRUST: RocmLibrary = RocmLibrary {
    name: "rocthrust",
    framework: Framework::Thrust,
    about: "rocThrust's own tests: algorithms on vectors of the GPU",
    package: &["librocthrust-tests"],
    in_guest: &[
        "test_thrust_copy_n",
        "test_thrust_functional",
        "test_thrust_pair_*",
        "test_thrust_reverse",
        "test_thrust_transform_reduce",
        "test_thrust_universal_memory",
    ],
    controls: &[Control::new("cu.handler=v_add_u32", "test_thrust_advance", "gfx900")],
    ..LIBRARY
};

pub const HIPCUB: RocmLibrary = RocmLibrary {
    name: "hipcub",
    about: "hipCUB's own tests: rocPRIM by CUB's interface",
    package: &["libhipcub-tests"],
    in_guest: &["*"],
    controls: &[Control::new("cu.handler=v_mov_b32", "test_hipcub_warp_load", "gfx900")],
    ..LIBRARY
};

pub const HIPRAND: RocmLibrary = RocmLibrary {
    name: "hiprand",
    about: "hipRAND's own tests: rocRAND by cuRAND's interface",
    package: &["libhiprand1-tests"],
    in_guest: &["test_hiprand_kernel", "test_hiprand_linkage"],
    ..LIBRARY
};

pub const ROCBLAS: RocmLibrary = RocmLibrary {
    name: "rocblas",
    about: "rocBLAS's own tests: products of matrices and vectors, against a BLAS of the CPU",
    package: &["librocblas0-tests"],
    environment: &[LAPACK, one_in("50"), FIRST],
    in_guest_environment: Some(&[LAPACK]),
    in_guest_tests: Some(("usr/share/rocblas/2.47.0/test/rocblas_gtest.data", "3000")),
    in_guest: &["*"],
    wanted: "*quick*",
    targets: &["gfx900", "gfx90a", "gfx1030", "gfx1100"],
    ..LIBRARY
};

pub const ROCFFT: RocmLibrary = RocmLibrary {
    name: "rocfft",
    about: "rocFFT's own tests: Fourier transforms by kernels that it compiles as it goes, against FFTW",
    package: &["librocfft0-tests"],
    environment: &[KERNELS, one_in("500"), ("GTEST_SHARD_INDEX", "3")],
    in_guest_environment: Some(&[KERNELS, one_in("45000"), ("GTEST_SHARD_INDEX", "3")]),
    in_guest: &["*"],
    arguments: &["--R", "2", "--V", "1"],
    options: &["--vram", "4G"],
    ..LIBRARY
};

pub const ROCSPARSE: RocmLibrary = RocmLibrary {
    name: "rocsparse",
    about: "rocSPARSE's own tests: products, solvers and conversions of sparse matrices",
    package: &["librocsparse0-tests"],
    environment: &[one_in("30"), FIRST],
    in_guest_environment: Some(&[]),
    in_guest_tests: Some(("usr/share/rocsparse/2.5.4/test/rocsparse_test.data", "1000")),
    in_guest: &["*"],
    wanted: "quick/*",
    targets: &["gfx900", "gfx90a", "gfx1030", "gfx1100"],
    ..LIBRARY
};

/// How GoogleTest is told the part of a program's tests to run: one in so many, from the first on
/// or another.
const fn one_in(shards: &'static str) -> (&'static str, &'static str) {
    ("GTEST_TOTAL_SHARDS", shards)
}

const FIRST: (&str, &str) = ("GTEST_SHARD_INDEX", "0");

/// Where rocFFT keeps the kernels that it has compiled, for the next run.
const KERNELS: (&str, &str) = ("ROCFFT_RTC_CACHE_PATH", "/work/kernels.db");

/// Where Debian 13 has the BLAS and the LAPACK that the tests compare with.
const LAPACK: (&str, &str) = ("LD_LIBRARY_PATH", "/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack");

pub const ROCSOLVER: RocmLibrary = RocmLibrary {
    name: "rocsolver",
    about: "rocSOLVER's own tests: factorizations and solutions of dense systems, against a LAPACK of the CPU",
    package: &["librocsolver0-tests"],
    environment: &[LAPACK, one_in("100"), FIRST],
    in_guest_environment: Some(&[LAPACK, one_in("2000"), FIRST]),
    in_guest: &["*"],
    wanted: "checkin_lapack/*",
    targets: &["gfx900", "gfx90a", "gfx1030", "gfx1100"],
    ..LIBRARY
};

pub const HIPSOLVER: RocmLibrary = RocmLibrary {
    name: "hipsolver",
    about: "hipSOLVER's own tests: rocSOLVER by cuSOLVER's interface",
    package: &["libhipsolver0-tests"],
    environment: &[LAPACK, one_in("10"), FIRST],
    in_guest_environment: Some(&[LAPACK, one_in("200"), FIRST]),
    ..ROCSOLVER
};

pub const HIPBLAS: RocmLibrary = RocmLibrary {
    name: "hipblas",
    about: "hipBLAS's own tests: rocBLAS by cuBLAS's interface",
    package: &["libhipblas0-tests"],
    environment: &[LAPACK, one_in("100"), FIRST],
    in_guest_environment: Some(&[LAPACK, one_in("2000"), FIRST]),
    in_guest: &["*"],
    ..LIBRARY
};

pub const HIPSPARSE: RocmLibrary = RocmLibrary {
    name: "hipsparse",
    about: "hipSPARSE's own tests: rocSPARSE by cuSPARSE's interface",
    package: &["libhipsparse0-tests"],
    environment: &[one_in("10"), FIRST],
    in_guest_environment: Some(&[one_in("400"), FIRST]),
    in_guest: &["*"],
    options: &["--vram", "4G"],
    ..LIBRARY
};

pub const HIPFFT: RocmLibrary = RocmLibrary {
    name: "hipfft",
    about: "hipFFT's own tests: rocFFT by cuFFT's interface, against FFTW",
    package: &["libhipfft0-tests"],
    in_guest_environment: Some(&[KERNELS, one_in("45000"), FIRST]),
    ..ROCFFT
};

/// ROCR's tests want AMD's library for reading sensors, which Debian has not: ours says that there
/// are none.
pub const ROCRTST: RocmLibrary = RocmLibrary {
    name: "rocrtst",
    framework: Framework::GoogleTestAlone,
    about: "ROCR's own tests: agents, memory, signals, queues, kernels of its own",
    debian: "experimental",
    package: &["libhsa-runtime64-tests"],
    stub: Some(("amd_smi.c", "libamd_smi.so.26")),
    environment: &[("LD_LIBRARY_PATH", WORK), ("ROCRTST_KERNELS_PATH", "/usr/libexec/rocm/libhsa-runtime64-tests")],
    options: &["--vram", "4G"],
    targets: &["gfx900", "gfx90a", "gfx942", "gfx1030", "gfx1100"],
    in_guest: &["*"],
    on_amdgpu: &["*"],
    ..LIBRARY
};

pub const RCCL: RocmLibrary = RocmLibrary {
    name: "rccl",
    about: "RCCL's own tests on two GPUs: collectives in and out of place, scatter and gather, streams, graphs",
    package: &["librccl1-tests"],
    groups: &[
        ("AllGather", "AllGather.*"),
        ("AllReduce", "AllReduce.*"),
        ("AllToAll", "AllToAll.*"),
        ("AllToAllv", "AllToAllv.*"),
        ("Broadcast", "Broadcast.*"),
        ("Gather", "Gather.*"),
        ("Reduce", "Reduce.*"),
        ("ReduceScatter", "ReduceScatter.*"),
        ("Scatter", "Scatter.*"),
        ("SendRecv", "SendRecv.*"),
    ],
    // Its ranks as threads: processes would each have GPUs of their own.
    environment: &[("UT_PROCESS_MASK", "1")],
    options: &["--gpus", "2"],
    targets: &["gfx90a"],
    controls: &[Control::new("cu.handler=v_mul_lo_u32", "UnitTests/Reduce", "gfx90a")],
    ..LIBRARY
};

pub const RCCL_PROCESSES: RocmLibrary = RocmLibrary {
    name: "rccl-processes",
    about: "the same with a process for each rank, on the machine of `vkfd serve`",
    environment: &[("UT_PROCESS_MASK", "2")],
    served: true,
    controls: &[],
    ..RCCL
};

pub const RCCL_FOUR: RocmLibrary = RocmLibrary {
    name: "rccl-four",
    about: "the same as `rccl` on four GPUs",
    // Tests take each number of GPUs from two on; those of two are in `rccl`.
    environment: &[("UT_PROCESS_MASK", "1"), ("UT_MIN_GPUS", "4")],
    options: &["--gpus", "4"],
    controls: &[],
    ..RCCL
};

/// Of MIOpen's 29,874 tests: small shapes of each kind of layer.
const MIOPEN_GROUPS: &[(&str, &str)] = &[
    ("activations", "Smoke/GPU_UnitTestActivationDescriptor*"),
    ("tensors", "Smoke/GPU_unaryTensorOps*:Smoke/GPU_binaryTensorOps*:Smoke/GPU_VecAddTest*"),
    ("transposes", "Full/GPU_LayoutTransposeTest_2D*_FP32*"),
    ("optimizers", "Full/GPU_Adam_FP32.*/1?"),
    ("attention", "Smoke/GPU_MhaForward_FP32*:GPU_TestMhaFind20*"),
    (
        "batch-normalization",
        "Smoke/GPU_BNInferSmall2D_FP32*:Smoke/GPU_BNFWDTrainSmall2D_FP32*:Smoke/GPU_BNBWDSmall2D_FP32*",
    ),
    ("group-normalization", "Full/GPU_GroupNorm_FP32.*/?"),
    ("softmax", "GPU_SoftmaxFind20*:Smoke/GPU_Kthvalue_fwd_FP32.*/0"),
    (
        "convolutions",
        "Smoke/GPU_UnitTestConvSolverDirectNaive*_FP32*:Smoke/GPU_UnitTestConvSolverGemm*_FP32*:\
         Smoke/GPU_UnitTestConvSolverOclDirect*_FP32*",
    ),
];

pub const MIOPEN: RocmLibrary = RocmLibrary {
    name: "miopen",
    about: "a part of MIOpen's own tests: layers by kernels that it compiles as it goes, against its CPU's loops",
    debian: "sid",
    // The first is the tests'. Kernels need the headers of the others, attention rocRAND's.
    package: &["libmiopen1-tests", "librocrand-dev", "rocm-device-libs-21", "hipcc", "lld", "libc6-dev", "g++", "dash"],
    environment: &[
        ("CCC_OVERRIDE_OPTIONS", "#s/-isystem/-idirafter/"),
        ("MIOPEN_USER_DB_PATH", "/work/miopen"),
        ("MIOPEN_CUSTOM_CACHE_DIR", "/work/miopen"),
        ("AMD_COMGR_CACHE_DIR", "/work/comgr"),
    ],
    groups: MIOPEN_GROUPS,
    places: frameworks::COMPILERS,
    options: &["--vram", "4G"],
    targets: &["gfx90a", "gfx1030", "gfx1100"],
    controls: &[
        Control::new("cu.handler=v_fma_f32", "miopen_gtest/convolutions", "gfx90a"),
        Control::new("driver.invalidation", "miopen_gtest/tensors", "gfx90a").on(Memory::Oversubscribed),
    ],
    ..LIBRARY
};

/// So many times the time of a program is there for it with its runs anew.
const AGAIN: u32 = 2;
/// Where a program writes its verdicts, in its directory.
const VERDICTS: &str = "verdicts.json";
/// An argument of a program has 128 KiB at most; what is longer is in this file of its directory.
const LONGEST: usize = 100_000;
const FLAGS: &str = "flags";
/// The file of fewer tests, in its directory.
const TESTS: &str = "tests.data";

impl RocmLibrary {
    /// Where Debian puts the tests.
    fn directory(&self) -> String {
        format!("/usr/libexec/rocm/{}", self.package[0])
    }

    fn start(&self, machine: &Machine, unit: &Unit<'_>, arguments: &[&str]) -> Result<Ran> {
        let (file, _) = file_and_group(unit.name);
        let program = format!("{}/{file}", self.directory());
        let environment = self.in_guest_environment.filter(|_| matches!(machine, Machine::Guest(_)));
        let unit = &Unit { environment: environment.unwrap_or(self.environment), left_out: Vec::new(), ..*unit };
        let (options, patience) = (self.options(unit.name), self.patience());
        match self.served {
            true => machine.run_served_in_root(unit, &program, options, arguments, patience),
            false => machine.run_in_root(unit, &program, options, arguments, patience),
        }
    }

    /// Runs a GoogleTest program without the tests that are left out or have ended.
    fn google(&self, machine: &Machine, unit: &Unit<'_>, ended: &BTreeMap<String, Outcome>) -> Result<(Ran, Shown)> {
        let group = file_and_group(unit.name).1;
        let wanted = self.groups.iter().find(|(name, _)| Some(*name) == group).map_or(self.wanted, |(_, tests)| tests);
        let mut without = filter(wanted, unit.left_out.iter().copied().chain(ended.keys().map(String::as_str)));
        if without.len() > LONGEST {
            let flags = unit.at.join(FLAGS);
            fs::write(&flags, without).with_context(|| format!("write {}", flags.display()))?;
            without = format!("--gtest_flagfile={WORK}/{FLAGS}");
        }
        let written = unit.at.join(VERDICTS);
        if written.exists() {
            fs::remove_file(&written).with_context(|| format!("remove {}", written.display()))?;
        }
        let output = format!("--gtest_output=json:{WORK}/{VERDICTS}");
        let ours = [without.as_str(), output.as_str(), "--gtest_color=no"];
        let tests = format!("{WORK}/{TESTS}");
        let fewer = ["--data", tests.as_str()];
        let fewer = match (self.in_guest_tests, machine) {
            (Some(_), Machine::Guest(_)) => fewer.as_slice(),
            _ => &[],
        };
        let ran = self.start(machine, unit, &[&ours, self.arguments, fewer].concat())?;
        let text = (!ran.hung && ran.code.is_some()).then(|| fs::read_to_string(&written).ok()).flatten();
        let shown = match text {
            Some(text) => Shown::Whole(gtest::of_json(&text)?.into_iter().collect()),
            // In a guest, what it wrote is lost.
            None if gtest::is_whole(&ran.stdout) => {
                let cases = gtest::of_lines(&ran.stdout).into_iter();
                Shown::Whole(cases.filter_map(|(name, outcome)| Some((name, outcome?))).collect())
            }
            None => Shown::Part(gtest::of_lines(&ran.stdout)),
        };
        Ok((ran, shown))
    }

    /// Runs each of a program's tests in a process of its own, but for those left out.
    fn alone(&self, machine: &Machine, unit: &Unit<'_>) -> Result<BTreeMap<String, Outcome>> {
        let listed = self.start(machine, unit, &["--gtest_list_tests"])?;
        let mut cases = BTreeMap::new();
        for name in gtest::listed(&listed.stdout) {
            if unit.left_out.iter().any(|pattern| matches(pattern, &name)) {
                continue;
            }
            let filter = format!("--gtest_filter={name}");
            let options = [filter.as_str(), "--gtest_also_run_disabled_tests", "--gtest_color=no"];
            let ran = self.start(machine, unit, &options)?;
            let outcome = match gtest::of_lines(&ran.stdout).into_iter().find(|(ended, _)| *ended == name) {
                Some((_, Some(outcome))) if outcome != Outcome::Passed || ran.code == Some(0) => outcome,
                _ => Outcome::Failed(ran.why()),
            };
            cases.insert(name, outcome);
        }
        Ok(cases)
    }

    /// Runs one of Thrust's programs without the tests that are left out or have ended.
    fn thrust(&self, machine: &Machine, unit: &Unit<'_>, ended: &BTreeMap<String, Outcome>) -> Result<(Ran, Shown)> {
        let mut arguments = vec!["--sizes=small", "--verbose"];
        let listed;
        if !unit.left_out.is_empty() || !ended.is_empty() {
            listed = self.start(machine, unit, &["--list"])?.stdout;
            let left_out = |name: &str| unit.left_out.iter().any(|pattern| matches(pattern, name));
            let names = listed.lines().map(str::trim).filter(|name| !name.is_empty());
            let rest: Vec<_> = names.filter(|name| !left_out(name) && !ended.contains_key(*name)).collect();
            // No names would be all of them.
            if rest.is_empty() {
                return Ok((Ran { code: Some(0), ..Ran::default() }, Shown::Whole(Vec::new())));
            }
            arguments.extend(rest);
        }
        let ran = self.start(machine, unit, &arguments)?;
        let cases = thrust::cases(&ran.stdout);
        let shown = match thrust::is_whole(&ran.stdout) {
            true => Shown::Whole(cases.into_iter().filter_map(|(name, outcome)| Some((name, outcome?))).collect()),
            false => Shown::Part(cases),
        };
        Ok((ran, shown))
    }
}

impl Suite for RocmLibrary {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn packages(&self) -> &'static [&'static str] {
        match (self.stub, self.in_guest_tests) {
            (Some(_), _) => &["gcc", "libc6-dev"],
            (None, Some(_)) => &["python3"],
            (None, None) => &[],
        }
    }

    fn source(&self) -> Source {
        Source::Root { suite: self.debian, packages: self.package }
    }

    fn targets(&self) -> &'static [&'static str] {
        self.targets
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(60 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(900)
    }

    fn units(&self, source: &Path) -> Result<Vec<String>> {
        let files = root::programs(source, &self.directory())?;
        if self.groups.is_empty() {
            return Ok(files);
        }
        Ok(files.iter().flat_map(|file| self.groups.iter().map(move |(group, _)| format!("{file}/{group}"))).collect())
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        let programs = tree::root().join("xtask/programs");
        if let Some((source, library)) = self.stub {
            let mut command = Command::new("gcc");
            command.args(["-shared", "-fPIC", "-O1", &format!("-Wl,-soname,{library}"), "-o"]);
            command.arg(unit.at.join(library)).arg(programs.join(source));
            return Ok(vec![command]);
        }
        let Some((tests, each)) = self.in_guest_tests else { return Ok(Vec::new()) };
        let script = programs.join("thin.py");
        let mut command = Command::new("python3");
        command.arg(&script).arg(unit.source.join(tests)).arg(each).arg(unit.at.join(TESTS));
        Ok(vec![venv::made_from(&[script])?, command])
    }

    fn options(&self, _unit: &str) -> &'static [&'static str] {
        self.options
    }

    fn environment(&self) -> Environment {
        self.environment
    }

    fn in_guest(&self) -> &'static [&'static str] {
        self.in_guest
    }

    fn on_amdgpu(&self) -> &'static [&'static str] {
        self.on_amdgpu
    }

    fn prepare(&self, unit: &Unit<'_>) -> Result<()> {
        match unit.root {
            Some(root) => root::link(root, self.places),
            None => Ok(()),
        }
    }

    fn run(&self, machine: &Machine, unit: &Unit<'_>) -> Result<Vec<Case>> {
        if let Framework::GoogleTestAlone = self.framework {
            return Ok(cases(unit, self.alone(machine, unit)?).collect());
        }
        let mut ended: BTreeMap<String, Outcome> = BTreeMap::new();
        let begun = Instant::now();
        while begun.elapsed() < AGAIN * self.patience() {
            let (ran, shown) = match self.framework {
                Framework::Thrust => self.thrust(machine, unit, &ended)?,
                _ => self.google(machine, unit, &ended)?,
            };
            let is_whole = matches!(shown, Shown::Whole(_));
            let mut lost = false;
            match shown {
                Shown::Whole(cases) => ended.extend(cases),
                Shown::Part(cases) => {
                    lost = cases.iter().any(|(_, outcome)| outcome.is_none());
                    let why = || Outcome::Failed(ran.why());
                    ended.extend(cases.into_iter().map(|(name, outcome)| (name, outcome.unwrap_or_else(why))));
                }
            }
            let failed = ended.values().any(|outcome| matches!(outcome, Outcome::Failed(_)));
            if is_whole && (ran.code == Some(0) || failed) {
                break;
            }
            if !lost {
                // Before the first test, or after the last.
                let all = Case { name: unit.name.into(), outcome: Outcome::Failed(ran.why()) };
                return Ok(cases(unit, ended).chain([all]).collect());
            }
        }
        Ok(cases(unit, ended).collect())
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        match ran.code {
            Some(0) => Outcome::Passed,
            _ => Outcome::Failed(ran.why()),
        }
    }

    fn controls(&self) -> &'static [Control] {
        self.controls
    }
}

/// The file of a program, and the group of its tests that the program is.
fn file_and_group(unit: &str) -> (&str, Option<&str>) {
    unit.split_once('/').map_or((unit, None), |(file, group)| (file, Some(group)))
}

fn cases<'a>(unit: &'a Unit<'_>, ended: BTreeMap<String, Outcome>) -> impl Iterator<Item = Case> + 'a {
    ended.into_iter().map(|(name, outcome)| Case::of(unit.name, &name, outcome))
}

/// GoogleTest's option for the tests that are wanted but for some; its patterns are those of the
/// expectation files.
fn filter<'a>(wanted: &str, without: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = without.collect();
    match names.is_empty() {
        true => format!("--gtest_filter={wanted}"),
        false => format!("--gtest_filter={wanted}-{}", names.join(":")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_be_a_group_of_a_file() {
        assert_eq!(file_and_group("UnitTests/Scatter"), ("UnitTests", Some("Scatter")));
        assert_eq!(file_and_group("test_scan"), ("test_scan", None));
    }

    #[test]
    fn what_is_left_out_is_a_filter() {
        assert_eq!(filter("*", ["a.one", "b/*"].into_iter()), "--gtest_filter=*-a.one:b/*");
        assert_eq!(filter("a.*", [].into_iter()), "--gtest_filter=a.*");
    }
}
