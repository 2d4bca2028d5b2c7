// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The C program that prints what the header has.
//!
//! Mechanism: one line a fact, `INDEX VALUE`, or a word instead of the value when the preprocessor
//! finds that the header does not have it. Everything is written to the probe's directory.
//!
//! Debian ships `linux/kfd_ioctl.h` without the `drm/drm.h` that it includes (libdrm-dev has it
//! elsewhere). Only its integer types are used, so a stand-in with these is searched after the
//! system's directories.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};

use super::{Fact, Presence};

const INSTALL: &str =
    "install a C compiler and the kernel's headers for user space (Debian: apt install gcc linux-libc-dev)";

/// The stand-in for `drm/drm.h`.
const DRM_HEADER: &str = "#include <linux/types.h>\n";

/// Where to build, and what to include.
pub struct Probe {
    pub directory: PathBuf,
    /// `None` for the system's header.
    pub header: Option<PathBuf>,
}

/// What the header says about a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    Value(u64),
    /// It should be there by the header's version, but is not.
    Missing,
    /// The header is older than it.
    Newer,
    /// The header has a later form instead.
    Replaced,
}

impl Probe {
    /// Builds and runs the program. Returns the header's minor version and one entry for each fact.
    ///
    /// # Errors
    ///
    /// No compiler, no header, or a header that does not compile: nothing can be said then.
    pub fn measure(&self, facts: &[Fact]) -> Result<(u32, Vec<Measured>)> {
        let include = self.directory.join("include");
        let drm = include.join("drm");
        fs::create_dir_all(&drm).with_context(|| format!("create {}", drm.display()))?;
        let drm_header = drm.join("drm.h");
        fs::write(&drm_header, DRM_HEADER).with_context(|| format!("write {}", drm_header.display()))?;
        let source = self.directory.join("probe.c");
        let program = self.directory.join("probe");
        fs::write(&source, self.source(facts)).with_context(|| format!("write {}", source.display()))?;

        let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
        let mut compile = Command::new(&compiler);
        compile.args(["-std=gnu11", "-idirafter"]).arg(&include).arg("-o").args([&program, &source]);
        let compiled = match compile.output() {
            Ok(compiled) => compiled,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("there is no {compiler}: {INSTALL}")
            }
            Err(error) => return Err(error).context(format!("run {compiler}")),
        };
        if !compiled.status.success() {
            let messages = String::from_utf8_lossy(&compiled.stderr);
            bail!("{} does not compile; {INSTALL}\n{messages}", source.display());
        }

        let ran = Command::new(&program).output().with_context(|| format!("run {}", program.display()))?;
        ensure!(ran.status.success(), "{} failed: {}", program.display(), ran.status);
        let output = String::from_utf8(ran.stdout).context("output of the probe")?;
        parse(&output, facts.len())
    }

    fn source(&self, facts: &[Fact]) -> String {
        let include = match &self.header {
            Some(path) => format!("\"{}\"", path.display()),
            None => "<linux/kfd_ioctl.h>".into(),
        };
        let mut body = String::new();
        for (index, fact) in facts.iter().enumerate() {
            let Fact { expression, since, .. } = fact;
            let until = fact.until.unwrap_or(u32::MAX);
            let present = match fact.presence {
                Presence::Macro => format!("defined({expression})"),
                Presence::Version => format!("VERSION >= {since}u"),
            };
            // The cast to 32 bits keeps `1 << 31` from being sign extended.
            let _ = writeln!(
                body,
                "#if VERSION >= {until}u\n\
                 \tputs(\"{index} replaced\");\n\
                 #elif {present}\n\
                 \tprintf(\"{index} %u\\n\", (unsigned)({expression}));\n\
                 #elif VERSION >= {since}u\n\
                 \tputs(\"{index} missing\");\n\
                 #else\n\
                 \tputs(\"{index} newer\");\n\
                 #endif"
            );
        }
        format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include {include}\n\
             #define VERSION KFD_IOCTL_MINOR_VERSION\n\
             int main(void)\n{{\n\tprintf(\"version %u\\n\", (unsigned)VERSION);\n{body}\treturn 0;\n}}\n"
        )
    }
}

fn parse(output: &str, expected: usize) -> Result<(u32, Vec<Measured>)> {
    let mut lines = output.lines();
    let minor = lines
        .next()
        .and_then(|line| line.strip_prefix("version "))
        .context("the probe printed no version")?
        .parse()
        .context("the header's version")?;
    let measured = lines
        .enumerate()
        .map(|(index, line)| {
            let word = line.strip_prefix(&format!("{index} ")).with_context(|| format!("unexpected line {line:?}"))?;
            Ok(match word {
                "missing" => Measured::Missing,
                "newer" => Measured::Newer,
                "replaced" => Measured::Replaced,
                value => Measured::Value(value.parse().with_context(|| format!("unexpected line {line:?}"))?),
            })
        })
        .collect::<Result<Vec<_>>>()?;
    ensure!(measured.len() == expected, "the probe printed {} of {expected} lines", measured.len());
    Ok((minor, measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_values_and_words() {
        let (minor, measured) = parse("version 11\n0 7\n1 newer\n2 missing\n3 replaced\n", 4).unwrap();
        assert_eq!(minor, 11);
        assert_eq!(measured, [Measured::Value(7), Measured::Newer, Measured::Missing, Measured::Replaced]);
    }

    #[test]
    fn refuses_output_that_is_cut_or_out_of_order() {
        assert!(parse("", 0).is_err());
        assert!(parse("version 11\n0 7\n", 2).is_err());
        assert!(parse("version 11\n1 7\n", 1).is_err());
        assert!(parse("version 11\n0 seven\n", 1).is_err());
    }
}
