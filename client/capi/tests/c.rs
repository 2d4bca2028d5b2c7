// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compiles C programs against the header and the static library, and runs them: a test of the
//! interface, and the examples.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What the pkg-config file names for static linking: the system's libraries that Rust's standard
/// library needs.
fn system_libraries() -> Vec<&'static str> {
    let line = include_str!("../vkfd.pc.in").lines().find_map(|line| line.strip_prefix("Libs.private:"));
    line.expect("a line Libs.private").split_whitespace().collect()
}

fn c_compiler() -> Option<String> {
    let names = std::env::var("CC").into_iter().chain(["cc".to_owned(), "gcc".to_owned(), "clang".to_owned()]);
    let works = |name: &String| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
    let found = names.into_iter().find(works);
    if found.is_none() {
        println!("SKIPPED: no C compiler (CC, cc, gcc, clang)");
    }
    found
}

/// Compiles one of this package's programs and runs it.
fn run(cc: &str, source: &str, arguments: &[&str]) -> Output {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Cargo builds the library into the directory of the test, and copies it out only for
    // `cargo build`.
    let test = std::env::current_exe().expect("the test's path");
    let library = test.with_file_name("libvkfd.a");
    assert!(library.is_file(), "{} is missing", library.display());
    let name = Path::new(source).file_stem().expect("a name");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut compile = Command::new(cc);
    compile
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(here.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(here.join(source))
        .arg(&library)
        .args(system_libraries());
    let compiled = compile.output().expect("the compiler runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    Command::new(&program).args(arguments).output().expect("the program runs")
}

#[test]
fn a_c_program_works() {
    let Some(cc) = c_compiler() else { return };
    let (argument, expected): (&[&str], _) =
        if cfg!(feature = "embedded") { (&[], "all ok\n") } else { (&["errors-only"], "errors ok\n") };
    let ran = run(&cc, "tests/smoke.c", argument);
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{:?}: {stderr}", ran.status);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), expected, "{stderr}");
}

#[cfg(feature = "embedded")]
#[test]
fn the_examples_in_c_work() {
    let Some(cc) = c_compiler() else { return };
    let code = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/triple.gfx900.co");
    for (name, arguments, line) in [
        ("kernel", &[code][..], "1000 scattered pages, tripled in place by a kernel\n"),
        ("svm", &[], "the CPU sees what the GPU wrote at the same address\n"),
        ("events", &[code], "2 GPUs have tripled 262144 words each\n"),
        ("recover", &[], "that is range 43\nand all bytes are right now\n"),
    ] {
        let ran = run(&cc, &format!("examples/{name}.c"), arguments);
        let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success() && out.ends_with(line), "{name}: {:?}: {out}{err}", ran.status);
    }
    // The control: a kernel that is not there is an error that names those that are.
    let wrong = run(&cc, "examples/kernel.c", &["/dev/null"]);
    assert!(!wrong.status.success());
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("vkfd_code_load: code object"), "{wrong:?}");
}
