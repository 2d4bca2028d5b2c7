// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A Markdown text as sentences.
//!
//! Mechanism: pulldown-cmark reads the text; each paragraph, item and table cell becomes one line
//! of text in which code is the word `code`. Headings are no sentences.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::Sentence;

/// What stands for a piece of code.
pub(super) const CODE: &str = "`code`";

/// The sentences of `text`, whose first line has the number `first`.
pub(super) fn sentences(text: &str, first: usize) -> Vec<Sentence> {
    let mut found = Vec::new();
    // Pieces of the block that is read, each with its place in the text.
    let mut block: Vec<(usize, String)> = Vec::new();
    let mut silent = 0_usize;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Heading { .. } | Tag::CodeBlock(_) | Tag::HtmlBlock) => {
                found.extend(cut(&std::mem::take(&mut block), text, first));
                silent += 1;
            }
            Event::End(TagEnd::Heading(_) | TagEnd::CodeBlock | TagEnd::HtmlBlock) => silent -= 1,
            Event::Start(Tag::Paragraph | Tag::Item | Tag::TableCell | Tag::List(_))
            | Event::End(TagEnd::Paragraph | TagEnd::Item | TagEnd::TableCell) => {
                found.extend(cut(&std::mem::take(&mut block), text, first));
            }
            Event::Text(words) if silent == 0 => block.push((range.start, words.into_string())),
            Event::Code(_) if silent == 0 => block.push((range.start, CODE.to_owned())),
            Event::SoftBreak | Event::HardBreak if silent == 0 => block.push((range.start, " ".to_owned())),
            _ => {}
        }
    }
    found.extend(cut(&block, text, first));
    found
}

/// The sentences of one block.
fn cut(block: &[(usize, String)], text: &str, first: usize) -> Vec<Sentence> {
    let mut found = Vec::new();
    let whole: String = block.iter().map(|(_, piece)| piece.as_str()).collect();
    // Where in the text the character at a place of `whole` is, to a piece's accuracy.
    let line_of = |at: usize| {
        let mut passed = 0_usize;
        let mut place = 0_usize;
        for (start, piece) in block {
            if passed > at {
                break;
            }
            place = *start;
            passed += piece.len();
        }
        first + text[..place].matches('\n').count()
    };
    let mut start = 0_usize;
    let ends = whole.char_indices().filter(|(at, c)| ends_here(&whole, *at, *c)).map(|(at, c)| at + c.len_utf8());
    for end in ends.chain([whole.len()]) {
        let sentence = whole[start..end].trim();
        if !sentence.is_empty() {
            let lead = whole[start..end].len() - whole[start..end].trim_start().len();
            found.push(Sentence { line: line_of(start + lead), text: sentence.to_owned() });
        }
        start = end;
    }
    found
}

/// Whether the character at `at` ends a sentence.
fn ends_here(text: &str, at: usize, c: char) -> bool {
    if !matches!(c, '.' | '?' | '!') {
        return false;
    }
    let after = text[at + 1..].trim_start_matches(['"', ')', '\'']);
    let abbreviation = ["e.g", "i.e", "vs", "etc"].iter().any(|word| text[..at].ends_with(word));
    // "2, 4, ... 64" goes on.
    let ellipsis = text[..at].ends_with('.');
    after.starts_with(' ') && !abbreviation && !ellipsis
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<(usize, String)> {
        sentences(text, 1).into_iter().map(|sentence| (sentence.line, sentence.text)).collect()
    }

    #[test]
    fn paragraphs_items_and_cells_have_sentences() {
        let text = "# No sentence.\n\nOne `f(x). Y`\nis here. Two (in 7.3) is\nhere.\n\n- three: a, b\n- four\n\n| a | b |\n| --- | --- |\n| c | d e |\n";
        let expected = [
            (3, "One `code` is here."),
            (4, "Two (in 7.3) is here."),
            (7, "three: a, b"),
            (8, "four"),
            (10, "a"),
            (10, "b"),
            (12, "c"),
            (12, "d e"),
        ];
        assert_eq!(texts(text), expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn code_and_abbreviations_end_nothing() {
        assert_eq!(texts("2, 4, ... 64 ms. vkfd waits.").len(), 2);
        assert_eq!(texts("A, e.g. `x`. B\n\n```text\nC. D.\n```\n").len(), 2);
        assert_eq!(texts("[a](b.c) is `d. E` it"), [(1, "a is `code` it".to_owned())]);
    }
}
