// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The compilers for the kernel and its modules, and make with all of them named.
//!
//! The kernel builds Rust's core library itself, so it needs a compiler that comes with the
//! library's source; the one that builds the rest of this project seldom does. Every path is given
//! to make: PATH says nothing about which one is right.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::cache::Cache;
use super::{bindgen, Flavor};

/// Any libclang that the kernel accepts would do; a fixed one gives the same bindings everywhere.
const LIBCLANG: &str = "/usr/lib/llvm-19/lib";

const CLANG: &str = "clang-19";

/// The compilers of one kernel.
pub struct Tools {
    rustc: PathBuf,
    bindgen: PathBuf,
    cc: &'static str,
    /// What they say of themselves.
    versions: String,
}

impl Tools {
    /// Those on this machine.
    pub fn find(cache: &Cache, flavor: Flavor) -> Result<Self> {
        let how = || format!("run `cargo xtask vm setup{}`", flavor.option());
        let rustc = rustc().with_context(|| format!("no Rust compiler with its library's source: {}", how()))?;
        let bindgen =
            bindgen::find(cache).with_context(|| format!("no bindgen in {}: {}", cache.root().display(), how()))?;
        let cc = match flavor {
            Flavor::Plain => "gcc",
            Flavor::Debug => CLANG,
        };
        let mut versions = String::new();
        for (program, option) in [(rustc.as_path(), "--version"), (&bindgen, "--version"), (Path::new(cc), "--version")]
        {
            let version = first_line(program, option);
            versions += &version.with_context(|| format!("{} does not work: {}", program.display(), how()))?;
            versions.push('\n');
        }
        Ok(Self { rustc, bindgen, cc, versions })
    }

    /// A text that changes when one of them does.
    pub fn versions(&self) -> &str {
        &self.versions
    }

    /// make for the kernel at `source` that is built in `build`.
    pub fn make(&self, source: &Path, build: &Path) -> Command {
        let mut make = plain_make(source, build);
        make.arg(format!("RUSTC={}", self.rustc.display())).arg(format!("HOSTRUSTC={}", self.rustc.display()));
        make.arg(format!("RUSTDOC={}", self.rustc.with_file_name("rustdoc").display()));
        make.arg(format!("BINDGEN={}", self.bindgen.display()));
        if self.cc != "gcc" {
            make.arg(format!("CC={}", self.cc));
        }
        make.env("LIBCLANG_PATH", LIBCLANG);
        make
    }
}

/// make for a kernel without Rust, with the machine's C compiler.
pub fn plain_make(source: &Path, build: &Path) -> Command {
    // Two makes must not work in one tree: this one ends with this process, however that ends.
    let mut make = Command::new("setpriv");
    make.args(["--pdeathsig", "TERM", "make"]);
    make.arg("-C").arg(source).arg(format!("O={}", build.display()));
    // The same sources give the same kernel.
    make.env("KBUILD_BUILD_USER", "vkfd").env("KBUILD_BUILD_HOST", "vkfd").env("KBUILD_BUILD_VERSION", "1");
    make.env("KBUILD_BUILD_TIMESTAMP", "Thu Jan  1 00:00:00 UTC 1970");
    // Cargo's environment is for the compiler that cargo runs, and a caller's make is not this one.
    for name in [
        "LD_LIBRARY_PATH",
        "MAKEFLAGS",
        "MAKELEVEL",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "RUSTC",
        "RUSTC_WRAPPER",
        "ARCH",
        "CROSS_COMPILE",
    ] {
        make.env_remove(name);
    }
    make
}

/// A compiler that has its library's source.
pub fn rustc() -> Option<PathBuf> {
    let rustup = Command::new("rustup").args(["which", "rustc"]).output().ok().filter(|out| out.status.success());
    let rustup = rustup.and_then(|out| Some(PathBuf::from(String::from_utf8(out.stdout).ok()?.trim())));
    [Some(PathBuf::from("/usr/bin/rustc")), rustup].into_iter().flatten().find(|rustc| has_library_source(rustc))
}

fn has_library_source(rustc: &Path) -> bool {
    let output = Command::new(rustc).args(["--print", "sysroot"]).env_remove("LD_LIBRARY_PATH").output();
    let Some(sysroot) =
        output.ok().filter(|out| out.status.success()).and_then(|out| String::from_utf8(out.stdout).ok())
    else {
        return false;
    };
    Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs").exists()
}

fn first_line(program: &Path, option: &str) -> Option<String> {
    let output =
        Command::new(program).arg(option).env("LIBCLANG_PATH", LIBCLANG).env_remove("LD_LIBRARY_PATH").output();
    let output = output.ok().filter(|out| out.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.into())
}
