// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How many processes of the driver's the files of a program are.

use std::sync::Arc;

use vkfd_client::uapi::command::CREATE_PROCESS;
use vkfd_client::uapi::memory::{ALLOC_MEM_FLAGS_GTT, ALLOC_MEM_FLAGS_WRITABLE};
use vkfd_client::{Client, DevKfd, Errno, PAGE};

use super::client_process::{ClientProcess, Scenario};
use super::hostile::device;
use crate::raw::{self, alloc, free, map, unmap};
use crate::verdict::Stop;

const VA: u64 = 0x40_0000_0000;

/// The files of one address space are one process, as long as one of them is open. A file of
/// another address space, or one that asked for a separate process, does not belong to it.
pub(super) fn of_an_address_space() -> Result<(), Stop> {
    let _world = super::world()?;
    let path = device()?;
    let (first, second) = (Client::open_at(&path)?, Client::open_at(&path)?);
    let gpu = first.gpus()[0].id.0;
    let handle = alloc(&first, VA, PAGE, 0, gpu, ALLOC_MEM_FLAGS_GTT | ALLOC_MEM_FLAGS_WRITABLE)?.handle;
    ensure_eq!(map(&second, handle, &[gpu], 0), (1, Ok(())), "what one file allocated, another maps");

    let file = Arc::new(DevKfd::open_apart(&path)?);
    let apart = Client::with_transport(file.clone())?;
    ensure_eq!(apart.snapshot()?.bos, 0, "objects of a file with a process of its own");
    ensure_eq!(free(&apart, handle), Err(Errno::INVAL), "an object of the other process");
    ensure_eq!(raw::send(&*file, CREATE_PROCESS, 0), Err(Errno::INVAL), "a second process for a file");
    ClientProcess::start("opens_elsewhere", None)?.finish()?;

    drop(first);
    ensure_eq!(unmap(&second, handle, &[gpu], 0), (1, Ok(())), "the other file is still open");
    ensure_eq!(second.snapshot()?.bos, 1);
    drop(second);
    ensure_eq!(Client::open_at(&path)?.snapshot()?.bos, 0, "the process has ended with its last file");
    Ok(())
}

pub(super) fn elsewhere_role(_: &mut Scenario) -> Result<(), Stop> {
    let client = Client::open_at(&device()?)?;
    ensure_eq!(client.snapshot()?.bos, 0, "objects of another address space");
    Ok(())
}
