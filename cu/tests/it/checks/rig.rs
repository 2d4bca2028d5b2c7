// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A work-group of 128 work-items on the engine with checks.

use super::WRITTEN;
use crate::support::program::{user, words};
use crate::support::APERTURES;
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol};
use std::sync::Arc;
use vkfd_cu::check::{watch, Block, Checks, Engine, Kernel, Ledger, Watch};
use vkfd_cu::launch::{Descriptor, Launch, Schedule, Scratch, Sizes, Turn, Workgroup, DESCRIPTOR_BYTES};
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
    /// In another than the usual one, loads are late.
    pub schedule: Schedule,
    /// Others want the gate again and again.
    pub wanted: bool,
}

pub struct Rig {
    target: Target,
    code: Vec<u8>,
}

impl Rig {
    /// With the planted bugs.
    pub fn new(target: Target) -> Rig {
        Rig::of("planted", target)
    }

    /// With the kernels of a source.
    pub fn of(source: &str, target: Target) -> Rig {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/checks");
        let code = std::fs::read(path.join(format!("{source}-{target}.co"))).expect("a code object");
        Rig { target, code }
    }

    /// Whether the target's object has a kernel.
    pub fn has(&self, kernel: &str) -> bool {
        let file = object::File::parse(&*self.code).expect("an object");
        let has = file.dynamic_symbols().any(|symbol| symbol.name() == Ok(kernel));
        has
    }

    /// Runs a kernel: what is found.
    pub fn run(&self, kernel: &str, given: Given, checks: Checks) -> Vec<Counted> {
        self.run_with(kernel, given, checks, |_| {}).0
    }

    /// Runs a kernel whose output has been freed.
    pub fn run_freed(&self, kernel: &str) -> Vec<Counted> {
        let checks = Checks { memory: true, ..Checks::default() };
        let given = WRITTEN;
        self.run_with(kernel, given, checks, |ledger| ledger.free(OUTPUT, Some("another test".into()))).0
    }

    /// Runs a kernel without a check, on an input of words by their numbers: the words that it
    /// leaves there, behind the ones that it reads. `spoil` changes the kernel's code first.
    pub fn result(&self, kernel: &str, schedule: Schedule, spoil: impl FnOnce(&mut [u32])) -> Vec<u32> {
        let given = Given { schedule, ..WRITTEN };
        let changed = self.changed(kernel, spoil);
        changed.run_with(kernel, given, Checks::default(), |_| {}).1
    }

    /// The same code objects with another code of a kernel.
    fn changed(&self, kernel: &str, spoil: impl FnOnce(&mut [u32])) -> Rig {
        let file = object::File::parse(&*self.code).expect("an object");
        let function = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(kernel)).expect("its code");
        let section = file.section_by_index(function.section_index().expect("a section")).expect("its section");
        let (begin, _) = section.file_range().expect("bytes in the file");
        let at = usize::try_from(begin + function.address() - section.address()).expect("small");
        let range = at..at + usize::try_from(function.size()).expect("small");
        let mut code = self.code.clone();
        let mut words = words(&code[range.clone()]);
        spoil(&mut words);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        code[range].copy_from_slice(&bytes);
        Rig { target: self.target, code }
    }

    fn run_with(
        &self,
        kernel: &str,
        given: Given,
        checks: Checks,
        last: impl FnOnce(&Ledger),
    ) -> (Vec<Counted>, Vec<u32>) {
        let (mut world, ledger) = self.loaded(given, checks);
        last(&ledger);
        let launch = self.launch(kernel, given, checks, (&mut world, &ledger));
        let mut engine = Engine::new(self.target, &ledger);
        // Side by side, as groups that wait for each other need it.
        let budget = if given.groups > 1 { 64 } else { 1 << 20 };
        run_all(groups(&launch, given.groups, 0), (&mut engine, &mut world), budget);
        (ledger.findings(), world.read_words(INPUT + 512, 128))
    }

    /// Runs two kernels, the second when the first has ended, or both at the same time.
    pub fn run_both(&self, kernels: [&str; 2], at_once: bool, checks: Checks) -> Vec<Counted> {
        let given = WRITTEN;
        let (mut world, ledger) = self.loaded(given, checks);
        let mut engine = Engine::new(self.target, &ledger);
        let first = self.launch(kernels[0], given, checks, (&mut world, &ledger));
        if !at_once {
            run_all(groups(&first, 1, 0), (&mut engine, &mut world), 8);
            first.watch.iter().for_each(|watch| watch.end());
        }
        let second = self.launch(kernels[1], given, checks, (&mut world, &ledger));
        let mut all = groups(&second, 1, 4);
        if at_once {
            all.extend(groups(&first, 1, 0));
        }
        run_all(all, (&mut engine, &mut world), 8);
        ledger.findings()
    }

    /// The code object in memory, with allocations.
    fn loaded(&self, given: Given, checks: Checks) -> (Flat, Arc<Ledger>) {
        let file = object::File::parse(&*self.code).expect("an object");
        let mut world = Flat::new(BASE, PAGES);
        world.is_wanted = given.wanted;
        for segment in file.segments() {
            world.write(BASE + segment.address(), segment.data().expect("a segment"));
        }
        if checks == Checks::default() {
            world.write_words(INPUT, &(0..128).map(|n| n * n + 5).collect::<Vec<_>>());
        } else {
            world.write(INPUT, &given.first.to_le_bytes());
        }
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
        (world, ledger)
    }

    /// A launch of a kernel, which is read for hazards.
    fn launch(&self, kernel: &str, given: Given, checks: Checks, (world, ledger): (&mut Flat, &Arc<Ledger>)) -> Launch {
        let target = self.target;
        let file = object::File::parse(&*self.code).expect("an object");
        let name = format!("{kernel}.kd");
        let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(&*name)).expect("a kernel of this name");
        let at = BASE + symbol.address();
        let bytes: [u8; DESCRIPTOR_BYTES] = world.read(at, DESCRIPTOR_BYTES).try_into().expect("as many as asked for");
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (lds, private) = (word(0), word(4));
        let descriptor = Descriptor::parse(target, at, &bytes).expect("a descriptor");
        if checks.hazards {
            let function = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(kernel)).expect("its code");
            let code = world.read(BASE + function.address(), usize::try_from(function.size()).expect("small"));
            let object::FileFlags::Elf { e_flags: flags, abi_version: version, .. } = file.flags() else { panic!() };
            let (name, entry) = (kernel, BASE + function.address());
            ledger.lint(Kernel { target, name, image: BASE, entry, descriptor: &bytes, flags, version, code });
        }
        let (image, schedule) = (Some(BASE), given.schedule);
        let watched = Watch { checks, ledger: ledger.clone(), kernel: kernel.into(), image, private, schedule };
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
        launch
    }
}

/// The work-groups of a launch, with scratch from a slot on.
fn groups(launch: &Launch, count: u32, slot: u32) -> Vec<Workgroup> {
    let slots = |group: u32| (slot + 4 * group..slot + 4 * group + 4).collect();
    (0..count).map(|group| launch.workgroup(group.into(), slots(group), Place::default())).collect()
}

/// Runs work-groups in turns until all have ended.
fn run_all(mut groups: Vec<Workgroup>, (engine, world): (&mut Engine, &mut Flat), budget: u32) {
    while !groups.is_empty() {
        groups.retain_mut(|group| matches!(group.run(engine, world, budget), Turn::More { .. }));
        engine.flush();
    }
}
