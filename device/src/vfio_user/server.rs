// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A connection of a VMM: requests in, replies out.
//!
//! One thread serves it. Nothing that it calls waits for the GPU longer than accesses in flight, as
//! QEMU gives up a device that does not answer for five seconds. A mapping of guest memory is never
//! answered with an error, because QEMU ends then: what cannot be mapped is absent, with a line in
//! the log.

use super::dma::Dma;
use super::message::{answer, command, receive, u32_at, u64_at, Reply, Request, MAX_ACCESS};
use crate::interrupts::signal;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use vkfd_asic::pci::{bar, place, CONFIG_BYTES, DOORBELL_BYTES};
use vkfd_asic::registers::file;
use vkfd_asic::{Asic, Host, Summary};
use vkfd_gpu::PhysAddr;

/// Regions of a PCI device besides its BARs.
const ROM: u32 = 6;
const CONFIG: u32 = 7;
const REGIONS: u32 = 9;
/// Kinds of interrupts: the one that is used, and their number.
const MSI: u32 = 1;
const IRQS: u32 = 5;

/// Flags of a region.
const READ: u32 = 1;
const WRITE: u32 = 2;
const MAP: u32 = 4;
/// Flags of a device: it can be reset, and it is PCI.
const DEVICE: u32 = 3;
/// Flags of an interrupt: it is an eventfd, and their number is fixed.
const EVENTFD: u32 = 1;
const NO_RESIZE: u32 = 8;
/// Flags of setting interrupts.
const DATA_NONE: u32 = 1;
const DATA_EVENTFD: u32 = 4;
/// All ranges are to go.
const UNMAP_ALL: u32 = 2;

/// What this server can do, as the protocol's JSON.
const CAPABILITIES: &str = concat!(
    r#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"#,
    r#""migration":{"pgsize":4096}}}"#,
    "\0"
);

/// The machine as the device reaches it.
#[derive(Default)]
pub struct Guest {
    /// Its memory.
    pub dma: Dma,
    /// Where its interrupt goes.
    interrupt: Mutex<Option<OwnedFd>>,
}

impl Guest {
    fn set_interrupt(&self, fd: Option<OwnedFd>) {
        *self.interrupt.lock().unwrap_or_else(PoisonError::into_inner) = fd;
    }
}

impl vkfd_gpu::Bus for Guest {
    fn resolve(&self, pa: PhysAddr, max: usize, write: bool) -> Result<vkfd_gpu::HostSpan, vkfd_gpu::BusError> {
        self.dma.resolve(pa, max, write)
    }

    fn lost(&self, pa: PhysAddr, write: bool) {
        self.dma.lost(pa, write);
    }
}

impl Host for Guest {
    fn write(&self, pa: PhysAddr, bytes: &[u8]) -> bool {
        self.dma.write(pa, bytes)
    }

    fn interrupt(&self) {
        if let Some(fd) = &*self.interrupt.lock().unwrap_or_else(PoisonError::into_inner) {
            signal(fd);
        }
    }
}

/// A device for one VMM after the other.
pub struct Server {
    asic: Asic,
    guest: Arc<Guest>,
}

type Answer<'a> = Result<Reply<'a>, Errno>;

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The size of a message's body that has at least so many bytes.
fn at_least(request: &Request, bytes: usize) -> Result<(), Errno> {
    if request.body.len() < bytes {
        return Err(Errno::INVAL);
    }
    Ok(())
}

impl Server {
    /// A server of `asic`, which was made with `guest` as its machine.
    pub fn new(asic: Asic, guest: Arc<Guest>) -> Self {
        Self { asic, guest }
    }

    /// The device.
    pub fn asic(&self) -> &Asic {
        &self.asic
    }

    /// Serves a VMM until it goes; its memory goes with it. Returns the device's account, and how
    /// the connection ended: with an error of the socket, or InvalidData for a VMM that does not
    /// follow the protocol.
    pub fn serve(&self, stream: &UnixStream) -> (io::Result<()>, Summary) {
        let served = self.serve_all(stream);
        let summary = self.asic.summary();
        self.guest.set_interrupt(None);
        self.asic.reset();
        self.unmap(0, u64::MAX);
        (served, summary)
    }

    fn serve_all(&self, stream: &UnixStream) -> io::Result<()> {
        while let Some(mut request) = receive(stream)? {
            let fds = std::mem::take(&mut request.fds);
            let reply = self.handle(&request, fds);
            if let Err(errno) = &reply {
                tracing::debug!(command = request.command, %errno, "refused");
            }
            if request.wants_reply {
                answer(stream, &request, reply)?;
            }
        }
        Ok(())
    }

    /// Carries out a request; descriptors that it has no use for are closed.
    fn handle(&self, request: &Request, fds: Vec<OwnedFd>) -> Answer<'_> {
        let body = request.body.as_slice();
        match request.command {
            command::VERSION => {
                at_least(request, 4)?;
                let (major, minor) = (u32_at(body, 0) & 0xffff, u32_at(body, 0) >> 16);
                tracing::debug!(major, minor, "a VMM");
                if major != 0 {
                    return Err(Errno::NOTSUP);
                }
                let mut reply = body.get(..4).unwrap_or_default().to_vec();
                reply.extend(CAPABILITIES.as_bytes());
                Ok(Reply::of(reply))
            }
            command::DMA_MAP => {
                at_least(request, 32)?;
                self.map(body, fds.first());
                Ok(Reply::default())
            }
            command::DMA_UNMAP => {
                at_least(request, 24)?;
                let all = u32_at(body, 4) & UNMAP_ALL != 0;
                let (start, bytes) = if all { (0, u64::MAX) } else { (u64_at(body, 8), u64_at(body, 16)) };
                self.unmap(start, bytes);
                Ok(Reply::of(body.get(..24).unwrap_or_default().to_vec()))
            }
            command::DEVICE_GET_INFO => Ok(Reply::of(words(&[16, DEVICE, REGIONS, IRQS]))),
            command::DEVICE_GET_REGION_INFO => {
                at_least(request, 16)?;
                self.region_info(u32_at(body, 8))
            }
            command::DEVICE_GET_IRQ_INFO => {
                at_least(request, 16)?;
                match u32_at(body, 8) {
                    MSI => Ok(Reply::of(words(&[16, EVENTFD | NO_RESIZE, MSI, 1]))),
                    index if index < IRQS => Ok(Reply::of(words(&[16, 0, index, 0]))),
                    _ => Err(Errno::INVAL),
                }
            }
            command::DEVICE_SET_IRQS => {
                at_least(request, 20)?;
                self.set_irqs(body, fds)
            }
            command::REGION_READ => {
                at_least(request, 16)?;
                let length = usize::try_from(u32_at(body, 12)).ok().filter(|length| *length <= MAX_ACCESS);
                let mut reply = body.get(..16).unwrap_or_default().to_vec();
                reply.resize(16 + length.ok_or(Errno::INVAL)?, 0);
                self.read(u32_at(body, 8), u64_at(body, 0), reply.get_mut(16..).unwrap_or_default())?;
                Ok(Reply::of(reply))
            }
            command::REGION_WRITE => {
                at_least(request, 16)?;
                let length = usize::try_from(u32_at(body, 12)).unwrap_or(usize::MAX);
                let data = body.get(16..).and_then(|data| data.get(..length)).ok_or(Errno::INVAL)?;
                self.write(u32_at(body, 8), u64_at(body, 0), data)?;
                Ok(Reply::of(body.get(..16).unwrap_or_default().to_vec()))
            }
            command::DEVICE_RESET => {
                self.asic.reset();
                Ok(Reply::default())
            }
            _ => Err(Errno::NOTSUP),
        }
    }

    fn map(&self, body: &[u8], fd: Option<&OwnedFd>) {
        let (offset, start, bytes) = (u64_at(body, 8), u64_at(body, 16), u64_at(body, 24));
        // ROMs, and BARs of this device itself, come without one.
        let Some(fd) = fd else {
            tracing::debug!(start, bytes, "a range without memory");
            return;
        };
        match self.guest.dma.map(start, bytes, fd, offset) {
            Ok(()) => tracing::debug!(start, bytes, "guest memory"),
            Err(error) => tracing::warn!(start, bytes, %error, "guest memory that is absent"),
        }
    }

    fn unmap(&self, start: u64, bytes: u64) {
        let gone = self.guest.dma.unmap(start, bytes);
        if !gone.is_empty() {
            self.asic.forget_memory();
        }
        // Now nobody uses it.
        drop(gone);
    }

    fn region_info(&self, index: u32) -> Answer<'_> {
        let vram = self.asic.gpu().vram();
        let (size, flags) = match index {
            bar::VRAM => (vram.size(), READ | WRITE | MAP),
            bar::DOORBELLS => (DOORBELL_BYTES, READ | WRITE),
            bar::REGISTERS => (file::BYTES, READ | WRITE),
            ROM => (self.asic.rom().len() as u64, READ),
            CONFIG => (CONFIG_BYTES, READ | WRITE),
            index if index < REGIONS => (0, 0),
            _ => return Err(Errno::INVAL),
        };
        let mut body = words(&[32, flags, index, 0]);
        body.extend(size.to_le_bytes());
        body.extend(vram.start().to_le_bytes());
        Ok(Reply { body, fd: (index == bar::VRAM).then(|| vram.as_fd()) })
    }

    fn set_irqs(&self, body: &[u8], fds: Vec<OwnedFd>) -> Answer<'_> {
        let (flags, index, start, count) = (u32_at(body, 4), u32_at(body, 8), u32_at(body, 12), u32_at(body, 16));
        if index >= IRQS || start.checked_add(count).is_none_or(|end| index == MSI && end > 1) {
            return Err(Errno::INVAL);
        }
        if index != MSI {
            return Ok(Reply::default());
        }
        match fds.into_iter().next() {
            Some(fd) if flags & DATA_EVENTFD != 0 => self.guest.set_interrupt(Some(fd)),
            None if flags & (DATA_NONE | DATA_EVENTFD) != 0 => self.guest.set_interrupt(None),
            _ => return Err(Errno::INVAL),
        }
        Ok(Reply::default())
    }

    fn read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        match region {
            CONFIG => self.asic.read_config(offset, data),
            ROM => {
                for (index, byte) in data.iter_mut().enumerate() {
                    *byte = place(offset, index).and_then(|at| self.asic.rom().get(at)).copied().unwrap_or(0);
                }
            }
            region if region < REGIONS => self.asic.read(region, offset, data),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        match region {
            CONFIG => self.asic.write_config(offset, data),
            ROM => {}
            region if region < REGIONS => self.asic.write(region, offset, data),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }
}
