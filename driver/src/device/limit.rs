// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The system-memory limit of all processes together, for registered and GTT memory.
//!
//! As in KFD: RAM less 1/64 of it less 1.5 GiB, counted per byte asked for, also where ranges
//! overlap. A machine may have another limit ([`Options::gtt`](crate::machine::options::Options)).
//!
//! The registered memory of a process may have an account of its own, if something else bounds that
//! memory: a guest's is bounded by the guest's RAM. Then GTT memory alone counts against the
//! machine's.
//!
//! The driver's own memory is charged as long as it exists, for any owner. Owners are its object,
//! files of it, objects made of those, the events on a signal page, and a client's mapping
//! ([`ChargedDma`]). The client's memory is charged as long as it is registered.

use crate::base::addr::PhysAddr;
use crate::base::errno::{Errno, Error, Reason, Result};
use crate::os::{self, Arc};
use crate::seams::gpu::DmaMemory;
use core::sync::atomic::{AtomicU64, Ordering};

/// The account.
pub struct Limit {
    bytes: AtomicU64,
    used: AtomicU64,
}

/// Bytes charged; dropping it gives them back.
pub struct Charge {
    limit: Arc<Limit>,
    bytes: u64,
}

/// System memory of the driver, with its charge.
pub struct ChargedDma {
    memory: Arc<dyn DmaMemory>,
    /// After the memory: the charge is never less than the memory.
    _charge: Charge,
}

impl ChargedDma {
    /// Charges `memory`.
    pub fn charged(memory: Arc<dyn DmaMemory>, charge: Charge) -> Result<Arc<dyn DmaMemory>> {
        let charged: Arc<dyn DmaMemory> = os::arc(Self { memory, _charge: charge })?;
        Ok(charged)
    }
}

impl DmaMemory for ChargedDma {
    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }
    fn page(&self, index: u64) -> PhysAddr {
        self.memory.page(index)
    }
    fn write_u64(&self, at: u64, value: u64) {
        self.memory.write_u64(at, value);
    }
    fn read_u64(&self, at: u64) -> u64 {
        self.memory.read_u64(at)
    }
    fn mmap_offset(&self) -> Option<u64> {
        self.memory.mmap_offset()
    }
    fn as_any(&self) -> &dyn core::any::Any {
        self.memory.as_any()
    }
}

impl Limit {
    /// The limit of a machine with `ram` bytes.
    pub const fn of_ram(ram: u64) -> u64 {
        ram.saturating_sub(ram / 64).saturating_sub(3 << 29)
    }

    /// An account of `bytes`.
    pub const fn new(bytes: u64) -> Self {
        Self { bytes: AtomicU64::new(bytes), used: AtomicU64::new(0) }
    }

    /// Bytes that may be charged in all.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// There are `bytes` from now on. Charges beyond them stay.
    pub fn resize(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Charges `bytes`. ENOMEM (reason `MemoryLimit`) when they do not fit.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge> {
        self.take(bytes)?;
        Ok(Charge { limit: self.clone(), bytes })
    }

    /// Bytes charged.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that can still be charged.
    pub fn available(&self) -> u64 {
        self.bytes().saturating_sub(self.used())
    }

    fn take(&self, bytes: u64) -> Result {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.bytes());
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.map(drop).map_err(|_| Error::new(Errno::ENOMEM, Reason::MemoryLimit))
    }
}

impl Charge {
    /// Charges nothing yet.
    pub fn none(limit: &Arc<Limit>) -> Self {
        Self { limit: limit.clone(), bytes: 0 }
    }

    /// Bytes charged by it.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Charges `bytes` in all from now on. ENOMEM (reason `MemoryLimit`), and as before, when they
    /// do not fit; less always fits.
    pub fn set(&mut self, bytes: u64) -> Result {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.limit.take(more)?,
            None => {
                self.limit.used.fetch_sub(self.bytes.saturating_sub(bytes), Ordering::Relaxed);
            }
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.limit.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_come_back_and_the_limit_holds_to_the_byte() {
        let limit = Arc::new(Limit::new(100));
        let a = limit.charge(60).unwrap();
        assert!(limit.charge(41).is_err() && limit.charge(u64::MAX).is_err());
        let b = limit.charge(40).unwrap();
        assert_eq!(limit.available(), 0);
        let mut c = Charge::none(&limit);
        assert!(c.set(1).is_err() && c.bytes() == 0);
        drop(b);
        c.set(40).unwrap();
        assert!(c.set(41).is_err() && limit.used() == 100);
        c.set(10).unwrap();
        assert_eq!(limit.used(), 70);
        limit.resize(65);
        assert!(limit.charge(1).is_err() && limit.available() == 0, "what is charged stays");
        drop((a, c));
        assert_eq!((limit.used(), limit.available()), (0, 65));
        assert_eq!(Limit::of_ram(64 << 30), (64 << 30) - (1 << 30) - (3 << 29));
        assert_eq!(Limit::of_ram(1 << 30), 0);
    }
}
