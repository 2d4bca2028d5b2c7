// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The comments of a Rust or C source.
//!
//! Mechanism: one pass over the text that knows strings (escaped, raw and byte strings), character
//! literals and nested block comments, because a `//` inside a string begins no comment. Line
//! comments of one kind on lines that follow each other are one comment.
//!
//! Limits: a raw string is Rust's; C's comments do not nest, and the tree has none that would.

/// A comment without its markers.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Comment {
    /// The line of its first character, from 1.
    pub(super) line: usize,
    pub(super) text: String,
    /// Whether it is a document comment of one item (`///`).
    pub(super) documents: bool,
}

pub(super) fn comments(source: &str) -> Vec<Comment> {
    let mut found: Vec<(&str, Comment)> = Vec::new();
    let mut rest = source;
    let mut line = 1_usize;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            enter(&mut found, line, &rest[..length], source, source.len() - rest.len());
            length
        } else if rest.starts_with("/*") {
            let length = block(rest);
            let text = rest[..length].trim_start_matches(['/', '*', '!']).trim_end_matches(['/', '*']);
            let lines: Vec<_> = text.lines().map(|line| line.trim_start().trim_start_matches('*').trim()).collect();
            found.push(("/*", Comment { line, text: lines.join("\n"), documents: false }));
            length
        } else if let Some(length) = raw_string(rest) {
            length
        } else if first == '"' {
            quoted(rest, '"')
        } else if first == '\'' {
            character(rest)
        } else if first.is_alphanumeric() || first == '_' {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found.into_iter().map(|(_, comment)| comment).collect()
}

/// Adds a line comment to the one above it, or begins a new one.
fn enter<'a>(found: &mut Vec<(&'a str, Comment)>, line: usize, whole: &'a str, source: &str, at: usize) {
    let marker = ["//!", "////", "///"].into_iter().find(|marker| whole.starts_with(marker)).unwrap_or("//");
    let text = whole[marker.len()..].strip_prefix(' ').unwrap_or(&whole[marker.len()..]);
    // A comment behind code stands for itself.
    let before = source[..at].rsplit('\n').next().unwrap_or_default();
    let alone = before.trim().is_empty();
    if let Some((_, comment)) = found.last_mut().filter(|(last, _)| alone && *last == marker) {
        if comment.line + comment.text.matches('\n').count() + 1 == line {
            comment.text.push('\n');
            comment.text.push_str(text);
            return;
        }
    }
    let kind = if alone { marker } else { "behind" };
    found.push((kind, Comment { line, text: text.to_owned(), documents: marker == "///" }));
}

/// The length of a block comment; one that is not closed reaches to the end.
fn block(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0_usize;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a raw string (`r"..."`, `br#"..."#`), if one begins here.
fn raw_string(text: &str) -> Option<usize> {
    let body = ["br", "cr", "r"].into_iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inside = body[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let start = text.len() - inside.len();
    Some(inside.find(&end).map_or(text.len(), |at| start + at + end.len()))
}

/// The length of a literal between two `quote`s, the first of which is here.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return at + 1;
        }
    }
    text.len()
}

/// The length of a character literal, or of the quote alone where a lifetime begins.
fn character(text: &str) -> usize {
    let mut inside = text.chars().skip(1);
    match (inside.next(), inside.next()) {
        (Some('\\'), _) => quoted(text, '\''),
        (Some(c), Some('\'')) => c.len_utf8() + 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<(usize, String)> {
        comments(source).into_iter().map(|comment| (comment.line, comment.text)).collect()
    }

    #[test]
    fn lines_that_follow_each_other_are_one_comment() {
        let source = "//! A.\n//! B.\n\n/// C.\n// D.\nlet x = 1; // E.\n// F.\n";
        let found = texts(source);
        let expected = [(1, "A.\nB."), (4, "C."), (5, "D."), (6, "E."), (7, "F.")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
        assert!(comments(source)[1].documents && !comments(source)[0].documents);
    }

    #[test]
    fn literals_hold_no_comments() {
        let source = "let a = \"// no \\\" // no\";\nlet b = r#\"// \" no\"#;\nlet c = '\"'; // yes\nfn f<'a>() {} // yes\nlet d = '\\''; // yes";
        assert_eq!(texts(source), [(3, "yes".to_owned()), (4, "yes".to_owned()), (5, "yes".to_owned())]);
    }

    #[test]
    fn block_comments_nest() {
        assert_eq!(
            texts("/* a /* b */\n * c */ // d"),
            [(1, " a /* b */\nc".to_owned()), (2, "d".to_owned())].map(|(l, t)| (l, t.trim_start().to_owned()))
        );
        assert_eq!(texts("/* never closed"), [(1, "never closed".to_owned())]);
    }
}
