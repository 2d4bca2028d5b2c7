// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The examples, run. Each checks what it computes itself.
#![cfg(feature = "embedded")]

use std::path::PathBuf;
use std::process::Command;

/// Where cargo puts an example for `cargo test`. With `--test` it builds none; then it is asked to.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the test's path");
    let built = test.ancestors().nth(2).expect("deps/ is in a directory");
    let program = built.join("examples").join(name);
    if !program.is_file() {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "vkfd-client", "--example", name]);
        assert!(build.status().expect("cargo runs").success(), "{build:?}");
    }
    program
}

fn runs(name: &str, line: &str) {
    let ran = Command::new(example(name)).output().expect("the example runs");
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{name}: {:?}: {out}{err}", ran.status);
    assert!(out.contains(line), "{name}: {out}{err}");
}

#[test]
fn the_examples_of_the_library_work() {
    for (name, line) in [
        ("batch", "1000 pieces are one GPU range"),
        ("kernel", "tripled in place by a kernel"),
        ("svm", "the CPU sees what the GPU wrote"),
        ("events", "1 + 2 + ... + 262144 = 34359869440"),
        ("recover", "that is range 43"),
    ] {
        runs(name, line);
    }
}
