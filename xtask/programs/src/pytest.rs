// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The verdicts of a pytest program, as `xtask/programs/tinygrad_plugin.py` writes them to stdout.
//! Each test has a line when it begins and one when it ends, with its seconds and the reason.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};

use super::suite::Outcome;

/// How a test ended, and how long it took.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    pub outcome: Outcome,
    pub took: Duration,
}

/// What their lines begin with; the others are pytest's own.
const MARK: &str = "vkfd verdict\t";

/// Tests with their verdicts; none for one that has not ended.
pub fn verdicts(stdout: &str) -> Result<BTreeMap<String, Option<Verdict>>> {
    let mut cases = BTreeMap::new();
    for line in stdout.lines().filter_map(|line| line.strip_prefix(MARK)) {
        let fields: Vec<_> = line.split('\t').collect();
        ensure!(fields.len() == 4, "{line:?} is no verdict");
        let seconds: f64 = fields[2].parse().with_context(|| format!("seconds of {line:?}"))?;
        let why = || fields[3].to_owned();
        let outcome = match fields[0] {
            "begin" => None,
            "passed" => Some(Outcome::Passed),
            "failed" => Some(Outcome::Failed(why())),
            "skipped" => Some(Outcome::Skipped(why())),
            other => bail!("{other:?} is no verdict"),
        };
        let verdict = outcome.map(|outcome| Verdict { outcome, took: Duration::from_secs_f64(seconds.max(0.0)) });
        // What ended is not forgotten when the same name begins again.
        match cases.get(fields[1]) {
            Some(Some(Verdict { outcome: Outcome::Failed(_), .. })) => {}
            _ => drop(cases.insert(fields[1].to_owned(), verdict)),
        }
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(lines: &[&str]) -> Result<BTreeMap<String, Option<Verdict>>> {
        let lines: Vec<_> = lines.iter().map(|line| format!("..\n{MARK}{line}\n")).collect();
        verdicts(&lines.concat())
    }

    #[test]
    fn lines_say_how_each_test_ended() {
        let seen = said(&[
            "begin\tA.one\t0.000\t",
            "passed\tA.one\t1.500\t",
            "begin\tA.two\t0.000\t",
            "failed\tA.two\t0.100\t1 != 2",
            "begin\tA.three\t0.000\t",
            "skipped\tA.three\t0.000\tno FP8",
            "begin\tA.four\t0.000\t",
        ]);
        let seen = seen.expect("verdicts");
        let outcome = |name: &str| seen[name].as_ref().map(|verdict| verdict.outcome.clone());
        assert_eq!(outcome("A.one"), Some(Outcome::Passed));
        assert_eq!(seen["A.one"].as_ref().map(|verdict| verdict.took), Some(Duration::from_millis(1500)));
        assert_eq!(outcome("A.two"), Some(Outcome::Failed("1 != 2".into())));
        assert_eq!(outcome("A.three"), Some(Outcome::Skipped("no FP8".into())));
        assert_eq!(outcome("A.four"), None);
        assert!(said(&["passed\tA.one"]).is_err() && said(&["good\tA.one\t0\t"]).is_err());
    }

    #[test]
    fn a_failure_stays_one() {
        // After the test itself, what cleans up behind it may fail.
        let seen = said(&["failed\tA.one\t1.000\tbad", "passed\tA.one\t1.000\t"]).expect("verdicts");
        assert!(matches!(&seen["A.one"], Some(Verdict { outcome: Outcome::Failed(_), .. })));
    }
}
