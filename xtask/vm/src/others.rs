// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs that others wrote, in a guest, one after the other: what `cargo xtask programs --guest`
//! runs on the module, and `--amdgpu` on AMD's own driver ([`amdgpu::others`](super::amdgpu)).
//!
//! Mechanism: a program's directory goes into the guest's file system, with the libraries that the
//! program names and those that it loads by itself. A root with programs that have a C library of
//! their own is shown to the guest ([`shown`]), and such a program is started in it. The suite's
//! source is in the root if programs read it. Each program runs under `timeout`, and the shell
//! prints a line with its exit code, so a program that fails is no fault of the guest.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use vkfd_guest::{Job, Program, Record, Stream};
use vkfd_targets::Target;

use super::guest::{self, Parts, Size};
use super::initrd::Initrd;
use super::module::Module;
use super::progress::minutes;
use super::qemu::Share;
use super::{amdgpu, shown, verdict, Flavor};

/// What the shell says at the end of a program.
const STATUS: &str = "vkfd: exit code ";
/// Mount tag of a root, which is also where it is in the guest; and of a suite's source.
const ROOT: &str = "root";
const SOURCE: &str = "source";
/// The directory of a program, the first argument, is shown as the root's /work.
const WORK: &str = r#"
umount /root/work 2>/dev/null
mount -o bind "$1" /root/work || exit
shift
"#;
/// Keeps a program's pages moving as long as it runs. Again and again pages that are not in use go
/// to swap, and memory is compacted. Pages of files do not go to swap, because the root's files
/// come from outside. Equal pages are merged besides. The program's command line follows this text.
const PRESSURE: &str = r#"
group=/sys/fs/cgroup/pressed
if [ ! -e $group ]; then
    echo +memory > /sys/fs/cgroup/cgroup.subtree_control && mkdir $group || exit
fi
count() { while read -r name number; do [ "$name" = "$1" ] && echo "$number"; done < /proc/vmstat; }
swapped=$(count pswpout) moved=$(count pgmigrate_success)
(
    most=0
    while :; do
        echo '32M swappiness=max' > $group/memory.reclaim
        echo 1 > /proc/sys/vm/compact_memory
        read -r merged < /sys/kernel/mm/ksm/pages_sharing
        [ "$merged" -gt "$most" ] && most=$merged && echo "$most" > /tmp/merged
        sleep 2
    done
) 2>/dev/null &
stir=$!
echo 0 > /tmp/merged
echo $$ > $group/cgroup.procs
"#;
/// Ends that, and says what came of it.
const PRESSED: &str = r#"
kill $stir
read -r merged < /tmp/merged
"#;
/// What it says: pages to swap, pages moved, pages merged at a time.
const PRESSURE_WAS: &str = "vkfd: pressure ";
const PAGES: &str = "$(($(count pswpout) - swapped)) $(($(count pgmigrate_success) - moved)) $merged";
/// The time that `timeout` needs to end a program, beyond the program's own limit.
const GRACE: Duration = Duration::from_secs(30);
/// The guest's processor is emulated where the host's cannot be used.
const SLOWER: u32 = 4;

/// The target of the device for AMD's driver.
pub const AMDGPU_TARGET: &str = "gfx90a";

/// What a guest is like.
#[derive(Clone)]
pub enum Like {
    /// It has the module.
    Vkfd {
        /// Programs' pages go to swap and move and are merged all the time.
        pressure: bool,
        /// Of the module.
        parameters: &'static str,
    },
    /// It has AMD's own driver, on the device of `cargo xtask vm amdgpu`.
    Amd {
        /// Patches that its kernel has, as `--series` takes them.
        series: Option<PathBuf>,
        /// More of the driver's parameters.
        parameters: String,
    },
}

/// A program that is to run.
pub struct Wanted {
    pub name: String,
    pub started: Started,
    /// Where it is, as `program`, with whatever it reads; what a program of a root works in.
    pub directory: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(&'static str, &'static str)>,
    /// On the host.
    pub patience: Duration,
}

/// Which program is started.
#[derive(Clone, PartialEq, Eq)]
pub enum Started {
    /// The one in its directory.
    Here,
    /// This one of a root, which all of a guest's programs share, as they do the source that is
    /// shown in it.
    InRoot { root: PathBuf, program: String, source: Option<PathBuf> },
}

/// What a program wrote, and how it ended.
#[derive(Clone, Default)]
pub struct Ended {
    /// As a shell says it; none for a program that did not come to its end.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// What a guest showed.
pub struct Seen {
    /// By the programs' names.
    pub programs: BTreeMap<String, Ended>,
    /// What was wrong with the kernel, the module or the guest.
    pub findings: Vec<String>,
}

/// Shows a directory to the guest, which has one by that tag.
fn share(shares: &mut Vec<Share>, directory: &Path, tag: &'static str) -> Result<()> {
    let wanted = Share { directory: directory.into(), tag };
    match shares.iter().find(|share| share.tag == tag) {
        Some(share) => ensure!(*share == wanted, "a guest has one {tag}, and that is {}", share.directory.display()),
        None => shares.push(wanted),
    }
    Ok(())
}

/// Runs `wanted` in a guest with `gpus` GPUs of `target`. `libraries` are those that programs load
/// by themselves.
pub fn run(target: &str, gpus: u32, libraries: &[&str], like: &Like, wanted: &[Wanted]) -> Result<Seen> {
    match like {
        Like::Vkfd { pressure, parameters } => on_module(target, gpus, libraries, *pressure, parameters, wanted),
        Like::Amd { series, parameters } => {
            ensure!(gpus == 1, "AMD's driver has one GPU, and a program wants {gpus}");
            amdgpu::others::run(target, libraries, series.as_deref(), parameters, wanted)
        }
    }
}

fn on_module(
    target: &str,
    gpus: u32,
    libraries: &[&str],
    pressure: bool,
    parameters: &str,
    wanted: &[Wanted],
) -> Result<Seen> {
    let target = target.parse::<Target>().with_context(|| target.to_owned())?;
    let mut parts = Parts::build(Flavor::Plain, Module::Vkfd, &[])?;
    println!("{}, GPUs: {gpus}, in a guest with {}", target.name(), parts.acceleration);
    let (mut initrd, mut job) = parts.guest(parameters)?;
    let size = Size::clients(target, gpus);
    if pressure {
        (job.swap_mib, job.merge) = (size.memory_mib() / 2, true);
    }
    add(&mut initrd, &mut job, &mut parts.shares, libraries, pressure, wanted)?;
    let outcome = parts.boot("others", initrd, &job, size, guest::AROUND_PROGRAMS, tell)?;
    let (programs, pages) = ended(&outcome.records);
    let wrote = outcome.console_path.with_file_name("programs.log");
    keep(&programs, &wrote)?;
    let mut findings = verdict::findings(&outcome, &job, Flavor::Plain);
    if pressure {
        let [swapped, moved, merged] = pages;
        println!("  under pressure: {swapped} pages went to swap, {moved} were moved, {merged} were merged");
        if pages.contains(&0) {
            findings.push("there was no pressure of one kind".into());
        }
    }
    verdict::show_first_sign(&outcome);
    println!(
        "  from power-on to the end {}; the kernel's log: {}; what the programs wrote: {}",
        minutes(outcome.took),
        outcome.console_path.display(),
        wrote.display()
    );
    Ok(Seen { programs, findings })
}

/// A line for a program that has ended.
pub(super) fn tell(record: &Record) {
    if let Record::Ended { program, seconds, .. } = record {
        println!("  {program}: {seconds:.1} s");
    }
}

/// Puts programs, and the libraries that they load by themselves, into a guest and its job. What
/// they read of this machine goes to `shares`.
pub(super) fn add(
    initrd: &mut Initrd,
    job: &mut Job,
    shares: &mut Vec<Share>,
    libraries: &[&str],
    pressure: bool,
    wanted: &[Wanted],
) -> Result<()> {
    for library in libraries {
        initrd.add_library(Path::new(library)).with_context(|| format!("add {library}"))?;
    }
    for (number, program) in wanted.iter().enumerate() {
        // What one of them writes, those that come after it in the same directory read.
        let first = wanted[..number].iter().position(|before| before.directory == program.directory);
        let at = format!("/programs/{}", first.unwrap_or(number));
        if first.is_none() {
            match program.started {
                Started::Here => initrd.add_directory(&program.directory, Path::new(&at))?,
                // They are links in the root.
                Started::InRoot { .. } => initrd.add_files(&program.directory, Path::new(&at), true)?,
            }
        }
        let described = describe(job, shares, &at, pressure, program)?;
        job.programs.push(described);
    }
    Ok(())
}

/// A program whose directory is at `at` in the guest.
fn describe(job: &Job, shares: &mut Vec<Share>, at: &str, pressure: bool, wanted: &Wanted) -> Result<Program> {
    let patience = wanted.patience * SLOWER;
    let seconds = patience.as_secs();
    let (run, mut arguments) = match &wanted.started {
        Started::Here => (format!("cd {at} && timeout -k 5 {seconds} ./program \"$@\""), Vec::new()),
        Started::InRoot { root, program: name, source } => {
            let mut script = format!("{}show {ROOT}\n", shown::FUNCTIONS);
            share(shares, root, ROOT)?;
            if let Some(source) = source {
                share(shares, source, SOURCE)?;
                script += &format!("share {SOURCE} /{ROOT}/{SOURCE}\n");
            }
            let run = format!("timeout -k 5 {seconds} chroot /{ROOT} {name} \"$@\"");
            (format!("{script}{WORK}{run}"), vec![at])
        }
    };
    let (before, after) = match pressure {
        true => (PRESSURE, format!("{PRESSED}echo \"{PRESSURE_WAS}{PAGES}\"")),
        false => ("", String::new()),
    };
    let run = format!("{before}{run}\nended=$?{after}\necho \"{STATUS}$ended\"");
    arguments.extend(wanted.arguments.iter().map(String::as_str));
    let arguments: Vec<_> = ["-c", run.as_str(), "sh"].into_iter().chain(arguments).collect();
    let mut described = guest::program(job, &wanted.name, "/bin/sh".into(), &arguments, patience + GRACE);
    described.env.extend(wanted.environment.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    Ok(described)
}

/// What the programs wrote, and the pages that pressure has moved.
pub(super) fn ended(records: &[Record]) -> (BTreeMap<String, Ended>, [u64; 3]) {
    let mut programs = BTreeMap::new();
    let mut pages = [0_u64; 3];
    for record in records {
        if let Record::Output { program, stream, line } = record {
            let ended: &mut Ended = programs.entry(program.clone()).or_default();
            if let Some(numbers) = line.strip_prefix(PRESSURE_WAS) {
                for (sum, number) in pages.iter_mut().zip(numbers.split(' ')) {
                    *sum += number.parse::<u64>().unwrap_or(0);
                }
                continue;
            }
            match (stream, line.strip_prefix(STATUS)) {
                (Stream::Out, Some(code)) => ended.code = code.parse().ok(),
                (Stream::Out, None) => ended.stdout.extend([line.as_str(), "\n"]),
                (Stream::Err, _) => ended.stderr.extend([line.as_str(), "\n"]),
            }
        }
    }
    (programs, pages)
}

/// Writes down what the programs wrote.
pub(super) fn keep(programs: &BTreeMap<String, Ended>, file: &Path) -> Result<()> {
    let log: String =
        programs.iter().map(|(name, ended)| format!("== {name}\n{}{}", ended.stderr, ended.stdout)).collect();
    fs::write(file, log).with_context(|| format!("write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(started: Started) -> Wanted {
        Wanted {
            name: "0 a".into(),
            started,
            directory: "/built/a".into(),
            arguments: vec!["--one".into()],
            environment: vec![("KEY", "value")],
            patience: Duration::from_secs(10),
        }
    }

    #[test]
    fn a_program_of_a_root_is_started_in_it_and_the_guest_is_shown_one_root() {
        let of = |root: &str| Started::InRoot { root: root.into(), program: "/bin/a".into(), source: None };
        let mut shares = Vec::new();
        let mut describe = |started| describe(&Job::default(), &mut shares, "/programs/0", false, &wanted(started));
        let here = describe(Started::Here).expect("a program");
        assert_eq!((here.seconds, here.argv[3..].join(" ")), (70, "sh --one".into()));
        assert!(here.env.contains(&("KEY".into(), "value".into())), "{:?}", here.env);
        let rooted = describe(of("/roots/sid")).expect("a program");
        assert_eq!(rooted.argv[4..], ["/programs/0", "--one"]);
        assert!(rooted.argv[2].contains("timeout -k 5 40 chroot /root /bin/a"), "{}", rooted.argv[2]);
        assert!(describe(of("/roots/trixie")).is_err());
        assert_eq!(shares.len(), 1);
    }

    #[test]
    fn lines_are_a_programs_and_the_shells_last_one_is_its_exit_code() {
        let line =
            |program: &str, stream, line: &str| Record::Output { program: program.into(), stream, line: line.into() };
        let records = [
            line("a", Stream::Out, "one"),
            line("b", Stream::Err, "two"),
            line("a", Stream::Out, "vkfd: pressure 1 2 3"),
            line("a", Stream::Out, "vkfd: exit code 7"),
        ];
        let (programs, pages) = ended(&records);
        let of =
            |name: &str| programs.get(name).map(|ended| (ended.code, ended.stdout.as_str(), ended.stderr.as_str()));
        assert_eq!((of("a"), of("b")), (Some((Some(7), "one\n", "")), Some((None, "", "two\n"))));
        assert_eq!(pages, [1, 2, 3]);
    }
}
