// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The interface: the call of a command word, the refused arguments, their errors, and the order of
//! checks.

mod batch;
mod commands;
mod files;
mod mapping;
mod queues;
mod runtime;
mod single;
mod svm;

use crate::Scenario;

/// The scenarios.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let all = [
        commands::SCENARIOS,
        batch::SCENARIOS,
        single::SCENARIOS,
        mapping::SCENARIOS,
        queues::SCENARIOS,
        runtime::SCENARIOS,
        files::SCENARIOS,
        svm::SCENARIOS,
    ];
    all.concat()
}
