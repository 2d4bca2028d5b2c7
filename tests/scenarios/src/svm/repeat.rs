// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The same again and again: memory that comes and goes, at new addresses and at the same ones, and
//! goes to a GPU and half back.

use vkfd_client::{ClientError, SvmAccess, PAGE};
use vkfd_driver::seams::device_memory::Kind;

use super::{both, Svm};
use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::{Seen, WorldSpec};
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "svm_memory_that_is_half_back_moves_again",
        about: "Half of what is on a GPU comes back to the CPU; the mix moves as a whole, several times.",
        run: || both(half_back),
    },
    Scenario {
        name: "svm_memory_comes_and_goes_many_times",
        about: "Mapped, filled, moved there and back, unmapped, ten times at new addresses and ten times at the same; VRAM is free in the end.",
        run: || both(many_times),
    },
    Scenario {
        name: "svm_memory_is_unmapped_while_a_gpu_reads_it",
        about: "The GPU has what was there, or faults in what has gone; never anything else.",
        run: || both(unmapped_while_read),
    },
];

const PAGES: u64 = 256;

fn half_back(kind: Kind) -> Result<(), Stop> {
    let svm = Svm::moving(WorldSpec::default(), kind, Memory::anonymous(PAGES * PAGE)?)?;
    svm.memory.fill(1);
    svm.give(0, PAGES, &[(0, SvmAccess::Migrate)])?;
    for seed in 1..4 {
        svm.prefetch(0, PAGES, Some(0))?;
        ensure_eq!(svm.in_vram()?, PAGES);
        svm.expect(0, 0, PAGES, seed)?;
        // Private memory comes back to a thread that reads it, coherent memory on request.
        svm.cpu_expects(0, PAGES / 2, seed)?;
        if kind == Kind::Coherent {
            ensure_eq!(svm.in_vram()?, PAGES, "what has moved by reading");
            svm.prefetch(0, PAGES / 2, None)?;
        }
        svm.world.until("half of it is back", |_| svm.in_vram().is_ok_and(|left| left <= PAGES / 2))?;
        svm.prefetch(0, PAGES, Some(0))?;
        ensure_eq!(svm.in_vram()?, PAGES);
        svm.expect(0, 0, PAGES, seed)?;
        svm.write(0, 0, PAGES, seed + 1)?;
        svm.prefetch(0, PAGES, None)?;
        svm.cpu_expects(0, PAGES, seed + 1)?;
    }
    Ok(())
}

fn many_times(kind: Kind) -> Result<(), Stop> {
    let mut svm = Svm::moving(WorldSpec::default(), kind, Memory::anonymous(PAGES * PAGE)?)?;
    svm.world.sees(Seen::Unmap)?;
    for round in 0..20 {
        svm.memory.fill(round);
        svm.give(0, PAGES, &[(0, SvmAccess::Migrate)])?;
        svm.prefetch(0, PAGES, Some(0))?;
        ensure_eq!(svm.in_vram()?, PAGES, "round {round}");
        svm.expect(0, 0, PAGES, round)?;
        if round % 3 == 0 {
            svm.prefetch(0, PAGES, None)?;
        }
        svm.cpu_expects(0, PAGES, round)?;
        if round < 10 {
            svm.memory = Memory::anonymous(PAGES * PAGE)?;
        } else {
            svm.memory.unmap(0, PAGES * PAGE)?;
            svm.memory.map_again(0, PAGES * PAGE)?;
        }
        svm.world.told();
        ensure!(svm.memory.read(0, PAGES * PAGE).iter().all(|byte| *byte == 0), "new memory is not zero");
    }
    svm.world.until("the VRAM of unmapped memory is free", |_| svm.in_vram().is_ok_and(|left| left == 0))
}

fn unmapped_while_read(kind: Kind) -> Result<(), Stop> {
    let svm = Svm::moving(WorldSpec::default(), kind, Memory::anonymous(PAGES * PAGE)?)?;
    svm.world.sees(Seen::Unmap)?;
    let half = PAGES / 2;
    let mut faults = 0;
    for round in 0..20 {
        svm.memory.fill(round);
        svm.give(0, PAGES, &[(0, SvmAccess::Migrate)])?;
        svm.prefetch(0, PAGES, (round % 2 == 0).then_some(0))?;
        std::thread::scope(|scope| {
            let unmapper = scope.spawn(|| {
                svm.memory.unmap(half * PAGE, half * PAGE)?;
                svm.world.told();
                Ok::<(), Stop>(())
            });
            // Again until it has gone.
            loop {
                let gone = unmapper.is_finished();
                match svm.world.read_gpu(svm.va(0), PAGES * PAGE) {
                    Ok(seen) => {
                        ensure_eq!(crate::wrong_page(&seen, 0..PAGES, round), None, "round {round}");
                        ensure!(!gone, "round {round}: the GPU reads what has gone");
                    }
                    Err(ClientError::GpuFault { va, .. }) => {
                        ensure!(va.0 >= svm.va(half).0 && va.0 < svm.va(PAGES).0, "a fault at {va}");
                        faults += 1;
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            unmapper.join().map_err(|_| anyhow::anyhow!("the thread that unmaps"))?
        })?;
        svm.expect(0, 0, half, round)?;
        svm.cpu_expects(0, half, round)?;
        svm.memory.map_again(half * PAGE, half * PAGE)?;
    }
    ensure_eq!(faults, 20);
    Ok(())
}
