// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Decoding: every encoding of a processor once after the other, so that nothing is found again.
//! The engines keep what they decoded, so this is the cost of code's first run.

use std::hint::black_box;

use vkfd_isa::{decode, encodings, Target, MAX_WORDS};

use super::{host, Measurement, Report, Who};
use crate::spread::Samples;

/// How often all encodings are decoded in a round, and their words hashed.
const TURNS: [usize; 2] = [20, 400];

/// Adds the measurement.
pub(super) fn measure(report: &mut Report, rounds: usize, advance: impl Fn()) {
    let target = Target::Gfx900;
    let code: Vec<[u32; MAX_WORDS]> =
        encodings(target).map(|encoding| encoding.value).filter(|words| decode(target, words).is_ok()).collect();
    let mut samples = Samples::default();
    for round in 0..rounds {
        let time = host::timed(|| {
            for words in (0..TURNS[0]).flat_map(|_| &code) {
                let _ = black_box(decode(target, black_box(words)));
            }
        });
        samples.add_to(round, Who::Engine, time);
        let time = host::timed(|| {
            for words in (0..TURNS[1]).flat_map(|_| &code) {
                black_box(
                    black_box(words)
                        .iter()
                        .fold(0x811c_9dc5, |hash: u32, word| (hash ^ word).wrapping_mul(0x0100_0193)),
                );
            }
        });
        samples.add_to(round, Who::Yardstick, time);
        advance();
    }
    let spread = |who| samples.spreads().find(|(cell, _)| *cell == who).map(|(_, spread)| spread);
    let (Some(decoding), Some(hashing)) = (spread(Who::Engine), spread(Who::Yardstick)) else { return };
    let amounts = TURNS.map(|turns| turns as f64 * code.len() as f64);
    report.measurements.push(Measurement {
        what: "decoding each of gfx900's encodings, one thread",
        unit: "inst",
        per_second: decoding.inverted().scaled(amounts[0]),
        yardstick: "hashing their words",
        yardstick_per_second: hashing.inverted().scaled(amounts[1]),
    });
}
