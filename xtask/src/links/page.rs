// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A markdown file: its headings' anchors, its links, the paths that it names, and its long lines.
//!
//! Limits: the part of markdown that the tree's pages use. Code in fences is not read; code between
//! backticks ends on its line.

use std::collections::BTreeSet;

/// See the module. Lines count from 1.
#[derive(Default)]
pub(super) struct Page {
    /// As GitHub and cgit make them of headings.
    pub(super) anchors: BTreeSet<String>,
    /// Targets of relative links.
    pub(super) links: Vec<(usize, String)>,
    /// Words in backticks that may be paths, up to `::`.
    pub(super) paths: Vec<(usize, String)>,
    /// With how many columns they have.
    pub(super) long_lines: Vec<(usize, usize)>,
}

impl Page {
    pub(super) fn read(text: &str, width: usize) -> Self {
        let mut page = Self::default();
        let mut fenced = false;
        for (line, number) in text.lines().zip(1_usize..) {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
                continue;
            }
            if fenced {
                continue;
            }
            if let Some(heading) = line.strip_prefix('#') {
                page.enter(heading.trim_start_matches('#').trim());
            }
            let definition = definition(line);
            let columns = line.chars().count();
            // A table's row and an address cannot be broken.
            let breakable = line.trim().contains(' ') && definition.is_none() && !line.starts_with('|');
            if columns > width && breakable {
                page.long_lines.push((number, columns));
            }
            let (prose, code) = split_code(line);
            let targets = definition.into_iter().chain(inline_links(&prose));
            page.links.extend(targets.filter(|target| !target.contains(':')).map(|target| (number, target.to_owned())));
            let words = code.iter().map(|word| word.split("::").next().unwrap_or_default());
            let plain = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
            page.paths.extend(words.filter(|word| plain(word)).map(|word| (number, word.to_owned())));
        }
        page
    }

    /// Notes a heading; a second one of the same words gets a number.
    fn enter(&mut self, heading: &str) {
        let text = without_targets(heading);
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor: String = text.to_lowercase().chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect();
        let taken = |name: &str| self.anchors.contains(name);
        let name = if taken(&anchor) {
            (1_usize..).map(|n| format!("{anchor}-{n}")).find(|name| !taken(name)).unwrap_or_default()
        } else {
            anchor
        };
        self.anchors.insert(name);
    }
}

/// `[text](target)` as `text`.
fn without_targets(heading: &str) -> String {
    let mut text = heading.to_owned();
    while let Some(start) = text.find("](") {
        let end = text[start..].find(')').map_or(text.len(), |end| start + end + 1);
        text.replace_range(start..end, "");
    }
    text
}

/// The target of `[label]: target`.
fn definition(line: &str) -> Option<&str> {
    let (_, target) = line.strip_prefix('[')?.split_once("]: ")?;
    Some(target.trim())
}

/// The targets of `[text](target)`.
fn inline_links(prose: &str) -> impl Iterator<Item = &str> {
    prose.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// A line without its code, and the code between backticks.
fn split_code(line: &str) -> (String, Vec<&str>) {
    let parts: Vec<_> = line.split('`').collect();
    let prose: String = parts.iter().copied().step_by(2).collect();
    (prose, parts.into_iter().skip(1).step_by(2).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_are_anchors() {
        let page = Page::read("# What it *is*, and `why`\n## [Here](there.md)\n## Here\n```\n# no heading\n```\n", 100);
        assert_eq!(page.anchors.iter().collect::<Vec<_>>(), ["here", "here-1", "what-it-is-and-why"]);
        assert_eq!(page.links, [(2, "there.md".to_owned())]);
    }

    #[test]
    fn long_lines_are_prose() {
        let long = "word ".repeat(30);
        let text = format!("{long}\n| {long}|\n```\n{long}\n```\n[x]: {long}\n{}\n", "w".repeat(150));
        assert_eq!(Page::read(&text, 100).long_lines, [(1, 150)]);
    }

    #[test]
    fn links_are_told_from_code() {
        let page = Page::read("`[a](b)` [c](d#e) `f/g.rs::h` [i](http://j)\n", 100);
        assert_eq!(page.links, [(1, "d#e".to_owned())]);
        assert_eq!(page.paths, [(1, "f/g.rs".to_owned())]);
    }
}
