// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A transcript in a page: a fenced block after a comment `<!-- transcript: PACKAGES -->`.
//!
//! In it `$ ` begins a command, which a shell runs. Its output follows (stdout and stderr). A line
//! `...` stands for any lines. A command with nothing after it may write anything. Words are
//! compared, not lines, because a longer number may wrap a line elsewhere.

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
    /// The output with a run's numbers, its gaps kept; as it is if lines end elsewhere. What does
    /// not fit is the error.
    pub(super) fn renew(&self, seen: &str) -> Result<Vec<String>, String> {
        if self.output.is_empty() {
            return Ok(Vec::new());
        }
        let lines: Vec<_> = seen.lines().map(str::trim_end).collect();
        match fit(&self.output, &lines) {
            Some(output) => Ok(output),
            None if same_words(&self.output, seen) => Ok(self.output.clone()),
            None => Err(self.difference(&lines)),
        }
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

/// Whether `seen` has the words of `said`, in whatever lines.
fn same_words(said: &[String], seen: &str) -> bool {
    let words =
        |text: &str| mask(text).split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let seen = words(seen);
    let parts: Vec<Vec<String>> = said.split(|line| line == GAP).map(|lines| words(&lines.join(" "))).collect();
    let mut rest = &seen[..];
    for (n, part) in parts.iter().enumerate() {
        let at = match (n, part.len()) {
            (_, 0) => Some(0),
            (0, _) => rest.starts_with(part).then_some(0),
            _ if n + 1 == parts.len() => rest.ends_with(part).then(|| rest.len() - part.len()),
            (_, length) => rest.windows(length).position(|window| window == &part[..]),
        };
        let Some(at) = at else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.is_empty() || said.last().is_some_and(|line| line == GAP)
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

    const PAGE: &str =
        "# A page\n<!-- transcript: rocminfo g++ -->\n\n```console\n$ one 1  # why\n$ two\ntook 3 ms\n...\nok\n```\n";

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
    fn lines_may_end_elsewhere() {
        let said = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let page = said("took (3 ms) and\nmore\n...\nok, at last\n");
        assert!(same_words(&page, "took (3000\nms) and more\na b c\nok, at\nlast\n"));
        assert!(!same_words(&page, "took (3 ms) and\nless\nok, at last\n"));
        assert!(!same_words(&page, "took (3 ms) and more\nok, at last\nand more\n"));
        assert!(same_words(&said("...\nb\n..."), "a\nb\nc") && !same_words(&said("...\nb\n..."), "a\nc"));
        assert!(same_words(&said("a"), "a") && !same_words(&said("a"), "a b") && !same_words(&said("a\n..."), "b a"));
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
