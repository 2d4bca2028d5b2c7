// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The system-memory limit: what all processes together may have registered or allocated as GTT memory.
//!
//! As in KFD: RAM less 1/64 of it less 1.5 GiB, counted per byte asked for, also where ranges overlap.

use crate::errno::{Errno, Error, Reason, Result};
use crate::os::Arc;
use core::sync::atomic::{AtomicU64, Ordering};

/// The account.
pub struct Limit {
    bytes: u64,
    used: AtomicU64,
}

/// Bytes charged; dropping it gives them back.
pub struct Charge {
    limit: Arc<Limit>,
    bytes: u64,
}

impl Limit {
    /// The limit of a machine with `ram` bytes.
    pub const fn of_ram(ram: u64) -> u64 {
        (ram - ram / 64).saturating_sub(3 << 29)
    }

    /// An account of `bytes`.
    pub const fn new(bytes: u64) -> Self {
        Self { bytes, used: AtomicU64::new(0) }
    }

    /// Charges `bytes`. ENOMEM (reason `MemoryLimit`) when they do not fit.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.bytes);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(Charge { limit: self.clone(), bytes }),
            Err(_) => Err(Error::new(Errno::ENOMEM, Reason::MemoryLimit)),
        }
    }

    /// Bytes charged.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes that can still be charged.
    pub fn available(&self) -> u64 {
        self.bytes - self.used()
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
        drop((a, b));
        assert_eq!(limit.used(), 0);
        assert_eq!(Limit::of_ram(64 << 30), (64 << 30) - (1 << 30) - (3 << 29));
        assert_eq!(Limit::of_ram(1 << 30), 0);
    }
}
