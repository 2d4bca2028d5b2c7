// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The steps that have passed of a run that checks everything, for one that goes on with it.
//!
//! Mechanism: such a run takes hours. So it leaves a file in the cache with the commit's name, and
//! a line for each step that has passed. A run that resumes leaves these steps out. The file counts
//! for its commit alone, and not if the tree has changes that are in no commit. When all steps have
//! passed, the file goes.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};

use super::changes;
use xtask_base::cache;

/// A file of steps that have passed.
pub(super) struct Progress {
    path: PathBuf,
}

impl Progress {
    /// Begins a run, or goes on with one: what has passed before.
    pub(super) fn begin(resumes: bool) -> Result<(Progress, Vec<String>)> {
        let commit = changes::commit()?;
        ensure!(
            !resumes || commit.is_some(),
            "the tree has changes that are in no commit: commit them, or leave --resume out"
        );
        Progress::at(cache::root()?.join("ci/steps"), commit.as_deref(), resumes)
    }

    pub(super) fn at(path: PathBuf, commit: Option<&str>, resumes: bool) -> Result<(Progress, Vec<String>)> {
        let progress = Progress { path };
        let before = fs::read_to_string(&progress.path).unwrap_or_default();
        let mut lines = before.lines();
        let same = commit.is_some() && lines.next() == commit;
        if resumes && same {
            return Ok((progress, lines.map(Into::into).collect()));
        }
        let directory = progress.path.parent().context("the file has no directory")?;
        fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        fs::write(&progress.path, format!("{}\n", commit.unwrap_or("changed"))).with_context(|| progress.said())?;
        Ok((progress, Vec::new()))
    }

    fn said(&self) -> String {
        format!("write {}", self.path.display())
    }

    /// Notes that a step has passed.
    pub(super) fn passed(&self, step: &str) -> Result<()> {
        let mut file = OpenOptions::new().append(true).open(&self.path).with_context(|| self.said())?;
        writeln!(file, "{step}").with_context(|| self.said())
    }

    /// All steps have passed.
    pub(super) fn end(self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn a_run_goes_on_on_its_commit_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ci/steps");
        let begin = |commit, resumes| Progress::at(path.clone(), commit, resumes).expect("a file");
        let (progress, before) = begin(Some("one"), true);
        assert!(before.is_empty());
        progress.passed("a: b (all)").expect("a line");
        progress.passed("a: c (all)").expect("a line");
        assert_eq!(begin(Some("one"), true).1, ["a: b (all)", "a: c (all)"]);
        // Another commit, a tree without a name, and a run that does not resume begin anew.
        for (commit, resumes) in [(Some("two"), true), (None, true), (Some("one"), false)] {
            begin(Some("one"), false).0.passed("a: b (all)").expect("a line");
            assert!(begin(commit, resumes).1.is_empty(), "{commit:?} {resumes}");
        }
        begin(Some("one"), false).0.end();
        assert!(!path.exists());
    }
}
