// SPDX-License-Identifier: GPL-2.0 OR MIT
//! All scenarios, as tests. `VKFD_NOTIFY` chooses the notification source, `VKFD_DEVICE` a KFD
//! outside of this process.

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use libtest_mimic::{Arguments, Completion, Trial};
use vkfd_scenarios::{Scenario, Stop};

/// No thread allocates while the event reader waits for it.
#[global_allocator]
static HEAP: vkfd_rt::section::Checked<std::alloc::System> = vkfd_rt::section::Checked(std::alloc::System);

/// Name and reason of each.
static SKIPPED: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

fn trial(scenario: Scenario) -> Trial {
    Trial::ignorable_test(scenario.name, move || match (scenario.run)() {
        Ok(()) => Ok(Completion::Completed),
        Err(Stop::Skip(reason)) => {
            SKIPPED.lock().unwrap_or_else(PoisonError::into_inner).push((scenario.name, reason.clone()));
            Ok(Completion::ignored_with(reason))
        }
        Err(Stop::Fail(error)) => Err(format!("{error:#}\n({})", scenario.about).into()),
    })
}

fn main() -> ExitCode {
    if let Some(status) = vkfd_scenarios::run_role() {
        return status;
    }
    // One after the other: every machine of a process sees what a scenario does to its mappings.
    let args = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let conclusion = libtest_mimic::run(&args, vkfd_scenarios::runnable().into_iter().map(trial).collect());
    let skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, reason) in skipped.iter() {
        println!("skipped: {name}: {reason}");
    }
    if !skipped.is_empty() {
        println!("{} scenarios were skipped", skipped.len());
    }
    conclusion.exit_code()
}
