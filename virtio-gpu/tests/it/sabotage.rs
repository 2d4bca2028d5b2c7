// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Negative controls: a device that is broken in one way is noticed by the same looks that the
//! tests take.
#![cfg(debug_assertions)]

use crate::program;

use std::sync::atomic::Ordering;
use std::time::Duration;

use vkfd_remote::protocol::control::Command;
use vkfd_remote::protocol::hsakmt::memory::Layout;
use vkfd_remote::protocol::hsakmt::query::Query;
use vkfd_remote::protocol::hsakmt::{shared, Request};
use vkfd_sabotage::{Switch, Switches};
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::simulated_guest::{fence, scattered, Guest, Library, PAGE, RAM_AT, RAM_BYTES};

const COUNT: u64 = 64;

/// How many pages of a scattered buffer the GPU sees wrong; `None` when its copy does not end.
fn wrong_pages(sabotage: Switches) -> Option<usize> {
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
    assert_eq!(wrong_pages(Switches::NONE), Some(0), "the sound device");
    assert_eq!(wrong_pages(Switch::LastRange.into()), Some(1));
    assert_eq!(wrong_pages(Switch::Swapped.into()), Some(2));
    assert_eq!(wrong_pages(Switch::Shifted.into()), Some(1));
    assert_eq!(wrong_pages(Switch::FirstOnly.into()), Some(63));
}

#[test]
fn a_registration_that_is_freed_too_early_stops_the_queue() {
    assert_eq!(wrong_pages(Switch::FreedEarly.into()), None);
}

#[test]
fn a_fence_before_the_work_is_noticed() {
    for (sabotage, done) in [(Switches::NONE, true), (Switch::EarlyFence.into(), false)] {
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

/// A copy to the GPU by a program whose calls are forwarded: its first wrong word, or the errno of
/// a call that failed.
fn forwarded_copy(sabotage: Switches) -> Result<Option<u64>, i32> {
    let options = Options { sabotage, ..program::options() };
    let (client, _host) = program::client(options).map_err(|error| error.errno().map_or(0, |errno| errno.0))?;
    let bytes = program::MIB;
    let source = program::Memory::new(bytes);
    source.fill(1000);
    let from = program::register(&client, &[source.range(0, bytes / PAGE)]).unwrap();
    let gpu = client.gpus()[0].id;
    let to = client.alloc(&vkfd_client::AllocOptions::vram(gpu, bytes)).unwrap();
    let mut queue = vkfd_client::CopyQueue::new(&client, gpu).unwrap();
    queue.copy_now(to.gpu_va(), from.gpu_va(), bytes, program::SOON).unwrap();
    let mut seen = vec![0; program::size(bytes)];
    to.read(0, &mut seen).unwrap();
    let wrong = (1000_u64..).zip(seen.chunks_exact(8)).position(|(word, seen)| word.to_ne_bytes() != *seen);
    Ok(wrong.map(|word| word as u64))
}

#[test]
fn a_program_whose_calls_are_forwarded_notices() {
    assert_eq!(forwarded_copy(Switches::NONE), Ok(None), "the sound device");
    let last = program::MIB - vkfd_remote::guest::socket::CHUNK;
    assert_eq!(forwarded_copy(Switch::LastRange.into()), Ok(Some(last / 8)), "the last range of a list");
    assert!(matches!(forwarded_copy(Switch::Swapped.into()), Ok(Some(_))));
    assert_eq!(forwarded_copy(Switch::EarlyFence.into()), Err(libc::EIO), "a fence without an answer");
}

/// The part of SVM memory that moves at once.
const GRANULE: u64 = 2 << 20;

/// Whether a guest's GPU reads memory of this process that the guest was not given.
fn reads_the_hosts_memory(sabotage: Switches) -> bool {
    let mut options = Options { sabotage, ..Options::default() };
    options.machine.xnack = true;
    let mut guest = Guest::new(options);
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let _ = library.ask(&mut guest, &Request::Query(Query::SetXnack(1)));
    // A whole granule of it, because the broken driver moves one to the GPU. This process's heap,
    // which the driver's own threads use, must not be beside it.
    let secret = program::Memory::new(3 * GRANULE);
    secret.fill(4242);
    let inside = secret.address().next_multiple_of(GRANULE);
    let wanted = 4242 + (inside - secret.address()) / 8 + 1;
    let mut copies = library.copies(&mut guest);
    let (copy, at, _) = library.alloc(&mut guest, PAGE);
    copies.copy(&guest, copy, inside, PAGE, Duration::from_secs(2))
        && guest.window.word(at + 8).load(Ordering::Acquire) == wanted
}

#[test]
fn a_process_with_more_than_was_granted_is_noticed() {
    assert!(!reads_the_hosts_memory(Switches::NONE), "the sound device");
    assert!(reads_the_hosts_memory(Switch::WholeMemory.into()));
}

/// The fuzz target's own looks, on bytes by chance: a sound device passes, and one whose processes
/// have the whole memory is found out.
#[test]
fn a_hostile_guest_that_is_not_kept_out_is_noticed() {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let seed = RandomState::new().build_hasher().finish();
    let inputs = |rounds: u64, sabotage: Switches| {
        std::thread::spawn(move || {
            let mut word = seed | 1;
            for _ in 0..rounds {
                let bytes: Vec<u8> = std::iter::repeat_with(|| {
                    // Marsaglia's xorshift.
                    word ^= word << 13;
                    word ^= word >> 7;
                    word ^= word << 17;
                    word.to_le_bytes()[3]
                })
                .take(600)
                .collect();
                vkfd_virtio_gpu::fuzz::hostile_to(&bytes, sabotage);
            }
        })
        .join()
    };
    assert!(inputs(200, Switches::NONE).is_ok(), "the sound device, seed {seed:#x}");
    let noticed = inputs(2000, Switch::WholeMemory.into()).unwrap_err();
    let why = noticed.downcast_ref::<&str>().map(|why| (*why).to_owned());
    let why = why.or_else(|| noticed.downcast_ref::<String>().cloned()).unwrap_or_default();
    assert!(why.contains("the host's memory"), "{why}, seed {seed:#x}");
}
