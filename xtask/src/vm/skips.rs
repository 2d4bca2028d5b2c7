// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scenarios that the guest is known to skip, so that none is skipped by mistake.
//!
//! A skip that is not here is a finding, and so is a scenario that is here and runs: this list is all that the guest does not show. It is
//! about a guest as `vm test` makes it; one with fewer GPUs, less memory or a module with other parameters skips more, and then skips are
//! only shown.

/// A scenario, what it says when it is skipped, and why that is as it should be.
struct Skip {
    name: &'static str,
    says: &'static str,
    why: &'static str,
}

const EXPECTED: [Skip; 2] = [
    Skip {
        name: "buffers_share_their_memory_as_files",
        says: "this host makes no files of buffers",
        why: "the module makes no dma-bufs: a kernel need not (specification, 1.10)",
    },
    Skip {
        name: "event_files_tell_of_faults",
        says: "this host makes no files of events",
        why: "the module makes no files of events: a kernel need not (specification, 1.10)",
    },
];

/// Whether `name` may be skipped, saying `reason`: why it may, or what is wrong.
pub fn judge(name: &str, reason: &str) -> Result<&'static str, String> {
    match EXPECTED.iter().find(|skip| skip.name == name) {
        None => Err(format!("scenario {name} was skipped, which xtask/src/vm/skips.rs does not expect: {reason}")),
        Some(skip) if reason == skip.says => Ok(skip.why),
        Some(skip) => Err(format!("scenario {name} was skipped because {reason:?}, expected was {:?}", skip.says)),
    }
}

/// What is wrong with `name` having run.
pub fn judge_run(name: &str) -> Option<String> {
    let skip = EXPECTED.iter().find(|skip| skip.name == name)?;
    Some(format!("scenario {} runs: take it from the list in xtask/src/vm/skips.rs", skip.name))
}
