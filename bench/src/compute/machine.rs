// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A wave that runs a kernel, and its memory.

use super::host::timed;
use std::time::Duration;
#[cfg(target_arch = "x86_64")]
use vkfd_cu::fast::native::Translation;
use vkfd_cu::fast::Engine;
use vkfd_cu::{reference, Apertures, Flat, Group, Lds, Mode, Place, Row, Watched, Wave};
use vkfd_isa::{Operand, Target};

/// Where the code is.
const CODE: u64 = 0x10_0000;
/// Where the data are.
pub const DATA: u64 = 0x20_0000;
/// What registers hold that nothing else is said of, 0.75: what the fill kernel stores.
pub const FILLED: u32 = 0x3f40_0000;

/// Lanes that the host computes at a time in translated code: 16 with AVX-512, 8 with AVX2, none
/// on other processors.
pub fn lanes() -> u8 {
    #[cfg(target_arch = "x86_64")]
    return Translation::detect().map_or(0, |how| how.width.lanes());
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// An engine, a program, and memory.
pub struct Machine {
    target: Target,
    engine: Engine,
    world: Flat,
    group: Group,
}

impl Machine {
    /// With so many pages of data.
    pub fn new(target: Target, code: &[u32], pages: usize) -> Machine {
        let mut world = Flat::new(CODE, 256 + pages);
        world.write_words(CODE, code);
        let group = Group {
            lds: Lds::new(4096),
            apertures: Apertures { shared: 1 << 16, private: 2 << 16 },
            watch: Watched::default(),
            place: Place::default(),
        };
        #[allow(unused_mut, reason = "other processors have no translator")]
        let mut engine = Engine::new(target);
        // As each GPU does.
        #[cfg(target_arch = "x86_64")]
        if let Some(how) = Translation::detect() {
            engine.translate(how);
        }
        Machine { target, engine, world, group }
    }

    /// Writes to memory.
    pub fn write(&mut self, va: u64, bytes: &[u8]) {
        self.world.write(va, bytes);
    }

    /// Words of memory.
    pub fn words(&self, va: u64, count: usize) -> Vec<u32> {
        self.world.read_words(va, count)
    }

    fn wave(&self, prepare: impl FnOnce(&mut Wave)) -> Wave {
        let mut wave = Wave {
            target: self.target,
            lanes: 64,
            pc: CODE,
            scalar: [0; 128],
            scc: false,
            mode: Mode::DEFAULT,
            rows: vec![Row::ZERO; 96],
            acc: if self.target.is_cdna() { 32 } else { 96 },
            sgprs: 32,
            flat_scratch: 0,
            trapsts: 0,
            done: 0,
            index: 0,
        };
        wave.set_pair(Operand::EXEC, u64::MAX);
        wave.set_pair(4, DATA);
        let rows = &mut wave.rows;
        for row in [0, 1, 4, 5, 6, 7, 8, 9, 10, 11] {
            rows[row] = Row([FILLED; 64]);
        }
        rows[2] = Row(std::array::from_fn(|lane| 4 * u32::try_from(lane).unwrap_or(0)));
        rows[3] = Row(std::array::from_fn(|lane| 16 * u32::try_from(lane).unwrap_or(0)));
        prepare(&mut wave);
        wave
    }

    /// Runs the program to its end on the fast engine; the time.
    pub fn run(&mut self, prepare: impl FnOnce(&mut Wave)) -> Duration {
        let mut wave = self.wave(prepare);
        timed(|| {
            self.engine.run(&mut wave, &mut self.group, &mut self.world, u32::MAX);
        })
    }

    /// Runs the program to its end on the reference engine; the time.
    pub fn run_reference(&mut self, prepare: impl FnOnce(&mut Wave)) -> Duration {
        let mut wave = self.wave(prepare);
        timed(|| {
            reference::run(&mut wave, &mut self.group, &mut self.world, u32::MAX);
        })
    }
}
