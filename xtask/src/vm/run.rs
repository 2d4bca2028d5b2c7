// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask vm run`: a program of this machine in a guest, on the module.
//!
//! Mechanism: the guest gets this machine's files as a file system (9p), read-only, and the program
//! is started in it by `chroot`, with the guest's own /proc, /sys, /dev and an empty /tmp. So its
//! libraries, and what these load by themselves, are where they are here.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use vkfd_guest::{Record, Stream};

use super::guest::{self, Parts, Size};
use super::module::Module;
use super::{verdict, FlavorArgs};
use crate::Verdict;

/// Mount tag of this machine's files, and where they are in the guest.
const TAG: &str = "machine";
/// Shows them, with the guest's own file systems in them. The first argument is where to start.
const ENTER: &str = r#"
root=/machine at=$1
shift
mkdir -p $root && mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose machine $root || exit 126
for directory in proc sys dev tmp; do mount -o rbind /$directory $root/$directory || exit 126; done
exec chroot $root /bin/sh -c 'cd "$0" && exec "$@"' "$at" "$@"
"#;

/// Run a program of this machine in a guest, on the module
///
/// Nothing is between the program and the module's /dev/kfd. It has this machine's files,
/// read-only, and an empty /tmp of its own; so neither the program nor its directory may be in
/// /tmp. What it writes appears here.
///
/// Exit status: 0 the program ended with 0 and the kernel has nothing to say, 1 otherwise, 2 it
/// could not be done.
#[derive(clap::Args)]
#[command(after_help = "Example: cargo xtask vm run --target gfx900 -- ./hip_kernels vectors")]
pub struct Args {
    #[command(flatten)]
    flavor: FlavorArgs,

    #[command(flatten)]
    size: Size,

    /// Ends the program after so many seconds; where the guest is emulated everything takes longer
    #[arg(long, value_name = "N", default_value_t = 900)]
    seconds: u64,

    /// Sets a variable for the program; can be repeated
    #[arg(long = "env", value_name = "NAME=VALUE")]
    variables: Vec<String>,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<String>,
}

/// Where the program is, in the guest too; one without a slash is looked for there.
fn absolute(program: &str) -> Result<String> {
    if !program.contains('/') {
        return Ok(program.into());
    }
    // Links stay: the Python of a virtual environment is one, and its name says where it is.
    let path = std::path::absolute(program).with_context(|| format!("find {program}"))?;
    ensure!(path.exists(), "{program} is not there");
    reachable(&path)?;
    path.into_os_string().into_string().ok().with_context(|| format!("{program}: not UTF-8"))
}

fn reachable(path: &Path) -> Result<()> {
    ensure!(!path.starts_with("/tmp"), "{} is in /tmp, of which the guest has its own", path.display());
    Ok(())
}

pub fn run(args: &Args) -> Result<Verdict> {
    let (program, arguments) = args.command.split_first().context("name a program")?;
    let (program, at) = (absolute(program)?, env::current_dir().context("find the current directory")?);
    reachable(&at)?;
    let at = at.into_os_string().into_string().ok().context("the current directory's name is not UTF-8")?;
    let flavor = args.flavor.flavor();
    let mut parts = Parts::build(flavor, Module::Vkfd, &[])?;
    parts.share = Some((PathBuf::from("/"), TAG));
    let (initrd, mut job) = parts.guest("")?;

    let command = ["-c", ENTER, "sh", &at, &program].into_iter().chain(arguments.iter().map(String::as_str));
    let limit = Duration::from_secs(args.seconds);
    let mut started = guest::program(&job, &program, "/bin/sh".into(), &command.collect::<Vec<_>>(), limit);
    started.env.push(("PATH".into(), "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".into()));
    for variable in &args.variables {
        let (name, value) = variable.split_once('=').with_context(|| format!("{variable}: it has no `=`"))?;
        started.env.push((name.into(), value.into()));
    }
    job.programs.push(started);
    let outcome = parts.boot("run", initrd, &job, args.size, guest::AROUND_PROGRAMS, |record| match record {
        Record::Output { stream: Stream::Out, line, .. } => println!("{line}"),
        Record::Output { stream: Stream::Err, line, .. } => eprintln!("{line}"),
        _ => {}
    })?;
    let findings = verdict::findings(&outcome, &job, flavor);
    verdict::show_first_sign(&outcome);
    if findings.is_empty() {
        return Ok(Verdict::Clean(format!("{program} has ended with 0, on the module; nothing in the kernel's log")));
    }
    Ok(Verdict::Findings(findings))
}
