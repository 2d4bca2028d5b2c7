// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Source lines of findings, from the code objects in the program's own file.
//!
//! Limits: kernels of libraries and of code that was compiled at run time have no lines. A kernel
//! is known by its name and its place in the code object. Another object with a kernel of the same
//! name and place would give its own line.

use std::path::Path;

use vkfd_code_object::{places, CodeObject};
use vkfd_findings::{Finding, Place};
use vkfd_isa::Target;
use vkfd_lint::Object;

/// The code objects of a program.
pub(super) struct Lines(Vec<Object>);

impl Lines {
    /// Those of a file for a target; none where it has none that can be read.
    pub(super) fn read(program: &Path, target: Target) -> Lines {
        let bytes = std::fs::read(program).unwrap_or_default();
        let all = places(&bytes).unwrap_or_default();
        // Line tables are read of one target's objects only.
        let wanted = |bytes: &[u8]| CodeObject::read(bytes).is_ok_and(|object| object.machine.target() == Some(target));
        Lines(all.iter().filter(|(_, bytes)| wanted(bytes)).filter_map(|(_, bytes)| Object::read(bytes).ok()).collect())
    }

    /// Adds the lines of a finding's places.
    pub(super) fn add(&self, finding: &mut Finding) {
        let notes = finding.notes.iter_mut().filter_map(|note| note.place.as_mut());
        for place in std::iter::once(&mut finding.place).chain(notes) {
            place.source = place.source.take().or_else(|| self.at(place));
        }
    }

    fn at(&self, place: &Place) -> Option<vkfd_findings::Source> {
        let start = place.pc.checked_sub(place.offset?)?;
        let name = place.kernel.as_deref()?;
        let has = |object: &&Object| {
            object.functions.iter().any(|function| function.name == name && function.address == start)
        };
        self.0.iter().find(has)?.lines.as_ref()?.at(place.pc)
    }
}
