// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which instructions a processor has: its features, and predicates over them.

use std::collections::HashSet;

use anyhow::{bail, Context};
use vkfd_targets::Target;

use super::tablegen::{Argument, Dag, Instruction, Records};

/// The names of LLVM's decoder tables for a target.
pub fn namespaces(target: Target) -> &'static [&'static str] {
    // NEW TARGET: the names of LLVM's decoder tables
    match target {
        Target::Gfx900 => &["GFX8", "GFX9", "AMDGPU"],
        Target::Gfx90a => &["GFX9_DL", "GFX90A", "GFX8", "GFX9", "AMDGPU"],
        Target::Gfx942 => &["GFX9_DL", "GFX940", "GFX90A", "GFX8", "GFX9", "AMDGPU"],
        Target::Gfx1030 => &["GFX10_B", "GFX10", "AMDGPU"],
        Target::Gfx1100 => &["GFX11", "GFX11_FAKE16", "AMDGPU"],
    }
}

/// The order in which LLVM asks its tables; the longest encodings are asked first.
pub const ORDER: [&str; 10] =
    ["GFX10_B", "GFX9_DL", "GFX940", "GFX90A", "GFX8", "AMDGPU", "GFX9", "GFX10", "GFX11", "GFX11_FAKE16"];

/// A processor's features.
pub struct Subtarget {
    features: HashSet<String>,
    namespaces: &'static [&'static str],
}

impl Subtarget {
    /// The processor `name` with everything that its features imply.
    pub fn new(records: &Records, name: &str, namespaces: &'static [&'static str]) -> anyhow::Result<Subtarget> {
        let processor =
            records.processors.iter().find(|p| p.name == name).with_context(|| format!("no processor {name}"))?;
        let mut features = HashSet::new();
        let mut todo: Vec<String> = processor.features.iter().map(|f| f.def.clone()).collect();
        while let Some(feature) = todo.pop() {
            let record = records.features.get(&feature).with_context(|| format!("no feature {feature}"))?;
            todo.extend(record.implies.iter().map(|f| f.def.clone()));
            features.insert(feature);
        }
        if !features.contains("FeatureWavefrontSize64") {
            features.insert("FeatureWavefrontSize32".into());
        }
        Ok(Subtarget { features, namespaces })
    }

    /// Whether LLVM's disassembler knows `instruction` on this processor.
    pub fn has(&self, records: &Records, instruction: &Instruction) -> anyhow::Result<bool> {
        let namespace = instruction.namespace.as_deref().unwrap_or("");
        if !self.namespaces.contains(&namespace) {
            return Ok(false);
        }
        for name in &instruction.predicates {
            let predicate = records.predicates.get(&name.def).with_context(|| format!("no predicate {}", name.def))?;
            if let (true, Some(condition)) = (predicate.for_assembler, &predicate.condition) {
                if !self.holds(condition)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn holds(&self, dag: &Dag) -> anyhow::Result<bool> {
        let mut values = Vec::new();
        for (argument, _) in &dag.args {
            values.push(match argument {
                Argument::Dag(dag) => self.holds(dag)?,
                Argument::Def(feature) => self.features.contains(&feature.def),
                Argument::Other(_) => bail!("a condition over something else than features"),
            });
        }
        match dag.operator.as_ref().map(|o| o.def.as_str()) {
            Some("all_of") => Ok(values.iter().all(|v| *v)),
            Some("any_of") => Ok(values.iter().any(|v| *v)),
            Some("not") => Ok(!values[0]),
            other => bail!("a condition {other:?}"),
        }
    }
}
