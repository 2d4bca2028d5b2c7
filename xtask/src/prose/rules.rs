// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is wrong with one sentence.
//!
//! Mechanism: the sentence becomes words in lower case, each with the mark of punctuation behind
//! it. Each rule looks for words next to each other. A rule that would refuse good English is not
//! here.

use super::Kind;

/// The most words of a sentence in a page, and in a comment.
const WORDS: (usize, usize) = (25, 30);

/// A word in lower case, and whether a mark of punctuation is before or behind it.
struct Word<'a> {
    text: &'a str,
    opened: bool,
    closed: bool,
}

/// Words before a clause that stands in for a noun.
const PREPOSITIONS: [&str; 25] = [
    "for", "by", "of", "to", "from", "than", "with", "in", "on", "at", "into", "under", "over", "as", "is", "are",
    "was", "were", "be", "and", "or", "but", "like", "without", "beside",
];
/// Nouns that a relative clause of people may follow.
const PEOPLE: [&str; 22] = [
    "people",
    "person",
    "somebody",
    "someone",
    "anybody",
    "anyone",
    "nobody",
    "everybody",
    "everyone",
    "those",
    "user",
    "users",
    "developer",
    "developers",
    "reader",
    "readers",
    "author",
    "authors",
    "maintainer",
    "maintainers",
    "programmer",
    "programmers",
];
/// What no noun is: behind "of X's" one of these shows that the owned thing is not named.
const FUNCTION_WORDS: [&str; 44] = [
    "is", "are", "was", "were", "be", "has", "have", "had", "that", "which", "in", "on", "at", "to", "by", "for",
    "from", "of", "and", "or", "but", "can", "may", "must", "with", "when", "while", "as", "it", "then", "there",
    "here", "where", "who", "if", "until", "so", "do", "does", "will", "would", "gets", "goes", "comes",
];

/// The findings of one sentence.
pub(super) fn judge(kind: Kind, sentence: &str) -> Vec<String> {
    let lower = sentence.to_lowercase();
    let words: Vec<Word<'_>> = lower.split_whitespace().filter_map(word).collect();
    let mut found = Vec::new();
    let most = if kind == Kind::Page { WORDS.0 } else { WORDS.1 };
    if words.len() > most {
        let start: Vec<&str> = sentence.split_whitespace().take(4).collect();
        found.push(format!("a sentence of {} words, more than {most}: {:?}", words.len(), start.join(" ")));
    }
    if words.iter().filter(|word| word.text == "so").count() > 1 {
        found.push("two \"so\" in one sentence".into());
    }
    let question = lower.trim_end_matches(['"', ')']).ends_with('?');
    for at in 0..words.len() {
        let before = at.checked_sub(1).and_then(|before| words.get(before));
        let after = |steps: usize| words.get(at + steps).map_or("", |word| word.text);
        let follows = |list: &[&str]| before.is_some_and(|before| list.contains(&before.text));
        // "shows what it costs, and what is missing" goes on with a question.
        let joined = follows(&["and", "or"]);
        // "/// What a call returned." names the thing below it. A page has no such thing.
        let page = kind == Kind::Page;
        let begins = before.is_none_or(|before| before.closed || words[at].opened);
        match words[at].text {
            "who" | "whoever" if !question && !follows(&PEOPLE) => found.push(bare("who", &words, at)),
            "what" if !question && !joined && (begins && page || follows(&PREPOSITIONS)) => {
                found.push(bare("what", &words, at));
            }
            "where" if !question && !joined && (before.is_none() && page || follows(&PREPOSITIONS)) => {
                found.push(bare("where", &words, at));
            }
            "in" if after(1) == "the" && after(2) == "place" && after(3) == "of" => {
                found.push("\"in the place of\": write \"instead of\"".into());
            }
            "what" if after(1) == "of" => found.push("\"what of\": name it".into()),
            "told" | "tell" | "tells" | "hears" | "hear" | "heard" if after(1) == "of" => {
                found.push(format!("\"{} of\": write \"report\", \"notify\" or \"deliver\"", words[at].text));
            }
            "mended" | "mends" | "mend" => found.push("\"mended\": write \"fixed\"".into()),
            "of" => found.extend(possessive(&words, at)),
            "the" if after(1).ends_with("'s") && after(2) == "to" => {
                found.push(format!("\"the {} to\": write who must", after(1)));
            }
            _ => {}
        }
    }
    found
}

/// `of X's` without the owned thing: X is up to three words long.
fn possessive(words: &[Word<'_>], of: usize) -> Option<String> {
    let found = words.iter().enumerate().skip(of + 1).take(3).find(|(_, word)| word.text.ends_with("'s"));
    let (at, owner) = found?;
    // A mark of punctuation before the owner ends the phrase.
    if words[of + 1..at].iter().any(|word| word.closed) {
        return None;
    }
    let next = words.get(at + 1);
    let alone = owner.closed || next.is_none_or(|next| FUNCTION_WORDS.contains(&next.text));
    alone.then(|| format!("\"of ... {}\": write \"{} ...\"", owner.text, owner.text))
}

fn bare(which: &str, words: &[Word<'_>], at: usize) -> String {
    let start = at.saturating_sub(1);
    let near: Vec<&str> = words.iter().skip(start).take(4).map(|word| word.text).collect();
    format!("a bare \"{which}\" clause: {:?}", near.join(" "))
}

/// A word without the marks around it. `None` for a mark that stands by itself.
fn word(text: &str) -> Option<Word<'_>> {
    let inner = text.trim_matches(|c: char| !c.is_alphanumeric() && c != '`');
    if inner.is_empty() {
        return None;
    }
    let at = text.find(inner).unwrap_or_default();
    let marks = |part: &str| part.contains(['.', ',', ';', ':', '(', ')', '?', '!']);
    Some(Word { text: inner, opened: marks(&text[..at]), closed: marks(&text[at + inner.len()..]) })
}

/// What is wrong with a document comment that is this sentence and nothing else.
pub(super) fn one_word(sentence: &str) -> Option<String> {
    let only = sentence.trim_end_matches('.');
    let word = !only.is_empty() && only.chars().all(char::is_alphanumeric);
    word.then(|| format!("a document comment of one word ({sentence:?}) says nothing that the name does not"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(sentence: &str) -> usize {
        judge(Kind::Page, sentence).len()
    }

    #[test]
    fn bad_sentences_are_found() {
        for bad in [
            "The lock is for who maps nothing by it.",
            "Whoever wants the addresses asks.",
            "The driver waits for who is at it.",
            "A thread that who comes is another's successor.",
            "What moved before a failure stays.",
            "It gives the rest to what it finds.",
            "Where a host cannot say, the driver asks.",
            "A library stands in the place of AMD's.",
            "What of the machine decides it is not known.",
            "It is memory of the driver's.",
            "The GPU reads a page of another process's and stops.",
            "The driver was told of the change.",
            "This fault was mended.",
            "It is the caller's to free it: the caller's to keep.",
            "So it waits, so that nothing is lost.",
        ] {
            assert!(page(bad) > 0, "{bad}");
        }
    }

    #[test]
    fn good_sentences_are_not() {
        for good in [
            "The lock serves callers that map nothing.",
            "Those who write GPU runtimes use it.",
            "What does it cost?",
            "The driver checks what the caller may read.",
            "The command shows what it costs, and what is missing.",
            "Memory of the driver's own heap stays.",
            "The end of the process's queues is waited for.",
            "The address where the page was mapped is free.",
            "The driver learns what to do if it fails.",
            "It reports the change, so the GPU stops.",
            "KFD, where a flag decides, does the same.",
            "See the page of the driver.",
        ] {
            assert_eq!(judge(Kind::Page, good), [""; 0], "{good}");
        }
    }

    #[test]
    fn a_comment_may_name_its_thing() {
        assert!(judge(Kind::Comment, "What a call returned.").is_empty());
        assert!(judge(Kind::Comment, "Where a call returned.").is_empty());
        assert_eq!(judge(Kind::Page, "What a call returned.").len(), 1);
        assert_eq!(judge(Kind::Comment, "It is for what a call returned.").len(), 1);
    }

    #[test]
    fn pages_have_shorter_sentences_than_comments() {
        let sentence = |n: usize| vec!["word"; n].join(" ");
        assert_eq!((page(&sentence(25)), page(&sentence(26))), (0, 1));
        let comment = |n: usize| judge(Kind::Comment, &sentence(n)).len();
        assert_eq!((comment(30), comment(31)), (0, 1));
    }

    #[test]
    fn one_word_is_no_document() {
        assert!(one_word("Which.").is_some() && one_word("Bytes").is_some());
        assert!(one_word("Which GPU.").is_none() && one_word("`code`").is_none());
    }
}
