// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The language of pages and comments, as far as a program can judge it. A part of `stray`.
//!
//! Mechanism: [`page`] cuts a Markdown text into sentences, with their lines; [`comment`] finds the
//! comments of a Rust or C source, which are Markdown too; [`rules`] judges one sentence.
//! CONTRIBUTING.md has the rules in words.
//!
//! Limits: a sentence ends at a full stop, question mark or exclamation mark before a space and at
//! the end of a paragraph, item or cell. Code, links' targets and fenced blocks are not read.

mod comment;
mod page;
mod rules;

use std::path::Path;

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
}
