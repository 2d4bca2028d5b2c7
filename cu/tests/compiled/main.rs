// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random C programs, compiled by clang for each target and for the host: the results are the same,
//! bit for bit, on both engines.
//!
//! Needs clang-19 and lld-19, thus not part of the ordinary run:
//! `cargo test -p vkfd-cu --test compiled -- --ignored`. `VKFD_PROGRAMS` says how many programs,
//! `VKFD_SEED` the first one's seed.

#![allow(
    missing_docs,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::indexing_slicing,
    reason = "a test"
)]

mod source;
#[path = "../support/mod.rs"]
mod support;

use source::{Source, WORDS};
use std::path::Path;
use std::process::Command;
use support::program::{words, Loaded};
use support::Numbers;
use vkfd_cu::fast::Engine;
use vkfd_cu::reference::Reference;
use vkfd_isa::Target;

const ITEMS: usize = 64;

fn compile(file: &Path, target: Option<Target>, level: &str, out: &Path) {
    let mut clang = Command::new("clang-19");
    clang
        .args([level, "-w", "-ffp-contract=off", "-Xclang", "-ffloat16-excess-precision=none", "-o"])
        .arg(out)
        .arg(file);
    if let Some(target) = target {
        clang.args(["-target", "amdgcn-amd-amdhsa", "-nogpulib", "-fuse-ld=lld-19", "-mcode-object-version=4"]);
        clang.arg(format!("-mcpu={target}"));
    }
    if target.is_none() {
        clang.args(["-mfma", "-msse4.1", "-lm"]);
    }
    let output = clang.output().expect("start clang-19");
    assert!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
#[ignore = "needs clang-19 and lld-19"]
fn compiled_programs_give_the_same_on_every_target_and_the_host() {
    let directory = std::env::temp_dir().join(format!("vkfd-compiled-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let (first, count) = (number("VKFD_SEED", 1), number("VKFD_PROGRAMS", 4));
    let mut differences = Vec::new();
    let mut compared = 0;
    for seed in first..first + count {
        let file = directory.join(format!("{seed}.c"));
        std::fs::write(&file, Source::program(seed)).expect("a source");
        let mut numbers = Numbers(seed);
        let input: Vec<u32> = (0..ITEMS * WORDS).map(|_| numbers.word() >> (numbers.next() % 32)).collect();
        let bytes: Vec<u8> = input.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (from, to) = (directory.join("in"), directory.join("out"));
        std::fs::write(&from, &bytes).expect("an input");
        let host = directory.join("host");
        compile(&file, None, "-O1", &host);
        assert!(Command::new(&host).args([&from, &to]).status().expect("the host's program").success());
        let expected = std::fs::read(&to).expect("an output");
        let expected = words(&expected);
        for target in Target::ALL {
            for level in ["-O0", "-O2"] {
                let object = directory.join("object");
                compile(&file, Some(target), level, &object);
                let mut loaded = Loaded::new(target, &std::fs::read(&object).expect("an object"));
                let mut run = |fast: bool| {
                    let (items, size) = (ITEMS as u32, 4 * ITEMS * WORDS);
                    match fast {
                        false => loaded.run(&mut Reference, "k", &bytes, items, size),
                        true => loaded.run(&mut Engine::new(target), "k", &bytes, items, size),
                    }
                };
                for (engine, got) in [("reference", words(&run(false))), ("fast", words(&run(true)))] {
                    compared += 1;
                    if let Some(at) = expected.iter().zip(&got).position(|(a, b)| a != b) {
                        differences.push(format!(
                            "seed {seed} {target} {level} {engine}: item {} result {}: {:#x}, the host has {:#x}",
                            at / WORDS,
                            at % WORDS,
                            got[at],
                            expected[at]
                        ));
                        println!("{}", differences.last().map_or("", |text| text));
                    }
                }
            }
        }
    }
    println!("{count} programs, {compared} comparisons, {} differences", differences.len());
    if differences.is_empty() {
        let _ = std::fs::remove_dir_all(&directory);
    }
    assert!(differences.is_empty(), "{differences:#?}\nin {}", directory.display());
}
