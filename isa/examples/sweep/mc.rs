// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What `llvm-mc` says of words.
//!
//! Mechanism: the words of one instruction are a line in brackets, which `llvm-mc` decodes as a
//! whole. A marker follows (an `s_nop` with a number). The output before a marker has the line's
//! instructions. A batch on which `llvm-mc` crashes is halved until the line that crashes it is
//! alone.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{bail, Context};
use vkfd_isa::Target;

/// What was made of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Its instructions; none if the bytes are no instruction.
    Text(Vec<String>),
    /// `llvm-mc` crashed.
    Crash,
}

/// The answers for `lines`.
pub fn disassemble(program: &str, target: Target, lines: &[Vec<u32>]) -> anyhow::Result<Vec<Answer>> {
    if let Some(answers) = batch(program, target, lines)? {
        return Ok(answers);
    }
    if lines.len() == 1 {
        return Ok(vec![Answer::Crash]);
    }
    let (first, second) = lines.split_at(lines.len() / 2);
    let mut answers = disassemble(program, target, first)?;
    answers.extend(disassemble(program, target, second)?);
    Ok(answers)
}

fn batch(program: &str, target: Target, lines: &[Vec<u32>]) -> anyhow::Result<Option<Vec<Answer>>> {
    let mut input = String::new();
    for (n, line) in lines.iter().enumerate() {
        let bytes: Vec<String> =
            line.iter().flat_map(|word| word.to_le_bytes()).map(|byte| format!("{byte:#04x}")).collect();
        let _ = writeln!(input, "[{}]", bytes.join(","));
        let marker = marker(n);
        let _ = writeln!(input, "[{:#04x},{:#04x},0x80,0xbf]", marker & 0xff, marker >> 8 & 0xff);
    }
    let mut child = Command::new(program)
        .args(["--disassemble", "--triple=amdgcn-amd-amdhsa"])
        .arg(format!("--mcpu={}", target.name()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| program.to_string())?;
    let mut stdin = child.stdin.take().context("no pipe")?;
    // A crash closes the pipe: the rest of the input has no reader.
    let writer = thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output()?;
    drop(writer.join());
    use std::os::unix::process::ExitStatusExt;
    if output.status.signal().is_some() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut answers = Vec::with_capacity(lines.len());
    let mut current = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('.')) {
        if line == format!("s_nop {:#x}", marker(answers.len())) {
            answers.push(Answer::Text(std::mem::take(&mut current)));
        } else {
            current.push(plain(line));
        }
    }
    if answers.len() != lines.len() {
        bail!("{program} answered {} of {} lines", answers.len(), lines.len());
    }
    Ok(Some(answers))
}

/// The number of the marker after line `n`.
fn marker(n: usize) -> usize {
    0x1000 + n % 0x6000
}

/// The instruction without remarks.
pub fn plain(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("/*Invalid") {
        text.push_str(&rest[..at]);
        rest = rest[at..].split_once("*/").map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let end = text.find("//").or_else(|| text.find(" ;")).unwrap_or(text.len());
    text[..end].trim_end().to_string()
}
