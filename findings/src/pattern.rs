// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Patterns of names: `*` stands for any text, `?` for one character.

/// A pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern of a text.
    #[must_use]
    pub fn new(text: &str) -> Pattern {
        Pattern(text.to_string())
    }

    /// Whether all of a name fits.
    ///
    /// At a mismatch the last star takes one character more, so the time is at most the product of
    /// both lengths.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut at, mut of, mut star) = (0, 0, None);
        while of < name.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at, of));
                    at += 1;
                }
                Some(b'?') => (at, of) = (at + 1, of + 1),
                Some(byte) if *byte == name[of] => (at, of) = (at + 1, of + 1),
                _ => {
                    let Some((place, taken)) = star else { return false };
                    star = Some((place, taken + 1));
                    (at, of) = (place + 1, taken + 1);
                }
            }
        }
        pattern[at..].iter().all(|byte| *byte == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_stand_for_text() {
        for (pattern, name) in
            [("", ""), ("*", ""), ("a*c", "abbc"), ("a*", "a"), ("*b", "aab"), ("a?c", "abc"), ("*a*b*", "xaybz")]
        {
            assert!(Pattern::new(pattern).matches(name), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("a", "ab"), ("a?", "a"), ("*b", "ba"), ("a*c", "ab"), ("*aab", "aaaac")] {
            assert!(!Pattern::new(pattern).matches(name), "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = Pattern::new(&"*a".repeat(200));
        assert!(!pattern.matches(&"a".repeat(199)));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(5000))));
    }
}
