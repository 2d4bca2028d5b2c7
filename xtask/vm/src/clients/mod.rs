// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm clients`: the distribution's ROCm programs on the module, in a guest.
//!
//! The same programs as in `cargo xtask clients`, and the same questions. Here nothing is between
//! them and the kernel. They open the module's /dev/kfd and render nodes and read its topology in
//! sysfs. The GPU outside of the guest does their copies. Their libraries come from the host's
//! distribution into the guest's file system; none is changed. tinygrad's Python and packages stay
//! where they are, and the guest sees them. One answer to rocminfo is false. It asks `lsmod` for a
//! module named amdgpu before it does anything, and the guest's `lsmod` says that there is one.

mod rocm;
mod tinygrad;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use vkfd_guest::{Ending, Job, Record, Stream};
use vkfd_targets::Target;

use super::boot::Outcome;
use super::device;
use super::guest::{self, Parts, Size};
use super::module::Module;
use super::progress::minutes;
use super::{shown, verdict, FlavorArgs};
use xtask_base::debian;
use xtask_base::pattern::matches;
use xtask_base::{tree, Verdict};
use xtask_clients as clients;

/// Run ROCm programs of the distribution and tinygrad in a guest, on the module
///
/// rocminfo, the HSA runtime and HIP (gfx900, gfx90a, gfx1030), and tinygrad's models (gfx942,
/// gfx1100), unmodified, as in `cargo xtask clients` but without its library: a guest a target,
/// with two GPUs each. Then guests with GPUs that are broken, one kind of damage each, which must
/// be noticed. Installs packages of Debian and PyPI that are missing (as root).
///
/// Exit status: 0 all is well, 1 findings, 2 it could not be done.
#[derive(clap::Args)]
pub struct Args {
    /// What the GPUs are: all by default
    #[arg(value_parser = device::target())]
    targets: Vec<Target>,

    /// Only clients whose name matches (`*` stands for anything); can be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,

    /// Boots no guests with broken GPUs
    #[arg(long)]
    no_controls: bool,

    #[command(flatten)]
    flavor: FlavorArgs,
}

const GPUS: u32 = 2;

/// HIP loads it by name when it is asked for a device.
const COMPILER: &str = "/usr/lib/x86_64-linux-gnu/libamd_comgr.so.2";

const LSMOD: &str = "#!/bin/sh\n/bin/busybox lsmod\necho 'amdgpu 0 0 - Live 0x0'\n";

/// Emulated, HIP alone takes a minute.
const LIMIT: Duration = Duration::from_secs(900);

/// A client's run.
struct Client {
    name: &'static str,
    targets: &'static [Target],
    place: Place,
    arguments: Vec<String>,
    environment: &'static [(&'static str, &'static str)],
    /// Whether its output is right.
    right: fn(&Said, Target) -> bool,
    /// What it says on a GPU that is broken like that.
    notices: Option<(&'static str, &'static str)>,
}

/// Where a client's program is in the guest.
enum Place {
    /// In its file system, with its libraries.
    Copied(PathBuf),
    /// Where it is here.
    Shown(String),
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

pub fn run(args: &Args) -> Result<Verdict> {
    let targets = if args.targets.is_empty() { &Target::ALL[..] } else { &args.targets };
    let mut clients = clients(targets)?;
    clients.retain(|client| args.only.is_empty() || args.only.iter().any(|pattern| matches(pattern, client.name)));
    ensure!(!clients.is_empty(), "there is no such client on these targets");
    let flavor = args.flavor.flavor();
    let mut parts = Parts::build(flavor, Module::Vkfd, &[])?;
    parts.shares.push(shown::machine());
    let mut findings = Vec::new();
    for &target in targets {
        findings.extend(sound(&parts, &clients, target)?);
    }
    let mut broken = BTreeSet::new();
    for &target in if args.no_controls { &[][..] } else { targets } {
        let notices = clients.iter().filter(|client| client.targets.contains(&target)).filter_map(|one| one.notices);
        for (sabotage, _) in notices.collect::<Vec<_>>() {
            // Once, on the first target that has a client for it.
            if broken.insert(sabotage) {
                findings.extend(control(&parts, &clients, target, sabotage)?);
            }
        }
    }
    Ok(if findings.is_empty() {
        let (clients, targets) = (clients.len(), targets.len());
        let control = if args.no_controls { "" } else { ", and notice a GPU that is wrong" };
        Verdict::Clean(format!("clients: {clients}, targets: {targets}: they work in a guest{control}"))
    } else {
        Verdict::Findings(findings)
    })
}

/// Those of some of these targets; what they need is installed.
fn clients(targets: &[Target]) -> Result<Vec<Client>> {
    let mut clients = Vec::new();
    if targets.iter().any(|target| rocm::TARGETS.contains(target)) {
        let wanted = [clients::rocminfo::CLIENT, clients::rocr::CLIENT, clients::hip::CLIENT];
        debian::install(&wanted.map(|client| client.packages).concat())?;
        let directory = std::path::absolute(tree::target()).context("make the target directory absolute")?;
        let directory = directory.join("clients");
        std::fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
        clients.extend(rocm::clients(&directory)?);
    }
    if targets.iter().any(|target| tinygrad::TARGETS.contains(target)) {
        debian::install(clients::tinygrad::CLIENT.packages)?;
        clients.extend(tinygrad::clients()?);
    }
    clients.retain(|client| client.targets.iter().any(|target| targets.contains(target)));
    Ok(clients)
}

/// What is wrong in a guest whose GPUs are `target`.
fn sound(parts: &Parts, clients: &[Client], target: Target) -> Result<Vec<String>> {
    let mine: Vec<_> = clients.iter().filter(|client| client.targets.contains(&target)).collect();
    if mine.is_empty() {
        return Ok(Vec::new());
    }
    println!("{}, in a guest with {}", target.name(), parts.acceleration);
    let (job, outcome) = boot(parts, &mine, Size::clients(target, GPUS))?;
    let mut findings = verdict::findings(&outcome, &job, parts.kernel.flavor);
    for client in mine {
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

/// The clients that do not notice a broken GPU.
fn control(parts: &Parts, clients: &[Client], target: Target, sabotage: &'static str) -> Result<Vec<String>> {
    println!("control: {}, {sabotage}", target.name());
    let mine: Vec<_> = clients
        .iter()
        .filter(|client| client.targets.contains(&target))
        .filter(|client| client.notices.is_some_and(|(broken, _)| broken == sabotage))
        .collect();
    let (_, outcome) = boot(parts, &mine, Size::clients(target, GPUS).sabotaged(sabotage))?;
    let mut findings = Vec::new();
    for client in mine {
        let said = Said::in_outcome(&outcome, client.name);
        let sign = client.notices.map_or("", |(_, sign)| sign);
        if said.ending != Some(Ending::Status(1)) || !said.stdout.contains(sign) {
            findings.push(format!("control: {} has not noticed {sabotage}:\n{said}", client.name));
        }
    }
    Ok(findings)
}

/// Runs clients in a guest, one after the other.
fn boot(parts: &Parts, clients: &[&Client], size: Size) -> Result<(Job, Outcome)> {
    let (mut initrd, mut job) = parts.guest("")?;
    if clients.iter().any(|client| matches!(client.place, Place::Copied(_))) {
        initrd.add_library(Path::new(COMPILER))?;
    }
    initrd.set_shell(Path::new("/bin/dash"))?;
    initrd.add_script("lsmod", LSMOD);
    // For the pages that the batch's program pages out.
    job.swap_mib = size.memory_mib() / 4;
    for client in clients {
        let arguments: Vec<&str> = client.arguments.iter().map(String::as_str).collect();
        let (name, limit) = (client.name, parts.scaled(LIMIT));
        let mut program = match &client.place {
            Place::Copied(program) => guest::program(&job, name, initrd.add_program(program)?, &arguments, limit),
            Place::Shown(program) => shown::program(&job, name, ["/tmp", program], &arguments, limit),
        };
        program.env.extend(client.environment.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        job.programs.push(program);
    }
    let outcome = parts.boot("clients", initrd, &job, size, guest::AROUND_PROGRAMS, |record| {
        if let Record::Ended { program, ending, seconds } = record {
            println!("  {program}: {ending} ({seconds:.1} s)");
        }
    })?;
    Ok((job, outcome))
}
