// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Reads a trace of `vkfd run --trace`, as text or JSON, line by line.

use std::io::BufRead;

use anyhow::{Context, Result};
use serde_json::Value;

/// A call.
#[derive(Debug)]
pub struct Call {
    pub time: f64,
    pub thread: u64,
    pub took: f64,
    pub what: What,
}

/// What a call did. Only successful ones did anything.
#[derive(Debug)]
pub enum What {
    /// A userptr object of one range.
    Register {
        size: u64,
        handle: u64,
        gpu: String,
        flags: String,
    },
    Map {
        handle: u64,
    },
    Free {
        handle: u64,
    },
    Other,
}

/// The calls in order. A line without a trace's form is an error with its number. A last line that
/// was cut, because its program ended or a disk was full, is reported and left out.
pub fn read(mut from: impl BufRead) -> impl Iterator<Item = Result<Call>> {
    let mut number = 0;
    std::iter::from_fn(move || loop {
        let mut line = Vec::new();
        match from.read_until(b'\n', &mut line) {
            Err(error) => return Some(Err(error.into())),
            Ok(0) => return None,
            Ok(_) => number += 1,
        }
        let whole = line.ends_with(b"\n");
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\n');
        if line.trim().is_empty() {
            continue;
        }
        let parsed = if line.starts_with('{') { json(line) } else { text(line) };
        if parsed.is_none() && !whole {
            eprintln!("vkfd: the trace was cut: line {number} is not whole, and left out");
            return None;
        }
        return Some(parsed.with_context(|| format!("line {number} is not of a trace: {line:?}")));
    })
}

/// Named values.
struct Values<'a>(Vec<(&'a str, String)>);

impl Values<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str) -> Option<u64> {
        let value = self.get(name)?;
        match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => value.parse().ok(),
        }
    }
}

fn what(call: &str, arguments: &Values<'_>, result: &str, changed: &Values<'_>) -> Option<What> {
    if result != "ok" {
        return Some(What::Other);
    }
    Some(match call {
        "ALLOC_MEMORY_OF_GPU" => {
            let flags = arguments.get("flags")?;
            let single = flags.split('|').any(|flag| flag == "USERPTR") && !flags.contains("USERPTR_BATCH");
            if !single {
                return Some(What::Other);
            }
            // A handle of 0 is not changed by the call.
            let handle = changed.number("handle").unwrap_or(0);
            let (gpu, flags) = (arguments.get("gpu_id")?.to_owned(), flags.to_owned());
            What::Register { size: arguments.number("size")?, handle, gpu, flags }
        }
        "MAP_MEMORY_TO_GPU" => What::Map { handle: arguments.number("handle")? },
        "FREE_MEMORY_OF_GPU" => What::Free { handle: arguments.number("handle")? },
        _ => What::Other,
    })
}

fn json(line: &str) -> Option<Call> {
    let value: Value = serde_json::from_str(line).ok()?;
    let values = |name: &str| {
        let object = value.get(name).and_then(Value::as_object)?;
        let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Some(Values(object.iter().map(|(key, value)| (key.as_str(), word(value))).collect()))
    };
    let (arguments, changed) = (values("arguments")?, values("changed")?);
    let what = what(value.get("call")?.as_str()?, &arguments, value.get("result")?.as_str()?, &changed)?;
    Some(Call {
        time: value.get("time")?.as_f64()?,
        thread: value.get("thread")?.as_u64()?,
        took: value.get("microseconds")?.as_f64()? / 1e6,
        what,
    })
}

fn text(line: &str) -> Option<Call> {
    let (before, after) = line.split_once(" -> ")?;
    let mut before = before.split_ascii_whitespace();
    let (time, thread, call) = (before.next()?.parse().ok()?, before.next()?.parse().ok()?, before.next()?);
    fn values<'a>(words: impl Iterator<Item = &'a str>) -> Values<'a> {
        Values(words.filter_map(|word| word.split_once('=')).map(|(key, value)| (key, value.to_owned())).collect())
    }
    let (after, took) = after.trim_end().rsplit_once(" (")?;
    let took: f64 = took.strip_suffix(" us)")?.parse().ok()?;
    let mut after = after.split_ascii_whitespace();
    let result = after.next()?;
    let what = what(call, &values(before), result, &values(after))?;
    Some(Call { time, thread, took: took / 1e6, what })
}
