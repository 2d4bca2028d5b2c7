// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which programs of a suite are run.

use std::str::FromStr;

pub use xtask_base::pattern::matches;

/// Part `index` of `count`, counted from one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Shard, String> {
        let parsed = text.split_once('/').and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match parsed {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Shard { index, count }),
            _ => Err("I/N is wanted, with I from 1 to N".into()),
        }
    }
}

/// See the module.
#[derive(Default)]
pub struct Selection {
    /// Patterns; all if empty.
    pub only: Vec<String>,
    /// Patterns of a short run, which takes none that the expectation file does not name; all if
    /// empty.
    pub short: Vec<String>,
    pub shard: Option<Shard>,
}

impl Selection {
    /// The programs to run, of all that there are. `is_named`: whether the expectation file has a
    /// use for it.
    pub fn of<'a>(&self, units: &'a [String], is_named: impl Fn(&str) -> bool) -> Vec<&'a str> {
        let one_of = |patterns: &[String], unit: &str| patterns.iter().any(|pattern| matches(pattern, unit));
        let wanted = |unit: &&str| match (&self.only[..], &self.short[..]) {
            ([], []) => is_named(unit),
            ([], short) => is_named(unit) && one_of(short, unit),
            (only, _) => one_of(only, unit),
        };
        let mine = |(place, unit)| match self.shard {
            Some(Shard { index, count }) if place % count != index - 1 => None,
            _ => Some(unit),
        };
        units.iter().map(String::as_str).filter(wanted).enumerate().filter_map(mine).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        assert!(matches("a/b", "a/b") && matches("a/*", "a/b") && matches("*", "") && matches("*b*d", "abcd"));
        assert!(!matches("a/b", "a/bc") && !matches("a/*", "b/a/c") && !matches("*b", "abc"));
    }

    #[test]
    fn a_short_run_takes_no_more_than_a_whole_one() {
        let units = ["a/1", "a/2", "b"].map(str::to_owned);
        let of = |only: &[&str], short: &[&str]| {
            let [only, short] = [only, short].map(|patterns| patterns.iter().map(ToString::to_string).collect());
            Selection { only, short, shard: None }.of(&units, |unit| unit != "a/2")
        };
        assert_eq!(of(&[], &[]), ["a/1", "b"]);
        assert_eq!(of(&[], &["a/*"]), ["a/1"]);
        assert_eq!(of(&["a/*"], &["b"]), ["a/1", "a/2"]);
    }

    #[test]
    fn shards_are_all_of_it_without_overlap() {
        let units: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        let part =
            |text: &str| Selection { shard: text.parse().ok(), ..Selection::default() }.of(&units, |unit| unit != "3");
        let mut all: Vec<_> = ["1/3", "2/3", "3/3"].into_iter().flat_map(part).collect();
        all.sort_unstable();
        assert_eq!(all, ["0", "1", "2", "4", "5", "6", "7", "8", "9"]);
        assert!("0/3".parse::<Shard>().is_err() && "4/3".parse::<Shard>().is_err() && "3".parse::<Shard>().is_err());
    }
}
