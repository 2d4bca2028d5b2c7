// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The kernel's configuration: fragments in, a checked `.config` out.
//!
//! Kconfig drops what it does not know or what depends on something that is off, without a word. So
//! every line of the fragments is looked up in the result.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{ensure, Context, Result};

use super::Flavor;
use xtask_base::tree;

const OFF: &str = "n";

/// Options and values, without the prefix `CONFIG_`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config(BTreeMap<String, String>);

impl Config {
    /// What the tree wants for `flavor`.
    pub fn wanted(flavor: Flavor) -> Result<Self> {
        let mut config = Self(BTreeMap::new());
        let files: &[&str] = match flavor {
            Flavor::Plain => &["base.config"],
            Flavor::Debug => &["base.config", "debug.config"],
        };
        for file in files {
            config.0.extend(Self::read(&tree::root().join("vm").join(file))?.0);
        }
        Ok(config)
    }

    /// A fragment or a `.config`.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut options = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            let off = line.strip_prefix("# CONFIG_").and_then(|rest| rest.strip_suffix(" is not set"));
            if let Some(name) = off {
                options.insert(name.to_string(), OFF.to_string());
            } else if !line.is_empty() && !line.starts_with('#') {
                let option = line.strip_prefix("CONFIG_").and_then(|rest| rest.split_once('='));
                let (name, value) =
                    option.with_context(|| format!("line {}: {line:?} is not CONFIG_NAME=VALUE", number + 1))?;
                options.insert(name.to_string(), value.to_string());
            }
        }
        Ok(Self(options))
    }

    /// With the options of another fragment in place of its own.
    pub fn with(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// As a fragment in a fixed order.
    pub fn text(&self) -> String {
        self.0.iter().map(|(name, value)| format!("CONFIG_{name}={value}\n")).collect()
    }

    /// Fails with a list of the options of `self` that are not so in `result`.
    pub fn ensure_in(&self, result: &Self) -> Result<()> {
        let differing: Vec<String> = self
            .0
            .iter()
            .filter_map(|(name, value)| {
                let found = result.0.get(name).map_or(OFF, String::as_str);
                (found != value).then(|| format!("  CONFIG_{name}: {value} is wanted, the kernel has {found}"))
            })
            .collect();
        ensure!(
            differing.is_empty(),
            "options of vm/*.config did not take effect; either the kernel does not know them or they depend on others:\n{}",
            differing.join("\n")
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text).expect("a configuration")
    }

    #[test]
    fn an_option_that_did_not_take_effect_is_named() {
        let wanted = config("# why\nCONFIG_A=y\n\n# CONFIG_B is not set\nCONFIG_C=\"x\"\nCONFIG_D=n\n");
        wanted.ensure_in(&config("CONFIG_A=y\nCONFIG_C=\"x\"\nCONFIG_E=y\n")).expect("absent is off");
        let error =
            wanted.ensure_in(&config("CONFIG_A=m\nCONFIG_B=y\nCONFIG_C=\"x\"\n")).expect_err("two differ").to_string();
        assert!(error.contains("CONFIG_A: y is wanted, the kernel has m"), "{error}");
        assert!(error.contains("CONFIG_B: n is wanted, the kernel has y"), "{error}");
        assert!(!error.contains("CONFIG_C") && !error.contains("CONFIG_D"), "{error}");
    }

    #[test]
    fn a_line_that_is_no_option_is_an_error() {
        assert!(Config::parse("CONFIG_A=y\nMODULES=y\n").expect_err("no option").to_string().contains("line 2"));
    }

    #[test]
    fn comments_and_order_do_not_matter_and_the_sanitizer_kernel_overrides() {
        assert_eq!(config("CONFIG_B=y\nCONFIG_A=y\n").text(), config("# c\nCONFIG_A=y\nCONFIG_B=y\n").text());
        let (plain, debug) = (Config::wanted(Flavor::Plain), Config::wanted(Flavor::Debug));
        let (plain, debug) = (plain.expect("base.config"), debug.expect("debug.config"));
        assert_eq!(plain.0["RUST_DEBUG_ASSERTIONS"], "n");
        assert_eq!(debug.0["RUST_DEBUG_ASSERTIONS"], "y");
    }
}
