// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A program's own circumstances, under `vkfd run`: other preloaded libraries, environments that
//! were cleaned, limits, small stacks, another user. Each has its control: what holds it is broken
//! by a switch, and the same look notices.

use crate::common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use vkfd_sabotage::Switch;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../preload/tests");

fn run(options: &[&str], program: &[&str]) -> Command {
    let mut command = common::command(&[&["run"], options, &["--"], program].concat());
    command.env_remove("LD_PRELOAD");
    command
}

/// The same run with a mechanism broken.
fn broken(switches: &[Switch], options: &[&str], program: &[&str]) -> Command {
    let mut command = run(options, program);
    let names: Vec<&str> = switches.iter().map(|switch| switch.name()).collect();
    command.env("VKFD_SABOTAGE", names.join(","));
    command
}

fn out(run: &Output) -> String {
    String::from_utf8_lossy(&run.stdout).into_owned()
}

fn err(run: &Output) -> String {
    String::from_utf8_lossy(&run.stderr).into_owned()
}

/// A C compiler's product; `None`, with a word, where there is no compiler.
fn compile(source: &Path, to: &Path, options: &[&str]) -> Option<String> {
    let compiled = Command::new("cc").args(["-O1", "-o"]).arg(to).arg(source).args(options).output();
    match compiled {
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            None
        }
        Ok(compiled) => {
            assert!(compiled.status.success(), "{}", err(&compiled));
            Some(to.to_str().unwrap().to_owned())
        }
    }
}

fn source(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path
}

/// A directory that other users can come to.
fn open_directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

fn is_root() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// As tcmalloc has it.
const OWN_CALLS: &str = r#"
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{ return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset); }
void *mmap64(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{ return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, offset); }
int munmap(void *at, size_t n) { return (int)syscall(SYS_munmap, at, n); }
"#;

const OPENS: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
int main(void)
{
    int fd = open("/dev/kfd", O_RDWR);
    printf("%s\n", fd >= 0 ? "opened" : errno == ENODEV ? "ENODEV" : "another error");
    return 0;
}
"#;

#[test]
fn a_preloaded_allocator_with_calls_of_its_own_comes_second() {
    let dir = tempfile::tempdir().unwrap();
    let library = source(dir.path(), "own.c", OWN_CALLS);
    let variants = Path::new(SOURCES).join("variants.c");
    let Some(library) = compile(&library, &dir.path().join("own.so"), &["-shared", "-fPIC"]) else { return };
    let Some(program) = compile(&variants, &dir.path().join("variants"), &["-lpthread"]) else { return };
    let ran = run(&["--gpus", "2"], &[&program]).env("LD_PRELOAD", &library).output().unwrap();
    assert_eq!((ran.status.code(), out(&ran).as_str()), (Some(0), "every variant works\n"), "{}", err(&ran));
    // Where it comes first, the run is refused; unchecked, the program would see wrong data.
    let last = |switches: &[Switch]| {
        broken(switches, &["--gpus", "2"], &[&program]).env("LD_PRELOAD", &library).output().unwrap()
    };
    let ran = last(&[Switch::LastInList]);
    assert!(!ran.status.success() && err(&ran).contains("has a function munmap of its own"), "{}", err(&ran));
    let ran = last(&[Switch::LastInList, Switch::UncheckedHooks]);
    assert!(out(&ran).contains("FAILED") && !err(&ran).contains("of its own"), "{}{}", out(&ran), err(&ran));
}

#[test]
fn a_program_that_makes_system_calls_of_its_own_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let own = source(dir.path(), "own.c", &format!("{OWN_CALLS}{OPENS}"));
    let Some(program) = compile(&own, &dir.path().join("own"), &["-rdynamic"]) else { return };
    let ran = run(&[], &[&program]).output().unwrap();
    assert_eq!(out(&ran), "ENODEV\n", "{}", err(&ran));
    assert!(err(&ran).contains(&format!("{program} has a function munmap of its own")), "{}", err(&ran));
    let ran = broken(&[Switch::UncheckedHooks], &[], &[&program]).output().unwrap();
    assert_eq!(out(&ran), "opened\n", "control: {}", err(&ran));
    // Behind another library that the program itself puts first, too.
    let library = source(dir.path(), "library.c", OWN_CALLS);
    let Some(library) = compile(&library, &dir.path().join("own.so"), &["-shared", "-fPIC"]) else { return };
    let opens = source(dir.path(), "opens.c", OPENS);
    let linked = ["-Wl,--no-as-needed", &library];
    let Some(program) = compile(&opens, &dir.path().join("linked"), &linked) else { return };
    let ran = run(&[], &[&program]).output().unwrap();
    assert_eq!(out(&ran), "opened\n", "linked libraries come after preloaded ones: {}", err(&ran));
    // One that passes calls on does no harm.
    let wraps = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/mman.h>
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    void *(*next)(void *, size_t, int, int, int, off_t) = dlsym(RTLD_NEXT, "mmap");
    return next(at, n, prot, flags, fd, offset);
}
int open(const char *path, int flags, ...)
{
    int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    return next(path, flags, 0);
}
"#;
    let wraps =
        source(dir.path(), "wraps.c", &format!("{wraps}{}", OPENS.replace("#include <fcntl.h>", "#define O_RDWR 2")));
    let Some(program) = compile(&wraps, &dir.path().join("wraps"), &["-rdynamic", "-ldl"]) else { return };
    let ran = run(&[], &[&program]).output().unwrap();
    assert_eq!((out(&ran).as_str(), err(&ran).contains("of its own")), ("opened\n", false), "{}", err(&ran));
}

const NAME: &str = "/sys/class/kfd/kfd/topology/nodes/1/name";

#[test]
fn programs_that_are_run_with_another_environment_have_the_machine() {
    let cat = format!("cat {NAME}");
    let many: String = (0..600).map(|n| format!("V{n}=x ")).collect();
    let long = format!("/no/{}.so", "x".repeat(2000));
    for command in [
        format!("env -i {cat}"),
        format!("env -i LD_PRELOAD=libdl.so.2 {cat}"),
        format!("env LD_PRELOAD=libdl.so.2 {cat}"),
        format!("LD_PRELOAD=libdl.so.2 sh -c '{cat}'"),
        format!("unset LD_PRELOAD; {cat}"),
        format!("unset VKFD_DIRECTORY VKFD_MACHINE; {cat}"),
        format!("env -i {many} {cat}"),
        format!("env -i LD_PRELOAD={long} {cat} 2>/dev/null"),
        format!("env -i env -i sh -c 'env -i {cat}'"),
    ] {
        let ran = run(&["--target", "gfx90a"], &["sh", "-c", &command]).output().unwrap();
        assert_eq!((out(&ran).as_str(), err(&ran).as_str()), ("gfx90a\n", ""), "{command}");
    }
    // A program may run others by any of these.
    let dir = tempfile::tempdir().unwrap();
    let runs = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    char *args[] = {"cat", argv[2], NULL}, *none[] = {NULL};
    pid_t child = 0;
    (void)argc;
    switch (atoi(argv[1])) {
    case 0: execve("/bin/cat", args, none); break;
    case 1: execvpe("cat", args, none); break;
    case 2: fexecve(open("/bin/cat", O_RDONLY), args, none); break;
    case 3: clearenv(); execv("/bin/cat", args); break;
    case 4: clearenv(); setenv("PATH", "/bin", 1); execvp("cat", args); break;
    case 5: posix_spawn(&child, "/bin/cat", NULL, NULL, args, none); break;
    case 6: posix_spawnp(&child, "cat", NULL, NULL, args, none); break;
    case 7: child = vfork(); if (!child) { execve("/bin/cat", args, NULL); _exit(1); } break;
    }
    return child > 0 ? wait(NULL) != child : 1;
}
"#;
    let runs = source(dir.path(), "runs.c", runs);
    let Some(program) = compile(&runs, &dir.path().join("runs"), &["-Wno-nonnull"]) else { return };
    for way in 0..8 {
        let ran = run(&["--target", "gfx90a"], &[&program, &way.to_string(), NAME]).output().unwrap();
        assert_eq!((out(&ran).as_str(), err(&ran).as_str()), ("gfx90a\n", ""), "way {way}");
    }
    for command in [&["env", "-i", "cat", NAME][..], &[&program, "0", NAME]] {
        let ran = broken(&[Switch::LostEnvironment], &["--target", "gfx90a"], command).output().unwrap();
        assert_eq!(out(&ran), "", "control: {command:?}");
    }
}

#[test]
fn a_run_in_a_run_has_its_own_machine() {
    let vkfd = env!("CARGO_BIN_EXE_vkfd");
    let inner = format!("{vkfd} run --target gfx1030 -- env -i cat {NAME}");
    let ran = run(&["--target", "gfx90a"], &["sh", "-c", &format!("{inner}; cat {NAME}")]).output().unwrap();
    assert_eq!((out(&ran).as_str(), err(&ran).as_str()), ("gfx1030\ngfx90a\n", ""));
}

#[test]
fn a_file_size_limit_is_no_end() {
    let dir = open_directory();
    let opens = source(dir.path(), "opens.c", OPENS);
    let Some(program) = compile(&opens, &dir.path().join("opens"), &[]) else { return };
    // What the program may raise by itself does not matter.
    let ran = run(&[], &["sh", "-c", &format!("ulimit -S -f 100; {program}")]).output().unwrap();
    assert_eq!((ran.status.code(), out(&ran).as_str()), (Some(0), "opened\n"), "{}", err(&ran));
    let limited = format!("ulimit -S -f 100; exec {program}");
    let ran = broken(&[Switch::SizeInProcess], &[], &["sh", "-c", &limited]).output().unwrap();
    assert_eq!((ran.status.code(), out(&ran).as_str()), (Some(128 + libc::SIGXFSZ), ""), "control: {}", err(&ran));
    // Otherwise it is told.
    let user = if is_root() { "exec setpriv --reuid 65534 --clear-groups " } else { "exec " };
    let ran = run(&[], &["sh", "-c", &format!("ulimit -f 100; {user}{program}")]).output().unwrap();
    assert_eq!((ran.status.code(), out(&ran).as_str()), (Some(0), "ENODEV\n"), "{}", err(&ran));
    assert!(err(&ran).contains("RLIMIT_FSIZE, 51200 bytes"), "{}", err(&ran));
    // A trace that has no room is none, and the program goes on.
    let trace = dir.path().join("trace");
    let traced = ["--trace", trace.to_str().unwrap()];
    let ran = run(&traced, &["sh", "-c", &format!("ulimit -S -f 0; {program}")]).output().unwrap();
    assert_eq!((ran.status.code(), out(&ran).as_str()), (Some(0), "opened\n"), "{}", err(&ran));
}

#[test]
fn a_thread_may_have_a_small_stack() {
    let dir = tempfile::tempdir().unwrap();
    let small = Path::new(SOURCES).join("small_stack.c");
    let Some(program) = compile(&small, &dir.path().join("small"), &["-lpthread"]) else { return };
    for bytes in ["0x10000", "0"] {
        let ran = run(&[], &[&program, bytes]).output().unwrap();
        assert_eq!((ran.status.code(), out(&ran).as_str()), (Some(0), "done\n"), "{bytes}: {}", err(&ran));
    }
    let ran = broken(&[Switch::CallersStack], &[], &[&program, "0"]).output().unwrap();
    assert_eq!((ran.status.code(), out(&ran).as_str()), (Some(128 + libc::SIGSEGV), ""), "control: {}", err(&ran));
}

#[test]
fn a_path_may_be_any_number() {
    let dir = tempfile::tempdir().unwrap();
    let probes = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void)
{
    char *volatile bad = (char *)8;
    struct stat status;
    int opened = open(bad, O_RDONLY) == -1 && errno == EFAULT;
    int looked = stat(bad, &status) == -1 && errno == EFAULT;
    int asked = access(bad, R_OK) == -1 && errno == EFAULT;
    printf("%d %d %d\n", opened, looked, asked);
    return 0;
}
"#;
    let probes = source(dir.path(), "probes.c", probes);
    let Some(program) = compile(&probes, &dir.path().join("probes"), &[]) else { return };
    let ran = run(&[], &[&program]).output().unwrap();
    assert_eq!((ran.status.code(), out(&ran).as_str()), (Some(0), "1 1 1\n"), "{}", err(&ran));
    let ran = broken(&[Switch::PlainPaths], &[], &[&program]).output().unwrap();
    assert_eq!((ran.status.code(), out(&ran).as_str()), (Some(128 + libc::SIGSEGV), ""), "control: {}", err(&ran));
}

#[test]
fn a_program_may_become_another_user() {
    if !is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let dir = open_directory();
    let drops = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void)
{
    if (setgid(65534) || setuid(65534)) return 1;
    FILE *file = fopen("/sys/class/kfd/kfd/topology/nodes/1/name", "r");
    char name[32] = "none\n";
    if (file) fgets(name, sizeof name, file);
    printf("%d %s", open("/dev/kfd", O_RDWR) >= 0, name);
    return 0;
}
"#;
    let drops = source(dir.path(), "drops.c", drops);
    let Some(program) = compile(&drops, &dir.path().join("drops"), &[]) else { return };
    let user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let cache = dir.path().join("closed");
    for closed in [false, true] {
        for begin in [&[][..], &user] {
            let mut command = run(&[], &[begin, &[&program]].concat());
            if closed {
                // As /root is.
                command.env("XDG_CACHE_HOME", &cache);
                let _ = fs::create_dir(&cache);
                fs::set_permissions(&cache, fs::Permissions::from_mode(0o700)).unwrap();
            }
            let ran = command.env("XDG_RUNTIME_DIR", dir.path()).output().unwrap();
            assert_eq!(out(&ran), "1 gfx900\n", "{begin:?}, {closed}: {}", err(&ran));
            // The marks were made, and nothing else was amiss.
            let said = err(&ran);
            assert!(said.contains("used no GPU") && said.lines().count() == 1, "{begin:?}, {closed}: {said}");
        }
    }
    let private = broken(&[Switch::PrivateFiles], &[], &[&program]).output().unwrap();
    assert_ne!(out(&private), "1 gfx900\n", "control: {}", err(&private));
    // Readable, and not writable.
    let look = "find $VKFD_DIRECTORY -perm /022 ! -type l ! -name used ! -name opened ! -name acquired; cat /sys/class/kfd/kfd/topology/generation_id >/dev/null";
    let ran = run(&[], &[&user[..], &["sh", "-c", look]].concat()).output().unwrap();
    assert_eq!((out(&ran).as_str(), err(&ran).as_str()), ("", ""));
}
