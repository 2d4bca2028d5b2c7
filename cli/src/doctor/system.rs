// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernel and the machine: what userfaultfd allows, memory, limits, processors.

use std::fs;

use clap::Parser;
use vkfd_host::{size, System};

use super::{Check, State};
use crate::format;
use crate::session::{Session, SessionArgs};

/// What `demo` and `bench` want at their most.
const DEMO: u64 = 1 << 30;
const BENCH: u64 = 6 << 30;
/// Mappings that a default kernel allows.
const USUAL_MAPPINGS: u64 = 65_530;

/// The system in a line.
pub(super) fn title() -> String {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    let names = read("/etc/os-release");
    let name = names.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux").trim_matches('"');
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    format!("{name}, Linux {}, {}, {}", release.trim(), std::env::consts::ARCH, format::counted(cores, "processor"))
}

pub(super) fn checks() -> Vec<Check> {
    let system = vkfd_host::system();
    vec![
        machine(),
        userfaultfd(&system),
        moving(&system),
        page_tables(&system),
        memory(),
        mappings(&system),
        processor(),
        sysfs(),
    ]
}

/// The machine of `vkfd demo`, made and opened.
fn machine() -> Check {
    #[derive(Parser)]
    struct Defaults {
        #[command(flatten)]
        session: SessionArgs,
    }
    let opened =
        Defaults::try_parse_from(["vkfd"]).map_err(anyhow::Error::from).and_then(|args| Session::open(&args.session));
    match opened {
        Ok(session) => {
            let unseen = session.hears().unseen();
            let state = if session.source() == "userfaultfd" { State::Good } else { State::Limited };
            Check::new("machine", state, session.describe()).means(unseen)
        }
        Err(error) => Check::new("machine", State::Bad, format!("{error:#}"))
            .means("demo, inspect and bench need --device.")
            .advice("raise the limit of addresses (ulimit -v unlimited); set vm.overcommit_memory to 0 or 1"),
    }
}

fn userfaultfd(system: &System) -> Check {
    const NAME: &str = "userfaultfd";
    match &system.userfaultfd {
        Ok(hears) => {
            let forks = if hears.fork { "forks are announced" } else { "forks are not announced, which takes CAP_SYS_PTRACE" };
            let files = if hears.files { "" } else { "; mappings of files are not watched, which takes Linux 6.7" };
            let state = if hears.files { State::Good } else { State::Limited };
            let check = Check::new(NAME, state, format!("permitted; {forks}{files}"));
            if hears.fork {
                check
            } else {
                check.means("After a fork the parent's registered memory is looked up again when the GPU touches it.")
            }
        }
        Err(why) => Check::new(NAME, State::Limited, why.clone())
            .means("Changes of mappings are seen through the program's own calls of libc instead; raw system calls are missed.")
            .advice(
                "in a container, allow it in the seccomp profile (docker run --security-opt seccomp=unconfined, or a profile with userfaultfd); \
                 on a machine, sysctl vm.unprivileged_userfaultfd need not be 1",
            ),
    }
}

fn moving(system: &System) -> Check {
    const NAME: &str = "migration";
    match &system.moving {
        Ok(true) => Check::new(NAME, State::Good, "memory can move to a GPU and back (UFFDIO_MOVE); system calls wait for it"),
        Ok(false) => Check::new(NAME, State::Limited, "memory can move to a GPU and back (UFFDIO_MOVE)")
            .means("A system call that is given memory which is just moving fails with EFAULT.")
            .advice("run as root, or sysctl vm.unprivileged_userfaultfd=1"),
        Err(why) => Check::new(NAME, State::Limited, why.clone())
            .means("SVM memory is used where it is, in system memory: prefetches to a GPU move nothing. `demo coherent` and `bench migrate` cannot run.")
            .advice("Linux 6.8 or later, with userfaultfd permitted"),
    }
}

fn page_tables(system: &System) -> Check {
    const NAME: &str = "page tables";
    if system.page_tables {
        return Check::new(NAME, State::Good, "can be asked what is there (PAGEMAP_SCAN, PROCMAP_QUERY)");
    }
    Check::new(NAME, State::Limited, "cannot be asked what is there (PAGEMAP_SCAN, PROCMAP_QUERY)")
        .means("Registering memory touches every page of it, also those that are there: about 200 ns for each.")
        .advice("Linux 6.11 or later, and a /proc")
}

fn memory() -> Check {
    const NAME: &str = "memory";
    let Some(left) = vkfd_host::memory_left() else {
        return Check::new(NAME, State::Limited, "neither /proc/meminfo nor a control group says how much is left");
    };
    let found = format!("{} left, control groups considered", format::bytes(left));
    let missing = [("vkfd demo", DEMO), ("vkfd bench", BENCH)].map(|(what, need)| {
        (need > left).then(|| format!("`{what}` may want up to {} and takes less where it can.", size::show(need)))
    });
    let missing: Vec<_> = missing.into_iter().flatten().collect();
    if missing.is_empty() {
        return Check::new(NAME, State::Good, found);
    }
    Check::new(NAME, State::Limited, found).means(missing.join(" ")).advice(
        "more memory for the machine or its container; `vkfd run` needs only what its program uses of the GPU's memory",
    )
}

fn mappings(system: &System) -> Check {
    const NAME: &str = "mappings";
    match system.max_map_count {
        Some(most) if most < USUAL_MAPPINGS => Check::new(NAME, State::Limited, format!("vm.max_map_count is {most}"))
            .means("Memory that is watched in pieces takes up to two mappings for each piece: single registrations fail with ENOMEM early.")
            .advice(format!("sysctl vm.max_map_count={USUAL_MAPPINGS}, or more")),
        Some(most) => Check::new(NAME, State::Good, format!("a process may have {} (vm.max_map_count)", format::count(most))),
        None => Check::new(NAME, State::Limited, "vm.max_map_count cannot be read").means("The kernel's default is taken for it."),
    }
}

fn processor() -> Check {
    const NAME: &str = "processor";
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        return Check::new(NAME, State::Good, "has AVX2 and FMA, which the GPU's engine uses");
    }
    Check::new(NAME, State::Limited, "has no AVX2 and FMA")
        .means("The GPU's engine is portable code then: several times slower, the same results.")
}

/// What ROCm's libraries read of the processors, which is the computer's own.
fn sysfs() -> Check {
    const NAME: &str = "/sys";
    if fs::metadata("/sys/devices/system/cpu").is_ok() {
        return Check::new(NAME, State::Good, "is mounted");
    }
    Check::new(NAME, State::Limited, "is not mounted")
        .means("ROCm's runtime reads the processors there, and finds no GPU either without them.")
        .advice("mount -t sysfs sysfs /sys, in a chroot for instance; containers have it")
}
