// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The list of fail points.

use core::fmt;

macro_rules! fail_points {
    ($($point:ident = $name:literal: $about:literal;)*) => {
        /// A place where a test can make the driver fail. Each allocation and each call to the host
        /// passes one.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum FailPoint {
            $(#[doc = concat!("Fails: ", $about, ".")] $point,)*
        }

        impl FailPoint {
            /// All of them, in the order of the list.
            pub const ALL: &'static [FailPoint] = &[$(FailPoint::$point),*];

            /// What people call it.
            #[inline]
            pub const fn name(self) -> &'static str {
                match self {
                    $(FailPoint::$point => $name,)*
                }
            }

            /// What fails there.
            #[inline]
            pub const fn about(self) -> &'static str {
                match self {
                    $(FailPoint::$point => $about,)*
                }
            }
        }
    };
}

fail_points! {
    AddQueue = "add_queue": "a queue of the GPU";
    AllocDma = "alloc_dma": "memory that the GPU shares";
    Arc = "arc": "an object";
    Condvar = "condvar": "a condition";
    Copy = "copy": "copying a list from the client";
    Dma = "dma": "memory that driver and GPU share";
    EventStream = "event_stream": "a file of events";
    Export = "export": "an exported buffer";
    Fault = "fault": "faulting pages in";
    Migrate = "migrate": "moving pages";
    Mmap = "mmap": "mapping a device file";
    Mutex = "mutex": "a lock";
    Queue = "queue": "making a queue";
    Vec = "vec": "a growable array";
    Vmid = "vmid": "a VMID";
    Vram = "vram": "VRAM";
    Watch = "watch": "a notifier";
    Work = "work": "a work item";
}

impl fmt::Display for FailPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
