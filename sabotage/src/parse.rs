// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Switches as people write them: names with commas between them, a value behind `=`.

use core::fmt;

use crate::{Part, Switch, Switches};

/// What is not a switch, and what would be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadSwitch<'a> {
    /// As it was written.
    entry: &'a str,
    cause: Cause,
    parts: &'a [Part],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cause {
    /// No switch of these parts is called that.
    Unknown,
    /// There is a value, and the switch takes none.
    NoValue,
    /// This is not a value that the switch takes.
    Value(&'static str),
}

/// Reads a list of switches, each with its value if it takes one:
/// `driver.tlb_flush,cu.handler=v_mov_b32`. An empty list is an empty set. Only switches of `parts`
/// count: those that the caller can break. `value` reads a value that is not a number.
pub fn parse<'a>(
    text: &'a str,
    parts: &'a [Part],
    value: impl Fn(Switch, &str) -> Option<u64>,
) -> Result<Switches, BadSwitch<'a>> {
    let mut set = Switches::NONE;
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
        let bad = |cause| BadSwitch { entry, cause, parts };
        let (name, written) = match entry.split_once('=') {
            Some((name, written)) => (name.trim(), Some(written.trim())),
            None => (entry, None),
        };
        let known = Switch::named(name).filter(|switch| parts.contains(&switch.part()));
        let switch = known.ok_or(bad(Cause::Unknown))?;
        set = match (switch.value(), written) {
            (None, None) => set.with(switch),
            (None, Some(_)) => return Err(bad(Cause::NoValue)),
            (Some(what), written) => {
                let read = written.and_then(|text| number(text).or_else(|| value(switch, text)));
                set.with_value(switch, read.ok_or(bad(Cause::Value(what)))?)
            }
        };
    }
    Ok(set)
}

/// A value that is a number, decimal or with `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl fmt::Display for BadSwitch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entry = self.entry;
        match self.cause {
            Cause::Unknown => write!(f, "{entry:?} is no switch here"),
            Cause::NoValue => write!(f, "{entry:?}: the switch takes no value"),
            Cause::Value(what) => write!(f, "{entry:?}: the switch takes a value: {what}"),
        }?;
        let here = Switch::ALL.iter().filter(|switch| self.parts.contains(&switch.part()));
        for (at, switch) in here.enumerate() {
            write!(f, "{}{}", if at == 0 { "; there are " } else { ", " }, switch.name())?;
            if let Some(what) = switch.value() {
                write!(f, "={what}")?;
            }
        }
        Ok(())
    }
}

impl core::error::Error for BadSwitch<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    fn named(_: Switch, text: &str) -> Option<u64> {
        (text == "v_mov_b32").then_some(11)
    }

    fn shown(switch: Switch) -> std::string::String {
        switch.value().map_or(switch.name().to_string(), |value| std::format!("{}={value}", switch.name()))
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        fn read(text: &str) -> Result<Switches, std::string::String> {
            parse(text, Part::ALL, named).map_err(|bad| bad.to_string())
        }
        assert_eq!(read(""), Ok(Switches::NONE));
        assert_eq!(read("gpu.short_copy"), Ok(Switch::ShortCopy.into()));
        let two = Switches::from(Switch::Invalidation).with_value(Switch::Handler, 11);
        assert_eq!(read(" cu.handler = v_mov_b32 , driver.invalidation,"), Ok(two));
        assert_eq!(read("host.touch_while_registering=0x10").unwrap().value(Switch::TouchWhileRegistering), Some(16));
        for switch in Switch::ALL {
            let set = Switches::NONE.with_value(*switch, 5);
            assert_eq!(read(&set.to_string()), Ok(set), "{set}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_there_is() {
        let read = |text: &'static str| parse(text, &[Part::Gpu, Part::Cu], named).unwrap_err().to_string();
        let parts = Switch::ALL.iter().copied().filter(|switch| matches!(switch.part(), Part::Gpu | Part::Cu));
        let names: std::vec::Vec<_> = parts.map(shown).collect();
        assert!(names.len() > 4 && names.iter().any(|name| name == "cu.handler=operation"), "{names:?}");
        let there = std::format!("; there are {}", names.join(", "));
        assert_eq!(read("gpu.shortcopy"), std::format!("\"gpu.shortcopy\" is no switch here{there}"));
        assert_eq!(read("cu.chain,driver.identity"), std::format!("\"driver.identity\" is no switch here{there}"));
        assert_eq!(read("cu.chain=1"), std::format!("\"cu.chain=1\": the switch takes no value{there}"));
        for entry in ["cu.handler", "cu.handler=", "cu.handler=v_mov"] {
            assert_eq!(read(entry), std::format!("{entry:?}: the switch takes a value: operation{there}"));
        }
    }
}
