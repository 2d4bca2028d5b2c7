// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A transcript in a page: a fenced block after a comment `<!-- transcript: PACKAGES -->`.
//!
//! In it `$ ` begins a command, which a shell runs; what follows is what it writes (stdout and stderr). A line `...` stands for any lines. A command
//! with nothing after it may write anything.

use super::mask::mask;

const MARK: &str = "<!-- transcript";
const GAP: &str = "...";

/// See the module.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The lines of the page between the fences.
    pub(super) first: usize,
    pub(super) end: usize,
    /// Debian packages that its commands are in.
    pub(super) packages: Vec<String>,
    pub(super) steps: Vec<Step>,
}

/// A command and what it is said to write.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// As the page has it.
    pub(super) line: String,
    pub(super) command: String,
    pub(super) output: Vec<String>,
}

/// The blocks of a page.
pub(super) fn read(page: &str) -> Vec<Block> {
    let lines: Vec<_> = page.lines().collect();
    let mut blocks = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(packages) = line.strip_prefix(MARK).and_then(|rest| rest.strip_suffix("-->")) else { continue };
        let packages = packages.trim_start_matches(':').split_whitespace().map(str::to_owned).collect();
        let fence = |line: &&str| line.starts_with("```");
        let Some(open) = lines.iter().skip(at + 1).position(fence).map(|n| at + 1 + n) else { continue };
        let Some(close) = lines.iter().skip(open + 1).position(fence).map(|n| open + 1 + n) else { continue };
        let mut steps: Vec<Step> = Vec::new();
        for line in &lines[open + 1..close] {
            if let Some(command) = line.strip_prefix("$ ") {
                // A comment behind a command is the reader's.
                let command = command.split("  # ").next().unwrap_or_default().trim_end().to_owned();
                steps.push(Step { line: (*line).to_owned(), command, output: Vec::new() });
            } else if let Some(step) = steps.last_mut() {
                step.output.push((*line).to_owned());
            }
        }
        blocks.push(Block { first: open + 1, end: close, packages, steps });
    }
    blocks
}

impl Step {
    /// The output with a run's numbers, its gaps kept; what does not fit is the error.
    pub(super) fn renew(&self, seen: &str) -> Result<Vec<String>, String> {
        if self.output.is_empty() {
            return Ok(Vec::new());
        }
        let seen: Vec<_> = seen.lines().map(str::trim_end).collect();
        fit(&self.output, &seen).ok_or_else(|| self.difference(&seen))
    }

    fn difference(&self, seen: &[&str]) -> String {
        let known = |line: &&&str| !self.output.iter().any(|said| mask(said) == mask(line));
        let missing = |line: &&String| *line != GAP && !seen.iter().any(|seen| mask(seen) == mask(line));
        let mut text = format!("`{}` writes something else", self.command);
        for line in self.output.iter().filter(missing) {
            text.push_str(&format!("\n    page: {line}"));
        }
        for line in seen.iter().filter(known).take(20) {
            text.push_str(&format!("\n    now:  {line}"));
        }
        text
    }
}

/// The lines seen where `said` has them.
fn fit(said: &[String], seen: &[&str]) -> Option<Vec<String>> {
    let Some((first, rest)) = said.split_first() else { return seen.is_empty().then(Vec::new) };
    if first == GAP {
        let tail = (0..=seen.len()).find_map(|skipped| fit(rest, &seen[skipped..]))?;
        return Some([vec![GAP.to_owned()], tail].concat());
    }
    let (now, later) = seen.split_first()?;
    if mask(first) != mask(now) {
        return None;
    }
    Some([vec![(*now).to_owned()], fit(rest, later)?].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# A page\n<!-- transcript: rocminfo g++ -->\n\n```console\n$ one 1  # why\n$ two\ntook 3 ms\n...\nok\n```\n";

    #[test]
    fn blocks_are_found() {
        let blocks = read(PAGE);
        assert_eq!(blocks.len(), 1);
        assert_eq!((blocks[0].first, blocks[0].end), (4, 9));
        assert_eq!(blocks[0].packages, ["rocminfo", "g++"]);
        let commands: Vec<_> = blocks[0].steps.iter().map(|step| step.command.as_str()).collect();
        assert_eq!(commands, ["one 1", "two"]);
        assert_eq!(blocks[0].steps[1].output, ["took 3 ms", "...", "ok"]);
    }

    #[test]
    fn new_numbers_come_into_the_page() {
        let step = &read(PAGE)[0].steps[1];
        assert_eq!(step.renew("took 1.5 us\na\nb\nok\n").unwrap(), ["took 1.5 us", "...", "ok"]);
        assert_eq!(step.renew("took 9 s\nok\n").unwrap(), ["took 9 s", "...", "ok"]);
    }

    #[test]
    fn other_words_are_a_finding() {
        let step = &read(PAGE)[0].steps[1];
        let finding = step.renew("needed 3 ms\nok\n").unwrap_err();
        assert!(finding.contains("page: took 3 ms") && finding.contains("now:  needed 3 ms"), "{finding}");
        assert!(step.renew("took 3 ms\n").is_err());
        assert!(step.renew("took 3 ms\nok\nmore\n").is_err());
    }
}
