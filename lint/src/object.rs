// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Code objects: functions, and the settings of kernels that the checks depend on.

use thiserror::Error;
use vkfd_code_object::{Bytes, CodeObject, Machine, Setting};
use vkfd_isa::Target;

use crate::lines::Lines;

/// A code object.
pub struct Object {
    pub target: Target,
    /// Whether memory instructions may be replayed. Code that runs with either setting counts as
    /// replayed.
    pub xnack: bool,
    /// In the order of their addresses.
    pub functions: Vec<Function>,
    /// The line table, if there is one.
    pub lines: Option<Lines>,
}

/// A function, or a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    pub name: String,
    pub address: u64,
    /// Where its code begins in the object's bytes.
    pub offset: u64,
    pub code: Vec<u8>,
    /// Of kernels.
    pub kernel: Option<Kernel>,
}

/// Settings of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Waves of 64 lanes.
    pub wave64: bool,
    /// Waves of a work-group may be on several compute units, and FLAT does not reach LDS.
    pub split: bool,
}

impl Kernel {
    /// Those that a descriptor has.
    #[must_use]
    pub fn of(target: Target, descriptor: &[u8; 64]) -> Kernel {
        let word =
            |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| descriptor.get(at + byte).copied().unwrap_or(0)));
        let wave64 = target.is_gfx9() || word(56) >> 10 & 1 == 0;
        Kernel { wave64, split: target.is_cdna() && word(44) >> 16 & 1 == 1 }
    }
}

/// A code object that cannot be checked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ReadError {
    #[error(transparent)]
    Damaged(#[from] vkfd_code_object::ReadError),
    #[error("code object version 2, whose kernels are not known here")]
    Version2,
    #[error("code for {0}; known are {known}", known = Target::ALL.map(Target::name).join(", "))]
    Unknown(Machine),
}

/// Whether code has to bear that its memory instructions are replayed.
fn replayed(target: Target, machine: Machine) -> bool {
    target.is_gfx9() && matches!(machine.xnack, Setting::Any | Setting::On)
}

impl Object {
    /// The same object's settings, without functions and lines.
    #[must_use]
    pub fn settings(&self) -> Object {
        Object { target: self.target, xnack: self.xnack, functions: Vec::new(), lines: None }
    }

    /// A function of an object that is loaded, with the flags and the ABI's version of its header.
    #[must_use]
    pub fn loaded(target: Target, flags: u32, version: u8, function: Function) -> Object {
        let xnack = replayed(target, Machine::of(flags, version.saturating_add(2)));
        Object { target, xnack, functions: vec![function], lines: None }
    }

    /// Reads a code object.
    ///
    /// # Errors
    ///
    /// If the bytes are none, or one of a target that is not known.
    pub fn read(bytes: &[u8]) -> Result<Object, ReadError> {
        let read = CodeObject::read(bytes)?;
        if read.version < 3 {
            return Err(ReadError::Version2);
        }
        let target = read.machine.target().ok_or(ReadError::Unknown(read.machine))?;
        let functions = read.functions.iter().map(|function| Function {
            name: function.name.to_owned(),
            address: function.address,
            offset: function.offset,
            code: function.code.to_vec(),
            kernel: function.descriptor.and_then(|descriptor| match descriptor.bytes {
                Bytes::Descriptor(bytes) => Some(Kernel::of(target, bytes)),
                Bytes::Header(_) => None,
            }),
        });
        let (functions, lines) = (functions.collect(), Lines::read(&read.file));
        Ok(Object { target, xnack: replayed(target, read.machine), functions, lines })
    }
}
