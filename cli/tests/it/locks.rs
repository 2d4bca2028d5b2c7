// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs that call vkfd, or change their mappings, with the C library's locks held: nothing that
//! they wait for may take these locks.

use crate::common;

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use vkfd_sabotage::Switch;

/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(120);
/// How long a control waits for a program that must not end.
const DEADLOCKED: Duration = Duration::from_secs(10);

/// Its status, and what it wrote to stdout and stderr.
type Ended = (ExitStatus, String, String);

/// Compiles a C program or library; `None`, with a word, where there is no compiler.
fn compile(source: &str, to: PathBuf, options: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests").join(source);
    let mut command = Command::new("cc");
    command.args(["-O1", "-o"]).arg(&to).arg(source).args(options);
    match command.output() {
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            None
        }
        Ok(compiled) => {
            assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
            Some(to)
        }
    }
}

/// Runs a program under `vkfd run`, which must end.
fn run(program: &[&OsStr], variables: &[(&str, &str)]) -> Ended {
    let ended = run_within(DEADLINE, program, variables);
    ended.unwrap_or_else(|| panic!("{} has not ended in {DEADLINE:?}: a deadlock", program[0].to_string_lossy()))
}

/// Runs a program under `vkfd run`. `None` if it has to be ended after `limit`.
fn run_within(limit: Duration, program: &[&OsStr], variables: &[(&str, &str)]) -> Option<Ended> {
    let mut command = common::command(&["run", "--"]);
    command.args(program).envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > limit {
            // It passes the signal on.
            // SAFETY: a child of this process that was not waited for.
            unsafe { libc::kill(child.id().try_into().unwrap(), libc::SIGTERM) };
            std::thread::sleep(Duration::from_secs(2));
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let status = child.wait().unwrap();
    let mut said = [String::new(), String::new()];
    child.stdout.take().unwrap().read_to_string(&mut said[0]).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut said[1]).unwrap();
    let [out, err] = said;
    Some((status, out, err))
}

/// The loader's lock is held over a constructor inside dlopen.
#[test]
fn a_constructor_inside_dlopen_uses_a_gpu() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("loading.c", dir.path().join("program"), &["-ldl"]);
    let library = compile("loading.c", dir.path().join("library.so"), &["-DLIBRARY", "-shared", "-fPIC"]);
    let Some((program, library)) = program.zip(library) else { return };
    let load = [program.as_os_str(), library.as_os_str()];
    let (status, out, err) = run(&load, &[]);
    assert_eq!((status.code(), out.as_str()), (Some(0), "copied inside dlopen\nloaded\n"), "{err}");
    // The control: a thread that takes the loader's lock never starts, and the open waits for it.
    let broken = [("VKFD_SABOTAGE", Switch::LoaderInThreads.name())];
    assert_eq!(run_within(DEADLOCKED, &load, &broken), None);
}

/// malloc's locks are held over fork, and over the system calls of malloc_trim.
#[test]
fn forks_and_trims_while_a_gpu_works_come_to_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("storm.c", dir.path().join("program"), &["-lpthread"]) else { return };
    for arenas in ["1", "8"] {
        let (status, out, err) = run(&[program.as_os_str()], &[("MALLOC_ARENA_MAX", arenas)]);
        assert_eq!((status.code(), out.as_str()), (Some(0), "over\n"), "{arenas} arenas: {err}");
    }
    // The control: a GPU that allocates within an access is found out before it is a deadlock.
    let (status, _, err) = run(&[program.as_os_str()], &[("VKFD_SABOTAGE", Switch::AllocateInAccess.name())]);
    assert!(!status.success() && err.contains("which the event reader waits for"), "{err}");
}

/// A thread's first access to a thread-local variable after a dlopen may take malloc's lock, which
/// the thread that trims has. So neither the event reader nor what it waits for has such variables.
#[test]
fn trims_after_a_dlopen_come_to_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("trimming.c", dir.path().join("program"), &["-ldl"]);
    let library = compile("trimming.c", dir.path().join("library.so"), &["-DLIBRARY", "-shared", "-fPIC"]);
    let Some((program, library)) = program.zip(library) else { return };
    // More than a thread has places for.
    let libraries: Vec<_> = (0..60).map(|n| dir.path().join(format!("library{n}.so"))).collect();
    for copy in &libraries {
        std::fs::copy(&library, copy).unwrap();
    }
    let arguments: Vec<_> = [&program].into_iter().chain(&libraries).map(|path| path.as_os_str()).collect();
    let (status, out, err) = run(&arguments, &[]);
    assert_eq!((status.code(), out.as_str()), (Some(0), "trimmed\n"), "{err}");
}

/// Allocators that people preload, where this machine has them; the C library's own first.
fn allocators() -> impl Iterator<Item = String> {
    let place = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let preloaded = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"].map(|name| format!("{place}/{name}"));
    let there = preloaded.into_iter().filter(|path| {
        let there = Path::new(path).exists();
        if !there {
            println!("skipped: there is no {path}");
        }
        there
    });
    std::iter::once(String::new()).chain(there)
}

/// The same where the program's malloc is another, with locks and calls of its own.
#[test]
fn forks_and_unmaps_come_to_an_end_whatever_allocates() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("storm.c", dir.path().join("program"), &["-lpthread"]) else { return };
    for allocator in allocators() {
        let (status, out, err) = run(&[program.as_os_str()], &[("LD_PRELOAD", &allocator)]);
        assert_eq!((status.code(), out.as_str()), (Some(0), "over\n"), "{allocator:?}: {err}");
    }
}

/// Python's multiprocessing forks with threads, and its workers allocate at once.
#[test]
fn pythons_workers_are_forked_while_a_gpu_works() {
    if Command::new("python3")
        .args(["-c", "import ctypes, multiprocessing"])
        .output()
        .map_or(true, |run| !run.status.success())
    {
        println!("skipped: no python3 with ctypes");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let library = compile("copies.c", dir.path().join("copies.so"), &["-shared", "-fPIC", "-lpthread"]);
    let Some(library) = library else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preload/tests/workers.py");
    for allocator in allocators() {
        let program = [OsStr::new("python3"), script.as_os_str(), library.as_os_str()];
        let (status, out, err) = run(&program, &[("LD_PRELOAD", &allocator)]);
        assert_eq!((status.code(), out.as_str()), (Some(0), "right\n"), "{allocator:?}: {err}");
    }
}

/// What the program locks is its own memory, not the GPU's 16 GiB and the tables for it.
#[test]
fn a_program_that_locks_its_memory_does_not_fill_the_gpus() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("locked.c", dir.path().join("program"), &[]) else { return };
    for when in ["before", "after"] {
        let (status, out, err) = run(&[program.as_os_str(), OsStr::new(when)], &[]);
        if status.code() == Some(2) {
            println!("skipped: this process may not lock its memory: {err}");
            return;
        }
        assert_eq!(status.code(), Some(0), "{when}: {out}{err}");
        let megabytes: u64 = out.trim().parse().unwrap();
        assert!((64..512).contains(&megabytes), "{when}: {megabytes} MiB are in memory");
    }
}
