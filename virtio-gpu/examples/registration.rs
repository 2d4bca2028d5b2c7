// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the device adds to a registration: the same list of a guest's pages, through the device's
//! commands and directly by the client library, in turn on one machine. Prints medians, and the
//! median of the ratios.

use std::time::Instant;

use vkfd_client::{Client, RegisterOptions, UserptrRange};
use vkfd_remote::protocol::hsakmt::memory::{Layout, Memory};
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::simulated_guest::{scattered, Guest, Library, PAGE};

const RUNS: usize = 15;

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let mut guest = Guest::new(Options::default());
    let client = Client::on(guest.device.machine()).expect("a process");
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    println!("pieces   through the device   directly   ratio");
    for count in [1, 64, 1024, 8192] {
        let runs = scattered(0, count);
        let memory = guest.device.ram().read().find(&runs).expect("in memory");
        let list: Vec<UserptrRange> = memory.ranges().to_vec();
        let (mut through, mut direct, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        let resource = guest.guest_blob(1, runs).expect("a blob");
        let bytes = count * PAGE;
        for run in 0..=RUNS {
            let began = Instant::now();
            let address = library.register(&mut guest, resource, bytes);
            let a = began.elapsed().as_secs_f64() * 1e6;
            assert_eq!(library.memory(&mut guest, Memory::Unmap { address }), 0);
            assert_eq!(library.memory(&mut guest, Memory::Deregister { address, resource: 0 }), 0);
            let began = Instant::now();
            // SAFETY: shared memory of the guest, of which this program has no references; nothing
            // is submitted.
            let buffer = unsafe { client.register_ranges(&list, &RegisterOptions::default()) }.expect("a buffer");
            let b = began.elapsed().as_secs_f64() * 1e6;
            buffer.free().expect("free");
            if run > 0 {
                through.push(a);
                direct.push(b);
                ratios.push(a / b);
            }
        }
        guest.unref(resource);
        println!("{count:>6} {:>17.0} us {:>7.0} us {:>7.2}", median(through), median(direct), median(ratios));
    }
}
