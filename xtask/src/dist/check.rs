// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Installs what was made below a scratch directory, and uses it as people do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result};
use vkfd_sabotage::Switch;

use super::files::SONAME;
use super::{elf, Dist};

/// The scratch directory, what was found, and what could not be looked at.
struct Check<'a> {
    dist: &'a Dist,
    scratch: tempfile::TempDir,
    findings: Vec<String>,
    skipped: Vec<String>,
}

/// What did not hold, and what was not checked.
pub(super) fn run(dist: &Dist, made: &[PathBuf]) -> Result<(Vec<String>, Vec<String>)> {
    let mut check = Check { dist, scratch: tempfile::tempdir()?, findings: Vec::new(), skipped: Vec::new() };
    let [archive, packages @ ..] = made else { return Ok((vec!["nothing was made".into()], Vec::new())) };
    check.archive(archive)?;
    check.packages(packages)?;
    check.exports()?;
    check.pages()?;
    Ok((check.findings, check.skipped))
}

/// A program's output, or nothing where it is not installed.
fn output(command: &mut Command) -> Result<Option<Output>> {
    match command.output() {
        Ok(output) => Ok(Some(output)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("run {command:?}")),
    }
}

/// What a program has of the switches that break it on purpose: their names, and their
/// parser. The library that it loads into others is in it.
fn sabotage_in(program: &[u8]) -> Vec<&'static str> {
    let text = String::from_utf8_lossy(program);
    let names = Switch::ALL.iter().map(|switch| switch.name());
    names.chain(["VKFD_SABOTAGE"]).filter(|name| text.contains(name)).collect()
}

impl Check<'_> {
    fn place(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Runs something that has to succeed and print `wanted`, and on stderr nothing.
    fn runs(&mut self, command: &mut Command, wanted: Option<&str>) -> Result<bool> {
        let Some(ran) = output(command)? else {
            self.skipped.push(format!("{} is not installed", command.get_program().to_string_lossy()));
            return Ok(false);
        };
        let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        let right = ran.status.success() && wanted.is_none_or(|wanted| out == wanted && err.is_empty());
        if !right {
            self.findings.push(format!("{command:?}: {}, stdout {out:?}, stderr {err:?}", ran.status));
        }
        Ok(right)
    }

    /// A program that runs another, which reads what only the machine has.
    fn program(&mut self, vkfd: &Path) -> Result<()> {
        let name = "/sys/class/kfd/kfd/topology/nodes/1/name";
        let command = |arguments: &[&str]| {
            let mut command = Command::new(vkfd);
            command.args(arguments).env("XDG_CACHE_HOME", self.place("cache")).env_remove("VKFD_PRELOAD");
            command
        };
        let [mut nothing, mut reads] =
            [command(&["run", "--", "true"]), command(&["run", "--target", "gfx90a", "--", "cat", name])];
        self.runs(&mut nothing, None)?;
        self.runs(&mut reads, Some("gfx90a\n"))?;
        Ok(())
    }

    fn archive(&mut self, archive: &Path) -> Result<()> {
        let prefix = self.place("prefix");
        fs::create_dir(&prefix)?;
        let mut unpack = Command::new("tar");
        unpack.args(["--strip-components=1", "-C"]).arg(&prefix).arg("-xzf").arg(archive);
        if self.runs(&mut unpack, Some(""))? {
            let vkfd = prefix.join("bin/vkfd");
            self.program(&vkfd)?;
            let bytes = fs::read(&vkfd).with_context(|| format!("read {}", vkfd.display()))?;
            match elf::lone_instructions(&bytes)? {
                Some(names) => {
                    let lone = names.iter().map(|name| format!("bin/vkfd calls a vector instruction: {name}"));
                    self.findings.extend(lone);
                }
                None => self.skipped.push("bin/vkfd has no symbols: no look for calls of vector instructions".into()),
            }
            let names = sabotage_in(&bytes);
            self.findings
                .extend(names.iter().map(|name| format!("bin/vkfd can be broken on purpose: it has {name:?}")));
            self.examples(&prefix.join("lib"), &prefix.join("share/doc/libvkfd-dev/examples"), None)?;
        }
        Ok(())
    }

    fn packages(&mut self, packages: &[PathBuf]) -> Result<()> {
        let root = self.place("root");
        for directory in ["var/lib/dpkg/info", "var/lib/dpkg/updates"] {
            fs::create_dir_all(root.join(directory))?;
        }
        fs::write(root.join("var/lib/dpkg/status"), "")?;
        let mut install = Command::new("dpkg");
        // The C library is not there; and no script of theirs runs, so it need not be.
        install.args(["--force-depends", "--force-not-root", "--root"]).arg(&root).arg("--install").args(packages);
        if self.runs(&mut install, None)? {
            self.program(&root.join("usr/bin/vkfd"))?;
            let (_, libraries) = self.dist.architecture()?;
            let examples = root.join("usr/share/doc/libvkfd-dev/examples");
            self.examples(&root.join("usr/lib").join(libraries), &examples, Some(&root))?;
        }
        let mut lintian = Command::new("lintian");
        lintian.args(["--fail-on", "error,warning", "--no-tag-display-limit", "--allow-root"]).args(packages);
        self.runs(&mut lintian, None)?;
        Ok(())
    }

    /// Each example in C: compiled with pkg-config's options, linked with the shared library, and
    /// run.
    fn examples(&mut self, libraries: &Path, examples: &Path, root: Option<&Path>) -> Result<()> {
        let mut ask = Command::new("pkg-config");
        ask.args(["--cflags", "--libs", "vkfd"]).env("PKG_CONFIG_LIBDIR", libraries.join("pkgconfig"));
        if let Some(root) = root {
            ask.env("PKG_CONFIG_SYSROOT_DIR", root);
        }
        let Some(flags) = output(&mut ask)? else {
            self.skipped.push("pkg-config is not installed: no example was compiled".into());
            return Ok(());
        };
        if !flags.status.success() {
            self.findings.push(format!("{ask:?}: {}", String::from_utf8_lossy(&flags.stderr)));
            return Ok(());
        }
        let flags = String::from_utf8(flags.stdout)?;
        let program = self.place("example");
        for example in fs::read_dir(examples)? {
            let source = example?.path();
            if source.extension().is_none_or(|extension| extension != "c") {
                continue;
            }
            let mut compile = Command::new("cc");
            compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(&source);
            compile.args(flags.split_whitespace());
            if !self.runs(&mut compile, Some(""))? {
                continue;
            }
            if !elf::needed(&fs::read(&program)?)?.iter().any(|library| library == SONAME) {
                self.findings.push(format!("{} is not linked with {SONAME}", source.display()));
            }
            // Code objects are beside the sources.
            let mut run = Command::new(&program);
            run.current_dir(examples).env("LD_LIBRARY_PATH", libraries);
            self.runs(&mut run, None)?;
        }
        Ok(())
    }

    /// The library exports the header's functions and no others.
    fn exports(&mut self) -> Result<()> {
        let library = fs::read(&self.dist.shared)?;
        if elf::soname(&library)?.as_deref() != Some(SONAME) {
            self.findings.push(format!("the library's name for the loader is not {SONAME}"));
        }
        let header = fs::read_to_string(self.dist.root.join("client/capi/include/vkfd.h"))?;
        let mut declared = declared(&header);
        let mut exported = elf::exports(&library)?;
        declared.sort_unstable();
        exported.sort_unstable();
        let extra = exported.iter().filter(|name| !declared.contains(name));
        self.findings.extend(extra.map(|name| format!("libvkfd.so exports {name}, which vkfd.h does not declare")));
        let missing = declared.iter().filter(|name| !exported.contains(name));
        self.findings.extend(missing.map(|name| format!("vkfd.h declares {name}, which libvkfd.so does not export")));
        Ok(())
    }

    fn pages(&mut self) -> Result<()> {
        for page in fs::read_dir(&self.dist.pages)? {
            let page = page?.path();
            let mut command = match page.extension().and_then(|extension| extension.to_str()) {
                Some("1") => {
                    let mut groff = Command::new("groff");
                    groff.args(["-man", "-Tutf8", "-ww", "-z"]).arg(&page);
                    groff
                }
                Some("fish") => {
                    let mut fish = Command::new("fish");
                    fish.arg("--no-execute").arg(&page);
                    fish
                }
                _ => {
                    let shell = if page.ends_with("_vkfd") { "zsh" } else { "bash" };
                    let mut shell = Command::new(shell);
                    shell.arg("-n").arg(&page);
                    shell
                }
            };
            self.runs(&mut command, Some(""))?;
        }
        Ok(())
    }
}

/// The functions that a header of ours declares.
fn declared(header: &str) -> Vec<String> {
    let mut names = Vec::new();
    for line in header.lines().filter(|line| !line.starts_with([' ', '\t', '/', '#', '*'])) {
        // `int vkfd_open(`, with a type before it.
        let Some((before, _)) = line.split_once('(') else { continue };
        let name = before.rsplit([' ', '*']).next().unwrap_or_default();
        if name.starts_with("vkfd_") && before.len() > name.len() {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::{declared, sabotage_in};

    #[test]
    fn a_program_that_can_be_broken_is_found() {
        assert!(sabotage_in(b"\0\xff driver.tlb gpu.short").is_empty());
        assert_eq!(sabotage_in(b"\xff\0driver.tlb_flushVKFD_SABOTAGE\0"), ["driver.tlb_flush", "VKFD_SABOTAGE"]);
    }

    #[test]
    fn a_headers_functions_are_found() {
        let header = "/* vkfd_in_a_comment(). */\n#define VKFD_X (1u << 0)\nstruct vkfd_caps {\n\tint vkfd_no(int);\n};\n\
                      int vkfd_open(vkfd_client **out);\nvoid *vkfd_buffer_cpu(const vkfd_buffer *b);\nint vkfd_long(int a,\n\tint b);\n \
                      * vkfd_text(). The\n";
        assert_eq!(declared(header), ["vkfd_open", "vkfd_buffer_cpu", "vkfd_long"]);
    }
}
