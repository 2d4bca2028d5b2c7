// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Files that calls give to their callers: buffers, and SMI events.
//!
//! A buffer's file can be given to other processes, and is the same buffer there. It is not the
//! kernel's dma_buf: only this driver knows it, and it cannot be mapped. An event file is a ring of
//! bytes; a line for which there is no room is lost, whole.
//!
//! The ring's spin lock guards what is in it. It is taken in memory reclaim, and user memory is
//! never touched under it.

use crate::anon_file::{self, AnonFile, Operations};
use crate::Vkfd;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use kernel::bindings;
use kernel::fs::{File, LocalFile};
use kernel::prelude::*;
use kernel::sync::poll::{PollCondVar, PollTable};
use kernel::sync::{Arc, SpinLock};
use kernel::uaccess::{UserSliceReader, UserSliceWriter};
use kernel::{new_poll_condvar, new_spinlock};
use vkfd_driver::buffers::dmabuf::DmaBuf;
use vkfd_driver::base::errno::{Errno, Result as DriverResult};
use vkfd_driver::seams::event_stream::EventStream;
use vkfd_driver::buffers::files::Files;
use vkfd_driver::os;
use vkfd_driver::sabotage::FailPoint;

/// Bytes of lines that an event file holds.
const RING: usize = 8192;
/// Bytes that are taken out of it at a time.
const PIECE: usize = 256;
const READ_NORMAL: u32 = 0x40;

/// This host's files.
pub(crate) struct KernelFiles;

impl Files for KernelFiles {
    fn event_stream(&self) -> DriverResult<(u32, Arc<dyn EventStream>)> {
        os::failpoint(FailPoint::EventStream)?;
        let lines = KVec::from_elem(0, RING, GFP_KERNEL).map_err(|_| ENOMEM)?;
        let events = Arc::pin_init(Events::new(lines), GFP_KERNEL)?;
        let file = anon_file::install(events.clone(), bindings::O_RDWR, 0)?;
        Ok((file, events))
    }

    fn export(&self, buffer: &Arc<DmaBuf>, flags: u32) -> DriverResult<u32> {
        os::failpoint(FailPoint::Export)?;
        let file = Arc::new(BufferFile(buffer.clone()), GFP_KERNEL).map_err(|_| ENOMEM)?;
        // As dma_buf: how it may be used, and whether exec closes it.
        let flags = flags & (bindings::O_CLOEXEC | bindings::O_ACCMODE);
        Ok(anon_file::install(file, flags, buffer.bytes())?)
    }

    fn import(&self, file: u32) -> DriverResult<Arc<DmaBuf>> {
        let file = LocalFile::fget(file).map_err(|_| Errno::EBADF)?;
        let buffer = anon_file::data_of::<BufferFile>(&file).ok_or(Errno::EINVAL)?;
        Ok(buffer.0.clone())
    }
}

/// A buffer as a file.
struct BufferFile(Arc<DmaBuf>);

static BUFFER: Operations<BufferFile> = Operations::new();

impl AnonFile for BufferFile {
    type Module = Vkfd;
    const NAME: &'static CStr = c"vkfd-buffer";
    const HAS_SIZE: bool = true;

    fn operations() -> &'static Operations<Self> {
        &BUFFER
    }
}

/// Lines on their way to a reader.
struct Ring {
    bytes: KVec<u8>,
    /// Where the oldest is.
    first: usize,
    used: usize,
}

impl Ring {
    fn push(&mut self, line: &[u8]) -> bool {
        if line.len() > self.bytes.len() - self.used {
            return false;
        }
        for byte in line {
            let at = (self.first + self.used) % self.bytes.len();
            self.bytes[at] = *byte;
            self.used += 1;
        }
        true
    }

    fn pop(&mut self, to: &mut [u8]) -> usize {
        let count = to.len().min(self.used);
        for place in to.iter_mut().take(count) {
            *place = self.bytes[self.first];
            self.first = (self.first + 1) % self.bytes.len();
        }
        self.used -= count;
        count
    }
}

/// An event file.
#[pin_data]
struct Events {
    #[pin]
    ring: SpinLock<Ring>,
    #[pin]
    readers: PollCondVar,
    mask: AtomicU64,
    closed: AtomicBool,
}

impl Events {
    fn new(bytes: KVec<u8>) -> impl PinInit<Self> {
        pin_init!(Self {
            ring <- new_spinlock!(Ring { bytes, first: 0, used: 0 }),
            readers <- new_poll_condvar!("vkfd_events"),
            mask: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        })
    }
}

impl EventStream for Events {
    fn mask(&self) -> u64 {
        self.mask.load(Ordering::Relaxed)
    }

    fn write(&self, line: &[u8]) {
        if self.ring.lock().push(line) {
            self.readers.notify_all();
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

static EVENTS: Operations<Events> = Operations::new();

impl AnonFile for Events {
    type Module = Vkfd;
    const NAME: &'static CStr = c"vkfd-events";

    fn operations() -> &'static Operations<Self> {
        &EVENTS
    }

    /// EAGAIN when there is nothing, as KFD's.
    fn read(&self, to: &mut UserSliceWriter) -> Result<usize> {
        let mut piece = [0; PIECE];
        let mut done = 0;
        while !to.is_empty() {
            let wanted = to.len().min(PIECE);
            let got = self.ring.lock().pop(&mut piece[..wanted]);
            if got == 0 {
                break;
            }
            to.write_slice(&piece[..got])?;
            done += got;
        }
        if done == 0 && !to.is_empty() {
            return Err(EAGAIN);
        }
        Ok(done)
    }

    /// Takes a mask of eight bytes.
    fn write(&self, from: &mut UserSliceReader) -> Result<usize> {
        let mut mask = [0; 8];
        from.read_slice(&mut mask)?;
        self.mask.store(u64::from_ne_bytes(mask), Ordering::Relaxed);
        Ok(mask.len())
    }

    fn poll(&self, file: &File, table: PollTable<'_>) -> u32 {
        table.register_wait(file, &self.readers);
        if self.ring.lock().used == 0 {
            0
        } else {
            bindings::POLLIN | READ_NORMAL
        }
    }

    fn closed(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}
