// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Translated code as products of matrices have it, against the reference engine. There are more
//! sums than the host has registers, loads of LDS, and stores to it, some of them beyond its end.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::cast_possible_truncation, reason = "numbers are small")]

use crate::stored::{check, compare, Form, Program, GFX900};
use crate::support::Numbers;
use crate::translated::{engine, programs, widths, END, LOCAL};
use vkfd_isa::Target;
use vkfd_sabotage::{Switch, Switches};

/// The first row of the sources and of the sums, and how many sums there are.
const SOURCES: u32 = 18;
const SUMS: u32 = 32;
const COUNT: u64 = 26;
/// Another row of addresses.
const OTHER: u32 = 17;

const GFX90A: Form = Form { target: Target::Gfx90a, lanes: 64 };

fn source(numbers: &mut Numbers) -> u32 {
    SOURCES + numbers.below(12) as u32
}

/// An offset in LDS, now and then one that leads some lanes beyond its end.
fn offset(numbers: &mut Numbers) -> u32 {
    let end = if numbers.below(4) == 0 { 1024 } else { 256 };
    4 * numbers.below(end) as u32
}

/// The addresses of LDS.
fn addresses(numbers: &mut Numbers) -> u32 {
    if numbers.below(4) == 0 {
        OTHER
    } else {
        LOCAL
    }
}

/// A load of one to four sources: ds_read_b32, b64, b96, b128.
fn load(numbers: &mut Numbers) -> [u32; 2] {
    let op = [0x36, 0x76, 0xfe, 0xff][numbers.below(4) as usize];
    let row = SOURCES + numbers.below(9) as u32;
    [0xd800_0000 | op << 17 | offset(numbers), row << 24 | addresses(numbers)]
}

/// ds_write_b32, write2_b32, b64, b96 or b128 of sources, or of sums.
fn store(numbers: &mut Numbers) -> [u32; 2] {
    let op = [0x0d, 0x0e, 0x4d, 0xde, 0xdf][numbers.below(5) as usize];
    let row = if numbers.below(4) == 0 { SUMS } else { SOURCES } + numbers.below(8) as u32;
    let (offset, second) =
        if op == 0x0e { (0x2000 + numbers.below(0x20) as u32 * 0x101, row) } else { (offset(numbers), 0) };
    [0xd800_0000 | op << 17 | offset, second << 16 | row << 8 | addresses(numbers)]
}

/// A sum of a row: v_mac_f32, v_add_f32, v_add_u32 or v_fma_f32.
fn sum(numbers: &mut Numbers, fused: bool, row: u32) -> Vec<u32> {
    let row = SUMS + row;
    // Now and then a sum of sums.
    let first = if numbers.below(16) == 0 { SUMS + numbers.below(COUNT) as u32 } else { source(numbers) };
    let first = 256 + first;
    match numbers.below(8) {
        0 => vec![0x01 << 25 | row << 17 | row << 9 | first],
        1 => vec![0x34 << 25 | row << 17 | row << 9 | first],
        _ if fused => vec![0xd1cb_0000 | row, first | (256 + source(numbers)) << 9 | (256 + row) << 18],
        _ => vec![0x16 << 25 | row << 17 | source(numbers) << 9 | first],
    }
}

/// Rounds of a product: loads, sums, and stores between them.
fn product(_: Form, numbers: &mut Numbers) -> Vec<u32> {
    let mut code = Vec::new();
    // What MODE has for one of them, the other does not take.
    let fused = numbers.below(2) == 0;
    for _ in 0..2 + numbers.below(2) {
        for _ in 0..numbers.below(4) {
            code.extend(load(numbers));
        }
        if numbers.below(3) == 0 {
            code.extend(store(numbers));
        }
        for row in 0..COUNT as u32 {
            if numbers.below(8) != 0 {
                code.extend(sum(numbers, fused, row));
            }
            if numbers.below(64) == 0 {
                code.extend(store(numbers));
            }
        }
        if numbers.below(4) == 0 {
            // v_xor_b32 LOCAL, 4, LOCAL: other addresses
            code.push(0x15 << 25 | LOCAL << 17 | LOCAL << 9 | 132);
        }
    }
    code.push(END);
    code
}

#[test]
fn products_are_the_reference_s() {
    check((GFX900, product), (programs(300), 51, 1000), 60);
    check((GFX90A, product), (programs(60), 52, 1000), 60);
}

#[test]
fn sums_that_pass_others_are_noticed() {
    for width in widths() {
        for switch in [Switch::PassedSource, Switch::UnlookedBounds, Switch::UnlookedSpans] {
            let mut engine = engine(Target::Gfx900, width, false);
            engine.sabotage(Switches::NONE.with(switch));
            let found = compare(&mut engine, (GFX900, product as Program), (200, 53, 1000));
            assert!(found.is_err(), "{width:?}: {switch:?} was not noticed");
        }
    }
}
