// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A directory's files over HTTP, for this machine alone.
//!
//! Mechanism: Python's `http.server` listens on the loopback interface, at a port that the kernel
//! chooses, and says it in its first line. It is killed when it is dropped.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

pub(super) struct Server {
    child: Child,
    /// Without a slash at the end.
    pub(super) address: String,
}

impl Server {
    pub(super) fn start(directory: &Path) -> Result<Self> {
        let mut command = Command::new("python3");
        command.args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "--directory"]).arg(directory).arg("0");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("start python3")?;
        let output = child.stdout.take();
        let mut server = Self { child, address: String::new() };
        let mut line = String::new();
        BufReader::new(output.context("the server's output")?)
            .read_line(&mut line)
            .context("read the server's port")?;
        let port = line.split_whitespace().skip_while(|word| *word != "port").nth(1);
        let port: u16 = port.and_then(|port| port.parse().ok()).with_context(|| format!("no port in {line:?}"))?;
        server.address = format!("http://127.0.0.1:{port}");
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
