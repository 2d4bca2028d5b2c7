// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Running the program. Not every test uses all of it.
#![allow(dead_code)]

use serde_json::Value;
use std::process::{Command, Output};

/// The program with these arguments, in an environment that does not change what it prints or how
/// it learns of mappings.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vkfd"));
    command.args(arguments).env_remove("VKFD_NOTIFY").env_remove("VKFD_PRELOAD");
    // What it writes out for programs stays with the tests.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// The one document that it printed, and nothing else.
pub fn json(run: &Output) -> Value {
    serde_json::from_slice(&run.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr))
    })
}

/// A step by its name.
pub fn step<'a>(document: &'a Value, name: &str) -> &'a Value {
    let steps = document["steps"].as_array().or_else(|| document["lists"][0]["steps"].as_array());
    let found = steps.and_then(|steps| steps.iter().find(|step| step["name"] == name));
    found.unwrap_or_else(|| panic!("no step {name} in {document:#}"))
}
