// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The language of pages and comments, as far as a program can judge it. A part of `stray`.
//!
//! Mechanism: [`page`] cuts a Markdown text into sentences, with their lines; [`comment`] finds the
//! comments of a Rust or C source, which are Markdown too; [`rules`] judges one sentence.
//! CONTRIBUTING.md has the rules in words. xtask/prose.toml has the number of findings that each
//! file may still have: a file with more fails, and so does a file with fewer, until the number is
//! lowered. `cargo xtask stray --lower` lowers the numbers and never raises one.
//!
//! Limits: a sentence ends at a full stop, question mark or exclamation mark before a space and at
//! the end of a paragraph, item or cell. Code, links' targets and fenced blocks are not read.

mod comment;
mod page;
mod rules;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use xtask_base::tree;

/// The file with the numbers.
const ALLOWED: &str = "xtask/prose.toml";
const HEADER: &str = "\
# SPDX-License-Identifier: GPL-2.0 OR MIT
# How many findings of the language rules (CONTRIBUTING.md) each file may still have. A number may
# only fall: `cargo xtask stray --lower` writes what is left, and never more than is here.
";

/// What a sentence is part of; it decides how long the sentence may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Page,
    Comment,
}

/// A sentence and the line on which it begins.
#[derive(PartialEq, Eq, Debug)]
struct Sentence {
    line: usize,
    text: String,
}

/// One finding.
pub(crate) struct Finding {
    line: usize,
    what: String,
}

impl Finding {
    /// The finding as one line.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{path}:{}: {}", self.line, self.what)
    }
}

#[derive(Default, Deserialize, Serialize)]
struct Allowed {
    #[serde(default)]
    files: BTreeMap<String, usize>,
}

/// Findings in one file. Files of other kinds have none.
pub(crate) fn check(path: &str, text: &str) -> Vec<Finding> {
    match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("md") => judge(Kind::Page, &page::sentences(text, 1)),
        Some("rs" | "c" | "h") => {
            let mut findings = Vec::new();
            for comment in comment::comments(text) {
                let sentences = page::sentences(&comment.text, comment.line);
                findings.extend(judge(Kind::Comment, &sentences));
                if comment.documents {
                    let alone = sentences.first().filter(|_| sentences.len() == 1);
                    let what = alone.and_then(|sentence| rules::one_word(&sentence.text));
                    findings.extend(what.map(|what| Finding { line: comment.line, what }));
                }
            }
            findings
        }
        _ => Vec::new(),
    }
}

fn judge(kind: Kind, sentences: &[Sentence]) -> Vec<Finding> {
    let of = |sentence: &Sentence| {
        let line = sentence.line;
        rules::judge(kind, &sentence.text).into_iter().map(move |what| Finding { line, what }).collect::<Vec<_>>()
    };
    sentences.iter().flat_map(of).collect()
}

/// What is wrong with all files together, by the numbers in xtask/prose.toml.
pub(crate) fn compare(found: &BTreeMap<String, Vec<Finding>>, lower: bool) -> Result<Vec<String>> {
    let place = tree::root().join(ALLOWED);
    let text = fs::read_to_string(&place).unwrap_or_default();
    let allowed: Allowed = toml::from_str(&text).with_context(|| format!("read {ALLOWED}"))?;
    let (findings, left) = against(found, &allowed.files, lower);
    if lower {
        let text = toml::to_string(&Allowed { files: left }).context("write the numbers")?;
        fs::write(&place, format!("{HEADER}{text}")).with_context(|| format!("write {ALLOWED}"))?;
    }
    Ok(findings)
}

/// The findings, and the numbers that are left when they are lowered.
fn against(
    found: &BTreeMap<String, Vec<Finding>>,
    allowed: &BTreeMap<String, usize>,
    lower: bool,
) -> (Vec<String>, BTreeMap<String, usize>) {
    let mut findings = Vec::new();
    let mut left = BTreeMap::new();
    for (path, list) in found {
        let most = allowed.get(path).copied().unwrap_or_default();
        if list.len() > most {
            findings.extend(list.iter().map(|finding| finding.at(path)));
            if most > 0 {
                findings.push(format!("{path}: {} findings of language, {ALLOWED} allows {most}", list.len()));
            }
        }
        let now = list.len().min(most);
        if now > 0 {
            left.insert(path.clone(), now);
        }
    }
    for (path, most) in allowed {
        let now = found.get(path).map_or(0, Vec::len);
        if now < *most && !lower {
            findings.push(format!("{path}: {now} findings of language, {ALLOWED} still allows {most}: `--lower`"));
        }
    }
    (findings, left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(path, text).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn pages_and_comments_are_judged_and_code_is_not() {
        assert_eq!(lines("a.md", "# Title\n\nThe lock is for who\nmaps it.\n\n```\nfor who maps\n```\n"), [3]);
        assert_eq!(lines("a.rs", "fn f() {}\n// The lock is for who maps it.\nlet s = \"for who maps it\";\n"), [2]);
        assert_eq!(lines("a.toml", "# for who maps it\n"), [0; 0]);
    }

    #[test]
    fn a_document_of_one_word_is_found() {
        assert_eq!(lines("a.rs", "/// Which.\nfn f() {}\n/// Which one.\nfn g() {}\n// Which.\n"), [1]);
    }

    #[test]
    fn numbers_may_only_fall() {
        let list = |n: usize| (0..n).map(|line| Finding { line, what: "x".into() }).collect::<Vec<_>>();
        let found: BTreeMap<_, _> = [("a.rs".to_owned(), list(2)), ("b.rs".to_owned(), list(1))].into();
        let allowed: BTreeMap<_, _> = [("a.rs".to_owned(), 3), ("c.rs".to_owned(), 1)].into();
        let (findings, left) = against(&found, &allowed, false);
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[0].starts_with("b.rs:0") && findings[1].contains("a.rs: 2 findings"), "{findings:?}");
        assert_eq!(left, [("a.rs".to_owned(), 2)].into());
        let (findings, _) = against(&found, &allowed, true);
        assert_eq!(findings, ["b.rs:0: x"]);
    }
}
