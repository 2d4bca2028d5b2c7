// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Paragraphs and list items of a markdown page, wrapped anew where a line is too long.
//!
//! Code in fences, tables, headings and comments stay as they are; so does a paragraph whose lines
//! are all short. Code between backticks and the targets of links are not broken.

/// `text` with its long lines wrapped at `width` columns.
pub fn wrap(text: &str, width: usize) -> String {
    let mut out = Vec::new();
    let mut paragraph: Vec<&str> = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        let stays = fenced || fence || line.trim().is_empty() || line.starts_with(['#', '|', '<']);
        if stays || item(line).is_some() {
            out.extend(rewrapped(&paragraph, width));
            paragraph.clear();
        }
        if stays {
            out.push(line.to_owned());
        } else {
            paragraph.push(line);
        }
        fenced ^= fence;
    }
    out.extend(rewrapped(&paragraph, width));
    out.push(String::new());
    out.join("\n")
}

/// The marker of a list item with the spaces before and after it.
fn item(line: &str) -> Option<&str> {
    let body = line.trim_start();
    let digits = body.trim_start_matches(|c: char| c.is_ascii_digit());
    let after = match body.strip_prefix(['-', '*']) {
        Some(after) => after,
        None if digits.len() < body.len() => digits.strip_prefix('.')?,
        None => return None,
    };
    let text = after.trim_start();
    (text.len() < after.len()).then(|| &line[..line.len() - text.len()])
}

fn rewrapped(paragraph: &[&str], width: usize) -> Vec<String> {
    let unchanged = || paragraph.iter().map(|line| (*line).to_owned()).collect();
    let Some(first) = paragraph.first() else { return Vec::new() };
    let definitions = paragraph.iter().all(|line| line.starts_with('[') && line.contains("]: "));
    if definitions || paragraph.iter().all(|line| line.chars().count() <= width) {
        return unchanged();
    }
    let indent = &first[..first.len() - first.trim_start().len()];
    let marker = item(first).unwrap_or(indent);
    let text = paragraph.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let text = text.strip_prefix(marker.trim()).unwrap_or(&text);
    let hanging = " ".repeat(marker.chars().count());
    let mut lines = vec![marker.to_owned()];
    let mut empty = true;
    for word in words(text) {
        let line = lines.last().map_or(0, |line| line.chars().count());
        if !empty && line + 1 + word.chars().count() > width {
            lines.push(format!("{hanging}{word}"));
        } else if let Some(line) = lines.last_mut() {
            if !empty {
                line.push(' ');
            }
            line.push_str(word);
        }
        empty = false;
    }
    lines
}

/// Words, with code in backticks whole. What would begin a list at a line's beginning, as a number
/// with a dot does, belongs to the word before.
fn words(text: &str) -> Vec<&str> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    let (mut start, mut code) = (0, false);
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        code ^= c == '`';
        if c != ' ' || code && at < text.len() {
            continue;
        }
        let begins_list = item(&format!("{} x", &text[start..at])).is_some();
        match spans.last_mut().filter(|_| begins_list) {
            Some(before) => before.1 = at,
            None if start < at => spans.push((start, at)),
            None => {}
        }
        start = at + 1;
    }
    spans.into_iter().map(|(start, end)| &text[start..end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paragraphs_are_wrapped() {
        assert_eq!(wrap("one two three four\n", 9), "one two\nthree\nfour\n");
        assert_eq!(wrap("- one two\n  three four five\n", 12), "- one two\n  three four\n  five\n");
        assert_eq!(wrap("12. one two three\n13. one\n", 11), "12. one two\n    three\n13. one\n");
        assert_eq!(wrap("one `two three`, four\n", 10), "one\n`two three`,\nfour\n");
        assert_eq!(wrap("see section 8. Then\n", 12), "see\nsection 8.\nThen\n");
    }

    #[test]
    fn short_lines_tables_and_code_stay() {
        for text in ["one\ntwo\n", "| one two three four |\n", "```\none two three four\n```\n", "# one two three\n"] {
            assert_eq!(wrap(text, 10), text);
        }
        let definitions = "[a]: one/two/three\n[b]: four/five/six\n";
        assert_eq!(wrap(definitions, 10), definitions);
    }
}
