// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Chromium without a window, and one page in it.
//!
//! Mechanism: the DevTools protocol over two pipes (`--remote-debugging-pipe`). The browser reads
//! commands from descriptor 3 and writes answers and events to descriptor 4, each a JSON object
//! with a zero byte behind it. A shell makes these descriptors from standard input and output. The
//! browser is in a root of Debian's packages ([`Root`]), which this machine need not have. Pages
//! are in the root's working directory, or served by this machine.
//!
//! Limits: one command at a time. An answer that does not come within [`PATIENCE`] is an error, and
//! the browser is killed when it is dropped.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{bail, Context, Result};
use serde_json::{json, Value};

use xtask_programs::cache::Cache;
use xtask_programs::root::{Root, WORK};

/// The suite and the packages: the browser, what it is started with, and letters.
const SUITE: &str = "trixie";
const PACKAGES: &[&str] = &["chromium", "dash", "fonts-dejavu-core"];
/// The program, past Debian's script, which wants tools that a root does not have.
const PROGRAM: &str = "/usr/lib/chromium/chromium";
const PATIENCE: Duration = Duration::from_secs(60);
/// The pipes of the protocol. The browser's own output is dropped.
const PIPES: &str = "exec 3<&0 4>&1 >/dev/null 2>&1; exec \"$@\"";

/// A browser with one page.
pub(super) struct Browser {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<Value>,
    number: u64,
    session: Option<String>,
}

impl Browser {
    /// Starts it. Its pages and its profile are in `directory`.
    pub(super) fn start(directory: &Path) -> Result<Self> {
        let root = Root::get(&Cache::new()?, SUITE, PACKAGES)?;
        let mut command = root.program(directory, directory);
        command.args(["/bin/sh", "-c", PIPES, "sh", PROGRAM]);
        command.args(["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"]);
        // Its sandbox refuses to run as root, which everyone is in a root. The pages are this
        // tree's own, and a viewer with a known checksum.
        command.args(["--no-sandbox", "--hide-scrollbars"]).arg(format!("--user-data-dir={WORK}/profile"));
        let mut child = command
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start unshare")?;
        let commands = child.stdin.take().context("the browser's input")?;
        let output = child.stdout.take().context("the browser's output")?;
        let (sender, answers) = mpsc::channel();
        thread::spawn(move || {
            for message in BufReader::new(output).split(0) {
                let parsed = message.ok().and_then(|message| serde_json::from_slice(&message).ok());
                let Some(Ok(())) = parsed.map(|parsed| sender.send(parsed)) else { break };
            }
        });
        let mut browser = Self { child, commands, answers, number: 0, session: None };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }))?;
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", target)?;
        browser.session = session["sessionId"].as_str().map(Into::into);
        browser.call("Page.enable", json!({}))?;
        Ok(browser)
    }

    /// Shows the page `address` in a window of this width and height.
    pub(super) fn show(&mut self, address: &str, [width, height]: [u32; 2], dark: bool) -> Result<()> {
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }))?;
        let screen = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", screen)?;
        let loading = self.call("Page.navigate", json!({ "url": address }))?;
        if let Some(error) = loading["errorText"].as_str() {
            bail!("{address}: {error}");
        }
        self.wait(|message| message["method"] == "Page.loadEventFired").context("the page does not load")?;
        Ok(())
    }

    /// Evaluates `script` in the page. A promise is waited for.
    pub(super) fn evaluate(&mut self, script: &str) -> Result<String> {
        let question = json!({ "expression": script, "returnByValue": true, "awaitPromise": true });
        let found = self.call("Runtime.evaluate", question)?;
        if let Some(thrown) = found.get("exceptionDetails") {
            bail!("the script fails: {thrown}");
        }
        found["result"]["value"].as_str().map(Into::into).context("the script returns no text")
    }

    /// The upper part of the window, as the text of a PNG in base64.
    pub(super) fn picture(&mut self, [width, height]: [u32; 2]) -> Result<String> {
        let part = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png", "clip": part }))?;
        picture["data"].as_str().map(Into::into).context("the browser returns no picture")
    }

    /// Sends a command and waits for its result.
    fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.number += 1;
        let mut message = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = serde_json::to_vec(&message).context("write a command")?;
        bytes.push(0);
        self.commands.write_all(&bytes).with_context(|| format!("send {method}: the browser has ended"))?;
        let number = self.number;
        let mut answer = self.wait(|message| message["id"] == number).with_context(|| method.to_owned())?;
        match answer.get("error") {
            Some(error) => bail!("{method}: {error}"),
            None => Ok(answer["result"].take()),
        }
    }

    fn wait(&self, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        loop {
            let message = self.answers.recv_timeout(PATIENCE).context("no answer from the browser")?;
            if wanted(&message) {
                return Ok(message);
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        let _ = self.call("Browser.close", json!({}));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
