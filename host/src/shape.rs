// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a machine's GPUs have and report about their parts, other than their target's model.
//! Runtimes and programs size their work by these numbers. The GPU takes in as many waves as its
//! units have room for; its results and its speed do not depend on them.

use std::fmt;
use vkfd_driver::targets::Target;
use vkfd_driver::topology::Model;

/// Numbers that differ; `None`: as the target's model has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// Compute units, at most the product's.
    pub units: Option<u32>,
    pub clock_mhz: Option<u32>,
    /// MHz of the memory.
    pub memory_mhz: Option<u32>,
    /// Bits of the memory's bus.
    pub memory_bits: Option<u32>,
}

impl Shape {
    /// A target's model with these numbers.
    pub fn of(&self, target: Target) -> Model {
        let model = *target.model();
        let model = self.units.map_or(model, |units| model.with_units(units));
        Model {
            clock_mhz: self.clock_mhz.unwrap_or(model.clock_mhz),
            memory_mhz: self.memory_mhz.unwrap_or(model.memory_mhz),
            memory_bits: self.memory_bits.unwrap_or(model.memory_bits),
            ..model
        }
    }

    /// A number by its name.
    pub fn part(&mut self, name: &str) -> Option<&mut Option<u32>> {
        match name {
            "units" => Some(&mut self.units),
            "clock_mhz" => Some(&mut self.clock_mhz),
            "memory_mhz" => Some(&mut self.memory_mhz),
            "memory_bits" => Some(&mut self.memory_bits),
            _ => None,
        }
    }
}

impl fmt::Display for Shape {
    /// ` units=16` and so on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { units, clock_mhz, memory_mhz, memory_bits } = self;
        let parts =
            [("units", units), ("clock_mhz", clock_mhz), ("memory_mhz", memory_mhz), ("memory_bits", memory_bits)];
        parts.into_iter().try_for_each(|(name, value)| value.map_or(Ok(()), |value| write!(f, " {name}={value}")))
    }
}
