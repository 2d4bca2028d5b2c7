// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A folder's patches in the order in which they are applied.
//!
//! Files `*.patch` and `*.diff` are taken as they are, in the order of their names. A `*.mbox` or
//! `*.mail` has mails: git decodes them, those without a patch (the cover letter, answers) are
//! left out, and the others go by the number in their subject. A compressed one has to be unpacked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};

use xtask_base::apt::quiet;

/// A patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Its file, or its mail's subject.
    pub name: String,
    pub text: Vec<u8>,
}

/// The patches at a path: a folder's, or the one that it is.
pub fn read(path: &Path) -> Result<Vec<Patch>> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = fs::read_dir(path).with_context(|| format!("list {}", path.display()))?;
        files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
        files.sort();
    }
    let mut patches = Vec::new();
    for file in &files {
        let kind = file.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match kind {
            "patch" | "diff" => {
                let text = fs::read(file).with_context(|| format!("read {}", file.display()))?;
                ensure!(is_patch(&text), "{}: there is no patch in it", file.display());
                patches.push(Patch { name, text });
            }
            "mbox" | "mail" => patches.extend(mails(file)?),
            "gz" | "xz" | "zst" => bail!("{}: unpack it first", file.display()),
            _ if path.is_dir() => println!("  {name} is no .patch, .diff, .mbox or .mail, and is left out"),
            _ => bail!("{}: wants a folder, a .patch, .diff, .mbox or .mail", file.display()),
        }
    }
    Ok(patches)
}

fn is_patch(text: &[u8]) -> bool {
    let starts = |mark: &[u8]| text.split(|byte| *byte == b'\n').any(|line| line.starts_with(mark));
    (starts(b"--- ") && starts(b"+++ ")) || starts(b"diff --git ")
}

/// The patches of a file of mails.
fn mails(file: &Path) -> Result<Vec<Patch>> {
    let directory = tempfile::tempdir().context("make a directory for mails")?;
    let option = format!("-o{}", directory.path().display());
    let mut split = Command::new("git");
    split.args(["mailsplit", "--keep-cr", &option]).arg(file);
    quiet(&mut split).with_context(|| format!("split {} into mails", file.display()))?;
    let mut names = Vec::new();
    for entry in fs::read_dir(directory.path()).context("list the mails")? {
        names.push(entry?.path());
    }
    names.sort();
    let mut found: Vec<(u32, Patch)> = Vec::new();
    for (place, mail) in (1..).zip(&names) {
        let (message, patch) = (mail.with_extension("message"), mail.with_extension("patch"));
        let input = fs::File::open(mail).context("open a mail")?;
        let mut info = Command::new("git");
        info.args(["mailinfo", "-k"]).arg(&message).arg(&patch).stdin(input).stderr(Stdio::inherit());
        let output = info.output().context("start git mailinfo")?;
        ensure!(output.status.success(), "{}: git cannot read mail {place}", file.display());
        let text = fs::read(&patch).context("read a mail's patch")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let subject = said.lines().find_map(|line| line.strip_prefix("Subject: ")).unwrap_or_default();
        if !is_patch(&text) || subject.to_ascii_lowercase().starts_with("re:") {
            continue;
        }
        let number = number(subject).unwrap_or(place);
        if let Some((_, other)) = found.iter().find(|(other, _)| *other == number) {
            bail!(
                "{}: two patches are number {number}, {:?} and {subject:?}: one version a file",
                file.display(),
                other.name
            );
        }
        found.push((number, Patch { name: subject.to_owned(), text }));
    }
    ensure!(!found.is_empty(), "{}: none of its {} mails has a patch", file.display(), names.len());
    found.sort_by_key(|(number, _)| *number);
    Ok(found.into_iter().map(|(_, patch)| patch).collect())
}

/// The 3 of "[PATCH v4 3/8]".
fn number(subject: &str) -> Option<u32> {
    let (_, rest) = subject.split_once('[')?;
    let (tag, _) = rest.split_once(']')?;
    tag.split_whitespace().find_map(|word| word.split_once('/')?.0.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: &str = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+2\n";

    fn mail(subject: &str, body: &str) -> String {
        format!("From x Mon Sep 17 00:00:00 2001\nFrom: A <a@example.org>\nSubject: {subject}\n\n{body}\n")
    }

    #[test]
    fn a_folder_has_its_patches_in_order_and_mails_by_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(read(folder.path()).unwrap(), []);
        write("2.patch", CHANGE);
        write("1.diff", CHANGE);
        write("README", "nothing");
        let thread = [
            mail("[PATCH v4 0/2] two changes", "about them"),
            mail("[PATCH v4 2/2] the second", &format!("text\n---\n{CHANGE}")),
            mail("[PATCH v4 1/2] the first", &format!("text\n---\n{CHANGE}")),
            mail("Re: [PATCH v4 1/2] the first", &format!("> {}", CHANGE.replace('\n', "\n> "))),
        ];
        write("3.mbox", &thread.concat());
        let names: Vec<String> = read(folder.path()).unwrap().into_iter().map(|patch| patch.name).collect();
        assert_eq!(names, ["1.diff", "2.patch", "[PATCH v4 1/2] the first", "[PATCH v4 2/2] the second"]);
        // A list's encoding is undone.
        let encoded = mail("[PATCH] one", "x").replace("\n\n", "\nContent-Transfer-Encoding: quoted-printable\n\n")
            + "---\ndiff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x =3D 1\n+x =3D 2\n";
        write("only.mbox", &encoded);
        let only = read(&folder.path().join("only.mbox")).unwrap();
        assert!(String::from_utf8_lossy(&only[0].text).contains("+x = 2"), "{only:?}");
    }

    #[test]
    fn what_is_no_patch_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = |name: &str, text: &str| {
            let file = folder.path().join(name);
            fs::write(&file, text).unwrap();
            read(&file).unwrap_err().to_string()
        };
        assert!(error("a.patch", "no patch").contains("a.patch: there is no patch in it"));
        assert!(error("a.txt", CHANGE).contains("wants a folder"));
        assert!(error("t.mbox.gz", "").contains("unpack it first"));
        assert!(error("t.mbox", &mail("[PATCH 0/1] cover", "text")).contains("none of its 1 mails has a patch"));
        let twice = [mail("[PATCH 1/1] a", CHANGE), mail("[PATCH v2 1/1] a", CHANGE)].concat();
        assert!(error("u.mbox", &twice).contains("two patches are number 1"));
    }
}
