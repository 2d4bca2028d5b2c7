// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The blocks that a GPU is made of, as `amdgpu` shows its discovery table in sysfs, beside the
//! GPU's device: `ip_discovery/die/0/NUMBER/0/{major,minor,revision}`. Runtimes without ROCm choose
//! packet formats by them.

use super::{Name, Sink};
use vkfd_targets::{Blocks, Target};

/// Hardware numbers of blocks and their versions: graphics core (11), copy engine (42), bus
/// interface (108). `gfx_target_version` is the topology's.
pub fn blocks(gfx_target_version: u32) -> [(u32, [u32; 3]); 3] {
    let version = gfx_target_version;
    let parts = [version / 10_000, version / 100 % 100, version % 100];
    let unknown = Blocks { core: parts, copy: [0; 3], bus: [0; 3] };
    let Blocks { core, copy, bus } = Target::of_version(version).map_or(unknown, |target| target.row().blocks);
    [(11, core), (42, copy), (108, bus)]
}

/// Writes the directory `ip_discovery` of a GPU into the one that is open.
///
/// # Errors
/// The sink's.
pub fn render<S: Sink>(gfx_target_version: u32, sink: &mut S) -> Result<(), S::Error> {
    sink.enter(Name::Word(c"ip_discovery"))?;
    sink.enter(Name::Word(c"die"))?;
    sink.enter(Name::Number(0))?;
    for (number, [major, minor, revision]) in blocks(gfx_target_version) {
        sink.enter(Name::Number(number))?;
        sink.enter(Name::Number(0))?;
        for (name, part) in [(c"major", major), (c"minor", minor), (c"revision", revision)] {
            sink.file(name, &format_args!("{part}\n"))?;
        }
        sink.leave()?;
        sink.leave()?;
    }
    sink.leave()?;
    sink.leave()?;
    sink.leave()
}
