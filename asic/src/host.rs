// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The machine that the device is in, as far as the device reaches it by itself.

use vkfd_gpu::PhysAddr;

/// The machine's memory and its interrupt controller. Called with the device's lock held.
pub trait Host: Send + Sync {
    /// Writes `bytes` at a bus address. Whether all of it is memory.
    fn write(&self, pa: PhysAddr, bytes: &[u8]) -> bool;

    /// Sends the device's interrupt.
    fn interrupt(&self);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Memory from address 0 on, and a count of interrupts.
    pub(crate) struct Memory(Mutex<(Vec<u8>, u32)>);

    impl Memory {
        pub(crate) fn new(bytes: usize) -> Self {
            Self(Mutex::new((vec![0; bytes], 0)))
        }

        pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
            self.0.lock().unwrap().0[at..at + len].to_vec()
        }

        pub(crate) fn interrupts(&self) -> u32 {
            self.0.lock().unwrap().1
        }
    }

    impl Host for Memory {
        fn write(&self, pa: PhysAddr, bytes: &[u8]) -> bool {
            let mut inner = self.0.lock().unwrap();
            let at = usize::try_from(pa.0).unwrap();
            inner.0.get_mut(at..at + bytes.len()).map(|place| place.copy_from_slice(bytes)).is_some()
        }

        fn interrupt(&self) {
            self.0.lock().unwrap().1 += 1;
        }
    }
}
