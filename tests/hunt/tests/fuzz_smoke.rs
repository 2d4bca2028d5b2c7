// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Each fuzz target over its corpus and over bytes by chance, the same every time; what
//! `cargo fuzz` does for longer.

use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;
use vkfd_hunt::cases::check;
use vkfd_hunt::fuzz::TARGETS;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn smoke(name: &str, cases: u32) {
    let (_, run) = TARGETS.iter().find(|t| t.0 == name).unwrap();
    let seeds = corpus(name);
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| run(seed));
    // Bytes by chance, and the corpus with some of its bytes changed.
    check(cases, &vec(any::<u8>(), 1..1500), |bytes| {
        run(bytes);
        Ok(())
    });
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 1..12);
    check(cases, &(any::<prop::sample::Index>(), changes), |(seed, changes)| {
        let mut bytes = seed.get(&seeds).clone();
        for (at, byte) in changes.iter().filter(|_| !seed.get(&seeds).is_empty()) {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        run(&bytes);
        Ok(())
    });
}

#[test]
fn ioctl_decode() {
    smoke("ioctl_decode", 1000);
}

#[test]
fn call_sequence() {
    smoke("call_sequence", 1000);
}

#[test]
fn sdma_packets() {
    smoke("sdma_packets", 1000);
}

#[test]
fn pm4_packets() {
    smoke("pm4_packets", 1000);
}

#[test]
fn aql_packets() {
    smoke("aql_packets", 1000);
}

#[test]
fn asic_accesses() {
    smoke("asic_accesses", 300);
}

#[test]
fn page_walk() {
    smoke("page_walk", 4000);
}

#[test]
fn machine_code() {
    smoke("machine_code", 2000);
}

#[test]
fn kernel_descriptors() {
    smoke("kernel_descriptors", 2000);
}

#[test]
fn kernel_arguments() {
    smoke("kernel_arguments", 300);
}
