// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The code objects of a file, with all their fields.

use anyhow::{Context, Result};
use vkfd_code_object::{places, Bytes, CodeObject as Read};
use vkfd_isa::Target;

use super::descriptor::Descriptor;

/// A code object.
pub struct CodeObject {
    /// The processor, with its settings (`gfx90a:xnack+`).
    pub machine: String,
    /// 2 to 6.
    pub version: u8,
    /// Where it begins in the file.
    pub offset: usize,
    /// In the order of their addresses.
    pub functions: Vec<Function>,
}

/// A function, or a kernel.
pub struct Function {
    pub name: String,
    pub address: u64,
    /// Where its code begins in the file.
    pub offset: u64,
    pub code: Vec<u8>,
    /// Of kernels.
    pub descriptor: Option<Descriptor>,
}

impl CodeObject {
    /// The target, if it is known here.
    pub fn target(&self) -> Result<Target> {
        let name = self.machine.split(':').next().unwrap_or("");
        name.parse().with_context(|| format!("{name:?}"))
    }
}

/// The code objects in `file`.
pub fn all(file: &[u8]) -> Result<Vec<CodeObject>> {
    let read = |(offset, bytes): (usize, &[u8])| {
        let object = Read::read(bytes).with_context(|| format!("the code object at byte {offset:#x}"))?;
        Ok(described(&object, offset))
    };
    match places(file)?.as_slice() {
        [(0, bytes)] => Ok(vec![described(&Read::read(bytes)?, 0)]),
        places => places.iter().copied().map(read).collect(),
    }
}

fn described(object: &Read<'_>, offset: usize) -> CodeObject {
    let mut machine = object.machine.to_string();
    let mut functions = Vec::with_capacity(object.functions.len());
    for function in &object.functions {
        let descriptor = function.descriptor.map(|descriptor| match descriptor.bytes {
            Bytes::Descriptor(bytes) => Descriptor::new(descriptor.address, bytes),
            Bytes::Header(bytes) => Descriptor::version2(descriptor.address, bytes),
        });
        // Version 2 has the processor in the descriptors.
        if let Some(named) = descriptor.as_ref().and_then(Descriptor::machine) {
            machine = named;
        }
        functions.push(Function {
            name: function.name.to_owned(),
            address: function.address,
            offset: function.offset.saturating_add(offset as u64),
            code: function.code.to_vec(),
            descriptor,
        });
    }
    CodeObject { machine, version: object.version, offset, functions }
}
