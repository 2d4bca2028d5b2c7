// SPDX-License-Identifier: GPL-2.0 OR MIT
//! One line of a trace. As text:
//!
//! ```text
//!   182.345678 4711 ALLOC_MEMORY_OF_GPU va_addr=0x7f10c0000000 size=8192 gpu_id=0x4b01 flags=USERPTR|WRITABLE -> ok handle=0x4b0100000003 (12.3 us)
//! ```
//!
//! seconds since the system started, thread, call, arguments, result, what the call changed in its
//! arguments, how long it took.

use serde_json::{json, Map};
use std::fmt;
use std::time::Duration;
use vkfd_driver::base::errno::Errno;

/// A value of an argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// A count or size.
    Number(u64),
    /// An address, offset, handle, identifier.
    Address(u64),
    /// Words for a number.
    Words(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(value) => write!(f, "{value}"),
            Self::Address(value) => write!(f, "{value:#x}"),
            Self::Words(words) => write!(f, "{words}"),
        }
    }
}

impl Value {
    fn json(&self) -> serde_json::Value {
        match self {
            Self::Number(value) => json!(value),
            // As text: numbers of JSON are exact to 53 bits only.
            Self::Address(_) | Self::Words(_) => json!(self.to_string()),
        }
    }
}

type Values = Vec<(&'static str, Value)>;

/// A call.
pub(super) struct Line {
    pub(super) call: String,
    pub(super) device: String,
    pub(super) arguments: Values,
}

fn errno(errno: i32) -> String {
    match Errno(errno).name() {
        "E?" => format!("E{errno}"),
        name => name.into(),
    }
}

impl Line {
    pub(super) fn text(&self, at: Duration, thread: i32, result: Result<Values, i32>, took: Duration) -> String {
        let mut text = format!("{:13.6} {thread} {}", at.as_secs_f64(), self.call);
        let add = |values: &[(&str, Value)]| values.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        let arguments: String = add(&self.arguments);
        let device = if matches!(self.call.as_str(), "open" | "close" | "mmap") {
            format!(" {}", self.device)
        } else {
            String::new()
        };
        let result = match result {
            Ok(changed) => format!("ok{}", add(&changed)),
            Err(error) => errno(error),
        };
        text += &format!("{device}{arguments} -> {result} ({:.1} us)\n", took.as_secs_f64() * 1e6);
        text
    }

    pub(super) fn json(&self, at: Duration, thread: i32, result: Result<Values, i32>, took: Duration) -> String {
        let object = |values: &[(&str, Value)]| -> Map<String, serde_json::Value> {
            values.iter().map(|(name, value)| ((*name).to_owned(), value.json())).collect()
        };
        let (result, changed) = match result {
            Ok(changed) => ("ok".to_owned(), object(&changed)),
            Err(error) => (errno(error), Map::new()),
        };
        let line = json!({
            "time": at.as_secs_f64(),
            "thread": thread,
            "device": self.device,
            "call": self.call,
            "arguments": object(&self.arguments),
            "result": result,
            "changed": changed,
            "microseconds": took.as_secs_f64() * 1e6,
        });
        format!("{line}\n")
    }
}
