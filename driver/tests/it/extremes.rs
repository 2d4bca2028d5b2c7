// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Every command with every field of its argument at the ends of its type, alone and in pairs,
//! beside plausible values. Nothing panics: a panic ends a kernel that is built with overflow
//! checks. Each call ends soon, and when the process has gone nothing is left.
//!
//! Two walks: one over all fields and pairs of fields, always the same, and one by chance ([`RUNS`]
//! calls; `SEED` and `RUNS` in the environment).

#![expect(clippy::cast_possible_truncation, reason = "halves of words are what is walked")]

use crate::sim;

use std::time::{Duration, Instant};

use sim::svm::AT;
use sim::{Rig, GPU_ID};
use vkfd_driver::base::addr::{CpuVa, PAGE};
use vkfd_driver::machine::kfd::Options;
use vkfd_uapi::command as c;
use vkfd_uapi::ioctl::Command;
use vkfd_uapi::vkfd;

/// 32-bit words of an argument that are walked.
const WORDS: usize = 16;
/// Words of the caller's memory: the argument, then lists.
const ARENA: usize = 4096;
/// Byte offset of the lists.
const LISTS: usize = 4096;
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

/// A machine, and memory of its caller.
struct Stage {
    rig: Rig,
    arena: Vec<u32>,
}

impl Stage {
    fn new() -> Self {
        // A limit of some 40 MiB: what is allocated here is really there.
        let options =
            Options { ram: (3 << 29) + (64 << 20), register_deadline: Duration::from_millis(50), ..Options::default() };
        let rig = Rig::with_gpus(options, 2, 2048);
        rig.mm.map(AT, 64, true);
        let arena = vec![0u32; ARENA];
        let start = arena.as_ptr() as u64;
        *rig.mm.caller.lock().unwrap() = Some(start..start + (ARENA * 4) as u64);
        Self { rig, arena }
    }

    fn lists(&self) -> u64 {
        self.arena.as_ptr() as u64 + LISTS as u64
    }

    /// What lists consist of: page ranges, GPUs, attributes.
    fn fill_lists(&mut self) {
        for (i, pair) in self.arena[LISTS / 4..].chunks_exact_mut(4).enumerate() {
            let at = (AT + i as u64 % 64) * PAGE;
            let values: [u64; 2] =
                if i % 3 == 0 { [u64::from(GPU_ID) << 32 | u64::from(GPU_ID); 2] } else { [at, PAGE] };
            for (to, word) in pair.iter_mut().zip(values.iter().flat_map(|v| [*v as u32, (*v >> 32) as u32])) {
                *to = word;
            }
        }
    }

    fn call(&mut self, command: Command, argument: &[u32]) {
        self.arena[..argument.len()].copy_from_slice(argument);
        if command.same_call(c::WAIT_EVENTS) {
            // The timeout: nobody wants to wait.
            self.arena[4] = 0;
        }
        if command.same_call(c::SVM) && self.arena[5] > 4 {
            // The list is behind it.
            self.arena[5] %= 5;
        }
        let at = CpuVa(self.arena.as_ptr() as u64);
        let start = Instant::now();
        let result = self.rig.process.ioctl(command.0, at);
        let took = start.elapsed();
        assert!(took < PATIENCE, "{command:?} with {argument:x?}: {result:?} after {took:?}");
    }

    fn end(self) {
        self.rig.process.release();
        self.rig.files.close();
        // What was moved to a GPU is there as long as its owner has it.
        self.rig.mm.unmap(AT, 64);
        let devices = self.rig.process.kfd().devices();
        assert_eq!(self.rig.process.kfd().limit().used(), 0);
        assert_eq!(self.rig.mm.watch_count(), 0);
        for device in devices {
            assert_eq!(device.vram().used(), 0);
        }
    }
}

/// The ends of types, and the values at which the driver's behaviour changes.
fn edges(lists: u64) -> Vec<u64> {
    let va_end = 1 << 47;
    let powers = [12, 21, 30, 31, 32, 39, 47, 48, 63].map(|bit| 1u64 << bit);
    let mut all = vec![0, 1, 2, 3, 4, 7, 8, 32, 33, 63, 64, 4095, 4096, 4097, lists, lists + 8, AT * PAGE];
    all.extend([u64::from(GPU_ID), u64::from(GPU_ID) + 1, u64::from(GPU_ID) << 32, va_end - PAGE, u64::MAX - PAGE + 1]);
    all.extend(powers.iter().flat_map(|power| [power - 1, *power, power + 1]));
    all.extend([u64::MAX, u64::MAX - 1, i64::MAX as u64, u64::from(u32::MAX), u64::from(u32::MAX) - 1]);
    all.extend([1 << 31 | 1, 1 << 31 | 2, 1 << 31 | 4, 1 << 31 | 8, 1 << 31 | 16, 1 << 28 | 1 << 31 | 4]);
    all
}

/// A value that fields often have, for those that are not walked.
fn plausible(command: Command, word: usize, lists: u64) -> u32 {
    let fields: [u64; 8] = match command {
        // An object at an address, on a GPU, with flags.
        c::ALLOC_MEMORY_OF_GPU => [VA, PAGE, 0, 0, u64::from(GPU_ID) | (1 << 31 | 2) << 32, 0, 0, 0],
        vkfd_uapi::batch::ALLOC_MEMORY_OF_GPU_BATCH => {
            [VA, PAGE, 0, lists + 16, 1 | u64::from(GPU_ID) << 32, 1 << 31 | 4, 0, 0]
        }
        c::SVM => [AT * PAGE, PAGE, 0, 0, 0, 0, 0, 0],
        vkfd::SNAPSHOT => [1, u64::from(GPU_ID) << 32, lists, 4, 0, 0, 0, 0],
        vkfd::MEASURE => [lists + 16, 1, 0, 0, 0, 0, 0, 0],
        vkfd::MOVE => [AT * PAGE, PAGE, u64::from(GPU_ID), 0, 0, 0, 0, 0],
        c::MAP_MEMORY_TO_GPU | c::UNMAP_MEMORY_FROM_GPU => [u64::from(GPU_ID) << 32, lists, 1, 0, 0, 0, 0, 0],
        _ => [u64::from(GPU_ID), lists, 1, 1, 1, u64::from(GPU_ID) << 32, 0, 0],
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
    stage.fill_lists();
    for command in commands() {
        let lists = stage.lists();
        let edges = edges(lists);
        let base: Vec<u32> = (0..WORDS).map(|word| plausible(command, word, lists)).collect();
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
        stage.fill_lists();
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
    stage.fill_lists();
    for run in 0..setting("RUNS", RUNS) {
        if run % 4000 == 3999 {
            stage.end();
            stage = Stage::new();
            stage.fill_lists();
        }
        let lists = stage.lists();
        let edges = edges(lists);
        let mut command = commands[chance.below(commands.len() as u64) as usize];
        if chance.below(8) == 0 {
            command = command.with_size(chance.below(128) as usize).unwrap_or(command);
        }
        let mut argument: Vec<u32> = (0..WORDS).map(|word| plausible(command, word, lists)).collect();
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
