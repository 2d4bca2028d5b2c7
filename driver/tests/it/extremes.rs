// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Every command with every field of its argument at the ends of its type, alone and in pairs,
//! beside plausible values. Nothing panics: a panic ends a kernel that is built with overflow
//! checks. Each call ends soon, and when the process has gone nothing is left.
//!
//! Two walks: one over all fields and pairs of fields, always the same, and one by chance ([`RUNS`]
//! calls; `SEED` and `RUNS` in the environment).

#![expect(clippy::cast_possible_truncation, reason = "halves of words are what is walked")]

use std::time::{Duration, Instant};

use vkfd_driver::base::addr::{CpuVa, PAGE};
use vkfd_driver::machine::kfd::Options;
use vkfd_sim::caller::{ARGUMENT, LIST};
use vkfd_sim::svm::AT;
use vkfd_sim::{Rig, SimMm, GPU_ID};
use vkfd_uapi::command as c;
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::pod::slice_as_bytes;
use vkfd_uapi::vkfd;

/// 32-bit words of an argument that are walked.
const WORDS: usize = 16;
/// Bytes of the lists.
const LIST_BYTES: usize = 12 << 10;
const RUNS: u64 = 60_000;
/// The longest that a call may take, on a machine that does other things as well.
const PATIENCE: Duration = Duration::from_secs(60);

/// All commands, with the sizes of their arguments, and some that are none.
fn commands() -> Vec<Command> {
    let known = c::ALL.iter().chain(vkfd::ALL).chain([&vkfd_uapi::batch::KNOWN]);
    let mut all: Vec<_> = known.map(|known| known.command).collect();
    // With a list behind it.
    all.push(c::SVM.with_size(24 + 4 * 8).unwrap());
    all.extend([Command(0), Command(u32::MAX), Command(0xc008_4bff)]);
    all
}

/// A machine whose calls come from an array: no address that a field names is a pointer of the
/// test.
struct Stage {
    rig: Rig,
}

impl Stage {
    fn new() -> Self {
        // A limit of some 40 MiB: what is allocated here is really there.
        let options =
            Options { ram: (3 << 29) + (64 << 20), register_deadline: Duration::from_millis(50), ..Options::default() };
        let rig = Rig::on(SimMm::with_array(), Options { diagnosis: true, ..options }, 2, 2048);
        rig.mm.map(AT, 64, true);
        let stage = Self { rig };
        stage.fill_lists();
        stage
    }

    /// What lists consist of: page ranges, GPUs, attributes.
    fn fill_lists(&self) {
        for i in 0..LIST_BYTES as u64 / 16 {
            let at = (AT + i % 64) * PAGE;
            let values: [u64; 2] =
                if i % 3 == 0 { [u64::from(GPU_ID) << 32 | u64::from(GPU_ID); 2] } else { [at, PAGE] };
            self.rig.mm.put(LIST + i * 16, slice_as_bytes(&values));
        }
    }

    fn call(&self, command: Command, argument: &[u32]) {
        let mut given = argument.to_vec();
        if command.same_call(c::WAIT_EVENTS) {
            // The timeout: nobody wants to wait.
            given[4] = 0;
        }
        if command.same_call(c::SVM) && given[5] > 4 {
            // The list is behind it.
            given[5] %= 5;
        }
        self.rig.mm.put(ARGUMENT, slice_as_bytes(&given));
        let start = Instant::now();
        let result = self.rig.process.ioctl(command.0, CpuVa(ARGUMENT));
        let took = start.elapsed();
        assert!(took < PATIENCE, "{command:?} with {argument:x?}: {result:?} after {took:?}");
    }

    fn end(self) {
        self.rig.files.close();
        assert_eq!(self.rig.close(), Ok(()));
    }
}

/// The ends of types, and the values at which the driver's behaviour changes.
fn edges() -> Vec<u64> {
    let va_end = 1 << 47;
    let powers = [12, 21, 30, 31, 32, 39, 47, 48, 63].map(|bit| 1u64 << bit);
    let mut all = vec![0, 1, 2, 3, 4, 7, 8, 32, 33, 63, 64, 4095, 4096, 4097, LIST, LIST + 8, AT * PAGE];
    all.extend([u64::from(GPU_ID), u64::from(GPU_ID) + 1, u64::from(GPU_ID) << 32, va_end - PAGE, u64::MAX - PAGE + 1]);
    all.extend(powers.iter().flat_map(|power| [power - 1, *power, power + 1]));
    all.extend([u64::MAX, u64::MAX - 1, i64::MAX as u64, u64::from(u32::MAX), u64::from(u32::MAX) - 1]);
    all.extend([1 << 31 | 1, 1 << 31 | 2, 1 << 31 | 4, 1 << 31 | 8, 1 << 31 | 16, 1 << 28 | 1 << 31 | 4]);
    all
}

/// A value that fields often have, for those that are not walked.
fn plausible(command: Command, word: usize) -> u32 {
    let fields: [u64; 8] = match command {
        // An object at an address, on a GPU, with flags.
        c::ALLOC_MEMORY_OF_GPU => [VA, PAGE, 0, 0, u64::from(GPU_ID) | (1 << 31 | 2) << 32, 0, 0, 0],
        vkfd_uapi::batch::ALLOC_MEMORY_OF_GPU_BATCH => {
            [VA, PAGE, 0, LIST + 16, 1 | u64::from(GPU_ID) << 32, 1 << 31 | 4, 0, 0]
        }
        c::SVM => [AT * PAGE, PAGE, 0, 0, 0, 0, 0, 0],
        vkfd::SNAPSHOT => [1, u64::from(GPU_ID) << 32, LIST, 4, 0, 0, 0, 0],
        vkfd::MEASURE => [LIST + 16, 1, 0, 0, 0, 0, 0, 0],
        vkfd::MOVE => [AT * PAGE, PAGE, u64::from(GPU_ID), 0, 0, 0, 0, 0],
        c::MAP_MEMORY_TO_GPU | c::UNMAP_MEMORY_FROM_GPU => [u64::from(GPU_ID) << 32, LIST, 1, 0, 0, 0, 0, 0],
        _ => [u64::from(GPU_ID), LIST, 1, 1, 1, u64::from(GPU_ID) << 32, 0, 0],
    };
    let value = fields[word / 2];
    if word % 2 == 0 {
        value as u32
    } else {
        (value >> 32) as u32
    }
}

const VA: u64 = 0x10_0000_0000;

fn put(argument: &mut [u32], field: usize, value: u64) {
    argument[2 * field] = value as u32;
    argument[2 * field + 1] = (value >> 32) as u32;
}

/// Each field and each pair of fields of each command; halves of fields as well, of which some are
/// fields of their own.
#[test]
fn every_field_at_the_ends_of_its_type() {
    let mut stage = Stage::new();
    for command in commands() {
        let edges = edges();
        let base: Vec<u32> = (0..WORDS).map(|word| plausible(command, word)).collect();
        let fields = (command.size().min(WORDS * 4)).div_ceil(8);
        for first in 0..fields {
            for (i, edge) in edges.iter().enumerate() {
                for base in [&base, &vec![0; WORDS]] {
                    let mut argument = base.clone();
                    put(&mut argument, first, *edge);
                    stage.call(command, &argument);
                    // One half, then the other.
                    for half in 0..2 {
                        let mut argument = base.clone();
                        argument[2 * first + half] = *edge as u32;
                        stage.call(command, &argument);
                    }
                }
                // Not every edge with every other: each with a few, others for each field.
                for second in (0..fields).filter(|second| *second != first) {
                    for step in [1, 7, 19] {
                        let mut argument = base.clone();
                        put(&mut argument, first, *edge);
                        put(&mut argument, second, edges[(i * step + second + first) % edges.len()]);
                        stage.call(command, &argument);
                    }
                }
            }
        }
        // Objects that were made stay in the way of others.
        stage.end();
        stage = Stage::new();
    }
    stage.end();
}

/// A number by chance (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Calls after each other in one process: what one has made the next one finds.
#[test]
fn extremes_one_after_the_other() {
    let mut chance = Chance(setting("SEED", 0x9e37_79b9_7f4a_7c15) | 1);
    let commands = commands();
    let mut stage = Stage::new();
    for run in 0..setting("RUNS", RUNS) {
        if run % 4000 == 3999 {
            stage.end();
            stage = Stage::new();
        }
        let edges = edges();
        let mut command = commands[chance.below(commands.len() as u64) as usize];
        if chance.below(8) == 0 {
            command = command.with_size(chance.below(128) as usize).unwrap_or(command);
        }
        let mut argument: Vec<u32> = (0..WORDS).map(|word| plausible(command, word)).collect();
        for field in 0..WORDS / 2 {
            match chance.below(6) {
                0 => put(&mut argument, field, edges[chance.below(edges.len() as u64) as usize]),
                1 => argument[2 * field] = edges[chance.below(edges.len() as u64) as usize] as u32,
                2 => argument[2 * field + 1] = edges[chance.below(edges.len() as u64) as usize] as u32,
                3 => put(&mut argument, field, u64::from(GPU_ID) << 32 | chance.below(8)),
                _ => {}
            }
        }
        stage.call(command, &argument);
        if chance.below(64) == 0 {
            stage.rig.mm.renew(AT + chance.below(32), 1 + chance.below(32));
        }
    }
    stage.end();
}
