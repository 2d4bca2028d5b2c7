// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Unloading the module while it has clients, which must be refused, and when it has none, which
//! must work.

use std::path::Path;
use std::time::{Duration, Instant};

use vkfd_client::{AllocOptions, PAGE};

use super::stage::Stage;
use crate::coherence::batch::FIRST;
use crate::memory::{pattern, wrong_page, Memory};
use crate::module;
use crate::verdict::Stop;
use crate::world::World;

/// A client's last resources are given back by a worker, which holds the module until then.
const PATIENCE: Duration = Duration::from_secs(60);

/// Refused while a client is at work, and while nothing but one page of a mapping is left of it.
/// Works when that has gone, too.
pub(super) fn with_clients() -> Result<(), Stop> {
    let stage = Stage::new(super::world_spec()?, 64, 4)?;
    stage.beside(FIRST, |work| {
        must_be_refused("an open file")?;
        work.more(1)
    })?;
    stage.exchange(2)?;

    let place = Memory::anonymous(PAGE)?;
    let buffer = stage.world.client().alloc(&AllocOptions::gtt(4 * PAGE))?;
    buffer.write(2 * PAGE, &pattern(7, FIRST))?;
    let mapped = buffer.cpu_ptr().ok_or_else(|| anyhow::anyhow!("a GTT buffer that the CPU does not see"))?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the page is the buffer's, which is dropped next, and `place`'s address takes it over;
    // nothing refers to either.
    let moved = unsafe {
        let page = mapped.as_ptr().wrapping_add(usize::try_from(2 * PAGE)?);
        libc::mremap(page.cast(), usize::try_from(PAGE)?, usize::try_from(PAGE)?, flags, place.at(0))
    };
    ensure!(moved != libc::MAP_FAILED, "mremap: {}", std::io::Error::last_os_error());
    drop(buffer);
    drop(stage);
    // Long enough for whatever else may have held the module.
    std::thread::sleep(Duration::from_millis(200));
    must_be_refused("a mapping")?;
    ensure_eq!(wrong_page(&place.read(0, PAGE), [7], FIRST), None, "the page of a file that is closed");
    drop(place);

    let start = Instant::now();
    let there = loop {
        match module::try_unload(|| Path::new("/dev/kfd").exists())? {
            Ok(there) => break there,
            Err(error) => ensure!(start.elapsed() < PATIENCE, "without clients: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    ensure!(!there, "the module was unloaded, and /dev/kfd is still there");
    Stage::new(super::world_spec()?, 64, 4)?.exchange(2)
}

fn must_be_refused(what: &str) -> Result<(), Stop> {
    match module::try_unload(|| ())? {
        Ok(()) => bail!("the module was unloaded with {what}"),
        Err(error) => ensure_eq!(error.raw_os_error(), Some(libc::EAGAIN), "with {what}"),
    }
    // It goes on as if nothing had been: others may come.
    drop(World::new(super::world_spec()?)?);
    Ok(())
}
