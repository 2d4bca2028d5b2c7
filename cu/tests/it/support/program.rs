// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Runs a kernel of a code object: loads it, and starts its work-groups one after the other, on
//! either engine.

use super::APERTURES;
use object::{Object, ObjectSegment, ObjectSymbol};
use vkfd_cu::launch::{Descriptor, Engine, Launch, Scratch, Sizes, Turn, DESCRIPTOR_BYTES};
use vkfd_cu::{Flat, Place};
use vkfd_isa::Target;

const BASE: u64 = 0x10_0000_0000;
const CODE: u64 = BASE;
/// Each part has 4 MiB at most.
const INPUT: u64 = BASE + 0x40_0000;
const OUTPUT: u64 = BASE + 0x80_0000;
const ARGUMENTS: u64 = BASE + 0xc0_0000;
const SCRATCH: u64 = BASE + 0x100_0000;
/// A wave's: without optimization a work-item of some compiled programs takes 17 KiB.
const SCRATCH_BYTES: u32 = 0x20_0000;
const WAVES: u32 = 4;
const PAGES: usize = 0x1800;
/// Work-items of a group.
pub const GROUP: u32 = 64;

/// A code object in memory.
pub struct Loaded {
    target: Target,
    world: Flat,
    kernels: Vec<(String, u64)>,
}

impl Loaded {
    pub fn new(target: Target, code: &[u8]) -> Loaded {
        let file = object::File::parse(code).expect("an object");
        let mut world = Flat::new(BASE, PAGES);
        for segment in file.segments() {
            assert!(segment.address() + segment.size() < INPUT - CODE, "more code than there is room for");
            world.write(CODE + segment.address(), segment.data().expect("a segment"));
        }
        let kernel = |symbol: &object::Symbol<'_, '_>| {
            Some((symbol.name().ok()?.strip_suffix(".kd")?.to_string(), CODE + symbol.address()))
        };
        let kernels = file.symbols().filter_map(|symbol| kernel(&symbol)).collect();
        Loaded { target, world, kernels }
    }

    /// Runs `name` on `items` work-items with two arguments, where the input is and where the
    /// output goes.
    pub fn run<E: Engine>(&mut self, engine: &mut E, name: &str, input: &[u8], items: u32, output: usize) -> Vec<u8> {
        let target = self.target;
        let (_, at) = self.kernels.iter().find(|(kernel, _)| kernel == name).expect("a kernel of this name");
        let bytes: [u8; DESCRIPTOR_BYTES] =
            self.world.read(*at, DESCRIPTOR_BYTES).try_into().expect("as many bytes as asked for");
        let descriptor = Descriptor::parse(target, *at, &bytes).expect("a descriptor");
        self.world.write(INPUT, input);
        self.world.write(OUTPUT, &vec![0; output]);
        self.world.write(ARGUMENTS, &INPUT.to_le_bytes());
        self.world.write(ARGUMENTS + 8, &OUTPUT.to_le_bytes());
        let launch = Launch {
            program: descriptor.program.clone(),
            sizes: Sizes::new(1, [items, 1, 1], [GROUP, 1, 1]).expect("sizes"),
            start: [0; 3],
            user: user(&descriptor, target),
            lds: descriptor.program.lds,
            scratch: Some(Scratch { base: SCRATCH, wave_bytes: SCRATCH_BYTES, waves: WAVES }),
            apertures: APERTURES,
            watch: None,
        };
        for number in 0..launch.groups() {
            let mut group = launch.workgroup(number, vec![0, 1, 2, 3], Place::default());
            loop {
                match group.run(engine, &mut self.world, 1 << 20) {
                    Turn::Done => break,
                    Turn::More { .. } => {}
                    stop @ Turn::Stop { .. } => panic!("{target} {name}: {stop:x?}"),
                }
            }
        }
        self.world.read(OUTPUT, output)
    }
}

/// User SGPRs as the descriptor wants them.
pub fn user(descriptor: &Descriptor, target: Target) -> Vec<u32> {
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
        user.push(SCRATCH_BYTES / GROUP);
    }
    user
}

/// The words that bytes are.
pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}
