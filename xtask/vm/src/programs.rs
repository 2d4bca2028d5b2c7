// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The project's programs that run in the guest or beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use xtask_base::cargo::{self, Build};

/// A program of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binary {
    pub name: &'static str,
    package: &'static str,
    /// Linked with its libraries.
    whole: bool,
}

impl Binary {
    const fn new(name: &'static str, package: &'static str) -> Self {
        Self { name, package, whole: false }
    }
}

/// The guest's first process.
pub const INIT: Binary = Binary::new("vkfd-init", "vkfd-guest");
/// The scenario suite.
pub const SCENARIOS: Binary = Binary::new("vkfd-scenarios", "vkfd-scenarios");
/// The stress test.
pub const STRESS: Binary = Binary::new("vkfd-stress", "vkfd-hunt");
/// The command line.
pub const VKFD: Binary = Binary::new("vkfd", "vkfd");
/// The GPU outside of the guest.
pub const GPU: Binary = Binary::new("vkfd-gpu", "vkfd-device");
/// The same for a guest whose driver is AMD's own.
pub const PCI_GPU: Binary = Binary::new("vkfd-pci-gpu", "vkfd-device");
/// The guest's side of native context, which runs in any guest.
pub const NATIVE: Binary = Binary { whole: true, ..Binary::new("vkfd-native", "vkfd-native") };

/// Built programs.
pub struct Programs(BTreeMap<&'static str, PathBuf>);

impl Programs {
    /// Builds `binaries`.
    pub fn build(build: Build, binaries: &[Binary]) -> Result<Self> {
        let path = |binary: &Binary| match binary.whole {
            true => cargo::whole_program(binary.package, binary.name),
            false => cargo::program(build, binary.package, binary.name),
        };
        let built = binaries.iter().map(|binary| Ok((binary.name, path(binary)?))).collect::<Result<_>>()?;
        Ok(Self(built))
    }

    /// One that was asked for.
    pub fn path(&self, binary: Binary) -> Result<&Path> {
        self.0.get(binary.name).map(PathBuf::as_path).with_context(|| format!("{} was not built", binary.name))
    }
}
