// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random C programs, compiled by clang for each target and for the host: the results are the same, bit for bit.
//!
//! Needs clang-19 and lld-19, thus not part of the ordinary run: `cargo test -p vkfd-cu --test compiled -- --ignored`.
//! `VKFD_PROGRAMS` says how many programs, `VKFD_SEED` the first one's seed.

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

use object::{Object, ObjectSegment, ObjectSymbol};
use source::{Source, WORDS};
use std::path::Path;
use std::process::Command;
use support::{Numbers, APERTURES};
use vkfd_cu::launch::{Descriptor, Launch, Scratch, Sizes, Turn, DESCRIPTOR_BYTES};
use vkfd_cu::reference::Reference;
use vkfd_cu::Flat;
use vkfd_isa::Target;

const BASE: u64 = 0x10_0000_0000;
const CODE: u64 = BASE;
const INPUT: u64 = BASE + 0x10_0000;
const OUTPUT: u64 = INPUT + 0x1_0000;
const ARGUMENTS: u64 = OUTPUT + 0x1_0000;
const SCRATCH: u64 = BASE + 0x20_0000;
const SCRATCH_BYTES: u32 = 0x2_0000;
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

/// User SGPRs as the descriptor wants them.
fn user(descriptor: &Descriptor, target: Target) -> Vec<u32> {
    let pair = |value: u64| [value as u32, (value >> 32) as u32];
    let mut user = Vec::new();
    if descriptor.wants(1) {
        let [low, high] = pair(SCRATCH);
        // Swizzled, elements of four bytes, the lane added; records for everything.
        let lanes = if target.is_rdna() { 2 << 28 | 1 << 24 | 2 << 21 } else { 3 << 21 };
        user.extend([low, high | 1 << 31, u32::MAX, 1 << 19 | 1 << 23 | lanes]);
    }
    for (bit, value) in [(2, 0), (4, 0), (8, ARGUMENTS), (16, 0), (32, SCRATCH)] {
        if descriptor.wants(bit) {
            user.extend(pair(value));
        }
    }
    if descriptor.wants(64) {
        user.push(SCRATCH_BYTES / 64);
    }
    user
}

fn run(target: Target, code: &[u8], input: &[u32]) -> Vec<u32> {
    let file = object::File::parse(code).expect("an object");
    let mut world = Flat::new(BASE, 0x400);
    for segment in file.segments() {
        world.write(CODE + segment.address(), segment.data().expect("a segment"));
    }
    let at = file.symbols().find(|symbol| symbol.name() == Ok("k.kd")).expect("a kernel").address();
    let bytes = world_bytes(&world, CODE + at);
    let descriptor = Descriptor::parse(target, CODE + at, &bytes).expect("a descriptor");
    world.write_words(INPUT, input);
    world.write(ARGUMENTS, &INPUT.to_le_bytes());
    world.write(ARGUMENTS + 8, &OUTPUT.to_le_bytes());
    let launch = Launch {
        program: descriptor.program.clone(),
        sizes: Sizes::new(1, [ITEMS as u32, 1, 1], [ITEMS as u32, 1, 1]).expect("sizes"),
        start: [0; 3],
        user: user(&descriptor, target),
        lds: descriptor.program.lds,
        scratch: Some(Scratch { base: SCRATCH, wave_bytes: SCRATCH_BYTES, waves: 4 }),
        apertures: APERTURES,
    };
    let mut group = launch.workgroup(0, vec![0, 1, 2, 3], 0);
    loop {
        match group.run(&mut Reference, &mut world, 1 << 20) {
            Turn::Done => return world.read_words(OUTPUT, ITEMS * WORDS),
            Turn::More { .. } => {}
            stop @ Turn::Stop { .. } => panic!("{target}: {stop:x?}"),
        }
    }
}

fn world_bytes(world: &Flat, at: u64) -> [u8; DESCRIPTOR_BYTES] {
    world.read(at, DESCRIPTOR_BYTES).try_into().expect("as many bytes as asked for")
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
        std::fs::write(&from, bytes).expect("an input");
        let host = directory.join("host");
        compile(&file, None, "-O1", &host);
        assert!(Command::new(&host).args([&from, &to]).status().expect("the host's program").success());
        let expected = std::fs::read(&to).expect("an output");
        let expected: Vec<u32> =
            expected.chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect();
        for target in Target::ALL {
            for level in ["-O0", "-O2"] {
                let object = directory.join("object");
                compile(&file, Some(target), level, &object);
                let got = run(target, &std::fs::read(&object).expect("an object"), &input);
                compared += 1;
                if let Some(at) = expected.iter().zip(&got).position(|(a, b)| a != b) {
                    differences.push(format!(
                        "seed {seed} {target} {level}: item {} result {}: {:#x}, the host has {:#x}",
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
    println!("{count} programs, {compared} comparisons, {} differences", differences.len());
    if differences.is_empty() {
        let _ = std::fs::remove_dir_all(&directory);
    }
    assert!(differences.is_empty(), "{differences:#?}\nin {}", directory.display());
}
