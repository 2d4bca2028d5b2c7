// SPDX-License-Identifier: GPL-2.0 OR MIT
//! GCC's C torture tests, executed on the GPU: `gcc.c-torture/execute`, from Debian's source of
//! gcc-12.
//!
//! Mechanism: each test is compiled into `torture.c`, which calls the test's `main` from an OpenMP
//! target region, and is offloaded by Debian's gcc-12-offload-amdgcn. A test that finds something
//! wrong calls abort(), which is a trap on the GPU, or returns something other than 0.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::ran::Ran;
use super::source::Source;
use super::suite::{Control, Outcome, Suite};
use super::unit::Unit;
use xtask_base::tree;

pub struct GccTorture;

impl Suite for GccTorture {
    fn name(&self) -> &'static str {
        "gcc-torture"
    }

    fn about(&self) -> &'static str {
        "GCC's C torture tests, offloaded by OpenMP"
    }

    fn packages(&self) -> &'static [&'static str] {
        &["gcc-12", "gcc-12-offload-amdgcn", "libhsa-runtime64-1", "libc6-dev", "xz-utils", "dpkg-dev"]
    }

    fn source(&self) -> Source {
        Source::Debian {
            package: "gcc-12",
            upstream: "gcc-12_12.2.0.orig.tar.gz",
            inner: "gcc-12-12.2.0/gcc-12.2.0-dfsg.tar.xz",
            directory: "gcc-12.2.0/gcc/testsuite/gcc.c-torture/execute",
        }
    }

    fn targets(&self) -> &'static [&'static str] {
        &["gfx900"]
    }

    fn budget(&self) -> Duration {
        Duration::from_secs(60 * 60)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn units(&self, source: &Path) -> Result<Vec<String>> {
        let mut units = Vec::new();
        for (directory, prefix) in [(source.to_path_buf(), ""), (source.join("ieee"), "ieee/")] {
            for file in fs::read_dir(&directory).with_context(|| format!("read {}", directory.display()))? {
                let file = file?.path();
                let is_test = file.extension().is_some_and(|extension| extension == "c");
                if let (true, Some(stem)) = (is_test, file.file_stem()) {
                    units.push(format!("{prefix}{}", stem.to_string_lossy()));
                }
            }
        }
        units.sort_unstable();
        Ok(units)
    }

    fn compile(&self, unit: &Unit<'_>, _shared: &Path) -> Result<Vec<Command>> {
        let test = unit.source.join(unit.name).with_extension("c");
        let text = fs::read(&test).with_context(|| format!("read {}", test.display()))?;
        let copy = unit.at.join("test.c");
        // torture.c has an exit of its own, against which the test's declaration does not stand.
        let mut sed = Command::new("sed");
        sed.args(["-n", "-E", "-e", r"/void +exit *\((int)?\).*;/d", "-e"]);
        sed.arg(format!("w {}", copy.display())).arg(&test);
        let mut command = Command::new("gcc-12");
        command.args(["-O2", "-w", "-fopenmp", "-foffload=amdgcn-amdhsa"]);
        command.arg(format!("-foffload-options=amdgcn-amdhsa=-march={}", unit.target));
        command.arg("-foffload-options=-lm").args(options(&String::from_utf8_lossy(&text)));
        command.arg(format!("-DTEST=\"{}\"", copy.display()));
        if let Some(directory) = test.parent() {
            command.arg("-I").arg(directory);
        }
        command.arg(tree::root().join("xtask/programs/torture.c")).arg("-lm").arg("-o").arg(unit.at.join("program"));
        Ok(vec![sed, command])
    }

    fn libraries(&self) -> &'static [&'static str] {
        &["/usr/lib/x86_64-linux-gnu/libgomp-plugin-gcn.so.1", "/usr/lib/x86_64-linux-gnu/libhsa-runtime64.so.1"]
    }

    fn judge(&self, _unit: &str, ran: &Ran) -> Outcome {
        match ran.code {
            Some(0) if ran.stdout.ends_with("the test returned 0\n") => Outcome::Passed,
            _ => Outcome::Failed(ran.why()),
        }
    }

    fn controls(&self) -> &'static [Control] {
        const { &[Control::new("cu.handler=v_mov_b32", "20001130-2", "gfx900")] }
    }
}

/// The compiler's options that a test asks for, whatever the target.
fn options(test: &str) -> Vec<&str> {
    let asked = |line: &str| ["dg-options", "dg-additional-options"].iter().any(|word| line.contains(word));
    let lines = test.lines().filter(|line| asked(line) && !line.contains("target"));
    let quoted = lines.filter_map(|line| line.split('"').nth(1));
    quoted
        .flat_map(str::split_whitespace)
        .filter(|option| option.starts_with("-f") || option.starts_with("-std"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_for_all_targets() {
        let test = "/* { dg-options \"-fgnu89-inline -Wno-psabi\" } */\n\
                    /* { dg-additional-options \"-fpic\" { target fpic } } */\n\
                    /* { dg-additional-options \"-fwrapv\" } */\nint main(void) { return 0; }\n";
        assert_eq!(options(test), ["-fgnu89-inline", "-fwrapv"]);
    }
}
