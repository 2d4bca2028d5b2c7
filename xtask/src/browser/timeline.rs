// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A timeline of `vkfd run` in the browser's viewer of traces, `chrome://tracing`.
//!
//! Mechanism: the viewer's page has an object that takes a trace as text. `timeline.js` gives it
//! the file, and counts what the viewer has made of it. The count has to be that of the file. As a
//! control, the viewer gets the file without an event, and has to show one less.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::devtools::Browser;
use crate::cargo::{self, Build};
use crate::tree;

const SCRIPT: &str = include_str!("timeline.js");
const VIEWER: &str = "chrome://tracing";
const WIDTH: u32 = 1400;

/// What the viewer has of a trace.
#[derive(Deserialize, PartialEq, Eq, Debug)]
struct Seen {
    /// Names of its processes.
    processes: BTreeSet<String>,
    /// Events with a length, and moments, in a row.
    slices: usize,
    /// Events that may overlap.
    spans: usize,
    complaints: Vec<String>,
}

/// What is wrong, and how many events the viewer shows.
pub(super) struct Shown {
    pub(super) findings: Vec<String>,
    pub(super) events: usize,
}

/// A timeline of the demo: kernels, invalidations, faults.
pub(super) fn make() -> Result<PathBuf> {
    let vkfd = cargo::program(Build::of_checks()?, "vkfd", "vkfd")?;
    let demo = cargo::example("batch")?;
    let directory = tree::target().join("pages");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let file = directory.join("timeline.json");
    let mut run = Command::new(&vkfd);
    run.args(["run", "--timeline"]).arg(&file).arg("--").arg(&demo);
    let status = run.status().context("run vkfd")?;
    ensure!(status.success(), "{run:?} failed");
    Ok(file)
}

/// Opens it in the viewer, with a picture if one is asked for.
pub(super) fn show(browser: &mut Browser, file: &Path, picture: Option<&Path>) -> Result<Shown> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let mut trace: Value = serde_json::from_str(&text).with_context(|| format!("{} is no JSON", file.display()))?;
    let wanted = expected(&trace).with_context(|| format!("{}: no list of events", file.display()))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let seen = look(browser, &text)?;
    if let Some(picture) = picture {
        let bytes = decode(&browser.picture()?).context("the picture is not in base 64")?;
        fs::write(picture, bytes).with_context(|| format!("write {}", picture.display()))?;
    }
    let mut findings: Vec<String> =
        seen.complaints.iter().map(|said| format!("{name}: the viewer says {said:?}")).collect();
    if (seen.slices, seen.spans) != (wanted.slices, wanted.spans) || seen.processes != wanted.processes {
        findings.push(format!("{name}: the viewer shows {seen:?}, and the file has {wanted:?}"));
    }
    // The control.
    let events = trace["traceEvents"].as_array_mut().context("a list of events")?;
    let at = events.iter().position(|event| event["ph"] == "X").context("the timeline has no event that lasts")?;
    events.remove(at);
    let less = look(browser, &trace.to_string())?;
    if less.slices + 1 != seen.slices {
        findings.push(format!("{name}: an event that is missing was not noticed: {less:?}"));
    }
    Ok(Shown { findings, events: wanted.slices + wanted.spans })
}

fn look(browser: &mut Browser, trace: &str) -> Result<Seen> {
    let argument = serde_json::to_string(trace).context("write a text")?;
    let answer = browser.look(VIEWER, WIDTH, false, &SCRIPT.replace("TRACE", &argument))?;
    serde_json::from_str(&answer).with_context(|| format!("read the script's answer: {answer}"))
}

/// What a viewer has to show of a trace.
fn expected(trace: &Value) -> Option<Seen> {
    let events = trace["traceEvents"].as_array()?;
    let count =
        |phases: &[&str]| events.iter().filter(|event| phases.iter().any(|phase| event["ph"] == *phase)).count();
    let names = events.iter().filter(|event| event["name"] == "process_name");
    let processes = names.filter_map(|event| event["args"]["name"].as_str()).map(Into::into).collect();
    Some(Seen { processes, slices: count(&["X", "i"]), spans: count(&["b"]), complaints: Vec::new() })
}

/// Base 64.
fn decode(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| -> Option<u32> {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        alphabet.iter().position(|other| *other == byte).and_then(|at| u32::try_from(at).ok())
    };
    let mut bytes = Vec::new();
    let digits = text.trim_end_matches('=').as_bytes();
    for group in digits.chunks(4) {
        let mut word = 0_u32;
        for at in 0..4 {
            word = word << 6 | group.get(at).map_or(Some(0), |byte| digit(*byte))?;
        }
        bytes.extend(&word.to_be_bytes()[1..group.len().max(1)]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_decoded() {
        for (text, bytes) in [("", &b""[..]), ("TQ==", b"M"), ("TWE=", b"Ma"), ("TWFu", b"Man"), ("TWFuTQ==", b"ManM")]
        {
            assert_eq!(decode(text).as_deref(), Some(bytes), "{text}");
        }
        assert_eq!(decode("T-=="), None);
    }

    #[test]
    fn what_a_viewer_has_to_show_is_counted() {
        let trace = serde_json::json!({ "traceEvents": [
            { "ph": "M", "name": "process_name", "args": { "name": "GPU 0" } },
            { "ph": "X" }, { "ph": "X" }, { "ph": "i" }, { "ph": "b" }, { "ph": "e" },
        ] });
        let seen = expected(&trace).expect("a list");
        assert_eq!((seen.slices, seen.spans), (3, 1));
        assert_eq!(seen.processes.into_iter().collect::<Vec<_>>(), ["GPU 0"]);
    }
}
