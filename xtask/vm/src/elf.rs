// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which shared libraries a program needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

/// The libraries of `program` and the loader, where this machine has them. Empty for a static
/// program.
pub fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // Without cargo's LD_LIBRARY_PATH, which the guest does not have.
    let output = Command::new("ldd")
        .arg(program)
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .context("run ldd (package libc-bin)")?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if errors.contains("not a dynamic executable") || text.contains("statically linked") {
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "ldd {}: {}", program.display(), errors.trim());
    parse(&text).with_context(|| format!("the libraries of {}", program.display()))
}

/// Lines are "NAME => PATH (ADDRESS)", for the loader "PATH (ADDRESS)", and for the kernel's vDSO
/// "NAME (ADDRESS)".
fn parse(text: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        let target = line.split_once(" => ").map_or(line, |(_, target)| target);
        ensure!(target != "not found", "{line}: install the library");
        let path = target.split_once(" (").map_or(target, |(path, _)| path);
        if path.starts_with('/') {
            paths.push(PathBuf::from(path));
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_from_each_kind_of_line() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f00)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f01)\n";
        assert_eq!(
            parse(text).expect("two libraries"),
            [PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6"), PathBuf::from("/lib64/ld-linux-x86-64.so.2")]
        );
    }

    #[test]
    fn a_library_that_is_not_there_is_an_error() {
        assert!(parse("\tlibnone.so.1 => not found\n").expect_err("not found").to_string().contains("libnone.so.1"));
    }

    #[test]
    fn the_running_program_needs_libc() {
        let own = std::env::current_exe().expect("a path");
        assert!(libraries(&own).expect("ldd").iter().any(|path| path.to_string_lossy().contains("libc.so")));
    }
}
