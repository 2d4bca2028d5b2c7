// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The device as a guest sees it, without a virtual machine.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vkfd_remote::protocol::blob::Run;
use vkfd_remote::protocol::control::{Command, ErrorCode, Header};
use vkfd_remote::protocol::hsakmt::event::Event;
use vkfd_remote::protocol::hsakmt::memory::{Layout, Memory};
use vkfd_remote::protocol::hsakmt::query::Query;
use vkfd_remote::protocol::hsakmt::queue::Queue;
use vkfd_remote::protocol::hsakmt::Request;
use vkfd_virtio_gpu::device::register::Method;
use vkfd_virtio_gpu::device::Options;
use vkfd_virtio_gpu::simulated_guest::{
    code, fence, scattered, Copies, Guest, Library, MAPPED, OK, PAGE, RAM_AT, RAM_BYTES,
};

const SOON: Duration = Duration::from_secs(30);

/// Words that say which page of the guest's memory they are in.
fn mark(guest: &Guest) {
    for page in 0..RAM_BYTES / PAGE {
        guest.ram.word(page * PAGE).store(page, Ordering::Relaxed);
    }
}

/// Registers scattered pages, has the GPU read and write them.
fn scattered_memory(method: Method, layout: Layout) {
    const COUNT: u64 = 300;
    let mut guest = Guest::new(Options { method, ..Options::default() });
    mark(&guest);
    let mut library = Library::open(&mut guest, 1, layout);
    let mut copies = library.copies(&mut guest);
    let (copy, copy_at, _) = library.alloc(&mut guest, COUNT * PAGE);
    let runs = scattered(7, COUNT);
    let resource = guest.guest_blob(1, runs.clone()).unwrap();
    let address = library.register(&mut guest, resource, COUNT * PAGE);
    assert!(copies.copy(&guest, copy, address, COUNT * PAGE, SOON));
    for (place, run) in (0..).zip(&runs) {
        let seen = guest.window.word(copy_at + place * PAGE).load(Ordering::Acquire);
        assert_eq!(seen, (run.address - RAM_AT) / PAGE, "page {place} of the GPU's range");
    }
    assert_ne!(guest.device.left(), 0, "what is there is counted");
    // The other way round, after the marks have changed.
    for place in 0..COUNT {
        guest.window.word(copy_at + place * PAGE).store(1_000_000 + place, Ordering::Release);
    }
    assert!(copies.copy(&guest, address, copy, COUNT * PAGE, SOON));
    for (place, run) in (0..).zip(&runs) {
        let seen = guest.ram.word(run.address - RAM_AT).load(Ordering::Acquire);
        assert_eq!(seen, 1_000_000 + place, "page {place} that the GPU has written");
    }
    // Neighbours were left alone.
    assert_eq!(guest.ram.word(8 * PAGE).load(Ordering::Acquire), 8);
    assert_eq!(library.memory(&mut guest, Memory::Unmap { address }), 0);
    assert_eq!(library.memory(&mut guest, Memory::Deregister { address, resource: 0 }), 0);
    assert_ne!(library.memory(&mut guest, Memory::Deregister { address, resource: 0 }), 0, "a second time");
    guest.unref(resource);
    assert_eq!(guest.command(1, &Command::DestroyContext), OK);
    guest.device.reset();
    assert_eq!(guest.device.left(), 0);
}

#[test]
fn scattered_memory_by_batch() {
    scattered_memory(Method::Batch, Layout::Y2026);
}

#[test]
fn scattered_memory_one_call_for_each_range() {
    scattered_memory(Method::PerRange, Layout::Y2025);
}

#[test]
fn scattered_memory_moved_into_one_range() {
    scattered_memory(Method::Remap, Layout::Y2026);
}

#[test]
fn the_longest_list_is_one_range_and_a_longer_one_is_refused() {
    const COUNT: u64 = 65_536;
    const PART: u64 = 512;
    let mut options = Options { window: 64 << 20, ..Options::default() };
    options.machine.vram = 64 << 20;
    let mut guest = Guest::with_ram(options, (2 * COUNT + 2) * PAGE);
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let mut copies = library.copies(&mut guest);
    let (copy, copy_at, _) = library.alloc(&mut guest, PART * PAGE);
    let runs = scattered(1, COUNT);
    for (place, run) in (0..).zip(&runs) {
        guest.ram.word(run.address - RAM_AT + PAGE - 8).store(1 << 40 | place, Ordering::Relaxed);
    }
    let resource = guest.guest_blob(1, runs.clone()).unwrap();
    let address = library.register(&mut guest, resource, COUNT * PAGE);
    for part in (0..COUNT).step_by(usize::try_from(PART).unwrap()) {
        assert!(copies.copy(&guest, copy, address + part * PAGE, PART * PAGE, SOON));
        for place in 0..PART {
            let seen = guest.window.word(copy_at + place * PAGE + PAGE - 8).load(Ordering::Acquire);
            assert_eq!(seen, 1 << 40 | (part + place), "page {} of the GPU's range", part + place);
        }
    }
    guest.unref(resource);
    let longer = [runs, vec![Run { address: RAM_AT, bytes: PAGE }]].concat();
    assert_eq!(guest.guest_blob(1, longer), Err(code(ErrorCode::OutOfMemory)));
    guest.device.reset();
    assert_eq!(guest.device.left(), 0);
}

/// As a balloon or a guest that frees memory does it: the file loses pages, which this process is
/// not notified of.
#[test]
fn memory_that_is_discarded_under_a_registration_is_what_the_cpu_sees() {
    const COUNT: u64 = 64;
    let mut guest = Guest::new(Options::default());
    mark(&guest);
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let mut copies = library.copies(&mut guest);
    let (copy, copy_at, _) = library.alloc(&mut guest, COUNT * PAGE);
    let runs = scattered(7, COUNT);
    let resource = guest.guest_blob(1, runs.clone()).unwrap();
    let address = library.register(&mut guest, resource, COUNT * PAGE);
    let agree = |guest: &Guest, copies: &mut Copies, what: &str| {
        assert!(copies.copy(guest, copy, address, COUNT * PAGE, SOON));
        let seen = |place: u64| guest.window.word(copy_at + place * PAGE).load(Ordering::Acquire);
        let there = |run: &Run| guest.ram.word(run.address - RAM_AT).load(Ordering::Acquire);
        for (place, run) in (0..).zip(&runs) {
            assert_eq!(seen(place), there(run), "{what}: page {place}");
        }
    };
    agree(&guest, &mut copies, "at first");
    let offset = |place: usize| i64::try_from(runs[place].address - RAM_AT).unwrap();
    let page = i64::try_from(PAGE).unwrap();
    for place in [0, 5, 6, 63] {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::fallocate(guest.file.as_raw_fd(), mode, offset(place), page) }, 0);
        assert_eq!(guest.ram.word(runs[place].address - RAM_AT).load(Ordering::Acquire), 0, "it is gone");
    }
    agree(&guest, &mut copies, "discarded");
    for place in [5, 7] {
        // Discarded in one process only: the contents stay. And discarded for all, by another way.
        guest.ram.discard(runs[place].address - RAM_AT, libc::MADV_DONTNEED);
        guest.ram.discard(runs[place + 10].address - RAM_AT, libc::MADV_REMOVE);
    }
    agree(&guest, &mut copies, "discarded by madvise");
    assert_ne!(guest.ram.word(runs[7].address - RAM_AT).load(Ordering::Acquire), 0);
    assert_eq!(guest.ram.word(runs[17].address - RAM_AT).load(Ordering::Acquire), 0);
    // Both write to the new pages.
    guest.ram.word(runs[5].address - RAM_AT).store(55, Ordering::Release);
    agree(&guest, &mut copies, "written by the CPU");
    guest.window.word(copy_at + 6 * PAGE).store(66, Ordering::Release);
    assert!(copies.copy(&guest, address, copy, COUNT * PAGE, SOON));
    assert_eq!(guest.ram.word(runs[6].address - RAM_AT).load(Ordering::Acquire), 66);
    agree(&guest, &mut copies, "written by the GPU");
    guest.device.reset();
    assert_eq!(guest.device.left(), 0);
}

#[test]
fn lists_that_no_kernel_sends_are_refused() {
    let mut guest = Guest::new(Options::default());
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let run = |address, bytes| Run { address, bytes };
    let end = RAM_AT + RAM_BYTES;
    for (what, runs) in [
        ("before memory", vec![run(RAM_AT - PAGE, PAGE)]),
        ("past memory", vec![run(end - PAGE, 2 * PAGE)]),
        ("after memory", vec![run(end, PAGE)]),
        ("one of many outside", vec![run(RAM_AT, PAGE), run(end, PAGE), run(RAM_AT + PAGE, PAGE)]),
        ("a page twice", vec![run(RAM_AT, PAGE), run(RAM_AT, PAGE)]),
        ("no whole page", vec![run(RAM_AT, 100)]),
        ("unaligned", vec![run(RAM_AT + 8, PAGE)]),
        ("at the end of the address space", vec![run(u64::MAX - PAGE + 1, PAGE)]),
    ] {
        assert_eq!(guest.guest_blob(1, runs), Err(code(ErrorCode::InvalidParameter)), "{what}");
    }
    // And it goes on.
    let resource = guest.guest_blob(1, vec![run(RAM_AT, PAGE)]).unwrap();
    library.register(&mut guest, resource, PAGE);
}

#[test]
fn addresses_are_keys_and_nothing_else() {
    let mut guest = Guest::new(Options::default());
    let mut library = Library::open(&mut guest, 1, Layout::Y2025);
    let secret = Box::new([0x005e_c3e7_u64; 1024]);
    let here = std::ptr::from_ref(&*secret).expose_provenance() as u64 & !(PAGE - 1);
    let resource = guest.guest_blob(1, scattered(0, 4)).unwrap();
    let address = library.register(&mut guest, resource, 4 * PAGE);
    for bad in [0, here, address - PAGE, address + 4 * PAGE, u64::MAX, 1 << 63] {
        for request in [
            Memory::Register { address: bad, bytes: PAGE, flags: 0, resource: 0 },
            Memory::MapToNodes { address: bad, bytes: PAGE, resource: 0, nodes: vec![1] },
            Memory::Map { address: bad, bytes: PAGE, scratch: false },
            Memory::Deregister { address: bad, resource: 0 },
            Memory::Unmap { address: bad },
            Memory::Free { address: bad },
        ] {
            assert_ne!(library.memory(&mut guest, request.clone()), 0, "{request:?}");
        }
    }
    // Lengths, too.
    for bytes in [0, 5 * PAGE, u64::MAX] {
        assert_ne!(library.memory(&mut guest, Memory::Register { address, bytes, flags: 0, resource: 0 }), 0);
    }
}

/// A case for each defect that was found by reading the existing host (`docs/native-context.md`).
#[test]
fn what_the_existing_host_gets_wrong_is_done_or_refused() {
    for xnack in [false, true] {
        let mut options = Options::default();
        options.machine.xnack = xnack;
        does_or_refuses_what_the_existing_host_gets_wrong(options);
    }
}

fn does_or_refuses_what_the_existing_host_gets_wrong(options: Options) {
    let mut guest = Guest::new(options);
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let here = std::ptr::from_ref(&guest).expose_provenance() as u64;
    let resource = guest.guest_blob(1, scattered(0, 4)).unwrap();
    let address = library.register(&mut guest, resource, 4 * PAGE);
    let map = Memory::MapToNodes { address, bytes: 4 * PAGE, resource: 0, nodes: vec![1] };
    // Mapped a second time it is not forgotten: unregistering finds it, and nothing is there any
    // more.
    assert_eq!(library.memory(&mut guest, map.clone()), 0);
    assert_eq!(library.memory(&mut guest, Memory::Unmap { address }), 0);
    assert_eq!(library.memory(&mut guest, Memory::Deregister { address, resource: 0 }), 0);
    assert_ne!(library.memory(&mut guest, map), 0);
    assert_ne!(library.memory(&mut guest, Memory::Deregister { address, resource: 0 }), 0);
    // Events by pointers, a handler whose size is not its buffer's, files by number, devices by
    // handle.
    let event = u32::try_from(here & 0xffff_ffff).unwrap();
    let wrong = [
        Request::Event(Event::Set(event)),
        Request::Event(Event::Reset(event)),
        Request::Event(Event::Destroy(event)),
        Request::Event(Event::Wait { events: vec![event], all: true, milliseconds: 1 }),
        Request::Event(Event::SetTrap { node: 1, code: here, code_bytes: 1 << 40, buffer: here, buffer_bytes: 1 }),
        Request::Query(Query::NotOffered(17)),
        Request::Query(Query::NotOffered(18)),
        Request::Query(Query::SetXnack(1)),
    ];
    // Sharing, dma-buf, policies and SVM, which have their own kinds.
    let memory = (9..=20).map(|kind| Request::Memory(Memory::NotOffered(kind), Layout::Y2026));
    let queues = (2..=5).map(|kind| Request::Queue(Queue::NotOffered(kind)));
    for request in wrong.into_iter().chain(memory).chain(queues) {
        assert_ne!(library.ask(&mut guest, &request).0, 0, "{request:?}");
    }
    // The wait that ends the other host's VMM has an answer, and the context goes on.
    let create = Event::Create { kind: 0, node: 1, manual: false, signalled: true, blob: 50 };
    let (status, body) = library.ask(&mut guest, &Request::Event(create));
    assert_eq!(status, 0);
    let event = u32::from_le_bytes(body[..4].try_into().unwrap());
    library.room(&guest, 8192);
    let payload = library.submit(&Request::Event(Event::Wait { events: vec![event], all: true, milliseconds: 20_000 }));
    let answer = guest.send(&fence(1, 1, 10), &Command::Submit { payload: &payload });
    assert_eq!(Header::decode(&answer.recv_timeout(SOON).unwrap()).unwrap().fence, 10);
    assert_eq!(library.answer(&guest).0, 0);
    assert_eq!(library.memory(&mut guest, Memory::Register { address, bytes: 4 * PAGE, flags: 0, resource }), 0);
    guest.device.reset();
    assert_eq!(guest.device.left(), 0);
}

#[test]
fn contexts_see_nothing_of_each_other() {
    let mut guest = Guest::new(Options::default());
    let mut one = Library::open(&mut guest, 1, Layout::Y2026);
    let mut two = Library::open(&mut guest, 2, Layout::Y2026);
    let of_one = guest.guest_blob(1, scattered(0, 4)).unwrap();
    let address = one.register(&mut guest, of_one, 4 * PAGE);
    assert_ne!(two.memory(&mut guest, Memory::MapUserptr { resource: of_one }), 0);
    assert_ne!(two.memory(&mut guest, Memory::MapToNodes { address, bytes: PAGE, resource: 0, nodes: vec![1] }), 0);
    assert_eq!(guest.command(2, &Command::Attach { resource: of_one }), code(ErrorCode::InvalidContext));
    // The same address on the GPU, in two processes: a copy by one does not find the other's
    // memory.
    let mut copies = two.copies(&mut guest);
    let (copy, _, _) = two.alloc(&mut guest, PAGE);
    assert!(!copies.copy(&guest, copy, address + (1 << 30), PAGE, Duration::from_millis(300)));
    // What the first has is as it was, also when the second goes.
    assert_eq!(guest.command(2, &Command::DestroyContext), OK);
    let mut copies = one.copies(&mut guest);
    let (copy, _, _) = one.alloc(&mut guest, 4 * PAGE);
    assert!(copies.copy(&guest, copy, address, 4 * PAGE, SOON));
}

#[test]
fn a_kernel_that_ends_a_context_first_can_free_what_was_in_it() {
    let mut guest = Guest::new(Options::default());
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let (_, _, resource) = library.alloc(&mut guest, PAGE);
    let memory = guest.guest_blob(1, scattered(0, 4)).unwrap();
    library.register(&mut guest, memory, 4 * PAGE);
    assert_eq!(guest.command(1, &Command::DestroyContext), OK);
    assert_eq!(guest.device.window().places(), 0);
    // A new context of that number does not get them.
    Library::open(&mut guest, 1, Layout::Y2026);
    assert_eq!(guest.command(1, &Command::Attach { resource: memory }), code(ErrorCode::InvalidContext));
    assert_eq!(guest.command(1, &Command::Unmap { resource }), OK);
    assert_eq!(guest.command(1, &Command::Unmap { resource }), code(ErrorCode::InvalidParameter));
    guest.unref(resource);
    guest.unref(memory);
    assert_eq!(guest.command(0, &Command::Unref { resource }), code(ErrorCode::InvalidResource));
}

#[test]
fn the_window_is_not_overrun() {
    let mut guest = Guest::new(Options::default());
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let (_, offset, resource) = library.alloc(&mut guest, PAGE);
    let map = |guest: &mut Guest, offset| guest.command(1, &Command::Map { resource, offset });
    assert_eq!(map(&mut guest, 1 << 20), code(ErrorCode::InvalidParameter), "it is mapped");
    assert_eq!(guest.command(1, &Command::Unmap { resource }), OK);
    for bad in [0, 1, 256 << 20, u64::MAX, u64::MAX - PAGE + 1] {
        assert_eq!(map(&mut guest, bad), code(ErrorCode::InvalidParameter), "{bad:#x}");
    }
    assert_eq!(map(&mut guest, offset), MAPPED);
    // What cannot be mapped: guest memory.
    let memory = guest.guest_blob(1, scattered(0, 1)).unwrap();
    let refused = guest.command(1, &Command::Map { resource: memory, offset: 1 << 20 });
    assert_eq!(refused, code(ErrorCode::InvalidParameter));
}

#[test]
fn answers_stay_in_their_area() {
    let mut guest = Guest::new(Options::default());
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let (_, neighbour, _) = library.alloc(&mut guest, PAGE);
    guest.window.word(neighbour).store(0x1234, Ordering::Release);
    for (answer, room) in [(0, 7), (0, u32::MAX), (u32::MAX, 64), (u32::MAX - 63, 64), (25 * 4096 - 72, 64), (4, 64)] {
        let at = 64 + u64::from(answer);
        if at + 4 <= 25 * 4096 && at % 4 == 0 {
            guest.window.half(at).store(room, Ordering::Release);
        }
        // Numbered before the library's requests, so that it changes nothing for them.
        let payload = Request::Query(Query::System).encode(0, answer);
        assert_eq!(guest.command(1, &Command::Submit { payload: &payload }), OK);
    }
    assert_eq!(guest.window.word(neighbour).load(Ordering::Acquire), 0x1234);
    // It counts them, and answers others as before.
    assert_ne!(guest.window.half(8).load(Ordering::Acquire), 0);
    assert_eq!(library.value(&mut guest, &Request::Query(Query::System)) & 0xffff_ffff, 2);
}

#[test]
fn a_wait_holds_up_its_ring_and_nothing_else() {
    let mut guest = Guest::new(Options::default());
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let create = Event::Create { kind: 0, node: 1, manual: false, signalled: false, blob: 50 };
    let (status, body) = library.ask(&mut guest, &Request::Event(create));
    assert_eq!(status, 0);
    let event = u32::from_le_bytes(body[..4].try_into().unwrap());
    library.room(&guest, 8192);
    let wait = Event::Wait { events: vec![event], all: false, milliseconds: 20_000 };
    let payload = library.submit(&Request::Event(wait));
    let first = guest.send(&fence(1, 1, 10), &Command::Submit { payload: &payload });
    let nop = Request::Nop.encode(0, 8192);
    let behind = guest.send(&fence(1, 1, 11), &Command::Submit { payload: &nop });
    let beside = guest.send(&fence(1, 2, 12), &Command::Submit { payload: &nop });
    assert_eq!(Header::decode(&beside.recv_timeout(SOON).unwrap()).unwrap().fence, 12);
    std::thread::sleep(Duration::from_millis(50));
    assert!(first.try_recv().is_err() && behind.try_recv().is_err());
    let set = Request::Event(Event::Set(event)).encode(0, 16384);
    assert_eq!(guest.command(1, &Command::Submit { payload: &set }), OK);
    assert_eq!(Header::decode(&first.recv_timeout(SOON).unwrap()).unwrap().fence, 10);
    assert_eq!(Header::decode(&behind.recv_timeout(SOON).unwrap()).unwrap().fence, 11);
    // Whichever wrote last, the wait or what ended it: the sequence number does not go back.
    assert_eq!(library.answer(&guest).0, 0);
}

#[test]
fn a_context_that_ends_ends_its_waits() {
    let mut guest = Guest::new(Options::default());
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let create = Event::Create { kind: 0, node: 1, manual: false, signalled: false, blob: 50 };
    let (_, body) = library.ask(&mut guest, &Request::Event(create));
    let event = u32::from_le_bytes(body[..4].try_into().unwrap());
    let wait = Event::Wait { events: vec![event], all: false, milliseconds: u32::MAX };
    let waits: Vec<_> = (0..20)
        .map(|number| {
            let payload = library.submit(&Request::Event(wait.clone()));
            guest.send(&fence(1, 1 + number % 8, 10 + u64::from(number)), &Command::Submit { payload: &payload })
        })
        .collect();
    assert_eq!(guest.command(1, &Command::DestroyContext), OK);
    for wait in waits {
        wait.recv_timeout(SOON).expect("an answer");
    }
    guest.device.reset();
    assert_eq!(guest.device.left(), 0);
}

#[test]
fn bounds_hold_and_are_given_back() {
    let mut guest = Guest::new(Options::default());
    let create = Command::CreateContext { capset: 8 };
    // Each has an address space on the GPUs, of which there are 15.
    let last = (1..100).take_while(|number| guest.command(*number, &create) == OK).count();
    let last = u32::try_from(last).unwrap();
    assert!((8..=64).contains(&last), "{last} contexts");
    assert_eq!(guest.command(last + 1, &create), code(ErrorCode::OutOfMemory));
    assert_eq!(guest.command(1, &create), code(ErrorCode::InvalidContext));
    assert_eq!(guest.command(1, &Command::DestroyContext), OK);
    assert_eq!(guest.command(last + 1, &create), OK);
    assert_eq!(guest.command(last + 2, &create), code(ErrorCode::OutOfMemory));
    guest.device.reset();
    assert_eq!(guest.command(500, &Command::CreateContext { capset: 6 }), code(ErrorCode::InvalidParameter));
    assert_eq!(guest.device.left(), 0);
}

#[test]
fn queues_go_before_their_memory_and_after_it() {
    let mut guest = Guest::new(Options::default());
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    for backwards in [false, true] {
        let mut copies = library.copies(&mut guest);
        let (copy, at, _) = library.alloc(&mut guest, 2 * PAGE);
        guest.window.word(at).store(42, Ordering::Release);
        assert!(copies.copy(&guest, copy + PAGE, copy, PAGE, SOON));
        assert_eq!(guest.window.word(at + PAGE).load(Ordering::Acquire), 42);
        let mut resources = copies.resources.clone();
        if backwards {
            resources.reverse();
        }
        for resource in resources {
            library.unref(&mut guest, resource);
        }
    }
    // A doorbell page that is gone rings nothing; the context still answers.
    assert_eq!(library.value(&mut guest, &Request::Query(Query::System)) & 0xffff_ffff, 2);
}

#[test]
fn a_guest_that_starts_anew_finds_a_new_device() {
    let mut guest = Guest::new(Options::default());
    let mut library = Library::open(&mut guest, 1, Layout::Y2026);
    let memory = guest.guest_blob(1, scattered(0, 4)).unwrap();
    library.register(&mut guest, memory, 4 * PAGE);
    assert_eq!(guest.command(0, &Command::CapsetInfo { index: 0 }), 0x1102);
    assert_eq!(guest.device.left(), 0);
    Library::open(&mut guest, 1, Layout::Y2026);
    // Asking for others does not end anything.
    assert_eq!(guest.command(0, &Command::CapsetInfo { index: 7 }), code(ErrorCode::InvalidParameter));
    assert_eq!(guest.device.counts(), (1, 1));
}
