// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queues as the driver shows them.

use std::time::Duration;

use vkfd_client::uapi::vkfd::{QUEUE_FAULT_NOT_PRESENT, QUEUE_STATE_FAULTED, QUEUE_STATE_RUNNING};
use vkfd_client::{AllocOptions, ClientError, CopyQueue, GpuSet, PAGE};

use crate::{Scenario, Stop, World, WorldSpec};

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "a_page_fault_stops_the_queue_that_made_it_and_no_other",
    about: "Of two queues one reads what is not mapped: it is shown as stopped, with the address; the other goes on.",
    run: one_of_two,
}];

fn one_of_two() -> Result<(), Stop> {
    let world = World::new(WorldSpec::default())?;
    let (client, gpu) = (world.client(), world.gpu(0));
    if !client.caps().queues {
        return Err(Stop::Skip("this KFD does not show queues".into()));
    }
    let memory = client.alloc(&AllocOptions::gtt(2 * PAGE))?;
    let gone = client.alloc(&AllocOptions::vram(gpu, PAGE))?;
    gone.unmap(&GpuSet::All)?;
    let mut bad = CopyQueue::new(client, gpu)?;
    let mut good = CopyQueue::new(client, gpu)?;
    match bad.copy_now(memory.gpu_va(), gone.gpu_va(), PAGE, PATIENCE) {
        Err(ClientError::GpuFault { va, not_present: true, .. }) => ensure_eq!(va, gone.gpu_va()),
        other => bail!("reading what is not mapped ended with {other:?}"),
    }
    good.copy_now(memory.gpu_va().offset(PAGE), memory.gpu_va(), PAGE, PATIENCE)?;
    let mut states: Vec<_> = client.queues()?.iter().map(|q| (q.state, q.fault, q.fault_va)).collect();
    states.sort_unstable();
    let faulted = (QUEUE_STATE_FAULTED, QUEUE_FAULT_NOT_PRESENT, gone.gpu_va().0);
    ensure_eq!(states, [(QUEUE_STATE_RUNNING, 0, 0), faulted]);
    // It stays stopped, and is gone when it is destroyed.
    if bad.copy_now(memory.gpu_va(), memory.gpu_va().offset(PAGE), PAGE, PATIENCE).is_ok() {
        bail!("a stopped queue went on");
    }
    drop(bad);
    ensure_eq!(client.queues()?.len(), 1);
    Ok(())
}
