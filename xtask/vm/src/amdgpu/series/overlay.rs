// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernel's source as patches leave it.
//!
//! Mechanism: the files that patches name are taken in their original form into a scratch
//! directory, and the patches are applied there, so that a patch that fails changes nothing. Then
//! every file that is different is written, among them those that only earlier patches had changed.
//! A file that stays as it is keeps its time, and make does not build it again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};

use super::patches::Patch;

/// The directories.
pub struct Place {
    source: PathBuf,
    /// Files as they were before the first patch. One that was not there is not here either.
    originals: PathBuf,
    scratch: PathBuf,
    /// Names of files that patches have changed, one a line.
    touched: PathBuf,
}

impl Place {
    pub fn new(root: &Path) -> Self {
        let at = |name: &str| root.join(name);
        Self {
            source: at("source"),
            originals: at("originals"),
            scratch: at("scratch"),
            touched: at("originals/.touched"),
        }
    }

    fn touched(&self) -> BTreeSet<PathBuf> {
        fs::read_to_string(&self.touched).unwrap_or_default().lines().map(PathBuf::from).collect()
    }
}

/// Makes the source the original with the patches; how many files that changed.
pub fn apply(place: &Place, patches: &[Patch]) -> Result<usize> {
    let before = place.touched();
    let mut now = BTreeSet::new();
    for patch in patches {
        now.extend(files(patch)?);
    }
    remove(&place.scratch)?;
    fs::create_dir_all(&place.scratch).with_context(|| format!("create {}", place.scratch.display()))?;
    for file in &now {
        // What earlier patches have changed, or made, has its original aside, or none.
        let from = if before.contains(file) { &place.originals } else { &place.source };
        if from.join(file).is_file() {
            copy(&from.join(file), &place.scratch.join(file))?;
        }
    }
    for (number, patch) in (1..).zip(patches) {
        apply_one(place, number, patch)?;
    }
    // From here on an interrupted run is made good by the next one.
    for file in now.difference(&before) {
        if place.source.join(file).is_file() {
            copy(&place.source.join(file), &place.originals.join(file))?;
        }
    }
    let all: BTreeSet<&PathBuf> = before.union(&now).collect();
    record(place, all.iter().copied())?;
    let mut changed = 0;
    for file in all {
        let wanted = if now.contains(file) { &place.scratch } else { &place.originals };
        changed += usize::from(put(&wanted.join(file), &place.source.join(file))?);
    }
    record(place, now.iter())?;
    for file in before.difference(&now) {
        remove_file(&place.originals.join(file))?;
    }
    remove(&place.scratch)?;
    Ok(changed)
}

/// The files that a patch names.
fn files(patch: &Patch) -> Result<BTreeSet<PathBuf>> {
    let text = String::from_utf8_lossy(&patch.text);
    let mut files = BTreeSet::new();
    for line in text.lines() {
        let name = if let Some(rest) = line.strip_prefix("--- ").or(line.strip_prefix("+++ ")) {
            // "a/" and "b/", and a time behind it.
            rest.split('\t').next().unwrap_or(rest).split_once('/').map(|(_, name)| name)
        } else {
            ["rename from ", "rename to ", "copy from ", "copy to "].iter().find_map(|mark| line.strip_prefix(mark))
        };
        let Some(name) = name.map(str::trim).filter(|name| !name.is_empty() && *name != "dev/null") else { continue };
        if line.contains("/dev/null") {
            continue;
        }
        let path = PathBuf::from(name);
        let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        ensure!(inside, "{}: {name:?} is no file of the kernel's source", patch.name);
        files.insert(path);
    }
    Ok(files)
}

fn apply_one(place: &Place, number: usize, patch: &Patch) -> Result<()> {
    let file = place.scratch.join(".vkfd.patch");
    fs::write(&file, &patch.text).with_context(|| format!("write {}", file.display()))?;
    let run = |options: &[&str]| {
        let mut git = Command::new("git");
        // In a repository that the cache may be in, paths would be that repository's.
        git.current_dir(&place.scratch).env("GIT_CEILING_DIRECTORIES", &place.scratch);
        git.env("LC_ALL", "C").args(["apply", "--whitespace=nowarn"]).args(options).arg(&file);
        git.output().context("start git apply")
    };
    let output = run(&[])?;
    if output.status.success() {
        return Ok(());
    }
    // Again, for the hunks: the scratch directory is of no more use.
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let again = run(&["--reject", "--verbose"])?;
    let hunks = rejects(&String::from_utf8_lossy(&again.stderr));
    let why = if hunks.is_empty() { said.trim().to_owned() } else { hunks.join("\n") };
    bail!("patch {number}, {}, does not apply to the kernel's source:\n{why}", patch.name);
}

/// What git says of hunks that it rejects.
fn rejects(said: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut file = "";
    let mut lines = Vec::new();
    for line in said.lines() {
        if let Some(rest) = line.strip_prefix("error: patch failed: ") {
            // The line where it should be.
            lines.push(rest);
        } else if let Some(rest) = line.strip_prefix("Applying patch ") {
            file = rest.split_once(" with ").map_or(rest, |(name, _)| name);
        } else if let Some(hunk) = line.strip_prefix("Rejected hunk #") {
            found.push(format!("  {file}: hunk {}", hunk.trim_end_matches('.')));
        } else if let Some(rest) = line.strip_prefix("error: ") {
            if !rest.contains("does not apply") && !rest.starts_with("while searching for") {
                found.push(format!("  {rest}"));
            }
        }
    }
    if !lines.is_empty() {
        found.push(format!("  wanted at {}", lines.join(", ")));
    }
    found
}

/// Makes a file equal to another one, or remove it where that is not there. Whether it changed.
fn put(wanted: &Path, file: &Path) -> Result<bool> {
    if !wanted.is_file() {
        return remove_file(file);
    }
    let bytes = fs::read(wanted).with_context(|| format!("read {}", wanted.display()))?;
    if fs::read(file).is_ok_and(|there| there == bytes) {
        return Ok(false);
    }
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    fs::write(file, bytes).with_context(|| format!("write {}", file.display()))?;
    Ok(true)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("copy {}", from.display())).map(drop)
}

fn remove_file(file: &Path) -> Result<bool> {
    match fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("remove {}", file.display())),
    }
}

fn remove(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))?;
    }
    Ok(())
}

fn record<'a>(place: &Place, files: impl Iterator<Item = &'a PathBuf>) -> Result<()> {
    fs::create_dir_all(&place.originals).with_context(|| format!("create {}", place.originals.display()))?;
    let text: String = files.map(|file| format!("{}\n", file.display())).collect();
    fs::write(&place.touched, text).with_context(|| format!("write {}", place.touched.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bed {
        root: tempfile::TempDir,
    }

    impl Bed {
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let bed = Self { root };
            for (name, text) in [("d/a", "1\n2\n3\n"), ("d/b", "b\n")] {
                let file = bed.file(name);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            bed
        }

        fn file(&self, name: &str) -> PathBuf {
            self.root.path().join("source").join(name)
        }

        fn apply(&self, texts: &[&str]) -> Result<usize> {
            let patches: Vec<Patch> =
                texts.iter().map(|text| Patch { name: "p".into(), text: (*text).into() }).collect();
            apply(&Place::new(self.root.path()), &patches)
        }

        fn read(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.file(name)).ok()
        }
    }

    const TWO: &str = "words\n\n--- a/d/a\n+++ b/d/a\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n";
    const ZWEI: &str = "--- a/d/a\n+++ b/d/a\n@@ -1,3 +1,3 @@\n 1\n-two\n+zwei\n 3\n";
    const NEW: &str = "diff --git a/n/c b/n/c\nnew file mode 100644\n--- /dev/null\n+++ b/n/c\n@@ -0,0 +1 @@\n+c\n";
    const GONE: &str =
        "diff --git a/d/b b/d/b\ndeleted file mode 100644\n--- a/d/b\n+++ /dev/null\n@@ -1 +0,0 @@\n-b\n";

    #[test]
    fn the_source_is_the_original_with_the_patches_whatever_was_applied_before() {
        let bed = Bed::new();
        assert_eq!(bed.apply(&[TWO, NEW]).unwrap(), 2);
        assert_eq!((bed.read("d/a").as_deref(), bed.read("n/c").as_deref()), (Some("1\ntwo\n3\n"), Some("c\n")));
        let time = fs::metadata(bed.file("n/c")).unwrap().modified().unwrap();
        assert_eq!(bed.apply(&[TWO, ZWEI, NEW, GONE]).unwrap(), 2, "the new file stays as it is");
        assert_eq!(fs::metadata(bed.file("n/c")).unwrap().modified().unwrap(), time);
        assert_eq!((bed.read("d/a").as_deref(), bed.read("d/b")), (Some("1\nzwei\n3\n"), None));
        assert_eq!(bed.apply(&[]).unwrap(), 3);
        assert_eq!((bed.read("d/a").as_deref(), bed.read("d/b").as_deref()), (Some("1\n2\n3\n"), Some("b\n")));
        assert_eq!(bed.read("n/c"), None);
        assert_eq!(bed.apply(&[]).unwrap(), 0);
    }

    #[test]
    fn a_patch_that_does_not_apply_is_named_with_its_hunk_and_changes_nothing() {
        let bed = Bed::new();
        let error = bed.apply(&[TWO, TWO]).unwrap_err().to_string();
        assert!(error.contains("patch 2, p, does not apply"), "{error}");
        assert!(error.ends_with(":\n  d/a: hunk 1\n  wanted at d/a:1"), "{error}");
        assert_eq!(bed.read("d/a").as_deref(), Some("1\n2\n3\n"));
        let missing = TWO.replace("d/a", "d/x");
        let error = bed.apply(&[missing.as_str()]).unwrap_err().to_string();
        assert!(error.contains("d/x: No such file"), "{error}");
        let outside = TWO.replace("d/a", "../a");
        assert!(bed.apply(&[outside.as_str()]).unwrap_err().to_string().contains("is no file of the kernel's source"));
    }
}
