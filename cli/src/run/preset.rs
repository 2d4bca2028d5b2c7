// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Machines in files (TOML), to be copied and changed. Those that are known by name are such files,
//! too, and a part of this program.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{anyhow, Context, Result};
use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use vkfd_host::{size, Description, Shape, Target};

use super::room;

macro_rules! built_in {
    ($($name:literal)+) => {
        &[$(($name, include_str!(concat!("../../presets/", $name, ".toml")))),+]
    };
}

/// Names and files.
pub const BUILT_IN: &[(&str, &str)] = built_in!["default" "frontier-node" "mi300x-node"];

/// A machine and what is to say of it.
#[derive(Clone, Debug)]
pub struct Preset {
    pub about: String,
    pub machine: Description,
}

/// The file's form. What is not there is as in a machine without a preset.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(default)]
    about: String,
    #[serde(default, deserialize_with = "gpus")]
    gpus: Option<u32>,
    #[serde(default, deserialize_with = "target")]
    target: Option<Target>,
    #[serde(default, deserialize_with = "vram")]
    vram: Option<u64>,
    #[serde(default, deserialize_with = "vram")]
    svm_vram: Option<u64>,
    #[serde(default)]
    xnack: bool,
    #[serde(default)]
    coherent: bool,
    #[serde(default)]
    strict: bool,
    #[serde(default, deserialize_with = "number")]
    threads: Option<u32>,
    #[serde(default)]
    gpu: Parts,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    #[serde(default, deserialize_with = "units")]
    units: Option<u32>,
    #[serde(default, deserialize_with = "number")]
    clock_mhz: Option<u32>,
    #[serde(default, deserialize_with = "number")]
    memory_mhz: Option<u32>,
    #[serde(default, deserialize_with = "number")]
    memory_bits: Option<u32>,
}

/// Compute units of the largest product; each target has a bound of its own.
pub(super) const MOST_UNITS: u32 = 1024;

/// A number in these bounds.
fn within<'de, D: Deserializer<'de>>(value: D, most: u32, what: &str) -> Result<Option<u32>, D::Error> {
    match u32::deserialize(value)? {
        number if (1..=most).contains(&number) => Ok(Some(number)),
        number => Err(D::Error::custom(format!("{number} is no number of {what}: 1 to {most}"))),
    }
}

fn gpus<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u32>, D::Error> {
    within(value, 32, "GPUs")
}

fn units<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u32>, D::Error> {
    within(value, MOST_UNITS, "compute units")
}

/// At least 1, and no more than a runtime would believe.
fn number<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u32>, D::Error> {
    within(value, 65_535, "threads, MHz or bits")
}

fn target<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Target>, D::Error> {
    String::deserialize(value)?.parse().map(Some).map_err(D::Error::custom)
}

fn vram<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(value)?;
    size::parse(&text).and_then(room).map(Some).map_err(D::Error::custom)
}

impl Preset {
    /// One that is known by name, or a file's.
    pub fn load(name: &OsStr) -> Result<Self> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(known, _)| name == *known) {
            return Self::parse(text).with_context(|| format!("the preset {name}"));
        }
        let path = Path::new(name);
        let text = std::fs::read_to_string(path).with_context(|| {
            let names: Vec<_> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            format!("{} is no preset ({}), and not a file that can be read", path.display(), names.join(", "))
        })?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Reads a file's text. Errors name line and key.
    fn parse(text: &str) -> Result<Self> {
        let form: Form = toml::from_str(text).map_err(|error| anyhow!("{}", error.to_string().trim_end()))?;
        let default = Description::default();
        let Parts { units, clock_mhz, memory_mhz, memory_bits } = form.gpu;
        let machine = Description {
            gpus: form.gpus.unwrap_or(default.gpus),
            target: form.target.unwrap_or(default.target),
            vram: form.vram.unwrap_or(default.vram),
            svm_vram: form.svm_vram,
            xnack: form.xnack,
            coherent: form.coherent,
            strict: form.strict,
            translate: default.translate,
            perf_map: default.perf_map,
            schedule: default.schedule,
            checks: default.checks,
            threads: form
                .threads
                .map_or(default.threads, |threads| usize::try_from(threads).unwrap_or(default.threads)),
            shape: Shape { units, clock_mhz, memory_mhz, memory_bits },
        };
        Ok(Self { about: form.about, machine })
    }
}

/// For the command line: offers the names, takes files as well.
#[derive(Clone)]
pub struct Parser;

impl TypedValueParser for Parser {
    type Value = Preset;

    fn parse_ref(&self, command: &clap::Command, _: Option<&clap::Arg>, value: &OsStr) -> Result<Preset, clap::Error> {
        Preset::load(value)
            .map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, format!("{error:#}\n")).with_cmd(command))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values = BUILT_IN.iter().map(|(name, text)| {
            let about = Preset::parse(text).map(|preset| preset.about).unwrap_or_default();
            PossibleValue::new(*name).help(about)
        });
        Some(Box::new(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_presets_can_be_made() {
        for (name, _) in BUILT_IN {
            let preset = Preset::load(OsStr::new(name)).unwrap();
            assert!(!preset.about.is_empty(), "{name}");
            // As `vkfd run` tells it to the program.
            assert_eq!(preset.machine.to_string().parse::<Description>().unwrap(), preset.machine, "{name}");
        }
        assert_eq!(Preset::load(OsStr::new("default")).unwrap().machine, Description::default());
    }

    /// The template's keys that are commented out are ones that can be set.
    #[test]
    fn what_the_template_offers_is_known() {
        let text = BUILT_IN[0].1;
        let all: Vec<_> = text
            .lines()
            .map(|line| match line.strip_prefix("# ") {
                Some(rest) if rest.contains(" = ") => rest,
                _ => line,
            })
            .collect();
        let preset = Preset::parse(&all.join("\n")).unwrap();
        assert_eq!((preset.machine.threads, preset.machine.shape.units), (2, Some(64)));
        assert!(preset.machine.shape.memory_bits.is_some());
    }

    #[test]
    fn errors_name_line_and_key() {
        for (text, words) in [
            ("\n\ngpus = 0", &["line 3", "gpus = 0", "1 to 32"][..]),
            ("gpus = \"two\"", &["line 1", "gpus", "string \"two\""]),
            ("gpu = 3", &["line 1", "gpu = 3"]),
            ("about = \"x\"\ncards = 3", &["line 2", "cards", "unknown field"]),
            ("target = \"gfx908\"", &["line 1", "target", "gfx908", "gfx900"]),
            ("vram = \"3M\"", &["line 1", "vram", "2 MiB"]),
            ("vram = \"1X\"", &["line 1", "vram"]),
            ("[gpu]\nunits = 0", &["line 2", "units", "1 to "]),
            ("[gpu]\nwheels = 4", &["line 2", "wheels"]),
            ("xnack = yes", &["line 1", "xnack"]),
        ] {
            let error = format!("{:#}", Preset::parse(text).unwrap_err());
            for word in words {
                assert!(error.contains(word), "{text:?} without {word:?}: {error}");
            }
        }
        let error = format!("{:#}", Preset::load(OsStr::new("no-such-machine")).unwrap_err());
        assert!(error.contains("frontier-node"), "{error}");
    }
}
