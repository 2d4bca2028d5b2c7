// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A kernel at work on memory that moves.

use vkfd_client::{SvmAccess, PAGE};
use vkfd_driver::seams::device_memory::Kind;

use super::{both, Svm, GRANULE};
use crate::beside::repeat;
use crate::memory::{pattern, Memory};
use crate::stir::{stirred, Stirrer};
use crate::verdict::Stop;
use crate::world::WorldSpec;
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "svm_a_kernel_goes_on_while_its_memory_moves",
        about: "A kernel reads and writes memory that moves between two GPUs and the system: no step of it is lost.",
        run: || both(|kind| moving(of_kind(kind, false))),
    },
    Scenario {
        name: "svm_a_kernel_goes_on_while_its_memory_moves_with_xnack",
        about: "The same with GPUs that retry faults.",
        run: || both(|kind| moving(of_kind(kind, true))),
    },
];

/// Where the memory goes, all of it and half of it in turn, while GPU 0 computes.
const PLACES: [Option<usize>; 6] = [Some(0), None, Some(1), Some(0), Some(1), None];
/// Of a launch.
const STEPS: u64 = 4;

fn of_kind(device_memory: Kind, xnack: bool) -> WorldSpec {
    WorldSpec { gpus: 2, device_memory, xnack, ..WorldSpec::default() }
}

/// A kernel on memory that moves between the two GPUs of `spec` and the system.
///
/// # Errors
///
/// [`Stop::Skip`] where no memory moves; otherwise what went wrong.
pub fn moving(spec: WorldSpec) -> Result<(), Stop> {
    let svm = Svm::moving(spec, spec.device_memory, Memory::anonymous(2 * GRANULE)?)?;
    let pages = svm.memory.pages();
    svm.memory.fill(1);
    svm.give(0, pages, &[(0, SvmAccess::Migrate), (1, SvmAccess::Migrate)])?;
    let before = svm.moves()?;
    let mut stirrer = Stirrer::new(svm.world.client(), svm.world.gpu(0))?;
    let (va, words) = (svm.va(0), pages * PAGE / 4);
    let stir = |_| Ok(stirrer.stir(va, words, STEPS)?);
    let ((), launches) = repeat(stir, |work| {
        for (first, place) in [0, pages / 2].into_iter().flat_map(|first| PLACES.map(|place| (first, place))) {
            svm.prefetch(first, pages - first, place)?;
            work.more(1)?;
        }
        Ok(())
    })?;
    let after = svm.moves()?;
    ensure!(after.0 - before.0 >= pages && after.1 - before.1 >= pages, "moved {before:?} before, {after:?} after");
    for page in 0..pages {
        let expected = stirred(&pattern(page, 1), launches * STEPS);
        ensure!(svm.memory.read(page * PAGE, PAGE) == expected, "page {page} after {launches} launches");
    }
    Ok(())
}
