// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What each check costs: kernels of `vkfd bench opencl` under it, beside the same kernels on the
//! interpreter, in turns. Without a GPU, on one thread.
//!
//! `cargo run --release -p vkfd-cu --example checks [ROUNDS [KERNEL]]`; exit code 1 if a check
//! costs more than it may ([`BARS`]).
#![allow(clippy::cast_possible_truncation, reason = "figures")]

use object::{Object, ObjectSegment, ObjectSymbol};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vkfd_cu::check::{self, Block, Checks, Ledger, Watch};
use vkfd_cu::launch::{Descriptor, Dispatch, Engine, Launch, Next, Schedule, Sizes, Turn, Units, DESCRIPTOR_BYTES};
use vkfd_cu::{fast, reference, Access, Apertures, Flat, Miss, Span, Stop, World};
use vkfd_isa::Target;

const CODE: &[u8] = include_bytes!("../../bench/src/opencl/nine.co");
const BASE: u64 = 0x10_0000_0000;
const INPUT: u64 = BASE + 0x40_0000;
const OUTPUT: u64 = BASE + 0x90_0000;
const BYTES: u64 = 4 << 20;
const ARGUMENTS: u64 = BASE + 0xf0_0000;

/// A kernel: its grid and its work-groups, and its two numbers.
type Work = (&'static str, [u32; 2], [u32; 2], [u32; 2]);

/// Arithmetic in a loop, loads and LDS in a loop, and a kernel of some fifty instructions that
/// loads and stores.
const WORKS: [Work; 4] = [
    ("integer_mix", [8192, 1], [256, 1], [256, 0]),
    ("tiled_product", [128, 128], [16, 16], [128, 0]),
    ("reduction", [4096, 1], [256, 1], [16, 1 << 18]),
    ("stencil", [512, 512], [64, 4], [512, 512]),
];

/// How many times the interpreter's time a check may take.
const BARS: [(&str, f64); 5] = [("memory", 10.0), ("waits", 10.0), ("init", 30.0), ("race", 30.0), ("all", 60.0)];

/// A world whose gate is opened once, as a GPU's is for many turns.
struct Open(Flat);

impl World for Open {
    fn enter(&mut self) -> Result<(), Stop> {
        self.0.enter()
    }

    fn leave(&mut self) {
        self.0.leave();
    }

    fn wanted(&self) -> bool {
        self.0.wanted()
    }

    fn opening(&self) -> Option<u64> {
        Some(1)
    }

    fn translate(&mut self, va: u64, access: Access) -> Result<Span, Miss> {
        self.0.translate(va, access)
    }

    fn settle(&mut self, miss: &Miss) -> Result<(), Stop> {
        self.0.settle(miss)
    }

    fn interrupt(&mut self, event: u32) {
        self.0.interrupt(event);
    }

    fn clock(&self) -> u64 {
        self.0.clock()
    }

    fn cycles(&self) -> u64 {
        self.0.cycles()
    }
}

struct Bench {
    world: Open,
    file: object::File<'static>,
}

impl Bench {
    fn new() -> Bench {
        let file = object::File::parse(CODE).expect("an object");
        let mut world = Flat::new(BASE, 0x1000);
        for segment in file.segments() {
            world.write(BASE + segment.address(), segment.data().expect("a segment"));
        }
        let numbers: Vec<u8> = (0..BYTES as u32 / 4).flat_map(|n| ((n * 7 % 9) as f32).to_le_bytes()).collect();
        world.write(INPUT, &numbers);
        Bench { world: Open(world), file }
    }

    fn launch(&mut self, (name, grid, group, numbers): &Work) -> Launch {
        let name = format!("{name}.kd");
        let symbol = self.file.dynamic_symbols().find(|symbol| symbol.name() == Ok(&*name)).expect("the kernel");
        let at = BASE + symbol.address();
        let bytes: [u8; DESCRIPTOR_BYTES] = self.world.0.read(at, DESCRIPTOR_BYTES).try_into().expect("its bytes");
        let descriptor = Descriptor::parse(Target::Gfx900, at, &bytes).expect("a descriptor");
        let numbers = u64::from(numbers[0]) | u64::from(numbers[1]) << 32;
        for (place, value) in [(0, INPUT), (8, OUTPUT), (16, numbers)] {
            self.world.0.write(ARGUMENTS + place, &value.to_le_bytes());
        }
        // Flags of the private segment's buffer and of the arguments' pointer.
        let mut user = if descriptor.wants(1) { vec![0; 4] } else { Vec::new() };
        user.extend([ARGUMENTS as u32, (ARGUMENTS >> 32) as u32]);
        Launch {
            program: descriptor.program.clone(),
            sizes: Sizes::new(2, [grid[0], grid[1], 1], [group[0], group[1], 1]).expect("sizes"),
            start: [0; 3],
            user,
            lds: u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            scratch: None,
            apertures: Apertures { shared: 1 << 16, private: 2 << 16 },
            watch: None,
        }
    }

    /// Runs a launch; the time, and what it wrote.
    fn run<E: Engine>(
        &mut self,
        launch: &Launch,
        engine: &mut E,
        mut flush: impl FnMut(&mut E),
    ) -> (Duration, Vec<u32>) {
        self.world.0.write(OUTPUT, &vec![0; 1 << 16]);
        let dispatch = Dispatch::new(launch.clone(), Units::VEGA10, &Arc::default());
        let begin = Instant::now();
        while let Next::Run(mut group) = dispatch.take() {
            match group.run(engine, &mut self.world, dispatch.budget()) {
                Turn::Done => _ = dispatch.finish(group),
                Turn::More { waiting } => drop(dispatch.park(group, waiting)),
                Turn::Stop { cause, .. } => panic!("{cause:?}"),
            }
            flush(engine);
        }
        (begin.elapsed(), self.world.0.read_words(OUTPUT, 1 << 14))
    }

    /// Runs it under checks; the time and what it wrote.
    fn checked(&mut self, work: &Work, checker: &mut Checker) -> (Duration, Vec<u32>) {
        let Checker { checks, ledger, engine } = checker;
        let mut launch = self.launch(work);
        let (kernel, schedule, checks) = (work.0.into(), Schedule::Usual, *checks);
        let watch = Watch { checks, ledger: ledger.clone(), kernel, image: Some(BASE), private: 0, schedule };
        let watcher = check::watch(&Arc::new(watch), &launch);
        launch.watch = Some(watcher.clone());
        engine.invalidate();
        let ran = self.run(&launch, engine, check::Engine::flush);
        watcher.end();
        ran
    }
}

/// What a process and its thread have for a check.
struct Checker {
    checks: Checks,
    ledger: Arc<Ledger>,
    engine: check::Engine,
}

impl Checker {
    fn new(name: &str) -> Checker {
        let checks: Checks = name.parse().expect("a check");
        let ledger = Arc::new(Ledger::new(checks.init, None));
        for va in [INPUT, OUTPUT] {
            ledger.add_block(&Block { va, bytes: BYTES, device: true, visible: false });
            ledger.written(va, BYTES);
        }
        let engine = check::Engine::new(Target::Gfx900, &ledger);
        Checker { checks, ledger, engine }
    }
}

/// The least time: other programs make times longer, and never shorter.
fn least(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(5);
    let only = arguments.next();
    let mut bench = Bench::new();
    let mut met = true;
    println!("| kernel | interpreter | reference engine | {} |", BARS.map(|(check, _)| check).join(" | "));
    println!("| --- | --- | --- | {} |", BARS.map(|_| "---").join(" | "));
    for work in WORKS.iter().filter(|work| only.as_ref().is_none_or(|only| only == work.0)) {
        let launch = bench.launch(work);
        let mut interpreter = fast::Engine::new(Target::Gfx900);
        let (mut plain, mut slow) = (Vec::new(), Vec::new());
        let mut costs = BARS.map(|_| Vec::new());
        let mut checkers = BARS.map(|(check, _)| Checker::new(check));
        // The first round makes tables.
        for round in 0..=rounds {
            interpreter.invalidate();
            let (time, expected) = bench.run(&launch, &mut interpreter, |_| {});
            plain.push(time.as_secs_f64());
            slow.push(bench.run(&launch, &mut reference::Reference, |_| {}).0.as_secs_f64());
            for (checker, costs) in checkers.iter_mut().zip(&mut costs) {
                let (time, words) = bench.checked(work, checker);
                assert!(words == expected, "{} computes something else under {}", work.0, checker.checks);
                let found = checker.ledger.findings();
                assert!(found.is_empty(), "{} under {}: {found:?}", work.0, checker.checks);
                costs.push(time.as_secs_f64());
            }
            if round == 0 {
                [&mut plain, &mut slow].into_iter().chain(&mut costs).for_each(Vec::clear);
            }
        }
        let unit = least(&plain);
        let times = |times: &[f64]| least(times) / unit;
        print!("| {} | {:.1} ms | {:.0} |", work.0, unit * 1e3, times(&slow));
        for ((_, bar), costs) in BARS.iter().zip(&costs) {
            let cost = times(costs);
            met &= cost <= *bar;
            print!(" {cost:.1}{} |", if cost <= *bar { "" } else { " (missed)" });
        }
        println!();
    }
    if met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
