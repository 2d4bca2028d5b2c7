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
        self.compile_to(source, &at.join(format!("lib{source}.so")))
    }

    /// For a program that loads HIP by itself, and asks what it has loaded for HIP's functions: the
    /// library, if there is one, takes HIP's place at `library` and loads `hip`, HIP itself.
    pub(crate) fn compile_before(self, hip: &Path, library: &Path) -> Result<Vec<Command>> {
        let Some(source) = self.source() else { return Ok(Vec::new()) };
        let mut commands = self.compile_to(source, library)?;
        if let Some(compile) = commands.last_mut() {
            // It is loaded before the program as well, and is not to call that other one.
            compile.args(["-Wl,-Bsymbolic", "-Wl,--no-as-needed"]).arg(hip);
        }
        Ok(commands)
    }

    fn compile_to(self, source: &str, library: &Path) -> Result<Vec<Command>> {
        let sources =
            [format!("{source}.c"), "beneath.h".into()].map(|file| tree::root().join("xtask/programs").join(file));
        let mut compile = Command::new("gcc");
        compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(library).arg(&sources[0]);
        Ok(vec![venv::made_from(&sources)?, compile])
    }

    /// Set when a program of a root runs. A program without HIP looks at the second.
    pub(crate) fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Memory::Device => &[],
            Memory::Batch => &[("LD_PRELOAD", "/work/libbatched.so"), ("VKFD_MEMORY", "batched")],
            Memory::Oversubscribed => {
                &[("LD_PRELOAD", "/work/libmanaged.so"), ("VKFD_MEMORY", "managed"), ("HSA_XNACK", "1")]
            }
        }
    }

    /// Options of `vkfd run`, of those of the suite.
    pub(crate) fn options<'a>(self, options: &[&'a str], little_vram: &'a str) -> Vec<&'a str> {
        let mut options = options.to_vec();
        if let Memory::Oversubscribed = self {
            if let Some(at) = options.iter().position(|option| *option == "--vram") {
                options.drain(at..options.len().min(at + 2));
            }
            options.extend(["--xnack", "--vram", little_vram]);
        }
        options
    }

    /// Whether the program has got such memory.
    pub(crate) fn was_used(self, ran: &Ran) -> bool {
        self.source().is_none_or(|source| ran.stderr.contains(&format!("{source}: ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversubscribed_there_is_less_vram_than_the_suite_wants() {
        let options = ["--vram", "4G", "--gpus", "2"];
        assert_eq!(Memory::Batch.options(&options, "16M"), options);
        assert_eq!(Memory::Oversubscribed.options(&options, "16M"), ["--gpus", "2", "--xnack", "--vram", "16M"]);
    }
}
