// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Programs that run on AMD's driver in the guest: the tree's own for ROCR and HIP, compiled
//! against the distribution's libraries, and the client library's.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::clients::{hip, hip_kernels, rocr};
use crate::debian;
use crate::{cargo, tree};

/// HIP loads it by name when it is asked for a device.
pub const COMPILER: &str = "/usr/lib/x86_64-linux-gnu/libamd_comgr.so.2";

/// A program's run.
pub struct Run {
    pub program: PathBuf,
    pub command: &'static str,
    /// Seconds that it may take.
    pub seconds: u64,
    /// The last line of its output.
    pub last: &'static str,
}

/// All of them, built. With a series, times of registration are shown as well.
pub fn runs(series: bool) -> Result<Vec<Run>> {
    debian::install(&[rocr::CLIENT.packages, hip::CLIENT.packages].concat())?;
    let directory = std::path::absolute(tree::target()).context("make the target directory absolute")?;
    let directory = directory.join("vm/amdgpu/built");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let run = |program: PathBuf, command, seconds, last| Run { program, command, seconds, last };
    let path = Path::new(&directory);
    let mut runs = vec![
        run(cargo::example("stock")?, "stock", 60, "8 MiB went to the GPU's memory and came back"),
        run(rocr::PROGRAM.compile(path)?, "copies 200", 60, "ok"),
        run(hip_kernels::KERNELS.compile(path)?, "hip_kernels", 180, "ok"),
        run(hip::PROGRAM.compile(path)?, "hip_copies 1 50", 180, "ok"),
        run(hip::MANAGED.compile(path)?, "hip_managed 1", 180, "ok"),
    ];
    if series {
        runs.push(run(cargo::example("ratio")?, "ratio", 300, "ok"));
    }
    Ok(runs)
}
