// SPDX-License-Identifier: GPL-2.0 OR MIT
//! rocminfo prints the GPUs of every preset.

use std::path::Path;

use anyhow::Result;

use super::{Client, Report, Stand};
use xtask_base::debian;

pub const CLIENT: Client = Client { name: "rocminfo", packages: &["rocminfo"], check };

fn check(stand: &Stand, report: &mut Report) -> Result<()> {
    let program = Path::new("rocminfo");
    let old = debian::version("rocminfo")?.starts_with("5.");
    for (options, target, gpus) in [
        (&["--target", "gfx900"][..], "gfx900", 1),
        (&["--target", "gfx1030", "--gpus", "2"], "gfx1030", 2),
        (&["--target", "gfx90a"], "gfx90a", 1),
        (&["--preset", "frontier-node"], "gfx90a", 4),
    ] {
        let ran = stand.run(options, program, &[], &[])?;
        let found = ran.stdout.lines().filter(|line| is_agent(line, target)).count();
        let what = format!("rocminfo, {}: {gpus} agents {target}, exit code 0", options.join(" "));
        report.expect(ran.succeeded() && found == gpus, &what, &ran);
    }
    // ROCR 5 does not know gfx1100. It can be told to take it for its predecessor.
    let options = ["--target", "gfx1100"];
    let (environment, target) =
        if old { (&[("HSA_OVERRIDE_GFX_VERSION", "10.3.0")][..], "gfx1030") } else { (&[][..], "gfx1100") };
    let ran = stand.run(&options, program, &[], environment)?;
    let found = ran.stdout.lines().filter(|line| is_agent(line, target)).count();
    let what = format!("rocminfo, --target gfx1100 {environment:?}: an agent {target}, exit code 0");
    report.expect(ran.succeeded() && found == 1, &what, &ran);
    // Without the library there is nothing to find: what it prints above is not this computer's.
    let alone = stand.run(&["--preload", "/usr/lib/x86_64-linux-gnu/libdl.so.2"], program, &[], &[])?;
    let any = alone.stdout.lines().any(|line| line.trim_start().starts_with("Name:") && line.contains("gfx"));
    report.expect(!any, "control: without the library rocminfo finds no GPU", &alone);
    Ok(())
}

/// Whether a line of its output names an agent of `target`.
pub fn is_agent(line: &str, target: &str) -> bool {
    line.strip_prefix("  Name:").is_some_and(|name| name.trim() == target)
}
