// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Loads from LDS and memory whose lanes lie near each other: side by side, in runs, mixed up, at
//! the end of memory, and nearly so. All registers are as the reference engine has them.

use super::support::{group, Numbers, BASE};
use super::{difference, end, Handler};
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Exit, Flat};
use vkfd_isa::{decode, encodings, Format, Op, Operand, Target};
use vkfd_sabotage::{Switch, Switches};

const PAGES: usize = 16;
const DATA: u64 = BASE + 4096;
/// Bytes of LDS: less than two vectors, as many, and more.
const SIZES: [u64; 4] = [64, 128, 520, 4096];

/// Loads of whole words.
fn is_wanted(op: Op) -> bool {
    let name = op.name();
    let loads = ["ds_read", "ds_load", "global_load_dword", "global_load_b", "buffer_load_dword", "buffer_load_b"];
    let others = ["addtid", "tr", "u8", "i8", "u16", "i16", "lds", "block"];
    loads.iter().any(|start| name.starts_with(start)) && !others.iter().any(|other| name.contains(other))
}

/// Machine code of a load by v0 into the registers from `dst` on: of memory at s[2:3], or by the
/// descriptor in s[4:7].
fn words(handler: &Handler, dst: u32, offset: u32) -> [u32; 2] {
    let [first, second] = [handler.encoding.value[0], handler.encoding.value[1]];
    match handler.encoding.format {
        Format::Ds => [first | offset, second | dst << 24],
        Format::Mubuf => {
            let by_register = if handler.encoding.op.name().contains("_b") { 1 << 22 } else { 0 };
            let offen = if by_register == 0 { 1 << 12 } else { 0 };
            [first | offen, second | by_register | 128 << 24 | 1 << 16 | dst << 8]
        }
        _ => [first, second & !(0x7f << 16) | 2 << 16 | dst << 24],
    }
}

/// Places of lanes with so many bytes each, of which all or nearly all are below `end`.
fn places(numbers: &mut Numbers, bytes: u64, end: u64) -> [u32; 64] {
    let last = end.saturating_sub(64 * bytes).max(1);
    let start = numbers.below(last);
    let aligned = start & !63;
    let apart: [u64; 8] = std::array::from_fn(|_| numbers.below(end) & !3);
    let odd = numbers.below(64);
    let places: [u64; 64] = std::array::from_fn(|lane| {
        let lane = lane as u64;
        match numbers.0 % 15 {
            0 => aligned + lane * bytes,
            1 => start + lane * bytes,
            2 => end.saturating_sub(64 * bytes) + lane * bytes,
            3 => start,
            4 => aligned + 2 * lane * bytes,
            5 => aligned + lane * (bytes + 4),
            6 => aligned + (lane ^ 5) * bytes,
            7 => aligned + (63 - lane) * bytes,
            8 => apart[lane as usize / 8] + lane % 8 * bytes,
            9 => apart[lane as usize / 16] + lane % 16 * bytes,
            10 => apart[lane as usize % 8],
            11 => aligned + (lane * 37 + start) % 32 * 4,
            12 => aligned + lane * bytes + if lane == odd { 4 } else { 0 },
            13 => apart[lane as usize / 4 % 8] + lane % 4 * bytes,
            _ => aligned + lane * bytes + if lane == odd { end } else { 0 },
        }
    });
    places.map(|place| place as u32)
}

/// What came of all loads.
#[derive(Default, Debug)]
struct Seen {
    executed: u32,
    differ: u32,
    /// The first that differs.
    first: String,
}

/// Runs each load of a target on the engine and on the reference.
fn run(target: Target, engine: &mut Engine) -> Seen {
    let mut seen = Seen::default();
    let mut numbers = Numbers(23);
    let mut world = Flat::new(BASE, 1 + PAGES);
    world.scatter();
    world.write(DATA, &numbers.bytes(4096 * PAGES));
    let lds = numbers.bytes(4096);
    let sizes: &[u8] = if target.is_rdna() { &[32, 64] } else { &[64] };
    let all = sizes.iter().flat_map(|&lanes| encodings(target).map(move |encoding| Handler { encoding, lanes }));
    for handler in all.filter(|handler| is_wanted(handler.encoding.op)) {
        for _ in 0..28 {
            let is_local = handler.encoding.format == Format::Ds;
            let dst = if numbers.below(4) == 0 { 0 } else { 8 };
            let words = words(&handler, dst, numbers.below(3) as u32);
            let inst = decode(target, &words).expect("an instruction");
            assert_eq!(inst.op, handler.encoding.op);
            let size = if is_local { SIZES[numbers.below(4) as usize] } else { 4096 * PAGES as u64 };
            let mut wave = super::wave(target);
            (wave.pc, wave.lanes) = (BASE, handler.lanes);
            for word in wave.rows.iter_mut().take(20).flat_map(|row| &mut row.0) {
                *word = numbers.word();
            }
            let bytes = 4 << numbers.below(3);
            numbers.word();
            wave.rows[0].0 = places(&mut numbers, bytes, size);
            wave.set_pair(2, DATA);
            let records = if numbers.below(3) == 0 { size - numbers.below(size.min(200)) } else { size };
            wave.set_pair(4, DATA);
            let last: u32 = if target.is_rdna() { 3 << 28 } else { 0x0002_7000 };
            wave.set_pair(6, records | u64::from(last) << 32);
            let exec = match numbers.below(6) {
                0 => u64::from(numbers.word()) << 32 | u64::from(numbers.word()),
                1 => u64::MAX << 1,
                _ => u64::MAX,
            };
            wave.set_pair(Operand::EXEC, exec);
            let mut expected = wave.clone();
            let mut groups = [group(size as usize), group(size as usize)];
            if is_local {
                groups.iter_mut().for_each(|group| group.lds.copy_from_slice(&lds[..size as usize]));
            }
            let [one, two] = &mut groups;
            world.write_words(BASE, &[words[0], words[1], end(target)]);
            engine.invalidate();
            let exits: [Exit; 2] =
                [engine.run(&mut wave, two, &mut world, 10), reference::run(&mut expected, one, &mut world, 10)];
            seen.executed += 1;
            if exits[0] != exits[1] || wave != expected {
                seen.differ += 1;
                if seen.first.is_empty() {
                    let lanes = &wave.rows[0].0;
                    let difference = difference(&expected, &wave);
                    seen.first = format!("{inst:?} at {lanes:?} of {size}, EXEC {exec:x}: {exits:?}\n{difference}");
                }
            }
        }
    }
    seen
}

#[test]
fn lanes_near_each_other_get_what_the_reference_gives_them() {
    for target in Target::ALL {
        for mut engine in [Engine::new(target), Engine::narrow(target), Engine::portable(target)] {
            let Seen { executed, differ, first } = run(target, &mut engine);
            assert!(executed > 400, "{target}: {executed}");
            assert_eq!(differ, 0, "{target}, of {executed}: {first}");
        }
    }
}

#[test]
fn lanes_that_are_taken_for_near_ones_are_noticed() {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512dq") {
        for target in [Target::Gfx90a, Target::Gfx1030] {
            let mut engine = Engine::new(target);
            engine.sabotage(Switches::NONE.with(Switch::GuessedShape));
            assert!(run(target, &mut engine).differ > 0, "{target}");
        }
    }
}
