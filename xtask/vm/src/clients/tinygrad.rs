// SPDX-License-Identifier: GPL-2.0 OR MIT
//! tinygrad from PyPI, as in `cargo xtask clients tinygrad`: copies, operations and small models,
//! the models on the CPU's device as well, which gives what is expected.

use anyhow::Result;
use vkfd_sabotage::Switch;
use vkfd_targets::Target;

use super::super::shown;
use super::{Client, Place, Said, GPUS};
use xtask_base::tree;
use xtask_clients::tinygrad;

const RDNA: &[Target] = &[Target::Gfx1100];
/// All that it runs on here.
// NEW TARGET: whether tinygrad knows it
pub(super) const TARGETS: &[Target] = &[Target::Gfx942, Target::Gfx1100];

/// All of them.
pub(super) fn clients() -> Result<Vec<Client>> {
    let python = shown::place(&tinygrad::environment()?)?;
    let client = |name, targets, script: &str, argument: &str| {
        let script = shown::place(&tree::root().join("tests/clients/tinygrad").join(script))?;
        Ok::<_, anyhow::Error>(Client {
            name,
            targets,
            place: Place::Shown(python.clone()),
            arguments: vec![script, argument.into()],
            environment: &[("DEV", "AMD:LLVM"), ("PYTHONDONTWRITEBYTECODE", "1"), ("HOME", "/tmp")],
            right: |said: &Said, _| said.succeeded() && said.stdout.ends_with("ok\n"),
            notices: None,
        })
    };
    let gpus = GPUS.to_string();
    Ok(vec![
        Client {
            notices: Some((Switch::ShortCopy.name(), "FAILED: ")),
            ..client("tinygrad, copies to each GPU and back", RDNA, "copies.py", &gpus)?
        },
        client("tinygrad, operations, as NumPy has them", RDNA, "compute.py", &gpus)?,
        Client {
            notices: Some((tinygrad::BROKEN, tinygrad::DIFFERS)),
            ..client("tinygrad, tokens of a transformer, as on the CPU", TARGETS, "models.py", "transformer")?
        },
        client("tinygrad, two steps of a UNet, as on the CPU", RDNA, "models.py", "unet")?,
        client("tinygrad, two training steps of a ResNet, as on the CPU", RDNA, "models.py", "resnet")?,
        client("tinygrad, products of matrices on two GPUs, as on the CPU", RDNA, "models.py", "sharded")?,
    ])
}
