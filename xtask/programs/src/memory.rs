// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the device memory of a suite's programs is: the GPU's own, or what the project is about.
//!
//! Mechanism: a library of ours is loaded into the program and stands before HIP's `hipMalloc`. It
//! says in the end how much it was asked for.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use vkfd_uapi::vkfd::SvmInfo;

use super::ran::Ran;
use xtask_base::{tree, venv};

/// What managed memory may have of a GPU: as much as the largest block that moves at a time. For
/// `vkfd run`, and for the module.
const LITTLE: &str = "2M";
const LITTLE_OF_MODULE: &str = "svm_vram=2097152";

/// See the module.
#[derive(clap::ValueEnum, Deserialize, Serialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// As the program asks for it
    #[default]
    Device,
    /// Host memory in scattered pieces of 4 to 64 KiB, each allocation registered by one call
    Batch,
    /// Managed memory, which may have too little of the GPU, with XNACK on
    Oversubscribed,
}

impl Memory {
    /// As it is called where it is not the usual.
    pub fn name(self) -> Option<&'static str> {
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
    pub fn packages(self) -> &'static [&'static str] {
        match self {
            Memory::Device => &[],
            Memory::Batch | Memory::Oversubscribed => &["gcc", "libc6-dev"],
        }
    }

    /// Compiles the library, if there is one, into the program's directory.
    pub fn compile(self, at: &Path) -> Result<Vec<Command>> {
        let Some(source) = self.source() else { return Ok(Vec::new()) };
        self.compile_to(source, &at.join(format!("lib{source}.so")))
    }

    /// For a program that loads HIP by itself, and looks functions up in the loaded library. Our
    /// library, if there is one, takes HIP's place at `library` and loads `hip`, HIP itself.
    pub fn compile_before(self, hip: &Path, library: &Path) -> Result<Vec<Command>> {
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
        compile.arg(format!("-DSVM_INFO_BYTES={}", size_of::<SvmInfo>()));
        compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-o"]).arg(library).arg(&sources[0]);
        Ok(vec![venv::made_from(&sources)?, compile])
    }

    /// Set when a program of a root runs. A program without HIP looks at the second.
    pub fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Memory::Device => &[],
            Memory::Batch => &[("LD_PRELOAD", "/work/libbatched.so"), ("VKFD_MEMORY", "batched")],
            Memory::Oversubscribed => {
                &[("LD_PRELOAD", "/work/libmanaged.so"), ("VKFD_MEMORY", "managed"), ("HSA_XNACK", "1")]
            }
        }
    }

    /// Options of `vkfd run`, besides those of the suite.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Memory::Oversubscribed => &["--xnack", "--svm-vram", LITTLE],
            Memory::Device | Memory::Batch => &[],
        }
    }

    /// The module's parameters, where programs run in a guest.
    pub fn parameters(self) -> &'static str {
        match self {
            Memory::Oversubscribed => LITTLE_OF_MODULE,
            Memory::Device | Memory::Batch => "",
        }
    }

    /// How often a program that ran was seen to have such memory: of the GPU's own, how often that
    /// was too little.
    pub fn seen(self, ran: &Ran) -> usize {
        match self {
            Memory::Device => 0,
            Memory::Batch => ran.stderr.lines().filter(|line| was_batched(line)).count(),
            Memory::Oversubscribed => ran.stderr.lines().filter_map(shortages).sum(),
        }
    }
}

/// Whether it is the last line of a program with memory in batches.
fn was_batched(line: &str) -> bool {
    line.starts_with("batched: ") && line.contains(" allocations are ")
}

/// How often the GPU's memory was too little, by the last line of a program with managed memory.
fn shortages(line: &str) -> Option<usize> {
    let (_, times) = line.strip_prefix("managed: ")?.rsplit_once("too little ")?;
    times.strip_suffix(" times")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_say_what_memory_they_had() {
        let ran = |stderr: &str| Ran { stderr: stderr.into(), ..Ran::default() };
        let line =
            "managed: 5 allocations, 3 bytes, at most 3 at once; 2 pages went to the GPU, its memory was too little";
        assert_eq!(Memory::Oversubscribed.seen(&ran(&format!("what\n{line} 12 times\n{line} 3 times"))), 15);
        assert_eq!(Memory::Oversubscribed.seen(&ran("too little 1 times")), 0);
        assert_eq!(Memory::Batch.seen(&ran("batched: 1 allocations are 2 pieces, 3 bytes")), 1);
        assert_eq!(Memory::Batch.seen(&ran("batched: hipMalloc: Cannot allocate memory")), 0);
    }
}
