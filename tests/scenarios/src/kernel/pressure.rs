// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Two clients with 4,096 ranges each, which have less memory together than they need, for a
//! minute.

use std::time::{Duration, Instant};

use vkfd_client::PAGE;

use super::cgroup::Cgroup;
use super::client_process::{ClientProcess, Scenario};
use super::pages;
use super::stage::{Stage, Work};
use super::swap::press;
use crate::coherence::batch::FIRST;
use crate::memory::Memory;
use crate::verdict::Stop;
use crate::world::WorldSpec;

const RANGES: u64 = 4096;
const TIME: Duration = Duration::from_secs(60);
/// Where a minute is not much.
const ROUNDS: u64 = 2;
const PATIENCE: Duration = Duration::from_secs(1800);
/// As many registered pages of a client were in swap at a time, sooner or later.
const IN_SWAP: usize = 64;

/// Of memory that is not registered.
const MORE: u64 = RANGES * PAGE / 2;

/// One client with XNACK off, one with it on if the GPU can, whose GPUs copy and compute in turn.
/// Together they touch 48 MiB, and their
/// own, and have 40.
pub(super) fn two_processes() -> Result<(), Stop> {
    let world = super::world()?;
    let modes = ["xnack off", if world.client().caps().xnack { "xnack on" } else { "xnack off" }];
    let cgroup = Cgroup::new(2 * RANGES * PAGE + MORE)?;
    let swapped = pages::vmstat("pswpout")?;
    let mut clients = Vec::new();
    for mode in modes {
        let mut client = ClientProcess::start("pressure", Some(&cgroup))?;
        client.tell(mode)?;
        clients.push(client);
    }
    for client in &mut clients {
        client.expect("rounds")?.parse::<u64>()?;
    }
    for client in clients {
        client.finish()?;
    }
    let swapped = pages::vmstat("pswpout")? - swapped;
    ensure!(swapped >= RANGES, "only {swapped} pages went to swap");
    ensure_eq!(cgroup.events("oom_kill")?, 0);
    Ok(())
}

pub(super) fn client_role(scenario: &mut Scenario) -> Result<(), Stop> {
    let xnack = scenario.order()? == "xnack on";
    let stage = Stage::new(WorldSpec { xnack, ..WorldSpec::default() }, RANGES, 1)?;
    let hog = Memory::anonymous(MORE)?;
    let (mut round, mut most) = (0, 0);
    let start = Instant::now();
    while start.elapsed() < TIME || round < ROUNDS || most < IN_SWAP {
        ensure!(start.elapsed() < PATIENCE, "at most {most} registered pages in swap at a time, in {round} rounds");
        let seed = FIRST + 10 * round;
        if round > 0 {
            stage.exchange(seed)?;
        }
        let work = if round % 2 == 0 { Work::Copies } else { Work::Kernel };
        stage.under(work, seed, |work| {
            press(&hog, seed, || {
                most = most.max(pages::swapped(stage.memory())?);
                Ok(())
            })?;
            work.more(1)
        })?;
        ensure_eq!(hog.find_wrong(0..hog.pages(), seed), None);
        round += 1;
    }
    let info = stage.world.client().snapshot()?;
    if xnack {
        ensure!(info.gpu_faults > 0 && info.evictions == 0, "{info:?}");
    } else {
        ensure!(info.evictions > 0 && info.evictions - info.restores <= 1, "{info:?}");
    }
    stage.exchange(2)?;
    scenario.say(&format!("rounds {round}"))
}
