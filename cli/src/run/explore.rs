// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `--explore N`: a program in many orders of its waves, until one changes what it prints.
//!
//! Mechanism: this program is called again for each run, with `--schedule`. What the first run
//! printed, in the usual order, is compared with the others. A second run in the usual order comes
//! first: a program whose output changes by itself, such as by a time, cannot be compared.
//!
//! Limits: what the program writes to files is not compared. Its output is kept in memory. It has
//! no standard input.

use std::ffi::OsString;
use std::process::{Command, ExitCode, Output, Stdio};

use anyhow::{bail, Context, Result};

use super::wait::end_with_this;
use crate::format::counted;
use crate::report::Progress;

/// The exit code if an order changes the output.
const DIFFERS: u8 = 1;

/// Runs the program in the usual order and in those of the numbers 1 to `orders`. `arguments` is
/// this program's own command line, `--explore` with it; the last `program` of them are the
/// program's.
pub fn explore(orders: u32, arguments: &[OsString], program: usize, bar: &Progress) -> Result<ExitCode> {
    let usual = run(arguments, program, None)?;
    bar.advance(1);
    let again = run(arguments, program, None)?;
    bar.advance(1);
    if let Some(place) = difference(&usual, &again) {
        bail!("the program's output changes by itself, in {place}: orders cannot be compared by it");
    }
    for seed in 1..=orders {
        let other = run(arguments, program, Some(seed))?;
        if let Some(place) = difference(&usual, &other) {
            eprintln!(
                "vkfd: --explore: the order random:{seed} changes the program's output, in {place}\n\
                 vkfd: `--schedule random:{seed}` runs it that way again; `--check race,waits` may name the cause"
            );
            return Ok(ExitCode::from(DIFFERS));
        }
        bar.advance(1);
    }
    let code = usual.status.code().and_then(|code| u8::try_from(code).ok());
    let orders = counted(orders.into(), "other order");
    eprintln!("vkfd: --explore: the program's output is the same in {orders}");
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// This command line without `--explore`, and with `--schedule`.
fn repeated(arguments: &[OsString], program: usize, seed: Option<u32>) -> Vec<OsString> {
    let options = arguments.len().saturating_sub(program);
    let mut repeated = Vec::with_capacity(arguments.len() + 1);
    let mut at = 0;
    while at < options {
        let word = arguments[at].to_str().unwrap_or("");
        at += match word {
            "--explore" => 2,
            _ if word.starts_with("--explore=") => 1,
            _ => {
                repeated.push(arguments[at].clone());
                1
            }
        };
        // Behind `run`, before what may be the last `--`.
        if let (true, Some(seed)) = (word == "run" && repeated.len() == 1, seed) {
            repeated.push(format!("--schedule=random:{seed}").into());
        }
    }
    repeated.extend_from_slice(&arguments[options..]);
    repeated
}

fn run(arguments: &[OsString], program: usize, seed: Option<u32>) -> Result<Output> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(repeated(arguments, program, seed)).stdin(Stdio::null()).stderr(Stdio::inherit());
    end_with_this(&mut command);
    command.output().context("cannot run this program again")
}

/// In words, the first place where two runs differ.
fn difference(one: &Output, other: &Output) -> Option<String> {
    let pairs = || one.stdout.split(|byte| *byte == b'\n').zip(other.stdout.split(|byte| *byte == b'\n'));
    if one.stdout != other.stdout {
        let Some((line, (was, is))) = (1..).zip(pairs()).find(|(_, (was, is))| was != is) else {
            return Some("its length".into());
        };
        return Some(format!("line {line}: {:?} became {:?}", short(was), short(is)));
    }
    (one.status != other.status).then(|| format!("its end: {} became {}", one.status, other.status))
}

/// The beginning of a line.
fn short(line: &[u8]) -> String {
    const MOST: usize = 80;
    String::from_utf8_lossy(line.get(..MOST).unwrap_or(line)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn the_command_line_is_repeated() {
        let repeated = |line: &str, seed| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let repeated = repeated(&words, 2, seed);
            repeated.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(repeated("run --gpus 2 --explore 5 -- prog --explore", None), "run --gpus 2 -- prog --explore");
        assert_eq!(repeated("run --explore=5 prog run", Some(7)), "run --schedule=random:7 prog run");
    }

    #[test]
    fn differences_are_in_words() {
        let output = |stdout: &str, code: i32| Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: stdout.into(),
            stderr: Vec::new(),
        };
        let of = |one, other| difference(&one, &other);
        assert_eq!(of(output("a\nb", 0), output("a\nb", 0)), None);
        assert_eq!(of(output("a\nb", 0), output("a\nc", 0)).unwrap(), r#"line 2: "b" became "c""#);
        assert_eq!(of(output("a", 0), output("a\nc", 0)).unwrap(), "its length");
        assert!(of(output("a", 0), output("a", 3)).unwrap().starts_with("its end"));
    }
}
