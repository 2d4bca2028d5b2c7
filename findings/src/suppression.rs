// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The suppression file: findings that somebody has looked at and accepts.
//!
//! A line has one or more of `rule=PATTERN`, `kernel=PATTERN` and `source=PATTERN`, and accepts
//! findings that fit all of them. A source is `FILE` or `FILE:LINE`; a pattern without a colon
//! behind it fits every line of the file. Lines that begin with `#`, and empty ones, are comments.

use std::str::FromStr;

use thiserror::Error;

use crate::finding::Finding;
use crate::pattern::Pattern;

/// The lines of a suppression file.
#[derive(Clone, Debug, Default)]
pub struct Suppressions {
    lines: Vec<Line>,
}

#[derive(Clone, Debug, Default)]
struct Line {
    number: usize,
    text: String,
    rule: Option<Pattern>,
    kernel: Option<Pattern>,
    source: Option<Pattern>,
    uses: u64,
}

/// A line that is none.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("line {number}: {word:?} is none of rule=PATTERN, kernel=PATTERN and source=PATTERN")]
pub struct BadLine {
    number: usize,
    word: String,
}

impl FromStr for Suppressions {
    type Err = BadLine;

    fn from_str(file: &str) -> Result<Suppressions, BadLine> {
        let mut lines = Vec::new();
        for (number, text) in (1..).zip(file.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let mut line = Line { number, text: text.to_string(), ..Line::default() };
            for word in text.split_whitespace() {
                let (place, pattern) = match word.split_once('=') {
                    Some(("rule", pattern)) => (&mut line.rule, pattern),
                    Some(("kernel", pattern)) => (&mut line.kernel, pattern),
                    Some(("source", pattern)) => (&mut line.source, pattern),
                    _ => return Err(BadLine { number, word: word.to_string() }),
                };
                *place = Some(Pattern::new(pattern));
            }
            lines.push(line);
        }
        Ok(Suppressions { lines })
    }
}

impl Line {
    fn fits(&self, finding: &Finding) -> bool {
        let name = |pattern: &Option<Pattern>, name: Option<&str>| match pattern {
            None => true,
            Some(pattern) => name.is_some_and(|name| pattern.matches(name)),
        };
        let source = match (&self.source, &finding.place.source) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(pattern), Some(source)) => {
                pattern.matches(&source.file) || pattern.matches(&format!("{}:{}", source.file, source.line))
            }
        };
        source && name(&self.rule, Some(&finding.rule)) && name(&self.kernel, finding.place.kernel.as_deref())
    }
}

impl Suppressions {
    /// Whether a line accepts the finding. The first that does is used.
    pub fn accept(&mut self, finding: &Finding) -> bool {
        let line = self.lines.iter_mut().find(|line| line.fits(finding));
        line.map(|line| line.uses = line.uses.saturating_add(1)).is_some()
    }

    /// Lines that accepted nothing: their numbers and texts.
    #[must_use]
    pub fn unused(&self) -> Vec<(usize, &str)> {
        self.lines.iter().filter(|line| line.uses == 0).map(|line| (line.number, line.text.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Check, Place, Severity, Source};

    fn finding(rule: &'static str, kernel: &str, line: u32) -> Finding {
        let source = Some(Source { file: "/src/a.hip".to_string(), line, column: 3 });
        let place = Place { kernel: Some(kernel.to_string()), source, ..Place::default() };
        Finding::new(Check::Race, rule, Severity::Error, String::new(), place)
    }

    #[test]
    fn all_words_of_a_line_must_fit() {
        let file = "# accepted\n\nrule=race/* kernel=sum source=*/a.hip:12\nsource=*.cl\n";
        let mut suppressions: Suppressions = file.parse().expect("two lines");
        assert!(suppressions.accept(&finding("race/lds", "sum", 12)));
        assert!(!suppressions.accept(&finding("race/lds", "sum", 13)));
        assert!(!suppressions.accept(&finding("race/lds", "other", 12)));
        assert!(!suppressions.accept(&finding("init/lds", "sum", 12)));
        assert_eq!(suppressions.unused(), [(4, "source=*.cl")]);
    }

    #[test]
    fn a_source_without_a_line_fits_every_line() {
        let mut suppressions: Suppressions = "source=*/a.hip".parse().expect("a line");
        assert!(suppressions.accept(&finding("race/lds", "sum", 99)));
        let mut nowhere = finding("race/lds", "sum", 1);
        nowhere.place.source = None;
        assert!(!suppressions.accept(&nowhere));
    }

    #[test]
    fn a_line_with_another_word_is_an_error() {
        let error = "\nrule=a kernels=b".parse::<Suppressions>().expect_err("a wrong word");
        assert_eq!(error, BadLine { number: 2, word: "kernels=b".to_string() });
    }
}
