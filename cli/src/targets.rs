// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd targets`: what GPUs can be, and machines by name.

use std::ffi::OsStr;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde_json::json;
use vkfd_host::{size, Description, Target};

use crate::run::preset::{Preset, BUILT_IN};

#[derive(clap::Args)]
pub struct TargetsArgs {
    /// Print one JSON object
    #[arg(long, conflicts_with = "show")]
    json: bool,
    /// Print a preset's file, to be copied and changed
    #[arg(long, value_name = "PRESET", value_parser = BUILT_IN.iter().map(|(name, _)| *name).collect::<Vec<_>>())]
    show: Option<String>,
}

/// The runtimes that know a target, of those that were tried: each found the GPU and took it. Which
/// of them run kernels of their own is another matter.
fn known_to(target: Target) -> &'static [&'static str] {
    match target {
        Target::Gfx900 | Target::Gfx90a | Target::Gfx1030 => &["ROCR 5.2.3", "ROCR 6.1.2", "ROCR 6.4.3"],
        Target::Gfx942 => &["ROCR 6.1.2", "tinygrad 0.13"],
        Target::Gfx1100 => &["ROCR 6.1.2", "ROCR 6.4.3", "tinygrad 0.13"],
    }
}

/// The same by runtime: `ROCR 5.2.3 with gfx900, gfx90a`.
pub fn known_runtimes() -> Vec<String> {
    let mut runtimes: Vec<&str> = Target::ALL.into_iter().flat_map(known_to).copied().collect();
    runtimes.sort_unstable();
    runtimes.dedup();
    let knows = |runtime: &str| {
        let targets = Target::ALL.into_iter().filter(|target| known_to(*target).contains(&runtime));
        format!("{runtime} with {}", targets.map(|target| target.name()).collect::<Vec<_>>().join(", "))
    };
    runtimes.into_iter().map(knows).collect()
}

pub fn run(args: &TargetsArgs) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    if let Some(name) = &args.show {
        let (_, text) = BUILT_IN.iter().find(|(known, _)| known == name).context("there is no such preset")?;
        write!(out, "{text}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let presets = BUILT_IN.iter().map(|(name, _)| Ok((*name, Preset::load(OsStr::new(name))?)));
    let presets = presets.collect::<Result<Vec<_>>>()?;
    if args.json {
        let targets = Target::ALL.map(|target| {
            let model = target.model();
            json!({ "name": target.name(), "product": target.product(), "device_id": format!("{:#06x}", model.device_id),
                "wave_size": model.wave_size, "known_to": known_to(target) })
        });
        let presets = presets.iter().map(|(name, Preset { about, machine })| {
            json!({ "name": name, "about": about, "gpus": machine.gpus, "target": machine.target.name(), "vram": machine.vram,
                "xnack": machine.xnack, "coherent": machine.coherent })
        });
        let presets: Vec<_> = presets.collect();
        writeln!(out, "{}", json!({ "vkfd": env!("CARGO_PKG_VERSION"), "targets": targets, "presets": presets }))?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "Targets (--target), as the product that they are shown as, and the runtimes that were seen to use them:"
    )?;
    for target in Target::ALL {
        let model = target.model();
        let (name, product, device) = (target.name(), target.product(), model.device_id);
        writeln!(
            out,
            "  {name:8} {product:29} {device:#06x}  wave{}  {}",
            model.wave_size,
            known_to(target).join(", ")
        )?;
    }
    writeln!(out, "\nMachines (--preset), each a file that --show prints:")?;
    for (name, Preset { about, machine }) in presets {
        let Description { gpus, target, vram, .. } = machine;
        writeln!(out, "  {name:14} {about}: {gpus} x {target} with {}", size::show(vram))?;
    }
    Ok(ExitCode::SUCCESS)
}
