// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Negative controls: a device that is broken in one way is noticed by the same looks that the tests take.
#![cfg(feature = "sabotage")]

mod guest;

use std::sync::atomic::Ordering;
use std::time::Duration;

use guest::{fence, scattered, Guest, Library, PAGE, RAM_AT, RAM_BYTES};
use vkfd_virtio_gpu::device::{Options, Sabotage};
use vkfd_virtio_gpu::protocol::control::Command;
use vkfd_virtio_gpu::protocol::hsakmt::memory::Layout;
use vkfd_virtio_gpu::protocol::hsakmt::{shared, Request};

const COUNT: u64 = 64;

/// How many pages of a scattered buffer the GPU sees wrong; `None` when its copy does not end.
fn wrong_pages(sabotage: Option<Sabotage>) -> Option<usize> {
    let mut guest = Guest::new(Options { sabotage, ..Options::default() });
    for page in 0..RAM_BYTES / PAGE {
        guest.ram.word(page * PAGE).store(page, Ordering::Relaxed);
    }
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let mut copies = library.copies(&mut guest);
    let (copy, at, _) = library.alloc(&mut guest, COUNT * PAGE);
    let runs = scattered(7, COUNT);
    let resource = guest.guest_blob(1, runs.clone()).unwrap();
    let address = library.register(&mut guest, resource, COUNT * PAGE);
    if !copies.copy(&guest, copy, address, COUNT * PAGE, Duration::from_secs(2)) {
        return None;
    }
    let seen = |place: u64| guest.window.word(at + place * PAGE).load(Ordering::Acquire);
    Some((0..).zip(&runs).filter(|(place, run)| seen(*place) != (run.address - RAM_AT) / PAGE).count())
}

#[test]
fn lists_that_are_not_registered_as_they_came_are_noticed() {
    assert_eq!(wrong_pages(None), Some(0), "the sound device");
    assert_eq!(wrong_pages(Some(Sabotage::LastRange)), Some(1));
    assert_eq!(wrong_pages(Some(Sabotage::Swapped)), Some(2));
    assert_eq!(wrong_pages(Some(Sabotage::Shifted)), Some(1));
    assert_eq!(wrong_pages(Some(Sabotage::FirstOnly)), Some(63));
}

#[test]
fn a_registration_that_is_freed_too_early_stops_the_queue() {
    assert_eq!(wrong_pages(Some(Sabotage::FreedEarly)), None);
}

#[test]
fn a_fence_before_the_work_is_noticed() {
    for (sabotage, done) in [(None, true), (Some(Sabotage::EarlyFence), false)] {
        let mut guest = Guest::new(Options { sabotage, ..Options::default() });
        let library = Library::open(&mut guest, 1, Layout::Y2026);
        library.room(&guest, 64);
        let payload = Request::Nop.encode(77, 64);
        // The answer is looked at when it is given, as a guest does that waits for the fence.
        let header = fence(1, 0, 5);
        let sequence = guest.window.half(shared::SEQUENCE).as_ptr().expose_provenance();
        let (sender, receiver) = std::sync::mpsc::channel();
        let reply = Box::new(move |_: &[u8]| {
            let word = std::ptr::with_exposed_provenance_mut::<u32>(sequence);
            // SAFETY: a word of the window's mapping, which the guest keeps, accessed atomically.
            let seen = unsafe { std::sync::atomic::AtomicU32::from_ptr(word) }.load(Ordering::Acquire);
            sender.send(seen).unwrap();
        });
        guest.device.execute(&Command::Submit { payload: &payload }.encode(&header), reply);
        assert_eq!(receiver.recv().unwrap() == 77, done, "{sabotage:?}");
    }
}
