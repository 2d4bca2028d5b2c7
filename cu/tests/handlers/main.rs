// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Every handler of the fast engine against the reference engine, bit for bit: as many cases of
//! each as are asked for.
//!
//! The handlers are found: every encoding of a target, with random operands, is shown to the
//! engine, for waves of each size that the target has. A case is a lane that the handler itself
//! has computed; what it left to the reference engine does not count. `VKFD_CASES=n` asks for n
//! cases of each instead of some; 100,000 take minutes.
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "registers are bit patterns")]
#![allow(missing_docs, reason = "a test")]

#[path = "../it/support/mod.rs"]
mod support;

mod emitted;
mod near;
mod special;
mod start;
mod tiles;
mod words;

use start::start;
use support::{group, wave, Numbers, BASE};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat, Wave};
use vkfd_isa::{encodings, Encoding, Format, Op, Target};
use vkfd_sabotage::{Switch, Switches};
use words::instruction;

/// Memory that instructions work on.
const DATA: u64 = BASE + 0x10_0000;
const PAGES: usize = 2;
const LDS: usize = 1024;

/// Cases asked for of each handler.
fn cases() -> u64 {
    std::env::var("VKFD_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(128)
}

/// A handler: what it executes, for waves of so many lanes.
struct Handler {
    encoding: Encoding,
    lanes: u8,
}

impl std::fmt::Display for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Encoding { op, format, entry, .. } = &self.encoding;
        write!(f, "{} {format:?} {entry}, {} lanes", op.name(), self.lanes)
    }
}

/// All handlers of a target.
fn handlers(target: Target, engine: &mut Engine) -> Vec<Handler> {
    let mut numbers = Numbers(3);
    let mut found = Vec::new();
    let sizes: &[u8] = if target.is_rdna() { &[32, 64] } else { &[64] };
    for &lanes in sizes {
        let wave = Wave { lanes, ..wave(target) };
        for encoding in encodings(target).filter(|encoding| !goes_elsewhere(encoding.op)) {
            let handled = (0..60).any(|_| {
                instruction(target, &encoding, &mut numbers).is_some_and(|(inst, _)| engine.handles(&wave, &inst))
            });
            if handled {
                found.push(Handler { encoding, lanes });
            }
        }
    }
    found
}

/// What has no place in a program of one instruction.
fn goes_elsewhere(op: Op) -> bool {
    let leaves = ["s_branch", "s_cbranch", "s_barrier", "s_endpgm"].iter().any(|start| op.name().starts_with(start));
    leaves || matches!(op, Op::SSetpcB64 | Op::SSwappcB64 | Op::SGetpcB64 | Op::SCallB64)
}

/// What has no result that could be wrong: waits and hints, and caches that are not kept here.
const NOTHING: [&str; 18] = [
    "v_nop",
    "v_pipeflush",
    "v_clrexcp",
    "ds_nop",
    "buffer_wbinvl1",
    "buffer_wbl2",
    "buffer_inv",
    "buffer_gl",
    "s_nop",
    "s_waitcnt",
    "s_dcache",
    "s_gl1_inv",
    "s_setprio",
    "s_clause",
    "s_delay_alu",
    "s_inst_prefetch",
    "s_set_inst_prefetch",
    "s_version",
];

fn does_nothing(op: Op) -> bool {
    NOTHING.iter().any(|start| op.name().starts_with(start))
}

/// Two memories with the same content.
struct Worlds {
    reference: Flat,
    fast: Flat,
    bytes: Vec<u8>,
    since: u32,
}

impl Worlds {
    fn new(numbers: &mut Numbers) -> Worlds {
        let bytes = numbers.bytes(4096 * PAGES);
        let world = || {
            let mut world = Flat::new(BASE, 256 + PAGES);
            world.scatter();
            world.write(DATA, &bytes);
            world
        };
        Worlds { reference: world(), fast: world(), bytes, since: 0 }
    }

    /// Whether they are the same; looked at now and then.
    fn same(&mut self) -> bool {
        self.since += 1;
        self.since % 16 != 0 || self.reference.read(DATA, self.bytes.len()) == self.fast.read(DATA, self.bytes.len())
    }
}

/// The instruction that ends a program.
fn end(target: Target) -> u32 {
    encodings(target).find(|encoding| encoding.op == Op::SEndpgm).map_or(0, |encoding| encoding.value[0])
}

fn is_matrix(op: Op) -> bool {
    ["v_mfma", "v_smfmac", "v_wmma"].iter().any(|start| op.name().starts_with(start))
}

/// One case is a whole instruction.
fn is_scalar(format: Format) -> bool {
    matches!(format, Format::Sop1 | Format::Sop2 | Format::Sopc | Format::Sopk | Format::Sopp | Format::Smem)
}

/// Runs a handler until it has computed so many cases. `Err`: a difference.
fn run(
    engine: &mut Engine,
    target: Target,
    Handler { encoding, lanes: size }: &Handler,
    wanted: u64,
    numbers: &mut Numbers,
    worlds: &mut Worlds,
) -> Result<u64, String> {
    let (op, format) = (encoding.op, encoding.format);
    let (mut counted, mut turns) = (0, 0);
    let memory = matches!(format, Format::Flat | Format::Global | Format::Mubuf | Format::Scratch);
    let mut code = None;
    let end = end(target);
    let limit = 256 + wanted * 16;
    while counted < wanted && turns < limit {
        turns += 1;
        if turns % 4 == 1 || code.is_none() {
            code = instruction(target, encoding, numbers);
            let Some((_, words)) = &code else { continue };
            let words = [words.as_slice(), &[end]].concat();
            worlds.reference.write_words(BASE, &words);
            worlds.fast.write_words(BASE, &words);
            engine.invalidate();
        }
        let Some((inst, _)) = &code else { continue };
        let mut expected = start(target, *size, inst, numbers, BASE);
        let mut wave = expected.clone();
        let lanes = u64::from(expected.exec().count_ones());
        let (mut one, mut two) = (group(LDS), group(LDS));
        one.lds.copy_from_slice(&worlds.bytes[..LDS]);
        two.lds.copy_from_slice(&worlds.bytes[..LDS]);
        let before = engine.slow().get(&op).copied().unwrap_or(0);
        let exits = [
            reference::run(&mut expected, &mut one, &mut worlds.reference, 10),
            engine.run(&mut wave, &mut two, &mut worlds.fast, 10),
        ];
        let same = exits[0] == exits[1] && same(&mut expected, &mut wave) && one.lds == two.lds;
        if !same || memory && !worlds.same() {
            return Err(format!("{op:?} {format:?}: {exits:?}\n{inst:?}{}", difference(&expected, &wave)));
        }
        if exits[0] == Exit::End && engine.slow().get(&op).copied().unwrap_or(0) == before {
            // A matrix operation asks no EXEC.
            counted += match op {
                _ if is_scalar(format) => 1,
                _ if is_matrix(op) => u64::from(*size),
                _ => lanes,
            };
        }
    }
    Ok(counted)
}

/// Whether two waves are the same, in the lanes that exist: the others' contents do not matter.
fn same(one: &mut Wave, two: &mut Wave) -> bool {
    let lanes = usize::from(one.lanes);
    for wave in [&mut *one, &mut *two] {
        wave.rows.iter_mut().for_each(|row| row.0[lanes..].fill(0));
    }
    one == two
}

/// Where two waves differ.
fn difference(one: &Wave, two: &Wave) -> String {
    let mut text = format!("\nmode {:#x} exec {:#x} scc {} {}", one.mode.0, one.exec(), one.scc, two.scc);
    for (index, (a, b)) in one.scalar.iter().zip(&two.scalar).enumerate().filter(|(_, (a, b))| a != b) {
        text += &format!("\n  s{index}: {a:#010x} {b:#010x}");
    }
    for (index, (a, b)) in one.rows.iter().zip(&two.rows).enumerate() {
        for (lane, (a, b)) in a.0.iter().zip(&b.0).enumerate().filter(|(_, (a, b))| a != b).take(3) {
            text += &format!("\n  v{index} lane {lane}: {a:#010x} {b:#010x}");
        }
    }
    text
}

fn check(target: Target, mut engine: Engine, seed: u64, least: usize) {
    let handlers = handlers(target, &mut engine);
    let mut numbers = Numbers(seed);
    let mut worlds = Worlds::new(&mut numbers);
    let (mut wrong, mut few) = (Vec::new(), Vec::new());
    for handler in &handlers {
        let wanted = if is_scalar(handler.encoding.format) && cases() < 1000 { 32 } else { cases() };
        match run(&mut engine, target, handler, wanted, &mut numbers, &mut worlds) {
            Ok(counted) if counted < wanted => few.push(format!("{handler}: {counted} of {wanted}")),
            Ok(_) => {}
            Err(text) => wrong.push(text),
        }
        if wrong.len() > 4 {
            break;
        }
    }
    println!("{target}: {} handlers", handlers.len());
    assert!(wrong.is_empty(), "{target}, reference and fast:\n{}", wrong.join("\n\n"));
    assert!(few.is_empty(), "{target}: too few cases\n{}", few.join("\n"));
    assert!(handlers.len() >= least, "{target}: only {} handlers were found", handlers.len());
}

#[test]
fn every_handler_of_gfx900_is_the_reference_s() {
    check(Target::Gfx900, Engine::new(Target::Gfx900), 11, 900);
}

#[test]
fn every_handler_of_gfx90a_is_the_reference_s() {
    check(Target::Gfx90a, Engine::new(Target::Gfx90a), 12, 900);
}

/// Handlers for wider vectors have others beside them, which such a processor does not choose.
#[test]
fn every_narrow_handler_is_the_reference_s() {
    check(Target::Gfx90a, Engine::narrow(Target::Gfx90a), 18, 900);
    check(Target::Gfx942, Engine::narrow(Target::Gfx942), 19, 900);
    check(Target::Gfx1100, Engine::narrow(Target::Gfx1100), 20, 900);
}

#[test]
fn every_handler_of_gfx942_is_the_reference_s() {
    check(Target::Gfx942, Engine::new(Target::Gfx942), 15, 900);
}

#[test]
fn every_handler_of_gfx1030_is_the_reference_s() {
    check(Target::Gfx1030, Engine::new(Target::Gfx1030), 16, 900);
}

#[test]
fn every_handler_of_gfx1100_is_the_reference_s() {
    check(Target::Gfx1100, Engine::new(Target::Gfx1100), 17, 900);
}

#[test]
fn every_portable_handler_is_the_reference_s() {
    for target in Target::ALL {
        check(target, Engine::portable(target), 13, 850);
    }
}

/// Each handler is broken, and that is noticed.
#[test]
fn every_broken_handler_is_noticed() {
    for target in Target::ALL {
        let mut numbers = Numbers(14);
        let handlers = handlers(target, &mut Engine::new(target));
        let mut unnoticed = Vec::new();
        for handler in handlers.iter().filter(|handler| !does_nothing(handler.encoding.op)) {
            let mut worlds = Worlds::new(&mut numbers);
            let mut engine = Engine::new(target);
            engine.sabotage(Switches::NONE.with_value(Switch::Handler, handler.encoding.op as u64));
            if run(&mut engine, target, handler, 4096, &mut numbers, &mut worlds).is_ok() {
                unnoticed.push(handler.to_string());
            }
        }
        assert!(unnoticed.is_empty(), "{target}: broken, and nothing was noticed:\n{}", unnoticed.join("\n"));
    }
}
