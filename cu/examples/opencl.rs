// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a wave costs in kernels of `vkfd bench`, without a GPU and on one thread. The stencil's
//! waves have some fifty instructions; the tiled product's waves meet at barriers; those that copy
//! go from page to page. For work on launches, barriers and accesses, and for perf.
//!
//! `cargo run --release -p vkfd-cu --example opencl [stencil|tiled_product|dgemv|copy] [TIMES]`
#![allow(clippy::cast_possible_truncation, reason = "figures")]

use object::{Object, ObjectSegment, ObjectSymbol};
use std::sync::Arc;
use std::time::Instant;
use vkfd_cu::fast::Engine;
use vkfd_cu::launch::{Descriptor, Dispatch, Launch, Next, Sizes, Turn, Units, Workgroup, DESCRIPTOR_BYTES};
use vkfd_cu::{Apertures, Flat};
use vkfd_isa::Target;

const NINE: &[u8] = include_bytes!("../../bench/src/opencl/nine.co");
const LAUNCHES: &[u8] = include_bytes!("../../bench/src/compute/kernels/launch.co");
const BASE: u64 = 0x10_0000_0000;
const ARGUMENTS: u64 = BASE + 0x20_0000;
const INPUT: u64 = BASE + 0x40_0000;

struct Kernel {
    name: &'static str,
    file: &'static [u8],
    grid: [u32; 3],
    group: [u32; 3],
    output: u64,
    arguments: [u64; 4],
}

/// Rounds of 1 MiB.
const ROUNDS: u64 = 64;
const SMALL: u64 = INPUT + (8 << 20);
const LARGE: u64 = INPUT + (ROUNDS << 20);
const KERNELS: &[Kernel] = &[
    Kernel {
        name: "stencil",
        file: NINE,
        grid: [1024, 1024, 1],
        group: [64, 4, 1],
        output: SMALL,
        arguments: [INPUT, SMALL, 1024 | 1024 << 32, 0],
    },
    Kernel {
        name: "tiled_product",
        file: NINE,
        grid: [256, 256, 1],
        group: [16, 16, 1],
        output: SMALL,
        arguments: [INPUT, SMALL, 256 | 256 << 32, 0],
    },
    Kernel {
        name: "dgemv",
        file: NINE,
        grid: [1024, 1, 1],
        group: [256, 1, 1],
        output: LARGE,
        arguments: [INPUT, LARGE, 1024 | 1024 << 32, 0],
    },
    Kernel {
        name: "copy",
        file: LAUNCHES,
        grid: [65_536, 1, 1],
        group: [256, 1, 1],
        output: LARGE,
        arguments: [LARGE, INPUT, 65_536 * ROUNDS, 65_536],
    },
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let wanted = arguments.next().unwrap_or_else(|| "stencil".into());
    let times: u32 = arguments.next().and_then(|times| times.parse().ok()).unwrap_or(20);
    let Some(kernel) = KERNELS.iter().find(|kernel| kernel.name == wanted) else {
        panic!("the kernels are {:?}", KERNELS.iter().map(|kernel| kernel.name).collect::<Vec<_>>());
    };
    let file = object::File::parse(kernel.file).expect("an object");
    let mut world = Flat::new(BASE, ((LARGE - BASE + (ROUNDS << 20)) / 4096) as usize);
    world.openings = Some(0);
    for segment in file.segments() {
        world.write(BASE + segment.address(), segment.data().expect("a segment"));
    }
    let symbol =
        file.dynamic_symbols().find(|symbol| symbol.name() == Ok(&format!("{wanted}.kd"))).expect("the kernel");
    let at = BASE + symbol.address();
    let bytes: [u8; DESCRIPTOR_BYTES] = world.read(at, DESCRIPTOR_BYTES).try_into().expect("a descriptor's bytes");
    let descriptor = Descriptor::parse(Target::Gfx900, at, &bytes).expect("a descriptor");
    for (place, value) in (0..).step_by(8).zip(kernel.arguments) {
        world.write(ARGUMENTS + place, &value.to_le_bytes());
    }
    let numbers: Vec<u8> = (0..2u32 << 20).flat_map(|n| ((n * 7 % 9) as f32).to_le_bytes()).collect();
    world.write(INPUT, &numbers);
    // Flags of the private segment's buffer and of the arguments' pointer.
    let mut user = if descriptor.wants(1) { vec![0; 4] } else { Vec::new() };
    user.extend([ARGUMENTS as u32, (ARGUMENTS >> 32) as u32]);
    let launch = Launch {
        program: descriptor.program.clone(),
        sizes: Sizes::new(2, kernel.grid, kernel.group).expect("sizes"),
        start: [0; 3],
        user,
        // The packet has it in a program; the descriptor's first word is the kernel's own.
        lds: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
        scratch: None,
        apertures: Apertures { shared: 1 << 16, private: 2 << 16 },
        watch: None,
    };
    let mut engine = Engine::new(Target::Gfx900);
    #[cfg(target_arch = "x86_64")]
    if let Some(how) = vkfd_cu::fast::native::Translation::detect() {
        engine.translate(how);
    }
    let mut best = f64::INFINITY;
    for _ in 0..times {
        let dispatch = Dispatch::new(launch.clone(), Units::VEGA10, &Arc::default());
        engine.invalidate();
        let begin = Instant::now();
        while let Next::Run(mut group) = dispatch.take() {
            let mut taken = dispatch.take_more(&mut group, 32);
            let mut begun = 0;
            let next = |group: &mut Workgroup| {
                let Some(taken) = taken.get_mut(begun) else { return false };
                begun += 1;
                dispatch.replace(group, taken);
                true
            };
            assert_eq!(group.run_all(next, (&mut engine, &mut world), 20_000), Turn::Done);
            dispatch.finish_all(taken.into_iter());
            dispatch.finish(group);
        }
        best = best.min(begin.elapsed().as_secs_f64());
    }
    let waves = f64::from(kernel.grid.iter().product::<u32>() / 64);
    let sum: f64 =
        world.read_words(kernel.output, 60_000).into_iter().map(|word| f64::from(f32::from_bits(word))).sum();
    println!("{:.0} ns a wave, checksum {sum}", best * 1e9 / waves);
    #[cfg(target_arch = "x86_64")]
    println!("{:?}", engine.translated());
}
