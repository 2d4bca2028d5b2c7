// SPDX-License-Identifier: GPL-2.0 OR MIT
//! `vkfd targets`: what GPUs can be, and machines by name.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;
use vkfd_driver::topology::Model;
use vkfd_host::{size, Description, Target};

#[derive(clap::Args)]
pub struct TargetsArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The runtimes that know a target, of those that were tried: each found the GPU and took it. Which of them run kernels of their own is
/// another matter.
fn known_to(target: Target) -> &'static [&'static str] {
    match target.name() {
        "gfx900" | "gfx90a" | "gfx1030" => &["ROCR 5.2.3", "ROCR 6.1.2", "ROCR 6.4.3"],
        "gfx1100" => &["ROCR 6.1.2", "ROCR 6.4.3", "tinygrad 0.13"],
        // Not tried with this machine yet.
        _ => &[],
    }
}

/// Machines by name.
pub const PRESETS: [(&str, &str, Description); 1] =
    [("frontier-node", "four GPUs in one coherent space with the processors, scaled down", Description::FRONTIER_NODE)];

pub fn run(args: &TargetsArgs) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let targets = Target::ALL.map(|target| {
            let model = Model::of(target.version());
            json!({ "name": target.name(), "product": target.product(), "device_id": format!("{:#06x}", model.device_id),
                "wave_size": model.wave_size, "known_to": known_to(target) })
        });
        let presets = PRESETS.map(|(name, about, machine)| {
            json!({ "name": name, "about": about, "gpus": machine.gpus, "target": machine.target.name(), "vram": machine.vram,
                "xnack": machine.xnack, "coherent": machine.coherent })
        });
        writeln!(out, "{}", json!({ "vkfd": env!("CARGO_PKG_VERSION"), "targets": targets, "presets": presets }))?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "Targets (--target), as the product that they are shown as, and the runtimes that were seen to use them:"
    )?;
    for target in Target::ALL {
        let model = Model::of(target.version());
        let (name, product, device) = (target.name(), target.product(), model.device_id);
        writeln!(
            out,
            "  {name:8} {product:29} {device:#06x}  wave{}  {}",
            model.wave_size,
            known_to(target).join(", ")
        )?;
    }
    writeln!(out, "\nMachines (--preset):")?;
    for (name, about, machine) in PRESETS {
        let Description { gpus, target, vram, .. } = machine;
        writeln!(out, "  {name:14} {about}: {gpus} x {target} with {}", size::show(vram))?;
    }
    Ok(ExitCode::SUCCESS)
}
