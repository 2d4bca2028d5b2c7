// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A client's mapping of VRAM that lies in several pieces, and fails at one of them.

use vkfd_client::{AllocOptions, Errno};

use crate::host::Host;
use crate::limits::available;
use crate::verdict::Stop;

const MIB: u64 = 1 << 20;
/// In at least three pieces, since pieces are powers of two.
const BYTES: u64 = 7 * MIB;

/// Whatever fails while a buffer is made and mapped, nothing is left of it; what was mapped of it
/// until then the kernel would find.
pub(super) fn fails_half_way() -> Result<(), Stop> {
    const STEPS: u64 = 10_000;
    let world = super::world()?;
    let (client, gpu) = (world.client(), world.gpu(0));
    let options = AllocOptions { cpu_map: true, ..AllocOptions::vram(gpu, BYTES) };
    drop(client.alloc(&options)?);
    let before = available(client, gpu)?;
    let mut failed = 0;
    for n in 0..STEPS {
        let (result, reached) = world.fail_nth(n, || client.alloc(&options))?;
        if Host::is_stock() {
            // Where AMD's driver has no memory for a handle, it says EFAULT, and the VRAM counts as
            // taken from then on.
            return Err(Stop::Skip("requires that an ALLOC that fails takes no VRAM".into()));
        }
        match result {
            Ok(buffer) => {
                for at in (0..BYTES).step_by(usize::try_from(MIB)?) {
                    buffer.write(at, &[7; 8])?;
                    let mut seen = [0; 8];
                    buffer.read(at, &mut seen)?;
                    ensure_eq!(seen, [7; 8], "at {at:#x}, with failure {n}");
                }
            }
            Err(error) => {
                ensure_eq!(error.errno(), Some(Errno::NOMEM), "failure {n}");
                failed += 1;
            }
        }
        ensure_eq!(available(client, gpu)?, before, "VRAM that is free after failure {n}");
        if !reached {
            ensure!(failed > 3, "only {failed} failures");
            return Ok(());
        }
    }
    bail!("there is no end to it")
}
