// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Clients that are programs of this tree, compiled against the distribution's headers and
//! libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use xtask_base::tree;

/// A program in C, C++ or HIP.
pub struct Source {
    /// Relative to the tree.
    pub file: &'static str,
    /// For the compiler, after the file.
    pub arguments: &'static [&'static str],
}

impl Source {
    /// Compiles it into `directory`, where another run may be starting the program that is there.
    pub fn compile(&self, directory: &Path) -> Result<PathBuf> {
        let source = tree::root().join(self.file);
        let program = directory.join(source.file_stem().unwrap_or_default());
        let compiler = match source.extension().and_then(|extension| extension.to_str()) {
            Some("c") => "cc",
            Some("hip") => "hipcc",
            _ => "c++",
        };
        let partial = program.with_extension(format!("{}-partial", std::process::id()));
        let mut command = Command::new(compiler);
        command.args(["-O1", "-Wall", "-o"]).arg(&partial).arg(&source).args(self.arguments);
        let status = command.status().with_context(|| format!("run {compiler}"))?;
        ensure!(status.success(), "{} does not compile: {command:?}", source.display());
        std::fs::rename(&partial, &program).with_context(|| format!("rename {}", partial.display()))?;
        Ok(program)
    }
}
