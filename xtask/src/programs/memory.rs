// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the device memory of a suite's programs is: the GPU's own, or what the project is about.
//!
//! Mechanism: a library of ours is loaded into the program and stands before HIP's `hipMalloc`. It
//! says in the end how much it was asked for.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::machine::Ran;
use crate::{tree, venv};

/// See the module.
#[derive(clap::ValueEnum, Deserialize, Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Memory {
    /// As the program asks for it
    #[default]
    Device,
    /// Host memory in scattered pieces of 4 to 64 KiB, each allocation registered by one call
    Batch,
    /// Managed memory, on a GPU that has too little memory of its own, with XNACK on
    Oversubscribed,
}

impl Memory {
    /// As it is called where it is not the usual.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Memory::Device => None,
            Memory::Batch => Some("batch"),
            Memory::Oversubscribed => Some("oversubscribed"),
        }
    }

    fn source(self) -> Option<&'static str> {
        match self {
            Memory::Device => None,
            Memory::Batch => Some("batched"),
            Memory::Oversubscribed => Some("managed"),
        }
    }

    /// Debian's, to compile the library.
    pub(crate) fn packages(self) -> &'static [&'static str] {
        match self {
            Memory::Device => &[],
            Memory::Batch | Memory::Oversubscribed => &["gcc", "libc6-dev"],
        }
    }

    /// Compiles the library, if there is one, to where the program works.
    pub(crate) fn compile(self, at: &Path) -> Result<Vec<Command>> {
        let Some(source) = self.source() else { return Ok(Vec::new()) };
        let sources =
            [format!("{source}.c"), "beneath.h".into()].map(|file| tree::root().join("xtask/programs").join(file));
        let mut command = Command::new("gcc");
        command
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
            .arg(at.join(format!("lib{source}.so")))
            .arg(&sources[0]);
        Ok(vec![venv::made_from(&sources)?, command])
    }

    /// Set when a program of a root runs.
    pub(crate) fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Memory::Device => &[],
            Memory::Batch => &[("LD_PRELOAD", "/work/libbatched.so")],
            Memory::Oversubscribed => &[("LD_PRELOAD", "/work/libmanaged.so"), ("HSA_XNACK", "1")],
        }
    }

    /// Options of `vkfd run` in the place of the suite's.
    pub(crate) fn options(self, little_vram: &'static str) -> Option<[&'static str; 3]> {
        match self {
            Memory::Oversubscribed => Some(["--xnack", "--vram", little_vram]),
            Memory::Device | Memory::Batch => None,
        }
    }

    /// Whether the program has got such memory.
    pub(crate) fn was_used(self, ran: &Ran) -> bool {
        self.source().is_none_or(|source| ran.stderr.contains(&format!("{source}: ")))
    }
}
