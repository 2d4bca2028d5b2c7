// SPDX-License-Identifier: GPL-2.0 OR MIT
//! An earlier run of the same benchmark, to compare with. Its output with `--json` is the file.
//!
//! Mechanism: both runs are taken as JSON. A target is known by its text, a measurement by all of
//! its fields that are no spread. Of targets all are shown; of measurements those whose quartiles
//! do not meet the earlier ones, the largest changes first. So a field that a later version adds
//! makes a measurement a new one, and nothing else.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{bail, Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::spread::Spread;

/// The schema's version: it rises when a field is renamed or goes, or its meaning changes.
pub const SCHEMA: u32 = 2;

/// Most measurements that are shown.
const MOST: usize = 40;

/// The earlier run.
pub struct Baseline {
    name: String,
    run: Value,
}

/// What has changed since.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The file of the earlier run.
    pub file: String,
    /// When that was.
    pub date: String,
    /// What makes the two hard to compare: another machine, kernel, version, kind of run.
    pub differences: Vec<String>,
    /// The targets.
    pub targets: Vec<Change>,
    /// Measurements that are apart.
    pub measurements: Vec<Change>,
    /// How many measurements both runs have.
    pub compared: usize,
}

/// One figure in both runs.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// The thing that was measured.
    pub what: String,
    pub before: Spread,
    pub now: Spread,
    /// Now's median relative to then's.
    pub ratio: f64,
    /// Whether the quartiles of the two do not meet.
    pub apart: bool,
}

impl Change {
    fn new(what: String, before: Spread, now: Spread) -> Self {
        let apart = now.q1 > before.q3 || now.q3 < before.q1;
        Self { what, before, now, ratio: now.median / before.median, apart }
    }
}

impl Baseline {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// When it is not the output of a benchmark of this version.
    pub fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        let run: Value = serde_json::from_str(&text)
            .with_context(|| format!("{name} is not the output of `vkfd bench ... --json`"))?;
        match run.get("schema").and_then(Value::as_u64) {
            Some(schema) if schema == u64::from(SCHEMA) => Ok(Self { name, run }),
            Some(schema) => {
                bail!("{name} has schema {schema}, and this version writes {SCHEMA}: run that version again")
            }
            None => bail!("{name} is not the output of `vkfd bench ... --json`"),
        }
    }

    /// Compares a run with it.
    pub fn compare(&self, run: &Value) -> Comparison {
        let (before, now) = (spreads(&self.run, "targets"), spreads(run, "targets"));
        let targets = changes(&before, &now);
        let (before, now) = (spreads(&self.run, "measurements"), spreads(run, "measurements"));
        let mut measurements = changes(&before, &now);
        let compared = measurements.len();
        measurements.retain(|change| change.apart);
        measurements.sort_by(|a, b| b.ratio.ln().abs().total_cmp(&a.ratio.ln().abs()));
        measurements.truncate(MOST);
        let date = self.run.get("date").and_then(Value::as_str).unwrap_or("unknown date").to_owned();
        Comparison {
            file: self.name.clone(),
            date,
            differences: self.differences(run),
            targets,
            measurements,
            compared,
        }
    }

    fn differences(&self, run: &Value) -> Vec<String> {
        let places = [
            ("processor", "/host/cpu"),
            ("number of processors", "/host/cores"),
            ("kernel", "/host/kernel"),
            ("huge pages", "/host/transparent_huge_pages"),
            ("notification source", "/host/notification_source"),
            ("version", "/version"),
            ("quick run", "/parameters/quick"),
        ];
        let show = |value: Option<&Value>| match value {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => "unknown".to_owned(),
        };
        let differs = |(what, place): (&str, &str)| {
            let (before, now) = (show(self.run.pointer(place)), show(run.pointer(place)));
            (before != now).then(|| format!("{what}: {before} then, {now} now"))
        };
        places.into_iter().filter_map(differs).collect()
    }
}

/// The figures in a run's list, by their subject.
fn spreads(run: &Value, list: &str) -> BTreeMap<String, Spread> {
    let list = run.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(Value::as_object).filter_map(figure).collect()
}

/// A target's `measured`, or a measurement's time or rate.
fn figure(entry: &Map<String, Value>) -> Option<(String, Spread)> {
    let field = ["measured", "seconds", "per_second"].into_iter().find(|field| entry.contains_key(*field))?;
    let spread = Spread::deserialize(entry.get(field)?).ok().filter(|spread| spread.median > 0.0)?;
    let words = entry.iter().filter_map(|(name, value)| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(format!("{name} {number}")),
        _ => None,
    });
    Some((words.collect::<Vec<_>>().join(", "), spread))
}

fn changes(before: &BTreeMap<String, Spread>, now: &BTreeMap<String, Spread>) -> Vec<Change> {
    let both = now.iter().filter_map(|(what, now)| Some((what, before.get(what)?, now)));
    both.map(|(what, before, now)| Change::new(what.clone(), *before, *now)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(cpu: &str, ratio: f64, seconds: f64) -> Value {
        let spread = |median: f64| json!({"median": median, "q1": 0.9 * median, "q3": 1.1 * median, "samples": 5});
        json!({
            "schema": SCHEMA, "date": "2026-11-22 15:00 UTC", "version": "0.1.0", "host": {"cpu": cpu, "cores": 2},
            "targets": [{"what": "a ratio", "bound": {"at_most": 1.3}, "measured": spread(ratio), "met": true},
                        {"what": "not measured", "bound": {"at_most": 1.3}, "measured": null, "met": false}],
            "measurements": [{"section": "sweep", "ranges": 16, "seconds": spread(seconds), "relative": spread(1.0)}]
        })
    }

    fn compare(before: Value, now: &Value) -> Comparison {
        Baseline { name: "old.json".to_owned(), run: before }.compare(now)
    }

    #[test]
    fn what_is_apart_is_shown() {
        let comparison = compare(run("x", 1.0, 1.0), &run("x", 1.05, 2.0));
        assert_eq!((comparison.targets.len(), comparison.compared, comparison.measurements.len()), (1, 1, 1));
        assert!(!comparison.targets[0].apart && comparison.measurements[0].apart);
        assert_eq!(comparison.measurements[0].what, "ranges 16, sweep");
        assert_eq!(comparison.measurements[0].ratio, 2.0);
        assert!(comparison.differences.is_empty());
    }

    #[test]
    fn what_is_the_same_is_not() {
        let comparison = compare(run("x", 1.0, 1.0), &run("y", 1.0, 1.05));
        assert!(comparison.measurements.is_empty());
        assert_eq!(comparison.differences, ["processor: x then, y now"]);
    }

    #[test]
    fn other_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("old.json");
        for text in ["", "{}", "{\"schema\": 1}", "[1]"] {
            std::fs::write(&file, text).unwrap();
            assert!(Baseline::read(&file).is_err(), "{text}");
        }
        std::fs::write(&file, run("x", 1.0, 1.0).to_string()).unwrap();
        assert!(Baseline::read(&file).is_ok());
    }
}
