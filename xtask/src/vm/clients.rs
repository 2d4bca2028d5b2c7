// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm clients`: the distribution's ROCm programs on the module, in a guest.
//!
//! The same programs as in `cargo xtask clients`, and the same questions. Here nothing is between
//! them and the kernel: they open the module's /dev/kfd and render nodes, read its topology in
//! sysfs, and their copies are done by the GPU outside of the guest. Their libraries come from the
//! host's distribution into the guest's file system; none is changed. One thing is told to rocminfo
//! that is not so: it asks `lsmod` for a module named amdgpu before it does anything, and the
//! guest's `lsmod` says that there is one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use vkfd_guest::{Ending, Job, Record, Stream};
use vkfd_sabotage::Switch;

use super::boot::Outcome;
use super::device::Target;
use super::guest::{self, Parts, Size};
use super::module::Module;
use super::programs::SABOTAGED_GPU;
use super::progress::minutes;
use super::{verdict, FlavorArgs};
use crate::clients::{hip, hip_batch, hip_kernels, packages, rocminfo, rocr, Source};
use crate::{tree, Verdict};

/// Run the distribution's ROCm programs in a guest, on the module
///
/// rocminfo, the HSA runtime and HIP, unmodified, as in `cargo xtask clients` but without its
/// library: a guest a target, with two GPUs each. Then one with GPUs that leave the last byte of
/// each copy out, and one with GPUs that leave out the last work-item of a grid, which must be
/// noticed. Installs Debian packages that are missing (as root).
///
/// Exit status: 0 all is well, 1 findings, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    /// What the GPUs are: all by default
    #[arg(value_enum)]
    targets: Vec<Target>,

    #[command(flatten)]
    flavor: FlavorArgs,
}

/// Those that the clients' versions know.
const TARGETS: [Target; 3] = [Target::Gfx900, Target::Gfx90a, Target::Gfx1030];

const GPUS: u32 = 2;

/// HIP loads it by name when it is asked for a device.
const COMPILER: &str = "/usr/lib/x86_64-linux-gnu/libamd_comgr.so.2";

const LSMOD: &str = "#!/bin/sh\n/bin/busybox lsmod\necho 'amdgpu 0 0 - Live 0x0'\n";

/// Emulated, HIP alone takes a minute.
const LIMIT: Duration = Duration::from_secs(900);

/// A client's run.
struct Client {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    /// Whether what it said is what it must say.
    right: fn(&Said, Target) -> bool,
    /// What it says on a GPU that is broken like that.
    notices: Option<(Switch, &'static str)>,
}

/// What a client wrote, and how it ended.
#[derive(Default)]
struct Said {
    stdout: String,
    stderr: String,
    ending: Option<Ending>,
}

impl Said {
    fn in_outcome(outcome: &Outcome, name: &str) -> Self {
        let mut said = Self::default();
        for record in &outcome.records {
            match record {
                Record::Output { program, stream, line } if program == name => {
                    let text = if *stream == Stream::Out { &mut said.stdout } else { &mut said.stderr };
                    text.push_str(line);
                    text.push('\n');
                }
                Record::Ended { program, ending, .. } if program == name => said.ending = Some(ending.clone()),
                _ => {}
            }
        }
        said
    }

    /// Also libdrm, which complains of a render node that does not answer.
    fn succeeded(&self) -> bool {
        self.ending == Some(Ending::Status(0)) && !self.stderr.contains("amdgpu_device_initialize")
    }

    /// What the tree's own clients say in the end.
    fn all_right(&self) -> bool {
        self.succeeded() && self.stdout.contains("all bytes right") && self.stdout.ends_with("ok\n")
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr)
    }
}

fn clients(directory: &Path) -> Result<Vec<Client>> {
    let compile = |source: &Source| source.compile(directory);
    let (copies, svm) = (compile(&rocr::PROGRAM)?, compile(&rocr::SVM)?);
    let (hip, managed) = (compile(&hip::PROGRAM)?, compile(&hip::MANAGED)?);
    let (kernels, batch) = (compile(&hip_kernels::KERNELS)?, compile(&hip_batch::BATCH)?);
    let arguments = |words: &[&str]| words.iter().map(ToString::to_string).collect();
    Ok(vec![
        Client {
            name: "rocminfo",
            program: "/usr/bin/rocminfo".into(),
            arguments: Vec::new(),
            right: |said, target| {
                let agents = said.stdout.lines().filter(|line| rocminfo::is_agent(line, target.name()));
                said.succeeded() && u32::try_from(agents.count()) == Ok(GPUS)
            },
            notices: None,
        },
        Client {
            name: "ROCR, 2,000 locked buffers, copied both ways",
            program: copies,
            arguments: arguments(&["2000"]),
            right: |said, _| said.all_right(),
            notices: Some((Switch::ShortCopy, "FAILED: buffer")),
        },
        Client {
            name: "ROCR, SVM memory prefetched to each GPU, used there in place",
            program: svm,
            arguments: arguments(&["4"]),
            right: |said, _| said.all_right(),
            // Its copies are kernels, which that leaves alone.
            notices: None,
        },
        Client {
            name: "HIP, copies of every kind, 100 registered buffers a GPU",
            program: hip,
            arguments: arguments(&[&GPUS.to_string(), "100"]),
            right: |said, _| said.all_right(),
            notices: Some((Switch::ShortCopy, "FAILED: pageable memory")),
        },
        Client {
            name: "HIP, managed memory, prefetched, advised, set and copied",
            program: managed,
            arguments: arguments(&[&GPUS.to_string()]),
            right: |said, _| said.all_right(),
            notices: Some((Switch::ShortCopy, hip::MANAGED_SHORT)),
        },
        Client {
            name: "HIP, kernels of its own",
            program: kernels,
            arguments: Vec::new(),
            right: |said, target| {
                let compiled = [Target::Gfx900, Target::Gfx90a, Target::Gfx1030].contains(&target);
                !compiled || (said.succeeded() && hip_kernels::all_right(&said.stdout))
            },
            // A histogram, to which every work-item adds.
            notices: Some((Switch::ShortGrid, "FAILED")),
        },
        Client {
            name: "HIP, a batch of 4,000 scattered mallocs, discarded, replaced, paged out, restored",
            program: batch,
            arguments: arguments(&[hip_batch::PIECES]),
            right: |said, _| said.succeeded() && hip_batch::all_right(&said.stdout),
            notices: Some((Switch::ShortGrid, "FAILED: as registered")),
        },
    ])
}

pub fn run(args: &Args) -> Result<Verdict> {
    let wanted = [rocminfo::CLIENT, rocr::CLIENT, hip::CLIENT];
    let names: Vec<&str> = wanted.iter().flat_map(|client| client.packages).copied().collect();
    packages::install(&names)?;
    let directory = std::path::absolute(tree::target()).context("make the target directory absolute")?.join("clients");
    std::fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let clients = clients(&directory)?;
    let flavor = args.flavor.flavor();
    let parts = Parts::build(flavor, Module::Vkfd, &[SABOTAGED_GPU])?;
    let targets = if args.targets.is_empty() { &TARGETS[..] } else { &args.targets };
    let mut findings = Vec::new();
    for &target in targets {
        findings.extend(sound(&parts, &clients, target)?);
    }
    for switch in [Switch::ShortCopy, Switch::ShortGrid] {
        findings.extend(control(&parts, &clients, targets[0], switch)?);
    }
    Ok(if findings.is_empty() {
        let (clients, targets) = (clients.len(), targets.len());
        Verdict::Clean(format!(
            "{clients} clients work in a guest on {targets} targets, and notice a GPU that is wrong"
        ))
    } else {
        Verdict::Findings(findings)
    })
}

/// What is wrong in a guest whose GPUs are `target`.
fn sound(parts: &Parts, clients: &[Client], target: Target) -> Result<Vec<String>> {
    println!("{}, in a guest with {}", target.name(), parts.acceleration);
    let (job, outcome) = boot(parts, clients.iter(), Size::clients(target, GPUS))?;
    let mut findings = verdict::findings(&outcome, &job, parts.kernel.flavor);
    for client in clients {
        let said = Said::in_outcome(&outcome, client.name);
        if !(client.right)(&said, target) {
            findings.push(format!("{}, {}:\n{said}", client.name, target.name()));
        }
    }
    verdict::show_first_sign(&outcome);
    println!(
        "  from power-on to the end {}; the kernel's log: {}",
        minutes(outcome.took),
        outcome.console_path.display()
    );
    Ok(findings)
}

/// Who does not notice a GPU that is broken.
fn control(parts: &Parts, clients: &[Client], target: Target, switch: Switch) -> Result<Vec<String>> {
    println!("control: {}, {}", target.name(), switch.name());
    let notice = |client: &Client| client.notices.filter(|(broken, _)| *broken == switch);
    let all: Vec<_> = clients.iter().filter_map(|client| Some((client, notice(client)?.1))).collect();
    let (_, outcome) =
        boot(parts, all.iter().map(|(client, _)| *client), Size::clients(target, GPUS).sabotaged(switch))?;
    let mut findings = Vec::new();
    for (client, sign) in all {
        let said = Said::in_outcome(&outcome, client.name);
        if said.ending != Some(Ending::Status(1)) || !said.stdout.contains(sign) {
            findings.push(format!("control: {} has not noticed {}:\n{said}", client.name, switch.name()));
        }
    }
    Ok(findings)
}

/// Runs clients in a guest, one after the other.
fn boot<'a>(parts: &Parts, clients: impl Iterator<Item = &'a Client>, size: Size) -> Result<(Job, Outcome)> {
    let (mut initrd, mut job) = parts.guest("")?;
    initrd.add_library(Path::new(COMPILER))?;
    initrd.set_shell(Path::new("/bin/dash"))?;
    initrd.add_script("lsmod", LSMOD);
    // For the pages that the batch's program pages out.
    job.swap_mib = size.memory_mib() / 4;
    for client in clients {
        let path = initrd.add_program(&client.program)?;
        let arguments: Vec<&str> = client.arguments.iter().map(String::as_str).collect();
        job.programs.push(guest::program(&job, client.name, path, &arguments, parts.scaled(LIMIT)));
    }
    let outcome = parts.boot("clients", initrd, &job, size, guest::AROUND_PROGRAMS, |record| {
        if let Record::Ended { program, ending, seconds } = record {
            println!("  {program}: {ending} ({seconds:.1} s)");
        }
    })?;
    Ok((job, outcome))
}
