// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How a program of a suite ended.

/// How a program ended, and what it wrote.
#[derive(Clone, Default)]
pub struct Ran {
    /// Exit code; none if a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    /// It had to be ended.
    pub hung: bool,
}

impl Ran {
    /// In a line, why a program that said nothing of its own did not pass.
    pub fn why(&self) -> String {
        let said = self.stderr.lines().chain(self.stdout.lines());
        let ours = said
            .clone()
            .find(|line| line.contains("vkfd:"))
            .or_else(|| said.rev().find(|line| !line.trim().is_empty()));
        let end = match (self.hung, self.code) {
            (true, _) => "did not end in its time".into(),
            (false, Some(code)) => format!("exit code {code}"),
            (false, None) => "ended by a signal".into(),
        };
        ours.map_or(end.clone(), |line| format!("{end}: {}", line.trim()))
    }
}
