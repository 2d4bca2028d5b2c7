// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The names of operations.
//!
//! Mnemonics of different targets mean the same operation if they are the same text or if LLVM has
//! one pseudo-instruction for them. The classes of that relation are the operations; each has the
//! name that the oldest target with it has.

use std::collections::{BTreeMap, HashMap};

use anyhow::{bail, ensure};

/// The mnemonic that starts an assembly template, without marks of the encoding.
pub fn mnemonic(asm: &str) -> &str {
    let end = asm.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(asm.len());
    let name = &asm[..end];
    ["_e64_dpp", "_e32", "_e64", "_sdwa", "_dpp"].iter().find_map(|mark| name.strip_suffix(mark)).unwrap_or(name)
}

/// A pseudo-instruction's name without the suffixes of gfx11's 16-bit operand forms.
fn meaning(pseudo: &str) -> String {
    pseudo.to_ascii_lowercase().replace("_fake16", "").replace("_t16", "")
}

/// Mnemonics whose pseudo-instruction in LLVM is another operation's.
fn stands_alone(name: &str) -> bool {
    name.contains("_load_lds_") || name == "v_interp_p2_legacy_f16"
}

/// Collects the names of all targets' instructions.
#[derive(Default)]
pub struct Names {
    /// Rank of the oldest target that has a mnemonic.
    oldest: BTreeMap<String, usize>,
    parent: HashMap<String, String>,
    by_pseudo: HashMap<String, String>,
}

impl Names {
    fn root(&self, name: &str) -> String {
        let mut name = name.to_string();
        while let Some(parent) = self.parent.get(&name) {
            name.clone_from(parent);
        }
        name
    }

    /// Notes that the target of rank `target` calls `pseudo` by `name`.
    pub fn add(&mut self, target: usize, name: &str, pseudo: Option<&str>) {
        let oldest = self.oldest.entry(name.to_string()).or_insert(target);
        *oldest = (*oldest).min(target);
        let Some(pseudo) = pseudo.filter(|_| !stands_alone(name)) else { return };
        match self.by_pseudo.get(&meaning(pseudo)).cloned() {
            Some(other) => {
                let (a, b) = (self.root(name), self.root(&other));
                if a != b {
                    self.parent.insert(a, b);
                }
            }
            None => {
                self.by_pseudo.insert(meaning(pseudo), name.to_string());
            }
        }
    }

    /// The operation of each mnemonic.
    pub fn operations(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let mut classes: BTreeMap<String, Vec<(usize, &String)>> = BTreeMap::new();
        for (name, target) in &self.oldest {
            classes.entry(self.root(name)).or_default().push((*target, name));
        }
        let mut operations = BTreeMap::new();
        for mut names in classes.into_values() {
            names.sort();
            let operation = names[0].1;
            for (target, name) in &names {
                ensure!(
                    *name == operation || *target != names[0].0,
                    "{name} and {operation} are one operation, but one target has both"
                );
                if operations.insert((*name).clone(), operation.clone()).is_some() {
                    bail!("{name} is in two classes");
                }
            }
        }
        Ok(operations)
    }
}

/// The name of an operation's variant: `v_add_f32` is `VAddF32`.
pub fn variant(operation: &str) -> String {
    let mut variant = String::new();
    for part in operation.split('_') {
        if part.starts_with(|c: char| c.is_ascii_digit()) && variant.ends_with(|c: char| c.is_ascii_digit()) {
            variant.push('_');
        }
        let mut letters = part.chars();
        variant.extend(letters.next().map(|c| c.to_ascii_uppercase()));
        variant.push_str(letters.as_str());
    }
    variant
}
