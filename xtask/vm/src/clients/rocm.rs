// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Clients that are ROCm's own and programs of the distribution's HIP.

use std::path::Path;

use anyhow::Result;
use vkfd_sabotage::Switch;
use vkfd_targets::Target;

use super::{Client, Place, GPUS};
use xtask_clients::{hip, hip_batch, hip_kernels, rocminfo, rocr, Source};

/// Those that the distribution's versions know.
// NEW TARGET: whether the distribution's ROCm knows it
pub(super) const TARGETS: &[Target] = &[Target::Gfx900, Target::Gfx90a, Target::Gfx1030];

/// All of them, compiled in `directory` if need be.
pub(super) fn clients(directory: &Path) -> Result<Vec<Client>> {
    let compile = |source: &Source| Ok::<_, anyhow::Error>(Place::Copied(source.compile(directory)?));
    let (short_copy, short_grid) = (Switch::ShortCopy.name(), Switch::ShortGrid.name());
    let gpus = GPUS.to_string();
    let client = |name, place, arguments: &[&str], notices| Client {
        name,
        targets: TARGETS,
        place,
        arguments: arguments.iter().map(ToString::to_string).collect(),
        environment: &[],
        right: |said, _| said.all_right(),
        notices,
    };
    Ok(vec![
        Client {
            right: |said, target| {
                let agents = said.stdout.lines().filter(|line| rocminfo::is_agent(line, target.name()));
                said.succeeded() && u32::try_from(agents.count()) == Ok(GPUS)
            },
            ..client("rocminfo", Place::Copied("/usr/bin/rocminfo".into()), &[], None)
        },
        client(
            "ROCR, 2,000 locked buffers, copied both ways",
            compile(&rocr::PROGRAM)?,
            &["2000"],
            Some((short_copy, "FAILED: buffer")),
        ),
        // Its copies are kernels, which a short copy leaves alone.
        client("ROCR, SVM memory prefetched to each GPU, used there in place", compile(&rocr::SVM)?, &["4"], None),
        client(
            "HIP, copies of every kind, 100 registered buffers a GPU",
            compile(&hip::PROGRAM)?,
            &[&gpus, "100"],
            Some((short_copy, "FAILED: pageable memory")),
        ),
        client(
            "HIP, managed memory, prefetched, advised, set and copied",
            compile(&hip::MANAGED)?,
            &[&gpus],
            Some((short_copy, hip::MANAGED_SHORT)),
        ),
        Client {
            right: |said, _| said.succeeded() && hip_kernels::all_right(&said.stdout),
            // A histogram, to which every work-item adds.
            ..client("HIP, kernels of its own", compile(&hip_kernels::KERNELS)?, &[], Some((short_grid, "FAILED")))
        },
        Client {
            right: |said, _| said.succeeded() && hip_batch::all_right(&said.stdout),
            ..client(
                "HIP, a batch of 4,000 scattered mallocs, discarded, replaced, paged out, restored",
                compile(&hip_batch::BATCH)?,
                &[hip_batch::PIECES],
                Some((short_grid, "FAILED: as registered")),
            )
        },
    ])
}
