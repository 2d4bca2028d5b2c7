// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compiles a C program against the header and the static library, and runs it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the pkg-config file names for static linking: the system's libraries that Rust's standard library needs.
fn system_libraries() -> Vec<&'static str> {
    let line = include_str!("../vkfd.pc.in").lines().find_map(|line| line.strip_prefix("Libs.private:"));
    line.expect("a line Libs.private").split_whitespace().collect()
}

fn c_compiler() -> Option<String> {
    let names = std::env::var("CC").into_iter().chain(["cc".to_owned(), "gcc".to_owned(), "clang".to_owned()]);
    let works = |name: &String| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
    names.into_iter().find(works)
}

#[test]
fn a_c_program_works() {
    let Some(cc) = c_compiler() else {
        println!("SKIPPED: no C compiler (CC, cc, gcc, clang)");
        return;
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    // Cargo builds the library into the directory of the test, and copies it out only for `cargo build`.
    let test = std::env::current_exe().expect("the test's path");
    let library = test.with_file_name("libvkfd.a");
    assert!(library.is_file(), "{} is missing", library.display());
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("smoke");
    let mut compile = Command::new(cc);
    compile
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(here.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(here.join("tests/smoke.c"))
        .arg(&library)
        .args(system_libraries());
    let compiled = compile.output().expect("the compiler runs");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    let (argument, expected): (&[&str], _) =
        if cfg!(feature = "embedded") { (&[], "all ok\n") } else { (&["errors-only"], "errors ok\n") };
    let ran = Command::new(&program).args(argument).output().expect("the program runs");
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{:?}: {stderr}", ran.status);
    assert_eq!(String::from_utf8_lossy(&ran.stdout), expected, "{stderr}");
}
