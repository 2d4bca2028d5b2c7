// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs that run on AMD's driver in the guest: the tree's own for ROCR and HIP, compiled
//! against the distribution's libraries, and the client library's.

use std::fs;
use std::path::PathBuf;

use anyhow::{ensure, Context, Result};

use xtask_base::debian;
use xtask_base::{cargo, tree};
use xtask_clients::{hip, hip_kernels, hip_pages, rocr, Source};

/// HIP loads it by name when it is asked for a device.
pub const COMPILER: &str = "/usr/lib/x86_64-linux-gnu/libamd_comgr.so.2";

/// What a program is built from.
enum From {
    /// An example of the client library.
    Example(&'static str),
    Source(&'static Source),
}

/// A program's run.
pub struct Run {
    pub program: PathBuf,
    pub command: &'static str,
    /// Seconds that it may take.
    pub seconds: u64,
    /// The last line of its output.
    pub last: &'static str,
}

/// Those whose command contains `filter`, built. With a series, times of registration are shown as
/// well.
pub fn runs(filter: &str, series: bool) -> Result<Vec<Run>> {
    debian::install(&[rocr::CLIENT.packages, hip::CLIENT.packages, hip_pages::CLIENT.packages].concat())?;
    let directory = std::path::absolute(tree::target()).context("make the target directory absolute")?;
    let directory = directory.join("vm/amdgpu/built");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let from = |source: &'static Source| From::Source(source);
    let mut all = vec![
        (From::Example("stock"), "stock", 60, "8 MiB went to the GPU's memory and came back"),
        (from(&rocr::PROGRAM), "copies 200", 60, "ok"),
        (from(&hip_kernels::KERNELS), "hip_kernels", 180, "ok"),
        (from(&hip::PROGRAM), "hip_copies 1 50", 180, "ok"),
        (from(&hip::MANAGED), "hip_managed 1", 180, "ok"),
        (from(&hip_pages::PROGRAM), "hip_pages evictions 100", 180, "ok"),
        (from(&hip_pages::PROGRAM), "HSA_XNACK=1 hip_pages apart 100", 180, "ok"),
        (from(&hip_pages::PROGRAM), "export HSA_XNACK=1; hip_pages retries 100 10", 180, "ok"),
    ];
    if series {
        all.push((From::Example("ratio"), "ratio", 300, "ok"));
    }
    let wanted: Vec<_> = all.into_iter().filter(|(_, command, ..)| command.contains(filter)).collect();
    ensure!(!wanted.is_empty(), "no program's command contains {filter:?}");
    let built = wanted.into_iter().map(|(from, command, seconds, last)| {
        let program = match from {
            From::Example(name) => cargo::example(name)?,
            From::Source(source) => source.compile(&directory)?,
        };
        Ok(Run { program, command, seconds, last })
    });
    built.collect()
}
