// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a guest is put together from: a kernel, a module, programs and GPUs.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use vkfd_guest::{Job, Program, Record};
use vkfd_targets::Target;

use super::boot::{Boot, Directory, Outcome};
use super::cache::Cache;
use super::device::{self, Wanted};
use super::initrd::Initrd;
use super::kernel::Kernel;
use super::module::{self, Module};
use super::programs::{Binary, Programs, GPU, INIT};
use super::qemu::{Acceleration, Share};
use super::{accelerator, Flavor};
use xtask_base::cargo::Build;

/// Time for the guest to boot, load and unload, without its programs. It takes seconds; a busy host
/// may take minutes.
pub const AROUND_PROGRAMS: Duration = Duration::from_secs(300);

/// Where special memory begins: the kernel is before it, the file system it starts with at the end
/// of memory.
const SPECIAL_MEMORY_MIB: u64 = 512;

/// The sanitizer kernel is about so much slower.
const DEBUG_FACTOR: u32 = 6;

/// The guest that the suite runs in if nothing else is asked for: all scenarios have room.
const USUAL: Size =
    Size { memory: 4096, gpus: 2, vram: 254, target: Target::Gfx900, sabotage: None, special_memory: false };

/// The size of the guest on the command line.
#[derive(clap::Args, Clone, Copy)]
pub struct Size {
    /// The guest's memory in MiB; scenarios register up to 1 GiB, and the driver allows three
    /// eighths
    #[arg(long, default_value_t = USUAL.memory, value_parser = clap::value_parser!(u64).range(256..=65536))]
    memory: u64,

    /// How many GPUs the guest has
    #[arg(long, default_value_t = USUAL.gpus, value_parser = clap::value_parser!(u32).range(0..=8))]
    gpus: u32,

    /// Each GPU's memory in MiB, even; two less than a power of two waste no addresses
    #[arg(long, default_value_t = USUAL.vram, value_parser = clap::value_parser!(u64).range(2..=1024))]
    vram: u64,

    /// What the GPUs are
    #[arg(long, default_value_t = Target::Gfx900, value_parser = device::target())]
    target: Target,

    /// What a sabotaged GPU does wrong.
    #[arg(skip)]
    sabotage: Option<&'static str>,

    /// The GPUs' memory is memory of the guest that its kernel is told not to use (`memmap=`),
    /// instead of being in their BARs
    #[arg(long)]
    special_memory: bool,
}

/// Everything that is built for a guest.
pub struct Parts {
    pub kernel: Kernel,
    pub acceleration: Acceleration,
    pub programs: Programs,
    /// Directories that the guest can mount.
    pub shares: Vec<Share>,
    module: Module,
    module_file: PathBuf,
}

impl Parts {
    /// Builds the module and `binaries` (the guest's first process and, for the driver, the GPU by
    /// itself).
    pub fn build(flavor: Flavor, module: Module, binaries: &[Binary]) -> Result<Self> {
        Self::built(Build::of_checks()?, flavor, module, binaries)
    }

    /// The same with programs that are fit to be measured.
    pub fn to_measure(flavor: Flavor, module: Module, binaries: &[Binary]) -> Result<Self> {
        Self::built(Build::Released, flavor, module, binaries)
    }

    fn built(build: Build, flavor: Flavor, module: Module, binaries: &[Binary]) -> Result<Self> {
        let cache = Cache::open()?;
        let kernel = Kernel::find(&cache, flavor)?;
        let mut binaries = binaries.to_vec();
        binaries.push(INIT);
        if module.drives() {
            binaries.push(GPU);
        }
        let module_file = module::build(&kernel, module)?;
        let programs = Programs::build(build, &binaries)?;
        let acceleration = accelerator::choose(&cache, &kernel, programs.path(INIT)?)?;
        Ok(Self { kernel, acceleration, programs, shares: Vec::new(), module, module_file })
    }

    /// A file system and a job with the module, loaded with `parameters`.
    pub fn guest(&self, parameters: &str) -> Result<(Initrd, Job)> {
        let mut initrd = Initrd::new(self.programs.path(INIT)?)?;
        let file = initrd.add_module(&self.module_file)?;
        let module =
            vkfd_guest::Module { name: self.module.name().into(), file, parameters: parameters.into(), stays: false };
        Ok((initrd, Job { modules: vec![module], ..Job::default() }))
    }

    /// As [`guest`](Self::guest), with the calls that only tests and benchmarks use.
    pub fn guest_for_tests(&self, parameters: &str) -> Result<(Initrd, Job)> {
        self.guest(format!("diagnosis=1 {parameters}").trim_end())
    }

    /// The GPUs of `size`.
    pub fn gpus(&self, size: Size) -> Result<Option<Wanted>> {
        if size.gpus == 0 {
            return Ok(None);
        }
        Ok(Some(Wanted {
            program: self.programs.path(GPU)?.into(),
            sabotage: size.sabotage,
            count: size.gpus,
            vram_mib: size.vram,
            target: size.target,
            vram_in_ram_mib: size.special_memory.then_some(SPECIAL_MEMORY_MIB),
        }))
    }

    /// Boots `job`; the guest is switched off when its programs have had their time and it is not
    /// done.
    pub fn boot(
        &self,
        name: &str,
        initrd: Initrd,
        job: &Job,
        size: Size,
        around_programs: Duration,
        on_record: impl FnMut(&Record),
    ) -> Result<Outcome> {
        let programs: u64 = job.programs.iter().map(|program| program.seconds).sum();
        let boot = Boot {
            kernel: &self.kernel,
            acceleration: self.acceleration,
            memory_mib: size.memory,
            gpus: self.gpus(size)?,
            append: size.kernel_words(),
            shares: &self.shares,
            limit: self.scaled(around_programs) + Duration::from_secs(programs),
        };
        boot.run(initrd, job, &Directory::new(&self.kernel, name)?, on_record)
    }

    /// `time` as it is with this kernel.
    pub fn scaled(&self, time: Duration) -> Duration {
        match self.kernel.flavor {
            Flavor::Plain => time,
            Flavor::Debug => time * DEBUG_FACTOR,
        }
    }
}

impl Default for Size {
    /// Room for all scenarios but the largest.
    fn default() -> Self {
        Self { memory: 2048, gpus: 1, ..USUAL }
    }
}

impl Size {
    /// Without GPUs.
    pub fn small() -> Self {
        Self { memory: 512, gpus: 0, vram: 0, ..Self::default() }
    }

    /// For programs of the distribution, whose libraries are in memory, too.
    pub fn clients(target: Target, gpus: u32) -> Self {
        Self { memory: 4096, gpus, target, ..Self::default() }
    }

    /// With GPUs that are wrong on purpose.
    pub fn sabotaged(self, what: &'static str) -> Self {
        Self { sabotage: Some(what), ..self }
    }

    /// With so many GPUs.
    pub fn with_gpus(self, gpus: u32) -> Self {
        Self { gpus, ..self }
    }

    /// Whether scenarios have all that they have in the usual guest.
    pub fn is_usual(self) -> bool {
        let room = self.memory >= USUAL.memory && self.gpus >= USUAL.gpus && self.vram >= USUAL.vram;
        room && self.target == USUAL.target && self.sabotage.is_none() && !self.special_memory
    }

    /// The kernel's command line for it.
    pub fn kernel_words(self) -> String {
        match self.special_memory && self.gpus > 0 {
            true => format!("memmap={}M${SPECIAL_MEMORY_MIB}M", u64::from(self.gpus) * self.vram),
            false => String::new(),
        }
    }

    pub fn memory_mib(self) -> u64 {
        self.memory
    }
}

/// A program in `job`'s guest that uses its KFD. Where it wants the module with other options it
/// may reload it.
pub fn program(job: &Job, name: &str, path: String, arguments: &[&str], time: Duration) -> Program {
    let mut argv = vec![path];
    argv.extend(arguments.iter().map(ToString::to_string));
    let mut env: Vec<(String, String)> =
        [("VKFD_DEVICE", "/dev/kfd"), ("RUST_BACKTRACE", "1")].map(|(name, value)| (name.into(), value.into())).into();
    for module in &job.modules {
        env.push(("VKFD_MODULE".into(), module.file.to_string_lossy().into_owned()));
        env.push(("VKFD_MODULE_OPTIONS".into(), module.parameters.clone()));
    }
    Program { name: name.into(), argv, env, seconds: time.as_secs() }
}
