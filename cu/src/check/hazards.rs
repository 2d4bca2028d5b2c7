// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `hazards`: the static check of `vkfd lint`, over the code of each kernel that is launched.
//!
//! Wait states are counted on all ways through a kernel, and no way is longer or shorter at run
//! time. So there is nothing more to see while it runs. A hazard on some of several ways only,
//! which LLVM's own code has, is left to `vkfd lint`, where it is a warning.
//!
//! Limits: functions that a kernel calls are not read. Neither is code of PM4's launches, nor that
//! of an object without symbols. [`MOST`] kernels are remembered.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use vkfd_findings::{Bounds, Finding, Findings, Severity, Suppressions};
use vkfd_isa::Target;
use vkfd_lint::{lint, Checks, Function, Object};
use vkfd_sabotage::{process, Switch};

/// Kernels that are not read again.
const MOST: usize = 1 << 14;

/// A kernel in memory.
#[derive(Debug)]
pub struct Kernel<'a> {
    pub target: Target,
    pub name: &'a str,
    /// Where its code object lies.
    pub image: u64,
    /// Its first instruction.
    pub entry: u64,
    pub descriptor: &'a [u8; 64],
    /// The code object's flags, and the version of its ABI.
    pub flags: u32,
    pub version: u8,
    pub code: Vec<u8>,
}

/// The kernels that were read, by their contents.
#[derive(Debug, Default)]
pub(super) struct Read(Mutex<BTreeSet<u64>>);

impl Read {
    /// Whether a kernel is new.
    fn is_new(&self, kernel: &Kernel<'_>) -> bool {
        let mut hasher = DefaultHasher::new();
        (kernel.name, kernel.descriptor, &kernel.code).hash(&mut hasher);
        let mut read = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if read.len() >= MOST {
            read.clear();
        }
        read.insert(hasher.finish())
    }
}

impl Read {
    /// Reads a kernel's code for hazards, unless that was done. Findings, and how often each was
    /// made.
    pub(super) fn lint(&self, kernel: Kernel<'_>) -> Vec<(Finding, u64)> {
        if process().has(Switch::BlindHazards) || !self.is_new(&kernel) {
            return Vec::new();
        }
        let Kernel { target, name, image, entry, descriptor, flags, version, code } = kernel;
        let function = Function {
            name: name.to_owned(),
            address: entry.wrapping_sub(image),
            offset: 0,
            code,
            kernel: Some(vkfd_lint::Kernel::of(target, descriptor)),
        };
        let object = Object::loaded(target, flags, version, function);
        let mut found = Findings::new(Bounds::default(), Vec::new(), Suppressions::default());
        lint(&object, name, Checks { waits: false, hazards: true }, &mut found);
        let errors = found.list().iter().filter(|counted| counted.finding.severity == Severity::Error);
        let reported = errors.map(|counted| {
            let mut finding = counted.finding.clone();
            finding.place.object = None;
            (finding, counted.count)
        });
        reported.collect()
    }
}
