// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What `llvm-mc` assembles from text.
//!
//! Mechanism: one instruction a line. Lines that are refused are known by the numbers in the
//! messages; the others' encodings come in order.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{ensure, Context};
use vkfd_isa::Target;

/// What was made of a line: its words, or why it was refused.
pub type Assembled = Result<Vec<u32>, String>;

/// Assembles `lines`.
pub fn assemble(program: &str, target: Target, lines: &[&str]) -> anyhow::Result<Vec<Assembled>> {
    let input = lines.iter().fold(String::new(), |text, line| text + line + "\n");
    let mut child = Command::new(program)
        .args(["--show-encoding", "--triple=amdgcn-amd-amdhsa"])
        .arg(format!("--mcpu={}", target.name()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| program.to_string())?;
    let mut stdin = child.stdin.take().context("no pipe")?;
    let writer = thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output()?;
    drop(writer.join());
    let refused: BTreeMap<usize, String> =
        String::from_utf8_lossy(&output.stderr).lines().filter_map(refusal).collect();
    let text = String::from_utf8_lossy(&output.stdout);
    let mut encodings = text.lines().filter_map(encoding);
    let mut assembled = Vec::with_capacity(lines.len());
    for (n, line) in lines.iter().enumerate() {
        assembled.push(match refused.get(&(n + 1)) {
            Some(reason) => Err(reason.clone()),
            None => Ok(encodings.next().with_context(|| format!("{program} has no encoding for {line:?}"))?),
        });
    }
    ensure!(encodings.next().is_none(), "{program} has more encodings than it was given lines");
    Ok(assembled)
}

/// The line and the reason of a message `<stdin>:LINE:COLUMN: error: REASON`.
fn refusal(message: &str) -> Option<(usize, String)> {
    let (place, reason) = message.split_once(": error: ")?;
    let line = place.strip_prefix("<stdin>:")?.split(':').next()?.parse().ok()?;
    Some((line, reason.to_string()))
}

fn encoding(line: &str) -> Option<Vec<u32>> {
    let (_, rest) = line.split_once("encoding: [")?;
    let bytes: Vec<u8> = rest
        .split(']')
        .next()?
        .split(',')
        .map(|byte| u8::from_str_radix(byte.trim_start_matches("0x"), 16).unwrap_or(0))
        .collect();
    Some(bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}
