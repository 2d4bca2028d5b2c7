// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Debian packages: an `ar` archive of a version, the package's description of itself, and its
//! files.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::archive::{debian_path, Archive};
use super::files::{gzip, Group, What, SONAME};
use super::{elf, said, Dist};

const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: vkfd

Files: *
Copyright: vkfd's authors
License: GPL-2 or Expat

License: GPL-2
 This program is free software; you can redistribute it and/or modify it under the terms of version 2 of the GNU General Public License as
 published by the Free Software Foundation.
 .
 On Debian systems the licence is in /usr/share/common-licenses/GPL-2.

License: Expat
";

/// Writes a group's package.
pub(super) fn write(dist: &Dist, group: &Group) -> Result<PathBuf> {
    let (architecture, libraries) = dist.architecture()?;
    let mut files = Archive::new(dist.date);
    let mut sums = String::new();
    let mut bytes = 0;
    let mut put = |path: &str, what: &What| -> Result<()> {
        files.entry(path, what)?;
        if let What::Data(data) | What::Program(data) = what {
            bytes += data.len();
            let relative = path.trim_start_matches("./");
            writeln!(sums, "{}  {relative}", md5(data)?)?;
        }
        Ok(())
    };
    for entry in &group.entries {
        let path = debian_path(entry, libraries);
        match &entry.what {
            What::Data(text) if path.ends_with(".pc") => {
                let text = String::from_utf8_lossy(text).replace("@PREFIX@", "/usr");
                let text = text.replace("@LIBDIR@", &format!("lib/{libraries}"));
                put(&path, &What::Data(text.into_bytes()))?;
            }
            what => put(&path, what)?,
        }
    }
    let documents = format!("./usr/share/doc/{}", group.package);
    put(&format!("{documents}/changelog.gz"), &What::Data(gzip(changelog(dist)?.as_bytes())?))?;
    put(&format!("{documents}/copyright"), &What::Data(copyright(dist)?.into_bytes()))?;

    let mut control = Archive::new(dist.date);
    let text = description(dist, group, architecture, bytes)?;
    control.entry("./control", &What::Data(text.into_bytes()))?;
    control.entry("./md5sums", &What::Data(sums.into_bytes()))?;
    if group.section == "libs" {
        let (name, number) = SONAME.split_once(".so.").unwrap_or_default();
        let shlibs = format!("{name} {number} {} (>= {})\n", group.package, dist.version);
        control.entry("./shlibs", &What::Data(shlibs.into_bytes()))?;
        control.entry("./triggers", &What::Data(b"activate-noawait ldconfig\n".to_vec()))?;
    }

    let path = dist.out.join(format!("{}_{}_{architecture}.deb", group.package, dist.version));
    let members =
        [("debian-binary", b"2.0\n".to_vec()), ("control.tar.gz", control.finish()?), ("data.tar.gz", files.finish()?)];
    let mut package = b"!<arch>\n".to_vec();
    for (name, data) in members {
        // Name, date, user, group, mode, size: each in its columns.
        package.extend(format!("{name:<16}{:<12}0     0     100644  {:<10}`\n", dist.date, data.len()).bytes());
        package.extend(&data);
        if data.len() % 2 != 0 {
            package.push(b'\n');
        }
    }
    std::fs::write(&path, package).with_context(|| format!("write {}", path.display()))?;
    Ok(path)
}

/// The file `control`.
fn description(dist: &Dist, group: &Group, architecture: &str, bytes: usize) -> Result<String> {
    let mut needs = group.needs.clone();
    for entry in &group.entries {
        match &entry.what {
            What::Program(data) => needs.extend(elf::packages(data)?),
            What::Data(data) if entry.path.contains(".so.") => needs.extend(elf::packages(data)?),
            _ => {}
        }
    }
    let (line, paragraph) = group.about;
    let mut text =
        format!("Package: {}\nSource: vkfd\nVersion: {}\nArchitecture: {architecture}\n", group.package, dist.version);
    writeln!(text, "Maintainer: {}", Dist::maintainer())?;
    writeln!(text, "Installed-Size: {}", bytes.div_ceil(1024))?;
    if !needs.is_empty() {
        writeln!(text, "Depends: {}", needs.join(", "))?;
    }
    if !group.suggests.is_empty() {
        writeln!(text, "Suggests: {}", group.suggests)?;
    }
    if group.section.starts_with("lib") {
        writeln!(text, "Multi-Arch: same")?;
    }
    writeln!(text, "Section: {}\nPriority: optional\nDescription: {line}", group.section)?;
    let mut column = 0;
    for word in paragraph.split_whitespace() {
        if column == 0 || column + word.len() >= 78 {
            text.push_str(if column == 0 { " " } else { "\n " });
            column = 1;
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += word.len();
    }
    text.push('\n');
    Ok(text)
}

fn changelog(dist: &Dist) -> Result<String> {
    let date = said(Command::new("date").args(["-u", "-R", "-d", &format!("@{}", dist.date)]).env("LC_ALL", "C"))?;
    Ok(format!(
        "vkfd ({}) unstable; urgency=medium\n\n  * As CHANGELOG.md of the sources says.\n\n -- {}  {}",
        dist.version,
        Dist::maintainer(),
        date
    ))
}

fn copyright(dist: &Dist) -> Result<String> {
    let mut text = COPYRIGHT.to_owned();
    for line in std::fs::read_to_string(dist.root.join("LICENSES/MIT.txt"))?.lines() {
        let line = if line.trim().is_empty() { "." } else { line.trim_end() };
        writeln!(text, " {line}")?;
    }
    Ok(text)
}

/// As dpkg wants it of each file, against accidents.
fn md5(data: &[u8]) -> Result<String> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), data)?;
    let text = said(Command::new("md5sum").arg(file.path()))?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}
