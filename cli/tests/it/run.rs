// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd run` and `vkfd advise` as a user has them: programs of the system, and one that calls
//! everything libc has.

use crate::common;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use vkfd_sabotage::Switch;

fn run(options: &[&str], program: &[&str]) -> Output {
    common::command(&[&["run"], options, &["--"], program].concat()).output().unwrap()
}

fn out(run: &Output) -> String {
    String::from_utf8_lossy(&run.stdout).into_owned()
}

fn err(run: &Output) -> String {
    String::from_utf8_lossy(&run.stderr).into_owned()
}

/// Compiles a C program; `None`, with a word, where there is no compiler.
fn compile(source: &str, to: &Path, options: &[&str]) -> Option<PathBuf> {
    let program = to.join("program");
    let mut command = Command::new("cc");
    command.args(["-O1", "-o"]).arg(&program).arg(source).args(options);
    match command.output() {
        Err(error) => {
            println!("skipped: no C compiler: {error}");
            None
        }
        Ok(compiled) => {
            assert!(compiled.status.success(), "{}", err(&compiled));
            Some(program)
        }
    }
}

const VARIANTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../preload/tests/variants.c");

#[test]
fn every_variant_that_libc_offers_reaches_the_devices() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile(VARIANTS, dir.path(), &["-lpthread"]) else { return };
    let program = program.to_str().unwrap();
    let good = run(&["--gpus", "2"], &[program]);
    assert_eq!((good.status.code(), out(&good).as_str()), (Some(0), "every variant works\n"), "{}", err(&good));
    // Its own control: the same program without the library.
    let bare = Command::new(program).output().unwrap();
    assert_eq!(bare.status.code(), Some(1), "{}", out(&bare));
    assert!(out(&bare).starts_with("FAILED"), "{}", out(&bare));
}

#[test]
fn programs_of_the_system_read_the_topology() {
    let nodes = "/sys/class/kfd/kfd/topology/nodes";
    let listed = run(&["--gpus", "3", "--target", "gfx90a"], &["ls", nodes]);
    assert_eq!(out(&listed).split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"], "{}", err(&listed));
    for (options, name) in [
        (&["--target", "gfx1030"][..], "gfx1030"),
        (&["--target", "gfx1100"], "gfx1100"),
        (&["--preset", "frontier-node"], "gfx90a"),
        (&["--preset", "frontier-node", "--target", "gfx900"], "gfx900"),
        (&[], "gfx900"),
    ] {
        let read = run(options, &["cat", &format!("{nodes}/1/name")]);
        assert_eq!(out(&read).trim(), name, "{}", err(&read));
    }
    // libdrm tells GPUs apart by the primary node beside the render node. Without one all GPUs are
    // the same to it, and ROCm 6's thunk acquires one GPU's VM with another's file.
    for gpu in 0..3 {
        let nodes = format!("/sys/dev/char/226:{}/device/drm", 128 + gpu);
        let listed = run(&["--gpus", "3"], &["ls", &nodes]);
        assert_eq!(out(&listed), format!("card{gpu}\nrenderD{}\n", 128 + gpu), "{}", err(&listed));
    }
    // The control.
    let mut command = common::command(&["run", "--", "ls", "/sys/class/drm"]);
    let listed = command.env("VKFD_SABOTAGE", Switch::NoCards.name()).output().unwrap();
    assert!(out(&listed).contains("renderD128\n") && !out(&listed).contains("card"), "{}", err(&listed));
    // What a program runs has it too.
    let shell = run(&["--vram", "64M"], &["sh", "-c", &format!("cat {nodes}/1/mem_banks/0/properties; ls /dev/dri")]);
    assert!(out(&shell).contains(&format!("size_in_bytes {}\n", 64 << 20)), "{}", err(&shell));
    assert!(out(&shell).ends_with("renderD128\n"));
    // And nothing else changes.
    let other = run(&[], &["cat", "/proc/self/comm"]);
    assert_eq!(out(&other), "cat\n");
}

/// The loader takes spaces and colons for separators.
#[test]
fn the_library_may_be_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("a place: with spaces");
    fs::create_dir(&place).unwrap();
    // Beside the tests, where cargo builds it for the program.
    let library = std::env::current_exe().unwrap().with_file_name("libvkfd_preload.so");
    let copy = place.join("libvkfd_preload.so");
    fs::copy(library, &copy).unwrap();
    let found = run(&["--preload", copy.to_str().unwrap()], &["cat", "/sys/class/kfd/kfd/topology/nodes/1/name"]);
    assert_eq!((out(&found).as_str(), err(&found).as_str()), ("gfx900\n", ""));
}

/// As `cargo install` leaves it: one file, with nothing beside it.
#[test]
fn the_program_alone_is_enough() {
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("vkfd");
    fs::copy(env!("CARGO_BIN_EXE_vkfd"), &alone).unwrap();
    let cache = dir.path().join("cache");
    // Root's programs may become other users'.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let name = "/sys/class/kfd/kfd/topology/nodes/1/name";
    let ran = |cache: &Path| {
        let mut command = Command::new(&alone);
        command.args(["run", "--", "sh", "-c", &format!("cat {name}; echo $LD_PRELOAD")]);
        command.env("XDG_CACHE_HOME", cache).env_remove("VKFD_PRELOAD").env_remove("LD_PRELOAD");
        let ran = command.output().unwrap();
        assert_eq!((ran.status.code(), err(&ran).as_str()), (Some(0), ""));
        let text = out(&ran);
        let (name, library) = text.trim_end().split_once('\n').expect("two lines");
        assert_eq!(name, "gfx900");
        PathBuf::from(library)
    };
    let kept = ran(&cache);
    assert!(kept.starts_with(&cache) && kept.is_file(), "{}", kept.display());
    assert_eq!(ran(&cache), kept);
    // Without a cache that can be used, or with one that others can write to: the private
    // directory, which goes with the run.
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
    for cache in [Path::new("/proc"), &cache] {
        let private = ran(cache);
        assert!(private.to_str().unwrap().contains("/vkfd-run-") && !private.exists(), "{}", private.display());
    }
}

#[test]
fn exit_codes_are_the_programs() {
    assert_eq!(run(&[], &["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&[], &["sh", "-c", "kill -TERM $$"]).status.code(), Some(128 + 15));
    assert_eq!(run(&[], &["true"]).status.code(), Some(0));
}

/// The private directory of a run, as its program sees it.
fn directory_of(text: &str) -> PathBuf {
    PathBuf::from(text.lines().find_map(|line| line.strip_prefix("VKFD_DIRECTORY=")).expect("the variable"))
}

/// A run whose program has begun and does not end by itself, and its private directory.
fn begun_run() -> (Child, PathBuf) {
    let program = ["run", "--", "sh", "-c", "env; echo; exec sleep 600"];
    let mut child = common::command(&program).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    let mut reader = std::io::BufReader::new(child.stdout.take().unwrap());
    while std::io::BufRead::read_line(&mut reader, &mut text).unwrap() > 1 {}
    (child, directory_of(&text))
}

#[test]
fn the_private_directory_goes_with_the_run() {
    let done = run(&[], &["sh", "-c", "env; test -d $VKFD_DIRECTORY"]);
    assert_eq!(done.status.code(), Some(0), "{}", err(&done));
    assert!(!directory_of(&out(&done)).exists());
    // Also when the run is told to end: it passes that on.
    let (mut child, directory) = begun_run();
    assert!(directory.exists());
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert!(!directory.exists());
    // And one whose run was killed, with the next run.
    let (mut child, directory) = begun_run();
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    while directory.exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} is left", directory.display());
        run(&[], &["true"]);
    }
}

#[test]
fn a_program_that_asks_for_nothing_of_the_machine_is_pointed_out() {
    let hint = "opened no device and read nothing of the machine's";
    let idle = run(&[], &["sh", "-c", "exit 3"]);
    assert_eq!(idle.status.code(), Some(3));
    assert!(err(&idle).contains(hint), "{}", err(&idle));
    for busy in ["cat /sys/class/kfd/kfd/topology/generation_id", "test -e /dev/dri/renderD128"] {
        let ran = run(&[], &["sh", "-c", busy]);
        assert!(ran.status.success() && err(&ran).is_empty(), "{busy}: {}", err(&ran));
    }
    // One that opens the device and takes no GPU: its runtime does not know the target, perhaps.
    let looked = run(&["--target", "gfx942"], &["sh", "-c", ": < /dev/kfd"]);
    assert!(looked.status.success());
    assert!(err(&looked).contains("used no GPU: its runtime may not know gfx942"), "{}", err(&looked));
    // Of one that a signal ended nothing is known of its runtime.
    let hung = run(&["--target", "gfx942"], &["sh", "-c", ": < /dev/kfd; kill -TERM $$"]);
    assert_eq!(hung.status.code(), Some(128 + 15));
    let said = err(&hung);
    assert!(said.contains("used no GPU when signal 15 ended it") && !said.contains("may not know"), "{said}");
}

/// gcc's AddressSanitizer insists on being the first library.
#[test]
fn programs_with_a_sanitizer_run() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("open.c");
    fs::write(&source, "#include <fcntl.h>\nint main(void) { return open(\"/dev/kfd\", O_RDWR) < 0; }\n").unwrap();
    let options = ["-fsanitize=address"];
    let linked = Command::new("cc").args(options).arg("-o").arg(dir.path().join("probe")).arg(&source).output();
    if !linked.is_ok_and(|linked| linked.status.success()) {
        println!("skipped: no compiler with AddressSanitizer");
        return;
    }
    let Some(program) = compile(source.to_str().unwrap(), dir.path(), &options) else { return };
    let ran = run(&[], &[program.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(0), "{}", err(&ran));
}

/// What people type first. Behind the descriptor is a file with all of the machine's memory.
/// (`echo` writes by libc itself, in a process that has the descriptor from its shell.)
#[test]
fn devices_cannot_be_read_or_written() {
    for (command, words) in [
        ("cat /dev/kfd", "cat: /dev/kfd: Invalid argument"),
        ("head -c 16 /dev/kfd", "Invalid argument"),
        ("cat < /dev/kfd", "Invalid argument"),
        ("/bin/echo hello > /dev/kfd", "Operation not permitted"),
        ("dd if=/dev/kfd of=/dev/null count=1 status=none", "Invalid argument"),
    ] {
        let ran = run(&[], &["timeout", "-s", "KILL", "20", "sh", "-c", command]);
        assert!(ran.status.code() == Some(1) || ran.status.code() == Some(2), "{command}: {:?}", ran.status);
        assert!(err(&ran).contains(words) && out(&ran).is_empty(), "{command}: {}", err(&ran));
    }
    let listed = run(&[], &["ls", "-la", "/dev/kfd", "/dev/dri"]);
    assert_eq!((listed.status.code(), err(&listed).as_str()), (Some(0), ""));
}

#[test]
fn what_the_environment_says_is_checked_before_the_program_runs() {
    for (name, value) in [("VKFD_LOG", "banana"), ("VKFD_NOTIFY", "banana")] {
        let refused = common::command(&["run", "--", "echo", "ran"]).env(name, value).output().unwrap();
        assert_eq!(refused.status.code(), Some(125), "{name}");
        assert!(out(&refused).is_empty() && err(&refused).contains("banana"), "{}", err(&refused));
    }
    let good = common::command(&["run", "--", "echo", "ran"]).env("VKFD_LOG", "INFO").output().unwrap();
    assert_eq!(out(&good), "ran\n");
}

#[test]
fn targets_and_machines_are_listed() {
    let listed = common::command(&["targets"]).output().unwrap();
    for name in ["gfx900", "gfx90a", "gfx942", "gfx1030", "gfx1100", "frontier-node", "0x74a1"] {
        assert!(out(&listed).contains(name), "{name}: {}", out(&listed));
    }
    let json = common::command(&["targets", "--json"]).output().unwrap();
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["targets"].as_array().map(Vec::len), Some(5));
    let script = common::command(&["completions", "bash"]).output().unwrap();
    assert!(out(&script).contains("gfx900 gfx90a gfx942 gfx1030 gfx1100"), "completions offer them");
}

/// A machine of one's own: a preset's file, copied and changed.
#[test]
fn a_machine_may_be_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.toml");
    let path = file.to_str().unwrap();
    let template = common::command(&["targets", "--show", "frontier-node"]).output().unwrap();
    let text = out(&template).replace("gpus = 4", "gpus = 3") + "[gpu]\nunits = 12\nclock_mhz = 1111\n";
    fs::write(&file, text).unwrap();
    let nodes = "/sys/class/kfd/kfd/topology/nodes";
    let program = ["sh", "-c", &format!("ls {nodes}; cat {nodes}/3/name {nodes}/3/properties")];
    let made = run(&["--preset", path], &program);
    assert!(out(&made).starts_with("0\n1\n2\n3\ngfx90a\n"), "{}{}", out(&made), err(&made));
    for line in ["array_count 8\n", "cu_per_simd_array 2\n", "simd_count 48\n", "max_engine_clk_fcompute 1111\n"] {
        assert!(out(&made).contains(line), "{line}: {}", out(&made));
    }
    // The command line comes on top.
    let changed = run(&["--preset", path, "--gpus", "1"], &["ls", nodes]);
    assert_eq!(out(&changed), "0\n1\n");
    fs::write(&file, "gpus = 2\n[gpu]\nunits = \"many\"\n").unwrap();
    let wrong = run(&["--preset", path], &["echo", "ran"]);
    assert_eq!((wrong.status.code(), out(&wrong).as_str()), (Some(125), ""));
    for words in ["mine.toml", "line 3", "units"] {
        assert!(err(&wrong).contains(words), "{words}: {}", err(&wrong));
    }
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("man1");
    let written = common::command(&["man", place.to_str().unwrap()]).output().unwrap();
    assert!(written.status.success(), "{}", err(&written));
    for (page, words) in [
        ("vkfd.1", &["vkfd\\-run", "VKFD_NOTIFY"][..]),
        ("vkfd-run.1", &["\\-\\-preset", "SH EXAMPLES", "SH ENVIRONMENT", "rocminfo"]),
        ("vkfd-bench-userptr.1", &["SH OPTIONS"]),
    ] {
        let text = fs::read_to_string(place.join(page)).unwrap();
        for word in words {
            assert!(text.contains(word), "{page}: {word}");
        }
    }
}

#[test]
fn programs_that_cannot_be_reached_are_told_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8], mode: u32| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    // ELF headers are enough: 64 bits, little-endian, an executable, of some machine.
    let elf = |class: u8, machine: u16| {
        let mut header = vec![0_u8; 64];
        header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
        header[16] = 2;
        header[18..20].copy_from_slice(&machine.to_le_bytes());
        (header[20], header[52], header[54], header[58]) = (1, 64, 56, 64);
        header
    };
    // With one program header: the loader's path, which follows.
    let with_loader = |machine: u16, loader: &[u8]| {
        let mut file = elf(2, machine);
        (file[32], file[56]) = (64, 1);
        let mut header = [0_u8; 56];
        (header[0], header[8]) = (3, 120);
        (header[32], header[40]) = (u8::try_from(loader.len()).unwrap(), u8::try_from(loader.len()).unwrap());
        file.extend_from_slice(&header);
        file.extend_from_slice(loader);
        file
    };
    let native = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let fixed = file("static", &elf(2, native), 0o755);
    let script = file("script", format!("#!{fixed} -x\n").as_bytes(), 0o755);
    let missing = dir.path().join("missing").to_str().unwrap().to_owned();
    for (program, words) in [
        (fixed.clone(), "statically linked"),
        (script, "statically linked"),
        (file("musl", &with_loader(native, b"/lib/ld-musl-x86_64.so.1\0"), 0o755), "linked with musl"),
        (file("other", &elf(2, 243), 0o755), "another processor"),
        (file("small", &elf(1, 3), 0o755), "32-bit"),
        (file("text", b"hello", 0o755), "neither an ELF program nor a script"),
        (file("plain", b"#!/bin/sh\n", 0o644), "chmod +x"),
        (file("nowhere", b"#!/no/such/interpreter\n", 0o755), "/no/such/interpreter"),
        ("no-such-program".into(), "PATH"),
        (missing.clone(), "there is no program"),
    ] {
        let refused = run(&[], &[&program]);
        let gone = ["no-such-program", &missing].contains(&program.as_str());
        assert_eq!(refused.status.code(), Some(if gone { 127 } else { 126 }), "{program}");
        assert!(err(&refused).contains(words), "{program}: {}", err(&refused));
        assert!(out(&refused).is_empty());
    }
    let good = file("good", b"#!/usr/bin/env sh\necho here\n", 0o755);
    assert_eq!(out(&run(&[], &[&good])), "here\n");
    for (options, words) in [
        (&["--gpus", "0"][..], "--gpus"),
        (&["--gpus", "33"], "1..=32"),
        (&["--target", "gfx803"], "gfx803"),
        (&["--target", "gfx908"], "gfx90a"),
        (&["--vram", "1M"], "2 MiB"),
        (&["--vram", "2T"], "512 GiB"),
        (&["--vram", "1X"], "no size"),
        (&["--preload", "/no/such/library.so"], "/no/such/library.so"),
        (&["--json"], "--trace"),
    ] {
        let refused = run(options, &["true"]);
        assert_eq!(refused.status.code(), Some(125), "{options:?}");
        assert!(err(&refused).contains(words), "{options:?}: {}", err(&refused));
    }
}

#[test]
fn calls_are_recorded_as_text_and_as_json() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile(VARIANTS, dir.path(), &["-lpthread"]) else { return };
    let trace = dir.path().join("trace");
    let (program, trace) = (program.to_str().unwrap(), trace.to_str().unwrap());
    let good = run(&["--gpus", "2", "--trace", trace], &[program]);
    assert_eq!(good.status.code(), Some(0), "{}", out(&good));
    let text = fs::read_to_string(trace).unwrap();
    for part in [
        "open /dev/kfd -> ok fd=",
        " GET_VERSION major_version=0 minor_version=0 -> ok major_version=1",
        " ACQUIRE_VM ",
        " -> EINVAL (",
        " ALLOC_MEMORY_OF_GPU va_addr=0x10000000 size=65536 handle=0x0 mmap_offset=0x0 gpu_id=0x4b01 flags=VRAM|",
        " mmap /dev/dri/renderD128 ",
        "close /dev/kfd -> ok",
    ] {
        assert!(text.contains(part), "{part:?} is missing in {text}");
    }
    let good = run(&["--gpus", "2", "--trace", trace, "--json"], &[program]);
    assert_eq!(good.status.code(), Some(0), "{}", out(&good));
    let calls: Vec<Value> =
        fs::read_to_string(trace).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let alloc = calls.iter().find(|call| call["call"] == "ALLOC_MEMORY_OF_GPU").unwrap();
    assert_eq!((&alloc["arguments"]["size"], &alloc["result"]), (&65536.into(), &"ok".into()));
    assert!(alloc["changed"]["handle"].as_str().unwrap().starts_with("0x4b01"));
    assert!(alloc["microseconds"].as_f64().unwrap() > 0.0);
    // Both are read by the other command, and neither has anything to say.
    let advice = common::command(&["advise", trace]).output().unwrap();
    assert_eq!(advice.status.code(), Some(0), "{}", err(&advice));
    assert!(out(&advice).contains("No run of 16 or more"), "{}", out(&advice));
}

#[test]
fn advice_names_runs_of_single_registrations() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let line = |number: u64| {
        format!(
            "{:13.6} 7 ALLOC_MEMORY_OF_GPU va_addr={:#x} size=4096 handle=0x0 mmap_offset=0x7f0000000000 gpu_id=0x4b01 \
             flags=USERPTR|WRITABLE -> ok handle={:#x} mmap_offset=0x0 (20.0 us)\n",
            5.0 + number as f64 * 1e-4,
            0x1000_0000 + number * 4096,
            number + 1
        )
    };
    fs::write(&trace, (0..200).map(line).collect::<String>()).unwrap();
    let trace = trace.to_str().unwrap();
    let advice = common::json(&common::command(&["advise", "--json", trace]).output().unwrap());
    let run = &advice["runs"][0];
    assert_eq!((&advice["registrations"], &run["registrations"]), (&200.into(), &200.into()), "{advice:#}");
    assert_eq!((&run["bytes"], advice["runs"].as_array().unwrap().len()), (&(200 * 4096).into(), 1));
    assert!((run["seconds"].as_f64().unwrap() - 0.004).abs() < 1e-6);
    assert!(run["predicted"]["batch_seconds"].as_f64().unwrap() > 0.0);
    let text = out(&common::command(&["advise", trace]).output().unwrap());
    assert!(text.contains("200 registrations, 800 KiB, USERPTR|WRITABLE for GPU 0x4b01"), "{text}");
    fs::write(dir.path().join("no-trace"), "hello\n").unwrap();
    let refused = common::command(&["advise", dir.path().join("no-trace").to_str().unwrap()]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(err(&refused).contains("line 1"), "{}", err(&refused));
}

#[test]
fn orders_are_tried_until_one_changes_the_output() {
    let third = "case $VKFD_MACHINE in *' schedule=random:3'*) echo other ;; *) echo same ;; esac";
    let found = run(&["--explore", "5"], &["sh", "-c", third]);
    assert_eq!((found.status.code(), out(&found).as_str()), (Some(1), ""), "{}", err(&found));
    assert!(err(&found).contains(r#"random:3 changes the program's output, in line 1: "same" became "other""#));
    let same = run(&["--explore=2"], &["sh", "-c", &format!("{third}; exit 4")]);
    assert_eq!(same.status.code(), Some(4), "the program's own: {}", err(&same));
    assert!(err(&same).contains("the same in 2 other orders"), "{}", err(&same));
    let restless = run(&["--explore", "2"], &["sh", "-c", "echo $$"]);
    assert_eq!(restless.status.code(), Some(125), "{}", err(&restless));
    assert!(err(&restless).contains("changes by itself"), "{}", err(&restless));
}

#[test]
fn an_order_has_one_thread_unless_more_are_asked_for() {
    let machine = |options: &[&str]| out(&run(options, &["printenv", "VKFD_MACHINE"]));
    assert!(machine(&["--schedule", "random:5"]).contains("threads=1 "));
    assert!(machine(&["--schedule", "random:5", "--threads", "3"]).contains("threads=3 "));
    assert!(machine(&["--schedule", "usual"]).contains("threads=0"));
    assert_eq!(run(&["--schedule", "random"], &["true"]).status.code(), Some(125));
}
