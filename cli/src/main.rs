// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd`: shows and checks what the driver does, in this process or on a device.
//!
//! Exit codes: 0 all checks held, 1 one did not, 2 wrong usage or a system that lacks something.
//! `run` has its program's exit code, or 125 to 127.

mod advise;
mod demo;
mod disasm;
mod doctor;
mod engine;
mod format;
mod guest;
mod input;
mod inspect;
mod layout;
mod lint;
mod log;
mod manual;
mod memory;
mod report;
mod run;
mod scatter;
mod serve;
mod session;
mod targets;
mod virtio_gpu;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

/// Allocations by threads of the driver and the GPUs share no lock with the C library.
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<vkfd_rt::heap::Heap> = vkfd_rt::section::Checked(vkfd_rt::heap::Heap);

/// A KFD (AMD's GPU compute driver) for machines without an AMD GPU, with batch registration of
/// scattered CPU memory.
///
/// Without a command, runs `vkfd demo`.
#[derive(Parser)]
#[command(name = "vkfd", version, after_long_help = manual::environment())]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Register a scattered buffer as one GPU range, use it, change it meanwhile, and check every
    /// result
    ///
    /// With --input DIR it registers files' contents instead, and lets the GPU compute their
    /// checksums.
    ///
    /// Exit code: 0 when every check held, 1 when one did not, 2 for wrong usage or a system that
    /// lacks something.
    #[command(after_long_help = EXAMPLES)]
    Demo(Box<demo::DemoArgs>),
    /// Show the driver's state: limits, objects, ranges, counters, page-table entries
    ///
    /// The driver in this process is new and has only this process's state, and it cannot be
    /// attached to from outside. So this command makes the same state as the demo, a small one, and
    /// shows what the driver's snapshot queries return. It cannot show other programs' state. With
    /// --device it shows the limits, capabilities and nodes of that KFD as a new process sees them.
    Inspect(Box<inspect::InspectArgs>),
    /// Measure batch registration, memory on a GPU, computing, or a virtual machine's memory
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Run an unmodified ROCm program on software GPUs
    ///
    /// The program finds /dev/kfd, render nodes and the topology in sysfs. It has to be dynamically
    /// linked, because a library is loaded into it (LD_PRELOAD) and into the programs that it runs.
    /// Each process has GPUs of its own, unless it joins others with --shared.
    ///
    /// The driver's warnings are on stderr, such as a queue that stopped and why; the environment
    /// variable VKFD_LOG set to info or debug shows more, off nothing.
    ///
    /// Exit code: the program's, or 128 and the signal's number if a signal ended it. As with env
    /// and timeout, 125 means that this command failed, 126 that the program cannot be run, 127
    /// that it does not exist.
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(Box<run::RunArgs>),
    /// Be the virtio-gpu of a virtual machine, whose ROCm stack runs on a machine of GPUs here
    /// (native context)
    ///
    /// A vhost-user device (virtio id 16) for a VMM that can show a device's shared memory to its
    /// guest; QEMU 11.1 can, with vhost-user-test-device-pci. The guest's kernel needs nothing: its
    /// own virtio-gpu driver carries AMD's context (capability set 8). Each context of the guest is
    /// a KFD process of its own. The guest's memory must be shared (memory-backend-memfd,share=on).
    ///
    /// The environment variable VKFD_LOG (warn, info or debug) sets how much it writes to stderr.
    ///
    /// Exit code: 0 with --once when the VMM has gone, 2 when the machine or the socket cannot be
    /// made.
    #[command(after_long_help = VIRTIO_GPU_EXAMPLES)]
    VirtioGpu(Box<virtio_gpu::VirtioGpuArgs>),
    /// Serve one set of GPUs to several programs, which join with `vkfd run --shared NAME`
    ///
    /// All of them see the same GPUs, and can pass memory to each other: HIP's IPC handles,
    /// exported buffers (dma-buf). Each program is a KFD process of its own. Programs of this user
    /// alone can join; they can write each other's GPU memory if they mean to.
    ///
    /// It runs until SIGTERM, SIGINT or SIGHUP. Programs that are still there live on: their calls
    /// on the devices fail with ENODEV.
    ///
    /// The machine's socket is NAME.sock in vkfd/ of XDG_RUNTIME_DIR, or in /tmp/vkfd-UID. VKFD_LOG
    /// set to info or debug shows more on stderr.
    ///
    /// Exit code: 0 when it was told to end, 2 when the machine cannot be made or the name is
    /// taken.
    #[command(after_long_help = SERVE_EXAMPLES)]
    Serve(Box<serve::ServeArgs>),
    /// Find a program's single registrations that could have been one batch
    ///
    /// FILE is a trace of `vkfd run --trace FILE`, as text or JSON. The time that a batch would
    /// take is measured on this machine, on memory of the same shape, or taken from a benchmark's
    /// result.
    ///
    /// Exit code: 0, also without findings.
    Advise(advise::AdviseArgs),
    /// Show what works on this system, what does not, and the remedies
    ///
    /// It tries `vkfd run`, checks userfaultfd, the kernel and free memory, and looks for ROCm's
    /// libraries. It changes nothing.
    ///
    /// Exit code: 0 when `vkfd run` works, 1 when it does not.
    Doctor(doctor::DoctorArgs),
    /// List the GPU types, and machines by name
    Targets(targets::TargetsArgs),
    /// Show the contents of a code object: kernels, their descriptors, their instructions
    ///
    /// FILE is a code object for AMD GPUs, or a program or bundle with some in it. Known are the
    /// types that `vkfd targets` lists.
    ///
    /// Exit code: 1 when some words are no instructions, 2 when the file cannot be read.
    Disasm(disasm::DisasmArgs),
    /// Find missing waits and too few wait states in machine code
    ///
    /// FILE is a code object for AMD GPUs, or a program or bundle with some in it. Nothing is
    /// executed. The checks follow all ways through each kernel and function:
    ///
    /// waits: a register is used or overwritten before an s_waitcnt has made its load right.
    ///
    /// hazards: fewer wait states between two instructions than LLVM's compiler would put there.
    ///
    /// A compiler's code has neither. The checks are for code from elsewhere: assembly, inline
    /// assembly, generators, compilers under construction. docs/checking.md lists the rules.
    ///
    /// A hazard on one of several ways, which LLVM itself may leave, is a warning.
    ///
    /// Exit code: 0 without errors, that of --error-exitcode with errors, 2 when a file cannot be
    /// read.
    #[command(after_long_help = lint::EXAMPLES)]
    Lint(lint::LintArgs),
    /// Write the manual's pages into a directory: one for vkfd, and one for each command
    ///
    /// They are in the form of man(1): `man ./vkfd-run.1` shows one, and in share/man/man1 of a
    /// prefix that man knows they are found by name.
    Man {
        /// The directory; it is made if it is not there
        directory: PathBuf,
    },
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Subcommand)]
enum Bench {
    Userptr(Box<vkfd_bench::Args>),
    Migrate(Box<vkfd_bench::migrate::Args>),
    Compute(Box<vkfd_bench::compute::Args>),
    Opencl(Box<vkfd_bench::opencl::Args>),
    Native(Box<vkfd_bench::native::Args>),
}

const EXAMPLES: &str = "\
Examples:
  vkfd demo --all-lists                 all built-in scatter lists
  vkfd demo --xnack --gpus 2            two GPUs that retry page faults
  vkfd demo --json | jq '.lists[0].steps[] | {name, outcome}'
  vkfd demo --input some/directory      CRC-32 of each file; compare one with
  python3 -c \"import sys, zlib; print('%08x' % zlib.crc32(open(sys.argv[1], 'rb').read()))\" FILE";

const SERVE_EXAMPLES: &str = "\
Examples:
  vkfd serve lab --gpus 2 --target gfx90a &
  vkfd run --shared lab -- ./sender & vkfd run --shared lab -- ./receiver
  vkfd serve ci & server=$!; vkfd run --shared ci -- ./tests; kill $server";

const VIRTIO_GPU_EXAMPLES: &str = "\
Examples:
  vkfd virtio-gpu --socket /tmp/gpu --gpus 2 --target gfx90a &
  qemu-system-x86_64 ... -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\
    -chardev socket,id=gpu,path=/tmp/gpu \\
    -device vhost-user-test-device-pci,chardev=gpu,virtio-id=16,num_vqs=2,config_size=20,vq_size=1024";

const RUN_EXAMPLES: &str = "\
Examples:
  vkfd run -- rocminfo
  vkfd run --gpus 4 --target gfx90a -- ./my-hip-program
  vkfd targets --show frontier-node > mine.toml    to be changed, and then:
  vkfd run --preset mine.toml -- rocminfo
  vkfd run --trace calls.txt -- ./my-hip-program && vkfd advise calls.txt";

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let command = match cli.command {
        Some(command) => Some(command),
        None => Cli::parse_from(["vkfd", "demo"]).command,
    };
    let result = match command {
        Some(Command::Demo(args)) => demo::run(&args),
        Some(Command::Inspect(args)) => inspect::run(&args),
        Some(Command::Bench { what: Bench::Userptr(args) }) => vkfd_bench::run(&args),
        Some(Command::Bench { what: Bench::Migrate(args) }) => vkfd_bench::migrate::run(&args),
        Some(Command::Bench { what: Bench::Compute(args) }) => vkfd_bench::compute::run(&args),
        Some(Command::Bench { what: Bench::Opencl(args) }) => vkfd_bench::opencl::run(&args),
        Some(Command::Bench { what: Bench::Native(args) }) => vkfd_bench::native::run(&args),
        Some(Command::Advise(args)) => advise::run(&args),
        Some(Command::Run(args)) => Ok(run::run(&args)),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Targets(args)) => targets::run(&args),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::VirtioGpu(args)) => virtio_gpu::run(&args),
        Some(Command::Disasm(args)) => disasm::run(&args),
        Some(Command::Lint(args)) => lint::run(&args),
        Some(Command::Man { directory }) => manual(&directory),
        Some(Command::Completions { shell }) => completions(shell),
        None => Ok(ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::from(141),
        Err(error) => {
            eprintln!("vkfd: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Says what is wrong with the command line, or what was asked for. `run` has exit codes of its
/// own, so that its program's 2 is known as such.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    let runs = std::env::args_os().nth(1).is_some_and(|name| name == "run");
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        _ if runs => ExitCode::from(run::FAILED),
        code => ExitCode::from(u8::try_from(code).unwrap_or(2)),
    }
}

/// Whether the reader of the output has gone, which is no error worth a message. The code is the
/// one that a shell gives a program that SIGPIPE ended.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

fn manual(directory: &Path) -> anyhow::Result<ExitCode> {
    manual::write(Cli::command(), directory)
        .with_context(|| format!("cannot write manual pages into {}", directory.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "vkfd", &mut script);
    io::Write::write_all(&mut io::stdout().lock(), &script)?;
    Ok(ExitCode::SUCCESS)
}
