// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A module that does what a module must not do, on request.
//!
//! `cargo xtask vm setup` builds and loads it to see that the toolchain and the guest work;
//! `cargo xtask vm controls` loads it with each fault to see that the harness notices.

use kernel::{
    bindings, new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
    time::{delay::fsleep, Delta},
};

module! {
    type: Probe,
    name: "vkfd_probe",
    authors: ["vkfd"],
    description: "Faults on request, to test the test harness",
    license: "Dual MIT/GPL",
    params: {
        fault: u8 {
            default: 0,
            description: "0 none, 1 warning, 2 leak, 3 panic, 4 hang, 5 stays loaded, 6 use after free, 7 lock inversion, 8 refuses to load",
        },
    },
}

struct Probe {
    _kept: KBox<u64>,
}

impl kernel::Module for Probe {
    fn init(module: &'static ThisModule) -> Result<Self> {
        let kept = KBox::new(0x766b_6664, GFP_KERNEL)?;
        match module_parameters::fault.value() {
            0 => pr_info!("loaded without a fault\n"),
            1 => {
                kernel::warn_on!(true);
            }
            2 => {
                KBox::leak(KBox::new([0_u8; 1000], GFP_KERNEL)?);
            }
            3 => panic!("a planted panic"),
            4 => loop {
                fsleep(Delta::from_secs(1));
            },
            5 => {
                // SAFETY: the module exists; the count is never given back, which is the fault.
                unsafe { bindings::__module_get(module.as_ptr()) };
            }
            6 => use_after_free()?,
            7 => lock_inversion()?,
            _ => return Err(EINVAL),
        }
        Ok(Self { _kept: kept })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        pr_info!("unloaded\n");
    }
}

fn use_after_free() -> Result {
    let freed = KBox::into_raw(KBox::new(1_u64, GFP_KERNEL)?);
    // SAFETY: the pointer is from `into_raw`.
    drop(unsafe { KBox::from_raw(freed) });
    // SAFETY: there is nothing safe about it: reading freed memory is the fault. It was mapped a
    // moment ago and kernel memory stays so.
    let value = unsafe { freed.read_volatile() };
    pr_info!("freed memory says {value}\n");
    Ok(())
}

fn lock_inversion() -> Result {
    let first = Arc::pin_init(new_mutex!(1, "vkfd_probe_first"), GFP_KERNEL)?;
    let second = Arc::pin_init(new_mutex!(2, "vkfd_probe_second"), GFP_KERNEL)?;
    let both = |a: &Mutex<i32>, b: &Mutex<i32>| *a.lock() + *b.lock();
    pr_info!("locked {} and {}\n", both(&first, &second), both(&second, &first));
    Ok(())
}
