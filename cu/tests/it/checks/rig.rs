// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A work-group of 128 work-items on the engine with checks.

use crate::support::program::user;
use crate::support::APERTURES;
use object::{Object, ObjectSegment, ObjectSymbol};
use std::sync::Arc;
use vkfd_cu::check::{watch, Block, Checks, Engine, Kernel, Ledger, Watch};
use vkfd_cu::launch::{Descriptor, Launch, Scratch, Sizes, Turn, DESCRIPTOR_BYTES};
use vkfd_cu::{Flat, Place};
use vkfd_findings::Counted;
use vkfd_isa::Target;

// As `support::program` has them, which fills the registers.
const BASE: u64 = 0x10_0000_0000;
const INPUT: u64 = BASE + 0x40_0000;
const OUTPUT: u64 = BASE + 0x80_0000;
const ARGUMENTS: u64 = BASE + 0xc0_0000;
const SCRATCH: u64 = BASE + 0x100_0000;
const SCRATCH_BYTES: u32 = 0x20_0000;
const PAGES: usize = 0x2800;
/// Work-items.
const ITEMS: u32 = 128;
/// Bytes of the output: too few for all.
const ROOM: u64 = 400;

/// What is in the input.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    /// Its first word.
    pub first: u32,
    /// Nothing has written it.
    pub unwritten: bool,
    /// Work-groups.
    pub groups: u32,
}

pub struct Rig {
    target: Target,
    code: Vec<u8>,
}

impl Rig {
    pub fn new(target: Target) -> Rig {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/checks");
        let code = std::fs::read(path.join(format!("planted-{target}.co"))).expect("a code object");
        Rig { target, code }
    }

    /// Runs a kernel: what is found.
    pub fn run(&self, kernel: &str, given: Given, checks: Checks) -> Vec<Counted> {
        self.run_with(kernel, given, checks, |_| {})
    }

    /// Runs a kernel whose output has been freed.
    pub fn run_freed(&self, kernel: &str) -> Vec<Counted> {
        let checks = Checks { memory: true, ..Checks::default() };
        self.run_with(kernel, Given { first: 0, unwritten: false, groups: 1 }, checks, |ledger| {
            ledger.free(OUTPUT, Some("another test".into()));
        })
    }

    fn run_with(&self, kernel: &str, given: Given, checks: Checks, last: impl FnOnce(&Ledger)) -> Vec<Counted> {
        let target = self.target;
        let file = object::File::parse(&*self.code).expect("an object");
        let mut world = Flat::new(BASE, PAGES);
        for segment in file.segments() {
            world.write(BASE + segment.address(), segment.data().expect("a segment"));
        }
        let name = format!("{kernel}.kd");
        let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(&*name)).expect("a kernel of this name");
        let at = BASE + symbol.address();
        let bytes: [u8; DESCRIPTOR_BYTES] = world.read(at, DESCRIPTOR_BYTES).try_into().expect("as many as asked for");
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (lds, private) = (word(0), word(4));
        let descriptor = Descriptor::parse(target, at, &bytes).expect("a descriptor");
        world.write(INPUT, &given.first.to_le_bytes());
        world.write(ARGUMENTS, &INPUT.to_le_bytes());
        world.write(ARGUMENTS + 8, &OUTPUT.to_le_bytes());

        let ledger = Arc::new(Ledger::new(checks.init, None));
        for va in [INPUT, OUTPUT] {
            ledger.add_block(&Block { va, bytes: 0x1000, device: true, visible: false });
        }
        ledger.allocate(INPUT, 1024, Some("a test".into()), |_| {});
        ledger.allocate(OUTPUT, ROOM, Some("a test".into()), |_| {});
        ledger.written(OUTPUT, ROOM);
        if !given.unwritten {
            ledger.written(INPUT, 1024);
        }
        last(&ledger);
        if checks.hazards {
            let function = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(kernel)).expect("its code");
            let code = world.read(BASE + function.address(), usize::try_from(function.size()).expect("small"));
            let object::FileFlags::Elf { e_flags: flags, abi_version: version, .. } = file.flags() else { panic!() };
            let (name, entry) = (kernel, BASE + function.address());
            ledger.lint(Kernel { target, name, image: BASE, entry, descriptor: &bytes, flags, version, code });
        }
        let watched = Watch { checks, ledger: ledger.clone(), kernel: kernel.into(), image: Some(BASE), private };
        let mut launch = Launch {
            program: descriptor.program.clone(),
            sizes: Sizes::new(1, [given.groups * ITEMS, 1, 1], [ITEMS, 1, 1]).expect("sizes"),
            start: [0; 3],
            user: user(&descriptor, target),
            lds,
            scratch: Some(Scratch { base: SCRATCH, wave_bytes: SCRATCH_BYTES, waves: 4 * given.groups }),
            apertures: APERTURES,
            watch: None,
        };
        launch.watch = Some(watch(&Arc::new(watched), &launch));
        let mut engine = Engine::new(&ledger);
        let slots = |group: u32| (4 * group..4 * group + 4).collect();
        let mut groups: Vec<_> =
            (0..given.groups).map(|group| launch.workgroup(group.into(), slots(group), Place::default())).collect();
        // Side by side, as groups that wait for each other need it.
        let budget = if given.groups > 1 { 64 } else { 1 << 20 };
        while !groups.is_empty() {
            groups.retain_mut(|group| matches!(group.run(&mut engine, &mut world, budget), Turn::More { .. }));
            engine.flush();
        }
        ledger.findings()
    }
}
