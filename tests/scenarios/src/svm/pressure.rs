// SPDX-License-Identifier: GPL-2.0 OR MIT
//! More memory than VRAM: a call that needs room evicts the coldest.

use std::ops::Deref;
use std::time::{Duration, Instant};

use vkfd_client::{AllocOptions, Buffer, SvmAccess, PAGE};
use vkfd_driver::seams::device_memory::Kind;

use super::{both, Svm, GRANULE};
use crate::limits::available;
use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::WorldSpec;
use crate::Scenario;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "svm_a_working_set_of_twice_the_vram_runs_to_the_right_result",
        about: "XNACK on: faults evict and bring back; the result is right, and the counters show it, also that thrashing is damped.",
        run: || both(oversubscription),
    },
    Scenario {
        name: "svm_prefetches_beyond_vram_evict_the_coldest",
        about: "XNACK off: the last prefetched is there, the first is not, all is usable.",
        run: || both(prefetches),
    },
    Scenario {
        name: "svm_buffers_make_svm_memory_give_way",
        about: "An allocation of VRAM succeeds by eviction, and nothing of what was there is in it; what cannot be had is refused.",
        run: || both(buffers),
    },
    Scenario {
        name: "svm_memory_that_goes_to_and_fro_is_left_in_peace",
        about: "Two GPUs fault on the same memory in turn: after a few bounces it stays in system memory for a while.",
        run: || both(thrash),
    },
];

const VRAM: u64 = 16 << 20;
/// A kernel's driver takes moves that are further apart than this for no bounce; here with room for
/// the test's own work. In the process an hour is short.
const BOUNCE: Duration = Duration::from_millis(500);
const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(60);

/// A world whose GPU has little VRAM.
struct Small {
    /// The rest of the VRAM, of a KFD that is not in this process and has what it has. Goes before
    /// the world.
    _taken: Option<Buffer>,
    svm: Svm,
}

impl Deref for Small {
    type Target = Svm;

    fn deref(&self) -> &Svm {
        &self.svm
    }
}

fn small(kind: Kind, xnack: bool, bytes: u64) -> Result<Small, Stop> {
    let spec = WorldSpec { xnack, vram_bytes: VRAM, bounce: Some(HOUR), ..WorldSpec::default() };
    let svm = Svm::moving(spec, kind, Memory::anonymous(bytes)?)?;
    // Queues and page tables are there before.
    svm.world.with_engine(0, |_| Ok(()))?;
    let (client, gpu) = (svm.world.client(), svm.world.gpu(0));
    let taken = match available(client, gpu)?.saturating_sub(VRAM) / GRANULE * GRANULE {
        0 => None,
        rest => Some(client.alloc(&AllocOptions { cpu_map: false, ..AllocOptions::vram(gpu, rest) })?),
    };
    Ok(Small { _taken: taken, svm })
}

/// Whether nothing can have bounced, because it all took so long.
fn too_slow(svm: &Svm, slowest: Duration) -> bool {
    !svm.world.in_process() && slowest > BOUNCE
}

/// Passes over twice the VRAM, until what goes to and fro is left in peace for a while.
fn oversubscription(kind: Kind) -> Result<(), Stop> {
    const PASSES: u64 = 3;
    let svm = small(kind, true, 2 * VRAM)?;
    let (granule, pages) = (GRANULE / PAGE, svm.memory.pages());
    svm.memory.fill(1);
    let (mut seed, mut slowest) = (1, Duration::ZERO);
    let start = Instant::now();
    loop {
        let pass = Instant::now();
        for first in (0..pages).step_by(usize::try_from(granule)?) {
            svm.expect(0, first, granule, seed)?;
            svm.write(0, first, granule, seed + 1)?;
        }
        slowest = slowest.max(pass.elapsed());
        seed += 1;
        let info = svm.world.client().svm()?;
        if seed > PASSES && (info.damped > 0 || too_slow(&svm, slowest) || start.elapsed() > PATIENCE) {
            ensure!(info.evictions > 0 && info.pages_in > VRAM / PAGE, "{info:?}");
            ensure!(info.bounces > 0 || too_slow(&svm, slowest), "nothing bounced in {seed} passes: {info:?}");
            ensure!(info.damped > 0 || too_slow(&svm, slowest), "nothing was damped in {seed} passes: {info:?}");
            break;
        }
    }
    svm.cpu_expects(0, pages, seed)
}

fn prefetches(kind: Kind) -> Result<(), Stop> {
    let svm = small(kind, false, 2 * VRAM)?;
    let (pages, granule) = (svm.memory.pages(), GRANULE / PAGE);
    svm.memory.fill(1);
    svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
    for first in (0..pages).step_by(usize::try_from(granule)?) {
        svm.prefetch(first, granule, Some(0))?;
    }
    svm.settle()?;
    let there = svm.in_vram()?;
    ensure!(there >= VRAM / PAGE / 2 && there < pages, "{there} pages in VRAM");
    svm.expect(0, 0, pages, 1)?;
    svm.write(0, 0, pages, 2)?;
    svm.cpu_expects(0, pages, 2)
}

fn buffers(kind: Kind) -> Result<(), Stop> {
    let svm = small(kind, false, VRAM)?;
    let pages = svm.memory.pages();
    svm.memory.fill(1);
    svm.give(0, pages, &[(0, SvmAccess::Migrate)])?;
    svm.prefetch(0, pages, Some(0))?;
    let before = svm.in_vram()?;
    ensure!(before > pages / 2, "{before} pages in VRAM");
    let other = svm.world.open()?;
    let buffer = other.alloc(&AllocOptions { cpu_map: true, ..AllocOptions::vram(other.gpus()[0].id, VRAM / 2) })?;
    ensure!(svm.in_vram()? < before, "nothing gave way");
    let mut page = vec![1; usize::try_from(PAGE)?];
    for at in (0..buffer.len()).step_by(page.len()) {
        buffer.read(at, &mut page)?;
        ensure!(page.iter().all(|byte| *byte == 0), "memory of another process is in the buffer at {at:#x}");
    }
    ensure!(svm.world.client().svm()?.evictions > 0);
    svm.expect(0, 0, pages, 1)?;
    ensure!(other.alloc(&AllocOptions::vram(other.gpus()[0].id, VRAM)).is_err(), "there is not so much");
    svm.write(0, 0, pages, 2)?;
    svm.cpu_expects(0, pages, 2)?;
    drop(buffer);
    svm.prefetch(0, pages, Some(0))?;
    ensure!(svm.in_vram()? > pages / 2);
    svm.cpu_expects(0, pages, 2)
}

fn thrash(kind: Kind) -> Result<(), Stop> {
    let spec = WorldSpec { gpus: 2, xnack: true, bounce: Some(HOUR), ..WorldSpec::default() };
    let svm = Svm::moving(spec, kind, Memory::anonymous(GRANULE)?)?;
    let pages = svm.memory.pages();
    svm.memory.fill(1);
    let (mut seed, mut slowest) = (1, Duration::ZERO);
    for round in 0..60 {
        let gpu = round % 2;
        let start = Instant::now();
        svm.expect(gpu, 0, pages, seed)?;
        seed += 1;
        svm.write(gpu, 0, pages, seed)?;
        slowest = slowest.max(start.elapsed());
    }
    svm.cpu_expects(0, pages, seed)?;
    let info = svm.world.client().svm()?;
    ensure!(info.damped > 0 || too_slow(&svm, slowest), "nothing was damped: {info:?}");
    ensure!(info.pages_in <= 61 * pages, "{info:?}");
    Ok(())
}
