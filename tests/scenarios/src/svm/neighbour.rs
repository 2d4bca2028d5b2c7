// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Two threads with memory of their own in one 2 MiB: an unmap by one of them does not affect the
//! other's registrations.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use vkfd_client::{SvmAccess, SvmSet, PAGE};

use super::Svm;
use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::{Seen, WorldSpec};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "svm_memory_registered_beside_an_unmap_is_mapped_and_goes",
    about: "One thread unmaps its memory, a second registers its own in the same 2 MiB, a third has just faulted there: the call succeeds, its \
            entry is there, and is gone when the memory is.",
    run: || beside_an_unmap(WorldSpec::default()),
}];

/// The pages that are unmapped, at the end of much that goes with them: so the call takes its time.
const GOES: (u64, u64) = (512 * 8, 8);
/// The pages that are registered, in the same 2 MiB.
const COMES: u64 = GOES.0 + 256;
const ROUNDS: u64 = 200;
/// How long entries may take to come and go. What is broken never does it.
const PATIENCE: Duration = Duration::from_secs(60);

impl Svm {
    /// The valid bit of the GPU's entry for a page.
    fn is_mapped(&self, page: u64) -> Result<bool, Stop> {
        let entries = self.world.client().ptes(self.world.gpu(0), self.va(page), 1)?;
        Ok(entries.first().is_some_and(|entry| entry & 1 != 0))
    }

    /// Waits until the entry is there, or gone: an invalidation may have hit its block, and the
    /// restore brings it.
    fn await_entry(&self, page: u64, there: bool) -> Result<(), Stop> {
        let start = Instant::now();
        while self.is_mapped(page)? != there {
            ensure!(start.elapsed() < PATIENCE, "page {page}: an entry is there: {}, for good", !there);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// The parts of the driver may be broken on purpose.
pub fn beside_an_unmap(spec: WorldSpec) -> Result<(), Stop> {
    // 2 MiB in, whatever address the memory has got.
    let memory = Memory::anonymous((512 * 10) * PAGE)?;
    let skew = memory.whole().start / PAGE % 512;
    let svm = Svm::new(spec, memory)?;
    svm.world.sees(Seen::Unmap)?;
    let (goes, comes) = (GOES.0 + 512 - skew, COMES + 512 - skew);
    let access = [SvmSet::Access(svm.world.gpu(0), SvmAccess::Migrate)];
    let register = |first, pages| {
        // SAFETY: the memory is the scenario's, of which no reference is ever made.
        unsafe { svm.world.client().svm_set(svm.pages(first, pages), &access) }
    };
    for round in 0..ROUNDS {
        svm.memory.fill_pages(goes..goes + GOES.1, round);
        svm.memory.fill_pages(comes..comes + 1, round);
        register(goes, GOES.1)?;
        let start = Barrier::new(3);
        let pause = |n: u64| (0..n).for_each(|_| std::hint::spin_loop());
        let (unmapped, set) = std::thread::scope(|scope| {
            let faults = scope.spawn(|| {
                start.wait();
                // Its page is to be brought again, by a call that may find it gone already.
                let _ = svm.memory.discard(goes * PAGE, PAGE).map(|()| register(goes, GOES.1));
            });
            let comes = scope.spawn(|| {
                start.wait();
                pause(round * 37 % 5000);
                register(comes, 1)
            });
            start.wait();
            pause(round * 61 % 3000);
            let unmapped = svm.memory.replace(0, (goes + GOES.1) * PAGE);
            let set = comes.join();
            faults.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
            Ok::<_, Stop>((unmapped, set.map_err(|_| anyhow::anyhow!("a thread panicked"))?))
        })?;
        unmapped?;
        // What happens to other memory does not make it fail.
        set?;
        svm.await_entry(comes, true)?;
        svm.settle()?;
        svm.expect(0, comes, 1, round)?;
        svm.memory.replace(0, svm.memory.bytes())?;
        svm.world.told();
        svm.await_entry(comes, false)?;
    }
    Ok(())
}
